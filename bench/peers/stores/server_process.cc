#include "bench/peers/stores/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace peers {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kPatienceToEnd = std::chrono::seconds(5);
constexpr auto kLookEvery =
    std::chrono::milliseconds(5);  // no event says that a server listens, or has written something
constexpr char kOutput[] = "/output";

// True as soon as `done` is; false when so much time has passed.
template <typename Done>
bool Await(std::chrono::steady_clock::duration patience, Done done) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kLookEvery);
  }
  return true;
}

struct Resident {
  uint64_t all = 0, shared = 0;
};

Resident ResidentBytesOf(const std::string& process) {
  std::ifstream statm("/proc/" + process + "/statm");
  uint64_t total = 0, resident = 0, shared = 0;
  statm >> total >> resident >> shared;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return {resident * page_bytes, shared * page_bytes};
}

}  // namespace

Result<std::unique_ptr<PrivateFolder>> PrivateFolder::Create() {
  // mkdtemp makes six letters of the last ones.
  std::string path = "/dev/shm/surgekv-peers-" + std::to_string(getpid()) + "-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return Status::FromErrno(errno, "a folder in /dev/shm");
  return std::unique_ptr<PrivateFolder>(new PrivateFolder(std::move(path)));
}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string FindProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const char* const path = std::getenv("PATH");
  // Programs lie in build/bin, tests in build/tests.
  std::istringstream folders(self.string() + ":" + (self.parent_path() / "bin").string() + ":" +
                             (path != nullptr ? path : ""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = std::filesystem::path(folder) / name;
    if (std::filesystem::is_regular_file(candidate, error) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

Result<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::string& program,
                                                            const std::vector<std::string>& arguments) {
  std::string path = FindProgram(program);
  if (path.empty()) return Status(StatusCode::kNotFound, "the program " + program + " is not installed");
  auto folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string output = (*folder)->path() + kOutput;
  std::vector<std::string> words = arguments;
  std::vector<char*> argv = {path.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::FromErrno(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);  // a Ctrl-C is for this program, which then ends its servers
    if (getppid() != parent) _exit(1);
    const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  return std::unique_ptr<ServerProcess>(new ServerProcess(*std::move(folder), pid));
}

bool ServerProcess::Ended() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ == 0;
}

void ServerProcess::Freeze() { kill(pid_, SIGSTOP); }

ServerProcess::~ServerProcess() {
  if (Ended()) return;
  kill(pid_, SIGTERM);
  kill(pid_, SIGCONT);
  if (Await(kPatienceToEnd, [this] { return Ended(); })) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string ServerProcess::Output() const {
  std::ostringstream text;
  text << std::ifstream(folder_->path() + kOutput).rdbuf();
  return text.str();
}

Status ServerProcess::AwaitOutput(const std::string& text) {
  bool said = false;
  (void)Await(kPatience, [&] {
    const bool ended = Ended();  // before its last words are read
    said = Output().find(text) != std::string::npos;
    return said || ended;
  });
  if (said) return Status::Ok();
  return {StatusCode::kUnavailable, "a server of the comparison did not start: " + Output()};
}

Result<int> ServerProcess::Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Status(StatusCode::kInvalidArgument, path + " is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return Status::FromErrno(errno, "socket");
  bool connected = false;
  (void)Await(kPatience, [&] {
    connected = connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    return connected || Ended();
  });
  if (connected) return file;
  close(file);
  return Status(StatusCode::kUnavailable, "a server of the comparison cannot be reached: " + Output());
}

uint64_t ServerProcess::ResidentBytes() const { return ResidentBytesOf(std::to_string(pid_)).all; }

uint64_t OwnAnonymousBytes() {
  const Resident resident = ResidentBytesOf("self");
  return resident.all - resident.shared;
}

}  // namespace peers
