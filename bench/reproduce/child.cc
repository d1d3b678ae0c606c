#include "bench/reproduce/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>
#include <utility>

#include "bench/reproduce/report.h"

extern char** environ;

namespace reproduce {
namespace {

constexpr int kPatienceMs = 120'000;
constexpr size_t kMaxChildren = 256;
constexpr int kEndings[] = {SIGINT, SIGTERM, SIGHUP, SIGABRT};  // the last: Must failed

// Of the children that live, for the signal handler; 0: free. Only this thread changes them.
std::array<volatile pid_t, kMaxChildren> g_pids;

void Note(pid_t pid) {
  for (volatile pid_t& place : g_pids) {
    if (place != 0) continue;
    place = pid;
    return;
  }
  Must(Status(StatusCode::kInternal, "too many children"));
}

void OnSignal(int number) {
  for (const volatile pid_t& place : g_pids)
    if (place > 0) kill(place, SIGKILL);
  for (const volatile pid_t& place : g_pids)
    if (place > 0) waitpid(place, nullptr, 0);
  _exit(128 + number);
}

// No signal comes between a child's birth and its being noted.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeld() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

// The exit status of a child, which is no child any more then.
int WaitFor(pid_t pid) {
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  const SignalsHeld held;  // or the handler might kill another process that has the id by then
  int status = 0;
  waitpid(pid, &status, 0);
  for (volatile pid_t& place : g_pids)
    if (place == pid) place = 0;
  return status;
}

struct Pipe {
  int ends[2];
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) Must(Status::FromErrno(errno, "pipe"));
  }
};

std::FILE* Open(int fd, const char* mode) {
  std::FILE* const file = fdopen(fd, mode);
  if (file == nullptr) Must(Status::FromErrno(errno, "fdopen"));
  return file;
}

}  // namespace

void SayNumbers(std::FILE* to, const std::vector<int64_t>& numbers) {
  std::ostringstream line;
  for (const int64_t number : numbers) line << number << ' ';
  std::fprintf(to, "%s\n", line.str().c_str());
  std::fflush(to);
}

std::vector<int64_t> NumbersOf(const std::string& line) {
  std::istringstream words(line);
  std::vector<int64_t> numbers;
  for (int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

void Child::CleanUpOnSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigfillset(&action.sa_mask);
  for (const int number : kEndings) {
    struct sigaction inherited {};
    // SIGINT and SIGHUP stay ignored if they are: by nohup, or in the background of a script.
    if (sigaction(number, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
}

Child Child::Exec(const std::vector<std::string>& arguments) {
  const Pipe input, output;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  std::string self = "/proc/self/exe";
  argv.push_back(self.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  int error = 0;
  {
    const SignalsHeld held;
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &held.before());
    sigset_t ignored_here;
    sigemptyset(&ignored_here);
    sigaddset(&ignored_here, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &ignored_here);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    error = posix_spawn(&pid, self.c_str(), &actions, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (error == 0) Note(pid);
  }
  posix_spawn_file_actions_destroy(&actions);
  close(input.ends[0]);
  close(output.ends[1]);
  if (error != 0) Must(Status::FromErrno(error, "a process of this program"));
  return Child(pid, input.ends[1], output.ends[0]);
}

Child Child::Fork(const std::function<void(std::FILE* answer)>& body) {
  const Pipe input, output;
  pid_t pid = 0;
  {
    const SignalsHeld held;
    pid = fork();
    if (pid == 0) {
      for (const int number : kEndings) {
        struct sigaction here {};
        if (sigaction(number, nullptr, &here) == 0 && here.sa_handler == OnSignal) signal(number, SIG_DFL);
      }
      sigprocmask(SIG_SETMASK, &held.before(), nullptr);
      close(input.ends[1]);
      body(Open(output.ends[1], "w"));
      _exit(0);
    }
    if (pid > 0) Note(pid);
  }
  close(input.ends[0]);
  close(output.ends[1]);
  if (pid < 0) Must(Status::FromErrno(errno, "fork"));
  return Child(pid, input.ends[1], output.ends[0]);
}

Child::Child(pid_t pid, int input, int output) : pid_(pid), input_(Open(input, "w")), output_(output) {}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      input_(std::exchange(other.input_, nullptr)),
      output_(std::exchange(other.output_, -1)) {}

Child::~Child() {
  if (input_ != nullptr) std::fclose(input_);
  if (output_ >= 0) close(output_);
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  (void)WaitFor(pid_);
}

void Child::Say(const std::string& line) {
  if (std::fprintf(input_, "%s\n", line.c_str()) < 0 || std::fflush(input_) != 0)
    Must(Status(StatusCode::kUnavailable, "a process of this program ended too early"));
}

std::string Child::Hear() {
  std::string line;
  for (;;) {
    // Nothing is read ahead: a child says one line, and the next only when it was spoken to or has more to tell.
    pollfd readable{output_, POLLIN, 0};
    const int ready = poll(&readable, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) Must(Status(StatusCode::kTimeout, "a process of this program says nothing"));
    char byte = 0;
    if (read(output_, &byte, 1) != 1)
      Must(Status(StatusCode::kUnavailable, "a process of this program ended too early"));
    if (byte == '\n') return line;
    line.push_back(byte);
  }
}

std::vector<int64_t> Child::HearNumbers() { return NumbersOf(Hear()); }

void Child::Reap() {
  std::fclose(std::exchange(input_, nullptr));
  const int status = WaitFor(std::exchange(pid_, 0));
  if (status != 0) Must(Status(StatusCode::kUnavailable, "a process of this program failed"));
}

}  // namespace reproduce
