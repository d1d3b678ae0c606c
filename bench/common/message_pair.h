// Two nodes in one thread, one of which sends messages to the other.
#ifndef BENCH_COMMON_MESSAGE_PAIR_H_
#define BENCH_COMMON_MESSAGE_PAIR_H_

#include <memory>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace krcore {

class MessagePair {
 public:
  // Messages of up to `max_bytes`, `window` of them under way; all copied or none. Nodes `id` and `id + 1`, the first a
  // metadata server.
  MessagePair(const std::string& fabric, NodeId id, bool zero_copy, uint32_t max_bytes, size_t window)
      : max_bytes_(max_bytes),
        server_(fabric, id, true, zero_copy ? 0 : max_bytes, window * max_bytes),
        client_(fabric, id + 1, false, zero_copy ? 0 : max_bytes, window * max_bytes),
        messages_(window),
        completions_(window) {
    inbox_ = server_.pool->CreateQueue(1).value();
    outbox_ = client_.pool->CreateQueue(static_cast<uint32_t>(2 * window)).value();
    const BindOptions options{
        .senders = 1, .slots = static_cast<uint16_t>(2 * window), .copy_bytes = zero_copy ? 0 : max_bytes};
    Check(inbox_->Bind(kPort, options, Deadline::Never()));
    Check(outbox_->Connect(id, kPort, Deadline::Never()));
  }

  // `count` messages of `length`: from Push until the receiver has popped them all, and the sender their completions.
  // False: it failed.
  bool Send(size_t count, uint32_t length) {
    if (count != wrs_.size() || length != sges_[0].length) Prepare(count, length);
    if (!inbox_->PushRecv(receives_).ok()) return false;
    while (outbox_->credits() < count) client_.pool->Poll();
    if (!outbox_->Push(wrs_).ok()) return false;
    for (size_t arrived = 0, done = 0; arrived < count || done < count;) {
      server_.pool->Poll();
      const size_t messages = inbox_->PopMessages(messages_);
      client_.pool->Poll();
      const size_t completions = outbox_->Pop(completions_);
      if (!Succeeded(messages_, messages) || !Succeeded(completions_, completions)) return false;
      arrived += messages;
      done += completions;
    }
    return true;
  }

  std::span<std::byte> sent(size_t index, uint32_t length) { return client_.At(index * max_bytes_, length); }
  std::span<std::byte> received(size_t index, uint32_t length) { return server_.At(index * max_bytes_, length); }

 private:
  static constexpr Port kPort = 7;

  static void Check(const Status& status) {
    if (!status.ok()) DieOfMissingValue(status);
  }

  // Of the first `got`, each.
  template <typename Popped>
  static bool Succeeded(const std::vector<Popped>& popped, size_t got) {
    for (size_t i = 0; i < got; ++i)
      if (popped[i].status != WcStatus::kSuccess) return false;
    return true;
  }

  struct Party {
    std::unique_ptr<Node> node;
    std::unique_ptr<Region> memory;
    std::unique_ptr<QueuePool> pool;

    Party(const std::string& fabric, NodeId id, bool metaserver, uint32_t copy_bytes, size_t bytes) {
      node = Node::Open({.fabric = fabric, .node = id, .create_fabric = true}).value();
      if (metaserver) Check(node->HostMetaServer(16));
      memory = node->CreateRegion({.length = bytes, .remote_rights = kRemoteRead}).value();
      pool = node->CreateQueuePool({.copy_bytes = copy_bytes}).value();
    }
    std::span<std::byte> At(size_t offset, uint32_t length) const { return memory->bytes().subspan(offset, length); }
    Sge SgeAt(size_t offset, uint32_t length) const {
      return {reinterpret_cast<uint64_t>(memory->bytes().data()) + offset, length, memory->lkey()};
    }
  };

  void Prepare(size_t count, uint32_t length) {
    sges_.resize(count);
    wrs_.assign(count, {});
    receives_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      sges_[i] = client_.SgeAt(i * max_bytes_, length);
      wrs_[i].sg_list = &sges_[i];
      wrs_[i].num_sge = 1;
      wrs_[i].opcode = Opcode::kSend;
      receives_[i] = {i, server_.SgeAt(i * max_bytes_, max_bytes_)};
    }
  }

  uint32_t max_bytes_;
  Party server_, client_;
  std::unique_ptr<VirtualQueue> inbox_, outbox_;
  std::vector<Sge> sges_;
  std::vector<WorkRequest> wrs_;
  std::vector<Receive> receives_;
  std::vector<Message> messages_;
  std::vector<Completion> completions_;
};

}  // namespace krcore

#endif  // BENCH_COMMON_MESSAGE_PAIR_H_
