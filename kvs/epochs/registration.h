// What is known of entries in the home's client table: by each client of its own, and by the process of all that its
// clients hold or have claimed.
#ifndef KVS_EPOCHS_REGISTRATION_H_
#define KVS_EPOCHS_REGISTRATION_H_

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "krcore/clock.h"
#include "krcore/queue_pool.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/mutation.h"

namespace kvs {

// What a client knows of its own place in the store: its entry's word, until when its lease lasts, and whether it was
// expelled. As the gate of the client's queue pool it keeps verbs back once the lease is over (docs/protocol.md,
// "Registration").
//
// Thread safety: one thread, as the client.
class Registration final : public krcore::PostGate {
 public:
  enum class Standing : uint8_t {
    kNone,      // not registered yet, or not any more; verbs may be posted, to register
    kAlive,     // verbs may be posted while the lease lasts
    kExpelled,  // no verb may be posted until the expulsion is acknowledged
  };

  Registration(krcore::Clock& clock, int64_t lease_ns) : clock_(clock), lease_ns_(lease_ns) {}

  // A heartbeat that was posted at `posted_ns` or later, and took effect.
  void Beat(ClientWord word, int64_t posted_ns) {
    standing_ = Standing::kAlive;
    word_ = word;
    lease_end_ns_ = std::max(lease_end_ns_, posted_ns + lease_ns_);
    overdue_ = false;
  }
  void Expel(ClientWord word) {
    standing_ = Standing::kExpelled;
    word_ = word;
    lease_end_ns_ = INT64_MIN;
    overdue_ = false;
  }
  void Leave() { standing_ = Standing::kNone; }

  Standing standing() const { return standing_; }
  bool expelled() const { return standing_ == Standing::kExpelled; }
  ClientWord word() const { return word_; }
  // The gate was asked when the lease was over: only another heartbeat opens it.
  bool overdue() const { return overdue_; }

  // The clock, looked at once for a round of polling. A round begins with ForgetNow().
  void ForgetNow() { looked_ = false; }
  bool looked() const { return looked_; }
  int64_t Now() {
    if (!looked_) {
      now_ns_ = clock_.NowNs();
      looked_ = true;
    }
    return now_ns_;
  }

  bool MayPost() override {
    if (standing_ == Standing::kNone || Mutated(Mutation::kNoLeaseCheck)) return true;
    if (standing_ == Standing::kExpelled) return false;
    // A look of its own: doorbells ring outside of rounds as well, and time may have passed since the last one.
    looked_ = false;
    const int64_t now_ns = Now();
    if (now_ns < lease_end_ns_) return true;
    overdue_ = true;
    return false;
  }

 private:
  krcore::Clock& clock_;
  const int64_t lease_ns_;
  Standing standing_ = Standing::kNone;
  ClientWord word_;
  int64_t lease_end_ns_ = INT64_MIN;
  bool overdue_ = false;
  int64_t now_ns_ = 0;
  bool looked_ = false;
};

// An entry, and the word that says whose it is.
struct ClaimedEntry {
  uint32_t index = 0;
  uint64_t owner = 0;
};

// The entries of the home's client table that the clients of one node are at. All of them have one owner word, and the
// outcome of a CAS of it may be unknown: so what is done to an entry by that word one client does at a time, from
// before it claims the entry until that is known to be given back (docs/protocol.md, "Registration").
//
// Thread safety: all methods from any thread.
class HeldEntries {
 public:
  void RemoveFrom(std::vector<uint32_t>* indexes);
  bool Hold(uint32_t index);  // false: another client is at it, or it was abandoned
  // It is free, or another node's.
  void LetGo(uint32_t index);
  // It is the node's still, or may be, and the client that held it has ended or given up: nobody else can find that out
  // while this process lives. Another client takes it, and gives the entry back in its stead.
  void Abandon(const ClaimedEntry& entry);
  // Held by the caller from now on. Nothing: none was abandoned.
  std::optional<ClaimedEntry> TakeAbandoned();

 private:
  std::mutex mutex_;
  std::set<uint32_t> held_;              // guarded by mutex_; abandoned ones included
  std::vector<ClaimedEntry> abandoned_;  // guarded by mutex_
};

}  // namespace kvs

#endif  // KVS_EPOCHS_REGISTRATION_H_
