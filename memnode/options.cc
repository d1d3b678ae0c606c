#include "memnode/options.h"

#include <initializer_list>
#include <utility>

#include "cli/common_flags.h"
#include "cli/size.h"
#include "kvs/layout/pool.h"
#include "metrics/exporter.h"

DEFINE_int32(node, 0,
             "This memory node's id, 1 to 255, unique on the fabric; the same id finds its memory again "
             "after a crash (0: assigned, for a metadata server with --memory=0)");
DEFINE_string(memory, "", "Memory to expose, such as 512M or 1G; 0 with --metaserver: a metadata server only");
DEFINE_bool(metaserver, false, "Host a metadata server of the fabric too; one program at least does, up to eight may");
DEFINE_string(hugepages, "auto", "auto: move the memory into huge pages in the background where the kernel can; off");
DEFINE_int64(wait_ms, 10'000, "How long to wait for the metadata server and the store's home to appear");
DEFINE_bool(keep_memory, false, "Leave the memory and its data when stopped, for a later start with the same --node");
DEFINE_string(rc_acceptor, "sleep",
              "Answers clients that have --control_plane=verbs or lite. sleep: looks for them every 20 ms, more often "
              "when there were some of late; spin: all the time, which takes a core; off: they cannot connect");
DEFINE_bool(clean, false, "Remove what stopped or killed programs left of --fabric, also kept memory, and exit");
DEFINE_int32(drain, 0,
             "Empty the memory node of this id, while the store is in use, so that it can be stopped without losing "
             "anything, and exit");
DEFINE_int32(undrain, 0, "Take the memory node of this id, which is being drained or was, back into use, and exit");

namespace memnode {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kPageBytes = 4096;
// The flags of a memory node that serves.
constexpr std::initializer_list<const char*> kServing = {"node",        "memory",      "metaserver", "hugepages",
                                                         "keep_memory", "rc_acceptor", "metrics"};
constexpr int64_t kMaxWaitMs = int64_t{24} * 3600 * 1000;  // so that it fits in nanoseconds many times over

Status Mistake(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Result<RcAcceptorMode> RcAcceptorFromFlag() {
  if (FLAGS_rc_acceptor == "sleep") return RcAcceptorMode::kSleep;
  if (FLAGS_rc_acceptor == "spin") return RcAcceptorMode::kSpin;
  if (FLAGS_rc_acceptor == "off") return RcAcceptorMode::kOff;
  return Mistake("--rc_acceptor=" + FLAGS_rc_acceptor + ": not sleep, spin or off");
}

Status CheckId(const char* flag, int32_t node) { return cli::CheckRange(flag, node, 1, krcore::kMaxMemoryNode); }

Status CheckMemory(uint64_t bytes) {
  if (bytes < kvs::kMinPoolBytes) {
    const uint64_t least = (kvs::kMinPoolBytes + (uint64_t{1} << 20) - 1) >> 20;
    return Mistake("--memory=" + FLAGS_memory + ": a memory node needs at least " + std::to_string(least) + "M");
  }
  if (bytes > kvs::kMaxPoolBytes) {
    return Mistake("--memory=" + FLAGS_memory + ": a memory node exposes at most " +
                   cli::FormatSize(kvs::kMaxPoolBytes) + "; start several, each with its own --node");
  }
  return Status::Ok();
}

}  // namespace

const cli::Program& ProgramDescription() {
  static const cli::Program program{
      .name = "memnode",
      .summary =
          "Exposes memory of this host to a fabric's compute nodes, which use it by one-sided RDMA: once it has\n"
          "printed its `ready` line it sleeps until SIGINT or SIGTERM (Ctrl-C), then removes its memory.",
      .usage =
          "memnode --fabric=NAME --node=ID --memory=SIZE [--metaserver] [flags]\n"
          "memnode --fabric=NAME --memory=0 --metaserver [flags]\n"
          "memnode --fabric=NAME --drain=ID | --undrain=ID\n"
          "memnode --fabric=NAME --clean",
      .flags = {"fabric", "node", "memory", "metaserver", "hugepages", "wait_ms", "keep_memory", "rc_acceptor",
                "metrics", "drain", "undrain", "clean", "control_plane", "rnic", "fabric_address", "rnic_port", "log"},
      .examples =
          "memnode --fabric=demo --node=1 --memory=1G --metaserver\n"
          "memnode --fabric=demo --node=2 --memory=1G\n"
          "memnode --fabric=demo --drain=2\n"
          "memnode --fabric=demo --clean",
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
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven({"wait_ms", "drain", "undrain"}, "has no effect with --clean"));
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(kServing, "has no effect with --clean"));
    return options;
  }
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("wait_ms", FLAGS_wait_ms, 0, kMaxWaitMs));
  options.wait_ms = FLAGS_wait_ms;
  if (cli::FlagGiven("drain")) {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven({"undrain"}, "has no effect with --drain"));
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(kServing, "has no effect with --drain"));
    KRCORE_RETURN_IF_ERROR(CheckId("drain", FLAGS_drain));
    options.drain = static_cast<krcore::NodeId>(FLAGS_drain);
    return options;
  }
  if (cli::FlagGiven("undrain")) {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(kServing, "has no effect with --undrain"));
    KRCORE_RETURN_IF_ERROR(CheckId("undrain", FLAGS_undrain));
    options.undrain = static_cast<krcore::NodeId>(FLAGS_undrain);
    return options;
  }

  if (FLAGS_memory.empty()) {
    return Mistake(
        "--memory is missing: how much to expose, for example --memory=1G "
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
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven({"keep_memory", "rc_acceptor"}, "has no effect with --memory=0"));
  }
  options.memory_bytes = (*memory + kPageBytes - 1) / kPageBytes * kPageBytes;

  const bool assigned = *memory == 0 && !cli::FlagGiven("node");
  if (!assigned && !cli::FlagGiven("node")) {
    return Mistake("--node is missing: this memory node's id, 1 to 255 and unique on the fabric, for example --node=1");
  }
  if (!assigned) {
    KRCORE_RETURN_IF_ERROR(CheckId("node", FLAGS_node));
  }
  options.node = static_cast<krcore::NodeId>(FLAGS_node);

  if (FLAGS_hugepages != "auto" && FLAGS_hugepages != "off") {
    return Mistake("--hugepages=" + FLAGS_hugepages + ": not auto or off");
  }
  const Result<RcAcceptorMode> rc_acceptor = RcAcceptorFromFlag();
  if (!rc_acceptor.ok()) return rc_acceptor.status();
  options.rc_acceptor = *rc_acceptor;
  if (options.control_plane == "kernel") {
    KRCORE_RETURN_IF_ERROR(cli::CheckNotGiven(
        {"rc_acceptor"}, "has no effect with --control_plane=kernel, whose module accepts connections"));
  }
  auto metrics = metrics::AddressFromFlag();
  if (!metrics.ok()) return metrics.status();
  options.metrics = *std::move(metrics);
  options.metaserver = FLAGS_metaserver;
  options.huge_pages = FLAGS_hugepages == "auto";
  options.keep_memory = FLAGS_keep_memory;
  return options;
}

}  // namespace memnode
