#include "computenode/elastic/worker_processes.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/resources.h"

namespace computenode {
namespace {

using krcore::Result;
using krcore::StatusCode;

constexpr char kBoardName[] = "surgekv-workers";
// If a standby worker has failed, the next one is spawned this much later.
constexpr int64_t kStandbyRetryNs = 100'000'000;
constexpr int64_t kDismissalNs = 5'000'000'000;

Status SystemFailure(const char* what) {
  return {StatusCode::kUnavailable, std::string(Status::FromErrno(errno, what).message())};
}

std::string HowItEnded(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return std::string("was killed by signal ") + std::to_string(WTERMSIG(wait_status)) + " (" +
           strsignal(WTERMSIG(wait_status)) + ")";
  }
  return "ended with status " + std::to_string(WEXITSTATUS(wait_status));
}

// ---- the template: the process that workers are forked from. It and WorkerProcesses send each other datagrams of one
// struct.

// Sent to the template: fork a worker for a slot.
struct SpawnRequest {
  uint32_t slot;
};

// Sent by the template.
struct SpawnReport {
  enum class Kind : uint32_t { kSpawned, kNotSpawned, kEnded };
  Kind kind;
  uint32_t slot;
  int32_t pid;
  int32_t status;  // kNotSpawned: errno; kEnded: as waitpid reports it
};

// Makes this process die with the one that forked it.
void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the prctl
}

// Sets signals to what a freshly started program expects: ignored and blocked signals would stay so over exec.
void ResetSignals() {
  for (int number = 1; number < NSIG; ++number)
    std::signal(number, SIG_DFL);  // two or three can be neither set nor changed
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void Execute(const WorkerProcessesOptions& options, const WorkerBoard& board, uint32_t slot) {
  std::vector<std::string> arguments = options.exec;
  arguments.push_back("--worker_board=" + std::to_string(board.fd()));
  arguments.push_back("--worker_slot=" + std::to_string(slot));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  fcntl(board.fd(), F_SETFD, 0);
  for (const int fd : options.inherited) fcntl(fd, F_SETFD, 0);
  ResetSignals();
  execv(pointers[0], pointers.data());
  board[slot].Fail("cannot execute " + options.exec[0] + ": " + std::strerror(errno));
  _exit(127);
}

// Runs the template's life. `parent`: the process that made it.
[[noreturn]] void RunTemplate(const WorkerProcessesOptions& options, const WorkerBoard& board, int socket,
                              int32_t parent) {
  DieWith(parent);
  LeaveSignalsToFrontEnd();
  std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, nobody learns that a worker has ended
  sigset_t child_ends, before;
  sigemptyset(&child_ends);
  sigaddset(&child_ends, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ends, &before);
  const int ends = krcore::AboveStandard(signalfd(-1, &child_ends, SFD_CLOEXEC | SFD_NONBLOCK));
  if (ends < 0) _exit(1);
  const pid_t self = getpid();
  const auto report = [socket](const SpawnReport& report) {
    if (send(socket, &report, sizeof(report), MSG_NOSIGNAL) < 0) _exit(0);
  };
  std::map<pid_t, uint32_t> slots;
  for (;;) {
    pollfd events[2] = {{socket, POLLIN, 0}, {ends, POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) _exit(1);
    if ((events[1].revents & POLLIN) != 0) {
      signalfd_siginfo unused;
      while (read(ends, &unused, sizeof(unused)) > 0) {
      }
      int status;
      for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        report({SpawnReport::Kind::kEnded, slots[pid], pid, status});
        slots.erase(pid);
      }
    }
    if ((events[0].revents & (POLLIN | POLLHUP)) == 0) continue;
    SpawnRequest request;
    const ssize_t got = recv(socket, &request, sizeof(request), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got != sizeof(request)) _exit(0);  // nobody wants workers any more
    const pid_t pid = fork();
    if (pid == 0) {
      DieWith(self);
      sigprocmask(SIG_SETMASK, &before, nullptr);
      close(socket);
      close(ends);
      if (!options.exec.empty()) Execute(options, board, request.slot);
      _exit(options.main(board[request.slot]));
    }
    if (pid < 0) {
      report({SpawnReport::Kind::kNotSpawned, request.slot, 0, errno});
      continue;
    }
    slots[pid] = request.slot;
    report({SpawnReport::Kind::kSpawned, request.slot, pid, 0});
  }
}

}  // namespace

void WorkerSlot::Fail(const std::string& why) {
  const size_t length = std::min(why.size(), sizeof(error) - 1);
  std::memcpy(error, why.data(), length);
  error[length] = 0;
}

bool WorkerSlot::AwaitCall(bool* woken) {
  uint32_t call = calls.load(std::memory_order_acquire);
  *woken = call == 0;
  for (; call == 0; call = calls.load(std::memory_order_acquire)) {
    syscall(SYS_futex, &calls, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  }
  return call == kWanted;
}

void WorkerSlot::Call(bool wanted) {
  calls.store(wanted ? kWanted : kDismissed, std::memory_order_release);
  syscall(SYS_futex, &calls, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

Result<WorkerBoard> WorkerBoard::Create() {
  Result<SharedMemory> memory = SharedMemory::Create(kBoardName, kSlots * sizeof(WorkerSlot));
  if (!memory.ok()) return memory.status();
  return WorkerBoard(std::move(*memory));
}

Result<WorkerBoard> WorkerBoard::Attach(int fd) {
  Result<SharedMemory> memory = SharedMemory::Attach(kBoardName, fd);
  if (!memory.ok()) return memory.status();
  if (memory->size() != kSlots * sizeof(WorkerSlot)) {
    return Status(StatusCode::kInvalidArgument, "the descriptor does not refer to a board of workers");
  }
  return WorkerBoard(std::move(*memory));
}

void LeaveSignalsToFrontEnd() {
  for (const int ignored : {SIGINT, SIGHUP, SIGTERM, SIGPIPE}) std::signal(ignored, SIG_IGN);
}

Result<std::unique_ptr<WorkerProcesses>> WorkerProcesses::Start(WorkerProcessesOptions options) {
  Result<WorkerBoard> board = WorkerBoard::Create();
  if (!board.ok()) return board.status();
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return SystemFailure("a pair of sockets");
  for (int& end : sockets) {
    if ((end = krcore::AboveStandard(end)) < 0) return SystemFailure("a pair of sockets");
  }
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    close(sockets[0]);
    RunTemplate(options, *board, sockets[1], self);
  }
  const Status failed = pid < 0 ? krcore::StartRefused(errno, "the process that workers are forked from") : Status();
  close(sockets[1]);
  if (!failed.ok()) {
    close(sockets[0]);
    return failed;
  }
  return std::unique_ptr<WorkerProcesses>(new WorkerProcesses(std::move(options), std::move(*board), sockets[0], pid));
}

WorkerProcesses::WorkerProcesses(WorkerProcessesOptions options, WorkerBoard board, int socket, int32_t template_pid)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : krcore::RealClock()),
      board_(std::move(board)),
      socket_(socket),
      template_pid_(template_pid) {}

WorkerProcesses::~WorkerProcesses() {
  RetireWorkers(std::numeric_limits<uint32_t>::max());
  closing_ = true;
  for (const uint32_t slot : standby_) board_[slot].Call(/*wanted=*/false);
  WaitForAll();
  // They close what they have open; a process that is killed leaves that to others to find.
  for (const int64_t give_up_ns = clock_->NowNs() + kDismissalNs; !pids_.empty() && clock_->NowNs() < give_up_ns;) {
    pollfd events{socket_, POLLIN, 0};
    poll(&events, 1, 10);
    Look();
  }
  // Closing alone is not enough: another template may have inherited it.
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
  if (socket_ >= 0) close(socket_);
  while (waitpid(template_pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<uint32_t> WorkerProcesses::Spawn() {
  uint32_t slot = next_slot_, tried = 0;
  while (board_[slot].in_use.load(std::memory_order_relaxed) && ++tried <= WorkerBoard::kSlots) {
    slot = (slot + 1) % WorkerBoard::kSlots;
  }
  if (tried > WorkerBoard::kSlots) {
    return Status(StatusCode::kUnavailable,
                  std::to_string(WorkerBoard::kSlots) + " worker processes exist, which is the limit");
  }
  next_slot_ = (slot + 1) % WorkerBoard::kSlots;
  new (&board_[slot]) WorkerSlot{};
  const SpawnRequest request{slot};
  if (socket_ < 0 || send(socket_, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) {
    return Status(StatusCode::kUnavailable, "the process that workers are forked from is gone");
  }
  board_[slot].in_use.store(true, std::memory_order_relaxed);
  return slot;
}

void WorkerProcesses::KeepStandby() {
  const int64_t now_ns = clock_->NowNs();
  if (closing_ || standby_.size() >= options_.standby || now_ns < spawn_not_before_ns_) return;
  spawn_not_before_ns_ = now_ns + kRefillEveryNs;
  const Result<uint32_t> slot = Spawn();
  if (slot.ok()) standby_.push_back(*slot);  // else whoever wants a worker is told
}

Status WorkerProcesses::AddWorkers(uint32_t count) {
  const int64_t wanted_ns = clock_->NowNs();
  spawn_not_before_ns_ = wanted_ns + kRefillAfterNs;
  Look();
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t slot = 0;
    if (!standby_.empty()) {
      slot = standby_.front();
      standby_.pop_front();
    } else {
      const Result<uint32_t> spawned = Spawn();
      if (!spawned.ok()) return spawned.status();
      slot = *spawned;
    }
    WorkerSlot& mine = board_[slot];
    mine.worker = static_cast<uint32_t>(workers_.size());
    mine.times.wanted_ns = wanted_ns;
    workers_.push_back({.slot = slot, .record = {}, .ended = false});
    workers_.back().record.worker = mine.worker;
    if (const auto pid = pids_.find(slot); pid != pids_.end()) workers_.back().record.pid = pid->second;
    mine.Call(/*wanted=*/true);
  }
  // Some of them may be queued behind this thread on its own core, and would wait there until it sleeps.
  sched_yield();
  return {};
}

uint32_t WorkerProcesses::RetireWorkers(uint32_t count) {
  Look();
  const int64_t now_ns = clock_->NowNs();
  uint32_t asked = 0;
  for (auto worker = workers_.rbegin(); worker != workers_.rend() && asked < count; ++worker) {
    if (worker->ended || worker->record.retired_ns != 0) continue;
    worker->record.retired_ns = now_ns;
    board_[worker->slot].retiring.store(true, std::memory_order_relaxed);
    ++asked;
  }
  return asked;
}

void WorkerProcesses::Look() {
  SpawnReport report;
  while (socket_ >= 0) {
    const ssize_t got = recv(socket_, &report, sizeof(report), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return KeepStandby();
    if (got != sizeof(report)) {
      close(std::exchange(socket_, -1));
      return AllDied();
    }
    const auto worker = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& candidate) {
      return !candidate.ended && candidate.slot == report.slot;
    });
    if (report.kind == SpawnReport::Kind::kSpawned) pids_[report.slot] = report.pid;
    if (report.kind != SpawnReport::Kind::kSpawned) pids_.erase(report.slot);
    if (worker == workers_.end()) {  // a standby worker
      if (report.kind == SpawnReport::Kind::kSpawned) continue;
      std::erase(standby_, report.slot);
      board_[report.slot].in_use.store(false, std::memory_order_relaxed);
      spawn_not_before_ns_ = clock_->NowNs() + kStandbyRetryNs;
      continue;
    }
    switch (report.kind) {
      case SpawnReport::Kind::kSpawned: worker->record.pid = report.pid; break;
      case SpawnReport::Kind::kNotSpawned:
        board_[report.slot].Fail(std::string(krcore::StartRefused(report.status, "its process").message()));
        Ended(&*worker, 1 << 8);
        break;
      case SpawnReport::Kind::kEnded: Ended(&*worker, report.status); break;
    }
  }
}

void WorkerProcesses::Ended(Worker* worker, int wait_status) {
  WorkerSlot& slot = board_[worker->slot];
  worker->record = RecordOf(*worker);
  worker->ended = true;
  WorkerRecord& record = worker->record;
  if (record.ended_ns == 0) record.ended_ns = clock_->NowNs();
  record.connection_bytes = 0;
  if (wait_status != 0) {
    record.died = true;
    std::string why = "worker process " + std::to_string(record.pid) + " " + HowItEnded(wait_status);
    if (slot.error[0] != 0) why += std::string(": ") + slot.error;
    record.status = {StatusCode::kUnavailable, std::move(why)};
  }
  slot.in_use.store(false, std::memory_order_relaxed);
  if (record.died && socket_ >= 0 && options_.on_death) options_.on_death(record);
}

// The template is dead, and so the system kills every worker. Nobody says when it has done so: on_death is not called.
void WorkerProcesses::AllDied() {
  for (Worker& worker : workers_) {
    if (!worker.ended) Ended(&worker, SIGKILL);
  }
  standby_.clear();
  pids_.clear();
}

bool WorkerProcesses::WaitForAll(krcore::Deadline deadline) {
  for (;;) {
    Look();
    if (running() == 0) return true;
    const int64_t left_ns =
        deadline.at_ns == krcore::Deadline::Never().at_ns ? 1'000'000'000 : deadline.at_ns - clock_->NowNs();
    if (left_ns <= 0) return false;
    pollfd events{socket_, POLLIN, 0};
    poll(&events, 1, static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, 1'000)));
  }
}

uint32_t WorkerProcesses::active() const {
  return static_cast<uint32_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return !worker.ended && worker.record.retired_ns == 0;
  }));
}

uint32_t WorkerProcesses::running() const {
  return static_cast<uint32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return !worker.ended; }));
}

WorkerRecord WorkerProcesses::RecordOf(const Worker& worker) const {
  WorkerRecord record = worker.record;
  if (worker.ended) return record;
  WorkerTimes& times = board_[worker.slot].times;
  const int64_t retired_ns = record.retired_ns;
  for (int64_t WorkerTimes::*part :
       {&WorkerTimes::wanted_ns, &WorkerTimes::thread_ns, &WorkerTimes::store_ns, &WorkerTimes::client_ns,
        &WorkerTimes::lanes_ns, &WorkerTimes::first_begin_ns, &WorkerTimes::first_reply_ns, &WorkerTimes::ended_ns}) {
    record.*part = std::atomic_ref(times.*part).load(std::memory_order_acquire);
  }
  record.retired_ns = retired_ns;
  if (record.client_ns != 0) record.client_times = board_[worker.slot].client.times;
  record.counts = board_[worker.slot].counts.Load();
  SetProgress(board_[worker.slot].client.Load(), &record);
  return record;
}

std::vector<WorkerRecord> WorkerProcesses::Records() const {
  std::vector<WorkerRecord> records;
  for (const Worker& worker : workers_) records.push_back(RecordOf(worker));
  return records;
}

}  // namespace computenode
