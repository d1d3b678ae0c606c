// A program that the benchmark runs beside itself: started here, and ended by its process id when this object ends, or
// by the kernel if the thread that started it dies first. Its stdout and stderr go to a file in the folder.
#ifndef BENCH_PEERS_STORES_SERVER_PROCESS_H_
#define BENCH_PEERS_STORES_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/status.h"

namespace peers {

// A folder for sockets and files, removed with all that is in it.
class PrivateFolder {
 public:
  // In /dev/shm: memory.
  static krcore::Result<std::unique_ptr<PrivateFolder>> Create();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Where `name` is: beside this program, or in PATH. Empty: nowhere.
std::string FindProgram(const std::string& name);

class ServerProcess {
 public:
  // kNotFound: there is no such program.
  static krcore::Result<std::unique_ptr<ServerProcess>> Start(const std::string& program,
                                                              const std::vector<std::string>& arguments);
  // SIGTERM, and SIGKILL where that does not help within some seconds. Waits for the end.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Blocks until its output contains `text`. kUnavailable: it ended before, or a minute passed; the message has what it
  // said.
  krcore::Status AwaitOutput(const std::string& text);
  // A connection to the unix socket at `path`, which it will listen on. Blocks as AwaitOutput.
  krcore::Result<int> Connect(const std::string& path);
  // Memory that it has in use, from the kernel.
  uint64_t ResidentBytes() const;

 private:
  ServerProcess(std::unique_ptr<PrivateFolder> folder, pid_t pid) : folder_(std::move(folder)), pid_(pid) {}
  std::string Output() const;
  bool Ended();

  std::unique_ptr<PrivateFolder> folder_;
  pid_t pid_;
};

// Resident memory of this process that is no file's and not shared: what others have mapped, or let go of meanwhile,
// does not count.
uint64_t OwnAnonymousBytes();

}  // namespace peers

#endif  // BENCH_PEERS_STORES_SERVER_PROCESS_H_
