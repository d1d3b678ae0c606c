#include "kvs/memory/remote_pool.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace kvs {

using krcore::Deadline;
using krcore::NodeId;
using krcore::Opcode;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

const krcore::RemoteRegion* PoolRegionOf(const krcore::VirtualQueue& queue) {
  for (const krcore::RemoteRegion& region : queue.regions()) {
    if (region.tag == kPoolRegionTag) return &region;
  }
  return nullptr;
}

Result<HomeRecord> HomeRecordOf(const Result<std::vector<std::byte>>& answer) {
  if (!answer.ok()) return answer.status();
  HomeRecord home{};
  if (answer->size() != sizeof(home)) return Status(StatusCode::kCorrupt, "the home record has another size");
  std::memcpy(&home, answer->data(), sizeof(home));
  return home;
}

Result<Configuration> ReadConfiguration(krcore::Node& node, Deadline deadline, uint64_t* version) {
  const auto record = node.ReadRecord(kConfigurationRecord, deadline);
  if (!record.ok()) return record.status();
  if (version != nullptr) *version = record->version;
  if (record->version == 0) return Status(StatusCode::kNotFound, "the store's pools are not mirrored");
  return DecodeConfiguration(record->value);
}

Status ChangeConfiguration(krcore::Node& node, Deadline deadline, const std::function<bool(Configuration&)>& change) {
  for (;;) {
    uint64_t version = 0;
    Result<Configuration> read = ReadConfiguration(node, deadline, &version);
    if (!read.ok()) return read.status();
    if (!change(*read)) return StatusCode::kBadState;
    const Status set = node.CompareAndSetRecord(kConfigurationRecord, version, Encode(*read), deadline);
    if (set != StatusCode::kExists) return set;
    if (deadline.Passed(node.clock())) return StatusCode::kTimeout;
  }
}

bool IsDead(krcore::Node& node, const Replica& replica) {
  return node.IsConfirmedDead(replica.node, replica.incarnation);
}

Result<std::unique_ptr<RemotePool>> RemotePool::Create(krcore::Node& node, size_t buffer_bytes) {
  std::unique_ptr<RemotePool> pool(new RemotePool(node));
  pool->buffer_.resize(buffer_bytes / sizeof(uint64_t));
  auto memory = node.RegisterLocal(pool->buffer_.data(), buffer_bytes);
  if (!memory.ok()) return memory.status();
  pool->memory_ = *std::move(memory);
  return pool;
}

Status RemotePool::Connect(NodeId memory_node, Deadline deadline) {
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
  KRCORE_RETURN_IF_ERROR(queue_->Connect(memory_node, deadline));
  const krcore::RemoteRegion* region = PoolRegionOf(*queue_);
  if (region == nullptr) {
    return {StatusCode::kUnavailable, "node " + std::to_string(memory_node) + " exposes no memory"};
  }
  region_ = *region;
  return Status::Ok();
}

Status RemotePool::Connect(const Replica& replica, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(Connect(replica.node, deadline));
  // Its successor can only have been reached if it is dead by now.
  if (!IsDead(node_, replica)) return Status::Ok();
  queue_.reset();
  return {StatusCode::kUnavailable, "node " + std::to_string(replica.node) + " was restarted"};
}

Status RemotePool::Connect(const Replica& replica, Deadline deadline, Superblock* super) {
  KRCORE_RETURN_IF_ERROR(Connect(replica, deadline));
  return ReadSuperblock(replica.node, deadline, super);
}

Status RemotePool::Connect(NodeId memory_node, Deadline deadline, Superblock* super) {
  KRCORE_RETURN_IF_ERROR(Connect(memory_node, deadline));
  return ReadSuperblock(memory_node, deadline, super);
}

Status RemotePool::ReadSuperblock(NodeId memory_node, Deadline deadline, Superblock* super) {
  KRCORE_RETURN_IF_ERROR(Read(0, sizeof(*super), deadline));
  std::memcpy(super, buffer_.data(), sizeof(*super));
  return CheckLayout(*super, memory_node);
}

Status RemotePool::Read(uint64_t offset, size_t bytes, Deadline deadline) {
  krcore::WorkRequest wr;
  wr.opcode = Opcode::kRead;
  return Run(wr, offset, bytes, deadline);
}

Status RemotePool::Write(uint64_t offset, uint64_t word, Deadline deadline) {
  buffer_[0] = word;
  krcore::WorkRequest wr;
  wr.opcode = Opcode::kWrite;
  return Run(wr, offset, sizeof(word), deadline);
}

Status RemotePool::CompareSwap(uint64_t offset, uint64_t expected, uint64_t desired, Deadline deadline) {
  krcore::WorkRequest wr;
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = expected;
  wr.swap = desired;
  return Run(wr, offset, sizeof(uint64_t), deadline);
}

Status RemotePool::Run(krcore::WorkRequest wr, uint64_t offset, size_t bytes, Deadline deadline) {
  const krcore::Sge sge{reinterpret_cast<uint64_t>(buffer_.data()), static_cast<uint32_t>(bytes), memory_->lkey()};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = region_.addr + offset;
  wr.rkey = region_.rkey;
  KRCORE_RETURN_IF_ERROR(queue_->Push({&wr, 1}));
  std::array<krcore::Completion, 1> done;
  for (uint32_t spins = 0; queue_->Pop(done) == 0; ++spins) {
    if (deadline.Passed(node_.clock())) {
      const NodeId peer = queue_->peer();
      // This also ends the verb, whose data would otherwise arrive in the buffer of a later one.
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

}  // namespace kvs
