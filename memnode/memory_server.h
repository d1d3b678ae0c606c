// MemoryServer: what a memory node owns while it serves: its attachment to the fabric, the pool region, and, where
// asked, a metadata server. Serving takes no CPU: clients reach the region by one-sided verbs. Only clients that
// connect by RC need some CPU, on a thread of its own (rc_acceptor.h).
//
// Thread safety: none; one thread owns it.
#ifndef MEMNODE_MEMORY_SERVER_H_
#define MEMNODE_MEMORY_SERVER_H_

#include <memory>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "memnode/huge_page_collapser.h"
#include "memnode/options.h"
#include "memnode/rc_acceptor.h"

namespace memnode {

class MemoryServer {
 public:
  // Opens the fabric (creates it if need be), allocates or adopts the pool, hosts the metadata server, publishes and
  // joins the store. Blocks up to options.wait_ms, less if `clock` jumps. An error message names the flag and the way
  // out. A failed start removes what it created and leaves what it found.
  static krcore::Result<std::unique_ptr<MemoryServer>> Start(const Options& options, krcore::Clock* clock);

  // Answers clients that ask for RC connections, and writes this node's records into the metadata servers again: some
  // microseconds of one-sided verbs. If all servers were killed, a new one begins empty, and this is how it learns of
  // the nodes that went on. kTimeout: there is none now.
  krcore::Status Refresh(krcore::Deadline deadline);

  krcore::NodeId node() const { return node_->id(); }
  // Returns its attachment, whose methods any thread may call.
  krcore::Node& fabric() { return *node_; }
  // Returns null for a pure metadata server.
  krcore::Region* pool() { return pool_.get(); }
  bool adopted() const { return pool_ != nullptr && pool_->adopted(); }
  // Null: --hugepages=off, or there is no pool.
  HugePageCollapser* huge_pages() { return huge_pages_.get(); }
  // Null: RC connections are refused.
  RcAcceptor* rc_acceptor() { return rc_acceptor_.get(); }
  // Returns whether this node holds the store's directory.
  bool is_home() const { return is_home_; }
  // The store's pools are mirrored.
  bool mirrored() const { return mirrored_; }

 private:
  MemoryServer() = default;

  krcore::Status Open(const Options& options, krcore::Clock* clock);
  krcore::Status HostMetaServer();
  krcore::Status CreatePool(const Options& options);
  krcore::Status AcceptConnections(const Options& options);
  krcore::Status Join(const Options& options);

  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<krcore::Region> pool_;  // destroyed before node_
  // These are destroyed before pool_.
  std::unique_ptr<HugePageCollapser> huge_pages_;
  std::unique_ptr<RcAcceptor> rc_acceptor_;
  bool is_home_ = false;
  bool mirrored_ = false;
};

// Removes what dead programs left of options.fabric. Returns one line for the user. kExists: the fabric is in use.
krcore::Result<std::string> CleanFabric(const Options& options);

}  // namespace memnode

#endif  // MEMNODE_MEMORY_SERVER_H_
