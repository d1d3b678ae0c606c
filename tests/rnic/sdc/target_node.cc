#include "tests/rnic/sdc/target_node.h"

#include <algorithm>
#include <cstring>

namespace sdc_test {
namespace {

TargetNode* Target(void* context) { return static_cast<TargetNode*>(context); }

}  // namespace

TargetNode::TargetNode(World* world, uint32_t number) : Machine(world, number), receives_(world->plan().receives) {
  memory_[kOwnPlaces].resize(size_t{kPlaceWords} * world->plan().initiators);
  memory_[kCounters].resize(kSharedCounters + world->plan().initiators);
  memory_[kSharedPlace].resize(kPlaceWords);
  memory_[kDoomedPlace].resize(kPlaceWords);
  sessions_.resize(world->plan().sessions);
  ring_.resize(receives_.size());
  for (PostedReceive& receive : receives_) receive.bytes.resize(world->plan().max_bytes / 8);
  StartCore();
}

void TargetNode::StartCore() {
  static constexpr sdc_target_ops kOps = {
      .memory = [](void* context, uint32_t rkey, uint64_t addr, uint32_t length,
                   uint32_t) { return Target(context)->Memory(rkey, addr, length); },
      .local = [](void*, uint32_t, uint64_t addr, uint32_t) { return reinterpret_cast<void*>(addr); },
      .atomic = [](void* context, const sdc_atomic_request* request) { return Target(context)->Atomic(*request); },
      .buffer = [](void* context) { return Target(context)->buffer(); },
      .send = [](void* context, const sdc_address* to, uint32_t bytes) { Target(context)->Send(*to, bytes); },
      .received = [](void* context, const sdc_received* received) { Target(context)->Received(*received); },
  };
  ++life_;
  device_free_ns_ = reported_ns_ = 0;
  const sdc_target_config config = {
      .ops = &kOps,
      .context = this,
      .number = kDctNumber,
      .key = key(),
      .seed = world_->In(0, ~uint64_t{0} - 1),
      .mtu_bytes = world_->plan().mtu_bytes,
      .access = SDC_ACCESS_READ | SDC_ACCESS_WRITE | SDC_ACCESS_ATOMIC,
      .hold_ns = 8 * kMs,
      .sessions = sessions_.data(),
      .session_count = static_cast<uint32_t>(sessions_.size()),
      .receives = ring_.data(),
      .receive_count = static_cast<uint32_t>(ring_.size()),
  };
  sdc_target_init(&target_, &config);
  for (uint32_t i = 0; i < receives_.size(); ++i) PostReceive(i);
}

void TargetNode::PostReceive(uint32_t index) {
  PostedReceive& receive = receives_[index];
  std::fill(receive.bytes.begin(), receive.bytes.end(), ~uint64_t{0});
  const auto half = static_cast<uint32_t>(receive.bytes.size() / 2 * 8);
  const auto addr = reinterpret_cast<uint64_t>(receive.bytes.data());
  sdc_recv recv{.wr_id = index, .sges = {}, .sge_count = 2};
  recv.sges[0] = {addr, half, 1};
  recv.sges[1] = {addr + half, static_cast<uint32_t>(receive.bytes.size() * 8) - half, 1};
  receive.posted = true;
  if (!sdc_target_post_receive(&target_, &recv)) world_->judge().Violation("a receive found no room");
}

bool TargetNode::ReceivesAreThere() const {
  const auto posted =
      std::count_if(receives_.begin(), receives_.end(), [](const PostedReceive& at) { return at.posted; });
  const auto held = std::count_if(sessions_.begin(), sessions_.end(),
                                  [](const sdc_session& at) { return at.state != SDC_SESSION_FREE && at.has_message; });
  return posted == target_.receives_posted + held;
}

void TargetNode::Count() {
  Counts& counts = world_->judge().counts();
  counts.sessions_evicted += target_.stats.sessions_evicted;
  counts.expired += target_.stats.expired;
  counts.busy += target_.stats.busy;
  counts.repeated += target_.stats.repeated;
  counts.early += target_.stats.early;
}

void* TargetNode::Memory(uint32_t rkey, uint64_t addr, uint32_t length) {
  if (rkey == 0 || rkey >= kRegions || (rkey == kDoomedPlace && doomed_gone_)) return nullptr;
  const uint64_t offset = addr - AddressOf(static_cast<Region>(rkey), 0);
  const uint64_t size = memory_[rkey].size() * 8;
  return offset > size || length > size - offset ? nullptr : reinterpret_cast<void*>(addr);
}

uint64_t TargetNode::InitiatorsTime(uint32_t uid) {
  return world_->ClockOf(world_->judge().record(uid).initiator).At(world_->now_ns());
}

// The effect of a WRITE shows in the words that it changes: no two WRs write the same word.
void TargetNode::Receive(const sdc_address& from, const std::vector<uint8_t>& packet) {
  sdc_packet parsed{};
  const bool is_write = sdc_parse(packet.data(), static_cast<uint32_t>(packet.size()), &parsed) &&
                        parsed.kind == SDC_WRITE && parsed.rkey != 0 && parsed.rkey < kRegions;
  std::vector<uint64_t> before;
  uint64_t first = 0, words = 0;
  if (is_write) {
    // Saves a little more than the WRITE's own words, on both sides.
    const std::vector<uint64_t>& memory = memory_[parsed.rkey];
    const uint64_t at = (parsed.addr + parsed.offset - AddressOf(static_cast<Region>(parsed.rkey), 0)) / 8;
    first = std::min<uint64_t>(at == 0 ? 0 : at - 1, memory.size());
    words = std::min<uint64_t>(parsed.bytes / 8 + 2, memory.size() - first);
    before.assign(memory.begin() + static_cast<int64_t>(first), memory.begin() + static_cast<int64_t>(first + words));
  }
  sdc_target_receive(&target_, &from, packet.data(), static_cast<uint32_t>(packet.size()), local_ns());
  for (uint64_t i = 0; i < words; ++i) {
    const uint64_t word = memory_[parsed.rkey][first + i];
    if (word == before[i]) continue;
    const auto index = static_cast<uint32_t>((first + i) % kPlaceWords);
    const uint32_t uid = UidOf(word, index);
    if (uid == 0) {
      world_->judge().Violation("a word was written that nobody posted");
      return;
    }
    world_->judge().Written(uid, index, InitiatorsTime(uid));
  }
}

void TargetNode::Received(const sdc_received& received) {
  Judge& judge = world_->judge();
  PostedReceive& receive = receives_[received.wr_id];
  if (!receive.posted) judge.Violation("a receive completed twice");
  receive.posted = false;
  const uint32_t life = life_;
  world_->After(world_->In(0, world_->plan().repost_ns), [this, life, index = static_cast<uint32_t>(received.wr_id)] {
    if (life == life_) PostReceive(index);
  });
  if (received.status != SDC_SUCCESS) return;
  uint32_t uid = received.imm;
  if (!received.is_write) {
    uid = UidOf(receive.bytes[0], 0);
    if (received.has_imm && received.imm != uid) judge.Violation("an immediate is another message's");
    for (uint32_t i = 0; i < received.length / 8; ++i) {
      if (uid == 0 || UidOf(receive.bytes[i], i) != uid) judge.Violation("a message is not whole");
    }
  }
  judge.Delivered(uid, uid == 0 ? 0 : InitiatorsTime(uid));
  if (uid != 0 && received.length != judge.record(uid).words * 8) judge.Violation("a message has another length");
}

bool TargetNode::Atomic(const sdc_atomic_request& request) {
  if (world_->Chance(0.02)) return false;  // the device's queue is full
  const Plan& plan = world_->plan();
  const uint64_t delay_ns = world_->Chance(plan.slow_atomic) ? world_->In(0, plan.slow_ns) : world_->In(0, 20 * kUs);
  const uint64_t now_ns = world_->now_ns();
  device_free_ns_ = std::max(device_free_ns_, now_ns + delay_ns);
  reported_ns_ = std::max(reported_ns_, device_free_ns_ + world_->In(0, 5 * kUs));
  const uint32_t life = life_;
  // At the end of a life the queue on which atomics are executed is destroyed.
  world_->After(device_free_ns_ - now_ns, [this, life, request, report_ns = reported_ns_ - device_free_ns_] {
    if (life != life_) return;
    const uint64_t word = *reinterpret_cast<uint64_t*>(request.addr);
    Execute(request);
    world_->After(report_ns, [this, life, token = request.token, word] {
      if (life == life_) sdc_target_atomic_done(&target_, &token, SDC_SUCCESS, word, local_ns());
    });
  });
  return true;
}

void TargetNode::Execute(const sdc_atomic_request& request) {
  auto* word = reinterpret_cast<uint64_t*>(request.addr);
  const uint64_t before = *word;
  const bool is_swap = request.opcode == SDC_OP_COMPARE_SWAP;
  const auto uid = static_cast<uint32_t>(is_swap ? request.swap : request.compare_add);
  if (!is_swap) {
    *word += request.compare_add;
  } else if (before == request.compare_add) {
    *word = request.swap;
  }
  world_->judge().AtomicExecuted(uid, before, InitiatorsTime(uid));
}

void TargetNode::Restart() {
  Count();
  for (PostedReceive& receive : receives_) receive.posted = false;
  StartCore();
}

void TargetNode::Deregister(uint64_t for_ns) {
  doomed_gone_ = true;
  world_->After(for_ns, [this] { doomed_gone_ = false; });
}

}  // namespace sdc_test
