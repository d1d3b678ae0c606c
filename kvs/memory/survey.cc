#include "kvs/memory/survey.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

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
  std::unique_ptr<Survey> survey(new Survey(node));
  survey->buffer_.resize(kBufferBytes / sizeof(uint64_t));
  auto memory = node.RegisterLocal(survey->buffer_.data(), kBufferBytes);
  if (!memory.ok()) return memory.status();
  survey->memory_ = *std::move(memory);
  return survey;
}

Status Survey::Connect(krcore::NodeId node, Deadline deadline) {
  queue_.reset();
  if (pool_ == nullptr) {
    krcore::QueuePoolOptions options;
    options.dc_initiators = 1;
    options.sq_depth = 16;
    options.max_rc_queues = 0;
    auto pool = node_.CreateQueuePool(options);
    if (!pool.ok()) return pool.status();
    pool_ = *std::move(pool);
  }
  auto queue = pool_->CreateQueue(4);
  if (!queue.ok()) return queue.status();
  queue_ = *std::move(queue);
  KRCORE_RETURN_IF_ERROR(queue_->Connect(node, deadline));
  for (const krcore::RemoteRegion& region : queue_->regions()) {
    if (region.tag != kPoolRegionTag) continue;
    region_ = region;
    return Status::Ok();
  }
  return {StatusCode::kUnavailable, "node " + std::to_string(node) + " exposes no memory"};
}

Status Survey::Read(uint64_t offset, size_t bytes, Deadline deadline) {
  const krcore::Sge sge{reinterpret_cast<uint64_t>(buffer_.data()), static_cast<uint32_t>(bytes), memory_->lkey()};
  krcore::WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = region_.addr + offset;
  wr.rkey = region_.rkey;
  KRCORE_RETURN_IF_ERROR(queue_->Push({&wr, 1}));
  std::array<krcore::Completion, 1> done;
  for (uint32_t spins = 0; queue_->Pop(done) == 0; ++spins) {
    if (deadline.Passed(node_.clock())) {
      const krcore::NodeId peer = queue_->peer();
      // This also ends the READ, which would otherwise arrive in the buffer of a later one.
      queue_.reset();
      pool_.reset();
      return {StatusCode::kTimeout, "node " + std::to_string(peer) + " does not answer"};
    }
    if (pool_->Poll() == 0) node_.clock().Relax(spins);
  }
  if (done[0].status == krcore::WcStatus::kSuccess) return Status::Ok();
  return {StatusCode::kUnavailable, "node " + std::to_string(queue_->peer()) +
                                        " cannot be reached: " + std::string(WcStatusName(done[0].status))};
}

Status Survey::ReadSuperblock(krcore::NodeId node, Deadline deadline, Superblock* super) {
  KRCORE_RETURN_IF_ERROR(Connect(node, deadline));
  KRCORE_RETURN_IF_ERROR(Read(0, sizeof(*super), deadline));
  std::memcpy(super, buffer_.data(), sizeof(*super));
  return CheckLayout(*super, node);
}

Result<HomeView> Survey::ReadHome(Deadline deadline) {
  const auto value = node_.LookupService(kHomeService, deadline);
  if (!value.ok()) return value.status();
  HomeRecord home{};
  if (value->size() != sizeof(home)) return Status(StatusCode::kCorrupt, "the home record has another size");
  std::memcpy(&home, value->data(), sizeof(home));
  return ReadHome(home, deadline);
}

Result<HomeView> Survey::ReadHome(const HomeRecord& home, Deadline deadline) {
  HomeView view;
  view.home = home;
  static_assert(offsetof(HomeArea, members) == 0 && offsetof(HomeArea, mover) <= kBufferBytes);
  Superblock super;
  KRCORE_RETURN_IF_ERROR(ReadSuperblock(view.home.node, deadline, &super));
  KRCORE_RETURN_IF_ERROR(Read(kHomeAreaOffset, offsetof(HomeArea, mover), deadline));
  for (uint32_t id = 1; id <= krcore::kMaxMemoryNode; ++id) {
    const MemberWord member(buffer_[id]);  // the list is the area's beginning
    if (member.state() != MemberState::kNone) view.members.push_back({id, member.incarnation(), member.state()});
  }
  view.epoch = buffer_[offsetof(HomeArea, epoch) / sizeof(uint64_t)];
  view.mover = buffer_[offsetof(HomeArea, mover) / sizeof(uint64_t)];
  constexpr size_t kClientsUsed = offsetof(HomeArea, counters) + offsetof(HomeCounters, clients_used);
  const uint64_t used = std::min<uint64_t>(buffer_[kClientsUsed / sizeof(uint64_t)], kMaxClients);
  constexpr uint64_t kWindow = kBufferBytes / sizeof(ClientEntry);
  for (uint64_t begin = 0; begin < used; begin += kWindow) {
    const uint64_t window = std::min(kWindow, used - begin);
    constexpr uint64_t kClients = kHomeAreaOffset + offsetof(HomeArea, clients);
    KRCORE_RETURN_IF_ERROR(Read(kClients + begin * sizeof(ClientEntry), window * sizeof(ClientEntry), deadline));
    for (uint64_t i = 0; i < window; ++i) {
      ClientEntry entry;
      std::memcpy(&entry, buffer_.data() + i * sizeof(entry) / sizeof(uint64_t), sizeof(entry));
      if (entry.owner != 0) view.entries.emplace_back(static_cast<uint32_t>(begin + i), entry);
      view.clients += entry.owner != 0 && ClientWord(entry.word).state() == ClientState::kAlive ? 1 : 0;
    }
  }
  return view;
}

Result<PoolUse> Survey::ReadPool(krcore::NodeId node, Deadline deadline, std::vector<ChunkWord>* words) {
  if (words != nullptr) words->clear();
  Superblock super;
  KRCORE_RETURN_IF_ERROR(ReadSuperblock(node, deadline, &super));
  PoolUse use;
  use.chunk_bytes = super.chunk_bytes;
  constexpr uint64_t kWindow = kBufferBytes / sizeof(ChunkWord);
  for (uint64_t begin = 0; begin < super.chunks; begin += kWindow) {
    const uint64_t window = std::min(kWindow, super.chunks - begin);
    KRCORE_RETURN_IF_ERROR(Read(ChunkWordOffset(begin), window * sizeof(ChunkWord), deadline));
    for (uint64_t i = 0; i < window; ++i) {
      Count(ChunkWord(buffer_[i]), &use);
      if (words != nullptr) words->emplace_back(buffer_[i]);
    }
  }
  return use;
}

Result<LiveBytes> Survey::ReadLive(const HomeView& home, Deadline deadline) {
  const krcore::NodeId home_node = home.home.node;
  Superblock super;
  KRCORE_RETURN_IF_ERROR(ReadSuperblock(home_node, deadline, &super));
  const SubtableGeometry geometry{super.groups_per_subtable};
  const uint64_t chunk_bytes = super.chunk_bytes;
  std::map<krcore::NodeId, std::vector<uint64_t>> tables, large;  // offsets
  constexpr uint64_t kDirectoryBytes = sizeof(uint64_t) << kMaxDepth;
  for (uint64_t at = 0; at < kDirectoryBytes; at += kBufferBytes) {
    KRCORE_RETURN_IF_ERROR(Read(kDirectoryOffset + at, kBufferBytes, deadline));
    for (const uint64_t word : buffer_) {
      const DirectoryEntry entry(word);
      if (entry.has_subtable()) tables[entry.subtable().node].push_back(entry.subtable().offset);
    }
  }
  LiveBytes live;
  std::vector<uint64_t> table(geometry.bytes() / sizeof(uint64_t));
  for (const auto& [node, offsets] : tables) {
    KRCORE_RETURN_IF_ERROR(Connect(node, deadline));
    for (const uint64_t offset : offsets) {
      live[{node, offset / chunk_bytes}] += geometry.bytes();
      for (size_t at = 0; at < geometry.bytes(); at += kBufferBytes) {
        const size_t bytes = std::min(kBufferBytes, geometry.bytes() - at);
        KRCORE_RETURN_IF_ERROR(Read(offset + at, bytes, deadline));
        std::memcpy(table.data() + at / sizeof(uint64_t), buffer_.data(), bytes);
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
    KRCORE_RETURN_IF_ERROR(Connect(node, deadline));
    for (const uint64_t offset : offsets) {
      KRCORE_RETURN_IF_ERROR(Read(offset, sizeof(BlockHeader), deadline));
      // A block that was replaced meanwhile may be anything.
      const BlockView block(reinterpret_cast<const std::byte*>(buffer_.data()));
      live[{node, offset / chunk_bytes}] += std::min(block.bytes(), BlockBytes(kMaxKeyBytes, kMaxValueBytes));
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
