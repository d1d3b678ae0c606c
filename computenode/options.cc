#include "computenode/options.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "computenode/elastic/fleet.h"
#include "metrics/exporter.h"
#include "ycsb/workload/flags.h"

DEFINE_double(duration, 0,
              "Seconds to serve, 0 to 1000000000. 0: the property maxexecutiontime if it is set, else until "
              "operationcount, the end of --profile, `quit` or SIGTERM");
DEFINE_uint64(max_failures, 0, "Stop after this many operations that failed or returned a wrong value. 0: never");
DEFINE_string(
    worker_kind, "",
    "What a worker is: thread, fork (a process, forked from a small one) or exec (a fresh program). Workers then serve "
    "one queue of requests, which needs --profile; see docs/operating.md. Default: fork with --autoscale, else threads "
    "without a queue");
DEFINE_int32(
    standby, -1,
    "Workers kept in readiness, 0 to 512, or to 64 with --worker_kind=thread. They have started and opened the "
    "store, but have no connections yet. -1: --max_workers, but at most 16, with --autoscale; 4 without it; 0 "
    "with --worker_kind=exec, and with --redis unless --autoscale is given");
DEFINE_double(worker_capacity, 0,
              "Most requests per second that one worker takes, 0 to 1000000000. 0: no limit. With --redis it limits "
              "nothing; it is what a worker can serve");
DEFINE_bool(autoscale, false,
            "Add and retire workers as the load changes; needs --worker_capacity, and --profile or --redis");
DEFINE_bool(dry_run, false, "With --autoscale: report decisions, but do not carry them out");
DEFINE_uint32(min_workers, 1, "With --autoscale: the fewest workers, 0 to 1024");
DEFINE_uint32(max_workers, 16, "With --autoscale: the most workers, 1 to 1024");
DEFINE_uint32(max_step, 1024, "With --autoscale: the most workers to add or to retire at a time, 1 or more");
DEFINE_double(slo_us, 10000, "With --autoscale: microseconds that a request may wait for a worker, 1 to 1000000000");
DEFINE_double(target_utilisation, 0.7,
              "With --autoscale: share of their capacity that workers should use, more than 0 and at most 1");
DEFINE_double(bootstrap_us, 0,
              "With --autoscale: microseconds that a new worker takes to start, 0 to 1000000000. 0: as long as the "
              "first ones took");
DEFINE_double(surge_factor, 10,
              "With --autoscale: the factor by which the load may rise at once, 1 or more. It sets the reserve");
DEFINE_double(
    reserve, -1,
    "With --autoscale: reserve of workers, as a share of those that the load needs, 0 or more. -1: computed from "
    "--slo_us, --target_utilisation, --bootstrap_us, --surge_factor and --control_interval_ms");
DEFINE_double(scale_in_after_s, 10,
              "With --autoscale: seconds, 0 to 1000000, after which workers that are not needed are retired");
DEFINE_double(control_interval_ms, 5, "With --autoscale: milliseconds between decisions, 1 to 1000000");
DEFINE_string(requests_file, "",
              "File for the outcome of each request, 24 bytes per request; see docs/operating.md. Default: none");
DEFINE_int32(worker_board, -1,
             "Internal, set by --worker_kind=exec: descriptor of the memory that workers share with the front end");
DEFINE_int32(worker_requests, -1, "Internal, set by --worker_kind=exec: descriptor of the queue of requests");
DEFINE_int32(worker_slot, -1, "Internal, set by --worker_kind=exec: this worker's place in that memory");
DEFINE_bool(json_status, false, "Print a status line on stdout every second");
DEFINE_string(
    redis, "",
    "Serve clients of Redis in place of a workload, at HOST:PORT (port 0: any free one) or, if there is a / in "
    "it, at a Unix socket of this path. Workers are threads; see docs/operating.md");
DEFINE_string(redis_password_file, "",
              "With --redis: file whose first line clients must give as their password. Without it, HOST must be a "
              "loopback address. Default: none");
DEFINE_uint32(redis_max_clients, 10000, "With --redis: connections at a time, 1 to 1000000");
DEFINE_double(
    redis_idle_s, 0,
    "With --redis: seconds, 0 to 1000000000, after which a client that says nothing is disconnected. 0: never");

namespace computenode {
namespace {

constexpr uint32_t kMostStandby = kMaxWorkers / 2;
constexpr uint32_t kMostStandbyThreads = 64;  // they share one device with the queues of the workers
constexpr uint32_t kRedisInFlight = 64;

using cli::CheckNotGiven;
using cli::CheckRange;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Result<WorkerKind> ParseKind(const std::string& text) {
  if (text.empty() || text == "fork") return WorkerKind::kFork;
  if (text == "thread") return WorkerKind::kThread;
  if (text == "exec") return WorkerKind::kExec;
  return Status(StatusCode::kInvalidArgument, "--worker_kind=" + text + ": expected thread, fork or exec");
}

// Returns the first line of a file, without its end.
Result<std::string> PasswordFrom(const std::string& path) {
  std::ifstream file(path);
  std::string password;
  if (!file) return Status(StatusCode::kInvalidArgument, "--redis_password_file=" + path + ": " + std::strerror(errno));
  if (!std::getline(file, password)) {
    return Status(StatusCode::kInvalidArgument, "--redis_password_file=" + path + ": no line can be read");
  }
  if (!password.empty() && password.back() == '\r') password.pop_back();
  if (password.empty()) {
    return Status(StatusCode::kInvalidArgument, "--redis_password_file=" + path + ": the first line is empty");
  }
  return password;
}

// Returns nothing if no flag asks for it.
Result<std::optional<redis::FrontEndOptions>> RedisFromFlags(const cli::CommandLine& line) {
  if (FLAGS_redis.empty()) {
    KRCORE_RETURN_IF_ERROR(
        CheckNotGiven({"redis_password_file", "redis_max_clients", "redis_idle_s"}, "needs --redis"));
    return std::optional<redis::FrontEndOptions>();
  }
  constexpr char kNoWorkload[] = "has no effect with --redis: clients are the load";
  KRCORE_RETURN_IF_ERROR(CheckNotGiven({"target", "profile", "arrivals", "seed", "overwrite", "max_failures",
                                        "requests_file", "worker_board", "worker_requests", "worker_slot"},
                                       kNoWorkload));
  if (!line.short_options.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "-" + std::string(1, line.short_options.front().letter) + " " + kNoWorkload);
  }
  if (!FLAGS_worker_kind.empty() && FLAGS_worker_kind != "thread") {
    return Status(StatusCode::kInvalidArgument, "--worker_kind=" + FLAGS_worker_kind + ": with --redis it is thread");
  }
  KRCORE_RETURN_IF_ERROR(CheckRange("redis_max_clients", FLAGS_redis_max_clients, 1, 1'000'000));
  KRCORE_RETURN_IF_ERROR(CheckRange("redis_idle_s", FLAGS_redis_idle_s, 0, 1e9));
  redis::FrontEndOptions options;
  options.max_clients = FLAGS_redis_max_clients;
  options.idle_ns = static_cast<int64_t>(FLAGS_redis_idle_s * 1e9);
  if (!FLAGS_redis_password_file.empty()) {
    auto password = PasswordFrom(FLAGS_redis_password_file);
    if (!password.ok()) return password.status();
    options.password = *std::move(password);
  }
  if (FLAGS_redis.find('/') != std::string::npos) {
    options.path = FLAGS_redis;
    return std::optional(options);
  }
  auto address = cli::ParseAddress(FLAGS_redis, "--redis");
  if (!address.ok()) return address.status();
  options.address = *std::move(address);
  const bool loopback = options.address.v6 ? options.address.host == "::1" : options.address.host.starts_with("127.");
  if (!loopback && options.password.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--redis=" + FLAGS_redis +
                      ": whoever reaches this address could read and change the store; give --redis_password_file, or "
                      "a loopback address such as 127.0.0.1:6379");
  }
  return std::optional(options);
}

// Returns nothing if no flag asks for it.
Result<std::optional<ElasticOptions>> ElasticFromFlags() {
  const bool is_worker = FLAGS_worker_board >= 0;
  if (!FLAGS_autoscale) {
    KRCORE_RETURN_IF_ERROR(
        CheckNotGiven({"dry_run", "min_workers", "max_workers", "max_step", "slo_us", "target_utilisation",
                       "bootstrap_us", "surge_factor", "reserve", "scale_in_after_s", "control_interval_ms"},
                      "needs --autoscale"));
  }
  const bool redis = !FLAGS_redis.empty();
  if (!redis && FLAGS_worker_kind.empty() && !FLAGS_autoscale && !is_worker) {
    KRCORE_RETURN_IF_ERROR(
        CheckNotGiven({"worker_capacity", "requests_file", "standby", "worker_requests", "worker_slot"},
                      "needs --worker_kind or --autoscale"));
    return std::optional<ElasticOptions>();
  }
  if (FLAGS_reserve >= 0) {
    KRCORE_RETURN_IF_ERROR(
        CheckNotGiven({"surge_factor"}, "has no effect with --reserve: it only serves to compute the reserve"));
  }
  if (!FLAGS_autoscale && redis) KRCORE_RETURN_IF_ERROR(CheckNotGiven({"worker_capacity"}, "needs --autoscale"));
  if (FLAGS_profile.empty() && !redis) {
    return Status(StatusCode::kInvalidArgument,
                  "--worker_kind and --autoscale need --profile, the load for the workers");
  }
  const Result<WorkerKind> kind = redis ? WorkerKind::kThread : ParseKind(FLAGS_worker_kind);
  if (!kind.ok()) return kind.status();
  KRCORE_RETURN_IF_ERROR(CheckRange("worker_capacity", FLAGS_worker_capacity, 0, 1e9));
  const bool threads = *kind == WorkerKind::kThread;
  KRCORE_RETURN_IF_ERROR(CheckRange("standby", FLAGS_standby, -1, threads ? kMostStandbyThreads : kMostStandby));
  KRCORE_RETURN_IF_ERROR(CheckRange("min_workers", FLAGS_min_workers, 0, kMaxWorkers));
  KRCORE_RETURN_IF_ERROR(CheckRange("max_workers", FLAGS_max_workers, 1, kMaxWorkers));
  KRCORE_RETURN_IF_ERROR(CheckRange("slo_us", FLAGS_slo_us, 1, 1e9));
  KRCORE_RETURN_IF_ERROR(CheckRange("bootstrap_us", FLAGS_bootstrap_us, 0, 1e9));
  KRCORE_RETURN_IF_ERROR(CheckRange("scale_in_after_s", FLAGS_scale_in_after_s, 0, 1e6));
  KRCORE_RETURN_IF_ERROR(CheckRange("control_interval_ms", FLAGS_control_interval_ms, 1, 1e6));
  ElasticOptions elastic;
  elastic.kind = *kind;
  const uint32_t most = FLAGS_autoscale ? FLAGS_max_workers : 4;
  elastic.standby = FLAGS_standby >= 0                  ? static_cast<uint32_t>(FLAGS_standby)
                    : elastic.kind == WorkerKind::kExec ? 0
                    : redis && !FLAGS_autoscale         ? 0
                                                        : std::min<uint32_t>(most, 16);
  elastic.capacity = FLAGS_worker_capacity;
  elastic.autoscale = FLAGS_autoscale;
  elastic.dry_run = FLAGS_dry_run;
  elastic.interval_ns = static_cast<int64_t>(FLAGS_control_interval_ms * 1e6);
  elastic.policy.capacity_per_s = FLAGS_worker_capacity;
  elastic.policy.slo_ns = static_cast<int64_t>(FLAGS_slo_us * 1e3);
  elastic.policy.target_utilisation = FLAGS_target_utilisation;
  elastic.policy.min_workers = FLAGS_min_workers;
  elastic.policy.max_workers = FLAGS_max_workers;
  elastic.policy.max_step = FLAGS_max_step;
  elastic.policy.scale_in_step = FLAGS_max_step;
  if (redis && FLAGS_min_workers == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--min_workers=0: with --redis at least one worker looks after clients");
  }
  elastic.policy.bootstrap_ns = static_cast<int64_t>(FLAGS_bootstrap_us * 1e3);
  elastic.policy.reaction_ns = elastic.interval_ns;
  elastic.policy.surge_factor = FLAGS_surge_factor;
  elastic.policy.reserve = FLAGS_reserve < 0 ? ScalePolicy::kDerived : FLAGS_reserve;
  elastic.policy.scale_in_after_ns = static_cast<int64_t>(FLAGS_scale_in_after_s * 1e9);
  if (FLAGS_autoscale) {
    if (FLAGS_worker_capacity <= 0) {
      return Status(StatusCode::kInvalidArgument,
                    "--autoscale needs --worker_capacity, the requests per second that one worker can serve");
    }
    KRCORE_RETURN_IF_ERROR(elastic.policy.Validate());
  }
  elastic.requests_file = FLAGS_requests_file;
  elastic.board_fd = FLAGS_worker_board;
  elastic.requests_fd = FLAGS_worker_requests;
  elastic.slot = FLAGS_worker_slot;
  return std::optional(elastic);
}

}  // namespace

const char* WorkerKindName(WorkerKind kind) {
  switch (kind) {
    case WorkerKind::kThread: return "thread";
    case WorkerKind::kFork: return "fork";
    case WorkerKind::kExec: return "exec";
  }
  return "";
}

cli::Program ProgramDescription() {
  cli::Program program;
  program.name = "computenode";
  program.summary =
      "Serves a YCSB workload, or clients of Redis, on the store of a running fabric. Workers can come and go while\n"
      "it runs. Reads commands on stdin (workers N, status, quit) and answers on stdout, with one JSON object per "
      "line.";
  program.usage =
      "computenode --fabric=NAME --workers=N -P FILE [-p KEY=VALUE]... [flags]\n"
      "computenode --fabric=NAME --workers=N --redis=HOST:PORT [flags]";
  program.flags = {"fabric",
                   "workers",
                   "in_flight",
                   "duration",
                   "target",
                   "profile",
                   "arrivals",
                   "seed",
                   "overwrite",
                   "max_failures",
                   "json_status",
                   "worker_kind",
                   "standby",
                   "worker_capacity",
                   "autoscale",
                   "dry_run",
                   "min_workers",
                   "max_workers",
                   "max_step",
                   "slo_us",
                   "target_utilisation",
                   "bootstrap_us",
                   "surge_factor",
                   "reserve",
                   "scale_in_after_s",
                   "control_interval_ms",
                   "requests_file",
                   "redis",
                   "redis_password_file",
                   "redis_max_clients",
                   "redis_idle_s",
                   "metrics",
                   "rnic",
                   "fabric_address",
                   "rnic_port",
                   "log",
                   "operation_timeout_ms",
                   "open_timeout_ms",
                   "control_plane"};
  program.short_options = ycsb::kPropertyOptions;
  program.short_help = ycsb::kPropertyHelp;
  program.examples =
      "computenode --fabric=demo --workers=2 -P ycsb/workloads/workloadc -p operationcount=0 --duration=10 "
      "--json_status\n"
      "computenode --fabric=demo -P ycsb/workloads/workloadb -p operationcount=0 --profile=burst:1000,10000,3,5,12 "
      "--arrivals=poisson --worker_capacity=1500 --autoscale --in_flight=1\n"
      "computenode --fabric=demo --redis=127.0.0.1:6379\n"
      "(sleep 5; echo workers 4; sleep 5; echo quit) | computenode --fabric=demo -P ycsb/workloads/workloada";
  return program;
}

Result<Options> OptionsFromFlags(const cli::CommandLine& line) {
  if (cli::FlagGiven("redis") && FLAGS_redis.find_first_of(":/") == std::string::npos) {
    return Status(StatusCode::kInvalidArgument,
                  "--redis=" + FLAGS_redis +
                      ": expected HOST:PORT, for example 127.0.0.1:6379, or the path of a "
                      "Unix socket, with a /");
  }
  auto flags = FLAGS_redis.empty() ? ycsb::WorkloadFromFlags(line, 0) : ycsb::StoreFromFlags(0);
  if (!flags.ok()) return flags.status();
  KRCORE_RETURN_IF_ERROR(CheckRange("duration", FLAGS_duration, 0, 1e9));
  Options options;
  options.store = std::move(flags->store);
  options.job = std::move(flags->job);
  options.workers = flags->workers;
  options.warnings = std::move(flags->warnings);
  options.job.max_failures = FLAGS_max_failures;
  const ycsb::Workload& workload = options.job.workload;
  options.duration_s = FLAGS_duration > 0 ? FLAGS_duration : static_cast<double>(workload.max_execution_time_s);
  const auto metrics = metrics::AddressFromFlag();
  if (!metrics.ok()) return metrics.status();
  options.metrics = *metrics;
  const auto elastic = ElasticFromFlags();
  if (!elastic.ok()) return elastic.status();
  options.elastic = *elastic;
  auto redis = RedisFromFlags(line);
  if (!redis.ok()) return redis.status();
  options.redis = *std::move(redis);
  if (options.elastic && options.elastic->kind != WorkerKind::kThread && workload.insert_proportion > 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "worker processes cannot insert, because they do not share the count of records; give --worker_kind=thread");
  }
  const bool is_worker = options.elastic && options.elastic->board_fd >= 0;  // its front end has the plan
  if (!is_worker && !options.redis) {
    KRCORE_RETURN_IF_ERROR(
        ycsb::PlanFromFlags(workload.operation_count, options.duration_s, &options.job, &options.warnings));
  }
  for (const auto& [property, instead] : {std::pair{"exportfile", "the summary is a line on stdout"},
                                          {"status.interval", "--json_status prints a status line every second"}}) {
    if (flags->properties.Has(property)) {
      options.warnings.push_back(flags->properties.Origin(property) + ": " + property + " has no effect: " + instead);
    }
  }
  options.in_flight = options.redis && !cli::FlagGiven("in_flight") ? kRedisInFlight : FLAGS_in_flight;
  options.json_status = FLAGS_json_status;
  return options;
}

}  // namespace computenode
