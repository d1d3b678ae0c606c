#include "tests/rnic/sdc/run.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/rnic/sdc/initiator_node.h"
#include "tests/rnic/sdc/target_node.h"
#include "tests/rnic/sdc/world.h"

namespace sdc_test {
namespace {

constexpr uint64_t kHangNs = 60'000 * kMs;

struct Cast {
  std::vector<std::unique_ptr<InitiatorNode>> initiators;
  std::vector<std::unique_ptr<TargetNode>> targets;
};

void Inject(World* world, Cast* cast, const Fault& fault) {
  InitiatorNode& initiator = *cast->initiators[fault.initiator];
  TargetNode& target = *cast->targets[fault.target];
  const uint64_t until_ns = world->now_ns() + fault.for_ns;
  switch (fault.kind) {
    case FaultKind::kRestartTarget: target.Restart(); break;
    case FaultKind::kRestartInitiator:
      if (!initiator.finished()) initiator.Restart();
      break;
    case FaultKind::kPauseTarget: target.asleep_until_ns = until_ns; break;
    case FaultKind::kPauseInitiator: initiator.asleep_until_ns = until_ns; break;
    case FaultKind::kPartition: world->Cut(initiator.number(), target.number(), fault.for_ns, false); break;
    case FaultKind::kHold: world->Cut(initiator.number(), target.number(), fault.for_ns, true); break;
    case FaultKind::kReset:
      if (!initiator.finished()) initiator.Reset();
      break;
    case FaultKind::kFail:
      if (!initiator.finished()) initiator.Fail();
      break;
    case FaultKind::kDeregister: target.Deregister(fault.for_ns); break;
    case FaultKind::kDeregisterLocal: initiator.DeregisterLocal(fault.for_ns); break;
  }
}

}  // namespace

RunResult RunSeed(uint64_t seed) {
  const Plan plan = MakePlan(seed);
  World world(plan);
  Cast cast;
  for (uint32_t i = 0; i < plan.initiators; ++i) cast.initiators.push_back(std::make_unique<InitiatorNode>(&world, i));
  std::vector<TargetNode*> targets;
  for (uint32_t i = 0; i < plan.targets; ++i) {
    cast.targets.push_back(std::make_unique<TargetNode>(&world, plan.initiators + i));
    targets.push_back(cast.targets.back().get());
  }
  for (const auto& initiator : cast.initiators) initiator->Start(targets);
  for (const Fault& fault : plan.faults) world.After(fault.at_ns, [&, fault] { Inject(&world, &cast, fault); });
  const auto all_finished = [&cast] {
    return std::all_of(cast.initiators.begin(), cast.initiators.end(), [](const auto& at) { return at->finished(); });
  };
  Judge& judge = world.judge();
  if (!world.RunUntil(all_finished, kHangNs)) judge.Violation("it hangs");
  // Packets that are late come now.
  world.RunUntil([] { return false; }, world.now_ns() + 2000 * kMs);
  judge.End();
  for (const auto& target : cast.targets) {
    target->Count();
    if (!target->ReceivesAreThere()) judge.Violation("receives were lost");
  }
  for (const auto& initiator : cast.initiators) initiator->Count();
  return {judge.violation(), plan.ToString(), judge.counts(), judge.digest()};
}

std::span<const MutationInfo> Mutations() {
  static constexpr MutationInfo kAll[] = {
#define MUTATION(id, name, what) {SDC_MUTATION_##id, name, what},
#include "krcore/rnic/sdc/mutations.def"
#undef MUTATION
  };
  return kAll;
}

const MutationInfo* FindMutation(std::string_view name) {
  for (const MutationInfo& info : Mutations()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

uint64_t Notice(sdc_mutation mutation, uint64_t seeds, std::string* how) {
  sdc_active_mutation = mutation;
  uint64_t noticed = 0;
  for (uint64_t seed = 1; seed <= seeds && noticed == 0; ++seed) {
    const RunResult result = RunSeed(seed);
    if (result.violation.empty()) continue;
    noticed = seed;
    *how = result.violation;
  }
  sdc_active_mutation = SDC_MUTATION_NONE;
  return noticed;
}

}  // namespace sdc_test
