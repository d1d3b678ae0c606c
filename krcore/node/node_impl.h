#ifndef KRCORE_NODE_NODE_IMPL_H_
#define KRCORE_NODE_NODE_IMPL_H_

#include <memory>
#include <mutex>
#include <vector>

#include "krcore/dct/peer_directory.h"
#include "krcore/meta/meta_client.h"
#include "krcore/meta/meta_server.h"
#include "krcore/mr/region_table.h"
#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::node {

class NodeImpl final : public Node {
 public:
  static Result<std::unique_ptr<Node>> Open(const NodeOptions& options);
  ~NodeImpl() override;

  NodeId id() const override { return device_->address().node; }
  uint32_t incarnation() const override { return device_->address().incarnation; }
  Clock& clock() const override { return clock_; }

  Result<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  Result<std::unique_ptr<Region>> RegisterLocal(void* addr, size_t length) override;
  Status HostMetaServer(uint32_t capacity) override;
  Status Publish(Deadline deadline) override;
  Status PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) override;
  Result<std::vector<std::byte>> LookupService(std::string_view name, Deadline deadline) override;
  bool IsConfirmedDead(NodeId node, uint32_t incarnation) override;
  Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) override;

  // ---- for RegionImpl
  mr::RegionTable& local_regions() { return local_regions_; }
  void RemoveRemote(uint32_t rkey);

 private:
  NodeImpl(std::unique_ptr<rnic::Device> device, Clock& clock) : device_(std::move(device)), clock_(clock) {}
  Status Start();

  std::unique_ptr<rnic::Device> device_;
  Clock& clock_;
  std::unique_ptr<rnic::Pd> pd_;
  std::unique_ptr<rnic::Dct> dct_;
  mr::RegionTable local_regions_;
  std::unique_ptr<meta::MetaClient> meta_;
  std::unique_ptr<dct::PeerDirectory> peers_;

  std::mutex mutex_;  // guards the rest
  std::vector<RemoteRegion> remote_regions_;
  std::unique_ptr<meta::MetaServer> meta_server_;
  bool published_ = false;
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_NODE_IMPL_H_
