#include "tests/support/program.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "tests/support/kill_process.h"

namespace testing_support {

std::string ProgramsDir() { return SURGEKV_BIN_DIR "/"; }
std::string SourceDir() { return SURGEKV_SOURCE_DIR "/"; }

namespace {

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

std::string PathOf(const std::string& name) {
  return name.find('/') != std::string::npos ? name : ProgramsDir() + name;
}

}  // namespace

Program::Program(const std::string& name, const std::vector<std::string>& args) {
  const std::string path = PathOf(name);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // When the test dies, its programs die too.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    // The program must be stoppable, whatever signals the tests themselves are told to ignore.
    for (const int number : {SIGINT, SIGHUP}) signal(number, SIG_DFL);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execv(path.c_str(), argv.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", path.c_str(), std::strerror(errno));
    _exit(127);
  }
  running_ = pid_ > 0;
  close(out[1]);
  close(err[1]);
  streams_[0].fd = out[0];
  streams_[1].fd = err[0];
}

Program::~Program() {
  if (running_) Kill();
  for (Stream& stream : streams_) {
    if (stream.fd >= 0) close(stream.fd);
  }
}

bool Program::ReadSome(int timeout_ms) {
  pollfd wait[2] = {{streams_[0].fd, POLLIN, 0}, {streams_[1].fd, POLLIN, 0}};
  if (streams_[0].fd < 0 && streams_[1].fd < 0) return false;
  if (poll(wait, 2, timeout_ms) <= 0) return true;
  for (int i = 0; i < 2; ++i) {
    if (wait[i].fd < 0 || wait[i].revents == 0) continue;
    char buffer[4096];
    const ssize_t n = read(wait[i].fd, buffer, sizeof(buffer));
    if (n > 0) {
      streams_[i].text.append(buffer, static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      close(wait[i].fd);
      streams_[i].fd = -1;
    }
  }
  return true;
}

std::string Program::WaitForLine(Stream& stream, const std::string& text) {
  const int64_t end = NowMs() + kPatienceMs;
  for (bool more = true; more && NowMs() < end;) {
    for (size_t newline; (newline = stream.text.find('\n', stream.searched)) != std::string::npos;) {
      std::string line = stream.text.substr(stream.searched, newline - stream.searched);
      stream.searched = newline + 1;
      if (line.find(text) != std::string::npos) return line;
    }
    if (stream.fd < 0) break;
    more = ReadSome(static_cast<int>(end - NowMs()));
  }
  return "";
}

std::string Program::WaitForLine(const std::string& text) { return WaitForLine(streams_[0], text); }
std::string Program::WaitForLogLine(const std::string& text) { return WaitForLine(streams_[1], text); }

void Program::Signal(int number) {
  if (running_) (void)SignalProcess(pid_, number);
}

bool Program::Reap(bool block) {
  int status = 0;
  pid_t reaped;
  do {
    reaped = waitpid(pid_, &status, block ? 0 : WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped != pid_) return false;
  running_ = false;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

int Program::Wait() {
  const int64_t end = NowMs() + kPatienceMs;
  // The streams end with the process, unless a grandchild holds them.
  while (NowMs() < end && ReadSome(static_cast<int>(end - NowMs()))) {
  }
  if (running_ && NowMs() >= end && !Reap(false)) {
    Kill();
    status_ = -1;
  } else if (running_) {
    Reap(true);
  }
  return status_;
}

void Program::Kill() {
  Signal(SIGKILL);
  if (running_) Reap(true);
  while (ReadSome(1000) && (streams_[0].fd >= 0 || streams_[1].fd >= 0)) {
  }
}

int Program::Stop() {
  Signal(SIGTERM);
  return Wait();
}

std::string Program::Output() const { return "stdout:\n" + out() + "stderr:\n" + err(); }

Finished RunProgram(const std::string& name, const std::vector<std::string>& args) {
  Program program(name, args);
  const int status = program.Wait();
  return {status, program.out(), program.err()};
}

TestFabric::TestFabric() {
  static std::atomic<int> count{0};
  name_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(count.fetch_add(1));
}

TestFabric::~TestFabric() {
  for (const std::string& file : Files()) {
    ADD_FAILURE() << "left in /dev/shm: " << file;
    unlink(("/dev/shm/" + file).c_str());
  }
}

std::vector<std::string> TestFabric::Files() const {
  std::vector<std::string> files;
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return files;
  const std::string mark = "-" + name_ + ".";
  while (const dirent* entry = readdir(directory)) {
    const std::string file = entry->d_name;
    if (file.find("surgekv") == 0 && file.find(mark) != std::string::npos) files.push_back(file);
  }
  closedir(directory);
  return files;
}

}  // namespace testing_support
