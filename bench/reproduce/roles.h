// The roles that processes of reproduce_bench have for each other. Each is the program itself with --role, and ends at
// the end of its input.
#ifndef BENCH_REPRODUCE_ROLES_H_
#define BENCH_REPRODUCE_ROLES_H_

#include <cstdint>
#include <string>

#include "bench/reproduce/child.h"

namespace reproduce {

struct Role {
  std::string name;
  std::string fabric;
  std::string plane;
  uint32_t id = 0;     // mesh: of this node
  uint32_t count = 0;  // workers, or nodes of the mesh
  uint32_t waves = 0;
  uint64_t bytes = 0;
  uint64_t seed = 0;
  int64_t wanted_ns = 0;
};

// Starts this program in that role.
Child StartRole(const Role& role);

// Each from the file of its figure, BePeer from roles.cc.
void BeConnector(const Role& role);          // "connector": a fresh process that connects to the peer on command
void BeConnectingThreads(const Role& role);  // "connecting-threads": waves of threads that do
void BeMeshNode(const Role& role);           // "mesh-node": connects to all the others on command
void BePeer(const Role& role);               // "peer": is connected to; says whether bytes are those of a seed
void BeTransfer(const Role& role);           // "transfer": a fresh process that connects, moves bytes and ends
void BeTransferThreads(const Role& role);    // "transfer-threads": a process with threads that do

// A running peer, for figures whose workers are processes.
class PeerProcess {
 public:
  // Of `bytes` memory, filled by the seed.
  PeerProcess(const std::string& fabric, uint64_t bytes, uint64_t seed);
  // Whether its first `bytes` are those of the seed.
  bool Holds(uint64_t bytes, uint64_t seed);
  void End() { child_.Reap(); }

 private:
  Child child_;
};

}  // namespace reproduce

#endif  // BENCH_REPRODUCE_ROLES_H_
