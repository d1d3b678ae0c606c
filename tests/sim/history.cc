#include "tests/sim/history.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <utility>

namespace surgekv_sim {
namespace {

using krcore::StatusCode;
using surgekv_test::OpResult;
using surgekv_test::RegisterOp;
using surgekv_test::Verdict;

constexpr const char* kKinds[] = {"Get", "Put", "Insert", "Update", "Delete", "Modify"};
// Steps, each of some 100 ns. A history that needs more is counted as too long to check.
constexpr uint64_t kBudget = 20'000'000;

}  // namespace

std::string ValueOf(uint32_t id) {
  // There are few lengths, so that freed blocks are used again at once. Some blocks span several 64-byte lines, and
  // some are out of line.
  static constexpr size_t kPadding[] = {0, 4, 40, 40, 100, 300};
  const size_t padding = id % 67 == 0 ? 4'200 : kPadding[id % std::size(kPadding)];
  std::string value(sizeof(id) + padding, '\0');
  std::memcpy(value.data(), &id, sizeof(id));
  for (size_t i = sizeof(id); i < value.size(); ++i) value[i] = static_cast<char>(id * 31 + i / 8);
  return value;
}

bool IdOf(std::string_view value, uint32_t* id) {
  if (value.size() < sizeof(*id)) return false;
  std::memcpy(id, value.data(), sizeof(*id));
  return value == ValueOf(*id);
}

OpRecord History::BeginScanStep(KeyScan* scan, uint32_t client, int64_t now_ns) {
  OpRecord step;
  step.client = client;
  step.start = Count(now_ns);
  step.start_ns = now_ns;
  if (scan->cursor == 0) *scan = {.start = step.start, .start_ns = now_ns};
  scan->under_way = true;
  return step;
}

std::string History::EndScanStep(KeyScan* scan, OpRecord step, bool values, const std::vector<kvs::ScanRecord>& records,
                                 bool (*id_of)(std::string_view, uint32_t*), int64_t now_ns) {
  step.end = Count(now_ns);
  step.end_ns = now_ns;
  if (keys_.empty()) {
    for (uint32_t key = 0; key < names_.size(); ++key) keys_[names_[key]] = key;
  }
  for (const kvs::ScanRecord& record : records) {
    const auto found = keys_.find(record.key);
    if (found == keys_.end()) return "a scan returned a key that nobody wrote: " + record.key;
    step.key = found->second;
    if (!scan->returned.insert(step.key).second) return "a scan returned a key twice\n" + Describe(step.key);
    if (!values) continue;
    if (!id_of(record.value, &step.value)) return "a scan returned a value that nobody wrote\n" + Describe(step.key);
    seen_[step.key].push_back(step);
  }
  if (scan->cursor != 0) return {};
  step.start = scan->start;
  step.start_ns = scan->start_ns;
  step.status = StatusCode::kNotFound;
  step.value = 0;
  for (step.key = 0; step.key < names_.size(); ++step.key) {
    if (!scan->returned.contains(step.key)) seen_[step.key].push_back(step);
  }
  return {};
}

std::vector<OpRecord> History::RecordsOf(uint32_t key) const {
  const auto seen = seen_.find(key);
  std::vector<OpRecord> all = seen != seen_.end() ? seen->second : std::vector<OpRecord>();
  for (const uint32_t index : by_key_[key]) all.push_back(records_[index]);
  std::ranges::stable_sort(all, {}, &OpRecord::start);
  return all;
}

uint64_t History::Count(int64_t now_ns) {
  counted_ns_.push_back(now_ns);
  return counted_ns_.size();
}

uint32_t History::Begin(uint32_t key, OpKind kind, uint32_t client, int64_t now_ns, uint64_t expires_at_ms) {
  const auto index = static_cast<uint32_t>(records_.size());
  OpRecord record;
  record.key = key;
  record.kind = kind;
  record.expires_at_ms = expires_at_ms;
  record.client = client;
  record.start = Count(now_ns);
  record.start_ns = now_ns;
  if (kind == OpKind::kPut || kind == OpKind::kInsert || kind == OpKind::kUpdate) record.value = index + 1;
  records_.push_back(record);
  by_key_[key].push_back(index);
  return index;
}

const OpRecord& History::Decide(uint32_t index, uint32_t read) {
  using enum kvs::Modification::Action;
  OpRecord& record = records_[index];
  record.read = read;
  record.wants = index % 8 == 5 ? kKeep : index % 8 == 6 ? kDelete : kSet;
  record.value = record.wants == kSet ? index + 1 : 0;
  return record;
}

void History::End(uint32_t index, StatusCode status, uint32_t value, int64_t now_ns) {
  OpRecord& record = records_[index];
  record.end = Count(now_ns);
  record.end_ns = now_ns;
  record.status = status;
  if (record.kind == OpKind::kGet) record.value = value;
}

std::vector<uint32_t> History::Violations(uint32_t* gave_up) const {
  std::vector<uint32_t> wrong;
  for (uint32_t key = 0; key < by_key_.size(); ++key) {
    std::vector<RegisterOp> ops;
    for (const OpRecord& record : RecordsOf(key)) {
      RegisterOp op{static_cast<int64_t>(record.start), static_cast<int64_t>(record.end), record.kind,
                    OpResult::kUnknown, record.value};
      if (record.kind == OpKind::kModify) {
        op.read = record.read;
        if (record.wants == kvs::Modification::Action::kKeep) op.kind = OpKind::kGet, op.value = record.read;
      }
      if (record.end != 0) {
        switch (record.status) {
          case StatusCode::kOk:
            op.result = op.kind == OpKind::kGet && op.value == 0 ? OpResult::kNotFound : OpResult::kOk;
            break;
          case StatusCode::kNotFound: op.result = OpResult::kNotFound; break;
          case StatusCode::kExists: op.result = OpResult::kExists; break;
          case StatusCode::kUnavailable:  // "nothing was changed" (kvs/client.h)
          case StatusCode::kOutOfMemory: continue;
          default: break;  // it may have happened, or may still happen
        }
      }
      ops.push_back(op);
      if (record.expires_at_ms == 0 || record.value == 0 || op.kind == OpKind::kGet) continue;
      // The value may go at any time from then on. What a Modify sets may never have been there, if its time came
      // before the Modify had ended.
      const int64_t first_ns = may_expire_ns_(record.expires_at_ms);
      if (first_ns > counted_ns_.back()) continue;
      const bool ended = record.end != 0 && record.end_ns < first_ns;
      const auto first = std::ranges::lower_bound(counted_ns_, first_ns) - counted_ns_.begin() + 1;
      RegisterOp expiry{.kind = OpKind::kModify};
      expiry.start_ns = ended || op.kind != OpKind::kModify ? first : op.start_ns;  // a count, like all of these
      expiry.result = OpResult::kUnknown;
      expiry.read = record.value;
      ops.push_back(expiry);
    }
    const Verdict verdict = CheckLinearizable(ops, surgekv_test::kAbsent, kBudget);
    if (verdict == Verdict::kViolation) wrong.push_back(key);
    if (verdict == Verdict::kGaveUp) ++*gave_up;
  }
  return wrong;
}

std::string History::Describe(uint32_t key) const {
  const bool readable = std::ranges::all_of(NameOf(key), [](unsigned char c) { return std::isprint(c) != 0; });
  std::string text = "history of " + (readable ? NameOf(key) : "key " + std::to_string(key)) +
                     " (count and microsecond of start and end, client, operation):\n";
  for (const OpRecord& r : RecordsOf(key)) {
    char line[200];
    std::string values = std::to_string(r.value);
    if (r.kind == OpKind::kModify) {
      const bool keeps = r.wants == kvs::Modification::Action::kKeep;
      const std::string became = keeps ? " kept" : " -> " + values;
      values = std::to_string(r.read);
      values += became;
    }
    if (r.expires_at_ms != 0 && r.value != 0 && r.kind != OpKind::kGet)
      values += " until " + std::to_string(may_expire_ns_(r.expires_at_ms) / 1'000);
    if (r.end != 0) {
      std::snprintf(line, sizeof(line), "  %6lu..%-6lu %12.2f..%-12.2f client %-2u %-6s %-6s %s\n", r.start, r.end,
                    static_cast<double>(r.start_ns) / 1e3, static_cast<double>(r.end_ns) / 1e3, r.client,
                    kKinds[static_cast<int>(r.kind)], values.c_str(), std::string(StatusCodeName(r.status)).c_str());
    } else {
      std::snprintf(line, sizeof(line), "  %6lu..?      %12.2f..?            client %-2u %-6s %-6s never answered\n",
                    r.start, static_cast<double>(r.start_ns) / 1e3, r.client, kKinds[static_cast<int>(r.kind)],
                    values.c_str());
    }
    text += line;
  }
  return text;
}

uint64_t History::Digest() const {
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](uint64_t word) { digest = (digest ^ word) * 0x100000001b3; };
  const auto add_record = [&add](const OpRecord& r) {
    add(r.start);
    add(r.end);
    add(static_cast<uint64_t>(r.start_ns));
    add(static_cast<uint64_t>(r.end_ns));
    add(r.value);
    add(uint64_t{r.key} << 32 | uint64_t{static_cast<uint8_t>(r.kind)} << 8 | static_cast<uint8_t>(r.status));
  };
  for (const OpRecord& r : records_) add_record(r);
  for (const auto& [key, of_key] : seen_) {
    for (const OpRecord& r : of_key) add_record(r);
  }
  return digest;
}

}  // namespace surgekv_sim
