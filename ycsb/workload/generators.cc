#include "ycsb/workload/generators.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace ycsb {
namespace {

constexpr uint64_t kSummedTerms = 1000;

}  // namespace

double Zeta(uint64_t n, double theta) {
  const uint64_t summed = n < kSummedTerms ? n : kSummedTerms - 1;
  double sum = 0;
  for (uint64_t i = summed; i > 0; --i) sum += std::pow(static_cast<double>(i), -theta);
  if (summed == n) return sum;
  // Euler-Maclaurin over i in [kSummedTerms, n] of f(i) = i^-theta; the next term is below 1e-16.
  const double a = static_cast<double>(kSummedTerms);
  const double b = static_cast<double>(n);
  const auto f = [theta](double x) { return std::pow(x, -theta); };
  const auto first_derivative = [&](double x) { return -theta * f(x) / x; };
  const auto third_derivative = [&](double x) { return -theta * (theta + 1) * (theta + 2) * f(x) / (x * x * x); };
  const double integral = theta == 1 ? std::log(b / a) : (b * f(b) - a * f(a)) / (1 - theta);
  return sum + integral + (f(a) + f(b)) / 2 + (first_derivative(b) - first_derivative(a)) / 12 -
         (third_derivative(b) - third_derivative(a)) / 720;
}

Zipfian::Zipfian(uint64_t items, double theta)
    : items_(items), theta_(theta), alpha_(1 / (1 - theta)), zeta_two_(Zeta(2, theta)), zeta_(Zeta(items, theta)) {
  assert(items > 0 && theta > 0 && theta < 1);
  Prepare();
}

void Zipfian::Prepare() {
  eta_ = (1 - std::pow(2.0 / static_cast<double>(items_), 1 - theta_)) / (1 - zeta_two_ / zeta_);
  second_ = 1 + std::pow(0.5, theta_);
}

void Zipfian::GrowTo(uint64_t items) {
  if (items <= items_) return;
  for (uint64_t i = items_ + 1; i <= items; ++i) zeta_ += std::pow(static_cast<double>(i), -theta_);
  items_ = items;
  Prepare();
}

uint64_t Zipfian::Next(Random& random) const {
  const double u = random.NextDouble();
  const double scaled = u * zeta_;
  if (scaled < 1 || items_ == 1) return 0;
  if (scaled < second_ || items_ == 2) return 1;
  const double rank = static_cast<double>(items_) * std::pow(eta_ * u - eta_ + 1, alpha_);
  const auto whole = static_cast<uint64_t>(rank);
  return whole < items_ ? whole : items_ - 1;  // rounding, at u just below 1
}

double Zipfian::Probability(uint64_t rank) const { return std::pow(static_cast<double>(rank + 1), -theta_) / zeta_; }

size_t RecordLength::Next(Random& random) const {
  if (min_ == max_) return fields_ * max_;
  size_t length = fields_ * min_;
  for (uint64_t i = 0; i < fields_; ++i) length += short_ ? short_->Next(random) : random.Below(max_ - min_ + 1);
  return length;
}

double RecordLength::mean() const {
  double mean = static_cast<double>(min_ + max_) / 2;
  if (short_) {
    mean = static_cast<double>(min_);
    for (uint64_t rank = 1; rank < short_->items(); ++rank)
      mean += static_cast<double>(rank) * short_->Probability(rank);
  }
  return static_cast<double>(fields_) * mean;
}

AcknowledgedCounter::AcknowledgedCounter(uint64_t first, uint64_t window)
    : window_(window), acknowledged_(new std::atomic<uint8_t>[window]()), next_(first), limit_(first) {
  assert((window & (window - 1)) == 0);
}

void AcknowledgedCounter::Acknowledge(uint64_t number) {
  if (number - limit_.load(std::memory_order_acquire) >= window_) return;
  // Sequentially consistent with the flag below: either this thread finds the flag free, or its holder sees the slot.
  Slot(number).store(1, std::memory_order_seq_cst);
  do {
    if (advancing_.test_and_set(std::memory_order_seq_cst)) return;
    uint64_t limit = limit_.load(std::memory_order_relaxed);
    while (Slot(limit).load(std::memory_order_seq_cst) == 1) {
      Slot(limit).store(0, std::memory_order_relaxed);
      limit_.store(++limit, std::memory_order_release);
    }
    advancing_.clear(std::memory_order_seq_cst);
  } while (Slot(limit_.load(std::memory_order_relaxed)).load(std::memory_order_seq_cst) == 1);
}

KeyChooser::KeyChooser(const Workload& workload, const AcknowledgedCounter& inserted)
    : distribution_(workload.distribution), own_(workload.own_records()), inserted_(&inserted) {
  switch (distribution_) {
    case Distribution::kZipfian: {
      // As in YCSB, the space has room for the inserts to come (twice as many as expected), so that the popular records
      // stay the same while it fills. A rank that falls on a record that is not there yet is drawn again.
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
