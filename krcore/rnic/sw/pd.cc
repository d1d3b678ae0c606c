#include "krcore/rnic/sw/pd.h"

#include "krcore/rnic/sw/dct.h"
#include "krcore/rnic/sw/limits.h"
#include "krcore/rnic/sw/qp.h"

namespace krcore::rnic::sw {
namespace {

class SwMr final : public Mr {
 public:
  SwMr(SharedDevice* device, void* addr, size_t length, uint32_t key) : device_(device) {
    addr_ = addr;
    length_ = length;
    lkey_ = rkey_ = key;
  }
  ~SwMr() override { device_->tables.RemoveMr(lkey_); }

 private:
  SharedDevice* const device_;
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

Result<std::unique_ptr<Mr>> SwPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  if (addr == nullptr || length == 0)
    return Status(StatusCode::kInvalidArgument, "an MR needs an address and a length");
  if ((access_rights & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_rights & kLocalWrite) == 0) {
    return Status(StatusCode::kInvalidArgument, "remote write and atomic rights require local write");
  }
  auto key = device_->tables.AddMr(number_, addr, length, access_rights);
  if (!key.ok()) return key.status();
  return std::unique_ptr<Mr>(std::make_unique<SwMr>(device_, addr, length, *key));
}

Result<std::unique_ptr<Qp>> SwPd::CreateQp(const QpAttr& attr) {
  if (attr.send_cq == nullptr) return Status(StatusCode::kInvalidArgument, "a QP needs a send CQ");
  if (attr.sq_depth == 0 || attr.sq_depth > kMaxQpWr) {
    return Status(StatusCode::kInvalidArgument, "sq_depth is not 1 to " + std::to_string(kMaxQpWr));
  }
  if (attr.rq_depth > 0 && (attr.recv_cq == nullptr || attr.type == QpType::kDci)) {
    return Status(StatusCode::kInvalidArgument, "receives need a recv CQ, and a DC initiator has none");
  }
  if (attr.host_qp != kPrivateQp && attr.type != QpType::kDci)
    return Status(StatusCode::kInvalidArgument, "a host shares DC initiators only");
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.max_recv_bytes));
  return SwQp::Create(device_, attr, number_);
}

Result<std::unique_ptr<Dct>> SwPd::CreateDct(const DctAttr& attr) {
  if (attr.rq_depth > 0 && attr.recv_cq == nullptr)
    return Status(StatusCode::kInvalidArgument, "receives need a recv CQ");
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.max_recv_bytes));
  return SwDct::Create(device_, attr, number_);
}

}  // namespace krcore::rnic::sw
