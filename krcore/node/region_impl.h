// RegionImpl: memory and its MR. The memory is the device's (remote rights), private, or the caller's.
#ifndef KRCORE_NODE_REGION_IMPL_H_
#define KRCORE_NODE_REGION_IMPL_H_

#include <cstddef>
#include <memory>
#include <span>

#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::node {

class NodeImpl;

// Private anonymous memory, zeroed, huge-page advised and 2 MiB-aligned from 2 MiB up.
class PrivateMemory {
 public:
  static Result<std::unique_ptr<PrivateMemory>> Allocate(size_t length);
  ~PrivateMemory();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  PrivateMemory(void* mapping, size_t mapped, std::span<std::byte> bytes)
      : mapping_(mapping), mapped_(mapped), bytes_(bytes) {}
  void* mapping_;
  size_t mapped_;
  std::span<std::byte> bytes_;
};

struct RegionParts {
  std::unique_ptr<rnic::Memory> remote_memory;    // or
  std::unique_ptr<PrivateMemory> private_memory;  // or neither: the caller's
  std::unique_ptr<rnic::Mr> mr;
};

class RegionImpl final : public Region {
 public:
  RegionImpl(NodeImpl& node, RegionParts parts);
  ~RegionImpl() override;

  std::span<std::byte> bytes() const override {
    return {static_cast<std::byte*>(parts_.mr->addr()), parts_.mr->length()};
  }
  uint32_t lkey() const override { return parts_.mr->lkey(); }
  uint32_t rkey() const override { return parts_.mr->rkey(); }
  bool adopted() const override { return parts_.remote_memory && parts_.remote_memory->adopted(); }
  Status CollapseToHugePages(size_t offset, size_t length) override;

 private:
  NodeImpl& node_;
  RegionParts parts_;
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_REGION_IMPL_H_
