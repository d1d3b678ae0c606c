// What the simulated clients did, and whether it was allowed.
//
// Time is a count of starts and ends, so that no two are simultaneous. Virtual nanoseconds are kept for reports.
#ifndef TESTS_SIM_HISTORY_H_
#define TESTS_SIM_HISTORY_H_

#include <cstdint>
#include <string>
#include <string_view>
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
  uint32_t client = 0;
  uint64_t start = 0, end = 0;  // counts; end 0: it has not ended, or its client was dead by then
  int64_t start_ns = 0, end_ns = 0;
  krcore::StatusCode status = krcore::StatusCode::kOk;
};

class History {
 public:
  explicit History(std::vector<std::string> names) : names_(std::move(names)), by_key_(names_.size()) {}

  // Begins an operation and returns its index.
  uint32_t Begin(uint32_t key, OpKind kind, uint32_t client, int64_t now_ns);
  // The function of a Modify was called with the value `read`, 0 if the key was absent. Sets what it decides: to set,
  // keep or delete, as the operation's number says.
  const OpRecord& Decide(uint32_t index, uint32_t read);
  // `value`: what a Get returned, 0 otherwise.
  void End(uint32_t index, krcore::StatusCode status, uint32_t value, int64_t now_ns);

  const std::string& NameOf(uint32_t key) const { return names_[key]; }
  const OpRecord& operator[](uint32_t index) const { return records_[index]; }
  size_t size() const { return records_.size(); }
  // Returns the keys whose history is not that of a register. `gave_up`: how many the checker could not decide.
  std::vector<uint32_t> Violations(uint32_t* gave_up) const;
  // Returns the history of one key as readable text.
  std::string Describe(uint32_t key) const;
  // Returns a number that any difference between two runs changes.
  uint64_t Digest() const;

 private:
  std::vector<std::string> names_;
  std::vector<OpRecord> records_;
  std::vector<std::vector<uint32_t>> by_key_;
  uint64_t count_ = 0;
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_HISTORY_H_
