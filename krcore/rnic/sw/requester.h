// Executes the work requests of one send queue in the thread that posts them, directly on the target's memory: READ,
// WRITE and atomics need nobody at the other end.
//
// A batch is executed in two passes. The first checks every WR and prefetches the remote cache lines; the second
// touches them. So the cache misses of a batch overlap; they are most of its cost. There is no lock, allocation or
// system call on this path, except for the first use of a remote key and a look at the clock every kDoorbellsPerLook
// doorbells.
#ifndef KRCORE_RNIC_SW_REQUESTER_H_
#define KRCORE_RNIC_SW_REQUESTER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/rnic.h"
#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/layout.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {

inline constexpr size_t kMaxBatch = 32;     // WRs resolved ahead; lines prefetched ahead are a few times that
inline constexpr size_t kMaxExecuted = 96;  // ... for Execute, whose lines are prefetched earlier

class Requester {
 public:
  struct Outcome {
    size_t done = 0;                       // WRs executed
    bool malformed = false;                // wrs[done] is refused at post
    WcStatus status = WcStatus::kSuccess;  // otherwise why wrs[done] failed, if done < the batch
  };

  Requester(Fabric* fabric, QpType type, uint32_t number, uint32_t pd)
      : fabric_(fabric),
        own_(&fabric->segment()),
        own_word_(PeerWord(fabric->incarnation(), number)),
        type_(type),
        number_(number),
        pd_(pd) {}

  // RC: the peer that every WR goes to. Null and 0: none.
  void Connect(std::shared_ptr<Peer> peer, uint32_t remote_number);
  // Executes a WR that is like an earlier one, without the steps that a batch needs. False: it is not, or something is
  // wrong and Run says what; then nothing has been done.
  bool RunAlike(const SendWr& wr);
  // Executes wrs, at most kMaxBatch, up to the first that fails.
  Outcome Run(std::span<const SendWr> wrs);
  // For Qp::Execute. Takes only requests like some that Run has executed, whose meaning is known.
  bool Execute(std::span<const WorkRequest> wrs, const Reach& reach);
  // For Qp::Prefetch. The memory may have moved: a prefetch of what is not there does no harm.
  void Prefetch(std::span<const WorkRequest> wrs, const AddressHandle* ah, uint32_t rkey);
  // Once per PostSend or Execute: makes everything written visible to everybody; sometimes checks whether the peers
  // live.
  void EndDoorbell() {
    // A READ on another queue, posted after a WRITE of this one completed, must not be executed before it.
    FenceStores();
    asked_count_ = 0;
    if (++doorbells_ % kDoorbellsPerLook == 0) [[unlikely]]
      LookForDeadPeers();
  }
  // Lets go of remote memory.
  void ForgetTranslations();

 private:
  static constexpr uint32_t kDoorbellsPerLook = 16;
  static constexpr int64_t kLookIntervalNs = 10'000'000;
  static constexpr size_t kTranslations = 128;
  static constexpr size_t kInboxes = 32;

  // Those up to kFetchAdd have one SGE.
  enum class Kind : uint8_t { kRead, kWrite, kCompareSwap, kFetchAdd, kGather, kScatter, kMessage, kNothing };
  struct Step {
    const SendWr* wr;
    std::byte* remote;
    std::byte* local;
    Peer* peer;
    const QpEntry* entry;
    uint32_t length;
    Kind kind;
  };

  // The destination of a request.
  struct Target {
    const AddressHandle* ah;
    uint32_t remote_qpn;
    uint64_t dc_key;
  };
  static Target TargetOf(const SendWr& wr) { return {wr.ah, wr.remote_qpn, wr.dc_key}; }

  // A WR of one SGE that Resolve has passed: what it named, what that was found to mean, and the words that tell
  // whether it still does. Kept across doorbells, because most WRs are like an earlier one.
  struct Passed {
    uint32_t form = ~uint32_t{0};  // a value that no request has: empty
    uint32_t lkey = 0, rkey = 0;
    uint32_t remote_qpn = 0;
    const AddressHandle* ah = nullptr;
    uint64_t dc_key = 0;
    const MrEntry* local = nullptr;
    const Translation* remote = nullptr;  // of the peer and rkey, unless it has become another's
    Peer* peer = nullptr;
    const QpEntry* entry = nullptr;
    uint64_t serves = 0, serves_mask = 0;  // entry->word
    uint64_t serves_whom = 0;              // entry->peer
    uint32_t need = 0, local_need = 0;     // rights
  };
  static constexpr size_t kPassedOfKind = 4;

  // A request that Execute has passed. What it names is not read again, since it may lie in memory that an earlier
  // request writes.
  struct Ready {
    std::byte* remote;
    std::byte* local;
    uint32_t length;
    Opcode opcode;
  };

  struct Inbox {
    std::shared_ptr<Peer> peer;
    uint32_t segment = kNoSegment;
    uint64_t serial = 0;
    std::shared_ptr<Mapping> mapping;
  };

  // kSuccess with *malformed unset: `step` is ready to be executed; remembered, if it is one-sided and has one SGE.
  WcStatus Resolve(const SendWr& wr, Step* step, bool* malformed);
  // Returns what is remembered of a WR of that opcode like `wr`, if it still holds; else null.
  template <Kind kKind>
  const Passed* FindAlike(const SendWr& wr);
  bool Holds(const Passed& passed, const Target& target, uint32_t rkey) const;
  static bool Allows(const Passed& passed);
  bool ExecuteAll(const Passed& like, std::span<const WorkRequest> wrs, const Reach& reach);
  // As RunAlike. `reach`: what the poster knows of the memory; null: nothing.
  template <Kind kKind>
  bool RunOne(const WorkRequest& wr, const Target& target, const Reach* reach);
  bool RunOne(const WorkRequest& wr, const Target& target, const Reach* reach);
  // Returns how many of the first of `wrs` are like one that Resolve has passed, except for where they point:
  // same opcode, target and keys.
  size_t ResolveAlike(std::span<const SendWr> wrs, Step* steps);
  template <Kind kKind>
  size_t ResolveAlike(const Passed& like, std::span<const SendWr> wrs, Step* steps);
  // Returns where a WR like `wr` is remembered; another one may be there.
  Passed& PassedOf(const AddressHandle* ah, uint32_t rkey, Kind kind) {
    const uint64_t hash = (reinterpret_cast<uint64_t>(ah) >> 6) + rkey;
    return passed_[kPassedOfKind * static_cast<size_t>(kind) + hash % kPassedOfKind];
  }
  void Remember(const SendWr& wr, const Step& step, uint32_t need, uint32_t local_need);
  WcStatus ResolveTarget(const SendWr& wr, Step* step);
  WcStatus ResolveRemote(const SendWr& wr, uint32_t need, Step* step);
  // Returns where what is known of a key is kept; another key, or nothing, may be there.
  Translation& TranslationOf(const Peer* peer, uint32_t rkey) {
    const uint64_t hash = (reinterpret_cast<uint64_t>(peer) >> 6) * 31 + MrIndex(rkey);
    return translations_[hash % kTranslations];
  }
  bool LocalRanges(const SendWr& wr, bool written) const;
  WcStatus Execute(const Step& step);
  // Call before a READ: what was posted earlier must execute earlier, and a load may overtake a store.
  void FenceStores() {
    if (!stores_pending_) return;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    stores_pending_ = false;
  }
  template <Kind kKind>
  void ExecuteOne(const WorkRequest& wr, std::byte* remote, std::byte* local, uint32_t length);
  void Read(const Step& step);
  void Write(const Step& step);
  // inbox.cc
  WcStatus SendMessage(const Step& step);
  bool DatagramAccepted(const Step& step) const;
  InboxHeader* FindInbox(const Step& step);
  void LookForDeadPeers();

  Fabric* const fabric_;
  const DeviceSegment* const own_;
  const uint64_t own_word_;  // what an RC peer must be connected to
  const QpType type_;
  const uint32_t number_, pd_;
  std::shared_ptr<Peer> peer_;  // RC
  const QpEntry* entry_ = nullptr;
  uint64_t entry_word_ = 0;  // what entry_->word must be, except for its lowest bit
  bool stores_pending_ = false;
  // Requests whose memory Prefetch has fetched since the last doorbell.
  const WorkRequest* asked_for_ = nullptr;
  size_t asked_count_ = 0;
  uint32_t doorbells_ = 0;
  int64_t last_look_ns_ = 0;
  std::array<Passed, kPassedOfKind*(static_cast<size_t>(Kind::kFetchAdd) + 1)> passed_;
  std::array<Translation, kTranslations> translations_;
  std::array<Inbox, kInboxes> inboxes_;
  std::array<Step, kMaxBatch> steps_;
  std::array<Ready, kMaxExecuted> ready_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_REQUESTER_H_
