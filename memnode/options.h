// What memnode is asked to do. It is checked before anything is opened. The fabric is that of the flags
// (cli::SetFabric).
#ifndef MEMNODE_OPTIONS_H_
#define MEMNODE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "krcore/status.h"
#include "krcore/types.h"
#include "memnode/rc_acceptor.h"
#include "metrics/exporter.h"

namespace memnode {

inline const char* YesNo(bool yes) { return yes ? "yes" : "no"; }

struct Options {
  std::string rnic;
  std::string fabric;
  std::string control_plane = "krcore";   // or "kernel"
  krcore::NodeId node = krcore::kNoNode;  // kNoNode: a pure metadata server, the fabric assigns one
  uint64_t memory_bytes = 0;              // 0: a pure metadata server
  bool metaserver = false;
  bool huge_pages = true;
  bool keep_memory = false;
  uint64_t expected_records = 0;  // of the store, if this node begins it
  uint32_t replicas = 0;          // of each pool, if this node begins the store; 0: its pools are not mirrored
  std::string domain;             // the failure domain
  uint64_t copy_bytes_per_s = 0;  // as kvs::ReplicaKeeperOptions
  RcAcceptorMode rc_acceptor = RcAcceptorMode::kSleep;
  int64_t wait_ms = 0;                       // for the metadata server and the store's home to appear
  std::optional<cli::Address> metrics;       // nothing: off
  bool clean = false;                        // remove leftovers instead of serving
  krcore::NodeId drain = krcore::kNoNode;    // empty this memory node instead of serving
  krcore::NodeId undrain = krcore::kNoNode;  // ... or take it back into use
  uint32_t set_replicas = 0;                 // ... or change how many replicas pools are to have

  // Returns whether memory can outlive its process, to be adopted (--keep_memory) or removed (--clean).
  bool memory_may_stay() const { return rnic == "sw" && control_plane == "krcore"; }
};

// The program's description and flags, for cli::ParseFlags.
const cli::Program& ProgramDescription();

// Returns the parsed flags, checked. kInvalidArgument names the flag and the way out.
krcore::Result<Options> OptionsFromFlags();

}  // namespace memnode

#endif  // MEMNODE_OPTIONS_H_
