#include "tests/kmod/fixture.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace kmod_test {

Pages::Pages(size_t bytes) : size_(bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  EXPECT_NE(at, MAP_FAILED);
  bytes_ = static_cast<uint8_t*>(at);
}

Pages::~Pages() { Unmap(); }

void Pages::Unmap() {
  if (bytes_ != nullptr) munmap(bytes_, size_);
  bytes_ = nullptr;
}

Side::Side(uint32_t depth, size_t bytes, uint32_t access) : memory(bytes) {
  EXPECT_EQ(queue.Open(), 0);
  EXPECT_EQ(queue.Attach("", depth), 0);
  EXPECT_EQ(queue.Register(memory.bytes(), memory.size(), access, &key), 0);
  EXPECT_EQ(queue.ConnectDevice(queue.gid()), 0);
}

krc_request Side::Between(uint8_t opcode, uint32_t lkey, const void* local, uint32_t rkey, uint64_t remote,
                          uint32_t length) {
  krc_request request = {};
  request.opcode = opcode;
  request.flags = KRC_SIGNALED;
  request.num_sge = 1;
  request.sges[0] = {reinterpret_cast<uint64_t>(local), length, lkey};
  request.rkey = rkey;
  request.remote_addr = remote;
  return request;
}

krc_request Side::Request(uint8_t opcode, size_t local, size_t remote, uint64_t wr_id) const {
  krc_request request =
      Between(opcode, key, memory.words() + local, key, reinterpret_cast<uint64_t>(memory.words() + remote));
  request.wr_id = wr_id;
  return request;
}

std::vector<krc_completion> Side::Await(size_t count) {
  std::vector<krc_completion> found(count);
  size_t have = 0;
  while (have < count) {
    have += queue.Pop(std::span(found).subspan(have));
    if (have < count && queue.Wait(kPatienceMs) != 0) break;
  }
  found.resize(have);
  EXPECT_EQ(have, count);
  return found;
}

int Side::StatusOf(const krc_request& request) {
  EXPECT_EQ(Push(request), 0);
  const std::vector<krc_completion> found = Await(1);
  return found.empty() ? -1 : found[0].status;
}

namespace {
constexpr char kDebugfs[] = "/sys/kernel/debug/krcore/rxe0/";
}

int64_t Counter(const std::string& name, const std::string& file_name) {
  std::ifstream file(kDebugfs + file_name);
  std::string word;
  int64_t value;
  while (file >> word >> value) {
    if (word == name) return value;
  }
  ADD_FAILURE() << "no counter " << name;
  return -1;
}

namespace {
void Poke(const char* name) {
  std::ofstream file(std::string(kDebugfs) + name);
  file << "1" << std::flush;
  EXPECT_TRUE(file.good());
}
}  // namespace

void BreakConnections() { Poke("break"); }

void BreakConnectionsUnheard() { Poke("break_unheard"); }

void Pause() { usleep(1000); }

// The device is found again as soon as it has its address.
void AwaitDevice() {
  for (int error = ENODEV; error != 0; Pause()) {
    Queue probe;
    ASSERT_EQ(probe.Open(), 0);
    error = probe.Attach("rxe0", 1);
    ASSERT_TRUE(error == 0 || error == ENODEV || error == ENETDOWN) << error;
  }
}

bool IsPart(std::string_view part) {
  const char* const said = std::getenv("KMOD_OTHER_HOST");
  return said != nullptr && said == part;
}

void AwaitFile(const char* path) {
  while (access(path, F_OK) != 0) Pause();
}

int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status);
}

}  // namespace kmod_test
