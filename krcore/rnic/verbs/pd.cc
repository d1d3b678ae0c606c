#include "krcore/rnic/verbs/pd.h"

#include <cerrno>
#include <vector>

#include "krcore/rnic/verbs/mlx5_dc.h"
#include "krcore/rnic/verbs/qp.h"
#include "krcore/rnic/verbs/software_dci.h"
#include "krcore/rnic/verbs/software_dct.h"

namespace krcore::rnic::verbs {
namespace {

constexpr size_t kMaxTries = 64;  // to get a key that was not used lately

struct MrDeleter {
  void operator()(ibv_mr* mr) const { ibv_dereg_mr(mr); }
};
using MrPtr = std::unique_ptr<ibv_mr, MrDeleter>;

// An MR without remote rights may have no rkey: 0, as any other.
uint32_t KeyOf(const ibv_mr& mr) { return mr.rkey != 0 ? mr.rkey : mr.lkey; }

class VerbsMr final : public Mr {
 public:
  VerbsMr(SharedDevice* device, Regions* regions, MrPtr mr, uint32_t access_rights)
      : device_(device), regions_(regions), mr_(std::move(mr)) {
    addr_ = mr_->addr;
    length_ = mr_->length;
    lkey_ = mr_->lkey;
    rkey_ = mr_->rkey;
    if (device_->caps.software_dc) regions_->Add(*this, access_rights);
  }
  ~VerbsMr() override {
    // Software that found it is done with it, and so is the device with the atomics that software handed to it.
    if (device_->caps.software_dc) {
      regions_->Remove(*this);
      if (Agent* const agent = device_->agent.made(); agent != nullptr) agent->AwaitAtomics(regions_);
    }
    device_->recent_keys.Add(KeyOf(*mr_));
  }

 private:
  SharedDevice* const device_;
  Regions* const regions_;
  MrPtr mr_;
};

Status CheckReceives(uint32_t rq_depth, const Cq* recv_cq, uint32_t limit) {
  if (rq_depth > limit)
    return {StatusCode::kInvalidArgument,
            "rq_depth " + std::to_string(rq_depth) + " is above " + std::to_string(limit)};
  if (rq_depth > 0 && recv_cq == nullptr) return {StatusCode::kInvalidArgument, "receives need a recv CQ"};
  return {};
}

}  // namespace

Result<std::unique_ptr<Pd>> VerbsPd::Create(SharedDevice* device) {
  ibv_pd* const pd = ibv_alloc_pd(device->context->get());
  if (pd == nullptr) return FailedCall(errno, "allocate a PD");
  const auto index = device->address_handles.AddPd(pd);
  if (!index.ok()) {
    ibv_dealloc_pd(pd);
    return index.status();
  }
  return std::unique_ptr<Pd>(new VerbsPd(device, pd, *index));
}

VerbsPd::~VerbsPd() {
  device_->address_handles.RemovePd(index_);
  ibv_dealloc_pd(pd_);
}

Result<std::unique_ptr<Mr>> VerbsPd::RegisterMemory(void* addr, size_t length, uint32_t access_rights) {
  if (addr == nullptr || length == 0)
    return Status(StatusCode::kInvalidArgument, "an MR needs an address and a length");
  if ((access_rights & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_rights & kLocalWrite) == 0)
    return Status(StatusCode::kInvalidArgument, "remote write and atomic rights require local write");
  std::vector<MrPtr> refused;  // held, so that their keys do not come again
  while (refused.size() < kMaxTries) {
    MrPtr mr(ibv_reg_mr(pd_, addr, length, static_cast<int>(ToAccessFlags(access_rights))));
    if (mr == nullptr) {
      return FailedCall(errno, "register " + std::to_string(length) + " bytes");
    }
    if (!device_->recent_keys.Has(KeyOf(*mr)))
      return std::unique_ptr<Mr>(std::make_unique<VerbsMr>(device_, &regions_, std::move(mr), access_rights));
    refused.push_back(std::move(mr));
  }
  return Status(StatusCode::kUnavailable, "the device has no key that was not in use lately");
}

Result<std::unique_ptr<Qp>> VerbsPd::CreateQp(const QpAttr& attr) {
  if (attr.host_qp != kPrivateQp) return Status(StatusCode::kUnsupported, "processes share no queues of this provider");
  if (attr.send_cq == nullptr) return Status(StatusCode::kInvalidArgument, "a QP needs a send CQ");
  const uint32_t limit = device_->caps.max_qp_wr;
  if (attr.sq_depth == 0 || attr.sq_depth > limit)
    return Status(StatusCode::kInvalidArgument, "sq_depth is not 1 to " + std::to_string(limit));
  if (attr.rq_depth > 0 && attr.type == QpType::kDci)
    return Status(StatusCode::kInvalidArgument, "a DC initiator receives nothing: its rq_depth is 0");
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.recv_cq, limit));
  if (attr.type != QpType::kDci) return VerbsQp::Create(device_, pd_, index_, attr);
  if (device_->dc == DcKind::kSoftware) return SoftwareDci::Create(device_, pd_, index_, &regions_, attr);
  return CreateMlx5Dci(device_, pd_, index_, attr);
}

Result<std::unique_ptr<Dct>> VerbsPd::CreateDct(const DctAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.recv_cq, device_->caps.max_qp_wr));
  if (device_->dc == DcKind::kSoftware) return SoftwareDct::Create(device_, pd_, &regions_, attr);
  return CreateMlx5Dct(device_, pd_, attr);
}

}  // namespace krcore::rnic::verbs
