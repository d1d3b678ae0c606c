// Decides whether a recorded history of one key is linearizable. The key is a register that may be absent. This is Wing
// & Gong's search with Lowe's memoization: a visited pair (set of operations that took effect, state) is not searched
// again. Histories in which every write writes another value are much faster to check.
//
// Thread safety: pure function.
#ifndef TESTS_KVS_LINEARIZABILITY_H_
#define TESTS_KVS_LINEARIZABILITY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace surgekv_test {

// kModify: one that changes its key. One that keeps what it reads is a Get.
enum class OpKind : uint8_t { kGet, kPut, kInsert, kUpdate, kDelete, kModify };
// kUnknown: the operation may have taken effect at any time since it began, even after the end of the history, or
// never.
enum class OpResult : uint8_t { kOk, kNotFound, kExists, kUnknown };

inline constexpr uint32_t kAbsent = 0;  // no operation writes it

struct RegisterOp {
  int64_t start_ns = 0;
  int64_t end_ns = 0;  // meaningless if the result is kUnknown
  OpKind kind = OpKind::kGet;
  OpResult result = OpResult::kOk;
  uint32_t value = kAbsent;  // the value written, or the one that a successful Get returned
  uint32_t read = kAbsent;   // kModify: what it replaced. If the result is kUnknown, it replaces nothing else
};

enum class Verdict : uint8_t {
  kLinearizable,
  kViolation,
  kGaveUp,  // the search took more than `budget` steps
};

Verdict CheckLinearizable(const std::vector<RegisterOp>& history, uint32_t initial = kAbsent,
                          uint64_t budget = 50'000'000);

// Returns one line per operation, ordered by start time, for a failure's report.
std::string Describe(std::vector<RegisterOp> history);

}  // namespace surgekv_test

#endif  // TESTS_KVS_LINEARIZABILITY_H_
