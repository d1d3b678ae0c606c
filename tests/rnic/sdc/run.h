// One run of the software DC in a modelled world, from its seed, judged.
#ifndef TESTS_RNIC_SDC_RUN_H_
#define TESTS_RNIC_SDC_RUN_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "krcore/rnic/sdc/mutation.h"
#include "tests/rnic/sdc/judge.h"

namespace sdc_test {

struct RunResult {
  std::string violation;  // empty: everything was right
  std::string plan;
  Counts counts;
  uint64_t digest = 0;
};

RunResult RunSeed(uint64_t seed);

struct MutationInfo {
  sdc_mutation mutation;
  const char* name;
  const char* what;
};
std::span<const MutationInfo> Mutations();
const MutationInfo* FindMutation(std::string_view name);  // null: there is no such mutation

// Runs seeds from 1 on until one notices the mutation. Returns that seed, or 0 if none of `seeds` seeds does; `how` is
// what was noticed.
uint64_t Notice(sdc_mutation mutation, uint64_t seeds, std::string* how);

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_RUN_H_
