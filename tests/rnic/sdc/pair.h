// An initiator and a target, and packets between them that a test passes on, drops, duplicates or keeps.
#ifndef TESTS_RNIC_SDC_PAIR_H_
#define TESTS_RNIC_SDC_PAIR_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/sdc/target.h"

namespace sdc_test {

struct PairOptions {
  uint32_t mtu_bytes = SDC_MIN_MTU_BYTES;
  uint32_t sessions = 2;
  uint32_t receives = 2;
  uint32_t max_message_bytes = 1 << 20;
};

class Pair {
 public:
  using Packet = std::vector<uint8_t>;
  static constexpr uint32_t kNumber = 9, kRkey = 3, kLkey = 4;
  static constexpr uint64_t kKey = 77, kLimitNs = 100'000'000, kGraceNs = 10'000'000, kRetryNs = 1'000'000;
  static constexpr uint32_t kFirstTag = 24;

  explicit Pair(const PairOptions& options = {}) : options_(options) {
    memory.resize(4096);
    local.resize(4096);
    StartInitiator();
    StartTarget();
  }

  void StartInitiator() {
    static constexpr sdc_initiator_ops kOps = {
        .local = [](void* context, uint32_t lkey, uint64_t addr, uint32_t, bool) -> void* {
          return static_cast<Pair*>(context)->local_gone || lkey != kLkey ? nullptr : reinterpret_cast<void*>(addr);
        },
        .buffer = [](void* context) -> uint8_t* {
          auto* pair = static_cast<Pair*>(context);
          return pair->sends_left == 0 ? nullptr : pair->buffer_;
        },
        .send =
            [](void* context, const sdc_address*, uint32_t bytes) {
              auto* pair = static_cast<Pair*>(context);
              --pair->sends_left;
              pair->requests.emplace_back(pair->buffer_, pair->buffer_ + bytes);
            },
    };
    const sdc_initiator_config config = {
        .ops = &kOps,
        .context = this,
        .life = ++lives_,
        .mtu_bytes = options_.mtu_bytes,
        .max_message_bytes = options_.max_message_bytes,
        .timing = {.limit_ns = kLimitNs,
                   .grace_ns = kGraceNs,
                   .retry_ns = kRetryNs,
                   .retry_max_ns = 8 * kRetryNs,
                   .idle_ns = 20 * kRetryNs,
                   .rnr_ns = kRetryNs,
                   .retries = 5,
                   .rnr_retries = 3},
        .wrs = wrs_,
        .depth = 16,
        .peers = peers_,
        .peer_count = 8,
        .first_tag = kFirstTag,
    };
    sdc_initiator_init(&initiator, &config);
  }

  void StartTarget() {
    static constexpr sdc_target_ops kOps = {
        .memory = [](void* context, uint32_t rkey, uint64_t addr, uint32_t length, uint32_t access) -> void* {
          auto* pair = static_cast<Pair*>(context);
          const uint64_t offset = addr - reinterpret_cast<uint64_t>(pair->memory.data()),
                         size = pair->memory.size() * 8;
          const bool fits = offset <= size && length <= size - offset;
          return rkey == kRkey && fits && (pair->rights & access) != 0 ? reinterpret_cast<void*>(addr) : nullptr;
        },
        .local = [](void*, uint32_t lkey, uint64_t addr, uint32_t) -> void* {
          return lkey == kLkey ? reinterpret_cast<void*>(addr) : nullptr;
        },
        .atomic =
            [](void* context, const sdc_atomic_request* request) {
              static_cast<Pair*>(context)->atomics.push_back(*request);
              return true;
            },
        .buffer = [](void* context) { return static_cast<Pair*>(context)->buffer_; },
        .send =
            [](void* context, const sdc_address*, uint32_t bytes) {
              auto* pair = static_cast<Pair*>(context);
              pair->answers.emplace_back(pair->buffer_, pair->buffer_ + bytes);
            },
        .received = [](void* context,
                       const sdc_received* done) { static_cast<Pair*>(context)->received.push_back(*done); },
    };
    const sdc_target_config config = {
        .ops = &kOps,
        .context = this,
        .number = kNumber,
        .key = kKey,
        .seed = ++lives_ * 1000,
        .mtu_bytes = options_.mtu_bytes,
        .access = SDC_ACCESS_READ | SDC_ACCESS_WRITE | SDC_ACCESS_ATOMIC,
        .hold_ns = 40 * kRetryNs,
        .sessions = sessions_,
        .session_count = options_.sessions,
        .receives = receives_,
        .receive_count = options_.receives,
    };
    sdc_target_init(&target, &config);
  }

  // A WR over the first `bytes` of `local` and `memory`, signaled.
  sdc_wr Wr(sdc_opcode opcode, uint32_t bytes) {
    sdc_wr wr{};
    wr.wr_id = ++posted_;
    wr.opcode = opcode;
    wr.flags = SDC_SIGNALED;
    wr.sges[0] = {reinterpret_cast<uint64_t>(local.data()), bytes, kLkey};
    wr.sge_count = bytes == 0 ? 0 : 1;
    wr.remote_addr = reinterpret_cast<uint64_t>(memory.data());
    wr.rkey = kRkey;
    wr.to.qpn = 5;
    wr.target = kNumber;
    wr.key = kKey;
    return wr;
  }
  sdc_wr Atomic(sdc_opcode opcode, uint64_t compare_add, uint64_t swap = 0) {
    sdc_wr wr = Wr(opcode, 8);
    wr.compare_add = compare_add;
    wr.swap = swap;
    return wr;
  }
  sdc_posted Post(const sdc_wr& wr) {
    const sdc_posted posted = sdc_initiator_post(&initiator, &wr, now_ns);
    Run();
    return posted;
  }
  void Run() { sdc_initiator_run(&initiator, now_ns); }
  void PostReceive(uint32_t bytes, uint32_t lkey = kLkey) {
    sdc_recv receive{};
    receive.wr_id = 100 + received.size();
    receive.sges[0] = {reinterpret_cast<uint64_t>(inbox), bytes, lkey};
    receive.sge_count = 1;
    sdc_target_post_receive(&target, &receive);
  }

  // Request and Answer pass on the next packet; PassAll passes on packets until there are none.
  void Request() {
    const Packet packet = requests.front();
    requests.pop_front();
    Arrive(packet);
  }
  void Arrive(const Packet& packet) {
    const sdc_address from{.bytes = {}, .qpn = 6, .reserved = 0};
    sdc_target_receive(&target, &from, packet.data(), static_cast<uint32_t>(packet.size()), now_ns + target_ahead_ns);
  }
  void Answer() {
    const Packet packet = answers.front();
    answers.pop_front();
    sdc_initiator_receive(&initiator, packet.data(), static_cast<uint32_t>(packet.size()), now_ns);
    Run();
  }
  void PassAll() {
    for (int i = 0; i < 100'000 && !(requests.empty() && answers.empty()); ++i) {
      if (!requests.empty()) Request();
      if (!answers.empty()) Answer();
    }
  }
  // The device executes the next atomic.
  void ExecuteAtomic(sdc_status status = SDC_SUCCESS) {
    const sdc_atomic_request request = atomics.front();
    atomics.pop_front();
    auto* word = reinterpret_cast<uint64_t*>(request.addr);
    const uint64_t before = *word;
    if (status == SDC_SUCCESS && request.opcode == SDC_OP_FETCH_ADD) *word += request.compare_add;
    if (status == SDC_SUCCESS && request.opcode == SDC_OP_COMPARE_SWAP && before == request.compare_add)
      *word = request.swap;
    sdc_target_atomic_done(&target, &request.token, status, before, now_ns + target_ahead_ns);
  }
  void Wait(uint64_t ns) {
    now_ns += ns;
    Run();
  }
  static sdc_kind KindOf(const Packet& packet) { return static_cast<sdc_kind>(packet[3]); }
  static std::string Kinds(const std::deque<Packet>& packets) {
    std::string kinds;
    for (const Packet& packet : packets) kinds += (kinds.empty() ? "" : " ") + std::to_string(KindOf(packet));
    return kinds;
  }
  // Returns "wr_id:status" of all completions.
  std::string Completions() {
    std::string text;
    sdc_completion done;
    while (sdc_initiator_poll(&initiator, &done))
      text += (text.empty() ? "" : " ") + std::to_string(done.wr_id) + ":" + std::to_string(done.status);
    return text;
  }
  // Opens a session, so that what follows is alone on the wire.
  void Open() {
    Post(Wr(SDC_OP_READ, 8));
    PassAll();
    Completions();
    posted_ = 0;
  }

  sdc_initiator initiator{};
  sdc_target target{};
  std::deque<Packet> requests, answers;
  std::deque<sdc_atomic_request> atomics;
  std::vector<sdc_received> received;
  std::vector<uint64_t> memory, local;
  uint64_t inbox[512] = {};
  uint32_t rights = SDC_ACCESS_READ | SDC_ACCESS_WRITE | SDC_ACCESS_ATOMIC;
  bool local_gone = false;
  uint64_t sends_left = UINT64_MAX;  // how many the initiator may send, until it is given more buffers
  uint64_t now_ns = 1'000'000'000'000, target_ahead_ns = 0;

 private:
  const PairOptions options_;
  uint64_t lives_ = 0, posted_ = 0;
  uint8_t buffer_[SDC_MAX_MTU_BYTES] = {};
  sdc_queued_wr wrs_[16] = {};
  sdc_peer peers_[8] = {};
  sdc_session sessions_[8] = {};
  sdc_recv receives_[8] = {};
};

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_PAIR_H_
