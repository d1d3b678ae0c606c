#include "tests/rnic/sdc/judge.h"

namespace sdc_test {
namespace {

uint32_t Hash(uint32_t uid, uint32_t index) {
  uint64_t x = (uint64_t{uid} << 32 | index) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
  return static_cast<uint32_t>(x >> 32) | 1;
}

bool IsAtomic(sdc_opcode opcode) { return opcode == SDC_OP_COMPARE_SWAP || opcode == SDC_OP_FETCH_ADD; }
bool IsMessage(sdc_opcode opcode) {
  return opcode == SDC_OP_SEND || opcode == SDC_OP_SEND_IMM || opcode == SDC_OP_WRITE_IMM;
}

}  // namespace

uint64_t StampOf(uint32_t uid, uint32_t index) { return uint64_t{uid} << 32 | Hash(uid, index); }

uint32_t UidOf(uint64_t word, uint32_t index) {
  const auto uid = static_cast<uint32_t>(word >> 32);
  return uid != 0 && static_cast<uint32_t>(word) == Hash(uid, index) ? uid : 0;
}

Counts& Counts::operator+=(const Counts& other) {
  static_assert(sizeof(Counts) % sizeof(uint64_t) == 0);
  auto* to = reinterpret_cast<uint64_t*>(this);
  const auto* from = reinterpret_cast<const uint64_t*>(&other);
  for (size_t i = 0; i < sizeof(Counts) / sizeof(uint64_t); ++i) to[i] += from[i];
  return *this;
}

Record& Judge::Post(uint32_t initiator, uint32_t target, uint32_t epoch) {
  Record& record = records_.emplace_back();
  record.uid = static_cast<uint32_t>(records_.size());
  record.initiator = initiator;
  record.target = target;
  record.epoch = epoch;
  waiting_[{initiator, epoch}].push_back(record.uid);
  ++counts_.wrs;
  return record;
}

void Judge::CheckStatus(const Record& record, bool silent) {
  const std::string who = "WR " + std::to_string(record.uid) + " completed with status " +
                          std::to_string(record.status) + ", opcode " + std::to_string(record.opcode);
  const Broken how = broken_[{record.initiator, record.epoch}];
  const bool broken = how != Broken::kNo;
  if (broken && record.status != SDC_FLUSHED && !(silent && how == Broken::kByUser))
    Violation(who + " behind one that failed");
  if (record.status == SDC_FLUSHED && !broken) Violation(who + ", and none before it failed");
  if (record.status == SDC_SUCCESS) {
    ++counts_.succeeded;
    if (record.wanted != SDC_SUCCESS) Violation(who + " and should have failed");
    if (IsAtomic(record.opcode) && record.atomics != 1) Violation(who + " and was not executed");
    if (IsMessage(record.opcode) && record.deliveries != 1) Violation(who + " and was not delivered");
    if (record.opcode == SDC_OP_WRITE && record.written.size() != record.words && !record.may_be_refused &&
        record.place == Place::kOwn)
      Violation(who + " and was not written whole");
    return;
  }
  ++(record.status == SDC_FLUSHED ? counts_.flushed : counts_.failed);
  if (record.status == SDC_FLUSHED || record.status == record.wanted) return;
  if (record.status == SDC_REMOTE_ACCESS_ERROR && record.may_be_refused) return;
  if (record.status == SDC_LOCAL_PROTECTION_ERROR && record.local_may_go) return;
  if (!plan_.calm && record.status == SDC_RETRY_EXCEEDED) return;
  if (!plan_.calm && record.status == SDC_RNR_RETRY_EXCEEDED && IsMessage(record.opcode)) return;
  if (!plan_.calm && record.status == SDC_REMOTE_OPERATION_ERROR && record.opcode >= SDC_OP_SEND) return;
  Violation(who + ", wanted " + std::to_string(record.wanted));
}

void Judge::Completed(uint32_t initiator, uint32_t epoch, const sdc_completion& completion) {
  std::deque<uint32_t>& waiting = waiting_[{initiator, epoch}];
  const auto uid = static_cast<uint32_t>(completion.wr_id);
  Digest(completion.wr_id << 8 | completion.status);
  while (!waiting.empty()) {
    Record& first = record(waiting.front());
    waiting.pop_front();
    const bool is_it = first.uid == uid;
    if (!is_it && (first.flags & SDC_SIGNALED) != 0) {
      Violation("WR " + std::to_string(uid) + " completed before WR " + std::to_string(first.uid));
      return;
    }
    first.completed = true;
    first.status = is_it ? completion.status : SDC_SUCCESS;
    CheckStatus(first, !is_it);
    if (first.status != SDC_SUCCESS) broken_[{initiator, epoch}] = Broken::kByWr;
    if (is_it) return;
  }
  Violation("WR " + std::to_string(uid) + " completed, and was not posted or completed before");
}

void Judge::Reset(uint32_t initiator, uint32_t epoch, bool killed) {
  waiting_[{initiator, epoch}].clear();
  ++(killed ? counts_.restarts : counts_.resets);
}

void Judge::IsReset(uint32_t initiator, uint32_t epoch) { over_.insert({initiator, epoch}); }

void Judge::Executed(Record& record, uint64_t local_ns) {
  ++counts_.executed;
  Digest(uint64_t{record.uid} << 32 ^ local_ns);
  const std::string who = "WR " + std::to_string(record.uid) + ", opcode " + std::to_string(record.opcode);
  if (over_.contains({record.initiator, record.epoch})) Violation(who + " was executed after the reset of its queue");
  if (local_ns > record.expires_ns)
    Violation(who + " was executed " + std::to_string((local_ns - record.expires_ns) / kUs) + " us behind its limit");
  if (record.wanted != SDC_SUCCESS) Violation(who + " was executed and is invalid");
  if (record.completed && record.status == SDC_SUCCESS) Violation(who + " was executed after it succeeded");
  uint32_t& last = last_[{record.initiator, uint64_t{record.epoch} << 32 | record.target}];
  if (record.uid < last) Violation(who + " was executed after WR " + std::to_string(last));
  last = record.uid;
}

void Judge::Written(uint32_t uid, uint32_t index, uint64_t local_ns) {
  if (uid == 0 || uid > records_.size()) {
    Violation("a word was written that nobody posted");
    return;
  }
  Record& written = record(uid);
  if (!written.written.insert(index).second) Violation("WR " + std::to_string(uid) + " was executed twice");
  if (written.written.size() > written.words) Violation("WR " + std::to_string(uid) + " wrote more than it has");
  Executed(written, local_ns);
}

void Judge::AtomicExecuted(uint32_t uid, uint64_t before, uint64_t local_ns) {
  if (uid == 0 || uid > records_.size()) {
    Violation("an atomic was executed that nobody posted");
    return;
  }
  Record& atomic = record(uid);
  if (++atomic.atomics > 1) Violation("atomic " + std::to_string(uid) + " was executed twice");
  atomic.before = before;
  Executed(atomic, local_ns);
}

void Judge::Delivered(uint32_t uid, uint64_t local_ns) {
  if (uid == 0 || uid > records_.size()) {
    Violation("a message was delivered that nobody posted");
    return;
  }
  Record& message = record(uid);
  if (++message.deliveries > 1) Violation("message " + std::to_string(uid) + " was delivered twice");
  Executed(message, local_ns);
}

void Judge::End() {
  for (const auto& [queue, waiting] : waiting_) {
    if (!waiting.empty() && (record(waiting.back()).flags & SDC_SIGNALED) != 0)
      Violation("WR " + std::to_string(waiting.front()) + " never completed");
  }
}

}  // namespace sdc_test
