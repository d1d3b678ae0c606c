#include "kvs/table/scanner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kvs/layout/block.h"
#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// How many blocks are read at once. More would hold up the client's other operations.
constexpr size_t kBlocksAtOnce = 512;

// Returns the bits in the opposite order: the place of a hash in the order of a scan, and the other way round.
constexpr uint64_t Reversed(uint64_t bits) {
  bits = (bits >> 1 & 0x5555555555555555) | (bits & 0x5555555555555555) << 1;
  bits = (bits >> 2 & 0x3333333333333333) | (bits & 0x3333333333333333) << 2;
  bits = (bits >> 4 & 0x0f0f0f0f0f0f0f0f) | (bits & 0x0f0f0f0f0f0f0f0f) << 4;
  return __builtin_bswap64(bits);
}
static_assert(Reversed(1) == uint64_t{1} << 63 && Reversed(6) == uint64_t{3} << 61);
static_assert(Reversed(Reversed(0x0123456789abcdef)) == 0x0123456789abcdef);

// Returns how many low bits the hashes of all the table's keys share, if they are those of `h1`. If not all headers say
// that such keys belong here, returns nothing. In the middle of a split, headers of two depths fit the keys that stay;
// either depth would do.
std::optional<uint32_t> DepthOf(std::span<const std::byte> image, const SubtableGeometry& geometry, uint64_t h1) {
  uint32_t depth = 0;
  for (uint32_t bucket = 0; bucket < geometry.buckets(); ++bucket) {
    BucketHeader header;
    std::memcpy(&header, image.data() + BucketOffset(bucket), sizeof(header));
    if (!header.Fits(h1)) return std::nullopt;
    depth = std::max(depth, header.depth());
  }
  return depth;
}

bool HoldsValue(Slot slot) {
  return slot.state() == SlotState::kVal ||
         (slot.state() == SlotState::kFrz && !Mutated(Mutation::kKeyScanIgnoresFrozen));
}

}  // namespace

Task<Status> Scanner::Scan(uint64_t* cursor, ScanOptions options, std::vector<ScanRecord>* records) {
  const KeyHash hash{.h1 = Reversed(*cursor)};
  Operation& op = co_await operations_.LeaseOperation({}, hash);
  OperationLease lease(operations_, op);
  Page page{.begin = *cursor, .options = options};
  for (;; co_await operations_.BackOff(op)) {
    records->clear();
    if (op.attempt > 0 && operations_.OutOfTime(op)) {
      if (!op.torn) co_return TimeoutCode(op);
      co_return Status(StatusCode::kCorrupt, "the checksum of the block at byte " + std::to_string(page.torn.offset) +
                                                 " of memory node " + std::to_string(page.torn.node) + " is wrong");
    }
    if (op.batch.Stale()) [[unlikely]]
      operations_.BeginAgain(op);
    const Step step = co_await ReadPage(op, &page, records);
    if (step == Step::kOk) break;
    records->clear();
    if (Failed(op, step)) co_return common_.connections.UnavailableStatus("Scan");
    if (step == Step::kFull) co_return Status(StatusCode::kOutOfMemory, "no local memory for a scan");
  }
  lease.End();
  const Status removed = co_await RemoveExpired(options, records);
  if (!removed.ok()) {
    records->clear();
    co_return removed;
  }
  *cursor = page.end;
  co_return Status::Ok();
}

Task<Step> Scanner::ReadPage(Operation& op, Page* page, std::vector<ScanRecord>* records) {
  op.torn = false;
  KVS_CO_RETURN_UNLESS_OK(co_await ReadTable(op, page));
  KVS_CO_RETURN_UNLESS_OK(co_await ReadHashes(op, page));
  Cut(op, page);
  co_return co_await ReadRecords(op, page, records);
}

// Finds what the table of the cursor holds.
Task<Step> Scanner::ReadTable(Operation& op, Page* page) {
  // [Scan 1]
  TableRef table;
  op.merge.record = {};
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.Resolve(op, &table));

  // [Scan 2]
  const SubtableGeometry& geometry = common_.shape.geometry;
  LargeBuffer& buffer = op.large_read;
  if (!buffer.Grow(common_.node, geometry.bytes())) co_return Step::kFull;
  const std::span<std::byte> image(buffer.memory.get(), geometry.bytes());
  const auto image_bytes = static_cast<uint32_t>(image.size());
  const uint32_t lkey = buffer.region->lkey();
  op.batch.Read(table.address, image.data(), image_bytes, lkey);
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  std::vector<Found>& found = page->found;
  found.clear();
  for (uint32_t s = 0; s < geometry.slots(); ++s) {
    Slot slot;
    std::memcpy(&slot, image.data() + SlotOffset(s), sizeof(slot));
    if (HoldsValue(slot)) found.push_back({.slot = slot});
  }

  // [Scan 3] One READ of all of it costs less than one for each header.
  page->depth = table.entry.depth();
  if (!op.merge.engaged()) {
    if (!Mutated(Mutation::kKeyScanHeadersOnce)) op.batch.Read(table.address, image.data(), image_bytes, lkey);
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
    const auto fitting = DepthOf(image, geometry, op.hash.h1);
    if (Mutated(Mutation::kKeyScanOfOldTable)) co_return Step::kOk;
    if (!fitting) {
      // The same as in Get 4: if a split goes on that has not published its child, nothing had left this table.
      TableRef now;
      KVS_CO_RETURN_UNLESS_OK(co_await directory_.Resolve(op, &now));
      if (!(now.address == table.address) || !now.entry.splitting()) {
        op.again = Again::kAtOnce;
        co_return Step::kRestart;
      }
      directory_.NoteUnfinished(now.index);
      page->depth = now.entry.depth();
      co_return Step::kOk;
    }
    page->depth = *fitting;
  }
  co_return Step::kOk;
}

// [Scan 4] The headers of blocks have the hashes, and the lengths. Drops what is before the cursor, or in another
// table.
Task<Step> Scanner::ReadHashes(Operation& op, Page* page) {
  std::vector<Found>& found = page->found;
  LargeBuffer& buffer = op.large_read;
  if (!buffer.Grow(common_.node, found.size() * sizeof(BlockHeader))) co_return Step::kFull;
  auto* const headers = reinterpret_cast<BlockHeader*>(buffer.memory.get());
  for (size_t i = 0; i < found.size();) {
    for (const size_t end = std::min(found.size(), i + kBlocksAtOnce); i < end; ++i) {
      op.batch.Read(found[i].slot.block(), &headers[i], sizeof(BlockHeader), buffer.region->lkey());
    }
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  }
  const BucketHeader range(page->depth, op.hash.Suffix(page->depth), 0);
  size_t kept = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const BlockHeader& header = headers[i];
    const uint64_t bytes =
        BlockBytes(header.key_bytes, page->options.values ? header.value_bytes : 0, (header.flags & kExpires) != 0);
    if (bytes > BlockBytes(kMaxKeyBytes, kMaxValueBytes, true)) co_return Torn(op, page, found[i].slot);
    const uint64_t position =
        Mutated(Mutation::kKeyScanBySlots) ? Reversed(range.suffix()) + (uint64_t{i} << 31) : Reversed(header.hash);
    if (position < page->begin || !range.Fits(header.hash)) continue;
    found[kept++] = {found[i].slot, position, static_cast<uint32_t>(bytes)};
  }
  found.resize(kept);
  co_return Step::kOk;
}

// Keeps the first ones, as many as the call returns, and finds the first position that was not looked at: after the
// last hash, or where the next table begins. After the last table, that is 0.
void Scanner::Cut(const Operation& op, Page* page) {
  std::vector<Found>& found = page->found;
  std::ranges::sort(found, {}, &Found::position);
  size_t count = 0;
  uint64_t bytes = 0;
  for (; count < found.size(); bytes += found[count++].bytes) {
    const bool full = count >= page->options.count || bytes >= page->options.max_bytes;
    const bool equal = count > 0 && found[count].position == found[count - 1].position;
    if (count > 0 && full && (!equal || Mutated(Mutation::kKeyScanSplitsEquals))) break;
  }
  page->end = 0;
  if (count < found.size()) {
    page->end = found[count - 1].position + 1;
  } else if (page->depth > 0) {
    page->end = Reversed(op.hash.Suffix(page->depth)) + (uint64_t{1} << (64 - page->depth));
  }
  found.resize(count);
}

Step Scanner::Torn(Operation& op, Page* page, Slot slot) {
  ++common_.stats.checksum_retries;
  op.torn = true;
  page->torn = slot.block();
  return Step::kRestart;
}

// [Scan 5]
Task<Step> Scanner::ReadRecords(Operation& op, Page* page, std::vector<ScanRecord>* records) {
  LargeBuffer& buffer = op.large_read;
  uint64_t bytes = 0;
  for (const Found& found : page->found) bytes += found.bytes;
  if (!buffer.Grow(common_.node, bytes)) co_return Step::kFull;
  std::byte* to = buffer.memory.get();
  for (size_t i = 0; i < page->found.size();) {
    for (const size_t end = std::min(page->found.size(), i + kBlocksAtOnce); i < end; ++i) {
      op.batch.Read(page->found[i].slot.block(), to, page->found[i].bytes, buffer.region->lkey());
      to += page->found[i].bytes;
    }
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  }
  const std::byte* from = buffer.memory.get();
  size_t first_equal = 0;  // of the records that have the same hash as the one before
  for (size_t i = 0; i < page->found.size(); from += page->found[i++].bytes) {
    const BlockView block(from);
    if (i > 0 && page->found[i].position != page->found[i - 1].position) first_equal = records->size();
    // Without the value the checksum says nothing, but the hash does.
    const uint64_t length =
        page->options.values ? block.bytes() : BlockBytes(block.header().key_bytes, 0, block.expires());
    const bool fits = length <= page->found[i].bytes;
    const bool intact = page->options.values ? block.Intact(page->found[i].bytes)
                                             : fits && common_.shape.hasher(block.key()).h1 == block.header().hash;
    if (!intact && !(fits && Mutated(Mutation::kNoChecksum))) {
      co_return Torn(op, page, page->found[i].slot);
    }
    // A key that was deleted and inserted again while the table was read may be in two slots.
    const auto equals = std::span(*records).subspan(first_equal);
    if (std::ranges::find(equals, block.key(), &ScanRecord::key) != equals.end()) continue;
    records->push_back(
        {std::string(block.key()), std::string(page->options.values ? block.value() : ""), block.expires_at_ms()});
  }
  co_return Step::kOk;
}

// [Expire 1] Removes the values that have expired, all at once. A key that has got another one meanwhile keeps its
// record.
Task<Status> Scanner::RemoveExpired(const ScanOptions& options, std::vector<ScanRecord>* records) {
  std::vector<std::pair<ScanRecord*, Task<Status>>> removals;
  for (ScanRecord& record : *records) {
    if (!HasExpired(record.expires_at_ms, common_.clock)) continue;
    removals.emplace_back(&record, writer_.ReadExpired(record.key, &record.value, &record.expires_at_ms));
    removals.back().second.Start();
  }
  Status failed;
  for (auto& [record, task] : removals) {
    const Status status = co_await std::move(task).Join();
    if (status == StatusCode::kNotFound) {
      record->key.clear();
    } else if (!status.ok()) {
      failed = status;
    } else if (!options.values) {
      record->value.clear();
    }
  }
  std::erase_if(*records, [](const ScanRecord& record) { return record.key.empty(); });
  co_return failed;
}

}  // namespace kvs
