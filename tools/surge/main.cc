// surge: shows what is on a fabric, and copies a store to a file and back. docs/operating.md.
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
#include "tools/surge/backup.h"
#include "tools/surge/cluster.h"

DEFINE_bool(watch, false, "Repeat every two seconds, until SIGINT (Ctrl-C)");
DEFINE_bool(json, false, "Print one JSON object per line, for programs");
DEFINE_string(out, "", "backup: the file to write");
DEFINE_bool(overwrite, false, "backup: replace the file if it exists");
DEFINE_string(in, "", "restore: the file to read");
DEFINE_bool(check, false, "restore: only read the file and check it; no store is needed");

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
          "status: shows the state of a fabric: its nodes, their memory, their workers and their rates. It reads all\n"
          "this by one-sided verbs, so it costs the nodes no CPU time and does not wait for dead nodes.\n"
          "backup: writes all keys and values of the store to a file. Others may write meanwhile. Then the file is no\n"
          "snapshot: of a key that changes it has one of the values that the key has during the backup, or none if\n"
          "the key is not there all the time.\n"
          "restore: writes all keys and values of such a file to a store, of any size and number of memory nodes.\n"
          "Keys that are there already get the file's values; other keys stay. A damaged file is refused where the\n"
          "damage begins, and what comes before it stays restored; --check tells in advance.",
      .usage =
          "surge status --fabric=NAME [--watch] [--json]\n"
          "surge backup --fabric=NAME --out=FILE [--overwrite]\n"
          "surge restore --fabric=NAME --in=FILE\n"
          "surge restore --in=FILE --check",
      .flags = {"fabric", "watch", "json", "out", "overwrite", "in", "check", "rnic", "fabric_address", "rnic_port",
                "control_plane", "operation_timeout_ms", "open_timeout_ms", "log"},
      .examples =
          "surge status --fabric=demo\n"
          "surge status --fabric=demo --json | python3 -m json.tool\n"
          "surge backup --fabric=demo --out=demo.backup\n"
          "surge restore --fabric=new --in=demo.backup",
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
      return cli::Fail(
          view.status(),
          "No node of " + cli::FabricFlags() +
              " can be found without a metadata server. If all programs of the fabric have "
              "died, start the memory nodes again with the same flags: their data may still be there. (memnode " +
              cli::FabricFlags() + " --clean removes it.)");
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
  constexpr const char* kCommands = "expected surge status, backup or restore";
  const cli::CommandLine line = cli::ParseFlags(surge::ProgramDescription(), argc, argv);
  if (line.arguments.empty()) return cli::FailUsage(std::string("no command given; ") + kCommands);
  const std::string& command = line.arguments[0];
  const bool backs_up = command == "backup", restores = command == "restore";
  if (command != "status" && !backs_up && !restores) return cli::FailUsage(command + ": unknown command; " + kCommands);
  if (backs_up && FLAGS_out.empty()) return cli::FailUsage("--out is missing: the file to write");
  if (restores && FLAGS_in.empty()) return cli::FailUsage("--in is missing: the file to read");
  if (restores && FLAGS_check) return surge::Restore(FLAGS_in, /*check_only=*/true);
  // Nodes of verbs and lite are clients of krcore's memory nodes: they are not looked at, but a backup may be one.
  const krcore::Status plane =
      command == "status" ? cli::CheckControlPlane({"krcore", "kernel"}) : cli::CheckClientFlags();
  for (const krcore::Status& status : {cli::CheckFabricFlags(), plane})
    if (!status.ok()) return cli::FailUsage(status.message());
  if (backs_up) return surge::Backup(FLAGS_out, FLAGS_overwrite);
  return restores ? surge::Restore(FLAGS_in, /*check_only=*/false) : surge::ShowStatus();
}
