// Completion queues and queue pairs.
#ifndef KRCORE_RNIC_VERBS_QP_H_
#define KRCORE_RNIC_VERBS_QP_H_

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/service.h"

namespace krcore::rnic::verbs {

struct SharedDevice;
class VerbsCq;

// An object whose WRs complete into a CQ.
class CqUser {
 public:
  // Whether the WR of this token was posted since the last RESET.
  virtual bool IsOfThisLife(uint64_t token) const = 0;
  // Returns false if there is nothing to tell the caller.
  virtual bool Complete(const ibv_wc& wc, Completion* completion) = 0;
  // Returns completions that the NIC does not know of.
  virtual size_t TakeFlushes(const VerbsCq* cq, std::span<Completion> out) = 0;

 protected:
  ~CqUser() = default;
};

// A queue whose completions are made by software.
class CompletionSource {
 public:
  // Does pending work, so that completions come.
  virtual void Drive() = 0;
  // The same, and moves completions into `out`.
  virtual size_t Take(std::span<Completion> out) = 0;
  // Whether there may be anything to do or to take. A source for which this changes by itself calls WakeSources.
  virtual bool Awake() const = 0;

 protected:
  ~CompletionSource() = default;
};

// A completion queue: libibverbs' CQ, room of its own for completions that a destroyed queue leaves in that CQ, and a
// count of what is outstanding. libibverbs' CQ has room for every WR of its queues, since all of them may fail;
// counting keeps the depth that the owner asked for.
class VerbsCq final : public Cq {
 public:
  static Result<std::unique_ptr<Cq>> Create(Context* context, uint32_t depth, uint32_t max_depth);
  ~VerbsCq() override;
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  ibv_cq* get() const { return cq_; }
  // Makes room for the WRs of one more queue, or gives it back. kOutOfMemory.
  Status Reserve(uint32_t wrs);
  void Unreserve(uint32_t wrs) { reserved_ -= wrs; }
  // Returns a number for the user's WRs to carry.
  uint16_t Attach(CqUser* user);
  void Detach(uint16_t slot);
  // Moves all completions into its own room, and forgets those of `user`.
  void Forget(const CqUser* user);

  void AddSource(CompletionSource* source) {
    sources_.push_back(source);
    WakeSources();
  }
  void RemoveSource(CompletionSource* source) { std::erase(sources_, source); }
  void WakeSources() { sources_awake_ = true; }
  void DriveSources() {
    for (CompletionSource* const source : sources_) source->Drive();
  }

  // Counts a signaled WR that is posted. False: its completion will be lost.
  bool AddSignaled() {
    const bool fits = ++signaled_ <= depth_;
    overrun_ = overrun_ || !fits;
    return fits;
  }
  void RemoveSignaled(uint64_t count) { signaled_ -= count; }
  // Counts receives that wait to be flushed.
  void AddFlushes(uint64_t count) { flushes_ += count; }
  void RemoveFlushes(uint64_t count) { flushes_ -= count; }

 private:
  struct Kept {
    Completion completion;
    const CqUser* user;
  };
  VerbsCq(ibv_cq* cq, uint32_t depth, uint32_t max_depth) : cq_(cq), depth_(depth), max_depth_(max_depth) {}
  CqUser* Owner(uint64_t wr_id) const;
  size_t TakeFromSources(std::span<Completion> out);

  ibv_cq* const cq_;
  const uint32_t depth_, max_depth_;
  uint64_t reserved_ = 0;
  uint64_t signaled_ = 0;
  uint64_t flushes_ = 0;
  bool overrun_ = false;
  std::vector<CqUser*> slots_;
  std::deque<Kept> kept_;
  std::vector<CompletionSource*> sources_;
  size_t first_source_ = 0;  // the one that goes first
  bool sources_awake_ = false;
};

// What a WR carries as libibverbs' wr_id. The life tells completions from before and after a RESET of the queue apart.
struct WrToken {
  static constexpr uint64_t kReceive = uint64_t{1} << 63;
  static uint64_t Make(bool receive, uint16_t life, uint16_t slot, uint32_t position) {
    return (receive ? kReceive : 0) | uint64_t{static_cast<uint16_t>(life & 0x7fff)} << 48 | uint64_t{slot} << 32 |
           position;
  }
  static uint16_t Life(uint64_t token) { return static_cast<uint16_t>(token >> 48 & 0x7fff); }
  static uint16_t Slot(uint64_t token) { return static_cast<uint16_t>(token >> 32); }
  static uint32_t Position(uint64_t token) { return static_cast<uint32_t>(token); }
};

// How long a request is tried: libibverbs' attributes of a connection, and the longest time that they allow. The NIC
// may wait up to four times its timer before each retry.
inline constexpr uint8_t kAckTimeout = 14;  // 4.096 us x 2^14 = 67 ms
inline constexpr uint8_t kRetries = 6;      // 7 means for ever on Soft-RoCE
inline constexpr uint8_t kRnrTimer = 12;    // 0.64 ms
inline constexpr uint8_t kRnrRetries = 6;   // 7 means for ever
inline constexpr int64_t kMaxRetransmissionNs =
    4 * (kRetries + 1) * (int64_t{4096} << kAckTimeout) + (kRnrRetries + 1) * int64_t{640'000} + kPacketLifetimeNs;

// SGEs are passed to libibverbs unchanged.
ibv_sge* SgesOf(const Sge* sges);

// What all queue pairs have in common: their states and lives, and rings that remember what libibverbs' completions do
// not tell: the caller's wr_ids, and which unsignaled WRs a completion stands for. A derived class makes the queue,
// performs its state changes, and hands WRs to the NIC: RC and UD (VerbsQp), a DC initiator of mlx5 (Mlx5Dci).
class Queue : public Qp, public CqUser {
 public:
  ~Queue() override;

  QpType type() const override { return attr_.type; }
  QpState state() const override;
  Status ToErr() override;
  Status ToReset() override;
  Status PostSend(std::span<const SendWr> wrs, size_t* bad_index) override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  bool IsOfThisLife(uint64_t token) const override { return WrToken::Life(token) == (life_ & 0x7fff); }
  bool Complete(const ibv_wc& wc, Completion* completion) override;
  size_t TakeFlushes(const VerbsCq* cq, std::span<Completion> out) override;

 protected:
  static constexpr size_t kBatch = 32;

  Queue(SharedDevice* device, uint32_t pd_index, const QpAttr& attr);
  // Reserves room in its CQs for its WRs; call before the NIC's queue is made.
  Status TakeRoom();
  // Takes the NIC's queue, once there is one.
  void Adopt(ibv_qp* qp);
  // Hands up to kBatch WRs to the NIC under one doorbell, the i-th with TokenOf(i) as its wr_id. *took becomes how many
  // the NIC took; returns the errno.
  virtual int Post(std::span<const SendWr> wrs, size_t* took) = 0;
  uint64_t TokenOf(size_t i) const {
    return WrToken::Make(false, life_, *send_slot_, static_cast<uint32_t>(send_.posted + i));
  }
  Status Modify(ibv_qp_attr& attr, int mask, const char* wanted);

  SharedDevice* const device_;
  const uint32_t pd_index_;
  const QpAttr attr_;
  VerbsCq* const send_cq_;
  VerbsCq* const recv_cq_;      // null: it receives nothing
  mutable QueueEvents events_;  // the context of the NIC's queue
  ibv_qp* qp_ = nullptr;
  mutable QpState state_ = QpState::kReset;
  uint16_t life_ = 0;
  QpPeer peer_, last_peer_;

 private:
  struct Sent {
    uint64_t wr_id;
    Opcode opcode;
    bool signaled;
    bool lost;         // the CQ was full
    WcStatus instead;  // replaces the NIC's status, if not kSuccess
  };
  // Positions of WRs, from 0 in each life.
  struct Ring {
    uint64_t posted = 0, done = 0;
    uint64_t PositionOf(uint32_t low) const { return done + static_cast<uint32_t>(low - static_cast<uint32_t>(done)); }
  };

  Sent& SentAt(uint64_t position) { return sent_[position & (sent_.size() - 1)]; }
  uint64_t& ReceivedAt(uint64_t position) { return received_[position & (received_.size() - 1)]; }
  // Posts all, if the NIC takes them; returns how many it took.
  size_t PostBatch(std::span<const SendWr> wrs, Status* status);
  bool CompleteSend(const ibv_wc& wc, Completion* completion);
  bool CompleteRecv(const ibv_wc& wc, Completion* completion);
  void ForgetCompletions();
  // After success nothing that was posted executes any more. Goes to RESET, if need be.
  Status Quiesce();

  std::optional<uint16_t> send_slot_, recv_slot_;  // in their CQs, with room for its WRs
  bool failed_ = false;                            // in this life: something may still be in flight
  Ring send_, recv_;
  std::vector<Sent> sent_;  // rings; their sizes are powers of two
  std::vector<uint64_t> received_;
  std::deque<uint64_t> flushes_;  // wr_ids of receives that were posted in ERR
};

// An RC or UD queue pair.
class VerbsQp final : public Queue {
 public:
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);

  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;

 private:
  using Queue::Queue;
  int Post(std::span<const SendWr> wrs, size_t* took) override;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_QP_H_
