// spike_model: the load-spike experiment at the paper's scale and beyond. Modelled (bench/results/README.md).
#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/spike/model/study.h"
#include "cli/fail.h"
#include "cli/flags.h"

DEFINE_string(scale, "1,10,100",
              "Multiples of 10 hosts of 24 cores and one memory node, separated by commas; at most 100");
DEFINE_string(spawn, "prefork", "What a worker is: thread, prefork or exec");
DEFINE_double(spike_factor, 10, "By how much the load rises at once");
DEFINE_double(slo_ms, 10, "Queueing delay that 99% may not exceed");
DEFINE_double(interval_ms, 1, "Between two decisions of the autoscaler");
DEFINE_double(spike_s, 60, "How long the spike lasts");
DEFINE_uint64(seed, 1, "Of arrivals and of memory nodes' answers");
DEFINE_uint32(rc_hot_wrs, krcore::QueuePoolOptions().rc_hot_wrs, "QueuePoolOptions::rc_hot_wrs: requests in 10 ms");
DEFINE_uint32(max_rc_queues, krcore::QueuePoolOptions().max_rc_queues, "QueuePoolOptions::max_rc_queues");
DEFINE_string(json, "", "File for everything as JSON");

namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Result<std::vector<uint32_t>> ParseScales(const std::string& list) {
  std::vector<uint32_t> scales;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    char* rest = nullptr;
    const long scale = item.empty() ? 0 : std::strtol(item.c_str(), &rest, 10);
    if (scale < 1 || scale > 100 || *rest != '\0') {
      std::string message = "--scale=" + list;
      message.append(": \"").append(item).append("\" is not a number from 1 to 100");
      return Status(StatusCode::kInvalidArgument, std::move(message));
    }
    scales.push_back(static_cast<uint32_t>(scale));
    begin = end + 1;
  }
  return scales;
}

Result<spike_model::StudyOptions> OptionsFromFlags() {
  spike_model::StudyOptions options;
  Result<std::vector<uint32_t>> scales = ParseScales(FLAGS_scale);
  if (!scales.ok()) return scales.status();
  options.scales = *scales;
  bool known = false;
  for (const spike_model::Spawn spawn : spike_model::kSpawns) {
    if (FLAGS_spawn != spike_model::SpawnName(spawn)) continue;
    options.spawn = spawn;
    known = true;
  }
  if (!known) {
    return Status(StatusCode::kInvalidArgument, "--spawn=" + FLAGS_spawn + ": expected thread, prefork or exec");
  }
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("spike_factor", FLAGS_spike_factor, 1, 1000));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("slo_ms", FLAGS_slo_ms, 0.01, 10'000));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("interval_ms", FLAGS_interval_ms, 0.1, 1000));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("spike_s", FLAGS_spike_s, 4, 600));
  KRCORE_RETURN_IF_ERROR(cli::CheckRange("max_rc_queues", FLAGS_max_rc_queues, 0, 128));
  options.spike_factor = FLAGS_spike_factor;
  options.slo_ms = FLAGS_slo_ms;
  options.interval_ms = FLAGS_interval_ms;
  options.spike_s = FLAGS_spike_s;
  options.seed = FLAGS_seed;
  options.rc_hot_wrs = FLAGS_rc_hot_wrs;
  options.max_rc_queues = FLAGS_max_rc_queues;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  cli::Program program;
  program.name = "spike_model";
  program.summary =
      "Models a load spike on a cluster of elastic compute nodes in virtual time, for the control planes verbs,\n"
      "lite and krcore, with the project's autoscaler. Prints tables; everything in them is modelled.";
  program.usage = "spike_model [flags]";
  program.flags = {"scale",   "spawn",      "spike_factor",  "slo_ms", "interval_ms",
                   "spike_s", "rc_hot_wrs", "max_rc_queues", "seed",   "json"};
  program.examples = "spike_model\nspike_model --scale=1 --spawn=thread --slo_ms=1 --interval_ms=0.1 --json=spike.json";
  cli::ParseFlags(program, argc, argv);
  const Result<spike_model::StudyOptions> options = OptionsFromFlags();
  if (!options.ok()) return cli::FailUsage(options.status().message());

  std::FILE* file = nullptr;
  if (!FLAGS_json.empty()) {
    file = std::fopen(FLAGS_json.c_str(), "w");
    if (file == nullptr) return cli::Fail(Status::FromErrno(errno, "--json=" + FLAGS_json));
  }
  const std::string json = spike_model::RunStudy(*options);
  if (file != nullptr) {
    const bool written = std::fwrite(json.data(), 1, json.size(), file) == json.size();
    if (std::fclose(file) != 0 || !written) return cli::Fail(Status::FromErrno(errno, "--json=" + FLAGS_json));
  }
  return 0;
}
