// Cost of one work request through the Qp interface of the software RNIC: post, execute, poll; one process, DC
// initiator, addresses in a fixed pseudo-random order over a working set.
// Args: batch (WRs of one doorbell, the last one signaled), working set in KiB (32: warm lines; larger: cache
// misses).
//
//     bench_rnic --rnic=NAME [--fabric_address=HOST] ...     instead: the latency of one request at a time between two
//                                                            processes, over any provider (rnic_latency.h)
#include <benchmark/benchmark.h>
#include <gflags/gflags.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/queues/rnic_latency.h"
#include "bench/queues/store_latency.h"
#include "bench/reproduce/child.h"
#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "krcore/rnic.h"

DEFINE_string(path, "",
              "Latency: rc, a bare RC QP; queue, a VirtualQueue on RC; store, Gets of the store and bare READs; the "
              "first two if empty");
DEFINE_string(operation, "", "Latency, of rc and queue: read, cas or send; all if empty");
DEFINE_uint32(bytes, 64, "Latency: of a READ, a SEND or a value");
DEFINE_uint32(requests, 1000, "Latency: how many are measured");
DEFINE_bool(target, false, "Internal: be the process at the other end");

namespace krcore::rnic {
namespace {

constexpr size_t kMaxBatch = 64;
constexpr uint64_t kDcKey = 42;
constexpr uint32_t kRights = kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic;

struct Bench {
  explicit Bench(size_t bytes) {
    const std::string fabric = "bench-" + std::to_string(getpid());
    target = OpenDevice({.fabric = fabric, .node = 1, .create_fabric = true}).value();
    initiator = OpenDevice({.fabric = fabric, .node = 2}).value();
    memory = target->AllocMemory(bytes, {}).value();
    (void)memory->CollapseToHugePages(0, bytes);
    target_pd = target->CreatePd().value();
    remote = target_pd->RegisterMemory(memory->bytes().data(), bytes, kRights).value();
    dct = target_pd->CreateDct({.dc_key = kDcKey}).value();
    pd = initiator->CreatePd().value();
    cq = initiator->CreateCq(256).value();
    buffer.resize(kMaxBatch * 128);
    local = pd->RegisterMemory(buffer.data(), buffer.size(), kLocalWrite).value();
    address = initiator->CreateAddressHandle(target->address()).value();
    qp = pd->CreateQp({.type = QpType::kDci, .send_cq = cq.get()}).value();
    (void)qp->ToInit(0, 0);
    (void)qp->ToRtr({});
    (void)qp->ToRts();
  }
  std::unique_ptr<Device> target, initiator;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Pd> target_pd, pd;
  std::unique_ptr<Mr> remote, local;
  std::unique_ptr<Dct> dct;
  std::unique_ptr<Cq> cq;
  std::vector<char> buffer;
  std::unique_ptr<AddressHandle> address;
  std::unique_ptr<Qp> qp;
};

void Run(benchmark::State& state, Opcode opcode, uint32_t length) {
  const size_t batch = static_cast<size_t>(state.range(0));
  const size_t bytes = static_cast<size_t>(state.range(1)) << 10;
  Bench bench(bytes);
  std::vector<Sge> sges(batch);
  std::vector<SendWr> wrs(batch);
  for (size_t i = 0; i < batch; ++i) {
    sges[i] = {reinterpret_cast<uint64_t>(bench.buffer.data()) + i * 128, length, bench.local->lkey()};
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = opcode;
    wrs[i].flags = i + 1 == batch ? kSignaled : 0;
    wrs[i].rkey = bench.remote->rkey();
    wrs[i].ah = bench.address.get();
    wrs[i].remote_qpn = bench.dct->num();
    wrs[i].dc_key = kDcKey;
  }
  const uint64_t base = reinterpret_cast<uint64_t>(bench.memory->bytes().data());
  uint64_t random = 88172645463325252;
  for (auto step : state) {
    for (SendWr& wr : wrs) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      wr.remote_addr = base + ((random & (bytes - 1)) & ~uint64_t{127});
    }
    Completion done;
    if (!bench.qp->PostSend(wrs, nullptr).ok() || bench.cq->Poll({&done, 1}) != 1 ||
        done.status != WcStatus::kSuccess) {
      state.SkipWithError("a work request failed");
      break;
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(batch));
  state.counters["per_wr"] = benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(batch),
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Read64(benchmark::State& state) { Run(state, Opcode::kRead, 64); }
void Read128(benchmark::State& state) { Run(state, Opcode::kRead, 128); }
void Write128(benchmark::State& state) { Run(state, Opcode::kWrite, 128); }
void CompareSwap(benchmark::State& state) { Run(state, Opcode::kCompareSwap, 8); }

#define KRCORE_RNIC_BENCHMARK(name) \
  BENCHMARK(name)->ArgNames({"batch", "kib"})->ArgsProduct({{1, 16, 64}, {32, 256 << 10}})
KRCORE_RNIC_BENCHMARK(Read64);
KRCORE_RNIC_BENCHMARK(Read128);
KRCORE_RNIC_BENCHMARK(Write128);
KRCORE_RNIC_BENCHMARK(CompareSwap);

}  // namespace
}  // namespace krcore::rnic

namespace rnic_latency {
namespace {

cli::Program ProgramDescription() {
  return {.name = "bench_rnic",
          .summary =
              "Costs of a NIC's requests: of batches on sw (Google Benchmark's own flags apply), or, with --rnic,\n"
              "the latency of one at a time between two processes.",
          .usage = "bench_rnic [--benchmark_...]\nbench_rnic --rnic=NAME [--fabric_address=HOST] [flags]",
          .flags = {"rnic", "fabric_address", "rnic_port", "fabric", "path", "operation", "bytes", "requests", "log"},
          .examples = "bench_rnic --rnic=verbs --operation=read",
          .max_arguments = 0,
          .short_options = "",
          .short_help = ""};
}

// One of `known`, or `standard` if none is named.
krcore::Result<std::vector<std::string>> Chosen(const char* flag, const std::string& value,
                                                const std::vector<std::string>& known,
                                                const std::vector<std::string>& standard) {
  if (value.empty()) return standard;
  std::string message = std::string("--") + flag + "=" + value + ": not one of";
  for (const std::string& name : known) {
    if (name == value) return std::vector<std::string>{value};
    message += " " + name;
  }
  return krcore::Status(krcore::StatusCode::kInvalidArgument, std::move(message));
}

void RunOne(const Options& options) {
  if (options.path == "store") return FLAGS_target ? RunStoreTarget(options) : MeasureStore(options);
  return FLAGS_target ? RunTarget(options) : Measure(options);
}

int Run() {
  if (!cli::FlagGiven("fabric")) FLAGS_fabric = "bench_rnic-" + std::to_string(getpid());
  if (FLAGS_rnic == "verbs" && FLAGS_fabric_address.empty()) FLAGS_fabric_address = "localhost";
  if (const krcore::Status status = cli::CheckFabricFlags(); !status.ok()) return cli::FailUsage(status.message());
  const std::vector<std::string> all = {"read", "cas", "send"};
  const auto paths = Chosen("path", FLAGS_path, {"rc", "queue", "store"}, {"rc", "queue"});
  const auto operations = Chosen("operation", FLAGS_operation, all, all);
  if (!paths.ok()) return cli::FailUsage(paths.status().message());
  if (!operations.ok()) return cli::FailUsage(operations.status().message());
  if (FLAGS_path == "store" && !FLAGS_operation.empty())
    return cli::FailUsage("--operation: --path=store measures Gets alone");
  if (FLAGS_bytes < 1 || FLAGS_bytes > kMostBytes) return cli::FailUsage("--bytes: must be 1 to 4096");
  if (FLAGS_requests < 1) return cli::FailUsage("--requests: must be 1 or more");
  Options options{.requests = FLAGS_requests};
  cli::SetFabric(&options.fabric);
  if (!FLAGS_target) reproduce::Child::CleanUpOnSignals();
  for (const std::string& operation : FLAGS_path == "store" ? std::vector<std::string>{""} : *operations) {
    for (const std::string& path : *paths) {
      options.operation = operation;
      options.path = path;
      options.bytes = operation == "cas" ? 8 : FLAGS_bytes;
      RunOne(options);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rnic_latency

int main(int argc, char** argv) {
  cli::UseStandardStreams();
  benchmark::Initialize(&argc, argv);  // takes its own flags out
  cli::ParseFlags(rnic_latency::ProgramDescription(), argc, argv);
  if (cli::FlagGiven("rnic")) return rnic_latency::Run();
  for (const char* name : {"path", "operation", "bytes", "requests", "fabric", "fabric_address", "rnic_port"})
    if (cli::FlagGiven(name)) return cli::FailUsage("--" + std::string(name) + ": goes with --rnic");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
