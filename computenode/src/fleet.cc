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

namespace {

// All of its members are counts.
template <typename Stats>
void AddCounts(const Stats& more, Stats* sum) {
  using Counts = std::array<uint64_t, sizeof(Stats) / sizeof(uint64_t)>;
  static_assert(std::is_trivially_copyable_v<Stats> && sizeof(Counts) == sizeof(Stats));
  Counts total = std::bit_cast<Counts>(*sum);
  const Counts added = std::bit_cast<Counts>(more);
  for (size_t i = 0; i < total.size(); ++i) total[i] += added[i];
  *sum = std::bit_cast<Stats>(total);
}

}  // namespace

void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum) { AddCounts(more, sum); }

std::optional<krcore::SoftwareDcStats> TotalSoftwareDc(const std::vector<WorkerRecord>& records) {
  krcore::SoftwareDcStats sum;
  for (const WorkerRecord& record : records) AddCounts(record.software_dc, &sum);
  if (sum.sent == 0) return {};
  return sum;
}

}  // namespace computenode
