// A program that the benchmark runs next to itself: started here, and ended by its process id when this object ends, or
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

// Path of the program `name`: in this program's folder, or in PATH. Empty: there is none.
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
  // Stops it (SIGSTOP) until it is to end.
  void Freeze();
  // Memory that it has in use, from the kernel.
  uint64_t ResidentBytes() const;

 private:
  ServerProcess(std::unique_ptr<PrivateFolder> folder, pid_t pid) : folder_(std::move(folder)), pid_(pid) {}
  std::string Output() const;
  bool Ended();

  std::unique_ptr<PrivateFolder> folder_;
  pid_t pid_;
};

// Resident memory of this process that belongs to no file and is not shared, so that what other processes map or unmap
// does not count.
uint64_t OwnAnonymousBytes();

}  // namespace peers

#endif  // BENCH_PEERS_STORES_SERVER_PROCESS_H_
