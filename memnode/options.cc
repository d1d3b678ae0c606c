#include "memnode/options.h"

#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "cli/common_flags.h"
#include "cli/size.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "metrics/exporter.h"

DEFINE_int32(node, 0,
             "This memory node's id, 1 to 255, unique on the fabric. After a crash, a start with the same id finds its "
             "memory again. With --memory=0 it may be left out: the fabric then assigns an id");
DEFINE_string(memory, "",
              "Memory to expose, in bytes or with K, M, G or T, such as 512M or 1G. 0, with --metaserver: a metadata "
              "server only");
DEFINE_bool(metaserver, false, "Also host a metadata server. A fabric needs at least one, and may have up to eight");
DEFINE_string(
    hugepages, "auto",
    "auto: move the memory into huge pages, if the kernel can: what it can within a second before `ready`, the rest in "
    "the background. off: do not");
DEFINE_int64(wait_ms, 10'000, "Milliseconds, 0 to 86400000, to wait for a metadata server and the store's home");
DEFINE_bool(keep_memory, false, "Keep the memory and its data after a stop, for a later start with the same --node");
DEFINE_int64(
    expected_records, 0,
    "How many records the store is to hold, roughly. The store's first memory node begins with a table for so "
    "many, of 12 to 24 bytes a record, so that loading them costs less. Its empty parts are spread over the memory "
    "nodes that join. With more records the table grows. 0: it begins small");
DEFINE_int32(replicas, 0,
             "How many memory nodes are to hold each key, 1 to 3. It is decided by the store's first memory node, and "
             "changed by --set_replicas. With 2 or more, the death of a memory node loses nothing, and others that are "
             "started take its place by themselves. 0: each key is at one memory node, and this cannot be changed");
DEFINE_string(domain, "",
              "In a store that was begun with --replicas: the failure domain of this memory node, any name. If there "
              "are several, the replicas of a key are brought into different ones. The default is this host");
DEFINE_string(copy_rate, "256M",
              "In a store that was begun with --replicas: how many bytes a second this memory node may copy when it "
              "takes the place of another, such as 64M. 0: any number");
DEFINE_string(rc_acceptor, "sleep",
              "How to look for connection requests of clients with --control_plane=verbs or lite. sleep: every 20 ms, "
              "and more often after a request. spin: all the time, which takes one core. off: they cannot connect");
DEFINE_bool(clean, false, "Remove what stopped or killed programs left of the fabric, including kept memory, and exit");
DEFINE_int32(drain, 0,
             "The id, 1 to 255, of a memory node to empty, so that it can be stopped without loss. The store stays in "
             "use meanwhile. Exits when the node is empty");
DEFINE_int32(set_replicas, 0,
             "How many memory nodes are to hold each key from now on, 1 to 3, in a store that was begun with "
             "--replicas. Exits at once; the memory nodes see to it");
DEFINE_int32(undrain, 0, "The id, 1 to 255, of a drained or draining memory node to take back into use. Then exits");

namespace memnode {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kPageBytes = 4096;
// The flags of a memory node that serves.
constexpr std::initializer_list<const char*> kServing = {"node",        "memory",   "metaserver",      "hugepages",
                                                         "keep_memory", "replicas", "domain",          "copy_rate",
                                                         "rc_acceptor", "metrics",  "expected_records"};

Status Mistake(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Result<RcAcceptorMode> RcAcceptorFromFlag() {
  if (FLAGS_rc_acceptor == "sleep") return RcAcceptorMode::kSleep;
  if (FLAGS_rc_acceptor == "spin") return RcAcceptorMode::kSpin;
  if (FLAGS_rc_acceptor == "off") return RcAcceptorMode::kOff;
  return Mistake("--rc_acceptor=" + FLAGS_rc_acceptor + ": expected sleep, spin or off");
}

// Names this host, until it is started again.
std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

Status CheckId(const char* flag, int32_t node) { return cli::CheckRange(flag, node, 1, krcore::kMaxMemoryNode); }

// A request to a running fabric goes without other requests and without the flags of a memory node that serves.
Status CheckAlone(const std::string& request, std::initializer_list<const char*> others) {
  KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(others, "has no effect with --" + request));
  return cli::CheckNotGiven(kServing, "has no effect with --" + request);
}

Status CheckMemory(uint64_t bytes) {
  if (bytes < kvs::kMinPoolBytes) {
    const uint64_t least = (kvs::kMinPoolBytes + (uint64_t{1} << 20) - 1) >> 20;
    return Mistake("--memory=" + FLAGS_memory + ": a memory node needs at least " + std::to_string(least) + "M");
  }
  if (bytes > kvs::kMaxPoolBytes) {
    return Mistake("--memory=" + FLAGS_memory + ": a memory node exposes at most " +
                   cli::FormatSize(kvs::kMaxPoolBytes) + "; start several memory nodes, each with its own --node");
  }
  return Status::Ok();
}

}  // namespace

const cli::Program& ProgramDescription() {
  static const cli::Program program{
      .name = "memnode",
      .summary =
          "Exposes memory of this host to the compute nodes of a fabric. They access it by one-sided RDMA, so\n"
          "memnode sleeps after its `ready` line. SIGINT (Ctrl-C) or SIGTERM stops it and removes the memory.",
      .usage =
          "memnode --fabric=NAME --node=ID --memory=SIZE [--metaserver] [flags]\n"
          "memnode --fabric=NAME --memory=0 --metaserver [flags]\n"
          "memnode --fabric=NAME --drain=ID | --undrain=ID | --set_replicas=N\n"
          "memnode --fabric=NAME --clean",
      .flags = {"fabric",       "node",        "memory",        "metaserver", "expected_records",
                "hugepages",    "wait_ms",     "keep_memory",   "replicas",   "domain",
                "copy_rate",    "rc_acceptor", "metrics",       "drain",      "undrain",
                "set_replicas", "clean",       "control_plane", "rnic",       "fabric_address",
                "rnic_port",    "log"},
      .examples =
          "memnode --fabric=demo --node=1 --memory=1G --metaserver\n"
          "memnode --fabric=demo --node=2 --memory=1G\n"
          "memnode --fabric=demo --drain=2\n"
          "memnode --fabric=demo --clean\n"
          "memnode --fabric=safe --node=1 --memory=1G --metaserver --replicas=2",
      .max_arguments = 0,
      .short_options = "",
      .short_help = "",
  };
  return program;
}

Result<Options> OptionsFromFlags() {
  KRCORE_RETURN_IF_ERROR(cli::CheckFabricFlags());
  Options options;
  options.rnic = FLAGS_rnic;
  options.fabric = FLAGS_fabric;
  // Clients of verbs and lite connect to a krcore memory node.
  KRCORE_RETURN_IF_ERROR(cli::CheckControlPlane({"krcore", "kernel"}));
  options.control_plane = FLAGS_control_plane;
  options.clean = FLAGS_clean;
  if (options.clean) {
    KRCORE_RETURN_IF_ERROR(
        cli::CheckNotGiven({"wait_ms", "drain", "undrain", "set_replicas"}, "has no effect with --clean"));
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(kServing, "has no effect with --clean"));
    return options;
  }
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("wait_ms", FLAGS_wait_ms, 0, cli::kMaxTimeMs));
  options.wait_ms = FLAGS_wait_ms;
  if (cli::FlagGiven("drain")) {
    KRCORE_RETURN_IF_ERROR(CheckAlone("drain", {"undrain", "set_replicas"}));
    KRCORE_RETURN_IF_ERROR(CheckId("drain", FLAGS_drain));
    options.drain = static_cast<krcore::NodeId>(FLAGS_drain);
    return options;
  }
  if (cli::FlagGiven("undrain")) {
    KRCORE_RETURN_IF_ERROR(CheckAlone("undrain", {"set_replicas"}));
    KRCORE_RETURN_IF_ERROR(CheckId("undrain", FLAGS_undrain));
    options.undrain = static_cast<krcore::NodeId>(FLAGS_undrain);
    return options;
  }
  if (cli::FlagGiven("set_replicas")) {
    KRCORE_RETURN_IF_ERROR(CheckAlone("set_replicas", {}));
    KRCORE_RETURN_IF_ERROR(
        cli::CheckRange("set_replicas", FLAGS_set_replicas, 1, static_cast<int64_t>(kvs::kMaxReplicas)));
    options.set_replicas = static_cast<uint32_t>(FLAGS_set_replicas);
    return options;
  }

  if (FLAGS_memory.empty()) {
    return Mistake(
        "--memory is missing: give the amount to expose, for example --memory=1G "
        "(or --memory=0 --metaserver for a metadata server only)");
  }
  const Result<uint64_t> memory = cli::ParseSizeFlag("memory", FLAGS_memory);
  if (!memory.ok()) return memory.status();
  if (*memory == 0 && !FLAGS_metaserver) {
    return Mistake("--memory=0 leaves nothing to do: add --metaserver, or give a size such as --memory=1G");
  }
  if (*memory != 0) {
    KRCORE_RETURN_IF_ERROR(CheckMemory(*memory));
  } else {
    KRCORE_RETURN_IF_ERROR(
        cli::CheckNotGiven({"expected_records", "keep_memory", "replicas", "domain", "copy_rate", "rc_acceptor"},
                           "has no effect with --memory=0"));
  }
  options.memory_bytes = (*memory + kPageBytes - 1) / kPageBytes * kPageBytes;

  const bool assigned = *memory == 0 && !cli::FlagGiven("node");
  if (!assigned && !cli::FlagGiven("node")) {
    return Mistake(
        "--node is missing: give this memory node an id, 1 to 255 and unique on the fabric, for example --node=1");
  }
  if (!assigned) {
    KRCORE_RETURN_IF_ERROR(CheckId("node", FLAGS_node));
  }
  options.node = static_cast<krcore::NodeId>(FLAGS_node);

  if (FLAGS_hugepages != "auto" && FLAGS_hugepages != "off") {
    return Mistake("--hugepages=" + FLAGS_hugepages + ": expected auto or off");
  }
  const Result<RcAcceptorMode> rc_acceptor = RcAcceptorFromFlag();
  if (!rc_acceptor.ok()) return rc_acceptor.status();
  options.rc_acceptor = *rc_acceptor;
  if (options.control_plane == "kernel") {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(
        {"rc_acceptor"}, "has no effect with --control_plane=kernel: the kernel module accepts connections"));
  }
  constexpr int64_t kMostRecords = 1'000'000'000'000;
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("expected_records", FLAGS_expected_records, 0, kMostRecords));
  options.expected_records = static_cast<uint64_t>(FLAGS_expected_records);
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("replicas", FLAGS_replicas, 0, static_cast<int64_t>(kvs::kMaxReplicas)));
  options.replicas = static_cast<uint32_t>(FLAGS_replicas);
  if (options.replicas > 0 && (options.control_plane != "krcore" || options.rnic != "sw")) {
    return Mistake(
        "--replicas=" + std::to_string(options.replicas) +
        " needs --control_plane=krcore and --rnic=sw: elsewhere there is no record yet of which memory nodes "
        "hold what");
  }
  options.domain = FLAGS_domain.empty() ? BootId() : FLAGS_domain;
  const Result<uint64_t> copy_rate = cli::ParseSizeFlag("copy_rate", FLAGS_copy_rate);
  if (!copy_rate.ok()) return copy_rate.status();
  options.copy_bytes_per_s = *copy_rate;
  auto metrics = metrics::AddressFromFlag();
  if (!metrics.ok()) return metrics.status();
  options.metrics = *std::move(metrics);
  options.metaserver = FLAGS_metaserver;
  options.huge_pages = FLAGS_hugepages == "auto";
  options.keep_memory = FLAGS_keep_memory;
  return options;
}

}  // namespace memnode
