// sdc_sim: thousands of runs of the software DC in a modelled world, each judged. docs/software_dc.md.
#include <gflags/gflags.h>

#include <cstdio>

#include "tests/rnic/sdc/run.h"

DEFINE_uint64(seeds, 1000, "runs");
DEFINE_uint64(from, 1, "first seed");
DEFINE_string(mutant, "", "takes one protection away (--list_mutants)");
DEFINE_bool(mutants, false, "takes away one protection after the other, each until a run notices");
DEFINE_uint64(mutant_seeds, 20000, "--mutants: runs until one counts as not caught");
DEFINE_bool(list_mutants, false, "prints their names");
DEFINE_bool(keep_going, false, "does not stop at the first violation");

namespace sdc_test {
namespace {

constexpr uint64_t kRunsToShowAll = 1000;

int RunMutants() {
  int missed = 0;
  std::printf("%-24s %8s  %-72s %s\n", "mutant", "seed", "noticed by", "what was taken away");
  for (const MutationInfo& info : Mutations()) {
    std::string how = "NOTHING";
    const uint64_t seed = Notice(info.mutation, FLAGS_mutant_seeds, &how);
    missed += seed == 0;
    std::printf("%-24s %8lu  %-72s %s\n", info.name, seed, how.c_str(), info.what);
    std::fflush(stdout);
  }
  std::printf("%d of %zu not caught\n", missed, Mutations().size());
  return missed == 0 ? 0 : 1;
}

int Main() {
  if (FLAGS_list_mutants) {
    for (const MutationInfo& info : Mutations()) std::printf("%-24s %s\n", info.name, info.what);
    return 0;
  }
  if (FLAGS_mutants) return RunMutants();
  if (!FLAGS_mutant.empty()) {
    const MutationInfo* info = FindMutation(FLAGS_mutant);
    if (info == nullptr) {
      std::fprintf(stderr, "sdc_sim: no mutant \"%s\" (--list_mutants)\n", FLAGS_mutant.c_str());
      return 2;
    }
    sdc_active_mutation = info->mutation;
  }
  Counts counts;
  uint64_t violations = 0, runs = 0, digest = 0;
  for (; runs < FLAGS_seeds && (violations == 0 || FLAGS_keep_going); ++runs) {
    const uint64_t seed = FLAGS_from + runs;
    const RunResult result = RunSeed(seed);
    counts += result.counts;
    digest = digest * 31 + result.digest;
    if (result.violation.empty()) continue;
    ++violations;
    std::printf("seed %lu: VIOLATION: %s\n%s", seed, result.violation.c_str(), result.plan.c_str());
    std::printf("replay: sdc_sim --from=%lu --seeds=1%s%s\n", seed,
                FLAGS_mutant.empty() ? "" : " --mutant=", FLAGS_mutant.c_str());
  }
  std::printf("%lu seeds, %lu violations, digest %016lx\n", runs, violations, digest);
  int missing = 0;
#define COUNT(member, what, required)          \
  missing += (required) && counts.member == 0; \
  std::printf("%14lu  %s%s\n", counts.member, what, counts.member == 0 ? "   <-- did not happen" : "");
#include "tests/rnic/sdc/counts.def"
#undef COUNT
  if (violations > 0) return 1;
  if (runs >= kRunsToShowAll && missing > 0) {
    std::printf("FAILED: runs that did not do it prove nothing\n");
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sdc_test

int main(int argc, char** argv) {
  gflags::SetUsageMessage("runs of the software DC in a modelled world, each from a seed");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return sdc_test::Main();
}
