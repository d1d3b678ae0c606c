// Is a recorded history of one key linearizable? The key is a register that may be absent. Wing & Gong's search with
// Lowe's memoization: visited (set of operations that took effect, state) pairs are not searched again. Histories in
// which every write writes another value are much faster to check.
//
// Thread safety: pure function.
#ifndef TESTS_KVS_LINEARIZABILITY_H_
#define TESTS_KVS_LINEARIZABILITY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace surgekv_test {

enum class OpKind : uint8_t { kGet, kPut, kInsert, kUpdate, kDelete };
// kUnknown: the operation may have taken effect at any time since it began, the end of the history included, or never.
enum class OpResult : uint8_t { kOk, kNotFound, kExists, kUnknown };

inline constexpr uint32_t kAbsent = 0;  // no operation writes it

struct RegisterOp {
  int64_t start_ns = 0;
  int64_t end_ns = 0;  // without meaning if the result is kUnknown
  OpKind kind = OpKind::kGet;
  OpResult result = OpResult::kOk;
  uint32_t value = kAbsent;  // what it wrote, or what a Get that found something returned
};

enum class Verdict : uint8_t {
  kLinearizable,
  kViolation,
  kGaveUp,  // more than `budget` steps of the search
};

Verdict CheckLinearizable(const std::vector<RegisterOp>& history, uint32_t initial = kAbsent,
                          uint64_t budget = 50'000'000);

// A line per operation, in order of their beginning, for a failure's report.
std::string Describe(std::vector<RegisterOp> history);

}  // namespace surgekv_test

#endif  // TESTS_KVS_LINEARIZABILITY_H_
