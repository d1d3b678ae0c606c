#include "krcore/rnic/sim/pd.h"

#include <string>

#include "krcore/rnic/sim/dct.h"
#include "krcore/rnic/sim/limits.h"
#include "krcore/rnic/sim/qp.h"

namespace krcore::rnic::sim {
namespace {

constexpr size_t kPageBytes = 4096;

class SimMr final : public Mr {
 public:
  SimMr(DeviceState* device, void* addr, size_t length, uint32_t key) : device_(device) {
    addr_ = addr;
    length_ = length;
    lkey_ = rkey_ = key;
  }
  ~SimMr() override { device_->mrs.Remove(lkey_); }

 private:
  DeviceState* const device_;
};

Status CheckReceives(uint32_t rq_depth, uint32_t max_recv_bytes) {
  if (rq_depth > kMaxQpWr) {
    return {StatusCode::kInvalidArgument,
            "rq_depth " + std::to_string(rq_depth) + " is above " + std::to_string(kMaxQpWr)};
  }
  if (rq_depth > 0 && max_recv_bytes > kMaxRecvBytes) {
    return {StatusCode::kInvalidArgument, "max_recv_bytes is above " + std::to_string(kMaxRecvBytes)};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Mr>> SimPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  KRCORE_RETURN_IF_ERROR(fabric_->CheckAlive(*device_));
  if (addr == nullptr || length == 0)
    return Status(StatusCode::kInvalidArgument, "an MR needs an address and a length");
  if ((access_rights & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_rights & kLocalWrite) == 0) {
    return Status(StatusCode::kInvalidArgument, "remote write and atomic rights require local write");
  }
  auto key = device_->mrs.Add(number_, addr, length, access_rights);
  if (!key.ok()) return key.status();
  const CostModel& cost = fabric_->engine().cost();
  const auto pages = static_cast<int64_t>((length + kPageBytes - 1) / kPageBytes);
  device_->control_ns += cost.register_ns + pages * cost.register_page_ns;
  return std::unique_ptr<Mr>(std::make_unique<SimMr>(device_, addr, length, *key));
}

Result<std::unique_ptr<Qp>> SimPd::CreateQp(const QpAttr& attr) {
  if (attr.host_qp != kPrivateQp) return Status(StatusCode::kUnsupported, "processes of a simulated host share no QPs");
  if (attr.send_cq == nullptr) return Status(StatusCode::kInvalidArgument, "a QP needs a send CQ");
  if (attr.sq_depth == 0 || attr.sq_depth > kMaxQpWr) {
    return Status(StatusCode::kInvalidArgument, "sq_depth is not 1 to " + std::to_string(kMaxQpWr));
  }
  if (attr.rq_depth > 0 && (attr.recv_cq == nullptr || attr.type == QpType::kDci)) {
    return Status(StatusCode::kInvalidArgument, "receives need a recv CQ, and a DC initiator has none");
  }
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.max_recv_bytes));
  return SimQp::Create(fabric_, device_, attr, number_);
}

Result<std::unique_ptr<Dct>> SimPd::CreateDct(const DctAttr& attr) {
  if (attr.rq_depth > 0 && attr.recv_cq == nullptr)
    return Status(StatusCode::kInvalidArgument, "receives need a recv CQ");
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.max_recv_bytes));
  return SimDct::Create(fabric_, device_, attr, number_);
}

}  // namespace krcore::rnic::sim
