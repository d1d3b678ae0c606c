// Prints the rate of this machine's time-stamp counter in kHz, measured over 100 ms. An emulated guest reads the
// host's counter, and the calibration it would do itself fails on a busy host.
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
  double ns;
  unsigned long long ticks;
};

static double NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

// Returns both clocks at one moment: of many tries, the one in which least time passed between two reads of the
// counter. A busy host interrupts the others.
static struct moment Now(void) {
  struct moment best = {0, 0};
  unsigned long long least = ~0ull;
  for (int i = 0; i < 200; ++i) {
    const unsigned long long before = __rdtsc();
    const double ns = NowNs();
    const unsigned long long took = __rdtsc() - before;
    if (took >= least) continue;
    least = took;
    best.ns = ns;
    best.ticks = before + took / 2;
  }
  return best;
}

int main(void) {
  const struct moment begin = Now();
  while (NowNs() - begin.ns < 1e8) {
  }
  const struct moment end = Now();
  printf("%.0f\n", (double)(end.ticks - begin.ticks) / ((end.ns - begin.ns) / 1e6));
  return 0;
}
