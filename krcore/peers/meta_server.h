// MetaServer: hosts a metadata table. It consists of memory, announced on the fabric, that others read and write by
// one-sided verbs. Its host's CPU works only before it serves.
//
// Catching up. A server first announces itself and then copies the records of a server that serves already, by
// one-sided READs of the whole table. A publisher writes to every announced server, looks at the announcements again
// afterwards, and waits for those that are not serving yet. So either a publication saw this server announced, and is
// not complete before it is written here; or it was complete at the other server before the copy began.
#ifndef KRCORE_PEERS_META_SERVER_H_
#define KRCORE_PEERS_META_SERVER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "krcore/clock.h"
#include "krcore/peers/meta_servers.h"
#include "krcore/peers/meta_table.h"
#include "krcore/peers/rc_desk.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::peers {

struct MetaServerOptions {
  uint32_t capacity = 0;           // nodes
  int64_t mr_lease_ns = 0;         // for a fabric's first server; later ones take over its value
  std::span<DeskPlace> desk = {};  // registered for peers as `desk_rkey`; empty: no RC connections are taken
  uint32_t desk_rkey = 0;
};

class MetaServer {
 public:
  // Allocates the table, announces it, catches up, and serves. Blocks until then or the deadline (kTimeout: an older
  // server does not finish catching up). kExists: the fabric has kMaxServers. kOutOfMemory: the other servers' records
  // do not fit into `capacity`.
  static Result<std::unique_ptr<MetaServer>> Host(rnic::Device& device, rnic::Pd& pd, const rnic::Dct& dct,
                                                  Clock& clock, const MetaServerOptions& options, Deadline deadline);
  // Withdraws the announcement.
  ~MetaServer();
  MetaServer(const MetaServer&) = delete;
  MetaServer& operator=(const MetaServer&) = delete;

 private:
  MetaServer(rnic::Device& device, rnic::Pd& pd, Clock& clock) : device_(device), pd_(pd), clock_(clock) {}
  // Announces this server under a name that no living server has.
  Status Announce();
  Status Announce(ServerState state);
  Status ChoosePlace(Deadline deadline);
  Status CatchUp(Deadline deadline);
  // kUnavailable: `source` died or does not answer.
  Status CopyFrom(const Server& source, OneSidedChannel& channel, Deadline deadline);
  std::span<Record> table();

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  std::unique_ptr<rnic::Memory> memory_;
  std::unique_ptr<rnic::Mr> mr_;
  bool announced_ = false;
  uint32_t name_index_ = 0;
  Bootstrap info_;
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_META_SERVER_H_
