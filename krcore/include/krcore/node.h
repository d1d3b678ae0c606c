// Node: one process's attachment to a fabric. It owns the device, the DC target through which peers reach
// the process's registered memory, and the metadata cache that makes qconnect cheap (KRCORE, USENIX ATC'22,
// section 3). Each thread takes a QueuePool from it and makes VirtualQueues there.
//
// Thread safety: all methods may be called from any thread. Objects made from a Node must be destroyed before it.
// Blocking: Open, memory and publishing calls make system calls and wait up to their deadlines; nothing here
// is on the data path.
//
// Fork: a Node, and whatever was made from it, is of no use in a child that was forked since (fork.h). A child opens
// its own.
#ifndef KRCORE_NODE_H_
#define KRCORE_NODE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/fork.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore {

class QueuePool;
struct QueuePoolOptions;

struct NodeOptions {
  std::string rnic = "sw";  // provider, see RnicProviders()
  std::string fabric{};     // name of the fabric; sw: "inproc:..." is private to the process
  // verbs: address of the fabric's membership service, "host", "host:port" or "[host]:port" (docs/krcore.md). The
  // process that creates the fabric becomes the service, if the address is its host's and not in use.
  std::string fabric_address{};
  // verbs: the NIC's port, "device[:port[:gid_index[:mtu]]]". Missing parts are chosen: the first active port.
  std::string rnic_port{};
  NodeId node = kNoNode;       // kNoNode: assigned by the fabric (compute nodes)
  bool create_fabric = false;  // otherwise a missing fabric is kNotFound
  Clock* clock = nullptr;      // null: RealClock()
  // For opening. Without one, Open waits at most twenty seconds for a fabric that does not answer.
  Deadline deadline{};
  // How long a node may use what it has looked up of its peers' regions, in nanoseconds, at least 1 ms. The longer it
  // is, the longer Region::Deregister waits. All nodes take the value of the fabric's first metadata server.
  int64_t mr_lease_ns = 1'000'000'000;
  // How many RC connections peers' pools may have to this node, at most 1024, each with a QP here; 0: none. Needs one
  // of the kMaxRegionsPerNode regions, and regular calls of PollConnections.
  uint32_t rc_peers = 0;
  // Whether the node uses what the processes of the host share, where the provider supports it (sw): DC initiators, and
  // whatever any of them has looked up of its peers. Otherwise the node is on its own. Needs the host's clock.
  bool share_host = true;
};

// A registered memory range of a peer, as its metadata record lists it.
struct RemoteRegion {
  uint64_t addr = 0;    // in the peer's address space; the base for WorkRequest::remote_addr
  uint64_t length = 0;  // bytes
  uint32_t rkey = 0;
  uint32_t tag = 0;  // the owner's mark for the kind of region, e.g. kvs::kPoolRegionTag
};
inline constexpr size_t kMaxRegionsPerNode = 5;  // with remote rights

// Memory of this node that its own queues may name in work requests, and with remote rights also its peers.
class Region : public OfOneProcess {
 public:
  virtual std::span<std::byte> bytes() const = 0;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
  virtual bool adopted() const = 0;  // the contents are a predecessor's (see RegionOptions::name)
  // The memory ends with the Region even if RegionOptions::keep_on_close was set. For callers that made it in vain.
  virtual void DoNotKeep() {}
  // Backs [offset, offset + length) with huge pages where the kernel can. Takes seconds per GiB; safe while in use.
  virtual Status CollapseToHugePages(size_t offset, size_t length) = 0;

  // Withdraws the region (qdereg_mr): from now on peers' requests for it are refused on their own side, with
  // kPermissionDenied, and do not break the connection that they share. If the region was published, Deregister
  // publishes the node without it, waits until every lease on the old record has run out (1.1 leases, and the longest
  // retransmission), and destroys the keys; it blocks that long. The bytes stay until the Region is destroyed. If it
  // was not called or returned kTimeout (the keys are still valid, and it may be called again), destroying the Region
  // destroys the keys at once, and the NIC refuses late requests.
  virtual Status Deregister(Deadline deadline) = 0;
};

struct RegionOptions {
  size_t length = 0;  // bytes
  // Rights of peers, of AccessRights. 0: local use only, private memory.
  uint32_t remote_rights = 0;
  uint32_t tag = 0;
  // If not empty (remote rights only), the memory survives a crash of this process, and the next Node of the same id
  // and fabric finds it again under this name, if the length is the same.
  std::string name{};
  bool keep_on_close = false;  // also survives a clean close
};

class Node : public OfOneProcess {
 public:
  // kNotFound: no such fabric (start a memory node first). kExists: the id is in use. kInvalidArgument,
  // kUnsupported: options.
  static Result<std::unique_ptr<Node>> Open(const NodeOptions& options);

  virtual NodeId id() const = 0;
  // Returns a number that differs between two successive holders of one id.
  virtual uint32_t incarnation() const = 0;
  virtual Clock& clock() const = 0;

  // Allocates and registers memory. The next Publish() announces a region with remote rights to peers.
  virtual Result<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) = 0;
  // Registers the caller's memory for local use. The memory must outlive the Region.
  virtual Result<std::unique_ptr<Region>> RegisterLocal(void* addr, size_t length) = 0;

  // Makes this node one of the fabric's up to eight metadata servers: allocates the RDMA-readable table for `capacity`
  // nodes (some 540 bytes each), announces it, and returns once it holds the same records as the others. kExists: this
  // node is one already, or there are eight. kOutOfMemory. kTimeout: an older one does not answer.
  virtual Status HostMetaServer(uint32_t capacity) = 0;
  // Writes this node's record (DC target, regions with remote rights) into every metadata server by one-sided verbs.
  // Waits up to the deadline for a first server to appear, and for a server that does not answer but is not known to be
  // dead: kTimeout. Once it has returned, every lookup finds this record or a later one.
  virtual Status Publish(Deadline deadline) = 0;

  // Named values of up to kMaxServiceBytes in the metadata servers, e.g. which node holds a store's directory. A name
  // has one owner. kExists: another living node publishes it. (The value is claimed by one CAS, so exactly one of two
  // racing publishers wins.) A value of this node or of a dead owner is replaced.
  virtual Status PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) = 0;
  virtual Result<std::vector<std::byte>> LookupService(std::string_view name, Deadline deadline) = 0;

  // As PublishService, for a service that must be unique whatever happens to the metadata servers: the fabric's own
  // list has the claim as long as it knows this node (on verbs, as long as its membership service lives, and not longer
  // than a minute after it last heard of the node: docs/krcore.md). Names are [a-z0-9_-]{1,15}; nobody publishes such a
  // name without claiming it. Call it again now and then, just as records are published again. kExists also while
  // another living node has claimed the name. A node whose control plane keeps no such list only publishes. May wait
  // for the fabric some seconds longer than the deadline.
  virtual Status ClaimService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
    return PublishService(name, value, deadline);
  }
  // Returns the value with which a node has claimed the name, according to that list; asks no metadata server.
  // kNotFound. Makes a system call, or asks over the network.
  virtual Result<std::vector<std::byte>> LookupClaim(std::string_view /*name*/) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return Status(StatusCode::kNotFound);
  }

  // A few records of the fabric itself, for what its nodes must agree on whoever dies, e.g. a store's configuration.
  // They have no owner and outlive whoever wrote them. Names are [a-z0-9_-]{1,32}, values up to kMaxFabricRecordBytes.
  // What nodes publish or claim is something else, and may have the same names.
  //
  // Both calls are linearizable, between all threads and processes of the fabric: each takes effect at one moment
  // between its begin and its end. What is read is one value as a whole, namely the one that was set last. A process
  // that is killed at any instruction in a call has set the record or has not, and nobody waits for it. A call that
  // reports kTimeout or kUnavailable may have set the record, too: read it.
  //
  // A record lasts as long as the fabric has a living device, or named memory that waits for a successor
  // (RegionOptions::name), even if all of its processes were killed or closed. Whoever leaves or joins next, or cleans
  // the fabric (CleanStaleFabrics), then removes it.
  //
  // Makes system calls. Writers wait for one another, and for others that join or leave, until the deadline and some
  // ten seconds at most: kTimeout, if one of them is stopped (SIGSTOP). Readers wait for nobody. Where another host is
  // asked, both wait as ClaimService does. kUnavailable: also if the fabric's files were removed (CheckName).
  // kUnsupported: anywhere but with control plane "krcore" on sw or sim. kInvalidArgument: the name, or a value that is
  // too long. kCorrupt: what is stored is not a record.
  //
  // Returns the record; version 0 and no value if it was never set.
  virtual Result<FabricRecord> ReadRecord(std::string_view /*name*/, Deadline /*deadline*/ = {}) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return Status(StatusCode::kUnsupported, kNoFabricRecords);
  }
  // Replaces the record if its version is still `expected`; its version is then expected + 1. kExists: its version is
  // another one, and nothing changes. kOutOfMemory: nothing changes.
  virtual Status CompareAndSetRecord(std::string_view /*name*/, uint64_t /*expected*/,
                                     std::span<const std::byte> /*value*/, Deadline /*deadline*/ = {}) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return {StatusCode::kUnsupported, kNoFabricRecords};
  }

  // Returns what other nodes of the fabric have, or have left, on this host in memory of this name
  // (RegionOptions::name): the current first `bytes` of each. Empty where memory ends with its process. Makes system
  // calls.
  virtual Result<std::vector<FoundMemory>> FindMemory(std::string_view /*name*/, size_t /*bytes*/) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return std::vector<FoundMemory>();
  }

  // kUnavailable: other programs cannot find this node's fabric any more because somebody removed its files; or they
  // find another fabric of that name, or do not find this node's memory. The message says which. Attached processes go
  // on. Makes system calls.
  virtual Status CheckName() { return NotForked(); }

  // Whether the kernel or fabric confirms that this incarnation of the peer is gone, so that nothing it posted can
  // execute any more. False also if that cannot be known. May make a system call. Where the fabric keeps no list of its
  // devices, only for incarnations that have published: only their records tell, also by being replaced.
  virtual bool IsConfirmedDead(NodeId node, uint32_t incarnation) = 0;

  // Answers peers that ask for RC connections, and removes connections that peers have closed or left behind when they
  // died. Nothing waits for it, so once a second is enough. If there is something to do, it makes some system calls and
  // creates a QP. Returns how many connections changed. See NodeOptions::rc_peers.
  virtual size_t PollConnections() = 0;

  // Empty unless the provider does DC in software.
  virtual std::optional<SoftwareDcStats> software_dc() const { return {}; }

  // One thread at a time may use the pool.
  virtual Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) = 0;

 private:
  static constexpr const char* kNoFabricRecords =
      "this control plane keeps no records of the fabric itself; krcore does, on sw";
};
inline constexpr size_t kMaxServiceBytes = 64;

std::vector<std::string> RnicProviders();

// Returns the names of this user's fabrics in alphabetical order, also of those whose programs have all died. Only
// where the provider keeps such a list (sw).
Result<std::vector<std::string>> ListFabrics(const std::string& rnic);

// Returns the processes on this host that still use a fabric of this name although its files were removed, so that
// nobody else finds it (Node::CheckName), whether or not there is a new one of that name. As far as the system tells.
Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& rnic, const std::string& fabric);

// Removes what dead processes left of fabrics without a living device: of all of this user's fabrics, or of the named
// one. Returns the names. Memory that was to be kept is removed only if `also_kept`.
Result<std::vector<std::string>> CleanStaleFabrics(const std::string& rnic, const std::string& fabric, bool also_kept);

}  // namespace krcore

#endif  // KRCORE_NODE_H_
