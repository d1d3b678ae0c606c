// Prints the rate of this machine's time-stamp counter in kHz, measured over 100 ms. An emulated guest reads the
// host's counter, and the calibration it would do itself fails on a busy host.
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static double NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void) {
  const double begin_ns = NowNs();
  const unsigned long long begin_ticks = __rdtsc();
  while (NowNs() - begin_ns < 1e8) {
  }
  const double elapsed_ns = NowNs() - begin_ns;
  printf("%.0f\n", (double)(__rdtsc() - begin_ticks) / (elapsed_ns / 1e6));
  return 0;
}
