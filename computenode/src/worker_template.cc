#include "computenode/src/worker_template.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "krcore/base/descriptor.h"

namespace computenode {
namespace {

// Whoever forked this process takes it along.
void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before
}

// As a program finds them that is started by nobody in particular: what is ignored and blocked stays so over exec.
void ResetSignals() {
  for (int number = 1; number < NSIG; ++number)
    std::signal(number, SIG_DFL);  // two or three cannot be set, nor changed
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

}  // namespace

void RunTemplate(const WorkerProcessesOptions& options, const WorkerBoard& board, int socket, int32_t parent) {
  DieWith(parent);
  LeaveSignalsToFrontEnd();
  std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, nobody learns of a worker's end
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

}  // namespace computenode
