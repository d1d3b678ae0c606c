#include "kvs/memory/survey.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "kvs/client.h"
#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"

namespace kvs {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

void Count(ChunkWord word, PoolUse* use) {
  const auto kind = static_cast<size_t>(word.kind());
  if (kind < kChunkKinds) ++use->chunks[kind];
}

// Loads a word that NICs may be changing. Orders nothing.
uint64_t Load(const std::byte* at) { return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_RELAXED); }

}  // namespace

uint64_t PoolUse::total_bytes() const {
  return std::accumulate(chunks.begin(), chunks.end(), uint64_t{0}) * chunk_bytes;
}

PoolUse CountChunks(std::span<const std::byte> pool) {
  PoolUse use;
  if (pool.size() < kChunkTableOffset || Load(pool.data()) != kPoolMagic) return use;
  use.chunk_bytes = Load(pool.data() + offsetof(Superblock, chunk_bytes));
  const uint64_t chunks = Load(pool.data() + offsetof(Superblock, chunks));
  for (uint64_t chunk = 0; chunk < chunks && ChunkWordOffset(chunk + 1) <= pool.size(); ++chunk) {
    Count(ChunkWord(Load(pool.data() + ChunkWordOffset(chunk))), &use);
  }
  return use;
}

Result<std::unique_ptr<Survey>> Survey::Create(krcore::Node& node) {
  auto pool = RemotePool::Create(node, kBufferBytes);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<Survey>(new Survey(node, *std::move(pool)));
}

Status Survey::LearnReplicas(Deadline deadline) {
  Result<Configuration> configuration = ReadConfiguration(node_, deadline);
  if (configuration.ok()) configuration_ = *configuration;
  // Where there is none, or none was ever read, pools are not mirrored.
  return configuration.status() == StatusCode::kCorrupt ? configuration.status() : Status::Ok();
}

Status Survey::Connect(krcore::NodeId pool, Deadline deadline, Superblock* super) {
  const PoolView* const view = std::as_const(configuration_).Find(pool);
  if (view == nullptr) return pool_->Connect(pool, deadline, super);
  return pool_->Connect(view->chain.back(), deadline, super);
}

Result<HomeView> Survey::ReadHome(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(LearnReplicas(deadline));
  if (configuration_.home != krcore::kNoNode) return ReadHome(HomeRecord{configuration_.home, 0}, deadline);
  const Result<HomeRecord> home = HomeRecordOf(node_.LookupService(kHomeService, deadline));
  if (!home.ok()) return home.status();
  return ReadHome(*home, deadline);
}

Result<HomeView> Survey::ReadHome(const HomeRecord& home, Deadline deadline) {
  HomeView view;
  view.home = home;
  static_assert(offsetof(HomeArea, members) == 0 && offsetof(HomeArea, mover) <= kBufferBytes);
  Superblock super;
  KRCORE_RETURN_IF_ERROR(LearnReplicas(deadline));
  KRCORE_RETURN_IF_ERROR(Connect(view.home.node, deadline, &super));
  KRCORE_RETURN_IF_ERROR(pool_->Read(kHomeAreaOffset, offsetof(HomeArea, mover), deadline));
  for (uint32_t id = 1; id <= krcore::kMaxMemoryNode; ++id) {
    const MemberWord member(words()[id]);  // the list is the area's beginning
    if (member.state() != MemberState::kNone) view.members.push_back({id, member.incarnation(), member.state()});
  }
  view.epoch = words()[offsetof(HomeArea, epoch) / sizeof(uint64_t)];
  view.mover = words()[offsetof(HomeArea, mover) / sizeof(uint64_t)];
  view.expiring = words()[(kExpiringOffset - kHomeAreaOffset) / sizeof(uint64_t)] != 0;
  constexpr size_t kClientsUsed = offsetof(HomeArea, counters) + offsetof(HomeCounters, clients_used);
  const uint64_t used = std::min<uint64_t>(words()[kClientsUsed / sizeof(uint64_t)], kMaxClients);
  constexpr uint64_t kWindow = kBufferBytes / sizeof(ClientEntry);
  for (uint64_t begin = 0; begin < used; begin += kWindow) {
    const uint64_t window = std::min(kWindow, used - begin);
    constexpr uint64_t kClients = kHomeAreaOffset + offsetof(HomeArea, clients);
    KRCORE_RETURN_IF_ERROR(pool_->Read(kClients + begin * sizeof(ClientEntry), window * sizeof(ClientEntry), deadline));
    for (uint64_t i = 0; i < window; ++i) {
      ClientEntry entry;
      std::memcpy(&entry, words().data() + i * sizeof(entry) / sizeof(uint64_t), sizeof(entry));
      if (!OwnerWord(entry.owner).held()) continue;
      view.entries.emplace_back(static_cast<uint32_t>(begin + i), entry);
      view.clients += ClientWord(entry.word).state() == ClientState::kAlive ? 1 : 0;
    }
  }
  return view;
}

Result<PoolUse> Survey::ReadPool(krcore::NodeId node, Deadline deadline, std::vector<ChunkWord>* chunk_words) {
  if (chunk_words != nullptr) chunk_words->clear();
  Superblock super;
  KRCORE_RETURN_IF_ERROR(Connect(node, deadline, &super));
  PoolUse use;
  use.chunk_bytes = super.chunk_bytes;
  constexpr uint64_t kWindow = kBufferBytes / sizeof(ChunkWord);
  for (uint64_t begin = 0; begin < super.chunks; begin += kWindow) {
    const uint64_t window = std::min(kWindow, super.chunks - begin);
    KRCORE_RETURN_IF_ERROR(pool_->Read(ChunkWordOffset(begin), window * sizeof(ChunkWord), deadline));
    for (uint64_t i = 0; i < window; ++i) {
      Count(ChunkWord(words()[i]), &use);
      if (chunk_words != nullptr) chunk_words->emplace_back(words()[i]);
    }
  }
  return use;
}

Result<LiveBytes> Survey::ReadLive(const HomeView& home, Deadline deadline) {
  const krcore::NodeId home_node = home.home.node;
  Superblock super;
  KRCORE_RETURN_IF_ERROR(Connect(home_node, deadline, &super));
  const SubtableGeometry geometry{super.groups_per_subtable};
  const uint64_t chunk_bytes = super.chunk_bytes;
  std::map<krcore::NodeId, std::vector<uint64_t>> tables, large;  // offsets
  constexpr uint64_t kDirectoryBytes = sizeof(uint64_t) << kMaxDepth;
  for (uint64_t at = 0; at < kDirectoryBytes; at += kBufferBytes) {
    KRCORE_RETURN_IF_ERROR(pool_->Read(kDirectoryOffset + at, kBufferBytes, deadline));
    for (const uint64_t word : words()) {
      const DirectoryEntry entry(word);
      if (entry.has_subtable()) tables[entry.subtable().node].push_back(entry.subtable().offset);
    }
  }
  LiveBytes live;
  std::vector<uint64_t> table(geometry.bytes() / sizeof(uint64_t));
  for (const auto& [node, offsets] : tables) {
    KRCORE_RETURN_IF_ERROR(Connect(node, deadline, &super));
    for (const uint64_t offset : offsets) {
      live[{node, offset / chunk_bytes}] += geometry.bytes();
      for (size_t at = 0; at < geometry.bytes(); at += kBufferBytes) {
        const size_t bytes = std::min(kBufferBytes, geometry.bytes() - at);
        KRCORE_RETURN_IF_ERROR(pool_->Read(offset + at, bytes, deadline));
        std::memcpy(table.data() + at / sizeof(uint64_t), words().data(), bytes);
      }
      for (uint32_t s = 0; s < geometry.slots(); ++s) {
        const Slot slot(table[SlotOffset(s) / sizeof(uint64_t)]);
        if (!slot.has_block()) continue;
        const GlobalAddress block = slot.block();
        if (slot.length_units() == kLargeBlock) {
          large[block.node].push_back(block.offset);
        } else {
          live[{block.node, block.offset / chunk_bytes}] += slot.length_units() * kUnitBytes;
        }
      }
    }
  }
  for (const auto& [node, offsets] : large) {
    KRCORE_RETURN_IF_ERROR(Connect(node, deadline, &super));
    for (const uint64_t offset : offsets) {
      KRCORE_RETURN_IF_ERROR(pool_->Read(offset, sizeof(BlockHeader), deadline));
      // A block that was replaced meanwhile may be anything.
      const BlockView block(reinterpret_cast<const std::byte*>(words().data()));
      live[{node, offset / chunk_bytes}] += std::min(block.bytes(), BlockBytes(kMaxKeyBytes, kMaxValueBytes, true));
    }
  }
  return live;
}

LiveUse UseOf(krcore::NodeId node, std::span<const ChunkWord> words, uint64_t chunk_bytes, const LiveBytes& live) {
  LiveUse use;
  for (size_t chunk = 0; chunk < words.size(); ++chunk) {
    const ChunkWord word = words[chunk];
    const bool run = word.kind() == ChunkKind::kRun;
    if (!run && word.kind() != ChunkKind::kBlocks && word.kind() != ChunkKind::kTables) continue;
    const uint64_t bytes = run ? word.count() * chunk_bytes : chunk_bytes;
    const auto found = live.find({node, chunk});
    const uint64_t named = found == live.end() ? 0 : std::min(found->second, bytes);
    use.live += named;
    uint64_t open = 0;
    if (word.kind() == ChunkKind::kTables) open = bytes - named;
    if (word.kind() == ChunkKind::kBlocks) open = std::min(chunk_bytes - word.cut_bytes(chunk_bytes), bytes - named);
    use.open += open;
    use.unswept += bytes - named - open;
  }
  return use;
}

}  // namespace kvs
