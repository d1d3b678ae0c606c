// bench_peers: compares SurgeKV with stores that users might take instead, and with bounds of what the machine can do.
// bench/results/README.md.
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/comparison.h"
#include "bench/peers/goals.h"
#include "bench/peers/report.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"

DEFINE_bool(quick, false,
            "measure the goals and print how far the store is from each; of the flags below only --records, --reps, "
            "--slice_ms, --seed and --json count");
DEFINE_string(peers, "", "comma separated, of those that an unknown name lists; empty: all");
DEFINE_string(mixes, "load,C,B,A,D,F", "comma separated: YCSB's workloads, and load");
DEFINE_string(distributions, "uniform,zipf", "comma separated; D always asks for the latest");
DEFINE_string(workers, "1,2", "comma separated: threads, 1 to 16");
DEFINE_string(in_flight, "1,16", "comma separated: requests at a time, 1 to 64");
DEFINE_uint64(records, 1'000'000, "records that are loaded");
DEFINE_string(shape, "16/100", "bytes of keys and values: 16/100 or 8/8");
DEFINE_uint32(reps, 3, "how often everything is measured");
DEFINE_uint32(slice_ms, 250, "milliseconds that one measurement takes, without its warm-up");
DEFINE_uint64(seed, 1, "of the requests and of the order of measurements");
DEFINE_string(json, "", "file to write all measurements to");

namespace peers {
namespace {

constexpr std::pair<const char*, const char*> kHugePages[] = {{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"},
                                                              {"TBB_MALLOC_USE_HUGE_PAGES", "1"}};

// Maps inside the process get huge pages, as the store's memory has them. Their allocators read the environment when
// the program starts, so this executes the program again.
void RunAgainWithHugePages(char** argv) {
  constexpr char kTold[] = "SURGEKV_BENCH_PEERS_TOLD";
  const bool told = std::getenv(kTold) != nullptr;
  if (!told) {
    for (const auto& [name, value] : kHugePages) setenv(name, value, 1);
    setenv(kTold, "1", 1);
    execv("/proc/self/exe", argv);  // if it cannot, they go on with small ones
  }
  // Not for the servers that are started from here.
  for (const auto& [name, value] : kHugePages) unsetenv(name);
  unsetenv(kTold);
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

bool ParseMix(const std::string& name, Mix* mix) {
  for (const Mix candidate : {Mix::kLoad, Mix::kA, Mix::kB, Mix::kC, Mix::kD, Mix::kF}) {
    if (name != MixName(candidate)) continue;
    *mix = candidate;
    return true;
  }
  return false;
}

bool ParseNumber(const std::string& text, uint32_t most, uint32_t* number) {
  char* end = nullptr;
  const uint64_t value = std::strtoul(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value == 0 || value > most) return false;
  *number = static_cast<uint32_t>(value);
  return true;
}

// Adds every row that the flags ask for. Empty, or what is wrong with a flag.
std::string AddRows(Comparison& comparison, const std::vector<std::string>& peers) {
  for (const std::string& mix_name : Split(FLAGS_mixes)) {
    Load load;
    if (!ParseMix(mix_name, &load.mix)) return "--mixes: " + mix_name + " is none of load, A, B, C, D, F";
    const bool has_distribution = load.mix != Mix::kLoad && load.mix != Mix::kD;
    for (const std::string& distribution :
         has_distribution ? Split(FLAGS_distributions) : std::vector<std::string>{""}) {
      load.zipf = distribution == "zipf";
      if (has_distribution && !load.zipf && distribution != "uniform") return "--distributions: uniform or zipf";
      for (const std::string& workers : Split(FLAGS_workers)) {
        if (!ParseNumber(workers, kMaxWorkers, &load.workers)) return "--workers: " + workers + " is not 1 to 16";
        for (const std::string& in_flight : Split(FLAGS_in_flight)) {
          if (!ParseNumber(in_flight, kMaxInFlight, &load.in_flight))
            return "--in_flight: " + in_flight + " is not 1 to 64";
          for (const std::string& peer : peers) {
            comparison.Add({peer, load});
            Load timed = load;
            timed.timed = true;
            if (load.mix == Mix::kC && load.workers == 1 && load.in_flight == 1) comparison.Add({peer, timed});
          }
        }
      }
    }
  }
  return {};
}

}  // namespace

int Main() {
  std::vector<std::string> peers = FLAGS_peers.empty() || FLAGS_quick ? PeerNames() : Split(FLAGS_peers);
  for (const std::string& peer : peers) {
    if (IsPeer(peer)) continue;
    std::string message = "--peers: " + peer + " is none of";
    for (const std::string& name : PeerNames()) message += " " + name;
    return cli::FailUsage(message +
                          " surgekv@2 to surgekv@8 (memory nodes), surgekv-sized (--expected_records), surgekv-r1 to "
                          "surgekv-r3 (replicas), surgekv-r2-learner");
  }
  Shape shape{.records = FLAGS_records};
  if (!FLAGS_quick && FLAGS_shape == "8/8") {
    shape.key_bytes = shape.value_bytes = 8;
  } else if (!FLAGS_quick && FLAGS_shape != "16/100") {
    return cli::FailUsage("--shape: 16/100 or 8/8, not " + FLAGS_shape);
  }
  for (const std::string& workers : Split(FLAGS_workers)) {
    uint32_t count = 0;
    if (!FLAGS_quick && FLAGS_mixes.find(MixName(Mix::kD)) != std::string::npos &&
        ParseNumber(workers, kMaxWorkers, &count)) {
      // 1'000: inserts after the last one that counts. The clock is read only now and then, and lanes then end what
      // they have in flight.
      shape.new_records += Split(FLAGS_in_flight).size() * FLAGS_reps * count * (kMostNewOfSlice + 1'000);
    }
  }
  if (FLAGS_reps == 0 || shape.records == 0 || FLAGS_slice_ms == 0)
    return cli::FailUsage("--reps, --records and --slice_ms are above 0");

  if (const krcore::Status installed = cli::StopSignal::Install(); !installed.ok()) return cli::Fail(installed);
  Comparison comparison(shape, {.measure_ns = int64_t{FLAGS_slice_ms} * 1'000'000, .seed = FLAGS_seed}, FLAGS_reps);
  std::vector<GoalResult> goals;
  if (FLAGS_quick) {
    goals = MeasureGoals(comparison);
    if (cli::StopSignal::Requested()) return cli::kExitInterrupt;
    std::fputs(GoalTable(goals).c_str(), stdout);
  } else {
    const std::string wrong = AddRows(comparison, peers);
    if (!wrong.empty()) return cli::FailUsage(wrong);
    comparison.Run();
    if (cli::StopSignal::Requested()) return cli::kExitInterrupt;
    std::fputs(ComparisonTables(comparison, peers).c_str(), stdout);
  }
  for (const std::string& problem : comparison.problems()) std::printf("\n%s\n", problem.c_str());
  if (!FLAGS_json.empty()) {
    const krcore::Status written = WriteJson(FLAGS_json, comparison, peers, goals);
    if (!written.ok()) return cli::Fail(written);
  }
  return comparison.all_right() ? 0 : 1;
}

}  // namespace peers

int main(int argc, char** argv) {
  peers::RunAgainWithHugePages(argv);
  cli::Program program;
  program.name = "bench_peers";
  program.summary =
      "Compares SurgeKV with other stores and with the bare bounds of its own accesses (bench/results), and prints\n"
      "tables in Markdown. Exit status 1: a request failed, or a value was wrong.";
  program.usage = "bench_peers [--quick] [flags]";
  program.flags = {"quick",   "peers", "mixes", "distributions", "workers", "in_flight",
                   "records", "shape", "reps",  "slice_ms",      "seed",    "json"};
  program.examples = "bench_peers --quick\nbench_peers --mixes=C,A --workers=1 --reps=5\n";
  cli::ParseFlags(program, argc, argv);
  return peers::Main();
}
