// memnode: exposes memory to a fabric and sleeps. docs/operating.md.
#include <glog/logging.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/size.h"
#include "cli/stop_signal.h"
#include "krcore/clock.h"
#include "kvs/layout/configuration.h"
#include "kvs/memory/remote_pool.h"
#include "kvs/memory/survey.h"
#include "memnode/memory_server.h"
#include "memnode/node_metrics.h"
#include "memnode/options.h"
#include "memnode/requests.h"
#include "memnode/steward.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"

namespace memnode {
namespace {

constexpr int64_t kRefreshMs = 1'000;
// Covers everything that is written at each metadata server; each round trip wakes two threads if DC is software. A
// stop does not wait for it, because a stop moves StopClock.
constexpr int64_t kPublishNs = 1'000'000'000;

// StopClock: the host's clock until a stop is requested; from then on it is far in the future. So every wait with a
// deadline ends at once on Ctrl-C, without a cancellation argument through every interface. Take a deadline that must
// be cut short on the host's clock: one taken here after the stop runs its full time, as closing needs.
class StopClock final : public krcore::Clock {
 public:
  int64_t NowNs() override {
    const int64_t now = krcore::RealClock()->NowNs();
    return cli::StopSignal::Requested() ? now + kJumpNs : now;
  }
  void Relax(uint32_t spins) override { krcore::RealClock()->Relax(spins); }

 private:
  // A century: past every deadline. Time goes on after the jump.
  static constexpr int64_t kJumpNs = int64_t{100} * 365 * 24 * 3600 * 1'000'000'000;
};

// CPU time of this process: it shows that serving costs none.
struct CpuTime {
  double user_s = 0;
  double system_s = 0;

  static CpuTime OfThisProcess() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6; };
    return {seconds(usage.ru_utime), seconds(usage.ru_stime)};
  }
  friend CpuTime operator-(const CpuTime& a, const CpuTime& b) {
    return {a.user_s - b.user_s, a.system_s - b.system_s};
  }
};

const char* StopReason() {
  switch (cli::StopSignal::signal_number()) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    default: return "request";
  }
}

void PrintReady(const Options& options, MemoryServer& server) {
  std::printf("ready fabric=%s node=%u memory=%llu metaserver=%s home=%s adopted=%s%s pid=%d\n", options.fabric.c_str(),
              server.node(), static_cast<unsigned long long>(options.memory_bytes), YesNo(options.metaserver),
              YesNo(server.is_home()), YesNo(server.adopted()), server.mirrored() ? " mirrored=yes" : "",
              static_cast<int>(getpid()));
  std::fflush(stdout);
}

struct Served {
  krcore::NodeId node = krcore::kNoNode;
  double seconds = 0;
  CpuTime cpu;
  double huge_page_cpu_s = 0;
  uint64_t huge_page_bytes = 0;
  bool has_name = true;  // whether its name still leads to the fabric
  bool removed = false;  // its mirrored pool went on without it
  double rc_acceptor_cpu_s = 0;
  uint64_t rc_requests = 0;
  double housekeeper_cpu_s = 0;
  uint64_t chunks_freed = 0, expired = 0;  // by the housekeeper
  double dc_agent_cpu_s = 0;
};

// Where pools are mirrored: whether this node is the only living replica of its pool.
bool HoldsAlone(MemoryServer& server) {
  const auto configuration =
      kvs::ReadConfiguration(server.fabric(), krcore::Deadline::After(*krcore::RealClock(), kPublishNs));
  if (!configuration.ok()) return true;
  const kvs::Replica self{server.node(), server.fabric().incarnation()};
  const auto serves = [&](const kvs::Replica& each) { return each == self || !kvs::IsDead(server.fabric(), each); };
  return std::ranges::any_of(configuration->pools, [&](const kvs::PoolView& view) {
    return std::ranges::find(view.chain, self) != view.chain.end() && std::ranges::count_if(view.chain, serves) == 1;
  });
}

// Warns of what is lost together with the memory, and says what would have kept it.
void WarnOfWhatIsLost(const Options& options, MemoryServer& server) {
  const krcore::Status name = server.fabric().CheckName();
  if (server.pool() == nullptr || (options.keep_memory && name.ok())) return;
  if (server.mirrored() && !HoldsAlone(server)) return;
  const kvs::PoolUse use = kvs::CountChunks(server.pool()->bytes());
  // The home's first chunk belongs to the table, which exists before any key does.
  if (use.used_bytes() <= (server.is_home() ? use.chunk_bytes : 0)) return;
  std::string message =
      "up to " + cli::FormatSize(use.used_bytes()) + " of keys and values are lost with this memory node's memory";
  if (!name.ok()) {
    message += ", because " + std::string(name.message());
    LOG(WARNING) << message;
    return;
  }
  if (server.mirrored()) {
    message += ", because no other memory node has a replica of its pool";
  } else if (server.is_home()) {
    message += ", and with them the whole store, because this node is its home";
  } else {
    message +=
        "; to move them to other nodes, run memnode --drain=" + std::to_string(server.node()) + " before the stop";
  }
  if (options.memory_may_stay()) message += "; to keep them for the next start, start the node with --keep_memory";
  LOG(WARNING) << message;
}

int64_t RcAcceptorCpuNs(MemoryServer& server) {
  return server.rc_acceptor() == nullptr ? 0 : server.rc_acceptor()->cpu_ns();
}

// Returns the CPU time of the thread that serves peers' requests if DC is software.
int64_t DcAgentCpuNs(MemoryServer& server) {
  return server.fabric().software_dc().value_or(krcore::SoftwareDcStats{}).agent_cpu_ns;
}

// Writes into the metadata servers what this node is, and its announcement.
krcore::Status Publish(MemoryServer& server, NodeMetrics& node_metrics, metrics::AnnouncementWriter& announcement) {
  const auto deadline = krcore::Deadline::After(*krcore::RealClock(), kPublishNs);
  KRCORE_RETURN_IF_ERROR(server.Refresh(deadline));
  krcore::Status status = announcement.Write(node_metrics.Tell(), deadline);
  if (!(status == krcore::StatusCode::kOutOfMemory)) return status;
  LOG_FIRST_N(WARNING, 1) << "surge status cannot show this node: " << status.ToString();
  return {};
}

// Serves from `ready` until a stop is requested, or the node's mirrored pool has gone on without it.
Served Serve(const Options& options, MemoryServer& server, NodeMetrics& node_metrics) {
  Served served;
  served.node = server.node();
  const int64_t begin_ns = krcore::RealClock()->NowNs();
  const CpuTime begin_cpu = CpuTime::OfThisProcess();
  const int64_t begin_rc_cpu_ns = RcAcceptorCpuNs(server), begin_dc_cpu_ns = DcAgentCpuNs(server);
  const int64_t begin_huge_page_cpu_ns = server.huge_pages() == nullptr ? 0 : server.huge_pages()->cpu_ns();
  PrintReady(options, server);
  std::optional<Steward> steward;
  if (server.is_home() || server.mirrored()) steward.emplace(options, server);
  node_metrics.Attach(server, server.mirrored() ? &*steward : nullptr);
  metrics::AnnouncementWriter announcement(server.fabric());
  bool refreshed = true;
  for (int64_t wait_ms = 0; !cli::StopSignal::WaitFor(wait_ms); wait_ms = kRefreshMs) {
    const krcore::Status name = server.fabric().CheckName();
    node_metrics.NoteName(name);
    if (!name.ok() && std::exchange(served.has_name, false)) {
      LOG(ERROR)
          << name.message()
          << ". Programs that are attached go on. New programs, such as memnode --drain, cannot find this memory "
             "node, and --keep_memory cannot keep its data. The files cannot be restored. Let an attached "
             "program copy the data that is needed. Then stop all programs of the fabric, and start them again";
    }
    const krcore::Status status = Publish(server, node_metrics, announcement);
    node_metrics.NoteRefresh(status);
    served.removed = server.mirrored() && steward->replica().state == kvs::ReplicaState::kRemoved;
    if (served.removed) break;
    if (status.ok() == refreshed || cli::StopSignal::Requested()) continue;  // a stop ends this wait, too
    refreshed = status.ok();
    if (refreshed) {
      LOG(INFO) << "published at the metadata server again";
    } else {
      LOG(WARNING) << "not published at a metadata server: " << status.ToString() << "; trying again every "
                   << kRefreshMs << " ms";
    }
  }
  node_metrics.Detach();
  if (steward.has_value()) {
    steward->Join();
    served.housekeeper_cpu_s = static_cast<double>(steward->cpu_ns()) * 1e-9;
    served.chunks_freed = steward->chunks_freed();
    served.expired = steward->expired();
  }
  if (HugePageCollapser* const huge_pages = server.huge_pages(); huge_pages != nullptr) {
    huge_pages->Stop();
    served.huge_page_cpu_s = static_cast<double>(huge_pages->cpu_ns() - begin_huge_page_cpu_ns) * 1e-9;
    served.huge_page_bytes = huge_pages->collapsed_bytes();
  }
  served.rc_acceptor_cpu_s = static_cast<double>(RcAcceptorCpuNs(server) - begin_rc_cpu_ns) * 1e-9;
  if (server.rc_acceptor() != nullptr) served.rc_requests = server.rc_acceptor()->requests();
  served.dc_agent_cpu_s = static_cast<double>(DcAgentCpuNs(server) - begin_dc_cpu_ns) * 1e-9;
  served.seconds = static_cast<double>(krcore::RealClock()->NowNs() - begin_ns) * 1e-9;
  served.cpu = CpuTime::OfThisProcess() - begin_cpu;
  served.has_name = server.fabric().CheckName().ok();
  WarnOfWhatIsLost(options, server);
  return served;
}

void PrintStopped(const Options& options, const Served& served) {
  const char* memory = options.memory_bytes == 0 ? "none"
                       : !options.keep_memory    ? "removed"
                       : served.has_name         ? "kept"
                                                 : "unnamed";
  std::printf(
      "stopped fabric=%s node=%u signal=%s memory=%s served_s=%.3f cpu_user_s=%.6f cpu_system_s=%.6f "
      "of_it_hugepages_s=%.6f hugepage_bytes=%llu of_it_rc_acceptor_s=%.6f rc_requests=%llu "
      "of_it_housekeeper_s=%.6f chunks_freed=%llu expired=%llu of_it_dc_agent_s=%.6f\n",
      options.fabric.c_str(), served.node, StopReason(), memory, served.seconds, served.cpu.user_s, served.cpu.system_s,
      served.huge_page_cpu_s, static_cast<unsigned long long>(served.huge_page_bytes), served.rc_acceptor_cpu_s,
      static_cast<unsigned long long>(served.rc_requests), served.housekeeper_cpu_s,
      static_cast<unsigned long long>(served.chunks_freed), static_cast<unsigned long long>(served.expired),
      served.dc_agent_cpu_s);
  std::fflush(stdout);
}

int Run(const Options& options) {
  if (const krcore::Status status = cli::StopSignal::Install(cli::StopSignal::Hangup::kIgnored); !status.ok()) {
    return cli::Fail(status);
  }
  StopClock clock;
  NodeMetrics node_metrics(options);
  std::unique_ptr<metrics::Exporter> exporter;
  if (options.metrics) {
    // Start it before the memory: if the address cannot be had, what a predecessor left stays as it is.
    auto started = metrics::Exporter::Start(*options.metrics, node_metrics);
    if (!started.ok()) return cli::Fail(started.status());
    exporter = *std::move(started);
    node_metrics.set_address(exporter->address());
    LOG(INFO) << "serving metrics at " << exporter->address().ToString();
  }
  for (;;) {
    auto server = MemoryServer::Start(options, &clock);
    if (!server.ok()) {
      if (!cli::StopSignal::Requested()) return cli::Fail(server.status());
      return cli::Fail(
          {krcore::StatusCode::kUnavailable, std::string("stopped by ") + StopReason() + " while starting"});
    }
    const Served served = Serve(options, **server, node_metrics);
    *server = nullptr;  // closes it, so that "stopped" means that nothing is left
    // It joins again with another incarnation and other memory, so that nobody takes it for what it was.
    if (served.removed && !cli::StopSignal::Requested()) continue;
    PrintStopped(options, served);
    return 0;
  }
}

int Clean(const Options& options) {
  const auto line = CleanFabric(options);
  if (!line.ok()) return cli::Fail(line.status());
  std::printf("%s\n", line->c_str());
  return 0;
}

}  // namespace
}  // namespace memnode

int main(int argc, char** argv) {
  cli::ParseFlags(memnode::ProgramDescription(), argc, argv);
  const auto options = memnode::OptionsFromFlags();
  if (!options.ok()) return cli::FailUsage(options.status().message());
  if (options->clean) return memnode::Clean(*options);
  if (options->drain != krcore::kNoNode) return memnode::Drain(*options);
  if (options->undrain != krcore::kNoNode) return memnode::Undrain(*options);
  if (options->set_replicas != 0) return memnode::SetReplicas(*options);
  return memnode::Run(*options);
}
