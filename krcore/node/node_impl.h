#ifndef KRCORE_NODE_NODE_IMPL_H_
#define KRCORE_NODE_NODE_IMPL_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "krcore/messages/ports.h"
#include "krcore/node.h"
#include "krcore/node/node_parts.h"
#include "krcore/peers/meta_client.h"
#include "krcore/peers/meta_server.h"
#include "krcore/peers/peer_directory.h"
#include "krcore/peers/region_table.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/rnic.h"

namespace krcore::node {

// Returns the value of a service or port, which messages call `what`.
Result<std::vector<std::byte>> LookupValue(peers::MetaClient& meta, const peers::Key& key, const std::string& what,
                                           Deadline deadline);

// Opens the device that a node's options name.
Result<std::unique_ptr<rnic::Device>> OpenDevice(const NodeOptions& options);

class NodeImpl final : public Node, private messages::PortRecords {
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
  Status ClaimService(std::string_view name, std::span<const std::byte> value, Deadline deadline) override;
  Result<std::vector<std::byte>> LookupClaim(std::string_view name) override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return device_->LookupRecord(std::string(name));
  }
  Result<FabricRecord> ReadRecord(std::string_view name, Deadline deadline) override;
  Status CompareAndSetRecord(std::string_view name, uint64_t expected, std::span<const std::byte> value,
                             Deadline deadline) override;
  Result<std::vector<FoundMemory>> FindMemory(std::string_view name, size_t bytes) override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return device_->FindMemory(std::string(name), bytes);
  }
  Status CheckName() override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return device_->CheckName();
  }
  bool IsConfirmedDead(NodeId node, uint32_t incarnation) override;
  size_t PollConnections() override;
  std::optional<SoftwareDcStats> software_dc() const override {
    return device_->caps().software_dc && !forked() ? std::optional(device_->DcStats()) : std::nullopt;
  }
  Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) override;

  // ---- for the acceptor of RC connections
  rnic::Device& device() { return *device_; }
  rnic::Pd& pd() { return *pd_; }
  // Regions with remote rights that Publish has announced, without krcore's own.
  std::vector<RemoteRegion> published_regions() { return exposed_.Published(); }

  // ---- for RegionImpl
  void RemoveRemote(uint32_t rkey) { exposed_.Remove(rkey); }
  // Publishes the node without the region, if it was ever published with it. Returns the time from which on no peer
  // uses the region.
  Result<int64_t> Withdraw(uint32_t rkey, Deadline deadline);

 private:
  NodeImpl(std::unique_ptr<rnic::Device> device, Clock& clock, int64_t mr_lease_ns)
      : device_(std::move(device)), clock_(clock), mr_lease_ns_(mr_lease_ns) {}
  Status Start(uint32_t rc_peers);
  Status PublishPort(Port port, std::span<const std::byte> value, Deadline deadline) override;
  void WithdrawPort(Port port, Deadline deadline) override;
  Result<std::vector<std::byte>> LookupPort(NodeId node, Port port, Deadline deadline) override;
  // Publishes a service or port. The node itself comes first: its record tells others whether the owner still lives.
  Status PublishValue(const peers::Key& key, const std::string& what, std::span<const std::byte> value,
                      Deadline deadline);
  // As CreateRegion, but also allows a reserved tag.
  Result<std::unique_ptr<Region>> MakeRegion(const RegionOptions& options);

  std::unique_ptr<rnic::Device> device_;
  Clock& clock_;
  const int64_t mr_lease_ns_;
  bool share_host_ = false;
  std::unique_ptr<rnic::Pd> pd_;
  std::unique_ptr<rnic::Dct> dct_;
  peers::RegionTable local_regions_;
  std::unique_ptr<peers::MetaClient> meta_;
  std::unique_ptr<peers::PeerDirectory> peers_;
  std::atomic<uint32_t> owners_{0};  // numbers the owners of places at peers
  std::atomic<uint32_t> pools_{0};   // ... and the pools
  messages::Ports ports_{*this};

  std::mutex exposing_mutex_;  // held from the look for room until a region has it
  std::mutex publish_mutex_;   // held from composing the node's record until it is published, for order
  std::atomic<bool> published_{false};
  ExposedRegions exposed_;
  std::atomic<bool> hosting_{false};                // or about to be
  std::unique_ptr<peers::MetaServer> meta_server_;  // written by the thread that has set hosting_
  RcAnswering rc_answering_;                        // its desk is one of exposed_
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_NODE_IMPL_H_
