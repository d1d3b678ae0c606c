// Executes the work requests of one send queue, in the thread that posts them and on the memory of the target
// itself: READ, WRITE and atomics need nobody at the other end.
//
// A batch is executed in two passes. The first checks every WR and asks for the remote cache lines; the second
// touches them. So the cache misses of a batch overlap, which is most of its cost. No lock, allocation or
// system call on this path, but for the first use of a remote key and a look at the clock every
// kDoorbellsPerLook doorbells.
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
inline constexpr size_t kMaxExecuted = 96;  // ... of Execute, whose lines are prefetched earlier

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

  // RC: whom every WR goes to. Null and 0: nobody.
  void Connect(std::shared_ptr<Peer> peer, uint32_t remote_number);
  // Executes one that is like one before, without what a batch needs. False: it is not, or something is wrong; Run says
  // what. Nothing has been done then.
  bool RunAlike(const SendWr& wr);
  // Executes wrs, at most kMaxBatch, up to the first that fails.
  Outcome Run(std::span<const SendWr> wrs);
  // Of Qp::Execute. Only requests like some that Run has executed: what those meant is known.
  bool Execute(std::span<const WorkRequest> wrs, const Reach& reach);
  // Of Qp::Prefetch. Where the memory lies may no longer be true: nobody minds a prefetch of what is not there.
  void Prefetch(std::span<const WorkRequest> wrs, const AddressHandle* ah, uint32_t rkey);
  // Once a PostSend or Execute: everything written is visible to everybody, and sometimes a look at the peers' life.
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

  // Where a request goes.
  struct Target {
    const AddressHandle* ah;
    uint32_t remote_qpn;
    uint64_t dc_key;
  };
  static Target TargetOf(const SendWr& wr) { return {wr.ah, wr.remote_qpn, wr.dc_key}; }

  // A WR that ResolveSimple has passed: what it named, what that was found to mean, and the words that tell whether it
  // still does. Kept from doorbell to doorbell: most are like one before.
  struct Passed {
    uint32_t form = ~uint32_t{0};  // which no request has: there is none
    uint32_t lkey = 0, rkey = 0;
    uint32_t remote_qpn = 0;
    const AddressHandle* ah = nullptr;
    uint64_t dc_key = 0;
    const MrEntry* local = nullptr;
    const Translation* remote = nullptr;  // of the peer and rkey, or another's by now
    Peer* peer = nullptr;
    const QpEntry* entry = nullptr;
    uint64_t serves = 0, serves_mask = 0;  // entry->word
    uint64_t serves_whom = 0;              // entry->peer
    uint32_t need = 0, local_need = 0;     // rights
  };
  static constexpr size_t kPassedOfKind = 4;

  // A request that Execute has passed: what it names is not read again, since it may lie in memory that one before it
  // writes.
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

  // kSuccess with *malformed unset: `step` is ready to be executed.
  WcStatus Resolve(const SendWr& wr, Step* step, bool* malformed);
  // The common case: one SGE, not inline, one-sided. Remembers it. False: not that, or something is wrong; Resolve says
  // what.
  bool ResolveSimple(const SendWr& wr, Step* step);
  // What is remembered of one of that opcode like `wr`, if it holds; else null.
  template <Kind kKind>
  const Passed* FindAlike(const SendWr& wr);
  bool Holds(const Passed& passed, const Target& target, uint32_t rkey) const;
  static bool Allows(const Passed& passed);
  bool ExecuteAll(const Passed& like, std::span<const WorkRequest> wrs, const Reach& reach);
  // As RunAlike. `reach`: what the poster knows of the memory; null: nothing.
  template <Kind kKind>
  bool RunOne(const WorkRequest& wr, const Target& target, const Reach* reach);
  bool RunOne(const WorkRequest& wr, const Target& target, const Reach* reach);
  // How many of `wrs`, up to the first that is not, are like one that ResolveSimple has passed, but for where they
  // point: same opcode, target and keys.
  size_t ResolveAlike(std::span<const SendWr> wrs, Step* steps);
  template <Kind kKind>
  size_t ResolveAlike(const Passed& like, std::span<const SendWr> wrs, Step* steps);
  // Where one like `wr` is remembered, or another.
  Passed& PassedOf(const AddressHandle* ah, uint32_t rkey, Kind kind) {
    const uint64_t hash = (reinterpret_cast<uint64_t>(ah) >> 6) + rkey;
    return passed_[kPassedOfKind * static_cast<size_t>(kind) + hash % kPassedOfKind];
  }
  void Remember(const SendWr& wr, const Step& step, uint32_t need, uint32_t local_need);
  WcStatus ResolveTarget(const SendWr& wr, Step* step);
  WcStatus ResolveRemote(const SendWr& wr, uint32_t need, Step* step);
  // Where what is known of a key is kept: of this one or another, or nothing.
  Translation& TranslationOf(const Peer* peer, uint32_t rkey) {
    const uint64_t hash = (reinterpret_cast<uint64_t>(peer) >> 6) * 31 + MrIndex(rkey);
    return translations_[hash % kTranslations];
  }
  bool LocalRanges(const SendWr& wr, bool written) const;
  WcStatus Execute(const Step& step);
  // Before a READ: what was posted earlier executes earlier; a load may else overtake a store.
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
  uint64_t entry_word_ = 0;  // what entry_->word must be, but for its lowest bit
  bool stores_pending_ = false;
  // Requests whose memory Prefetch has asked for, since the last doorbell.
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
