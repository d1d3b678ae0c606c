// What bench_vqp compares: batches of requests, the sides that execute them, and the bare side, a DC initiator of the
// software NIC.
#ifndef BENCH_QUEUES_BATCHES_H_
#define BENCH_QUEUES_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/virtual_queue.h"

namespace krcore {

inline constexpr size_t kBytes = 1 << 20;  // of the remote and the local region
inline constexpr size_t kWorkers = 2;
inline constexpr uint32_t kDepth = 512;  // of the bare QP and of the pool's initiator
inline constexpr uint32_t kRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;

struct Shape {
  Opcode opcode = Opcode::kRead;
  size_t batch = 16;
  bool all_signaled = true;  // else the last of a batch
};

// The same batch for both sides: neighbouring lines of the worker's half of each region.
template <typename Wr>
class Batch {
 public:
  Batch(const Shape& shape, size_t worker, std::byte* local, uint32_t lkey, uint64_t remote, uint32_t rkey)
      : sges_(shape.batch), wrs_(shape.batch), out_(shape.batch) {
    const size_t offset = worker * (kBytes / kWorkers);
    for (size_t i = 0; i < shape.batch; ++i) {
      sges_[i] = {reinterpret_cast<uint64_t>(local) + offset + 64 * i, shape.opcode == Opcode::kRead ? 64u : 8u, lkey};
      Wr& wr = wrs_[i];
      wr.wr_id = i;
      wr.sg_list = &sges_[i];
      wr.num_sge = 1;
      wr.opcode = shape.opcode;
      wr.flags = shape.all_signaled || i + 1 == shape.batch ? kSignaled : 0;
      wr.remote_addr = remote + offset + 64 * i;
      wr.rkey = rkey;
    }
    completions_ = shape.all_signaled ? shape.batch : 1;
  }
  std::vector<Wr>& wrs() { return wrs_; }
  std::vector<Completion>& out() { return out_; }
  size_t completions() const { return completions_; }

 private:
  std::vector<Sge> sges_;
  std::vector<Wr> wrs_;
  std::vector<Completion> out_;
  size_t completions_;
};

// One way to execute batches, in one worker.
class Side {
 public:
  virtual ~Side() = default;
  virtual bool Run(size_t batches) = 0;
};

// ---- the bare RNIC: a CQ and a DC initiator for each worker, on one device

struct BareNode {
  std::unique_ptr<rnic::Device> device;
  std::unique_ptr<rnic::Pd> pd;
  std::unique_ptr<rnic::Memory> remote, local;
  std::unique_ptr<rnic::Mr> remote_mr, local_mr;
  std::unique_ptr<rnic::Dct> dct;
  std::unique_ptr<rnic::AddressHandle> ah;

  explicit BareNode(const std::string& fabric) {
    device = rnic::OpenDevice({.provider = "sw", .fabric = fabric, .node = 1, .create_fabric = true}).value();
    pd = device->CreatePd().value();
    remote = device->AllocMemory(kBytes, {}).value();
    local = device->AllocMemory(kBytes, {}).value();
    remote_mr = pd->RegisterMemory(remote->bytes().data(), kBytes, kLocalWrite | kRights).value();
    local_mr = pd->RegisterMemory(local->bytes().data(), kBytes, kLocalWrite).value();
    dct = pd->CreateDct({.dc_key = 1}).value();
    ah = device->CreateAddressHandle(device->address()).value();
  }
};

class BareSide final : public Side {
 public:
  BareSide(BareNode& node, const Shape& shape, size_t worker)
      : batch_(shape, worker, node.local->bytes().data(), node.local_mr->lkey(),
               reinterpret_cast<uint64_t>(node.remote->bytes().data()), node.remote_mr->rkey()) {
    cq_ = node.device->CreateCq(kDepth).value();
    qp_ =
        node.pd->CreateQp({.type = rnic::QpType::kDci, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = kDepth})
            .value();
    ready_ = qp_->ToInit(0, 0).ok() && qp_->ToRtr({}).ok() && qp_->ToRts().ok();
    for (rnic::SendWr& wr : batch_.wrs()) {
      wr.ah = node.ah.get();
      wr.remote_qpn = node.dct->num();
      wr.dc_key = node.dct->dc_key();
    }
  }
  bool Run(size_t batches) override {
    if (!ready_) return false;
    for (size_t i = 0; i < batches; ++i) {
      size_t bad = 0;
      if (!qp_->PostSend(batch_.wrs(), &bad).ok()) return false;
      for (size_t got = 0; got < batch_.completions();) got += cq_->Poll(batch_.out());
    }
    return batch_.out()[0].status == WcStatus::kSuccess;
  }

 private:
  Batch<rnic::SendWr> batch_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
  bool ready_ = false;
};

}  // namespace krcore

#endif  // BENCH_QUEUES_BATCHES_H_
