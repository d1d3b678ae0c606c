// The parts of kvs/table, without what lies above them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvs/table/table.h"
#include "tests/kvs/parts_testing.h"

namespace surgekv_test {
namespace {

TEST_F(TableParts, DirectoryFindsTheTableOfAHash) {
  kvs::Directory directory(common_, epochs_.cache);
  Operation& op = TakeOperation(Key(1));
  ASSERT_EQ(op.hash.Suffix(1), 1u);
  kvs::TableRef table, cached;
  ASSERT_EQ(Run(directory.Resolve(op, &table)), Step::kOk);
  EXPECT_EQ(table.index, 1u);
  EXPECT_EQ(table.entry, store_.DirectoryEntryOf(1));
  EXPECT_EQ(table.address, table.entry.subtable());
  EXPECT_GT(stats_.directory_reads, 1u);
  ASSERT_TRUE(epochs_.cache.Lookup(op.hash, &cached));
  for (int i = 0; i < 2; ++i) directory.NoteUnfinished(3);
  EXPECT_EQ(directory.TakeUnfinished(), 3u);
  EXPECT_EQ(directory.TakeUnfinished(), std::nullopt);
  epochs_.operations.Release(op);
}

TEST_F(TableParts, FinderFindsAKeyOrSeesThatItIsAbsent) {
  PutKeys(2);  // the first value is a large one
  kvs::AddressCache addresses(stats_);
  kvs::Directory directory(common_, epochs_.cache);
  kvs::Finder finder(common_, epochs_.cache, addresses);
  const auto go_on = [&](Operation& op) -> Task<Step> {
    const kvs::Outcome read = co_await op.batch.Run();
    if (read != kvs::Outcome::kOk) co_return Step::kUnavailable;
    co_return finder.GoOnReading(op, op.batch);
  };
  const std::array<std::string, 3> keys = {Key(0), Key(1), Key(2)};
  for (uint32_t i = 0; i < keys.size(); ++i) {
    Operation& op = TakeOperation(keys[i]);
    epochs_.cache.Clear();
    EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRestart);  // nothing is known of its table
    ASSERT_EQ(Run(directory.Resolve(op, &op.scan.table)), Step::kOk);
    Step step = finder.BeginRead(op, op.batch);
    while (step == Step::kRun) step = Run(go_on(op));
    EXPECT_EQ(step, Step::kOk);
    ASSERT_EQ(op.scan.val >= 0, i < 2);
    EXPECT_TRUE(i == 2 || op.scan.block.value() == Value(i));
    epochs_.operations.Release(op);
  }
  // A split moves a bucket of the key, which was found not to be there.
  Operation& op = TakeOperation(keys[2]);
  EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRun);
  EXPECT_EQ(Run(go_on(op)), Step::kRun);
  const uint64_t bucket = kvs::CombinedOffset(op.scan.places.place[1]);
  PoolWord(kvs::At(op.scan.table, bucket)) = kvs::BucketHeader(2, op.hash.Suffix(2) ^ 2, 1).word();
  EXPECT_EQ(Run(go_on(op)), Step::kRestart);
  EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRun);
  EXPECT_EQ(Run(go_on(op)), Step::kRestart);
  epochs_.operations.Release(op);
}

TEST_F(TableParts, WorkbenchLocksATableForOne) {
  kvs::Workbench workbench(common_, epochs_.registrar, workbench_arena());
  Operation& op = TakeOperation("key");
  workbench.Begin(op.batch);
  EXPECT_TRUE(workbench.busy());
  const GlobalAddress address = store_.DirectoryEntryOf(0).subtable();
  uint64_t takeovers = 0;
  const auto lock = [&](uint64_t token) { return Run(workbench.LockTable({address}, token, &takeovers)); };
  const auto unlock = [&](uint64_t token) { return Run(workbench.UnlockTable({address}, token)); };
  const auto locked_by = [&] { return PoolWord(address); };
  const uint64_t token = workbench.NewToken(), another = token + 1;
  EXPECT_EQ(token >> 32, epochs_.registrar.client_index() + 1);
  EXPECT_EQ(lock(token), Step::kOk);
  EXPECT_EQ(lock(another), Step::kRestart);
  clock_.Advance(99'999'999);
  EXPECT_EQ(lock(another), Step::kRestart);
  EXPECT_EQ(locked_by(), token);
  clock_.Advance(1);  // whoever holds it has stopped
  EXPECT_EQ(lock(another), Step::kOk);
  EXPECT_EQ(takeovers, 1u);
  EXPECT_EQ(unlock(token), Step::kOk);
  EXPECT_EQ(locked_by(), another);
  EXPECT_EQ(unlock(another), Step::kOk);
  EXPECT_EQ(locked_by(), 0u);
  workbench.End();
  EXPECT_FALSE(workbench.busy());
  bool in_background = false;
  auto look = [&]() -> Task<void> { co_return void(in_background = workbench.in_background()); };
  workbench.Background(look());
  EXPECT_TRUE(in_background && !workbench.in_background());
  epochs_.operations.Release(op);
}

TEST_F(TableParts, SplitterAndMergerUndoEachOther) {
  PutKeys(20);
  kvs::Table parts(epochs_, workbench_arena());
  Operation& op = TakeOperation("key");
  kvs::TableRef table;
  ASSERT_EQ(Run(parts.directory.ReadEntry(op.batch, &op.buffers->directory[0], 1, &table)), Step::kOk);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(Run(parts.splitter.Split(op, table)), Step::kOk);  // the second time, it is split already
  EXPECT_EQ(store_.DirectoryEntryOf(3).subtable().node, 2);
  EXPECT_EQ(stats_.splits, 1u);
  uint32_t moved = 0;
  const kvs::TableRef child{store_.DirectoryEntryOf(3).subtable()};
  for (uint32_t s = 0; s < shape_.geometry.slots(); ++s) {
    const kvs::Slot slot(PoolWord(kvs::At(child, kvs::SlotOffset(s))));
    EXPECT_TRUE(slot.free() || slot.state() == kvs::SlotState::kVal);
    moved += slot.free() ? 0 : 1;
  }
  EXPECT_GT(moved, 0u);
  EXPECT_EQ(stats_.slots_migrated, moved);
  CheckKeys();
  uint32_t index = 3;
  EXPECT_EQ(Run(parts.merger.TryMerge(op, &index)), Step::kOk);
  EXPECT_EQ(index, 1u);
  EXPECT_FALSE(store_.DirectoryEntryOf(3).present());
  CheckKeys();
  EXPECT_EQ(Run(parts.merger.TryMerge(op, &index)), Step::kRestart);  // the two tables that are left have too many keys
  EXPECT_EQ(stats_.merges, 1u);
  EXPECT_EQ(epochs_.memory->retired(), 3u);  // two tables and a record
  GlobalAddress spare;
  EXPECT_TRUE(epochs_.memory->AllocateTable(2, &spare));            // two were taken for the merge
  EXPECT_EQ(Chunk(spare.offset / shape_.chunk_bytes).count(), 3u);  // one was given back after the second split
  EXPECT_TRUE(kvs::BucketHeader(PoolWord(kvs::At(table, kvs::BucketOffset(0)))).closed());
  EXPECT_EQ(PoolWord(table.address), 0u);  // not locked
  EXPECT_FALSE(parts.workbench.busy());
  epochs_.operations.Release(op);
}

// A block lies at a memory node that has gone. That must not keep the other keys of its table from being written.
TEST_F(TableParts, ASplitThatCannotReadABlockLeavesTheTableAsItWas) {
  PutKeys(20);
  kvs::Table parts(epochs_, workbench_arena());
  Operation& op = TakeOperation("key");
  kvs::TableRef table;
  ASSERT_EQ(Run(parts.directory.ReadEntry(op.batch, &op.buffers->directory[0], 1, &table)), Step::kOk);
  uint32_t s = 0;
  const auto slot = [&] { return kvs::Slot(PoolWord(kvs::At(table, kvs::SlotOffset(s)))); };
  while (slot().state() != kvs::SlotState::kVal) ++s;
  PoolWord(kvs::At(table, kvs::SlotOffset(s))) =
      kvs::Slot::Make(kvs::SlotState::kVal, slot().fingerprint(), slot().length_units(), {2, slot().block().offset}, 0)
          .word();
  store_.StopMemoryNode(2);
  const kvs::DirectoryEntry before = store_.DirectoryEntryOf(1);
  EXPECT_EQ(Run(parts.splitter.Split(op, table)), Step::kUnavailable);
  EXPECT_EQ(store_.DirectoryEntryOf(1), before);
  for (uint32_t b = 0; b < shape_.geometry.buckets(); ++b) {
    EXPECT_EQ(kvs::BucketHeader(PoolWord(kvs::At(table, kvs::BucketOffset(b)))).depth(), 1u);
  }
  EXPECT_EQ(PoolWord(table.address), 0u);  // not locked
  epochs_.operations.Release(op);
}

// A client has died in a split of dir[1]: the headers have moved, what moves is frozen, and there is no child.
class AbandonedSplit : public Parts {
 protected:
  void SetUp() override {
    Parts::SetUp();
    PutKeys(20);
  }
  void Abandon() {
    const kvs::DirectoryEntry entry = store_.DirectoryEntryOf(1);
    const kvs::TableRef table{entry.subtable()};
    PoolWord({1, kvs::kDirectoryOffset + sizeof(uint64_t)}) = entry.Next(1, kvs::DirectoryState::kSplitting).word();
    for (uint32_t b = 0; b < shape_.geometry.buckets(); ++b) {
      uint64_t& header = PoolWord(kvs::At(table, kvs::BucketOffset(b)));
      header = kvs::BucketHeader(header).Deeper().word();
    }
    for (uint32_t i = 0; i < keys_; ++i) {
      if (HashKey(Key(i)).Suffix(2) == 3) moving_ = Key(i);
    }
    uint32_t frozen = 0;
    for (uint32_t s = 0; s < shape_.geometry.slots(); ++s) {
      uint64_t& word = PoolWord(kvs::At(table, kvs::SlotOffset(s)));
      const kvs::Slot slot(word);
      if (slot.state() != kvs::SlotState::kVal) continue;
      const auto* const block = reinterpret_cast<const kvs::BlockHeader*>(&PoolWord(slot.block()));
      if ((block->hash & 2) == 0) continue;
      word = slot.WithState(kvs::SlotState::kFrz).word();
      ++frozen;
    }
    ASSERT_GT(frozen, 1u);
  }
  bool IsFinished() const {
    return store_.DirectoryEntryOf(1).state() == kvs::DirectoryState::kNormal &&
           store_.DirectoryEntryOf(1).depth() == 2 &&
           store_.DirectoryEntryOf(3).state() == kvs::DirectoryState::kNormal;
  }
  // Polls the client, and the one that put the keys, until this operation of the client's has ended. Time passes.
  kvs::Status Do(kvs::Client& client, Task<kvs::Status> operation) {
    operation.Start();
    for (int rounds = 0; !operation.done(); ++rounds) {
      if (rounds == 1'000'000) throw std::runtime_error("what the test waits for does not happen");
      clock_.Advance(100'000);
      client.Poll();
      other_->Poll();
    }
    return operation.Take();
  }

  std::string moving_;
};

TEST_F(AbandonedSplit, IsFinishedByAWriterThatNeedsIt) {
  Abandon();
  EXPECT_TRUE(other_->Update(moving_, "new").ok());
  EXPECT_TRUE(IsFinished());
}

TEST_F(AbandonedSplit, IsFinishedThoughThereAreOnlyReaders) {
  Abandon();
  std::string value;
  EXPECT_TRUE(other_->Get(moving_, &value).ok());  // from the table that splits
  EXPECT_FALSE(IsFinished());
  for (int i = 0; i < 1'000 && !IsFinished(); ++i) {
    clock_.Advance(600'000);
    other_->Poll();
  }
  EXPECT_TRUE(IsFinished());
  CheckKeys();
}

TEST_F(AbandonedSplit, IsFinishedByTheMover) {
  Abandon();
  kvs::CompactReport report;
  EXPECT_TRUE(other_->Compact({}, &report).ok());
  EXPECT_EQ(other_->stats().splits, 1u);  // and then it has joined the two again, which have few keys
  CheckKeys();
}

// A writer of a full store finds no memory for the child. The mover does: some is kept for it.
TEST_F(AbandonedSplit, IsFinishedInAFullStore) {
  const auto filler = store_.NewClient();
  uint32_t tried = 0;
  for (size_t bytes = 50'000; bytes > 0; bytes /= 4) {
    for (bool fits = true; fits; ++tried) {
      const std::string key = "filler-" + std::to_string(tried), value(bytes, 'x');
      if (HashKey(key).Suffix(1) == 0) fits = Do(*filler, filler->PutAsync(key, value)).ok();
    }
  }
  for (const krcore::NodeId node : {1, 2}) {
    for (uint64_t chunk = 0; chunk < store_.memory().size() / shape_.chunk_bytes; ++chunk) {
      uint64_t& word = PoolWord({node, kvs::ChunkWordOffset(chunk)});
      const kvs::ChunkWord was(word);
      if (was.kind() == kvs::ChunkKind::kTables) word = was.As(kvs::ChunkKind::kTables, 0xfffff).word();
    }
  }
  Abandon();
  const auto last = store_.NewClient();
  EXPECT_TRUE(Do(*last, last->DeleteAsync(moving_)).ok());
  // Whose mover it was, it has then joined the two again, which have few keys.
  EXPECT_EQ(last->stats().splits + other_->stats().splits, 1u);
}

TEST_F(AbandonedSplit, DoesNotHoldUpAScanOverKeys) {
  Abandon();
  uint64_t cursor = 0;
  uint32_t found = 0;
  std::vector<kvs::ScanRecord> records;
  do {
    ASSERT_TRUE(other_->Scan(&cursor, &records).ok());
    found += static_cast<uint32_t>(records.size());
  } while (cursor != 0);
  EXPECT_EQ(found, keys_);
  EXPECT_EQ(other_->stats().split_takeovers + other_->stats().splits, 0u);
}

TEST_F(TableParts, ReaderFindsWhatWriterWrote) {
  kvs::Table table(epochs_, workbench_arena());
  table.combiner.SetSize(kInFlight);
  std::string value;
  const auto get = [&] { return Run(table.reader.Get("key", &value)).code(); };
  auto write = [&](kvs::WriteKind kind, std::string_view to) {
    return Run(table.writer.Write(kind, "key", to)).code();
  };
  using enum kvs::WriteKind;
  EXPECT_EQ(get(), StatusCode::kNotFound);
  EXPECT_EQ(write(kUpdate, "none"), StatusCode::kNotFound);
  EXPECT_EQ(write(kDelete, {}), StatusCode::kNotFound);
  for (const std::string& next : {std::string("first"), std::string(100'000, 'x'), std::string("last")}) {
    EXPECT_EQ(write(next == "first" ? kInsert : kUpdate, next), StatusCode::kOk);
    EXPECT_EQ(write(kInsert, "another"), StatusCode::kExists);
    EXPECT_EQ(get(), StatusCode::kOk);
    EXPECT_EQ(value, next);
    CheckPools(store_);
  }
  EXPECT_EQ(write(kDelete, {}), StatusCode::kOk);
  EXPECT_EQ(get(), StatusCode::kNotFound);
  EXPECT_EQ(stats_.writes_done, 4u);
  EXPECT_EQ(stats_.blocks_retired, 3u);
  EXPECT_EQ(stats_.blocks_reused, 3u);
  EXPECT_EQ(epochs_.memory->retired(), 3u);
  PollUntil([&] { return !table.workbench.in_background(); });  // it may merge the tables, which have become empty
}

// What a slot of "key" was, as others see it.
class SlotWords : public TableParts {
 protected:
  void SetUp() override {
    TableParts::SetUp();
    table_.combiner.SetSize(kInFlight);
  }
  // Notes the words of all slots in this state, each as often as it comes. `kills`: it makes them FREE.
  void Look(kvs::SlotState state, bool kills = false) {
    for (uint32_t index = 0; index < 2; ++index) {
      for (uint32_t s = 0; s < shape_.geometry.slots(); ++s) {
        GlobalAddress at = store_.DirectoryEntryOf(index).subtable();
        at.offset += kvs::SlotOffset(s);
        const kvs::Slot slot(PoolWord(at));
        const bool unchanged = std::exchange(last_[at.offset], slot.word()) == slot.word();
        if (slot.state() != state || slot == kvs::Slot::Fresh() || unchanged) continue;
        words_.push_back(slot);
        if (kills) PoolWord(at) = kvs::Slot::Free(nonces_.Next()).word();
      }
    }
  }
  size_t Different() const {
    std::set<uint64_t> words;
    for (const kvs::Slot slot : words_) words.insert(slot.word());
    return words.size();
  }
  StatusCode Write(kvs::WriteKind kind, std::string_view value = {}) {
    return Run(table_.writer.Write(kind, "key", value)).code();
  }
  kvs::Table table_{epochs_, workbench_arena()};
  std::vector<kvs::Slot> words_;
  std::map<uint64_t, uint64_t> last_;  // of slots, by offset
};

TEST_F(SlotWords, OfAFreeOneDifferEachTime) {
  constexpr size_t kRounds = 50;
  PutKeys(20);  // so many that no tables are merged
  for (size_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(Write(kvs::WriteKind::kInsert, "value"), StatusCode::kOk);
    Look(kvs::SlotState::kFree);
    ASSERT_EQ(Write(kvs::WriteKind::kDelete), StatusCode::kOk);
    Look(kvs::SlotState::kFree);
    PollUntil([&] { return !table_.workbench.in_background(); });
  }
  CheckKeys();
  EXPECT_EQ(words_.size(), kRounds);
  EXPECT_EQ(Different(), kRounds);
}

// A tentative slot that others kill begins again with the same block, under another version, and after eight times with
// another block.
TEST_F(SlotWords, OfATentativeOneDifferEachTimeThatItBeginsAgain) {
  constexpr size_t kKills = 20;
  Task<kvs::Status> insert = table_.writer.Write(kvs::WriteKind::kInsert, "key", "value");
  insert.Start();
  PollUntil([&] { return insert.done(); },
            [&] {
              clock_.Advance(kLeaseNs / 1'000);
              epochs_.registration.ForgetNow();
              epochs_.registration.Beat(epochs_.registration.word(), clock_.NowNs());
              epochs_.operations.RunDelayed();
              Look(kvs::SlotState::kIns, words_.size() < kKills);
            });
  EXPECT_TRUE(insert.Take().ok());
  ASSERT_GT(words_.size(), kKills);
  EXPECT_EQ(Different(), words_.size());
  for (size_t i = 1; i < words_.size(); ++i) {
    EXPECT_EQ(words_[i].version(), i % kvs::kTentativeWords);
    const bool same_block = words_[i].block() == words_[i - 1].block();
    EXPECT_EQ(same_block, i % kvs::kTentativeWords != 0) << i;
  }
  EXPECT_EQ(epochs_.memory->retired(), words_.size() / kvs::kTentativeWords);
  std::string value;
  EXPECT_TRUE(Run(table_.reader.Get("key", &value)).ok());
  EXPECT_EQ(value, "value");
  CheckPools(store_);
}

}  // namespace
}  // namespace surgekv_test
