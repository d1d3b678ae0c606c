#include "krcore/base/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "krcore/resources.h"

namespace krcore {
namespace {

constexpr size_t kLookedAtBytes = size_t{16} << 20;

struct Limit {
  decltype(RLIMIT_AS) resource;
  const char* name;
  rlim_t unit;  // of ulimit
};
constexpr Limit kAddressSpace{RLIMIT_AS, "ulimit -v", 1024}, kData{RLIMIT_DATA, "ulimit -d", 1024};
constexpr Limit kLocked{RLIMIT_MEMLOCK, "ulimit -l", 1024}, kFiles{RLIMIT_NOFILE, "ulimit -n", 1};
constexpr Limit kProcesses{RLIMIT_NPROC, "ulimit -u", 1};

// "ulimit -n is 8"; nothing if it is unlimited.
void AddLimit(const Limit& limit, std::vector<std::string>* notes) {
  rlimit current{};
  if (getrlimit(limit.resource, &current) != 0 || current.rlim_cur == RLIM_INFINITY) return;
  notes->push_back(std::string(limit.name) + " is " + std::to_string(current.rlim_cur / limit.unit));
}

std::string Joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += (text.empty() ? " (" : ", ") + note;
  return text.empty() ? text : text + ")";
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;  // "max" is none
}

// Folders of this process's group and those around it, which limit it as well. A container may see its own group as the
// mount's root, by whatever name /proc has it: the root is always among them.
std::vector<std::string> CgroupFolders(std::string_view controller, const CgroupPlaces& places) {
  std::ifstream file(places.own);
  std::string base = places.mount, path;
  for (std::string line; std::getline(file, line);) {  // "4:memory:/path" of v1, "0::/path" of v2
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() && base == places.mount) path = line.substr(second + 1);
    if (controllers != controller) continue;
    base = places.mount + "/" + controllers;
    path = line.substr(second + 1);
  }
  std::vector<std::string> folders;
  for (; path.size() > 1; path.resize(path.rfind('/'))) folders.push_back(base + path);
  folders.push_back(base);
  return folders;
}

// What the kernel gives back before it refuses: the cache of files.
uint64_t CachedBytes(const std::string& folder, std::string_view prefix) {
  std::ifstream file(folder + "/memory.stat");
  uint64_t bytes = 0, sum = 0;
  for (std::string key; file >> key >> bytes;) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (name == "inactive_file" || name == "active_file") sum += bytes;
  }
  return sum;
}

}  // namespace

std::string LimitsOf(int errnum) {
  std::vector<std::string> notes;
  if (errnum == EMFILE) AddLimit(kFiles, &notes);
  if (errnum == ENFILE) notes.emplace_back("fs.file-max of the whole system");
  if (errnum == ENOMEM) {
    AddLimit(kAddressSpace, &notes);
    AddLimit(kData, &notes);
  }
  return Joined(notes);
}

std::string LimitsOfProcesses(const CgroupPlaces& places) {
  std::vector<std::string> notes;
  AddLimit(kProcesses, &notes);
  AddLimit(kAddressSpace, &notes);  // of which a thread's stack takes
  for (const std::string& folder : CgroupFolders("pids", places)) {
    const auto max = ReadNumber(folder + "/pids.max");
    if (max) notes.push_back("pids.max of " + folder + " is " + std::to_string(*max));
  }
  return Joined(notes);
}

std::string LimitOfLockedMemory() {
  std::vector<std::string> notes;
  AddLimit(kLocked, &notes);
  return Joined(notes);
}

Status CheckCgroupMemory(size_t bytes, const CgroupPlaces& places) {
  if (bytes < kLookedAtBytes) return {};
  for (const std::string& folder : CgroupFolders("memory", places)) {
    const char* name = "memory.max";
    auto limit = ReadNumber(folder + "/" + name);
    auto used = ReadNumber(folder + "/memory.current");
    uint64_t cached = CachedBytes(folder, "");
    if (!limit) {
      name = "memory.limit_in_bytes";
      limit = ReadNumber(folder + "/" + name);
      used = ReadNumber(folder + "/memory.usage_in_bytes");
      cached = CachedBytes(folder, "total_");
    }
    if (!limit || !used) continue;
    const uint64_t taken = *used - std::min(*used, cached);
    const uint64_t room = *limit - std::min(*limit, taken);
    if (bytes <= room) continue;
    return {StatusCode::kOutOfMemory, std::to_string(bytes) +
                                          " bytes are more than this process's control group has left: " + name +
                                          " of " + folder + " is " + std::to_string(*limit) + ", of which " +
                                          std::to_string(room) + " are free; ask for less, or raise it"};
  }
  return {};
}

Result<std::thread> StartThread(const std::string& name, std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return StartRefused(error.code().value(), "thread '" + name + "'");
  } catch (const std::bad_alloc&) {
    return StartRefused(ENOMEM, "thread '" + name + "'");
  }
}

Status StartRefused(int errnum, const std::string& what) {
  return {StatusCode::kUnavailable, "cannot start " + what + ": " + std::generic_category().message(errnum) +
                                        LimitsOfProcesses() + "; raise the limit, or end other processes of this user"};
}

Status MemoryRefused(const std::string& what) { return Status::FromErrno(ENOMEM, what); }

}  // namespace krcore
