#include "computenode/fleet.h"

#include <array>
#include <bit>
#include <type_traits>

namespace computenode {

Status Fleet::SetWorkers(uint32_t count) {
  const uint32_t now = active();
  if (count > now) return AddWorkers(count - now);
  RetireWorkers(now - count);
  return {};
}

Status Fleet::FirstError() const {
  for (const WorkerRecord& record : Records()) {
    if (!record.status.ok()) return record.status;
  }
  return {};
}

kvs::ClientStats Fleet::TotalClientStats() const {
  kvs::ClientStats sum;
  for (const WorkerRecord& record : Records()) AddStats(record.client_stats, &sum);
  return sum;
}

void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum) {
  // All of its members are counts.
  using Counts = std::array<uint64_t, sizeof(kvs::ClientStats) / sizeof(uint64_t)>;
  static_assert(std::is_trivially_copyable_v<kvs::ClientStats> && sizeof(Counts) == sizeof(kvs::ClientStats));
  Counts total = std::bit_cast<Counts>(*sum);
  const Counts added = std::bit_cast<Counts>(more);
  for (size_t i = 0; i < total.size(); ++i) total[i] += added[i];
  *sum = std::bit_cast<kvs::ClientStats>(total);
}

}  // namespace computenode
