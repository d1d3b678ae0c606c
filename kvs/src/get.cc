// Get. The step numbers are those of docs/kvs.md.
#include "kvs/src/client_core.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

constexpr uint32_t Mask(SlotState state) { return 1u << static_cast<uint32_t>(state); }
constexpr uint32_t kReaderStates = Mask(SlotState::kVal) | Mask(SlotState::kFrz);

}  // namespace

Task<Status> ClientCore::GetAsync(std::string_view key, std::string* value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    co_return Status(StatusCode::kInvalidArgument, "a key has 1 to 65535 bytes, not " + std::to_string(key.size()));
  }
  Operation& op = co_await LeaseOperation(key);
  const Lease lease(*this, op);
  for (;; co_await BackOff(op)) {
    if (op.attempt > 0 && OutOfTime(op)) co_return TimeoutCode(op);
    TableRef table;
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (resolved == Step::kUnavailable) co_return UnavailableStatus("Get");
      if (resolved != Step::kOk) continue;
    }
    const Step scanned = co_await ScanTable(op, table, kReaderStates);  // (1)
    if (scanned == Step::kUnavailable) co_return UnavailableStatus("Get");
    if (scanned == Step::kFull) co_return StatusCode::kOutOfMemory;
    if (scanned != Step::kOk) continue;
    if (op.scan.val >= 0) [[likely]] {
      value->assign(op.scan.block.value());
      co_return Status::Ok();
    }
    Step step;
    if (op.scan.headers_fit && op.scan.frz < 0 && !op.scan.any_pending) {
      step = co_await CheckHeaders(op);  // (2)
      if (step == Step::kOk) co_return StatusCode::kNotFound;
    } else {
      step = co_await GetDuringMigration(op, value);
      if (step == Step::kOk) co_return op.scan.val >= 0 ? StatusCode::kOk : StatusCode::kNotFound;
    }
    if (step == Step::kUnavailable) co_return UnavailableStatus("Get");
  }
}

// kOk: scan.val tells whether *value was set (>= 0) or the key is absent (< 0).
Task<Step> ClientCore::GetDuringMigration(Operation& op, std::string* value) {
  TableRef parent, child;
  int frozen = -1;
  Slot frozen_slot;
  if (op.scan.any_pending) {  // (4): this is a child whose split is not finished; the parent may hold the key
    child = op.scan.table;
    if (child.index == 0) co_return Step::kRestart;
    const Step found =
        co_await ReadDirectoryEntry(op.batch, &op.buffers->directory[0], ParentIndex(child.index), &parent);
    if (found != Step::kOk) co_return found;
    if (!parent.entry.present()) co_return Step::kRestart;
    const Step scanned = co_await ScanTable(op, parent, kReaderStates);
    if (scanned != Step::kOk) co_return scanned;
    if (op.scan.val >= 0) {
      value->assign(op.scan.block.value());
      co_return Step::kOk;
    }
  } else {  // (3): the headers moved, or a frozen slot of the key
    ++stats_.stale_directory_hits;
    parent = op.scan.table;
  }
  if (op.scan.frz >= 0) {
    frozen = op.scan.frz;
    frozen_slot = op.Candidate(static_cast<uint32_t>(frozen));
  }
  if (!child.address.valid()) {
    const Step resolved = co_await Resolve(op, &child);
    if (resolved != Step::kOk) co_return resolved;
    // Several splits behind: begin again at the table that the directory names now.
    if (child.index == 0 || ParentIndex(child.index) != parent.index || child.index == parent.index) {
      co_return Step::kRestart;
    }
  }
  const Step scanned = co_await ScanTable(op, child, kReaderStates);
  if (scanned != Step::kOk) co_return scanned;
  if (op.scan.val >= 0) {
    value->assign(op.scan.block.value());
    co_return Step::kOk;
  }
  if (!op.scan.headers_fit || op.scan.frz >= 0) co_return Step::kRestart;  // the child is being split in its turn
  if (frozen >= 0 && op.Candidate(static_cast<uint32_t>(frozen)).state() == SlotState::kPend) {
    const Step read = co_await ReadFrozenValue(op, frozen_slot, value);
    if (read == Step::kOk) op.scan.val = frozen;
    co_return read;
  }
  // Absent, unless the child's own split began meanwhile and took the key away between the words of the scan.
  co_return co_await CheckHeaders(op);
}

// The block of a frozen slot that a scan found to be the key's.
Task<Step> ClientCore::ReadFrozenValue(Operation& op, Slot slot, std::string* value) {
  const uint32_t bytes = FirstReadBytes(slot);
  op.batch.Read(slot.block(), op.buffers->match.data(), bytes);
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  BlockView block(op.buffers->match.data());
  if (slot.length_units() == kLargeBlock) {
    const Step large = co_await ReadLargeBlock(op, slot, block.bytes());
    if (large != Step::kOk) co_return large;
    block = op.scan.block;
  } else if (!block.Intact(bytes)) {
    ++stats_.checksum_retries;
    op.torn = true;
    co_return Step::kRestart;
  }
  if (block.key() != op.key) co_return Step::kRestart;
  value->assign(block.value());
  co_return Step::kOk;
}

}  // namespace kvs
