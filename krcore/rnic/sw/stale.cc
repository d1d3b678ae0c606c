// Finds and removes what fabrics without a living device left in /dev/shm.
#include <set>
#include <string>
#include <vector>

#include "krcore/rnic/sw/memory.h"
#include "krcore/rnic/sw/shm_file.h"
#include "krcore/rnic/sw/sw.h"

namespace krcore::rnic::sw {
namespace {

// Names of the fabrics of this user that have any file.
Result<std::set<std::string>> Fabrics() {
  std::set<std::string> names;
  const std::string prefix = UserPrefix();
  const auto files = ListShm(prefix);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    const size_t dot = file.find('.', prefix.size());
    if (dot != std::string::npos) names.insert(file.substr(prefix.size(), dot - prefix.size()));
  }
  return names;
}

bool AnybodyHolds(Backing& backing) {
  for (uint32_t index = 0; index < kMaxDevices; ++index) {
    if (backing.HeldByOther(index)) return true;
  }
  return false;
}

bool HasKept(const std::vector<std::string>& suffixes) {
  for (const std::string& suffix : suffixes) {
    if (!suffix.empty() && suffix[0] == kKeptPrefix) return true;
  }
  return false;
}

// True if it removed anything. Under the admin lock, so that nobody joins meanwhile.
Result<bool> CleanOne(const std::string& fabric, bool also_kept) {
  // Created if it is missing: its lock is what keeps others out while leftover memory is removed.
  auto backing = OpenShmBacking(fabric, true);
  if (!backing.ok() && backing.status() == StatusCode::kBadState) {
    // Of another build: nobody of this build can use it, but somebody of the other may.
    return backing.status();
  }
  if (!backing.ok()) return backing.status();
  bool removed = false;
  if (!AnybodyHolds(**backing)) {
    const auto suffixes = (*backing)->List();
    if (!suffixes.ok()) {
      (*backing)->UnlockAdmin();
      return suffixes.status();
    }
    if (also_kept || !HasKept(*suffixes)) {
      Status left;
      for (const std::string& suffix : *suffixes) {
        if (Status one = (*backing)->RemoveLeft(suffix); !one.ok()) left = one;
      }
      (*backing)->RemoveControl();
      removed = true;
      if (!left.ok()) {
        (*backing)->UnlockAdmin();
        if (!(left == StatusCode::kExists))
          return Status(left.code(),
                        "not all files of fabric " + fabric + " were removed: " + std::string(left.message()));
        return Status(StatusCode::kExists, "files of fabric " + fabric +
                                               " are in use by a living process, and stay: somebody has removed its "
                                               "control file. Stop the fabric's programs first");
      }
    }
  }
  (*backing)->UnlockAdmin();
  return removed;
}

}  // namespace

std::vector<int32_t> ProcessesOfRemovedFabric(const std::string& fabric) {
  return ProcessesOfRemoved(FabricPrefix(fabric) + "ctl");
}

std::vector<std::string> ListFabrics() {
  const auto names = Fabrics();
  return names.ok() ? std::vector<std::string>(names->begin(), names->end()) : std::vector<std::string>();
}

Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept) {
  if (!fabric.empty()) KRCORE_RETURN_IF_ERROR(CheckFabricName(fabric));
  CleanReport report;
  const auto names = Fabrics();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!fabric.empty() && name != fabric) continue;
    auto removed = CleanOne(name, also_kept);
    if (!removed.ok()) return removed.status();
    if (*removed) report.removed.push_back(name);
  }
  return report;
}

}  // namespace krcore::rnic::sw
