#include "ycsb/key_chooser.h"

#include <algorithm>

namespace ycsb {

KeyChooser::KeyChooser(const Workload& workload, const AcknowledgedCounter& inserted)
    : distribution_(workload.distribution), own_(workload.own_records()), inserted_(&inserted) {
  switch (distribution_) {
    case Distribution::kZipfian: {
      // As YCSB: the space has room for the inserts to come (twice as many as expected), so that the popular records
      // stay the same while it fills; ranks that fall on a record that is not there yet are drawn again.
      const double expected_inserts = static_cast<double>(workload.operation_count) * workload.insert_proportion * 2.0;
      scrambled_.emplace(own_.count + static_cast<uint64_t>(expected_inserts), workload.zipfian_constant);
      break;
    }
    case Distribution::kLatest: latest_.emplace(0, inserted.last(), workload.zipfian_constant); break;
    case Distribution::kHotspot:
      hot_count_ = static_cast<uint64_t>(static_cast<double>(own_.count) * workload.hotspot_data_fraction);
      hot_count_ = std::clamp<uint64_t>(hot_count_, 1, own_.count);
      hot_operations_ = workload.hotspot_operation_fraction;
      break;
    case Distribution::kUniform:
    case Distribution::kSequential: break;
  }
}

uint64_t KeyChooser::Next(Random& random, uint64_t ticket) { return own_.At(NextOwn(random, ticket)); }

uint64_t KeyChooser::NextOwn(Random& random, uint64_t ticket) {
  switch (distribution_) {
    case Distribution::kUniform: break;
    case Distribution::kZipfian: {
      uint64_t own = scrambled_->Next(random);
      while (own > inserted_->last()) own = scrambled_->Next(random);
      return own;
    }
    case Distribution::kLatest: return latest_->Next(random, inserted_->last());
    case Distribution::kHotspot:
      if (hot_count_ == own_.count || random.NextDouble() < hot_operations_) return random.Below(hot_count_);
      return hot_count_ + random.Below(own_.count - hot_count_);
    case Distribution::kSequential: return ticket % own_.count;
  }
  return random.Below(own_.count);
}

uint64_t KeyChooser::Hottest() const {
  if (distribution_ == Distribution::kLatest) return own_.At(inserted_->last());
  if (distribution_ != Distribution::kZipfian) return own_.start;
  uint64_t rank = 0;
  while (scrambled_->ItemOfRank(rank) > inserted_->last()) ++rank;
  return own_.At(scrambled_->ItemOfRank(rank));
}

}  // namespace ycsb
