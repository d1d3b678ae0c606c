#include "tests/kvs/linearizability.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace surgekv_test {
namespace {

// Returns whether `op`, taking effect on `state`, gives its result. *next is the state after it.
bool Apply(const RegisterOp& op, uint32_t state, uint32_t* next) {
  const bool present = state != kAbsent;
  const bool unknown = op.result == OpResult::kUnknown;
  *next = state;
  switch (op.kind) {
    case OpKind::kGet:
      return op.result == OpResult::kOk ? present && state == op.value : op.result == OpResult::kNotFound && !present;
    case OpKind::kPut: *next = op.value; return unknown || op.result == OpResult::kOk;
    case OpKind::kInsert:
      if (!present) *next = op.value;
      return unknown || op.result == (present ? OpResult::kExists : OpResult::kOk);
    case OpKind::kUpdate:
      if (present) *next = op.value;
      return unknown || op.result == (present ? OpResult::kOk : OpResult::kNotFound);
    case OpKind::kDelete:
      *next = kAbsent;
      return unknown || op.result == (present ? OpResult::kOk : OpResult::kNotFound);
    case OpKind::kModify:
      if (state == op.read) *next = op.value;
      return unknown || (op.result == OpResult::kOk && state == op.read);
  }
  return false;
}

// Returns the value that `op` has certainly read, or kAbsent.
uint32_t ReadBy(const RegisterOp& op) {
  if (op.result != OpResult::kOk) return kAbsent;
  return op.kind == OpKind::kGet ? op.value : op.kind == OpKind::kModify ? op.read : kAbsent;
}

// Returns whether `op` cannot change any state, as its answer tells. (A Put of the value that is there already does not
// count.)
bool ChangesNothing(const RegisterOp& op) {
  return op.kind == OpKind::kGet || op.result == OpResult::kExists || op.result == OpResult::kNotFound;
}

// The search's list of calls and returns in time order, as in Lowe, "Testing for linearizability" (2017). An operation
// that takes effect is lifted out, and is put back when the search backs out.
struct Entry {
  uint32_t op = 0;
  bool is_call = false;
  uint32_t prev = 0, next = 0, match = 0;
};

class Search {
 public:
  Search(std::vector<RegisterOp> ops, uint32_t initial) : ops_(std::move(ops)), state_(initial) {
    std::unordered_set<uint32_t> written;
    // A return at the time of a call counts as later: the two operations then overlap, which demands less.
    std::vector<std::tuple<int64_t, bool, uint32_t>> events;
    for (uint32_t i = 0; i < ops_.size(); ++i) {
      const bool unknown = ops_[i].result == OpResult::kUnknown;
      events.emplace_back(ops_[i].start_ns, false, i);
      events.emplace_back(unknown ? INT64_MAX : ops_[i].end_ns, true, i);
      if (!unknown) ++left_;
    }
    std::sort(events.begin(), events.end());
    entries_.resize(events.size() + 2);  // entry 0 is the head, the last one the tail
    std::vector<uint32_t> call(ops_.size());
    for (uint32_t e = 1; e <= events.size(); ++e) {
      const auto [when, is_return, op] = events[e - 1];
      entries_[e] = {op, !is_return, 0, 0, 0};
      if (!is_return) call[op] = e;
      if (is_return) entries_[call[op]].match = e;
    }
    for (uint32_t e = 0; e + 1 < entries_.size(); ++e) {
      entries_[e].next = e + 1;
      entries_[e + 1].prev = e;
    }
    std::mt19937_64 random(20240607);
    for (uint32_t i = 0; i < ops_.size(); ++i) marks_.push_back(random());
    for (const RegisterOp& op : ops_) {
      if (ReadBy(op) != kAbsent) ++unread_[ReadBy(op)];
      if (op.kind != OpKind::kGet && op.value != kAbsent && !written.insert(op.value).second) values_differ_ = false;
    }
    if (written.contains(initial)) values_differ_ = false;
  }

  Verdict Run(uint64_t budget) {
    uint32_t at = entries_[0].next;
    const uint32_t tail = static_cast<uint32_t>(entries_.size()) - 1;
    while (left_ > 0) {
      if (budget-- == 0) return Verdict::kGaveUp;
      if (at != tail && entries_[at].is_call) {
        if (TakeEffect(at)) {
          at = entries_[0].next;
        } else {
          at = entries_[at].next;
        }
        continue;
      }
      // This is a return of an operation that has not taken effect: the last choice was wrong.
      const uint32_t undone = BackOut();
      if (undone == 0) return Verdict::kViolation;
      at = entries_[undone].next;
    }
    return Verdict::kLinearizable;
  }

 private:
  bool TakeEffect(uint32_t e) {
    const uint32_t op = entries_[e].op;
    uint32_t next;
    if (!Apply(ops_[op], state_, &next)) return false;
    // For an operation with unknown result it is the same to have no effect, to happen later, or never: it is kept for
    // later.
    if (next == state_ && ops_[op].result == OpResult::kUnknown) return false;
    // Where every value is written once, a value that is overwritten is never read again.
    const uint32_t readers = ReadBy(ops_[op]) == state_ ? 1 : 0;  // this very operation
    if (next != state_ && state_ != kAbsent && values_differ_ && Unread(state_) != readers) return false;
    const uint64_t set = set_ ^ marks_[op];
    if (!visited_.insert(set ^ (next * 0x9e3779b97f4a7c15ull + (set >> 7))).second) return false;
    chosen_.emplace_back(e, state_);
    state_ = next;
    set_ = set;
    if (ops_[op].result != OpResult::kUnknown) --left_;
    if (ReadBy(ops_[op]) != kAbsent) --unread_[ReadBy(ops_[op])];
    Unlink(e);
    Unlink(entries_[e].match);
    return true;
  }

  // Undoes choices up to and including the last one that may change a state. It is never wrong to take an operation
  // that changes nothing as early as possible, so there is no alternative to try. Returns 0 when nothing is left.
  uint32_t BackOut() {
    while (!chosen_.empty()) {
      const auto [e, state] = chosen_.back();
      chosen_.pop_back();
      const uint32_t op = entries_[e].op;
      state_ = state;
      set_ ^= marks_[op];
      if (ops_[op].result != OpResult::kUnknown) ++left_;
      if (ReadBy(ops_[op]) != kAbsent) ++unread_[ReadBy(ops_[op])];
      Relink(entries_[e].match);
      Relink(e);
      if (!ChangesNothing(ops_[op])) return e;
    }
    return 0;
  }

  uint32_t Unread(uint32_t value) const {
    const auto found = unread_.find(value);
    return found == unread_.end() ? 0 : found->second;
  }

  void Unlink(uint32_t e) {
    entries_[entries_[e].prev].next = entries_[e].next;
    entries_[entries_[e].next].prev = entries_[e].prev;
  }
  void Relink(uint32_t e) {
    entries_[entries_[e].prev].next = e;
    entries_[entries_[e].next].prev = e;
  }

  std::vector<RegisterOp> ops_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> marks_;  // Zobrist: a set of operations is the XOR of its members' marks
  std::unordered_set<uint64_t> visited_;
  std::vector<std::pair<uint32_t, uint32_t>> chosen_;  // entry, state before
  std::unordered_map<uint32_t, uint32_t> unread_;      // value -> operations that read it and have not taken effect
  bool values_differ_ = true;                          // no value is written twice
  uint64_t set_ = 0;
  uint32_t state_;
  size_t left_ = 0;  // operations with a known result that have not taken effect
};

}  // namespace

Verdict CheckLinearizable(const std::vector<RegisterOp>& history, uint32_t initial, uint64_t budget) {
  std::vector<RegisterOp> ops;
  for (const RegisterOp& op : history) {
    if (op.kind != OpKind::kGet || op.result != OpResult::kUnknown) ops.push_back(op);
  }
  if (ops.empty()) return Verdict::kLinearizable;  // hardly any of thousands of keys may have been used
  return Search(std::move(ops), initial).Run(budget);
}

std::string Describe(std::vector<RegisterOp> history) {
  static constexpr const char* kKinds[] = {"Get", "Put", "Insert", "Update", "Delete", "Modify"};
  static constexpr const char* kResults[] = {"ok", "not found", "exists", "unknown"};
  std::sort(history.begin(), history.end(),
            [](const RegisterOp& a, const RegisterOp& b) { return a.start_ns < b.start_ns; });
  std::string text;
  for (const RegisterOp& op : history) {
    text += std::to_string(op.start_ns - history.front().start_ns) + " .. " +
            (op.result == OpResult::kUnknown ? "?" : std::to_string(op.end_ns - history.front().start_ns)) + "  " +
            kKinds[static_cast<int>(op.kind)] + " " +
            (op.kind == OpKind::kModify ? std::to_string(op.read) + " -> " : "") + std::to_string(op.value) + ": " +
            kResults[static_cast<int>(op.result)] + "\n";
  }
  return text;
}

}  // namespace surgekv_test
