// ServerList: the fabric's living metadata servers, oldest first, as they announce themselves in the fabric's records:
// the one bootstrap that is not one-sided.
//
// The order is by `serial`, which a server chooses as Lamport's bakery does: it announces itself as kChoosing, takes
// one more than the highest serial that it sees, and then waits until nobody chooses whom it saw choosing. So whoever
// announces himself after a server has its place is behind it, and all agree on the order of those that have one.
//
// Thread safety: values; a Server is immutable.
#ifndef KRCORE_META_SERVER_LIST_H_
#define KRCORE_META_SERVER_LIST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/dct/peer.h"
#include "krcore/meta/one_sided_channel.h"
#include "krcore/meta/table.h"
#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::meta {

inline constexpr uint32_t kMaxServers = 8;

enum class ServerState : uint32_t {
  kWithdrawn = 0,   // as if it were not announced
  kChoosing = 1,    // its place in the order
  kCatchingUp = 2,  // copies the records of older servers; nobody else looks at its table
  kServing = 3,     // for the rest of its life
};

// Value of the fabric record "metaserver0" and so on.
inline constexpr uint32_t kBootstrapMagic = 0x344D524B;  // "KRM4"
struct Bootstrap {
  uint32_t magic = kBootstrapMagic;
  ServerState state = ServerState::kChoosing;
  uint32_t serial = 0;  // of kChoosing: none yet
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
  dct::Target target;
  std::shared_ptr<const rnic::AddressHandle> ah;

  uint32_t id() const { return info.address.incarnation; }
  bool serving() const { return info.state == ServerState::kServing; }
  RemoteMemory At(size_t offset) const { return {&target, ah.get(), info.table_addr + offset, info.table_rkey}; }
  friend bool operator<(const Server& a, const Server& b);
};
using ServerPtr = std::shared_ptr<const Server>;

struct ServerList {
  std::vector<ServerPtr> all;            // in the order of their age; those that are choosing last
  std::vector<ServerPtr> nearest_first;  // of whoever keeps the list, who fills it in: each lookup goes through it

  bool AnyServing() const;
  // The serving ones in the order in which node `self` asks them: its own first, else one by its id, so that nodes
  // spread over the servers.
  std::vector<ServerPtr> NearestFirst(NodeId self) const;
  bool Contains(uint32_t server_id) const;
};

// The servers that were alive at one moment of the call. Address handles of servers in `known` are reused. kCorrupt:
// announcements of another version. kTimeout, kUnavailable: the fabric does not answer. `deadline`: as the device's.
Result<ServerList> ReadServerList(rnic::Device& device, const ServerList& known, Deadline deadline = {});

}  // namespace krcore::meta

#endif  // KRCORE_META_SERVER_LIST_H_
