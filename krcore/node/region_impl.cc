#include "krcore/node/region_impl.h"

#include <string>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/node/node_impl.h"

namespace krcore::node {

Status CheckRegionOptions(const RegionOptions& options) {
  constexpr uint32_t kAllRemoteRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;
  if (options.length == 0) return {StatusCode::kInvalidArgument, "a region needs a length"};
  if ((options.remote_rights & ~kAllRemoteRights) != 0)
    return {StatusCode::kInvalidArgument, "remote_rights has a bit that is not a remote right"};
  if (options.remote_rights == 0 && (!options.name.empty() || options.keep_on_close))
    return {StatusCode::kInvalidArgument, "only a region with remote rights can have a name"};
  return {};
}

Status TooManyRegions() {
  return {StatusCode::kInvalidArgument,
          "a node announces at most " + std::to_string(kMaxRegionsPerNode) + " regions with remote rights"};
}

RegionImpl::RegionImpl(peers::RegionTable& table, NodeImpl* node, RegionParts parts)
    : table_(table),
      node_(node),
      parts_(std::move(parts)),
      bytes_(static_cast<std::byte*>(parts_.mr->addr()), parts_.mr->length()),
      lkey_(parts_.mr->lkey()),
      rkey_(parts_.mr->rkey()) {
  table_.Add({reinterpret_cast<uint64_t>(parts_.mr->addr()), parts_.mr->length(), lkey_,
              kLocalWrite | parts_.remote_rights, rkey_});
}

RegionImpl::~RegionImpl() {
  if (parts_.remote_memory) node_->RemoveRemote(rkey());
  DestroyKeys();  // before the memory
}

void RegionImpl::DestroyKeys() {
  if (parts_.mr == nullptr) return;
  table_.Remove(lkey_);
  parts_.mr.reset();
}

Status RegionImpl::Deregister(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (parts_.mr == nullptr) return {};
  if (parts_.remote_memory) {
    if (!quiet_ns_) {
      auto quiet_ns = node_->Withdraw(rkey_, deadline);
      if (!quiet_ns.ok()) return quiet_ns.status();
      quiet_ns_ = *quiet_ns;
    }
    Clock& clock = node_->clock();
    for (uint32_t spins = 0; clock.NowNs() < *quiet_ns_; ++spins) {
      if (deadline.Passed(clock)) return {StatusCode::kTimeout, "peers' leases on the region have not run out yet"};
      clock.Relax(spins);
    }
  }
  DestroyKeys();
  return {};
}

Status RegionImpl::CollapseToHugePages(size_t offset, size_t length) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (parts_.remote_memory) return parts_.remote_memory->CollapseToHugePages(offset, length);
  return krcore::CollapseToHugePages(bytes(), offset, length);
}

}  // namespace krcore::node
