#include "tests/sim/runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/kill_process.h"

namespace surgekv_sim {
namespace {

// A child sends this before its texts.
struct Header {
  uint64_t digest;
  Counts counts;
  uint32_t violation_bytes, text_bytes;
};

void WriteAll(int fd, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(3);
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

[[noreturn]] void RunChild(const RunnerOptions& options, uint64_t seed, int fd) {
  const rlimit cpu{options.seed_limit_s, options.seed_limit_s + 1};
  (void)setrlimit(RLIMIT_CPU, &cpu);
  alarm(20 * options.seed_limit_s);  // the machine may be busy
  const rlimit no_core{0, 0};
  (void)setrlimit(RLIMIT_CORE, &no_core);
  if (options.quiet) {
    const int null = open("/dev/null", O_WRONLY);
    (void)dup2(null, STDERR_FILENO);
  }
  kvs::active_mutation = options.mutation;
  const RunResult result =
      options.run ? options.run(seed) : RunSimulation(MakePlan(seed, options.replicas, options.joins), options.trace);
  Header header{};
  header.digest = result.digest;
  header.counts = result.counts;
  header.violation_bytes = static_cast<uint32_t>(result.violation.size());
  header.text_bytes = static_cast<uint32_t>(result.text.size());
  WriteAll(fd, &header, sizeof(header));
  WriteAll(fd, result.violation.data(), result.violation.size());
  WriteAll(fd, result.text.data(), result.text.size());
  _exit(0);
}

struct Child {
  uint64_t seed = 0;
  pid_t pid = -1;
  int fd = -1;
  std::string received;
};

Child Start(const RunnerOptions& options, uint64_t seed) {
  int fds[2];
  if (pipe(fds) != 0) {
    std::perror("pipe");
    std::exit(2);
  }
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    std::perror("fork");
    std::exit(2);
  }
  if (pid == 0) {
    close(fds[0]);
    RunChild(options, seed, fds[1]);
  }
  close(fds[1]);
  Child child;
  child.seed = seed;
  child.pid = pid;
  child.fd = fds[0];
  return child;
}

SeedResult Finish(Child& child) {
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  close(child.fd);
  SeedResult result;
  result.seed = child.seed;
  Header header{};
  if (child.received.size() >= sizeof(header)) std::memcpy(&header, child.received.data(), sizeof(header));
  const bool whole = child.received.size() >= sizeof(header) &&
                     child.received.size() == sizeof(header) + header.violation_bytes + header.text_bytes;
  if (whole && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    result.run.digest = header.digest;
    result.run.counts = header.counts;
    result.run.violation = child.received.substr(sizeof(header), header.violation_bytes);
    result.run.text = child.received.substr(sizeof(header) + header.violation_bytes);
  } else if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU)) {
    result.run.violation = "stuck";
    result.run.text = "the run did not end within its time of CPU\n";
  } else {
    result.run.violation = "crash";
    result.run.text = WIFSIGNALED(status) ? std::string("signal ") + strsignal(WTERMSIG(status)) + "\n"
                                          : "exit status " + std::to_string(WEXITSTATUS(status)) + "\n";
  }
  return result;
}

}  // namespace

void RunSeeds(const RunnerOptions& options, const std::function<bool(const SeedResult&)>& on_result) {
  std::vector<Child> running;
  uint64_t next = 0;
  bool more = true;
  while ((more && next < options.seeds) || !running.empty()) {
    while (more && next < options.seeds && running.size() < options.jobs) {
      running.push_back(Start(options, options.from + next++));
    }
    std::vector<pollfd> fds;
    for (const Child& child : running) fds.push_back({child.fd, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) break;
    for (size_t i = running.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t count = read(running[i].fd, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count > 0) {
        running[i].received.append(buffer, static_cast<size_t>(count));
        continue;
      }
      const SeedResult result = Finish(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      if (more && !on_result(result)) {
        more = false;
        for (const Child& child : running) (void)testing_support::KillProcess(child.pid);
      }
    }
  }
}

std::span<const MutationInfo> Mutations() {
  static constexpr MutationInfo kAll[] = {
#define MUTATION(id, name, what) {kvs::Mutation::id, name, what},
#include "kvs/memory/mutations.def"
#undef MUTATION
  };
  return kAll;
}

const char* WhyHarmless(kvs::Mutation mutation) {
  switch (mutation) {
    case kvs::Mutation::kNoChecksum: return "no block is written while a reader may hold its address";
    case kvs::Mutation::kShownReused: return "who saw it in a tentative slot can only kill that slot";
    default: return nullptr;
  }
}

// Those of mirrored pools are the last group. Some need a replica between head and tail.
uint32_t ReplicasFor(kvs::Mutation mutation) { return mutation >= kvs::Mutation::kReadHead ? 3 : 0; }

const MutationInfo* FindMutation(std::string_view name) {
  for (const MutationInfo& info : Mutations()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

}  // namespace surgekv_sim
