// The checker of a store at rest finds nothing wrong with a sound store, and finds every kind of planted damage.
#include "tests/kvs/pool_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::BucketHeader;
using kvs::DirectoryEntry;
using kvs::DirectoryState;
using kvs::Slot;
using kvs::SlotState;

constexpr kvs::SubtableGeometry kGeometry{2};

class PoolCheck : public ::testing::Test {
 protected:
  // A store that has grown to many tables, copied once; each test damages its own copy.
  static void SetUpTestSuite() {
    TestStoreOptions options;
    options.memory_bytes = size_t{8} << 20;
    TestStore store(options);
    {
      auto client = store.NewClient();
      for (int i = 0; i < 600; ++i) {
        const std::string key = "key-" + std::to_string(i);
        const std::string value(i % 50 == 0 ? 6'000 : i % 90, static_cast<char>('a' + i % 26));
        ASSERT_TRUE(client->Put(key, value).ok());
        stored_values[key] = value;
      }
      for (int i = 0; i < 600; i += 3) {
        const std::string key = "key-" + std::to_string(i);
        ASSERT_TRUE(client->Delete(key).ok());
        stored_values.erase(key);
      }
    }
    sound_memory.assign(store.memory().begin(), store.memory().end());
  }
  static void TearDownTestSuite() {
    sound_memory.clear();
    sound_memory.shrink_to_fit();
    stored_values.clear();
  }

  void SetUp() override { memory_ = sound_memory; }

  PoolReport Check(const PoolCheckOptions& options = {}) const {
    const PoolImage image{1, memory_};
    return CheckPools({&image, 1}, options);
  }
  void ExpectProblem(const std::string& text, PoolCheckOptions options = {}) const {
    options.max_problems = SIZE_MAX;
    const PoolReport report = Check(options);
    bool found = false;
    for (const std::string& problem : report.problems) found |= problem.find(text) != std::string::npos;
    EXPECT_TRUE(found) << "expected \"" << text << "\" among:\n" << report.ToString();
  }

  uint64_t& Word(uint64_t offset) { return *reinterpret_cast<uint64_t*>(memory_.data() + offset); }
  uint64_t& Entry(uint32_t index) { return Word(kvs::kDirectoryOffset + index * 8); }
  uint64_t& SlotWord(uint32_t index, uint32_t slot) {
    return Word(DirectoryEntry(Entry(index)).subtable().offset + kvs::SlotOffset(slot));
  }
  uint64_t& HeaderWord(uint32_t index, uint32_t bucket) {
    return Word(DirectoryEntry(Entry(index)).subtable().offset + kvs::BucketOffset(bucket));
  }
  kvs::SubtableHeader& TableHeader(uint32_t index) {
    return *reinterpret_cast<kvs::SubtableHeader*>(memory_.data() + DirectoryEntry(Entry(index)).subtable().offset);
  }
  kvs::Superblock& Super() { return *reinterpret_cast<kvs::Superblock*>(memory_.data()); }

  // The first slot in a given state, in a table that `suits`.
  struct Place {
    uint32_t index = 0, slot = 0;
  };
  Place Find(SlotState state, const std::function<bool(Place, Slot)>& suits = {}) {
    for (uint32_t i = 0; i < uint32_t{1} << kvs::kMaxDepth; ++i) {
      if (!DirectoryEntry(Entry(i)).present()) continue;
      for (uint32_t s = 0; s < kGeometry.slots(); ++s) {
        const Slot slot(SlotWord(i, s));
        if (slot.state() == state && (!suits || suits({i, s}, slot))) return {i, s};
      }
    }
    ADD_FAILURE() << "no such slot";
    return {};
  }
  uint64_t& ValWord() {
    const Place place = Find(SlotState::kVal, [](Place, Slot slot) { return slot.length_units() != 0; });
    return SlotWord(place.index, place.slot);
  }
  // Returns a table that was split off and has not split since, so that its depth and its parent's are those of its
  // birth.
  uint32_t YoungestChild() {
    for (uint32_t i = uint32_t{1} << kvs::kMaxDepth; --i > 0;) {
      const DirectoryEntry entry(Entry(i));
      if (!entry.present() || entry.depth() != kvs::BirthDepth(i)) continue;
      if (DirectoryEntry(Entry(kvs::ParentIndex(i))).depth() == entry.depth()) return i;
    }
    ADD_FAILURE() << "no such table";
    return 0;
  }

  uint64_t FirstFreeChunk() {
    uint64_t chunk = Super().reserved_chunks;
    while (kvs::ChunkWord(Word(kvs::ChunkWordOffset(chunk))).kind() != kvs::ChunkKind::kFree) ++chunk;
    return chunk;
  }

  static std::vector<std::byte> sound_memory;
  static std::map<std::string, std::string> stored_values;
  std::vector<std::byte> memory_;
};
std::vector<std::byte> PoolCheck::sound_memory;
std::map<std::string, std::string> PoolCheck::stored_values;

TEST_F(PoolCheck, ASoundStoreHasNoProblemAndItsContentsAreThoseThatWereWritten) {
  const PoolReport report = Check();
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_TRUE(report.contents == stored_values);
  EXPECT_EQ(report.live_blocks, stored_values.size());
  EXPECT_GT(report.subtables, 8u);
  EXPECT_EQ(report.chunks_taken, FirstFreeChunk() - Super().reserved_chunks);
  EXPECT_EQ(report.clients, 0u);
  EXPECT_EQ(report.live_bytes + report.table_bytes + report.leaked_bytes,
            report.chunks_taken * kvs::kDefaultChunkBytes);
}

TEST_F(PoolCheck, MemoryThatAClientHoldsIsNoLeak) {
  const uint64_t leaked = Check().leaked_bytes;
  PoolCheckOptions options;
  // The end of the chunk that was cut last: it has no block yet.
  uint64_t chunk = FirstFreeChunk();
  while (kvs::ChunkWord(Word(kvs::ChunkWordOffset(chunk))).kind() != kvs::ChunkKind::kBlocks) --chunk;
  const uint64_t end = chunk * kvs::kDefaultChunkBytes +
                       kvs::ChunkWord(Word(kvs::ChunkWordOffset(chunk))).cut_bytes(kvs::kDefaultChunkBytes);
  options.known.push_back({{1, end - 512}, 512});
  const PoolReport report = Check(options);
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_EQ(report.leaked_bytes, leaked - 512);
}

TEST_F(PoolCheck, AClientsFreeExtentOverALiveBlockIsFound) {
  PoolCheckOptions options;
  options.known.push_back({Slot(ValWord()).block(), 16});
  ExpectProblem("overlaps", options);
}

TEST_F(PoolCheck, ASuperblockThatIsDamaged) {
  ++Super().chunks;
  ExpectProblem("superblock is damaged");
}

TEST_F(PoolCheck, ReservedFieldsThatAreInUse) {
  auto& home = *reinterpret_cast<kvs::HomeArea*>(&memory_[kvs::kHomeAreaOffset]);
  home.acknowledged[kvs::kMaxClients - 1] = 1;
  ExpectProblem("what is reserved is in use");
  home.acknowledged[kvs::kMaxClients - 1] = 0;
  EXPECT_TRUE(Check().ok());
  Super().replicas = 1;
  ExpectProblem("superblock is damaged");
}

TEST_F(PoolCheck, AStoreWithoutAHome) {
  Super().is_home = 0;
  ExpectProblem("no pool is the store's home");
}

TEST_F(PoolCheck, AMissingTable) {
  Entry(YoungestChild()) = 0;
  ExpectProblem("is covered by no table");
}

TEST_F(PoolCheck, AMissingRoot) {
  Entry(0) = 0;
  ExpectProblem("dir[0]: absent");
  ExpectProblem("its parent is absent");
}

TEST_F(PoolCheck, ASuffixThatTwoTablesCover) {
  const uint32_t child = YoungestChild(), parent = kvs::ParentIndex(child);
  const DirectoryEntry entry(Entry(parent));
  Entry(parent) = entry.Next(entry.depth() - 1, DirectoryState::kNormal).word();
  ExpectProblem("born of a table that is not splitting", {.after_deaths = true});
  Entry(parent) = entry.Next(entry.depth() - 1, DirectoryState::kSplitting).word();
  ExpectProblem("a split at rest");
  EXPECT_FALSE(Check({.after_deaths = true}).problems.size() > 0) << "the last step of a split may be missing then";
  memory_ = sound_memory;
  const uint32_t grandchild = child | 2u << entry.depth();  // as if a split in between had been skipped
  Entry(grandchild) = entry.Next(entry.depth() + 2, DirectoryState::kNormal).word();
  ExpectProblem("is covered twice", {.after_deaths = true});
}

TEST_F(PoolCheck, ADepthThatAnIndexCannotHave) {
  const uint32_t child = YoungestChild();
  Entry(child) = DirectoryEntry(Entry(child)).Next(1, DirectoryState::kNormal).word();
  ExpectProblem("does not suit it");
}

TEST_F(PoolCheck, AnUnfinishedSplitIsNoProblemOnlyAfterDeaths) {
  const uint32_t child = YoungestChild(), parent = kvs::ParentIndex(child);
  const DirectoryEntry entry(Entry(child)), from(Entry(parent));
  Entry(child) = entry.Next(entry.depth(), DirectoryState::kMigrating).word();
  Entry(parent) = from.Next(from.depth() - 1, DirectoryState::kSplitting).word();
  ExpectProblem("a split at rest");
  // A key that has moved, and is not cleared yet in the parent.
  uint32_t moved = 0;
  while (Slot(SlotWord(child, moved)).state() != SlotState::kVal || !Slot(SlotWord(parent, moved)).free()) ++moved;
  SlotWord(parent, moved) = Slot(SlotWord(child, moved)).WithState(SlotState::kFrz).word();
  const PoolReport report = Check({.after_deaths = true});
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_TRUE(report.contents == stored_values);
  // It was copied and not frozen.
  SlotWord(parent, moved) = Slot(SlotWord(parent, moved)).WithState(SlotState::kVal).word();
  ExpectProblem("VAL in the parent though the child is published", {.after_deaths = true});
}

TEST_F(PoolCheck, ASplitWithoutAChildIsNoProblemOnlyAfterDeaths) {
  const DirectoryEntry entry(Entry(YoungestChild()));
  Entry(YoungestChild()) = entry.Next(entry.depth(), DirectoryState::kSplitting).word();
  ExpectProblem("a split at rest");
  EXPECT_TRUE(Check({.after_deaths = true}).ok());
  // What is frozen counts as long as there is no child.
  const uint32_t child = YoungestChild();
  const Place moving = Find(SlotState::kVal, [&](Place place, Slot slot) {
    const kvs::BlockView block(memory_.data() + slot.block().offset);
    return place.index == child && (block.header().hash >> entry.depth() & 1) != 0;
  });
  uint64_t& word = SlotWord(child, moving.slot);
  word = Slot(word).WithState(SlotState::kFrz).word();
  const PoolReport report = Check({.after_deaths = true});
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_TRUE(report.contents == stored_values);
  EXPECT_EQ(report.frozen_slots, 1u);
}

TEST_F(PoolCheck, AStateThatADirectoryEntryHasNotAtRest) {
  const uint32_t child = YoungestChild();
  Entry(child) =
      DirectoryEntry(Entry(child)).Next(DirectoryEntry(Entry(child)).depth(), DirectoryState::kMerging).word();
  ExpectProblem("a merge at rest");
}

TEST_F(PoolCheck, AHeaderOfAnotherDepthOrSuffix) {
  const uint32_t child = YoungestChild();
  const BucketHeader header(HeaderWord(child, 1));
  HeaderWord(child, 1) = BucketHeader(header.depth() - 1, header.suffix(), 0).word();
  ExpectProblem("bucket 1 has depth");
  HeaderWord(child, 1) = BucketHeader(header.depth(), header.suffix() ^ 1, 0).word();
  ExpectProblem("bucket 1 has depth");
}

TEST_F(PoolCheck, ALockThatNobodyHolds) {
  TableHeader(0).lock = 7;
  ExpectProblem("locked at rest");
  const PoolReport report = Check({.after_deaths = true});
  EXPECT_TRUE(report.ok());
  ASSERT_EQ(report.leftovers.size(), 1u);
  EXPECT_EQ(report.leftovers[0].kind, Leftover::Kind::kLock);
  EXPECT_EQ(report.leftovers[0].lock, 7u);
}

TEST_F(PoolCheck, ATentativeSlotIsNoProblemOnlyAfterDeaths) {
  uint64_t& word = ValWord();
  word = Slot(word).WithState(SlotState::kIns).word();
  ExpectProblem("INS at rest");
  const PoolReport report = Check({.after_deaths = true});
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_EQ(report.tentative_slots, 1u);
  ASSERT_EQ(report.leftovers.size(), 1u);
  EXPECT_EQ(report.leftovers[0].kind, Leftover::Kind::kTentative);
  EXPECT_EQ(report.leftovers[0].value, stored_values.at(report.leftovers[0].key));
  EXPECT_EQ(report.contents.size(), stored_values.size() - 1);
}

TEST_F(PoolCheck, AFrozenSlotOutsideOfASplit) {
  uint64_t& word = ValWord();
  word = Slot(word).WithState(SlotState::kFrz).word();
  ExpectProblem("FRZ in a table that is not splitting", {.after_deaths = true});
}

TEST_F(PoolCheck, AFreeSlotWithAFingerprintAndAStateThatDoesNotExist) {
  const Place free = Find(SlotState::kFree);
  SlotWord(free.index, free.slot) = Slot::Free(~uint64_t{0}).word();
  EXPECT_TRUE(Check().ok());
  SlotWord(free.index, free.slot) = uint64_t{1} << 56;
  ExpectProblem("FREE with a fingerprint");
  SlotWord(free.index, free.slot) = uint64_t{7} << 3;
  ExpectProblem("no such state");
}

TEST_F(PoolCheck, ABlockThatIsTornOrInAFreeChunkOrOutsideOrNowhere) {
  const Slot slot(ValWord());
  memory_[slot.block().offset + 33] ^= std::byte{1};
  ExpectProblem("is not intact");
  memory_ = sound_memory;
  const auto at = [&](kvs::GlobalAddress address) {
    return Slot::Make(SlotState::kVal, slot.fingerprint(), slot.length_units(), address, 0).word();
  };
  ValWord() = at({1, FirstFreeChunk() * kvs::kDefaultChunkBytes});
  ExpectProblem("which is free");
  memory_ = sound_memory;
  ValWord() = at({1, FirstFreeChunk() * kvs::kDefaultChunkBytes - 4096});
  ExpectProblem("nobody has cut yet");
  memory_ = sound_memory;
  ValWord() = at({1, 4096});
  ExpectProblem("outside of the chunks");
  memory_ = sound_memory;
  ValWord() = at({2, slot.block().offset});
  ExpectProblem("there is no such memory node");
}

TEST_F(PoolCheck, ASlotWhoseFingerprintOrLengthIsNotItsBlocks) {
  uint64_t& word = ValWord();
  const uint64_t sound = word;
  word ^= uint64_t{1} << 60;
  ExpectProblem("another fingerprint");
  word = sound + (uint64_t{1} << 48);
  ExpectProblem("another length");
}

TEST_F(PoolCheck, ABlockThatHoldsAnotherHash) {
  const kvs::GlobalAddress block = Slot(ValWord()).block();
  const kvs::BlockView view(memory_.data() + block.offset);
  const std::string key(view.key()), value(view.value());
  kvs::BuildBlock(std::span(memory_).subspan(block.offset, view.bytes()), view.header().hash ^ 1 << 20, 1, key, value,
                  0);
  ExpectProblem("the block holds another hash");
}

TEST_F(PoolCheck, AKeyInAWrongBucketOrTable) {
  const Place from = Find(SlotState::kVal);
  // A slot of a main bucket; no key that lives here visits the bucket's neighbours in memory in the same half.
  const Place elsewhere = Find(SlotState::kFree, [&](Place to, Slot) {
    return to.index == from.index && to.slot / kvs::kSlotsPerBucket != from.slot / kvs::kSlotsPerBucket;
  });
  bool found = false;
  for (uint32_t s = 0; s < kGeometry.slots(); ++s) {
    if (!Slot(SlotWord(elsewhere.index, s)).free()) continue;
    std::swap(SlotWord(elsewhere.index, s), SlotWord(from.index, from.slot));
    for (const std::string& problem : Check().problems) {
      found |= problem.find("in a bucket where nobody looks for it") != std::string::npos;
    }
    std::swap(SlotWord(elsewhere.index, s), SlotWord(from.index, from.slot));
  }
  EXPECT_TRUE(found);
  const Place other = Find(SlotState::kFree, [&](Place to, Slot) { return to.index != from.index; });
  std::swap(SlotWord(other.index, other.slot), SlotWord(from.index, from.slot));
  ExpectProblem("belongs to suffix");
}

TEST_F(PoolCheck, AKeyInTwoSlotsAndABlockThatTwoSlotsName) {
  const Place from = Find(SlotState::kVal);
  const Place to = Find(SlotState::kFree, [&](Place place, Slot) { return place.index == from.index; });
  SlotWord(to.index, to.slot) = SlotWord(from.index, from.slot);
  ExpectProblem("the key is in table");
  ExpectProblem("overlaps");
}

TEST_F(PoolCheck, ATableThatOverlapsAnotherOne) {
  const uint32_t child = YoungestChild();
  const DirectoryEntry entry(Entry(child)), parent(Entry(kvs::ParentIndex(child)));
  Entry(child) = DirectoryEntry::Make({1, parent.subtable().offset + 64}, entry.depth(), entry.state(), 0).word();
  ExpectProblem("overlaps dir[");
}

}  // namespace
}  // namespace surgekv_test
