#include "kvs/table/address_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvs {
namespace {

// The median of five measurements, because a window in which the process was stopped says nothing.
int64_t Median(std::array<int64_t, 5> values) {
  std::nth_element(values.begin(), values.begin() + 2, values.end());
  return values[2];
}

}  // namespace

void AddressCache::SetSize(uint32_t entries) {
  sets_ = entries == 0 ? 0 : std::bit_ceil((entries + kWays - 1) / kWays);
  if (sets_ > 0) Warm();
}

void AddressCache::MakeTable() {
  if (table_ != nullptr || sets_ == 0) return;
  // Zeroed pages; those of fresh memory cost nothing until they are touched.
  memory_.reset(std::calloc(sets_ + 1, sizeof(Set)));
  if (memory_ == nullptr) return;
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  table_ = reinterpret_cast<Set*>((address + alignof(Set) - 1) & ~(alignof(Set) - 1));
}

void AddressCache::Store(uint64_t hash, Slot value) {
  if (value.length_units() == kLargeBlock && !value.free()) return;  // it takes more than one READ anyway
  if (table_ == nullptr) [[unlikely]] {
    MakeTable();
    if (table_ == nullptr) return;
  }
  auto& entries = table_[hash >> 20 & (sets_ - 1)].entries;
  for (auto& entry : entries) {
    if (entry.hash == hash) {
      entry.word = value.free() ? 0 : value.word();
      return;
    }
  }
  // The last entry goes. An entry that is asked for again moves forward, so keys met once do not drive out hot ones.
  if (!value.free()) entries.back() = {hash, value.word()};
}

void AddressCache::Warm() {
  phase_ = Phase::kWarming;
  speculating_ = learning_ = true;
  windows_ = 0;
  left_ = kWindow;
}

void AddressCache::Decide(bool on) {
  if (on != verdict_) {
    ++stats_.cache_switches;
    period_ = kFirstPeriod;
  } else {
    period_ = std::min(period_ * kPeriodGrowth, kLastPeriod);
  }
  verdict_ = on;
  phase_ = on ? Phase::kOn : Phase::kOff;
  speculating_ = learning_ = on;
  windows_ = 0;
  left_ = on ? kWindow : uint64_t{kWindow} * period_;
}

void AddressCache::EndWindow(int64_t now_ns) {
  // The cache is useful if it often knows something and is mostly right: stale entries cost bytes that others need.
  const uint32_t speculations = std::exchange(speculations_, 0);
  const bool useful = std::exchange(hits_, 0) * 2 >= speculations && speculations >= kWindow / 16;
  const int64_t elapsed_ns = now_ns - window_from_ns_;
  window_from_ns_ = now_ns;
  left_ = kWindow;
  switch (phase_) {
    case Phase::kWarming: phase_ = Phase::kTrial; return;
    case Phase::kTrial: {
      // Even windows are on, odd ones off.
      if (speculating_ && !useful) return Decide(false);
      trial_ns_[windows_] = elapsed_ns;
      speculating_ = !speculating_;
      if (++windows_ < kTrialWindows) return;
      std::array<int64_t, kTrialWindows / 2> on, off;
      for (uint32_t i = 0; i < kTrialWindows / 2; ++i) {
        on[i] = trial_ns_[2 * i];
        off[i] = trial_ns_[2 * i + 1];
      }
      // If the load waits for something else, both are equal, and less latency is better.
      return Decide(Median(on) <= Median(off) + Median(off) / 64);
    }
    case Phase::kOn:
      if (!useful) return Decide(false);
      if (++windows_ == period_) {
        phase_ = Phase::kTrial;
        windows_ = 0;
      }
      return;
    case Phase::kOff: return Warm();
  }
}

}  // namespace kvs
