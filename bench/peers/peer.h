// What a store is to the comparison of bench_peers: it hands out sessions, and a session executes requests. Each store
// that SurgeKV is compared with is a Peer in a file of its own; everything else (keys, values, the clock, verification)
// is the same for all of them (requests.h).
#ifndef BENCH_PEERS_PEER_H_
#define BENCH_PEERS_PEER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/requests.h"
#include "krcore/status.h"

namespace peers {

// What the peer will hold. All records are of one size: keys of 8 or 16 bytes, values of 8 or 100.
struct Shape {
  uint64_t records = 0;
  uint64_t new_records = 0;  // that may be inserted in addition
  size_t key_bytes = 16;
  size_t value_bytes = 100;

  size_t data_bytes() const { return key_bytes + value_bytes; }
  uint64_t most_records() const { return records + new_records; }
};

// Memory accesses of the tables, which the store counts as verbs. Epochs and leases are not among them.
struct Accesses {
  uint64_t reads = 0, writes = 0, atomics = 0;
};

// One worker's. Thread safety: one thread.
class Session {
 public:
  virtual ~Session() = default;
  // Executes requests until there are none left. Blocks. `in_flight` of them may begin before the first must have
  // ended; a peer without an interface for that executes them one by one.
  virtual void Run(Requests& requests, uint32_t in_flight) = 0;
};

// Thread safety: NewSession from any thread, also while other sessions run; the rest from one thread while none does.
class Peer {
 public:
  virtual ~Peer() = default;
  // The session must end before the peer does. It must be made in the thread that uses it.
  virtual std::unique_ptr<Session> NewSession() = 0;
  // All the memory that the records take, in bytes, whatever for: also what is reserved, or lost between them.
  virtual uint64_t MemoryBytes() = 0;
};

// The names of all peers, in the order of reports: surgekv, bound, bound-unsafe, tbb, absl, boost, lmdb, memcached,
// redis.
std::vector<std::string> PeerNames();
// One of them, or SurgeKV set up in another way. "surgekv@2" to "surgekv@8": over that many memory nodes. "surgekv-r1"
// to "surgekv-r3": in one mirrored pool of that many replicas. "surgekv-r2-learner": of two, with a third one that is a
// learner all the time. "surgekv-sized": told how many records come.
bool IsPeer(const std::string& name);

// An empty peer with room for the shape's records, and what is being replaced. kNotFound: a program that
// it needs is not installed. kInvalidArgument: no such peer, or not of this shape.
krcore::Result<std::unique_ptr<Peer>> MakePeer(const std::string& name, const Shape& shape);

// Each in its own file.
krcore::Result<std::unique_ptr<Peer>> MakeSurgekv(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeSurgekvOver(uint32_t memory_nodes, const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeSurgekvSized(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeSurgekvMirrored(uint32_t replicas, bool learner, const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeBareBound(const Shape& shape);        // with all that safety needs
krcore::Result<std::unique_ptr<Peer>> MakeBareBoundUnsafe(const Shape& shape);  // one CAS to publish, nothing more
krcore::Result<std::unique_ptr<Peer>> MakeTbb(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeAbsl(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeBoost(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeLmdb(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeMemcached(const Shape& shape);
krcore::Result<std::unique_ptr<Peer>> MakeRedis(const Shape& shape);

}  // namespace peers

#endif  // BENCH_PEERS_PEER_H_
