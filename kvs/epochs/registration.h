// Registration: what a client knows of its own place in the store: its entry's word, when its lease ends, and whether
// it was expelled. It is the gate of the client's queue pool and holds verbs back once the lease is over
// (docs/protocol.md, "Registration").
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_REGISTRATION_H_
#define KVS_EPOCHS_REGISTRATION_H_

#include <algorithm>
#include <cstdint>

#include "krcore/clock.h"
#include "krcore/queue_pool.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/mutation.h"

namespace kvs {

class Registration final : public krcore::PostGate {
 public:
  enum class Standing : uint8_t {
    kNone,      // not registered yet, or no longer; verbs may be posted, to register
    kAlive,     // verbs may be posted while the lease lasts
    kExpelled,  // no verb may be posted until the expulsion is acknowledged
  };

  Registration(krcore::Clock& clock, int64_t lease_ns) : clock_(clock), lease_ns_(lease_ns) {}

  // Notes a heartbeat that was posted at `posted_ns` or later, and took effect.
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
  // Whether the gate was asked when the lease was over. Then only another heartbeat opens it.
  bool overdue() const { return overdue_; }

  // The clock, which is read once for each round of polling. A round begins with ForgetNow().
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
    // This reads the clock itself: doorbells ring outside of rounds too, and time may have passed since the last look.
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

}  // namespace kvs

#endif  // KVS_EPOCHS_REGISTRATION_H_
