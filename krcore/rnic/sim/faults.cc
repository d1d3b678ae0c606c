// Delays, broken queues, and what dead processes leave on the wire.
#include <algorithm>
#include <cmath>

#include "krcore/rnic/sim/engine.h"

namespace krcore::rnic::sim {

int64_t Engine::LogUniform(int64_t most) {
  if (most <= 1) return 1;
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
  return std::clamp<int64_t>(std::llround(std::exp(uniform * std::log(static_cast<double>(most)))), 1, most);
}

void Engine::DrawFaults(Verb& verb, int64_t leave_ns, int64_t* arrive_ns) {
  const Chaos& chaos = ChaosOf(verb);
  if (chaos.max_delay_ns > 0 && Chance(chaos.delay)) {
    ++stats_.delayed;
    const int64_t delay_ns = LogUniform(chaos.max_delay_ns);
    if ((random_() & 1) != 0 || verb.queue->type == QpType::kUd) {
      *arrive_ns += delay_ns;
    } else {
      verb.response_delay_ns = delay_ns;
    }
  }
  if (!Chance(chaos.break_queue) || verb.queue->type == QpType::kUd) return;
  const int64_t soonest_ns = 2 * cost_.one_way_ns;
  const int64_t fails_ns =
      leave_ns + soonest_ns + LogUniform(std::max<int64_t>(1, cost_.retry_timeout_ns - soonest_ns));
  DrawFate(verb, fails_ns);
  if (verb.fate == Fate::kLate) *arrive_ns = std::max(*arrive_ns, verb.due_ns);
}

void Engine::DrawFate(Verb& verb, int64_t fails_ns) {
  static constexpr Fate kFates[] = {Fate::kAnswerLost, Fate::kRequestLost, Fate::kLate};
  ++stats_.broken;
  verb.fate = kFates[random_() % std::size(kFates)];
  if (verb.fate == Fate::kLate)
    verb.due_ns = fails_ns + LogUniform(std::max(ChaosOf(verb).max_delay_ns, 100 * cost_.one_way_ns));
  ExpectResponse(verb, fails_ns);
}

void Engine::Break(SendQueue& queue, const DeviceState* peer) {
  for (VerbId id = queue.posted.head; id != kNoVerb; id = verbs_[id].next_in_queue) {
    Verb& verb = verbs_[id];
    if (!verb.launched || verb.target != peer || verb.responded || verb.fate != Fate::kNormal) continue;
    DrawFate(verb, now_ns_);
    if (verb.done || verb.running) verb.fate = Fate::kAnswerLost;
    return;
  }
}

void Engine::Detach(Verb& verb) {
  if (verb.owns_payload || verb.IsRead() || verb.IsAtomic()) return;
  const auto bytes = Gathered(verb);
  verb.payload.assign(bytes.begin(), bytes.end());
  verb.owns_payload = true;
}

// ---- the dead

void Engine::Orphan(SendQueue& queue, int64_t until_ns) {
  queue.owner = nullptr;
  // Fetches what is still to be written.
  Flush(queue);
  for (Flow& flow : queue.flows) {
    for (auto* list : {&flow.others, &flow.reads}) {
      for (VerbId id = list->head; id != kNoVerb; id = verbs_[id].next_in_flow) {
        Verb& verb = verbs_[id];
        ++queue.device->zombies;
        // Half of them keep their time, the others are anywhere on the way.
        if ((random_() & 1) == 0 || until_ns <= now_ns_) continue;
        const auto span = static_cast<uint64_t>(until_ns - now_ns_);
        verb.due_ns = std::max(verb.due_ns, now_ns_ + static_cast<int64_t>(random_() % span));
      }
    }
  }
}

void Engine::Fence(DeviceState& device) {
  for (const auto& queue : device.orphans) Drop(*queue);
  device.orphans.clear();
}

}  // namespace krcore::rnic::sim
