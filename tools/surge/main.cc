// surge: shows what is on a fabric. docs/operating.md.
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"
#include "krcore/clock.h"
#include "krcore/node.h"
#include "tools/surge/cluster.h"

DEFINE_bool(watch, false, "Repeat every two seconds, until SIGINT (Ctrl-C)");
DEFINE_bool(json, false, "Print one JSON object per line, for programs");

namespace surge {
namespace {

using krcore::Status;

constexpr int64_t kWatchMs = 2'000;
// Nodes announce themselves once a second. Rates need two announcements of each compute node.
constexpr int64_t kSampleMs = 100;
constexpr int64_t kMostSampleMs = 2'500;

const cli::Program& ProgramDescription() {
  static const cli::Program program{
      .name = "surge",
      .summary =
          "Shows the state of a fabric: its nodes, their memory, their workers and their rates. It reads all this\n"
          "by one-sided verbs, so it costs the nodes no CPU time and does not wait for dead nodes.",
      .usage = "surge status --fabric=NAME [--watch] [--json]",
      .flags = {"fabric", "watch", "json", "rnic", "fabric_address", "rnic_port", "control_plane", "log"},
      .examples =
          "surge status --fabric=demo\n"
          "surge status --fabric=demo --json | python3 -m json.tool",
      .max_arguments = 1,
      .short_options = "",
      .short_help = "",
  };
  return program;
}

bool LacksRates(const ClusterView& view) {
  return std::ranges::any_of(view.nodes, [](const NodeView& node) {
    const bool alive = node.state != "dead" && node.state != "silent";
    return alive && node.announcement && node.announcement->role == metrics::Role::kCompute && !node.operations_per_s;
  });
}

// Takes two samples, if anything has a rate.
krcore::Result<ClusterView> LookTwice(Cluster& cluster) {
  auto view = cluster.Look();
  for (int64_t waited_ms = 0; view.ok() && LacksRates(*view) && waited_ms < kMostSampleMs; waited_ms += kSampleMs) {
    if (cli::StopSignal::WaitFor(kSampleMs)) break;
    view = cluster.Look();
  }
  return view;
}

int ShowStatus() {
  if (const Status status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  krcore::NodeOptions open;
  cli::SetFabric(&open);
  auto cluster = Cluster::Open(FLAGS_control_plane, open);
  if (!cluster.ok()) return cli::FailToOpen(cluster.status());
  const bool redraw = FLAGS_watch && !FLAGS_json && isatty(STDOUT_FILENO) != 0;
  do {
    const auto view = LookTwice(**cluster);
    if (!view.ok()) {
      return cli::Fail(view.status(), "No node of " + cli::FabricFlags() +
                                          " can be found without a metadata server. If all programs of the fabric have "
                                          "died, remove what they left: memnode " +
                                          cli::FabricFlags() + " --clean");
    }
    const std::string text = FLAGS_json ? Json(*view) + "\n" : Table(*view);
    if (redraw) std::fputs("\x1b[H\x1b[J", stdout);
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0) return cli::kExitFailure;  // the exit reports why
  } while (FLAGS_watch && !cli::StopSignal::WaitFor(kWatchMs));
  return 0;
}

}  // namespace
}  // namespace surge

int main(int argc, char** argv) {
  const cli::CommandLine line = cli::ParseFlags(surge::ProgramDescription(), argc, argv);
  if (line.arguments.empty()) return cli::FailUsage("no command given; expected surge status --fabric=NAME");
  if (line.arguments[0] != "status") return cli::FailUsage(line.arguments[0] + ": unknown command; expected status");
  // Nodes of verbs and lite are clients of krcore's memory nodes.
  for (const krcore::Status& status : {cli::CheckFabricFlags(), cli::CheckControlPlane({"krcore", "kernel"})})
    if (!status.ok()) return cli::FailUsage(status.message());
  return surge::ShowStatus();
}
