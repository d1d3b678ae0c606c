// Node: one process's attachment to a fabric. It owns the device, the DC target through which peers reach
// the process's registered memory, and the metadata cache that makes qconnect cheap (KRCORE, USENIX ATC'22,
// section 3). Threads take a QueuePool each from it and make VirtualQueues there.
//
// Thread safety: all methods may be called from any thread. Objects made from a Node must be destroyed before it.
// Blocking: Open, memory and publishing calls make system calls and wait up to their deadlines; nothing here
// is on the data path.
//
// Fork: a Node, and what was made from it, is of no use in a child that was forked since (fork.h). A child opens its
// own.
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
  // verbs: where the fabric's membership service is, "host", "host:port" or "[host]:port" (docs/krcore.md). Who creates
  // the fabric becomes it, if the host is its own and nobody has it yet.
  std::string fabric_address{};
  // verbs: the NIC's port, "device[:port[:gid_index[:mtu]]]". What is left out is chosen: the first active one.
  std::string rnic_port{};
  NodeId node = kNoNode;       // kNoNode: assigned by the fabric (compute nodes)
  bool create_fabric = false;  // otherwise a missing fabric is kNotFound
  Clock* clock = nullptr;      // null: RealClock()
  // Of opening. Without one it waits twenty seconds at most for a fabric that does not answer.
  Deadline deadline{};
  // How long what a node has looked up of its peers' regions may be used, in nanoseconds from 1 ms up; the longer, the
  // longer Region::Deregister waits. Of the fabric's first metadata server; all nodes take it from there.
  int64_t mr_lease_ns = 1'000'000'000;
  // RC connections that peers' pools may have to this node, at most 1024, each with a QP here; 0: none. Needs one of
  // the kMaxRegionsPerNode regions, and that somebody calls PollConnections.
  uint32_t rc_peers = 0;
  // Whether the node uses what the processes of the host share, where the provider has it (sw): DC initiators, and what
  // any of them has looked up of its peers. Else it is on its own. Only with the host's clock.
  bool share_host = true;
};

// A registered memory range of a peer, as its metadata record lists it.
struct RemoteRegion {
  uint64_t addr = 0;    // in the peer's address space: what WorkRequest::remote_addr counts from
  uint64_t length = 0;  // bytes
  uint32_t rkey = 0;
  uint32_t tag = 0;  // the owner's word for what it is, e.g. kvs::kPoolRegionTag
};
inline constexpr size_t kMaxRegionsPerNode = 5;  // with remote rights

// Memory of this node that its own queues, and with remote rights its peers, may name in work requests.
class Region : public OfOneProcess {
 public:
  virtual std::span<std::byte> bytes() const = 0;
  virtual uint32_t lkey() const = 0;
  virtual uint32_t rkey() const = 0;
  virtual bool adopted() const = 0;  // contents are those of a predecessor (see RegionOptions::name)
  // The memory ends with the Region, though RegionOptions::keep_on_close was asked for: for who made it in vain.
  virtual void DoNotKeep() {}
  // Backs [offset, offset + length) with huge pages where the kernel can; seconds per GiB; safe while in use.
  virtual Status CollapseToHugePages(size_t offset, size_t length) = 0;

  // Withdraws the region (qdereg_mr): peers' requests for it are from now on refused on their own side, with
  // kPermissionDenied, and do not break the connection that they share. If it was published: publishes the node without
  // it, waits until everybody's lease on what was published before has run out (1.1 leases, and the longest
  // retransmission), and destroys the keys; blocks so long. The bytes stay until the Region is destroyed. Not
  // called, or kTimeout (the keys are valid still; it may be called again): destroying the Region destroys the keys at
  // once, and the NIC refuses late requests.
  virtual Status Deregister(Deadline deadline) = 0;
};

struct RegionOptions {
  size_t length = 0;  // bytes
  // Rights of peers, of AccessRights. 0: local use only, private memory.
  uint32_t remote_rights = 0;
  uint32_t tag = 0;
  // Not empty (remote rights only): the memory survives a crash of this process and is found again by the
  // next Node of the same id and fabric under this name, if the length is the same.
  std::string name{};
  bool keep_on_close = false;  // survives a clean close too
};

class Node : public OfOneProcess {
 public:
  // kNotFound: no such fabric (start a memory node first). kExists: the id is in use. kInvalidArgument,
  // kUnsupported: options.
  static Result<std::unique_ptr<Node>> Open(const NodeOptions& options);

  virtual NodeId id() const = 0;
  // Differs between two successive holders of one id.
  virtual uint32_t incarnation() const = 0;
  virtual Clock& clock() const = 0;

  // Allocates and registers. A region with remote rights is announced to peers by the next Publish().
  virtual Result<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) = 0;
  // Registers the caller's memory for local use. The memory must outlive the Region.
  virtual Result<std::unique_ptr<Region>> RegisterLocal(void* addr, size_t length) = 0;

  // Makes this node one of the fabric's metadata servers, of which there may be eight: allocates the RDMA-readable
  // table for `capacity` nodes (some 540 bytes each), announces it, and returns once it holds what the others hold.
  // kExists: this node is one already, or there are eight. kOutOfMemory. kTimeout: an older one does not answer.
  virtual Status HostMetaServer(uint32_t capacity) = 0;
  // Writes this node's record (DC target, regions with remote rights) into every metadata server by one-sided verbs.
  // Waits up to the deadline for a first one to appear, and for one that does not answer but is not known to be dead:
  // kTimeout. After it returned every lookup finds the record, or what is published later.
  virtual Status Publish(Deadline deadline) = 0;

  // Named values of up to kMaxServiceBytes in the metadata servers, e.g. which node holds a store's directory. A
  // name has one owner: kExists while another living node publishes it (the value's claim is one CAS, so of two
  // racing publishers exactly one wins); a dead owner's or one's own is replaced.
  virtual Status PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) = 0;
  virtual Result<std::vector<std::byte>> LookupService(std::string_view name, Deadline deadline) = 0;

  // PublishService for what there may be only one of whatever becomes of the metadata servers: the fabric's own list
  // has the claim as long as it knows this node (on verbs, as long as its membership service lives, and not longer than
  // a minute without hearing of the node: docs/krcore.md). Names [a-z0-9_-]{1,15}, which nobody publishes without
  // claiming them. To be called again now and then, as records are published again. kExists also while another living
  // node has claimed the name. A node whose control plane keeps no such list only publishes. May wait for the fabric
  // some seconds longer than the deadline.
  virtual Status ClaimService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
    return PublishService(name, value, deadline);
  }
  // The value with which a node has claimed the name, as far as that list knows; without a metadata server. kNotFound.
  // Makes a system call, or asks over the network.
  virtual Result<std::vector<std::byte>> LookupClaim(std::string_view /*name*/) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return Status(StatusCode::kNotFound);
  }

  // What other nodes of the fabric have on this host in memory of this name (RegionOptions::name), or have left there:
  // the first `bytes` of each, as they are now. None where memory goes with its process. Makes system calls.
  virtual Result<std::vector<FoundMemory>> FindMemory(std::string_view /*name*/, size_t /*bytes*/) {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return std::vector<FoundMemory>();
  }

  // kUnavailable: other programs do not find this node's fabric any more, since its files were removed by somebody
  // else, or they find another of that name, or do not find this node's memory. The message says which. What is
  // attached goes on. Makes system calls.
  virtual Status CheckName() { return NotForked(); }

  // True when the kernel or fabric confirms that this incarnation of the peer is gone, so that nothing it
  // posted can execute any more. False also when that cannot be known. May make a system call. Where the fabric keeps
  // no list of its devices, for incarnations that have published: only their records tell, by being replaced too.
  virtual bool IsConfirmedDead(NodeId node, uint32_t incarnation) = 0;

  // Answers peers that ask for RC connections and clears away what they have closed or left behind by dying; nothing
  // waits for it, so once a second is enough. Some system calls and the creation of a QP where there is something to
  // do. Returns how many connections changed. See NodeOptions::rc_peers.
  virtual size_t PollConnections() = 0;

  // Empty: software has no part in the DC of its provider.
  virtual std::optional<SoftwareDcStats> software_dc() const { return {}; }

  // For the exclusive use of one thread at a time.
  virtual Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) = 0;
};
inline constexpr size_t kMaxServiceBytes = 64;

std::vector<std::string> RnicProviders();

// Names of this user's fabrics, in alphabetical order, where the provider keeps them (sw); also of those whose programs
// have all died.
Result<std::vector<std::string>> ListFabrics(const std::string& rnic);

// Processes on this host that go on with a fabric of this name though its files were removed, so that nobody else finds
// it (Node::CheckName); whether or not there is another of that name now. As far as the system tells.
Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& rnic, const std::string& fabric);

// Removes what dead processes left of fabrics without a living device; all of this user's, or the named one.
// Returns the names. Memory that was asked to be kept goes only if `also_kept`.
Result<std::vector<std::string>> CleanStaleFabrics(const std::string& rnic, const std::string& fabric, bool also_kept);

}  // namespace krcore

#endif  // KRCORE_NODE_H_
