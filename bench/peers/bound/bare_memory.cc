#include "bench/peers/bound/bare_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "bench/peers/map_at_once.h"
#include "krcore/base/os.h"
#include "kvs/layout/block.h"

namespace peers {
namespace {

using krcore::Result;
using krcore::Status;
using kvs::BucketHeader;
using kvs::DirectoryEntry;
using kvs::DirectoryState;
using kvs::Slot;

constexpr double kUnsafeLoad = 0.75;
constexpr size_t kAlignment = krcore::kHugePageBytes;

}  // namespace

Result<std::unique_ptr<BareMemory>> BareMemory::Create(const Shape& shape, bool safe) {
  const uint64_t records = shape.most_records() + 1024;
  kvs::SubtableGeometry geometry;
  if (!safe) {
    const auto groups = static_cast<uint64_t>(static_cast<double>(records) / kUnsafeLoad) /
                        (kvs::kBucketsPerGroup * kvs::kSlotsPerBucket);
    geometry.groups = static_cast<uint32_t>(std::max<uint64_t>(groups, 2));
  }
  // Three quarters more blocks, for those that are being replaced: more workers than cores make epochs long.
  const uint64_t blocks = records * kvs::BlockBytes(shape.key_bytes, shape.value_bytes, false) * 7 / 4;
  const uint64_t tables = safe ? records * 24 : geometry.bytes();
  const size_t bytes = (kDirectoryOffset + kDirectoryBytes + blocks + tables + 64 * kChunkBytes + kAlignment - 1) /
                       kAlignment * kAlignment;
  const int file = memfd_create("bare-bound", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    const Status failed = Status::FromErrno(errno, "memory for the bare bound");
    if (file >= 0) close(file);
    return failed;
  }
  auto mapping = MapAtOnce(file, bytes);
  close(file);
  if (!mapping.ok()) return mapping.status();
  return std::unique_ptr<BareMemory>(new BareMemory(*std::move(mapping), safe, geometry));
}

BareMemory::BareMemory(std::shared_ptr<krcore::rnic::sw::Mapping> mapping, bool safe, kvs::SubtableGeometry geometry)
    : mapping_(std::move(mapping)),
      base_(mapping_->addr()),
      bytes_(mapping_->length()),
      safe_(safe),
      geometry_(geometry) {
  header().epoch = 1;
  header().next_free = (kDirectoryOffset + kDirectoryBytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  if (safe) {
    Accesses ignored;
    table_ = TakeTable(&ignored);
  } else {
    table_ = header().next_free.fetch_add((geometry.bytes() + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
  }
  kvs::FormatSubtable({At(table_), geometry.bytes()}, geometry, BucketHeader(0, 0, 0), Slot::Fresh());
  Word(DirectoryOffset(0)) = DirectoryEntry::Make({kNode, table_}, 0, DirectoryState::kNormal, 0).word();
}

uint64_t BareMemory::TakeChunk() {
  const uint64_t chunk = header().next_free.fetch_add(kChunkBytes);
  if (chunk + kChunkBytes <= bytes_) return chunk;
  std::fprintf(stderr, "the bare bound's memory is too small: %zu bytes\n", bytes_);
  std::abort();
}

uint64_t BareMemory::TakeTable(Accesses* accesses) {
  for (;;) {
    ++accesses->reads;
    uint64_t seen = header().next_table.load();
    const bool full = seen == 0 || seen % kChunkBytes + geometry_.bytes() > kChunkBytes;
    const uint64_t table = full ? TakeChunk() : seen;
    ++accesses->atomics;
    if (header().next_table.compare_exchange_strong(seen, table + geometry_.bytes())) return table;
  }
}

std::atomic<uint64_t>* BareMemory::Register() {
  for (Line& line : header().announced) {
    uint64_t unused = 0;
    if (line.word.compare_exchange_strong(unused, header().epoch.load())) return &line.word;
  }
  std::fprintf(stderr, "the bare bound has room for %zu sessions\n", kMaxSessions);
  std::abort();
}

void BareMemory::Unregister(std::atomic<uint64_t>* announcement) { announcement->store(0); }

void BareMemory::Round(std::atomic<uint64_t>* announcement, BareBlocks* blocks) {
  uint64_t epoch = header().epoch.load();
  for (const uint64_t block : blocks->unstamped) blocks->stamped.emplace_back(epoch, block);
  blocks->unstamped.clear();
  announcement->store(epoch, std::memory_order_release);
  uint64_t oldest = epoch;
  for (const Line& line : header().announced) {
    const uint64_t announced = line.word.load(std::memory_order_acquire);
    if (announced != 0) oldest = std::min(oldest, announced);
  }
  size_t& first = blocks->first_stamped;
  for (; first < blocks->stamped.size() && blocks->stamped[first].first < oldest; ++first) {
    blocks->free.push_back(blocks->stamped[first].second);
  }
  if (first == blocks->stamped.size()) {
    blocks->stamped.clear();
    first = 0;
  } else if (first > blocks->stamped.size() / 2) {
    blocks->stamped.erase(blocks->stamped.begin(), blocks->stamped.begin() + static_cast<ptrdiff_t>(first));
    first = 0;
  }
  if (oldest == epoch) header().epoch.compare_exchange_strong(epoch, epoch + 1);
}

BareBlocks BareMemory::TakeBlocks() {
  const std::lock_guard lock(mutex_);
  if (left_.empty()) return {};
  BareBlocks blocks = std::move(left_.back());
  left_.pop_back();
  return blocks;
}

void BareMemory::GiveBlocks(BareBlocks blocks) {
  const std::lock_guard lock(mutex_);
  left_.push_back(std::move(blocks));
}

}  // namespace peers
