// CPU time of this process: a memory node uses it to show that serving costs none.
#ifndef MEMNODE_CPU_TIME_H_
#define MEMNODE_CPU_TIME_H_

#include <sys/resource.h>

namespace memnode {

struct CpuTime {
  double user_s = 0;
  double system_s = 0;

  static CpuTime OfThisProcess() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6; };
    return {seconds(usage.ru_utime), seconds(usage.ru_stime)};
  }
  friend CpuTime operator-(const CpuTime& a, const CpuTime& b) {
    return {a.user_s - b.user_s, a.system_s - b.system_s};
  }
};

}  // namespace memnode

#endif  // MEMNODE_CPU_TIME_H_
