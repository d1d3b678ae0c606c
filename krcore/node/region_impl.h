// RegionImpl: memory and its MR. The memory is the device's (remote rights), private, or the caller's.
#ifndef KRCORE_NODE_REGION_IMPL_H_
#define KRCORE_NODE_REGION_IMPL_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "krcore/base/os.h"
#include "krcore/node.h"
#include "krcore/peers/region_table.h"
#include "krcore/rnic.h"

namespace krcore::node {

class NodeImpl;

// Checks what can be wrong with a region whatever its memory: kInvalidArgument.
Status CheckRegionOptions(const RegionOptions& options);
// The error of a node that already announces as many regions as possible.
Status TooManyRegions();

struct RegionParts {
  std::unique_ptr<rnic::Memory> remote_memory;  // or private_memory
  std::unique_ptr<Pages> private_memory;        // or neither: the caller's memory
  std::unique_ptr<rnic::Mr> mr;
  uint32_t remote_rights = 0;
};

class RegionImpl final : public Region {
 public:
  // `table` lists the region while it has keys. `node` has announced it; needed with remote memory only.
  RegionImpl(peers::RegionTable& table, NodeImpl* node, RegionParts parts);
  ~RegionImpl() override;

  std::span<std::byte> bytes() const override { return bytes_; }
  uint32_t lkey() const override { return lkey_; }
  uint32_t rkey() const override { return rkey_; }
  bool adopted() const override { return parts_.remote_memory && parts_.remote_memory->adopted(); }
  void DoNotKeep() override {
    if (parts_.remote_memory) parts_.remote_memory->DoNotKeep();
  }
  Status CollapseToHugePages(size_t offset, size_t length) override;
  Status Deregister(Deadline deadline) override;

 private:
  void DestroyKeys();

  peers::RegionTable& table_;
  NodeImpl* const node_;
  RegionParts parts_;  // without mr once deregistered
  const std::span<std::byte> bytes_;
  const uint32_t lkey_, rkey_;
  std::optional<int64_t> quiet_ns_;  // the time from which no peer uses it any more
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_REGION_IMPL_H_
