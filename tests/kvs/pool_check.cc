#include "tests/kvs/pool_check.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kvs/client.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"

namespace surgekv_test {
namespace {

using kvs::BucketHeader;
using kvs::DirectoryEntry;
using kvs::DirectoryState;
using kvs::GlobalAddress;
using kvs::Slot;
using kvs::SlotState;

std::string Name(GlobalAddress address) { return std::to_string(address.node) + ":" + std::to_string(address.offset); }

std::string Hex(uint64_t word) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  return text;
}

// Formats a key as text for a report.
std::string Quote(std::string_view key) {
  std::string text = "\"";
  for (const char c : key.substr(0, 40)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (key.size() > 40 ? "\"..." : "\"");
}

class Checker {
 public:
  Checker(std::span<const PoolImage> pools, const PoolCheckOptions& options) : pools_(pools), options_(options) {}

  PoolReport Run() {
    CheckSuperblocks();
    if (home_ == nullptr) return std::move(report_);
    CheckDirectory();
    for (const Table& table : tables_) CheckTable(table);
    for (const PoolCheckOptions::Known& known : options_.known) {
      if (InChunks(known.address, known.bytes, "a client's extent", known.table)) {
        Occupy(known.address, known.bytes, "a client's extent", false);
      }
    }
    CheckExtents();
    const auto home_area = Load<kvs::HomeArea>(home_->bytes, kvs::kHomeAreaOffset);
    for (const kvs::ClientEntry& client : home_area.clients) {
      report_.clients += kvs::OwnerWord(client.owner).held();
    }
    const auto used = [](uint64_t word) { return word != 0; };
    const bool mirrored = Load<kvs::Superblock>(home_->bytes, 0).pool != 0;
    if (expiring_ && home_area.counters.expiring == 0) Problem("values that expire, and the home does not say so");
    if (std::ranges::any_of(home_area.reserved, used) ||
        (!mirrored && (home_area.configuration != 0 || std::ranges::any_of(home_area.acknowledged, used)))) {
      Problem("the home area: what is reserved is in use");
    }
    if (unsaid_ > 0) report_.problems.push_back("... and " + std::to_string(unsaid_) + " more");
    return std::move(report_);
  }

 private:
  struct Table {
    uint32_t index = 0;
    DirectoryEntry entry;
    std::optional<uint32_t> child;  // the entry that its unfinished split made
    // The depth that keys and headers must fit. A parent counts with its depth after the split, once there is a child.
    uint32_t depth = 0;
    bool closing = false;  // a merge has taken it out of use: FRZ counts as VAL does
  };
  struct Taken {
    GlobalAddress address;
    uint64_t bytes = 0;
    std::string what;
    bool shared = false;  // a block that a frozen slot names too
  };

  template <typename... Parts>
  void Problem(const Parts&... parts) {
    if (report_.problems.size() >= options_.max_problems) {
      ++unsaid_;
      return;
    }
    std::string text;
    (text.append(parts), ...);
    report_.problems.push_back(std::move(text));
  }

  void Left(Leftover::Kind kind, uint64_t lock, std::string what, std::string key = {}, std::string value = {}) {
    if (!options_.after_deaths) Problem(what);
    report_.leftovers.push_back({kind, lock, std::move(key), std::move(value), std::move(what)});
  }

  template <typename T>
  static T Load(std::span<const std::byte> bytes, uint64_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof(value));
    return value;
  }

  const PoolImage* PoolOf(krcore::NodeId node) const {
    for (const PoolImage& pool : pools_) {
      if (pool.node == node) return &pool;
    }
    return nullptr;
  }

  // ---- superblocks and chunks

  void CheckSuperblocks() {
    for (const PoolImage& pool : pools_) {
      const std::string name = "pool of node " + std::to_string(pool.node);
      if (pool.bytes.size() < kvs::kChunkTableOffset) {
        Problem(name, ": too small");
        continue;
      }
      const auto super = Load<kvs::Superblock>(pool.bytes, 0);
      const krcore::NodeId id = super.pool != 0 ? super.pool : super.node;
      if (!kvs::CheckPool(pool.bytes, super.node).ok() || id != pool.node || super.replicas != 0 ||
          std::ranges::any_of(super.reserved, [](uint32_t word) { return word != 0; }) || super.chunk_bytes == 0 ||
          super.chunks != pool.bytes.size() / super.chunk_bytes ||
          super.reserved_chunks != kvs::ReservedChunks(super.pool_bytes, super.chunk_bytes)) {
        Problem(name, ": its superblock is damaged");
        continue;
      }
      if (chunk_bytes_ != 0 && chunk_bytes_ != super.chunk_bytes) Problem(name, ": chunks of another size");
      chunk_bytes_ = super.chunk_bytes;
      report_.chunks += super.chunks - super.reserved_chunks;
      uint64_t rest = 0;  // chunks left of a run
      for (uint64_t chunk = 0; chunk < super.chunks; ++chunk) {
        const kvs::ChunkWord word = ChunkAt(pool, chunk);
        const bool reserved = word.kind() == kvs::ChunkKind::kReserved;
        if (reserved != (chunk < super.reserved_chunks)) Problem(name, ": wrongly reserved chunks");
        if (!reserved && word.kind() != kvs::ChunkKind::kFree) ++report_.chunks_taken;
        if (word.kind() == kvs::ChunkKind::kRunRest && rest == 0) Problem(name, ": the rest of a run without its head");
        rest = word.kind() == kvs::ChunkKind::kRun       ? word.count() - 1
               : word.kind() == kvs::ChunkKind::kRunRest ? std::max<uint64_t>(rest, 1) - 1
                                                         : 0;
      }
      if (super.is_home == 0) continue;
      if (home_ != nullptr) Problem(name, ": a second home");
      home_ = &pool;
      geometry_.groups = super.groups_per_subtable;
      hasher_ = kvs::Hasher(super.hash_seed);
      if (geometry_.groups < 2 || geometry_.bytes() > chunk_bytes_) {
        Problem(name, ": no subtable has ", std::to_string(geometry_.groups), " groups");
        home_ = nullptr;
        return;
      }
    }
    if (home_ == nullptr) {
      Problem("no pool is the store's home");
      return;
    }
    for (krcore::NodeId node = 1; node <= krcore::kMaxMemoryNode; ++node) {
      const auto member = Load<kvs::MemberWord>(
          home_->bytes, kvs::kHomeAreaOffset + offsetof(kvs::HomeArea, members) + node * sizeof(kvs::MemberWord));
      if (member.state() == kvs::MemberState::kNone) continue;
      const PoolImage* const pool = PoolOf(node);
      if (member.state() != kvs::MemberState::kDrained) {
        if (pool == nullptr) Problem("member ", std::to_string(node), " has no pool");
        continue;
      }
      for (uint64_t chunk = 0; pool != nullptr && chunk < pool->bytes.size() / chunk_bytes_; ++chunk) {
        const kvs::ChunkKind kind = ChunkAt(*pool, chunk).kind();
        if (kind == kvs::ChunkKind::kFree || kind == kvs::ChunkKind::kReserved) continue;
        Problem("member ", std::to_string(node), " is drained, and its chunk ", std::to_string(chunk), " is taken");
      }
    }
  }

  static kvs::ChunkWord ChunkAt(const PoolImage& pool, uint64_t chunk) {
    return Load<kvs::ChunkWord>(pool.bytes, kvs::ChunkWordOffset(chunk));
  }

  // Returns whether [address, address + bytes) lies in chunks that were taken for the right use.
  bool InChunks(GlobalAddress address, uint64_t bytes, const std::string& what, bool table) {
    const PoolImage* pool = PoolOf(address.node);
    if (pool == nullptr) {
      Problem(what, " at ", Name(address), ": there is no such memory node");
      return false;
    }
    const uint64_t chunks = pool->bytes.size() / chunk_bytes_;
    const uint64_t first = address.offset / chunk_bytes_, last = (address.offset + bytes - 1) / chunk_bytes_;
    if (first < kvs::ReservedChunks(pool->bytes.size(), chunk_bytes_) || last >= chunks) {
      Problem(what, " at ", Name(address), ": outside of the chunks");
      return false;
    }
    for (uint64_t chunk = first; chunk <= last; ++chunk) {
      const kvs::ChunkKind kind = ChunkAt(*pool, chunk).kind();
      const kvs::ChunkKind head = ChunkAt(*pool, first).kind();
      const bool right = table ? kind == kvs::ChunkKind::kTables
                               : kind == kvs::ChunkKind::kBlocks ||
                                     (head == kvs::ChunkKind::kRun && address.offset % chunk_bytes_ == 0 &&
                                      kind == (chunk == first ? kvs::ChunkKind::kRun : kvs::ChunkKind::kRunRest));
      if (right && (first == last || head == kvs::ChunkKind::kRun)) {
        const uint64_t cut = ChunkAt(*pool, chunk).cut_bytes(chunk_bytes_);
        if (kind != kvs::ChunkKind::kBlocks || address.offset % chunk_bytes_ + bytes <= cut) continue;
        Problem(what, " at ", Name(address), ": in what nobody has cut yet of chunk ", std::to_string(chunk));
        return false;
      }
      Problem(what, " at ", Name(address), ": in chunk ", std::to_string(chunk), ", which is ",
              kind == kvs::ChunkKind::kFree ? "free" : "of another kind");
      return false;
    }
    return true;
  }

  void Occupy(GlobalAddress address, uint64_t bytes, std::string what, bool shared) {
    taken_.push_back({address, bytes, std::move(what), shared});
  }

  void CheckExtents() {
    std::sort(taken_.begin(), taken_.end(), [](const Taken& a, const Taken& b) {
      return std::tie(a.address.node, a.address.offset) < std::tie(b.address.node, b.address.offset);
    });
    uint64_t used = 0, end = 0;
    for (size_t i = 0; i < taken_.size(); ++i) {
      const Taken& now = taken_[i];
      if (i == 0 || taken_[i - 1].address.node != now.address.node) end = 0;
      if (now.address.offset < end) {
        const Taken& before = taken_[i - 1];
        // A frozen slot and the child's slot name the same block, before the frozen one is cleared.
        const bool frozen_twin = (now.shared || before.shared) && now.address == before.address;
        if (!frozen_twin) Problem(now.what, " at ", Name(now.address), " overlaps ", before.what);
      }
      const uint64_t now_end = now.address.offset + now.bytes;
      used += now_end > end ? now_end - std::max(end, now.address.offset) : 0;
      end = std::max(end, now_end);
    }
    report_.leaked_bytes = report_.chunks_taken * chunk_bytes_ - std::min(used, report_.chunks_taken * chunk_bytes_);
  }

  // ---- the directory

  DirectoryEntry EntryAt(uint32_t index) const {
    return DirectoryEntry(Load<uint64_t>(home_->bytes, kvs::kDirectoryOffset + uint64_t{index} * sizeof(uint64_t)));
  }

  void CheckDirectory() {
    std::map<uint32_t, size_t> place;  // index -> in tables_
    for (uint32_t i = 0; i < uint32_t{1} << kvs::kMaxDepth; ++i) {
      DirectoryEntry entry = EntryAt(i);
      if (!entry.present()) continue;
      bool closing = false;
      if (entry.merging() && !TableInMerge(i, &entry, &closing)) continue;
      const std::string name = "dir[" + std::to_string(i) + "]";
      const uint32_t depth = entry.depth();
      if (depth > kvs::kMaxDepth || i >= uint64_t{1} << depth) {
        Problem(name, ": depth ", std::to_string(depth), " does not suit it");
        continue;
      }
      if (i != 0 && !EntryAt(kvs::ParentIndex(i)).present()) Problem(name, ": its parent is absent");
      report_.entries_splitting += entry.splitting();
      if (!InChunks(entry.subtable(), geometry_.bytes(), name, true)) continue;
      if (entry.splitting()) Left(Leftover::Kind::kSplit, LockOf(entry.subtable()), name + ": a split at rest");
      if (entry.subtable().offset % kvs::kBucketBytes != 0) Problem(name, ": a subtable that is not aligned");
      place[i] = tables_.size();
      tables_.push_back({i, entry, {}, depth, closing});
      Occupy(entry.subtable(), geometry_.bytes(), name, false);
      report_.global_depth = std::max(report_.global_depth, depth);
    }
    if (!place.contains(0)) Problem("dir[0]: absent");
    // Splits under way. The parent is SPLITTING and its depth is not yet that of the child, which is absent, MIGRATING,
    // or already NORMAL.
    for (Table& table : tables_) {
      if (table.index == 0) continue;
      const auto parent = place.find(kvs::ParentIndex(table.index));
      if (parent == place.end()) continue;
      Table& from = tables_[parent->second];
      const bool migrating = table.entry.state() == DirectoryState::kMigrating;
      const bool shallow = from.entry.depth() < kvs::BirthDepth(table.index);
      if (!migrating && !shallow) continue;
      const std::string name = "dir[" + std::to_string(table.index) + "]";
      Left(Leftover::Kind::kSplit, LockOf(from.entry.subtable()), name + ": a split at rest");
      if (!from.entry.splitting()) Problem(name, ": born of a table that is not splitting");
      if (from.entry.depth() + 1 != kvs::BirthDepth(table.index) || from.child) {
        Problem(name, ": born at depth ", std::to_string(kvs::BirthDepth(table.index)), " of a table of depth ",
                std::to_string(from.entry.depth()), from.child ? " that splits twice" : "");
        continue;
      }
      if (migrating && table.entry.depth() != kvs::BirthDepth(table.index))
        Problem(name, ": deeper than its unfinished birth");
      from.child = table.index;
      from.depth = from.entry.depth() + 1;
    }
    CheckCoverage();
  }

  // dir[index] is in a merge. Sets *entry to the table that its keys are in. Returns false if they are in no table of
  // its own, because its sibling's has them by now.
  bool TableInMerge(uint32_t index, DirectoryEntry* entry, bool* closing) {
    const std::string name = "dir[" + std::to_string(index) + "]";
    ++report_.entries_merging;
    Left(Leftover::Kind::kMerge, 0, name + ": a merge at rest");
    const GlobalAddress at = entry->merge_record();
    if (!InChunks(at, sizeof(kvs::MergeRecord), name + "'s merge record", false)) return false;
    const auto record = Load<kvs::MergeRecord>(PoolOf(at.node)->bytes, at.offset);
    const bool is_parent = index == record.parent_index;
    if ((!is_parent && index != record.child_index) || record.child_index >= uint32_t{1} << kvs::kMaxDepth ||
        record.parent_index != kvs::ParentIndex(record.child_index) ||
        record.status > static_cast<uint64_t>(kvs::MergeStatus::kReplace) ||
        *entry != (is_parent ? record.parent_engaged(at) : record.child_engaged(at))) {
      Problem(name, ": its merge record is that of something else");
      return false;
    }
    const GlobalAddress parent = record.parent().subtable();
    if (InChunks(parent, geometry_.bytes(), name + "'s parent", true)) report_.leftovers.back().lock = LockOf(parent);
    if (is_parent || EntryAt(record.parent_index) != record.parent_engaged(at)) {
      Occupy(at, sizeof(kvs::MergeRecord), name + "'s merge record", false);
    }
    const bool joined = EntryAt(record.parent_index) != record.parent_engaged(at);
    if (!is_parent && joined && record.state() == kvs::MergeStatus::kJoin) return false;
    *closing = record.state() != kvs::MergeStatus::kUndecided && record.state() != kvs::MergeStatus::kAbandoned;
    *entry = is_parent ? record.parent() : record.child();
    return true;
  }

  void CheckCoverage() {
    std::vector<uint8_t> covered(size_t{1} << kvs::kMaxDepth);
    for (const Table& table : tables_) {
      for (size_t s = table.index; s < covered.size(); s += size_t{1} << table.depth) ++covered[s];
    }
    for (const uint8_t wrong : {0, 2}) {
      size_t count = 0, first = 0;
      for (size_t s = covered.size(); s-- > 0;) {
        if (wrong == 0 ? covered[s] != 0 : covered[s] < 2) continue;
        ++count;
        first = s;
      }
      if (count > 0) {
        Problem("directory: suffix ", std::to_string(first),
                wrong == 0 ? " is covered by no table" : " is covered twice", " (", std::to_string(count),
                " of that kind)");
      }
    }
  }

  // ---- tables

  uint64_t LockOf(GlobalAddress table) const {
    return Load<kvs::SubtableHeader>(PoolOf(table.node)->bytes, table.offset).lock;
  }

  std::span<const std::byte> Image(const Table& table) const {
    const GlobalAddress address = table.entry.subtable();
    return PoolOf(address.node)->bytes.subspan(address.offset, geometry_.bytes());
  }

  void CheckTable(const Table& table) {
    const std::string name = "table " + std::to_string(table.index);
    const std::span<const std::byte> image = Image(table);
    ++report_.subtables;
    report_.table_bytes += geometry_.bytes();
    report_.slots += geometry_.slots();
    if (const uint64_t lock = LockOf(table.entry.subtable()); lock != 0) {
      Left(Leftover::Kind::kLock, lock, name + ": locked at rest");
    }
    for (uint32_t b = 0; b < geometry_.buckets(); ++b) {
      const BucketHeader header(Load<uint64_t>(image, kvs::BucketOffset(b)));
      // A split under way may or may not have moved it. It has moved all before there is a child.
      const bool depth_fits = header.depth() == table.depth ||
                              (table.entry.splitting() && !table.child && header.depth() == table.depth + 1);
      if ((depth_fits || (table.closing && header.closed())) && header.suffix() == table.index) continue;
      Problem(name, ": bucket ", std::to_string(b), " has depth ", std::to_string(header.depth()), " and suffix ",
              std::to_string(header.suffix()), ", not ", std::to_string(table.depth), " and ",
              std::to_string(table.index));
    }
    for (uint32_t s = 0; s < geometry_.slots(); ++s)
      CheckSlot(table, s, Slot(Load<uint64_t>(image, kvs::SlotOffset(s))));
  }

  void CheckSlot(const Table& table, uint32_t s, Slot slot) {
    if (slot.word() == Slot::Fresh().word()) return;
    const std::string name = "table " + std::to_string(table.index) + " slot " + std::to_string(s);
    switch (slot.state()) {
      case SlotState::kFree:
        if (slot.fingerprint() != 0) Problem(name, ": FREE with a fingerprint: ", Hex(slot.word()));
        return;
      case SlotState::kIns: ++report_.tentative_slots; break;
      case SlotState::kFrz:
        ++report_.frozen_slots;
        if (!table.entry.splitting() && !table.closing) Problem(name, ": FRZ in a table that is not splitting");
        break;
      case SlotState::kVal: break;
      default: Problem(name, ": no such state: ", Hex(slot.word())); return;
    }
    CheckBlock(table, s, slot, name);
  }

  void CheckBlock(const Table& table, uint32_t s, Slot slot, const std::string& name) {
    const GlobalAddress address = slot.block();
    uint64_t bytes = kvs::FirstReadBytes(slot);
    if (bytes < sizeof(kvs::BlockHeader)) {
      Problem(name, ": a block of ", std::to_string(bytes), " bytes");
      return;
    }
    if (!InChunks(address, bytes, name + "'s block", false)) return;
    const std::span<const std::byte> pool = PoolOf(address.node)->bytes;
    const kvs::BlockView block(pool.data() + address.offset);
    if (slot.length_units() == kvs::kLargeBlock) {
      bytes = block.bytes();
      if (bytes > kvs::BlockBytes(kvs::kMaxKeyBytes, kvs::kMaxValueBytes, true) ||
          !InChunks(address, bytes, name + "'s large block", false)) {
        Problem(name, ": its large block has an impossible length");
        return;
      }
    }
    if (!block.Intact(bytes)) {
      Problem(name, ": its block at ", Name(address), " is not intact");
      return;
    }
    const std::string key(block.key());
    const std::string what = name + " with " + Quote(key);
    if (kvs::LengthUnits(block.bytes()) != slot.length_units()) Problem(what, ": another length than its block's");
    const kvs::KeyHash hash = hasher_(key);
    if (block.header().hash != hash.h1) Problem(what, ": the block holds another hash");
    if (slot.fingerprint() != hash.fingerprint()) Problem(what, ": another fingerprint than its key's");
    const kvs::KeyPlaces places = kvs::PlacesOf(hash, geometry_.groups);
    const uint32_t bucket = s / kvs::kSlotsPerBucket;
    const bool in_place = std::any_of(std::begin(places.place), std::end(places.place), [&](const auto& place) {
      return bucket == kvs::FirstBucket(place) || bucket == kvs::FirstBucket(place) + 1;
    });
    if (!in_place) Problem(what, ": in a bucket where nobody looks for it");

    const bool moves = table.entry.splitting() && (hash.h1 >> table.entry.depth() & 1) != 0;
    // A client that died before it read the headers after its INS may have left the INS in a table that the key had
    // moved out of.
    if (!moves && slot.state() != SlotState::kIns && hash.Suffix(table.depth) != table.index) {
      Problem(what, ": belongs to suffix ", std::to_string(hash.Suffix(table.depth)));
    }
    Occupy(address, kvs::RoundBlockBytes(bytes, chunk_bytes_), what, slot.state() == SlotState::kFrz);
    if (slot.state() == SlotState::kIns) {
      Left(Leftover::Kind::kTentative, 0, what + ": INS at rest", key, std::string(block.value()));
      return;
    }
    bool authoritative = true;
    if (!table.closing && (moves || slot.state() == SlotState::kFrz)) {
      // A slot that will leave, or has left, counts only while there is no child.
      if (!moves) Problem(what, ": FRZ though it stays");
      authoritative = !table.child;
      if (!authoritative && slot.state() == SlotState::kVal) {
        Problem(what, ": VAL in the parent though the child is published");
      }
    }
    if (!authoritative) return;
    ++report_.live_blocks;
    expiring_ |= block.expires();
    report_.live_bytes += kvs::RoundBlockBytes(bytes, chunk_bytes_);
    const auto [known, fresh] = place_of_.try_emplace(key, name);
    if (!fresh) Problem(what, ": the key is in ", known->second, " too");
    report_.contents[key] = std::string(block.value());
  }

  std::span<const PoolImage> pools_;
  const PoolCheckOptions& options_;
  const PoolImage* home_ = nullptr;
  bool expiring_ = false;
  kvs::SubtableGeometry geometry_;
  kvs::Hasher hasher_{{}};
  uint64_t chunk_bytes_ = 0;
  std::vector<Table> tables_;
  std::vector<Taken> taken_;
  std::map<std::string, std::string> place_of_;  // key -> its slot, as text
  size_t unsaid_ = 0;
  PoolReport report_;
};

}  // namespace

std::string PoolReport::ToString() const {
  std::string text;
  for (const std::string& problem : problems) text += problem + "\n";
  text += std::to_string(subtables) + " subtables of " + std::to_string(table_bytes) + " bytes (depth " +
          std::to_string(global_depth) + "; " + std::to_string(entries_splitting) + " splitting, " +
          std::to_string(entries_merging) + " merging), " + std::to_string(live_blocks) + " live blocks of " +
          std::to_string(live_bytes) + " bytes in " + std::to_string(slots) + " slots, " +
          std::to_string(chunks_taken) + " of " + std::to_string(chunks) + " chunks taken, " +
          std::to_string(leaked_bytes) + " bytes neither live nor known\n";
  return text;
}

PoolReport CheckPools(std::span<const PoolImage> pools, const PoolCheckOptions& options) {
  return Checker(pools, options).Run();
}

}  // namespace surgekv_test
