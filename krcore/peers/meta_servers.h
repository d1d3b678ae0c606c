// Which metadata servers the fabric has, and how to reach them, over DC or RC.
#ifndef KRCORE_PEERS_META_SERVERS_H_
#define KRCORE_PEERS_META_SERVERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/clock.h"
#include "krcore/peers/meta_table.h"
#include "krcore/peers/peer.h"
#include "krcore/peers/rc_handshake.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::peers {

// A word or range of memory at a DC target; over RC, at the peer.
struct RemoteMemory {
  const Target* target = nullptr;
  const rnic::AddressHandle* ah = nullptr;
  uint64_t addr = 0;
  uint32_t rkey = 0;
};

// OneSidedChannel: synchronous one-sided verbs over a QP of its own, for the control path. The QP is a DC initiator,
// which reaches everybody, or an RC QP with one peer.
//
// Thread safety: none; its user locks. Blocking: each call up to its deadline.
class OneSidedChannel {
 public:
  static constexpr size_t kMaxBytes = 1024;  // the default of a channel

  // `max_bytes` per verb.
  static Result<std::unique_ptr<OneSidedChannel>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                         size_t max_bytes = kMaxBytes);
  // Creates a channel with an RC QP, usable once connected; the peer posts nothing.
  static Result<std::unique_ptr<OneSidedChannel>> CreateRc(rnic::Device& device, rnic::Pd& pd, Clock& clock);
  uint32_t qpn() const { return qp_->num(); }
  // Whether no verb that failed can still happen. Does not block.
  bool IsReady() { return !resetting_ || EndWhatIsPosted({INT64_MIN}).ok(); }
  Status ConnectRc(const rnic::DeviceAddress& peer, uint32_t peer_qpn);

  // A verb that failed may still happen until IsReady: the next verb waits for that, up to its own deadline. After a
  // failure an RC QP is of no use: all further verbs fail.
  //
  // kUnavailable: the target does not answer or refuses; the outcome of a Write or CompareSwap is then unknown.
  // kTimeout: the deadline passed first; the outcome is unknown as well.
  Status Read(const RemoteMemory& remote, std::span<std::byte> out, Deadline deadline);
  Status Write(const RemoteMemory& remote, std::span<const std::byte> data, Deadline deadline);
  // Stores the word found in *old; the swap happened if that equals `expected`.
  Status CompareSwap(const RemoteMemory& remote, uint64_t expected, uint64_t desired, uint64_t* old, Deadline deadline);

 private:
  OneSidedChannel(Clock& clock, size_t max_bytes) : clock_(clock), buffer_(max_bytes) {}
  static Result<std::unique_ptr<OneSidedChannel>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                         size_t max_bytes, rnic::QpType type);
  // kTimeout: not yet; the QP and the buffer must not be used.
  Status EndWhatIsPosted(Deadline deadline);
  Status Execute(rnic::SendWr wr, const RemoteMemory& remote, size_t length, Deadline deadline);

  Clock& clock_;
  const PageArray<std::byte> buffer_;
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
  uint64_t last_wr_id_ = 0;
  bool resetting_ = false;  // EndWhatIsPosted has not finished
};

inline constexpr uint32_t kMaxServers = 8;

enum class ServerState : uint32_t {
  kWithdrawn = 0,   // as if it were not announced
  kChoosing = 1,    // its place in the order
  kCatchingUp = 2,  // copies the records of older servers; nobody else looks at its table
  kServing = 3,     // from now on for the rest of its life
};

// Value of the fabric record "metaserver0" and so on.
inline constexpr uint32_t kBootstrapMagic = 0x344D524B;  // "KRM4"
struct Bootstrap {
  uint32_t magic = kBootstrapMagic;
  ServerState state = ServerState::kChoosing;
  uint32_t serial = 0;  // kChoosing: none yet
  uint32_t table_rkey = 0;
  Geometry geometry;
  uint64_t table_addr = 0;
  int64_t mr_lease_ns = 0;  // the same at all servers of a fabric
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  uint32_t desk_places = 0;  // 0: it takes no RC connections
  uint64_t desk_addr = 0;
  uint32_t desk_rkey = 0;
  uint32_t reserved = 0;
  rnic::DeviceAddress address;
};
static_assert(sizeof(Bootstrap) == 112);  // a fabric record has 112

std::string BootstrapName(uint32_t index);

struct Server {
  Bootstrap info;
  Target target;
  std::shared_ptr<const rnic::AddressHandle> ah;

  uint32_t id() const { return info.address.incarnation; }
  bool serving() const { return info.state == ServerState::kServing; }
  RemoteMemory At(size_t offset) const { return {&target, ah.get(), info.table_addr + offset, info.table_rkey}; }
  friend bool operator<(const Server& a, const Server& b);
};
using ServerPtr = std::shared_ptr<const Server>;

// ServerList: the fabric's living metadata servers, oldest first, as they announce themselves in the fabric's records:
// the one bootstrap that is not one-sided.
//
// The order is by `serial`, which a server chooses as in Lamport's bakery: it announces itself as kChoosing, takes one
// more than the highest serial that it sees, and then waits until none of the servers that it saw choosing still
// chooses. So a server announced after another has its place comes later, and all agree on the order of servers that
// have a place.
//
// Thread safety: values; a Server is immutable.
struct ServerList {
  std::vector<ServerPtr> all;            // oldest first; those that are choosing last
  std::vector<ServerPtr> nearest_first;  // set by the list's keeper, because each lookup goes through it

  bool AnyServing() const;
  // Returns the serving ones in the order in which node `self` asks them: its own first, else one chosen by its id, so
  // that nodes spread over the servers.
  std::vector<ServerPtr> NearestFirst(NodeId self) const;
  bool Contains(uint32_t server_id) const;
};

// Returns the servers that were alive at one moment of the call. Reuses address handles of servers in `known`.
// kCorrupt: announcements of another version. kTimeout, kUnavailable: the fabric does not answer. `deadline`: as the
// device's.
Result<ServerList> ReadServerList(rnic::Device& device, const ServerList& known, Deadline deadline = {});

// Returns a new owner word for a place at a desk (PlaceOwner).
using NewOwner = std::function<uint64_t()>;

// ServerLink: a node's RC connection to the metadata server that it asks first, made in the background at that server's
// desk (peers/rc_desk.h). With it, a lookup is one READ between NICs; without it, lookups use DC, which may be software
// at both ends. docs/krcore.md, "The metadata servers".
//
// Thread safety: any thread may call; one thread at a time READs, and one at a time is in Work.
class ServerLink {
 public:
  ServerLink(rnic::Device& device, rnic::Pd& pd, Clock& clock, const rnic::DeviceAddress& self)
      : device_(device), pd_(pd), clock_(clock), self_(self) {}

  // Continues making the connection to `server`, or giving up one to another server or one that broke. Creates,
  // connects or destroys at most one QP per call, and only if it `may_take_a_while`. `new_owner` makes a word that this
  // node has used at no desk. `server` null: no connection is wanted. Returns false if there is nothing to do until
  // another server is wanted, the connection breaks, or, where the server took none, some seconds have passed. Does not
  // block.
  bool Work(const ServerPtr& server, const NewOwner& new_owner, bool may_take_a_while);

  // Empty: there is no connection to this server, another thread is using it, or the READ failed, which ends the
  // connection. The caller then uses another way.
  std::optional<Status> Read(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline);

 private:
  bool Begin(const ServerPtr& server, const NewOwner& new_owner);
  void Connect();
  void GiveUp();

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  const rnic::DeviceAddress self_;

  std::mutex work_mutex_;  // guards what follows
  std::unique_ptr<Connector> connector_;
  Handshake handshake_;
  ServerPtr server_;                       // for the handshake
  std::unique_ptr<OneSidedChannel> made_;  // not connected yet
  int64_t try_again_ns_ = INT64_MIN;

  std::mutex mutex_;  // guards what follows; held while READing
  std::unique_ptr<OneSidedChannel> channel_;
  // The server that it is connected to, as an owner (meta_table.h); 0: the connection is of no use. Written under
  // mutex_; read relaxed without it to decide whether to take it.
  std::atomic<uint64_t> connected_to_{0};
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_META_SERVERS_H_
