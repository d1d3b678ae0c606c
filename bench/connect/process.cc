// From fork to the first reply, by control plane. Each sample is a process of its own: this program executes
// itself.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <optional>

#include "bench/connect/bench_connect.h"

extern char** environ;

namespace connect_bench {
namespace {

struct Times {
  int64_t start = 0;    // fork and exec, until main
  int64_t open = 0;     // node, memory, pool
  int64_t connect = 0;  // queue and Connect
  int64_t reply = 0;    // a READ of 64 B
};
constexpr char kAlone[] = "krcore-alone";  // krcore that uses nothing of what the host's processes share
constexpr char kBare[] = "kernel-bare";    // the module, by the two calls that a connected queue takes
constexpr char kFormat[] = "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n";
constexpr char kScanFormat[] = "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64;

Times RunOne(const char* executable, const std::string& plane, const NodeOptions& fabric) {
  int ends[2];
  if (pipe(ends) != 0) Must(Status::FromErrno(errno, "pipe"));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::vector<std::string> words = {executable,
                                    "--child=" + plane,
                                    "--fabric=" + fabric.fabric,
                                    "--rnic=" + fabric.rnic,
                                    "--fabric_address=" + fabric.fabric_address,
                                    "--rnic_port=" + fabric.rnic_port,
                                    "--started_ns=" + std::to_string(Now())};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, executable, &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) Must(Status::FromErrno(error, executable));
  std::FILE* const answer = fdopen(ends[0], "r");
  Times times;
  const int got = std::fscanf(answer, kScanFormat, &times.start, &times.open, &times.connect, &times.reply);
  std::fclose(answer);
  int status = 0;
  waitpid(child, &status, 0);
  if (got != 4 || status != 0) Must(Status(StatusCode::kUnavailable, "a worker process failed"));
  return times;
}

// A process that opens and connects, and does nothing else.
int RunBare(const NodeOptions& fabric, int64_t started_ns) {
  const int64_t begin = Now();
  ConnectByTheModule(fabric);
  std::printf(kFormat, begin - started_ns, int64_t{0}, Now() - begin, int64_t{0});
  return 0;
}

void PrintBare(const char* executable, const NodeOptions& fabric, int samples, int64_t verbs_ns) {
  Samples all;
  for (int i = 0; i < samples; ++i) all.push_back(RunOne(executable, kBare, fabric).connect);
  Report("kernel, open and connect, the first calls of each", all, verbs_ns, "goal: verbs' parts / it >= 100");
}

}  // namespace

int RunChild(const std::string& plane, NodeOptions fabric, int64_t started_ns) {
  if (plane == kBare) return RunBare(fabric, started_ns);
  const bool alone = plane == kAlone;
  fabric.share_host = !alone;
  timed::TimedWorker worker(alone ? "krcore" : plane, fabric, nullptr, kWorkerBytes);
  VirtualQueue& queue = worker.Connect(Peer::kId);
  const int64_t connected = Now();
  const Sge sge{reinterpret_cast<uint64_t>(worker.region().bytes().data()), 64, worker.region().lkey()};
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = queue.regions()[0].addr;
  wr.rkey = queue.regions()[0].rkey;
  worker.Do(queue, wr);
  const Times times{.start = worker.begun_ns() - started_ns,
                    .open = worker.open_ns(),
                    .connect = worker.connect_ns().front(),
                    .reply = Now() - connected};
  std::printf(kFormat, times.start, times.open, times.connect, times.reply);
  return 0;
}

void PrintFreshProcesses(const char* executable, const NodeOptions& fabric, int samples, bool kernel) {
  Peer peer(fabric);
  std::optional<KernelPeer> kernel_peer;
  if (kernel) kernel_peer.emplace(fabric);
  const bool shared = fabric.rnic == "sw";
  Heading(("fresh processes (fork, exec), measured on " + fabric.rnic +
           (shared   ? "; krcore's find the host's metadata"
            : kernel ? "; what they share is the kernel's"
                     : "; nothing is shared between them"))
              .c_str(),
          "us");
  int64_t verbs_ns = 0, verbs_connect_ns = 0;
  for (const std::string plane : {"verbs", "lite", kAlone, "krcore", "kernel"}) {
    if ((plane == kAlone && !shared) || (plane == "kernel" && !kernel)) continue;
    std::array<Samples, 5> all;
    for (int i = 0; i < samples; ++i) {
      const Times times = RunOne(executable, plane, fabric);
      all[0].push_back(times.start + times.open + times.connect + times.reply);
      all[1].push_back(times.start);
      all[2].push_back(times.open);
      all[3].push_back(times.connect);
      all[4].push_back(times.reply);
    }
    if (verbs_ns == 0) {
      verbs_ns = Percentile(all[0], 50);
      verbs_connect_ns = Percentile(all[2], 50) + Percentile(all[3], 50);
    }
    Report(plane + ", fork to first reply", all[0], verbs_ns);
    Report("  exec until main", all[1]);
    Report("  node, MR, pool", all[2]);
    Report("  queue and connect", all[3]);
    Report("  first READ", all[4]);
  }
  if (kernel) PrintBare(executable, fabric, samples, verbs_connect_ns);
}

}  // namespace connect_bench
