// What the simulated clients did, and whether it was allowed.
//
// Time is a count of starts and ends, so that no two are simultaneous. Virtual nanoseconds are kept for reports.
#ifndef TESTS_SIM_HISTORY_H_
#define TESTS_SIM_HISTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "krcore/status.h"
#include "kvs/client.h"
#include "tests/kvs/linearizability.h"

namespace surgekv_sim {

using surgekv_test::OpKind;

// Returns a value that tells its id, and whose every byte shows whether it is whole.
std::string ValueOf(uint32_t id);
bool IdOf(std::string_view value, uint32_t* id);

struct OpRecord {
  uint32_t key = 0;
  OpKind kind = OpKind::kGet;
  uint32_t value = 0;                 // id of what it wrote, or of what a Get returned
  uint32_t read = 0;                  // kModify: id of what its function was last called with, 0 if the key was absent
  kvs::Modification::Action wants{};  // kModify: what the function decided then
  uint64_t expires_at_ms = 0;         // of what it wrote
  uint32_t client = 0;
  uint64_t start = 0, end = 0;  // counts; end 0: it has not ended, or its client was dead by then
  int64_t start_ns = 0, end_ns = 0;
  krcore::StatusCode status = krcore::StatusCode::kOk;
};

// A scan over all keys that a client has begun.
struct KeyScan {
  uint64_t cursor = 0;
  bool under_way = false;  // a step of it is
  uint64_t start = 0;      // of the first step
  int64_t start_ns = 0;
  std::set<uint32_t> returned;
};

class History {
 public:
  explicit History(std::vector<std::string> names) : names_(std::move(names)), by_key_(names_.size()) {}

  // Begins an operation and returns its index. `expires_at_ms`: of what it writes, if it writes anything.
  uint32_t Begin(uint32_t key, OpKind kind, uint32_t client, int64_t now_ns, uint64_t expires_at_ms = 0);
  // The function of a Modify was called with the value `read`, 0 if the key was absent. Sets what it decides: to set,
  // keep or delete, as the operation's number says.
  const OpRecord& Decide(uint32_t index, uint32_t read);
  // `value`: what a Get returned, 0 otherwise.
  void End(uint32_t index, krcore::StatusCode status, uint32_t value, int64_t now_ns);

  // Begins a step of a scan over keys. Returns a record for EndScanStep.
  OpRecord BeginScanStep(KeyScan* scan, uint32_t client, int64_t now_ns);
  // The step has returned these. What it says of a key is checked like a Get, but does not count as an operation. A key
  // that is returned is one that a Get during this step might have found. A key that the whole scan has not returned is
  // one that a Get as long as the scan might have missed: it was not there all the time. `id_of`: as IdOf. Returns what
  // is wrong already; empty: nothing.
  std::string EndScanStep(KeyScan* scan, OpRecord step, bool values, const std::vector<kvs::ScanRecord>& records,
                          bool (*id_of)(std::string_view, uint32_t*), int64_t now_ns);

  const std::string& NameOf(uint32_t key) const { return names_[key]; }
  const OpRecord& operator[](uint32_t index) const { return records_[index]; }
  // Returns when the value that the operation `id` - 1 wrote expires.
  uint64_t ExpiryOf(uint32_t id) const { return id == 0 || id > records_.size() ? 0 : records_[id - 1].expires_at_ms; }
  // From `first_ns` on, the clock of some client may show that time, and what expires then may be gone.
  int64_t MayExpireNs(uint64_t expires_at_ms) const { return may_expire_ns_(expires_at_ms); }
  void set_may_expire(std::function<int64_t(uint64_t expires_at_ms)> first_ns) { may_expire_ns_ = std::move(first_ns); }
  size_t size() const { return records_.size(); }
  // Returns the keys whose history is not that of a register. `gave_up`: how many the checker could not decide.
  std::vector<uint32_t> Violations(uint32_t* gave_up) const;
  // Returns the history of one key as readable text.
  std::string Describe(uint32_t key) const;
  // Returns a number that any difference between two runs changes.
  uint64_t Digest() const;

 private:
  // Returns what is known of a key, by start.
  std::vector<OpRecord> RecordsOf(uint32_t key) const;

  std::vector<std::string> names_;
  std::unordered_map<std::string, uint32_t> keys_;  // by name; made for the first scan
  std::vector<OpRecord> records_;
  std::vector<std::vector<uint32_t>> by_key_;
  std::map<uint32_t, std::vector<OpRecord>> seen_;  // by key: what scans say of it
  // Counts a start or end.
  uint64_t Count(int64_t now_ns);
  std::function<int64_t(uint64_t expires_at_ms)> may_expire_ns_ = [](uint64_t) { return int64_t{0}; };
  std::vector<int64_t> counted_ns_;  // when the counts were made, in order
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_HISTORY_H_
