#include "kvs/epochs/registration.h"

#include <optional>

namespace kvs {

// ---- the entries that this process's clients hold

void HeldEntries::RemoveFrom(std::vector<uint32_t>* indexes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(*indexes, [this](uint32_t index) { return held_.contains(index); });
}

bool HeldEntries::Hold(uint32_t index) {
  const std::lock_guard lock(mutex_);
  return held_.insert(index).second;
}

void HeldEntries::LetGo(uint32_t index) {
  const std::lock_guard lock(mutex_);
  held_.erase(index);
}

void HeldEntries::Abandon(const ClaimedEntry& entry) {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(entry);
}

std::optional<ClaimedEntry> HeldEntries::TakeAbandoned() {
  const std::lock_guard lock(mutex_);
  if (abandoned_.empty()) return std::nullopt;
  const ClaimedEntry entry = abandoned_.back();
  abandoned_.pop_back();
  return entry;
}

}  // namespace kvs
