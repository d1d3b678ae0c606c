#include "tests/rnic/sdc/initiator_node.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sdc_test {
namespace {

constexpr uint32_t kLkey = 1, kLkeyThatGoes = 2, kNoLkey = 77;
constexpr uint64_t kPoison = 0xdeaddeaddeaddead;

InitiatorNode* Initiator(void* context) { return static_cast<InitiatorNode*>(context); }

}  // namespace

InitiatorNode::InitiatorNode(World* world, uint32_t number)
    : Machine(world, number), wrs_(world->plan().depth), peers_(world->plan().peers), left_(world->plan().wrs) {
  StartCore();
}

void InitiatorNode::StartCore() {
  static constexpr sdc_initiator_ops kOps = {
      .local = [](void* context, uint32_t lkey, uint64_t addr, uint32_t length,
                  bool) { return Initiator(context)->Local(lkey, addr, length); },
      .buffer =
          [](void* context) {
            return Initiator(context)->world_->Chance(0.01) ? nullptr : Initiator(context)->buffer();
          },
      .send = [](void* context, const sdc_address* to, uint32_t bytes) { Initiator(context)->Send(*to, bytes); },
  };
  const sdc_initiator_config config = {
      .ops = &kOps,
      .context = this,
      .life = world_->In(0, ~uint64_t{0} - 1),
      .mtu_bytes = world_->plan().mtu_bytes,
      .max_message_bytes = 1 << 20,
      .timing = world_->plan().timing,
      .wrs = wrs_.data(),
      .depth = static_cast<uint32_t>(wrs_.size()),
      .peers = peers_.data(),
      .peer_count = static_cast<uint32_t>(peers_.size()),
      .first_tag = ~uint32_t{0} - 1,
  };
  sdc_initiator_init(&initiator_, &config);
}

void InitiatorNode::Start(std::vector<TargetNode*> targets) {
  for (TargetNode* node : targets) {
    targets_.push_back({node, std::vector<uint32_t>(kPlaceWords), std::vector<uint32_t>(kPlaceWords)});
  }
  world_->After(world_->In(0, 100) * kUs, [this] { Step(); });
}

void InitiatorNode::Receive(const sdc_address& from, const std::vector<uint8_t>& packet) {
  (void)from;
  sdc_initiator_receive(&initiator_, packet.data(), static_cast<uint32_t>(packet.size()), local_ns());
  Pump();
}

void InitiatorNode::Pump() {
  if (world_->now_ns() < asleep_until_ns) return;
  sdc_initiator_run(&initiator_, local_ns());
  sdc_completion completion;
  while (sdc_initiator_poll(&initiator_, &completion)) Take(completion);
  if (waits_for_reset_ && sdc_initiator_is_reset(&initiator_)) {
    waits_for_reset_ = false;
    world_->judge().IsReset(number(), epoch_);
    NewEpoch();
    if (final_ == Final::kUnderWay) final_ = Final::kDone;
  }
  const uint64_t next_ns = sdc_initiator_next(&initiator_, local_ns());
  if (next_ns == ~uint64_t{0}) return;
  const uint64_t at_ns = world_->now_ns() + std::max<uint64_t>(1, clock().Until(next_ns, world_->now_ns()));
  if (wake_ns_ != 0 && wake_ns_ <= at_ns) return;
  wake_ns_ = at_ns;
  world_->After(at_ns - world_->now_ns(), [this, at_ns] {
    if (wake_ns_ == at_ns) wake_ns_ = 0;
    Pump();
  });
}

void InitiatorNode::Step() {
  if (world_->now_ns() < asleep_until_ns) {
    world_->After(asleep_until_ns - world_->now_ns(), [this] { Step(); });
    return;
  }
  if (!waits_for_reset_) {
    const uint64_t burst = world_->In(1, 6);
    for (uint64_t i = 0; i < burst && left_ != 0 && outstanding_ < world_->plan().outstanding; ++i) {
      if (failed_ && world_->Chance(0.9)) break;  // flushed
      PostOne();
    }
    Pump();
    if (failed_ && outstanding_ == 0) Reset();
    if (left_ == 0 && outstanding_ == 0 && !waits_for_reset_ && final_ == Final::kNo) {
      final_ = Final::kUnderWay;
      Reset();
    }
  }
  if (final_ != Final::kDone) {
    // What had to wait for a buffer is asked for here, too.
    Pump();
    const uint64_t idle_ns = world_->Chance(0.05) ? world_->In(1, 40) * kMs : world_->In(10, 400) * kUs;
    world_->After(idle_ns, [this] { Step(); });
  }
}

void InitiatorNode::NewEpoch() {
  ++epoch_;
  failed_ = false;
  outstanding_ = 0;
  in_queue_.clear();
  buffers_.clear();
  buffer_of_.clear();
  for (Target& target : targets_) {
    target.posted = target.confirmed;
    target.posted_sum = target.confirmed_sum;
  }
}

void InitiatorNode::Reset() {
  if (waits_for_reset_) return;
  world_->judge().Reset(number(), epoch_, false);
  outstanding_ = 0;
  in_queue_.clear();
  buffers_.clear();
  sdc_initiator_reset(&initiator_, local_ns());
  if (!sdc_initiator_is_reset(&initiator_)) ++world_->judge().counts().waited_resets;
  waits_for_reset_ = true;
  Pump();
}

void InitiatorNode::Fail() {
  if (waits_for_reset_) return;
  world_->judge().Failed(number(), epoch_);
  failed_ = true;
  sdc_initiator_fail(&initiator_, local_ns());
  Pump();
}

void InitiatorNode::Restart() {
  Count();
  world_->judge().Reset(number(), epoch_, true);
  waits_for_reset_ = false;
  if (final_ == Final::kUnderWay) final_ = Final::kNo;
  NewEpoch();
  tainted_until_ns_ = local_ns() + world_->plan().timing.limit_ns + 2 * world_->plan().timing.grace_ns;
  StartCore();
}

void InitiatorNode::DeregisterLocal(uint64_t for_ns) {
  local_gone_ = true;
  world_->After(for_ns, [this] { local_gone_ = false; });
}

void InitiatorNode::Count() {
  Counts& counts = world_->judge().counts();
  counts.sent_again += initiator_.stats.sent_again;
  counts.sessions_gone += initiator_.stats.sessions_gone;
  counts.peers_evicted += initiator_.stats.peers_evicted;
  counts.rnr += initiator_.stats.rnr;
  counts.late_wrs += initiator_.stats.expired;
}

void* InitiatorNode::Local(uint32_t lkey, uint64_t addr, uint32_t length) {
  if (lkey == kNoLkey || (lkey == kLkeyThatGoes && local_gone_)) return nullptr;
  auto at = buffers_.upper_bound(addr);
  if (at != buffers_.begin()) {
    --at;
    if (addr + length <= at->first + at->second.words.size() * 8) return reinterpret_cast<void*>(addr);
  }
  world_->judge().Violation("memory was touched that is no WR's any more");
  return nullptr;
}

void InitiatorNode::Take(const sdc_completion& completion) {
  world_->judge().Completed(number(), epoch_, completion);
  const auto uid = static_cast<uint32_t>(completion.wr_id);
  while (!in_queue_.empty() && in_queue_.front() <= uid) {
    Record& record = world_->judge().record(in_queue_.front());
    in_queue_.pop_front();
    --outstanding_;
    if (record.status == SDC_SUCCESS) {
      Succeeded(record);
    } else {
      failed_ = true;
    }
    buffers_.erase(buffer_of_[record.uid]);
  }
}

void InitiatorNode::Succeeded(Record& record) {
  Target& target = targets_[record.target];
  const auto found = buffers_.find(buffer_of_[record.uid]);
  if (record.opcode == SDC_OP_READ) {
    CheckRead(record, found->second);
  } else if (record.opcode == SDC_OP_COMPARE_SWAP || record.opcode == SDC_OP_FETCH_ADD) {
    last_seen_ = found->second.words[0];
    if (last_seen_ != record.before)
      world_->judge().Violation("atomic " + std::to_string(record.uid) + " brought another word than it found");
    if (record.place == Place::kOwn) target.confirmed_sum += record.uid;
  } else if (record.place == Place::kOwn && !record.floor.empty() && tainted_until_ns_ == 0) {
    for (const uint32_t word : record.floor) target.confirmed[word] = std::max(target.confirmed[word], record.uid);
  }
}

void InitiatorNode::CheckRead(const Record& record, const Buffer& buffer) {
  Judge& judge = world_->judge();
  const std::string who = "READ " + std::to_string(record.uid);
  if (buffer.is_counter) {
    if (buffer.words[0] < record.counter_floor || buffer.words[0] == kPoison)
      judge.Violation(who + " did not see an atomic before it");
    return;
  }
  for (uint32_t i = 0; i < record.words; ++i) {
    const uint64_t word = buffer.words[i];
    const uint32_t uid = UidOf(word, buffer.first_word + i);
    if (word != 0 && uid == 0) {
      judge.Violation(who + ": word " + std::to_string(i) + " is torn");
      return;
    }
    if (record.floor.empty()) continue;
    if (uid < record.floor[i]) {
      judge.Violation(who + " saw WR " + std::to_string(uid) + " and not " + std::to_string(record.floor[i]) +
                      " before it");
      return;
    }
    if (uid >= record.ceiling) {
      judge.Violation(who + " saw WR " + std::to_string(uid) + " behind a fence");
      return;
    }
  }
}

// ---- what is posted

void InitiatorNode::PostOne() {
  const Plan& plan = world_->plan();
  const auto target_index = static_cast<uint32_t>(world_->In(0, targets_.size() - 1));
  Target& target = targets_[target_index];
  Record& record = world_->judge().Post(number(), target_index, epoch_);
  sdc_wr wr{};
  wr.wr_id = record.uid;
  wr.to = target.node->address();
  wr.target = kDctNumber;
  wr.key = target.node->key();
  const bool must_signal = left_ == 1 || outstanding_ + 1 >= plan.outstanding;
  if (must_signal || world_->Chance(0.7)) wr.flags |= SDC_SIGNALED;
  if (world_->Chance(plan.fences)) wr.flags |= SDC_FENCE;
  const auto words =
      static_cast<uint32_t>(1 + (world_->Chance(0.5) ? world_->In(0, 7) : world_->In(0, plan.max_bytes / 8 - 1)));
  record.words = words;
  record.expires_ns = local_ns() + plan.timing.limit_ns;
  Buffer buffer{.words = {}, .uid = record.uid};
  if (world_->Chance(plan.atomics)) {
    AimAtomic(&wr, &record, &target);
    buffer.is_counter = true;
  } else {
    const double what = static_cast<double>(world_->In(0, 999)) / 1000;
    record.place = world_->Chance(plan.doomed) ? Place::kDoomed : world_->Chance(0.68) ? Place::kOwn : Place::kShared;
    record.may_be_refused = record.place == Place::kDoomed && !plan.calm;
    buffer.first_word = static_cast<uint32_t>(world_->In(0, kPlaceWords - words));
    if (world_->Chance(0.7)) buffer.first_word = buffer.first_word % 64;
    if (buffer.first_word + words > kPlaceWords) buffer.first_word = 0;
    if (what < plan.reads) {
      wr.opcode = SDC_OP_READ;
    } else if (what < plan.reads + plan.messages) {
      wr.opcode = world_->Chance(0.3) ? SDC_OP_WRITE_IMM : world_->Chance(0.5) ? SDC_OP_SEND : SDC_OP_SEND_IMM;
      wr.imm = record.uid;
    } else {
      wr.opcode = SDC_OP_WRITE;
    }
    if (wr.opcode == SDC_OP_SEND || wr.opcode == SDC_OP_SEND_IMM) {
      buffer.first_word = 0;
      record.place = Place::kShared;
      record.may_be_refused = false;
    } else {
      record.opcode = wr.opcode;
      AimPlace(&wr, &record, &target, buffer.first_word);
    }
    if (words > 32) ++world_->judge().counts().long_messages;
  }
  record.opcode = wr.opcode;
  record.flags = wr.flags;
  buffer.words.resize(buffer.is_counter ? 1 : words);
  if (wr.opcode == SDC_OP_READ || buffer.is_counter) {
    std::fill(buffer.words.begin(), buffer.words.end(), kPoison);
    if (buffer.is_counter && wr.opcode != SDC_OP_READ)
      record.expires_ns += plan.timing.grace_ns + plan.timing.grace_ns / 100;
  } else {
    for (uint32_t i = 0; i < words; ++i) buffer.words[i] = StampOf(record.uid, buffer.first_word + i);
  }
  const auto addr = reinterpret_cast<uint64_t>(buffer.words.data());
  const auto bytes = static_cast<uint32_t>(buffer.words.size() * 8);
  const uint32_t lkey = !plan.calm && world_->Chance(0.2) ? kLkeyThatGoes : kLkey;
  record.local_may_go = lkey == kLkeyThatGoes;
  const uint32_t cut = bytes < 16 ? bytes : static_cast<uint32_t>(world_->In(1, bytes - 1));
  wr.sges[0] = {addr, cut, lkey};
  wr.sges[1] = {addr + cut, bytes - cut, lkey};
  wr.sge_count = bytes < 16 ? 1 : 2;
  if (world_->Chance(plan.bad)) Spoil(&wr, &record);
  const bool may_be_inline = bytes <= SDC_MAX_INLINE_BYTES && !buffer.is_counter && wr.opcode != SDC_OP_READ;
  if (may_be_inline && wr.sges[0].lkey == kLkey && world_->Chance(0.3)) wr.flags |= SDC_INLINE;
  buffer_of_[record.uid] = addr;
  auto& kept = buffers_[addr] = std::move(buffer);
  if (sdc_initiator_post(&initiator_, &wr, local_ns()) != SDC_POSTED) world_->judge().Violation("a post was refused");
  if ((wr.flags & SDC_INLINE) != 0) std::fill(kept.words.begin(), kept.words.end(), kPoison);
  // READs before a fenced WR must not see what it does.
  if ((wr.flags & SDC_FENCE) != 0) {
    for (const uint32_t uid : in_queue_) {
      Record& before = world_->judge().record(uid);
      before.ceiling = std::min(before.ceiling, record.uid);
    }
  }
  in_queue_.push_back(record.uid);
  ++outstanding_;
  --left_;
}

void InitiatorNode::AimAtomic(sdc_wr* wr, Record* record, Target* target) {
  const bool own = world_->Chance(0.6);
  const uint32_t word = own ? kSharedCounters + number() : static_cast<uint32_t>(world_->In(0, kSharedCounters - 1));
  record->place = own ? Place::kOwn : Place::kShared;
  record->words = 1;
  wr->rkey = kCounters;
  wr->remote_addr = target->node->AddressOf(kCounters, word);
  wr->opcode = SDC_OP_FETCH_ADD;
  wr->compare_add = record->uid;
  if (own && world_->Chance(0.4)) {
    wr->opcode = SDC_OP_READ;
    record->counter_floor = target->posted_sum;
  } else if (own) {
    target->posted_sum += record->uid;
  } else if (world_->Chance(0.5)) {
    wr->opcode = SDC_OP_COMPARE_SWAP;
    wr->compare_add = world_->Chance(0.3) ? 0 : last_seen_;
    wr->swap = record->uid;
  }
}

void InitiatorNode::AimPlace(sdc_wr* wr, Record* record, Target* target, uint32_t word) {
  const Region regions[] = {kOwnPlaces, kSharedPlace, kDoomedPlace};
  wr->rkey = regions[static_cast<int>(record->place)];
  wr->remote_addr = target->node->AddressOf(static_cast<Region>(wr->rkey),
                                            word + (wr->rkey == kOwnPlaces ? number() * kPlaceWords : 0));
  if (record->place != Place::kOwn) return;
  if (tainted_until_ns_ != 0 && local_ns() > tainted_until_ns_) tainted_until_ns_ = 0;
  if (tainted_until_ns_ != 0) return;
  for (uint32_t i = word; i < word + record->words; ++i) {
    if (record->opcode == SDC_OP_READ) {
      record->floor.push_back(target->posted[i]);
    } else {
      record->floor.push_back(i);
      target->posted[i] = record->uid;
    }
  }
}

// Makes the WR one that must fail.
void InitiatorNode::Spoil(sdc_wr* wr, Record* record) {
  const bool is_send = wr->opcode == SDC_OP_SEND || wr->opcode == SDC_OP_SEND_IMM;
  record->may_be_refused = false;
  switch (world_->In(0, 4)) {
    case 0:
      wr->sges[0].lkey = kNoLkey;
      record->wanted = SDC_LOCAL_PROTECTION_ERROR;
      break;
    case 1:
      wr->key += 5;
      record->wanted = SDC_REMOTE_ACCESS_ERROR;
      break;
    case 2:
      wr->target += 1;
      record->wanted = SDC_RETRY_EXCEEDED;
      break;
    default:
      if (is_send) {
        wr->key -= 5;
      } else if (world_->Chance(0.5)) {
        wr->rkey = 99;
      } else {
        // Its end is beyond the memory's, or it begins before the memory.
        TargetNode& node = *targets_[record->target].node;
        if (wr->rkey != kCounters) wr->rkey = kSharedPlace;
        wr->remote_addr = wr->rkey == kCounters
                              ? node.AddressOf(kCounters, 0) - 8
                              : node.AddressOf(kSharedPlace, 0) + 8 * (kPlaceWords - record->words + 1);
      }
      record->wanted = SDC_REMOTE_ACCESS_ERROR;
  }
}

}  // namespace sdc_test
