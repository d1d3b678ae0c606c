// ServerLink: a node's RC connection to the metadata server that it asks first, made in the background at that server's
// desk (rc/desk.h). A lookup over it is one READ of the NICs; without one it goes through DC, which may be software at
// both ends. docs/krcore.md, "The metadata servers".
//
// Thread safety: all methods from any thread; a READ is one thread's at a time, and so is Work.
#ifndef KRCORE_META_SERVER_LINK_H_
#define KRCORE_META_SERVER_LINK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "krcore/clock.h"
#include "krcore/meta/one_sided_channel.h"
#include "krcore/meta/server_list.h"
#include "krcore/rc/connector.h"
#include "krcore/rc/handshake.h"
#include "krcore/rnic/rnic.h"

namespace krcore::meta {

// Makes the owner word of a place at a desk (msg::OwnerWord).
using NewOwner = std::function<uint64_t()>;

class ServerLink {
 public:
  ServerLink(rnic::Device& device, rnic::Pd& pd, Clock& clock, const rnic::DeviceAddress& self)
      : device_(device), pd_(pd), clock_(clock), self_(self) {}

  // Goes on with making the connection to `server`, or with giving up the one to another server or one that is broken.
  // At most one QP created, connected or destroyed a call, and only if it `may_take_a_while`. `new_owner` makes a word
  // that this node has used at no desk. `server` null: no connection is wanted. False: there is nothing to do before
  // another server is wanted, the connection breaks, or, where the server took none, some seconds have passed. Nothing
  // blocks.
  bool Work(const ServerPtr& server, const NewOwner& new_owner, bool may_take_a_while);

  // Empty: there is no connection to this server, it is in another thread's use, or the READ failed, which ends it: the
  // way is another one then.
  std::optional<Status> Read(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline);

 private:
  bool Begin(const ServerPtr& server, const NewOwner& new_owner);
  void Connect();
  void GiveUp();

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  const rnic::DeviceAddress self_;

  std::mutex work_mutex_;  // of what follows
  std::unique_ptr<rc::Connector> connector_;
  rc::Handshake handshake_;
  ServerPtr server_;                       // of the handshake
  std::unique_ptr<OneSidedChannel> made_;  // not connected yet
  int64_t try_again_ns_ = INT64_MIN;

  std::mutex mutex_;  // of what follows; held while READing
  std::unique_ptr<OneSidedChannel> channel_;
  // The server that it is connected to, as an owner (record.h); 0: it is of no use. Written under mutex_, and read
  // relaxed without it by those who ask whether to take that.
  std::atomic<uint64_t> connected_to_{0};
};

}  // namespace krcore::meta

#endif  // KRCORE_META_SERVER_LINK_H_
