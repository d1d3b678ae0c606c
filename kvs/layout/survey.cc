#include "kvs/layout/survey.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

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

// Some word that NICs may be changing. Orders nothing.
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
      // With them the READ, which would else arrive in the buffer of a later one.
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
      view.clients += entry.owner != 0 && ClientWord(entry.word).state() == ClientState::kAlive ? 1 : 0;
    }
  }
  return view;
}

Result<PoolUse> Survey::ReadPool(krcore::NodeId node, Deadline deadline) {
  Superblock super;
  KRCORE_RETURN_IF_ERROR(ReadSuperblock(node, deadline, &super));
  PoolUse use;
  use.chunk_bytes = super.chunk_bytes;
  constexpr uint64_t kWindow = kBufferBytes / sizeof(ChunkWord);
  for (uint64_t begin = 0; begin < super.chunks; begin += kWindow) {
    const uint64_t window = std::min(kWindow, super.chunks - begin);
    KRCORE_RETURN_IF_ERROR(Read(ChunkWordOffset(begin), window * sizeof(ChunkWord), deadline));
    for (uint64_t i = 0; i < window; ++i) Count(ChunkWord(buffer_[i]), &use);
  }
  return use;
}

}  // namespace kvs
