#include "ycsb/key_chooser.h"

#include <algorithm>

namespace ycsb {

KeyChooser::KeyChooser(const Workload& workload, const AcknowledgedCounter& inserted)
    : distribution_(workload.distribution),
      first_(workload.insert_start),
      count_(workload.insert_count),
      inserted_(&inserted) {
  switch (distribution_) {
    case Distribution::kZipfian: {
      // As YCSB: the space has room for the inserts to come (twice as many as expected), so that the popular records
      // stay the same while it fills; ranks that fall on a record that is not there yet are drawn again.
      const double expected_inserts = static_cast<double>(workload.operation_count) * workload.insert_proportion * 2.0;
      scrambled_.emplace(count_ + static_cast<uint64_t>(expected_inserts), workload.zipfian_constant);
      break;
    }
    case Distribution::kLatest: latest_.emplace(first_, inserted.last(), workload.zipfian_constant); break;
    case Distribution::kHotspot:
      hot_count_ = static_cast<uint64_t>(static_cast<double>(count_) * workload.hotspot_data_fraction);
      hot_count_ = std::clamp<uint64_t>(hot_count_, 1, count_);
      hot_operations_ = workload.hotspot_operation_fraction;
      break;
    case Distribution::kUniform:
    case Distribution::kSequential: break;
  }
}

uint64_t KeyChooser::Next(Random& random, uint64_t ticket) {
  switch (distribution_) {
    case Distribution::kUniform: break;
    case Distribution::kZipfian: {
      uint64_t record = first_ + scrambled_->Next(random);
      while (record > inserted_->last()) record = first_ + scrambled_->Next(random);
      return record;
    }
    case Distribution::kLatest: return latest_->Next(random, inserted_->last());
    case Distribution::kHotspot:
      if (hot_count_ == count_ || random.NextDouble() < hot_operations_) return first_ + random.Below(hot_count_);
      return first_ + hot_count_ + random.Below(count_ - hot_count_);
    case Distribution::kSequential: return first_ + ticket % count_;
  }
  return first_ + random.Below(count_);
}

uint64_t KeyChooser::Hottest() const {
  if (distribution_ == Distribution::kLatest) return inserted_->last();
  if (distribution_ != Distribution::kZipfian) return first_;
  uint64_t rank = 0;
  while (first_ + scrambled_->ItemOfRank(rank) > inserted_->last()) ++rank;
  return first_ + scrambled_->ItemOfRank(rank);
}

}  // namespace ycsb
