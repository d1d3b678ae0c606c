// RcNode: a Node whose queues are RC connections; a client.
#ifndef KRCORE_BASELINES_RC_NODE_H_
#define KRCORE_BASELINES_RC_NODE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "krcore/baselines/link.h"
#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/node/region_impl.h"
#include "krcore/peers/meta_client.h"
#include "krcore/peers/region_table.h"
#include "krcore/rnic.h"

namespace krcore::baselines {

class RcNode final : public Node {
 public:
  // share_links: "lite"; otherwise "verbs".
  static Result<std::unique_ptr<Node>> Open(bool share_links, const NodeOptions& options,
                                            std::function<void(ConnectStep)> done);
  ~RcNode() override;

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
  size_t PollConnections() override { return 0; }  // its Acceptor is served by explicit calls
  Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) override;

  // ---- for RcPool
  bool shares_links() const { return share_links_; }
  const LinkContext& context() const { return context_; }
  peers::RegionTable& local_regions() { return local_regions_; }
  // Returns the connection to `peer` that all pools share; *made: this call made it.
  Result<std::shared_ptr<Link>> SharedLink(NodeId peer, Deadline deadline, bool* made);

 private:
  RcNode(bool share_links, Clock& clock) : share_links_(share_links), clock_(clock) {}
  Status Start(const NodeOptions& options, std::function<void(ConnectStep)> done);
  Result<std::unique_ptr<Region>> Register(node::RegionParts parts, void* addr, size_t length);
  // The metadata servers tell where services are and who is dead, but not how to connect. Null: failed.
  Result<peers::MetaClient*> Meta();

  const bool share_links_;
  Clock& clock_;
  std::unique_ptr<rnic::Device> device_;
  std::unique_ptr<rnic::Pd> pd_;
  std::unique_ptr<Exchange> exchange_;
  LinkContext context_;
  peers::RegionTable local_regions_;

  std::mutex meta_mutex_;
  std::unique_ptr<peers::MetaClient> meta_;  // guarded by meta_mutex_; made when first needed

  struct Shared {
    std::mutex mutex;            // held while connecting
    std::shared_ptr<Link> link;  // guarded by mutex
  };
  std::mutex shared_mutex_;
  std::unordered_map<NodeId, std::shared_ptr<Shared>> shared_;  // guarded by shared_mutex_
};

}  // namespace krcore::baselines

#endif  // KRCORE_BASELINES_RC_NODE_H_
