// The judge of a run: it knows every WR that was posted, sees what is executed at the targets and what completes, and
// reports what must not happen.
#ifndef TESTS_RNIC_SDC_JUDGE_H_
#define TESTS_RNIC_SDC_JUDGE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "krcore/rnic/sdc/initiator.h"
#include "tests/rnic/sdc/plan.h"

namespace sdc_test {

// Returns a word of what the WR `uid` wrote or sent. It names the WR, and cannot be made of parts of two others.
uint64_t StampOf(uint32_t uid, uint32_t index);
// Returns 0 if `word` is no stamp for this index.
uint32_t UidOf(uint64_t word, uint32_t index);

enum class Place : uint8_t { kOwn, kShared, kDoomed };

struct Record {
  uint32_t uid = 0;
  uint32_t initiator = 0, target = 0;
  uint32_t epoch = 0;  // of the queue: counts resets and restarts
  sdc_opcode opcode = SDC_OP_READ;
  uint8_t flags = 0;
  Place place = Place::kOwn;
  uint32_t words = 0;
  uint64_t expires_ns = 0;          // by its initiator's clock: after that it must not be executed
  sdc_status wanted = SDC_SUCCESS;  // how it must fail
  bool may_be_refused = false;      // its memory comes and goes
  bool local_may_go = false;
  // What happened.
  bool completed = false;
  sdc_status status = SDC_SUCCESS;
  uint32_t atomics = 0;        // times executed
  uint64_t before = 0;         // what the atomic found
  uint32_t deliveries = 0;     // of the message
  std::set<uint32_t> written;  // words
  // For a READ of its initiator's own place: what each word must be at least, and less than.
  std::vector<uint32_t> floor;
  uint64_t counter_floor = 0;
  uint32_t ceiling = ~0u;
};

struct Counts {
  uint64_t wrs = 0, succeeded = 0, failed = 0, flushed = 0, executed = 0, resets = 0, waited_resets = 0, restarts = 0;
  uint64_t sent_again = 0, sessions_gone = 0, sessions_evicted = 0, peers_evicted = 0, rnr = 0, expired = 0,
           refused = 0;
  uint64_t busy = 0, repeated = 0, early = 0, long_messages = 0, late_wrs = 0;
  Counts& operator+=(const Counts& other);
};

class Judge {
 public:
  explicit Judge(const Plan& plan) : plan_(plan) {}

  // ---- what is posted: the next uid, and its record
  Record& Post(uint32_t initiator, uint32_t target, uint32_t epoch);
  Record& record(uint32_t uid) { return records_[uid - 1]; }

  // ---- what completes
  void Completed(uint32_t initiator, uint32_t epoch, const sdc_completion& completion);
  // The user moved the queue to ERR.
  void Failed(uint32_t initiator, uint32_t epoch) {
    Broken& how = broken_[{initiator, epoch}];
    if (how == Broken::kNo) how = Broken::kByUser;
  }
  // The queue was reset, or its process killed: WRs that have not completed never will.
  void Reset(uint32_t initiator, uint32_t epoch, bool killed);
  // Nothing of the epoch may be executed any more.
  void IsReset(uint32_t initiator, uint32_t epoch);

  // ---- what is executed, when it is `local_ns` by the clock of the WR's initiator
  void Written(uint32_t uid, uint32_t index, uint64_t local_ns);
  void AtomicExecuted(uint32_t uid, uint64_t before, uint64_t local_ns);
  void Delivered(uint32_t uid, uint64_t local_ns);

  void End();

  void Violation(const std::string& text) {
    if (violation_.empty()) violation_ = text;
  }
  const std::string& violation() const { return violation_; }
  Counts& counts() { return counts_; }
  uint64_t digest() const { return digest_; }
  void Digest(uint64_t value) { digest_ = (digest_ ^ value) * 0x9e3779b97f4a7c15 ^ digest_ >> 31; }

 private:
  void Executed(Record& record, uint64_t local_ns);
  // By its user: WRs before that may have succeeded silently. By a WR: none after it has succeeded.
  enum class Broken : uint8_t { kNo, kByUser, kByWr };

  void CheckStatus(const Record& record, bool silent);

  const Plan& plan_;
  std::deque<Record> records_;                                             // by uid; they stay where they are
  std::map<std::pair<uint32_t, uint32_t>, std::deque<uint32_t>> waiting_;  // by initiator and epoch: not completed
  std::map<std::pair<uint32_t, uint32_t>, Broken> broken_;                 // epochs that are in ERR
  std::set<std::pair<uint32_t, uint32_t>> over_;                           // epochs that were reset
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> last_;  // by initiator, epoch and target: executed last
  std::string violation_;
  Counts counts_;
  uint64_t digest_ = 1;
};

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_JUDGE_H_
