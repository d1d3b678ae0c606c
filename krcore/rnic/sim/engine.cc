#include "krcore/rnic/sim/engine.h"

#include <algorithm>
#include <cmath>

#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/qp.h"

namespace krcore::rnic::sim {
namespace {

constexpr int64_t kLocalErrorNs = 100;  // until the sender's own NIC reports a WR that it refuses

}  // namespace

// ---- time

int64_t Engine::NextEventNs() {
  while (!events_.empty()) {
    const Event& event = events_.top();
    if (event.kind() == EventKind::kFenced || verbs_[event.subject].generation == event.generation) return event.at_ns;
    events_.pop();
  }
  return INT64_MAX;
}

bool Engine::Step() {
  if (NextEventNs() == INT64_MAX) return false;
  const Event event = events_.top();
  events_.pop();
  now_ns_ = std::max(now_ns_, event.at_ns);
  ++stats_.events;
  if (event.kind() == EventKind::kFenced) {
    Fence(*devices_[event.subject]);
    return true;
  }
  Verb& verb = verbs_[event.subject];
  if (event.kind() == EventKind::kRespond) {
    verb.responded = true;
    Deliver(*verb.queue);
    return true;
  }
  if (verb.done) return true;
  if (now_ns_ < verb.due_ns) {  // delayed meanwhile
    Add(verb.due_ns, event.kind(), verb.id, verb.generation);
    return true;
  }
  switch (event.kind()) {
    case EventKind::kArrive: Arrive(verb); break;
    case EventKind::kExecute:
    case EventKind::kStep: {
      SendQueue& queue = *verb.queue;
      const uint32_t flow = verb.flow;
      const bool done = event.kind() == EventKind::kExecute ? Execute(verb) : ExecuteStep(verb);
      if (done) TryExecute(queue, flow);
      break;
    }
    default: break;
  }
  return true;
}

void Engine::RunUntil(int64_t ns) {
  while (NextEventNs() <= ns && Step()) {
  }
  now_ns_ = std::max(now_ns_, ns);
}

DeviceState* Engine::TakeReady() {
  if (ready_head_ == ready_.size()) return nullptr;
  DeviceState* const device = ready_[ready_head_++];
  device->ready_listed = false;
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  } else if (ready_head_ >= 4096) {
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(ready_head_));
    ready_head_ = 0;
  }
  return device;
}

// ---- posting

void Engine::Post(SendQueue& queue, const SendWr& wr, uint64_t position) {
  Verb& verb = verbs_.Take();
  verb.wr_id = wr.wr_id;
  verb.remote_addr = wr.remote_addr;
  verb.compare_add = wr.compare_add;
  verb.swap = wr.swap;
  verb.dc_key = wr.dc_key;
  verb.rkey = wr.rkey;
  verb.imm = wr.imm;
  verb.remote_qpn = queue.type == QpType::kRc ? queue.peer_number : wr.remote_qpn;
  verb.qkey = wr.qkey;
  verb.opcode = wr.opcode;
  verb.flags = wr.flags;
  verb.num_sge = wr.num_sge;
  if (wr.num_sge > kFewSges) verb.many_sges.resize(wr.num_sge);
  std::copy_n(wr.sg_list, wr.num_sge, verb.sges().begin());
  uint64_t length = 0;
  for (const Sge& sge : verb.sges()) length += sge.length;
  verb.length = static_cast<uint32_t>(std::min<uint64_t>(length, UINT32_MAX));
  verb.owns_payload = false;
  if ((wr.flags & kInline) != 0) {
    const auto bytes = Gathered(verb);
    verb.payload.assign(bytes.begin(), bytes.end());
    verb.owns_payload = true;
  }
  verb.queue = &queue;
  verb.position = position;
  verb.fence_after = (wr.flags & kFence) != 0 ? queue.last_fenceable : 0;
  if (verb.IsRead() || verb.IsAtomic()) queue.last_fenceable = position;
  verb.due_ns = verb.response_ns = 0;
  verb.response_delay_ns = 0;
  verb.status = WcStatus::kSuccess;
  verb.fate = Fate::kNormal;
  verb.acts = false;
  verb.launched = verb.arrived = verb.running = verb.done = false;
  verb.answered = verb.response_expected = verb.responded = verb.completed = false;
  verb.steps = verb.step = 0;
  verb.target = queue.type == QpType::kRc ? queue.peer : DeviceOf(wr.ah);
  verbs_.Append(&queue.posted, verb);
  if (queue.waiting == kNoVerb) queue.waiting = verb.id;
  LaunchWaiting(queue);
}

// Lets every verb leave that no fence holds back.
void Engine::LaunchWaiting(SendQueue& queue) {
  while (queue.waiting != kNoVerb && !queue.failed_locally) {
    Verb& verb = verbs_[queue.waiting];
    if (verb.fence_after > queue.completed) {
      // Answers to unsignaled verbs are looked at only when something waits for them.
      Verb& first = verbs_[queue.posted.head];
      if (first.answered && !first.response_expected) ExpectResponse(first, first.response_ns);
      return;
    }
    queue.waiting = verb.next_in_queue;
    Launch(verb);
  }
}

void Engine::Launch(Verb& verb) {
  SendQueue& queue = *verb.queue;
  verb.status = CheckLocal(verb);
  if (verb.status != WcStatus::kSuccess) {
    verb.done = true;
    queue.failed_locally = true;
    ExpectResponse(verb, now_ns_ + kLocalErrorNs);
    return;
  }
  ++stats_.verbs;
  verb.launched = true;
  DeviceState& own = *queue.device;
  const int64_t leave_ns = std::max({now_ns_, own.send_free_ns, own.stalled_until_ns});
  own.send_free_ns = leave_ns + cost_.verb_gap_ns + PayloadOutNs(verb);
  int64_t arrive_ns = leave_ns + PayloadOutNs(verb) + cost_.one_way_ns;
  if (queue.type == QpType::kUd) ExpectResponse(verb, leave_ns + cost_.verb_gap_ns);  // nobody answers a datagram
  DrawFaults(verb, leave_ns, &arrive_ns);
  verb.flow = queue.FlowTo(verb.target);
  Flow& flow = queue.flows[verb.flow];
  if (verb.IsRead()) {
    verb.others_before = flow.others_sent;
    verbs_.Append(&flow.reads, verb);
  } else {
    ++flow.others_sent;
    verbs_.Append(&flow.others, verb);
  }
  Schedule(verb, arrive_ns, EventKind::kArrive);
}

// ---- executing, in the order of the flow

void Engine::Arrive(Verb& verb) {
  if (verb.target->frozen_until_ns > now_ns_) {
    const int64_t waits_ns = verb.target->frozen_until_ns - now_ns_;
    if (waits_ns > cost_.retry_timeout_ns && verb.fate == Fate::kNormal && verb.queue->type != QpType::kUd) {
      verb.fate = Fate::kLate;
      ExpectResponse(verb, now_ns_ + cost_.retry_timeout_ns);
    }
    Schedule(verb, verb.target->frozen_until_ns, EventKind::kArrive);
    return;
  }
  verb.arrived = true;
  TryExecute(*verb.queue, verb.flow);
}

void Engine::TryExecute(SendQueue& queue, uint32_t index) {
  for (bool progress = true; progress;) {
    progress = false;
    Flow& flow = queue.flows[index];
    if (!flow.others.empty()) {
      Verb& verb = verbs_[flow.others.head];
      if (verb.position > flow.stopped_after) {
        DropList(&flow.others);
      } else if (verb.arrived && !verb.running) {
        progress |= Begin(verb);
      }
    }
    if (!flow.reads.empty()) {
      Verb& verb = verbs_[flow.reads.head];
      const bool turn = static_cast<int32_t>(flow.others_done - verb.others_before) >= 0;
      if (verb.position > flow.stopped_after) {
        DropList(&flow.reads);
      } else if (verb.arrived && !verb.running && turn) {
        progress |= Begin(verb);
      }
    }
  }
}

void Engine::DropList(VerbList<&Verb::next_in_flow>* list) {
  while (!list->empty()) {
    Verb& verb = verbs_[list->head];
    Leave(verb);
    Release(verb);
  }
}

void Engine::Leave(Verb& verb) {
  SendQueue& queue = *verb.queue;
  Flow& flow = queue.flows[verb.flow];
  if (verb.IsRead()) {
    verbs_.PopFront(&flow.reads);
  } else {
    verbs_.PopFront(&flow.others);
    ++flow.others_done;
  }
  verb.done = true;
  verb.running = false;
  if (queue.owner == nullptr) --queue.device->zombies;
}

void Engine::Finish(Verb& verb, WcStatus status) {
  SendQueue& queue = *verb.queue;
  verb.status = status;
  const bool unanswered = verb.target->life != Life::kAlive || IsCutOff(verb);  // since it executed
  if (status == WcStatus::kSuccess && unanswered && verb.fate == Fate::kNormal && queue.type != QpType::kUd &&
      !verb.completed) {
    verb.fate = Fate::kAnswerLost;
    ExpectResponse(verb, now_ns_ + cost_.retry_timeout_ns);
  }
  if (status != WcStatus::kSuccess) {
    Flow& flow = queue.flows[verb.flow];
    flow.stopped_after = std::min(flow.stopped_after, verb.position);
  } else if (queue.owner == nullptr) {
    ++stats_.zombie_verbs;
  } else if (verb.completed && queue.type != QpType::kUd) {
    ++stats_.late_verbs;
  }
  Leave(verb);
  if (verb.completed) {
    Release(verb);
    return;
  }
  if (queue.type == QpType::kUd || verb.fate != Fate::kNormal) return;  // the answer is on its way, or never comes
  const int64_t silence_ns = status == WcStatus::kRetryExceeded ? cost_.retry_timeout_ns : 0;
  verb.response_ns =
      now_ns_ + cost_.one_way_ns + (verb.IsRead() ? TransferNs(verb.length) : 0) + silence_ns + verb.response_delay_ns;
  verb.answered = true;
  // An unsignaled success is noticed with the next verb that is signaled or fails, unless that was answered already.
  if ((verb.flags & kSignaled) != 0 || status != WcStatus::kSuccess || queue.waiting != kNoVerb || queue.answer_missed)
    ExpectResponse(verb, verb.response_ns);
}

// ---- completing, in the order of posting

void Engine::ExpectResponse(Verb& verb, int64_t at_ns) {
  verb.response_expected = true;
  verb.response_ns = at_ns;
  Add(at_ns, EventKind::kRespond, verb.id, verb.generation);
}

void Engine::Deliver(SendQueue& queue) {
  queue.answer_missed = false;
  while (!queue.posted.empty()) {
    Verb& verb = verbs_[queue.posted.head];
    if (!verb.responded) {
      if (!verb.answered) {
        queue.answer_missed = true;
        break;
      }
      if (verb.response_ns > now_ns_) {
        if (!verb.response_expected) ExpectResponse(verb, verb.response_ns);
        break;
      }
    }
    const WcStatus status =
        verb.fate != Fate::kNormal && queue.type != QpType::kUd ? WcStatus::kRetryExceeded : verb.status;
    Tell(verb, status);
    if (status == WcStatus::kSuccess) continue;
    SimQp* const owner = queue.owner;
    Flush(queue);
    if (owner != nullptr) owner->SendFailed();
    return;
  }
  if (queue.waiting != kNoVerb) LaunchWaiting(queue);
}

// The first outstanding verb completes.
void Engine::Tell(Verb& verb, WcStatus status) {
  SendQueue& queue = *verb.queue;
  if (queue.waiting == verb.id) queue.waiting = verb.next_in_queue;
  verbs_.PopFront(&queue.posted);
  queue.completed = verb.position;
  verb.completed = true;
  if (!verb.launched) verb.done = true;
  if (queue.owner != nullptr && (status != WcStatus::kSuccess || (verb.flags & kSignaled) != 0))
    queue.owner->SendCompleted(verb, status);
  if (!verb.done) Detach(verb);
  Release(verb);
}

void Engine::Flush(SendQueue& queue) {
  while (!queue.posted.empty()) Tell(verbs_[queue.posted.head], WcStatus::kFlushed);
}

void Engine::Drop(SendQueue& queue) {
  for (Flow& flow : queue.flows) {
    DropList(&flow.others);
    DropList(&flow.reads);
  }
  while (!queue.posted.empty()) {
    Verb& verb = verbs_.PopFront(&queue.posted);
    verb.done = verb.completed = true;
    Release(verb);
  }
  queue.flows.clear();
  queue.waiting = kNoVerb;
  queue.completed = queue.last_fenceable = 0;
  queue.failed_locally = queue.answer_missed = false;
}

// ---- faults: delays, broken queues, and what dead processes leave on the wire

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
        // Half of the verbs keep their time, the others may be anywhere on the way.
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
