#include "krcore/node/region_impl.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/node/node_impl.h"

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25  // Linux 6.1, newer than Debian 12's libc headers
#endif

namespace krcore::node {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Result<std::unique_ptr<PrivateMemory>> PrivateMemory::Allocate(size_t length) {
  KRCORE_RETURN_IF_ERROR(CheckCgroupMemory(length));
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = huge ? length + kHugePageBytes : length;
  void* const mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return Status::FromErrno(errno, "mmap of " + std::to_string(mapped) + " bytes");
  auto start = reinterpret_cast<uintptr_t>(mapping);
  if (huge) {
    start = (start + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    // Advice only: without huge pages everything works, but slower.
    (void)madvise(reinterpret_cast<void*>(start), length, MADV_HUGEPAGE);
  }
  return std::unique_ptr<PrivateMemory>(
      new PrivateMemory(mapping, mapped, {reinterpret_cast<std::byte*>(start), length}));
}

PrivateMemory::~PrivateMemory() { munmap(mapping_, mapped_); }

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

RegionImpl::RegionImpl(NodeImpl& node, RegionParts parts)
    : node_(node),
      parts_(std::move(parts)),
      bytes_(static_cast<std::byte*>(parts_.mr->addr()), parts_.mr->length()),
      lkey_(parts_.mr->lkey()),
      rkey_(parts_.mr->rkey()) {
  node_.local_regions().Add({reinterpret_cast<uint64_t>(parts_.mr->addr()), parts_.mr->length(), lkey_,
                             kLocalWrite | parts_.remote_rights, rkey_});
}

RegionImpl::~RegionImpl() {
  if (parts_.remote_memory) node_.RemoveRemote(rkey());
  DestroyKeys();  // before the memory
}

void RegionImpl::DestroyKeys() {
  if (parts_.mr == nullptr) return;
  node_.local_regions().Remove(lkey_);
  parts_.mr.reset();
}

Status RegionImpl::Deregister(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (parts_.mr == nullptr) return {};
  if (parts_.remote_memory) {
    if (!quiet_ns_) {
      auto quiet_ns = node_.Withdraw(rkey_, deadline);
      if (!quiet_ns.ok()) return quiet_ns.status();
      quiet_ns_ = *quiet_ns;
    }
    Clock& clock = node_.clock();
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
  const std::span<std::byte> all = bytes();
  if (offset > all.size() || length > all.size() - offset)
    return {StatusCode::kInvalidArgument, "range outside the region"};
  if (parts_.remote_memory) return parts_.remote_memory->CollapseToHugePages(offset, length);
  // Only whole huge pages inside the range; partial ones at its ends stay as they are.
  const auto begin = reinterpret_cast<uintptr_t>(all.data() + offset);
  const uintptr_t first = (begin + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uintptr_t last = (begin + length) & ~(kHugePageBytes - 1);
  if (first >= last) return {};
  if (madvise(reinterpret_cast<void*>(first), last - first, MADV_COLLAPSE) == 0) return {};
  if (errno == EINVAL) return {StatusCode::kUnsupported, "this kernel cannot collapse to huge pages"};
  return Status::FromErrno(errno, "madvise(MADV_COLLAPSE)");
}

}  // namespace krcore::node
