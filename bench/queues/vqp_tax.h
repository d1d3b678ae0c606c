// The tax: what a VirtualQueue costs over the bare RNIC interface, as a difference measured in one run.
#ifndef BENCH_QUEUES_VQP_TAX_H_
#define BENCH_QUEUES_VQP_TAX_H_

#include <cstddef>
#include <cstdint>

namespace krcore {

struct TaxOptions {
  uint32_t rounds = 400;  // slices of each side and configuration
  // 'b' or 'q': only that side of READ, batch 16, one worker, for counting instructions; 0: all.
  char only = 0;
  bool all_signaled = true;  // there; else the last of a batch
};

// Prints a line for each configuration. False: something failed, which has been printed.
bool RunTax(const TaxOptions& options);

}  // namespace krcore

#endif  // BENCH_QUEUES_VQP_TAX_H_
