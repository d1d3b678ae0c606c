#include "bench/peers/requests.h"

#include <algorithm>
#include <limits>

#include "cli/stop_signal.h"
#include "krcore/clock.h"
#include "ycsb/workload/generators.h"
#include "ycsb/workload/workload.h"

namespace peers {
namespace {

constexpr double kZipfianConstant = 0.99;
constexpr uint64_t kInsertWindow = uint64_t{1} << 16;

struct Proportions {
  double read, update, insert;  // the rest: read-modify-write
};

Proportions ProportionsOf(Mix mix) {
  switch (mix) {
    case Mix::kA: return {0.5, 0.5, 0};
    case Mix::kB: return {0.95, 0.05, 0};
    case Mix::kD: return {0.95, 0, 0.05};
    case Mix::kF: return {0.5, 0, 0};
    case Mix::kC:
    case Mix::kLoad: break;
  }
  return {1, 0, 0};
}

}  // namespace

const char* MixName(Mix mix) {
  static constexpr const char* kNames[] = {"load", "A", "B", "C", "D", "F"};
  return kNames[static_cast<size_t>(mix)];
}

void Trace::Add(Kind kind, uint64_t record) {
  Entry& entry = entries_.emplace_back();
  entry.kind = static_cast<uint8_t>(kind);
  entry.record = record;
  if (mix_ != Mix::kD) keys_.Format(record, entry.key.data());
}

Trace Trace::OfMix(Mix mix, bool zipf, uint64_t records, size_t key_bytes, size_t length, uint64_t seed,
                   uint32_t worker, uint32_t workers) {
  Trace trace(mix, records, key_bytes, worker, workers);
  trace.entries_.reserve(length);
  ycsb::Workload workload;
  workload.insert_count = workload.record_count = records;
  workload.distribution = zipf ? ycsb::Distribution::kZipfian : ycsb::Distribution::kUniform;
  workload.zipfian_constant = kZipfianConstant;
  const ycsb::AcknowledgedCounter loaded(records, /*window=*/64);
  ycsb::KeyChooser chooser(workload, loaded);
  const ycsb::Zipfian ranks(records, kZipfianConstant);
  ycsb::Random random(seed, worker);
  const Proportions wanted = ProportionsOf(mix);
  for (size_t i = 0; i < length; ++i) {
    const double draw = random.NextDouble();
    const Kind kind = draw < wanted.read                                   ? Kind::kGet
                      : draw < wanted.read + wanted.update                 ? Kind::kUpdate
                      : draw < wanted.read + wanted.update + wanted.insert ? Kind::kInsert
                                                                           : Kind::kReadModifyWrite;
    trace.Add(kind, mix == Mix::kD ? ranks.Next(random) : chooser.Next(random, i));
  }
  return trace;
}

Trace Trace::OfLoad(uint64_t records, size_t key_bytes, uint32_t worker, uint32_t workers) {
  Trace trace(Mix::kLoad, records, key_bytes, worker, workers);
  trace.entries_.reserve(records / workers + 1);
  for (uint64_t record = worker; record < records; record += workers) trace.Add(Kind::kInsert, record);
  return trace;
}

Requests::Requests(const Trace& trace, size_t value_bytes, const RunOptions& options)
    : trace_(trace),
      options_(options),
      value_bytes_(value_bytes),
      next_(options.start % std::max<size_t>(trace.entries_.size(), 1)),
      end_(trace.entries_.size()),
      ended_(trace.entries_.empty()) {
  for (Lane& lane : lanes_) lane.value.resize(value_bytes);
  if (trace.mix_ == Mix::kD) acknowledged_.emplace(0, kInsertWindow);
}

// The phases follow each other by the clock: warm-up, measured, ended. A trace that is run once is measured whole.
void Requests::Look() {
  const int64_t now_ns = krcore::RealClock()->NowNs();
  until_look_ = kLookEvery;
  if (!begun_) {
    begun_ = true;
    begin_ns_ = now_ns;
  }
  ended_ |= cli::StopSignal::Requested();
  if (ended_) return;
  if (!measuring_ && now_ns - begin_ns_ >= options_.warm_up_ns) {
    measuring_ = true;
    begin_ns_ = now_ns;
    done_before_ = done_;
  }
  if (!measuring_ || options_.measure_ns == 0) return;
  measured_ = done_ - done_before_;
  measured_ns_ = now_ns - begin_ns_;
  ended_ = measured_ns_ >= options_.measure_ns || (trace_.mix_ == Mix::kD && inserted_ >= options_.most_new);
}

void Requests::End() {
  if (options_.measure_ns != 0 || !begun_) return;
  measured_ = done_;
  measured_ns_ = krcore::RealClock()->NowNs() - begin_ns_;
}

// A read asks for the youngest records, as far as this worker's inserts are acknowledged; beyond them, for loaded ones.
void Requests::ChooseLatest(const Trace::Entry& entry, Lane& lane) {
  const uint64_t acknowledged = acknowledged_->last() + 1;
  uint64_t number = 0;
  if (lane.request.verb == Verb::kInsert) {
    number = lane.insert = acknowledged_->Next();
    inserted_ = number + 1;
  } else if (entry.record < acknowledged) {
    number = acknowledged - 1 - entry.record;
  } else {
    lane.request.record = trace_.records_ - 1 - std::min(entry.record - acknowledged, trace_.records_ - 1);
    number = std::numeric_limits<uint64_t>::max();
  }
  if (number != std::numeric_limits<uint64_t>::max()) {
    lane.request.record = options_.first_new + number * trace_.workers_ + trace_.worker_;
  }
  trace_.keys_.Format(lane.request.record, lane.key.data());
  lane.request.key = {lane.key.data(), trace_.keys_.key_bytes()};
}

void Requests::Fail(const Lane& lane, std::string_view value, bool answered) {
  if (failures_++ != 0) return;
  static constexpr const char* kVerbs[] = {"Get", "Update", "Insert"};
  first_failure_ = std::string(kVerbs[static_cast<size_t>(lane.request.verb)]) + " of record " +
                   std::to_string(lane.request.record) + ", key " + std::string(lane.request.key) + ": " +
                   (answered ? ycsb::ExplainMismatch(lane.request.record, value, value_bytes_) : "it failed");
}

}  // namespace peers
