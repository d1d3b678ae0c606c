// The words and places of the table: packing, disjoint bits, and the properties that a split relies on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvs/layout/block.h"
#include "kvs/layout/candidates.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"

namespace kvs {
namespace {

const Hasher kHasher({.low = 1, .high = 2});

TEST(Slot, KeepsEveryFieldAtItsExtremes) {
  const GlobalAddress far{255, ((uint64_t{1} << 34) - 1) * kUnitBytes};
  const Slot slot = Slot::Make(SlotState::kFrz, 0xab, 0xff, far, 7);
  EXPECT_EQ(slot.state(), SlotState::kFrz);
  EXPECT_EQ(slot.fingerprint(), 0xab);
  EXPECT_EQ(slot.length_units(), 0xff);
  EXPECT_EQ(slot.block(), far);
  EXPECT_EQ(slot.version(), 7);
  EXPECT_EQ(slot.WithState(SlotState::kVal).WithState(SlotState::kFrz), slot);
}

TEST(Slot, AFreshOneIsTheZeroWordSoFreshMemoryIsFree) {
  EXPECT_EQ(Slot::Fresh().word(), 0u);
  EXPECT_EQ(Slot(0).state(), SlotState::kFree);
}

TEST(Slot, AFreeOneKeepsFiftyThreeBitsOfItsNonceAndNoFingerprint) {
  std::set<uint64_t> words;
  for (int bit = 0; bit < 64; ++bit) {
    const Slot slot = Slot::Free(uint64_t{1} << bit);
    EXPECT_TRUE(slot.free());
    EXPECT_EQ(slot.fingerprint(), 0);
    EXPECT_FALSE(slot.has_block());
    if (slot != Slot::Fresh()) words.insert(slot.word());
  }
  EXPECT_EQ(words.size(), 53u);
}

TEST(BucketHeader, FitsExactlyTheKeysOfItsSuffix) {
  const BucketHeader header(3, 0b101, 9);
  EXPECT_TRUE(header.Fits(0b11101));
  EXPECT_FALSE(header.Fits(0b11001));
  const BucketHeader deeper = header.Deeper();
  EXPECT_EQ(deeper.depth(), 4u);
  EXPECT_EQ(deeper.generation(), 10u);
  EXPECT_TRUE(deeper.Fits(0b00101));
  EXPECT_FALSE(deeper.Fits(0b01101));
}

TEST(BucketHeader, AClosedOneFitsNoKeyAndIsNoDepthOfATable) {
  const BucketHeader closed = BucketHeader(kMaxDepth, 0x1ffff, 0xffffffff).Closed();
  EXPECT_TRUE(closed.closed());
  EXPECT_EQ(closed.suffix(), 0x1ffffu);
  EXPECT_EQ(closed.generation(), 0u);
  EXPECT_FALSE(closed.Fits(0x1ffff));
  EXPECT_FALSE(BucketHeader(0, 0, 0).Closed().Fits(0));
  for (uint32_t depth = 0; depth <= kMaxDepth; ++depth) EXPECT_FALSE(BucketHeader(depth, 0, 0).closed());
}

TEST(MatchSlots, IsWhatLookingAtEachSlotFinds) {
  std::minstd_rand random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::array<Bucket, kCandidateBuckets> buckets;
    for (Bucket& bucket : buckets) {
      bucket.header = BucketHeader(random(), random(), random());  // has every bit, and must not be counted as a slot
      for (Slot& slot : bucket.slots) {
        const uint64_t word = uint64_t{random()} << 40 ^ uint64_t { random() } << 20 ^ random();
        slot = Slot(word & ~(uint64_t{0xfc} << 56)).WithState(static_cast<SlotState>(random() % 4));
      }
    }
    const auto fingerprint = static_cast<uint8_t>(random() % 5);
    ASSERT_EQ(MatchSlots(buckets, fingerprint), MatchSlotsPlainly(buckets, fingerprint)) << round;
    ASSERT_EQ(FreeSlots(buckets), FreeSlotsPlainly(buckets)) << round;
  }
}

TEST(MatchSlots, FindsEachCandidateAlone) {
  for (uint32_t c = 0; c < kCandidateBuckets * kSlotsPerBucket; ++c) {
    for (const uint8_t fingerprint : {0x01, 0x7f, 0x80, 0xff}) {
      std::array<Bucket, kCandidateBuckets> buckets;
      Slot& slot = buckets[c / kSlotsPerBucket].slots[c % kSlotsPerBucket];
      slot = Slot::Make(SlotState::kVal, fingerprint, 0, {}, 0);
      EXPECT_EQ(MatchSlots(buckets, fingerprint), 1u << c);
      slot = {};
      EXPECT_EQ(MatchSlots(buckets, fingerprint), 0u);
    }
  }
}

TEST(ChooseFreeSlot, TakesTheLessLoadedCombinedBucketAndItsMainBucketFirst) {
  constexpr uint32_t kPlace = (1u << kCombinedSlots) - 1, kBucket = (1u << kSlotsPerBucket) - 1;
  for (const uint32_t half : {0u, 1u}) {
    KeyPlaces places;
    places.place[0] = {3, half};
    places.place[1] = {5, 1 - half};
    EXPECT_EQ(ChooseFreeSlot(places, 0), -1);
    EXPECT_EQ(ChooseFreeSlot(places, ~0u >> 4), static_cast<int>(half * kSlotsPerBucket));  // a tie: the first
    // The second has one free slot more.
    EXPECT_EQ(ChooseFreeSlot(places, kPlace << kCombinedSlots | (kPlace & ~(1u << (half * kSlotsPerBucket)))),
              static_cast<int>(kCombinedSlots + (1 - half) * kSlotsPerBucket));
    // Only an overflow bucket has room.
    const uint32_t overflow = kBucket << ((1 - half) * kSlotsPerBucket) & ~(1u << ((1 - half) * kSlotsPerBucket));
    EXPECT_EQ(ChooseFreeSlot(places, overflow), static_cast<int>((1 - half) * kSlotsPerBucket + 1));
  }
}

TEST(FitOfHeaders, IsThatOfAllHeaders) {
  const uint64_t h1 = 0b10110;
  const BucketHeader fits(3, 0b110, 4), deeper(4, 0b0110, 5), other(4, 0b1110, 5);
  std::array<Bucket, kCandidateBuckets> buckets;
  for (Bucket& bucket : buckets) bucket.header = fits;
  EXPECT_TRUE(FitOfHeaders(buckets, h1).fits);
  EXPECT_FALSE(FitOfHeaders(buckets, h1).closed);
  EXPECT_FALSE(FitOfHeaders(buckets, h1 ^ 1).fits);
  for (Bucket& bucket : buckets) {
    bucket.header = deeper;
    EXPECT_TRUE(FitOfHeaders(buckets, h1).fits);
    bucket.header = other;
    EXPECT_FALSE(FitOfHeaders(buckets, h1).fits);
    bucket.header = fits.Closed();
    EXPECT_FALSE(FitOfHeaders(buckets, h1).fits);
    EXPECT_TRUE(FitOfHeaders(buckets, h1).closed);
    bucket.header = fits;
  }
  for (Bucket& bucket : buckets) bucket.header = fits.Closed();
  EXPECT_TRUE(FitOfHeaders(buckets, h1).closed);
  EXPECT_FALSE(FitOfHeaders(buckets, h1).fits);
}

TEST(DirectoryEntry, KeepsEveryField) {
  const GlobalAddress table{200, ((uint64_t{1} << 34) - 1) * kUnitBytes};
  for (const auto state : {DirectoryState::kAbsent, DirectoryState::kMigrating, DirectoryState::kNormal,
                           DirectoryState::kSplitting, DirectoryState::kMerging}) {
    const DirectoryEntry entry = DirectoryEntry::Make(table, 17, state, 0x3fff);
    EXPECT_EQ(entry.subtable(), table);
    EXPECT_EQ(entry.depth(), 17u);
    EXPECT_EQ(entry.state(), state);
    EXPECT_EQ(entry.generation(), 0x3fffu);
    EXPECT_EQ(entry.present(), state != DirectoryState::kAbsent);
    EXPECT_EQ(entry.has_subtable(), state != DirectoryState::kAbsent && state != DirectoryState::kMerging);
  }
  EXPECT_FALSE(DirectoryEntry().present());
}

TEST(DirectoryEntry, EveryNextWordHasANewGenerationThatWrapsIntoNoOtherField) {
  const GlobalAddress table{3, 160}, other{4, 320};
  const DirectoryEntry last = DirectoryEntry::Make(table, 5, DirectoryState::kNormal, 0x3fff);
  const DirectoryEntry next = last.Next(6, DirectoryState::kSplitting);
  EXPECT_EQ(next, DirectoryEntry::Make(table, 6, DirectoryState::kSplitting, 0));
  EXPECT_EQ(next.Next(other, 7, DirectoryState::kMerging), DirectoryEntry::Make(other, 7, DirectoryState::kMerging, 1));
}

TEST(DirectoryEntry, AnAbsentOneKeepsTheAddressOfTheTableThatLeft) {
  const GlobalAddress table{3, 160};
  const DirectoryEntry absent =
      DirectoryEntry::Make(table, 5, DirectoryState::kNormal, 1).Next(5, DirectoryState::kAbsent);
  EXPECT_FALSE(absent.present());
  EXPECT_NE(absent, DirectoryEntry::Make({3, 176}, 5, DirectoryState::kAbsent, 2));
}

TEST(DirectoryEntry, ParentIsTheIndexThatWasSplit) {
  EXPECT_EQ(ParentIndex(0b1), 0u);
  EXPECT_EQ(BirthDepth(0b1), 1u);
  EXPECT_EQ(ParentIndex(0b1010), 0b10u);
  EXPECT_EQ(BirthDepth(0b1010), 4u);
  EXPECT_EQ(ChildIndex(0b10, 3), 0b1010u);
}

TEST(Places, TheTwoCombinedBucketsNeverShareAGroup) {
  for (uint32_t groups : {2u, 3u, 64u, 128u}) {
    for (uint64_t i = 0; i < 20'000; ++i) {
      const KeyHash hash = kHasher("key" + std::to_string(i));
      const KeyPlaces places = PlacesOf(hash, groups);
      ASSERT_NE(places.place[0].group, places.place[1].group);
      ASSERT_LT(places.place[0].group, groups);
      ASSERT_LT(places.place[1].group, groups);
    }
  }
}

TEST(Places, DoNotDependOnTheSuffixSoASplitKeepsSlotIndexes) {
  for (uint64_t i = 0; i < 1'000; ++i) {
    KeyHash hash = kHasher("key" + std::to_string(i));
    const KeyPlaces before = PlacesOf(hash, 128);
    hash.h1 ^= (uint64_t{1} << kMaxDepth) - 1;
    const KeyPlaces after = PlacesOf(hash, 128);
    for (int p = 0; p < 2; ++p) {
      ASSERT_EQ(before.place[p].group, after.place[p].group);
      ASSERT_EQ(before.place[p].half, after.place[p].half);
    }
  }
}

TEST(Places, AllBucketsAreUsedEvenly) {
  constexpr uint32_t kGroups = 16;
  std::vector<uint32_t> load(kGroups * 2);
  constexpr uint32_t kKeys = 100'000;
  for (uint32_t i = 0; i < kKeys; ++i) {
    for (const CombinedBucket& place : PlacesOf(kHasher(std::to_string(i)), kGroups).place) {
      ++load[place.group * 2 + place.half];
    }
  }
  const double expected = 2.0 * kKeys / (kGroups * 2);
  for (const uint32_t count : load) EXPECT_NEAR(count, expected, expected * 0.06);
}

TEST(Block, EveryFlippedByteIsNoticed) {
  const std::string key = "a key", value(100, 'v');
  for (const uint64_t expires_at_ms : {uint64_t{0}, uint64_t{1'234'567'890'123}}) {
    std::vector<std::byte> block(BlockBytes(key.size(), value.size(), expires_at_ms != 0));
    BuildBlock(block, 42, 7, key, value, expires_at_ms);
    const BlockView view(block.data());
    ASSERT_TRUE(view.Intact(block.size()));
    EXPECT_EQ(view.key(), key);
    EXPECT_EQ(view.value(), value);
    EXPECT_EQ(view.expires_at_ms(), expires_at_ms);
    EXPECT_EQ(view.bytes(), block.size());
    for (size_t i = 0; i < view.header().key_offset() + key.size() + value.size(); ++i) {
      block[i] ^= std::byte{1};
      EXPECT_FALSE(view.Intact(block.size())) << "byte " << i;
      block[i] ^= std::byte{1};
    }
  }
}

TEST(Block, OnlyOneThatExpiresHasEightBytesMore) {
  EXPECT_EQ(BlockBytes(8, 8, false), 48u);
  EXPECT_EQ(BlockBytes(8, 8, true), 64u);
  EXPECT_EQ(BlockBytes(8, 0, false), 48u);
  EXPECT_EQ(BlockBytes(8, 0, true), 48u);
}

TEST(Block, WithFlagsThatNobodyKnowsIsNotIntact) {
  std::vector<std::byte> block(BlockBytes(3, 1, false));
  BuildBlock(block, 1, 1, "abc", "x", 0);
  auto& header = *reinterpret_cast<BlockHeader*>(block.data());
  header.flags = 2;
  header.checksum = XXH3_64bits(block.data() + sizeof(header.checksum), sizeof(header) - sizeof(header.checksum) + 4);
  EXPECT_FALSE(BlockView(block.data()).Intact(block.size()));
  header.flags = 0;
  header.checksum = XXH3_64bits(block.data() + sizeof(header.checksum), sizeof(header) - sizeof(header.checksum) + 4);
  EXPECT_TRUE(BlockView(block.data()).Intact(block.size()));
}

TEST(Block, LengthsBeyondWhatWasReadAreRefused) {
  std::vector<std::byte> block(BlockBytes(3, 1000, false));
  BuildBlock(block, 1, 1, "abc", std::string(1000, 'x'), 0);
  EXPECT_FALSE(BlockView(block.data()).Intact(512));
  EXPECT_FALSE(BlockView(block.data()).Intact(16));
}

TEST(Pool, FormatNamesTheLimitsItRefuses) {
  std::vector<std::byte> small(4096);
  EXPECT_EQ(FormatPool(small, 1), krcore::StatusCode::kInvalidArgument);
  std::vector<std::byte> pool(kMinPoolBytes);
  EXPECT_EQ(FormatPool(pool, 0), krcore::StatusCode::kInvalidArgument);
  EXPECT_EQ(FormatPool(pool, 256), krcore::StatusCode::kInvalidArgument);
  ASSERT_TRUE(FormatPool(pool, 3).ok());
  EXPECT_TRUE(CheckPool(pool, 3).ok());
  EXPECT_EQ(CheckPool(pool, 4), krcore::StatusCode::kCorrupt);
  EXPECT_EQ(CheckPool(std::span(pool).first(pool.size() - kDefaultChunkBytes), 3), krcore::StatusCode::kCorrupt);
  pool[0] = std::byte{'X'};
  EXPECT_EQ(CheckPool(pool, 3), krcore::StatusCode::kCorrupt);
}

TEST(Pool, OfAnotherVersionOrWithUnknownFeaturesIsRefusedByName) {
  std::vector<std::byte> pool(kMinPoolBytes);
  ASSERT_TRUE(FormatPool(pool, 3).ok());
  Superblock& super = *reinterpret_cast<Superblock*>(pool.data());
  const auto refusal = [&pool] {
    const krcore::Status status = CheckPool(pool, 3);
    EXPECT_EQ(status, krcore::StatusCode::kUnsupported);
    return std::string(status.message());
  };
  super.layout_version = 4;
  EXPECT_THAT(refusal(), testing::StartsWith("the pool of memory node 3 has layout version 4, this program has 7 ("));
  super.magic = 0x33304c4f4f504b53;  // as in version 3, which kept something else in `features`
  super.layout_version = 3;
  super.features = kDefaultChunkBytes;
  EXPECT_THAT(refusal(), testing::StartsWith("the pool of memory node 3 has layout version 3, this program has 7 ("));
  super.magic = kPoolMagic;
  super.layout_version = kLayoutVersion;
  super.features = 1;
  EXPECT_THAT(refusal(), testing::HasSubstr("has features that this program does not know"));
}

TEST(Pool, EveryHomeDrawsASeedOfItsOwnUnlessItIsGivenOne) {
  const auto seed_of = [](const HomeOptions& options) {
    std::vector<std::byte> pool(kMinPoolBytes);
    EXPECT_TRUE(FormatPool(pool, 1).ok());
    EXPECT_TRUE(FormatHome(pool, options).ok());
    return reinterpret_cast<const Superblock*>(pool.data())->hash_seed;
  };
  const HashSeed one = seed_of({}), other = seed_of({});
  EXPECT_NE(one, other);
  EXPECT_NE(one, HashSeed{});
  EXPECT_EQ(seed_of({.hash_seed = one}), one);
  EXPECT_NE(Hasher(one)("key").h1, Hasher(other)("key").h1);
}

// Programs of one store need not be built with the same version of xxHash.
TEST(Hasher, GivesWhatItGivesInEveryProgramOfThisLayout) {
  const std::string text(300, 'x');
  const auto h1 = [&text](size_t length) { return kHasher(std::string_view(text).substr(0, length)).h1; };
  EXPECT_EQ(h1(1), 6620253753988152178u);
  EXPECT_EQ(h1(8), 1370659160049516151u);
  EXPECT_EQ(h1(16), 15170233153865207460u);
  EXPECT_EQ(h1(100), 9353077035675937567u);
  EXPECT_EQ(h1(200), 13338646990587126406u);
  EXPECT_EQ(h1(300), 13678227731359545162u);
  EXPECT_EQ(kHasher(text).h2, 8025084513798391236u);
}

TEST(Words, KeepTheirFields) {
  const ChunkWord chunk = ChunkWord::Make(ChunkKind::kRun, 17, (uint64_t{1} << 40) - 1);
  EXPECT_EQ(chunk.kind(), ChunkKind::kRun);
  EXPECT_EQ(chunk.count(), 17u);
  EXPECT_EQ(chunk.Freed().generation(), 0u);
  EXPECT_EQ(chunk.Freed().kind(), ChunkKind::kFree);
  const EvacuationWord evacuation(255, (1u << 28) - 1, 12345);
  EXPECT_EQ(evacuation.node(), 255u);
  EXPECT_EQ(evacuation.chunk(), (1u << 28) - 1);
  EXPECT_TRUE(evacuation.OfGeneration(12345 + (uint64_t{1} << 28)));
  EXPECT_FALSE(evacuation.OfGeneration(12346));
  EXPECT_FALSE(evacuation.empty());
  EXPECT_TRUE(EvacuationWord().empty() && EvacuationWord::Empty(~uint64_t{0}).empty());
  EXPECT_NE(EvacuationWord::Empty(uint64_t{1} << 8).word(), 0u);
  const OwnerWord owner = OwnerWord().ClaimedBy(0xffff, 0xffffffff);
  EXPECT_TRUE(owner.held() && !owner.Released().held() && !OwnerWord().held());
  EXPECT_EQ(owner.node(), 0xffffu);
  EXPECT_EQ(owner.incarnation(), 0xffffffffu);
  EXPECT_EQ(owner.Released().node(), 0xffffu);
  EXPECT_EQ(owner.Released().incarnation(), 0xffffffffu);
  std::set<uint64_t> owners = {owner.word()};
  for (OwnerWord next = owner.Released().ClaimedBy(0xffff, 0xffffffff); next != owner;
       next = next.Released().ClaimedBy(0xffff, 0xffffffff)) {
    ASSERT_TRUE(owners.insert(next.word()).second);
    ASSERT_NE(next.word(), kUncopied);
  }
  EXPECT_EQ(owners.size(), OwnerWord::kTurns);
  const ClientWord client = ClientWord::Make(ClientState::kAlive, 0x3ffff, 77);
  EXPECT_EQ(client.Beat(78).heartbeats(), 0u);
  EXPECT_EQ(client.Beat(78).epoch(), 78u);
  EXPECT_EQ(client.Expelled().state(), ClientState::kExpelled);
  EXPECT_EQ(client.Expelled().epoch(), 77u);
}

TEST(Pool, ChunksHaveAPowerOfTwoAndTheFixedPartIsReserved) {
  std::vector<std::byte> pool(kMinPoolBytes);
  EXPECT_EQ(FormatPool(pool, 1, 100'000), krcore::StatusCode::kInvalidArgument);
  EXPECT_EQ(FormatPool(pool, 1, kMinChunkBytes / 2), krcore::StatusCode::kInvalidArgument);
  ASSERT_TRUE(FormatPool(pool, 1, kMinChunkBytes).ok());
  const uint64_t reserved = ReservedChunks(pool.size(), kMinChunkBytes);
  EXPECT_GE(reserved * kMinChunkBytes, ChunkWordOffset(pool.size() / kMinChunkBytes));
  for (uint64_t chunk = 0; chunk < pool.size() / kMinChunkBytes; ++chunk) {
    ChunkWord word;
    std::memcpy(&word, pool.data() + ChunkWordOffset(chunk), sizeof(word));
    EXPECT_EQ(word.kind(), chunk < reserved ? ChunkKind::kReserved : ChunkKind::kFree) << chunk;
  }
}

TEST(Pool, TheInitialDepthLeavesAQuarterOfTheSlotsFree) {
  const SubtableGeometry geometry{.groups = 16};
  const uint64_t most = geometry.slots() / 4 * 3;  // of one subtable
  EXPECT_EQ(DepthFor(0, geometry), 0u);
  EXPECT_EQ(DepthFor(most, geometry), 0u);
  EXPECT_EQ(DepthFor(most + 1, geometry), 1u);
  EXPECT_EQ(DepthFor(most * 8, geometry), 3u);
  EXPECT_EQ(DepthFor(~uint64_t{0}, geometry), kMaxDepth);
}

TEST(Pool, AHomeWithInitialDepthHasEveryEntryAndFittingHeaders) {
  std::vector<std::byte> pool(kMinPoolBytes);
  ASSERT_TRUE(FormatPool(pool, 1).ok());
  HomeOptions options;
  options.geometry.groups = 16;
  options.initial_depth = 3;
  ASSERT_TRUE(FormatHome(pool, options).ok());
  std::set<uint64_t> tables;
  for (uint32_t i = 0; i < 8; ++i) {
    uint64_t word;
    std::memcpy(&word, pool.data() + kDirectoryOffset + i * sizeof(word), sizeof(word));
    const DirectoryEntry entry(word);
    ASSERT_TRUE(entry.present());
    EXPECT_EQ(entry.depth(), 3u);
    tables.insert(entry.subtable().offset);
    for (uint32_t b = 0; b < options.geometry.buckets(); ++b) {
      uint64_t header;
      std::memcpy(&header, pool.data() + entry.subtable().offset + BucketOffset(b), sizeof(header));
      ASSERT_TRUE(BucketHeader(header).Fits(i));
      ASSERT_FALSE(BucketHeader(header).Fits(i ^ 1));
    }
  }
  EXPECT_EQ(tables.size(), 8u);
}

}  // namespace
}  // namespace kvs
