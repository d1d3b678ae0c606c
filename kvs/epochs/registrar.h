// The client table at the store's home: Registrar keeps the client's own entry there, Observer looks after the others'.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_REGISTRAR_H_
#define KVS_EPOCHS_REGISTRAR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kvs/epochs/allocator.h"
#include "kvs/epochs/common.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/epochs/operation.h"
#include "kvs/epochs/operations.h"
#include "kvs/epochs/registration.h"
#include "kvs/task.h"

namespace kvs {

// Returns whether the process whose clients wrote this owner word is known to be dead.
bool IsDead(krcore::Node& node, OwnerWord owner);

class Registrar : private Part {
 public:
  Registrar(const Common& common, Home& home, Operations& operations, Registration& registration, ClientMemory& memory,
            RetiredTables& retired, OwnWork& own_work);

  // Claims an entry of the client table and announces the current epoch. kFull: none is free.
  Task<Step> Register();
  // Gives the entry back. kRestart or kUnavailable: it may not have been given back.
  Task<Step> Unregister();
  // Gives back an entry that another client could not. False: there is none, or it is still abandoned.
  Task<bool> GiveBackAbandonedEntry();
  // Makes the heartbeat, with the oldest epoch in flight. kRestart: it failed this time.
  Task<Step> Announce(uint64_t epoch);
  // Renews a lease that is over, if a try is due. False: it is over. Call it after a look at the clock.
  bool CareForLease();
  void PollRenewal(size_t* completions) {
    if (renewal_ && renewing_ > 0) [[unlikely]]
      *completions += renewal_->connections.Poll();
  }
  // No renewal begins after this.
  void EndRenewals() { renewals_end_ = true; }
  bool renewing() const { return renewing_ > 0; }

  bool registered() const { return registered_; }
  uint32_t client_index() const { return client_index_; }
  ClaimedEntry entry() const { return {client_index_, owner_}; }

 private:
  // Queues without a gate, through which the lease is renewed.
  struct Renewal {
    Connections connections;
    Batch batch;
    Renewal(const Common& common, Connections::Waiting& waiting)
        : connections(common.node, common.store.identity, common.shape.reconnect_budget_ns, common.stats) {
      connections.SetWaiting(waiting);
    }
  };
  GlobalAddress EntryWord() const;
  // Returns the free entries below `below`, as the table was last read.
  std::vector<uint32_t> FreeEntries(uint32_t below) const;
  Task<Step> FreeDeadEntries();
  void BecomeExpelled(ClientWord word);
  Task<void> RenewLease();

  Home& home_;
  Operations& operations_;
  Registration& registration_;
  ClientMemory& memory_;
  RetiredTables& retired_;
  OwnWork& own_work_;
  std::unique_ptr<Renewal> renewal_;
  size_t renewing_ = 0;              // 1 while RenewLease() runs
  int64_t renew_at_ns_ = INT64_MIN;  // the next try
  bool renewal_failed_ = false;      // the last try had no answer
  bool renewals_end_ = false;
  bool registered_ = false;
  uint32_t client_index_ = 0;
  OwnerWord owner_;  // of the entry, as it was claimed
};

class Observer : private Part {
 public:
  Observer(const Common& common, Home& home, const Registrar& registrar, OwnWork& own_work)
      : Part(common), home_(home), registrar_(registrar), own_work_(own_work) {}

  // Looks at others' entries. One that has held back reclamation without a change is freed if its process is confirmed
  // dead: then nothing that it posted can execute any more. If its death is not known, it is expelled once it has not
  // changed for 1.5 leases. `oldest`: the oldest epoch that a client which is not expelled has announced.
  Task<void> Observe(uint64_t oldest, uint64_t epoch, bool any_expelled);
  // The caller has seen no change of the entry since `since_ns` (this client's clock): it need not be watched anew.
  void SawUnchanged(uint32_t index, const ClientEntry& entry, int64_t since_ns) {
    seen_unchanged_[index] = {entry, since_ns};
  }

 private:
  // The client that has held back reclamation, and the time since which its entry has not changed.
  struct Straggler {
    uint32_t index = 0;
    uint64_t owner = 0, word = 0;
    int64_t since_ns = 0;
    int64_t ask_at_ns = 0;  // when to ask the fabric whether it is dead
  };
  Task<void> FreeEntry(uint32_t index, OwnerWord owner);
  Task<void> FreeOthersThatDied(uint32_t index, uint64_t epoch);

  Home& home_;
  const Registrar& registrar_;
  OwnWork& own_work_;
  Straggler straggler_;
  std::map<uint32_t, std::pair<ClientEntry, int64_t>> seen_unchanged_;  // what another observer of this process saw
  uint32_t expelled_cursor_ = 0;
  int64_t ask_expelled_at_ns_ = 0;
};

}  // namespace kvs

#endif  // KVS_EPOCHS_REGISTRAR_H_
