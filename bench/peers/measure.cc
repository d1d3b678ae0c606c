#include "bench/peers/measure.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <thread>

#include "krcore/clock.h"

namespace peers {
namespace {

// What reading the clock before and after a request adds to its time.
double ClockNs() {
  static const double ns = [] {
    std::vector<double> gaps;
    for (int i = 0; i < 10'001; ++i) {
      const int64_t begin = krcore::RealClock()->NowNs();
      gaps.push_back(static_cast<double>(krcore::RealClock()->NowNs() - begin));
    }
    return Median(std::move(gaps));
  }();
  return ns;
}

// A thread for each trace; all begin when all have their sessions.
Outcome Run(Peer& peer, const std::vector<const Trace*>& traces, size_t value_bytes, const RunOptions& options,
            uint32_t in_flight, uint64_t* inserted) {
  std::vector<std::unique_ptr<Requests>> requests;
  for (const Trace* trace : traces) requests.push_back(std::make_unique<Requests>(*trace, value_bytes, options));
  std::barrier ready(static_cast<ptrdiff_t>(traces.size()));
  std::vector<std::thread> workers;
  for (auto& of_worker : requests) {
    workers.emplace_back([&] {
      const auto session = peer.NewSession();
      ready.arrive_and_wait();
      session->Run(*of_worker, in_flight);
      of_worker->End();
    });
  }
  for (std::thread& worker : workers) worker.join();

  Outcome outcome;
  ycsb::LatencyHistogram latencies;
  std::vector<double> rates;
  for (const auto& of_worker : requests) {
    const auto ns = static_cast<double>(std::max<int64_t>(of_worker->measured_ns(), 1));
    rates.push_back(static_cast<double>(of_worker->measured()) * 1e9 / ns);
    outcome.ops_per_s += rates.back();
    outcome.failures += of_worker->failures();
    if (outcome.first_failure.empty()) outcome.first_failure = of_worker->first_failure();
    latencies.Merge(of_worker->latencies());
    *inserted = std::max(*inserted, of_worker->inserted());
  }
  if (const double most = *std::max_element(rates.begin(), rates.end()); most > 0)
    outcome.fairness = *std::min_element(rates.begin(), rates.end()) / most;
  if (options.timed) {
    outcome.p50_ns = latencies.PercentileNs(50) - ClockNs();
    outcome.p99_ns = latencies.PercentileNs(99) - ClockNs();
  }
  return outcome;
}

}  // namespace

std::string MixAndDistribution(const Load& load) {
  const std::string name = MixName(load.mix);
  if (load.mix == Mix::kLoad) return name;
  return name + (load.mix == Mix::kD ? " latest" : load.zipf ? " Zipf" : " uniform");
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

const Trace& Bench::TraceOf(Mix mix, bool zipf, uint32_t worker) {
  std::unique_ptr<Trace>& trace = traces_[{mix, zipf && mix != Mix::kD, worker}];
  if (trace == nullptr) {
    trace = std::make_unique<Trace>(Trace::OfMix(mix, zipf, shape_.records, shape_.key_bytes, options_.trace_length,
                                                 options_.seed, worker, kMaxWorkers));
  }
  return *trace;
}

Outcome Bench::LoadAll(Peer& peer, uint32_t workers, uint32_t in_flight) {
  std::vector<std::unique_ptr<Trace>> parts;
  std::vector<const Trace*> traces;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    parts.push_back(std::make_unique<Trace>(Trace::OfLoad(shape_.records, shape_.key_bytes, worker, workers)));
    traces.push_back(parts.back().get());
  }
  first_new_[&peer] = shape_.records;
  uint64_t ignored = 0;
  return Run(peer, traces, shape_.value_bytes, {}, in_flight, &ignored);
}

Outcome Bench::RunSlice(Peer& peer, const Load& load) {
  std::vector<const Trace*> traces;
  for (uint32_t worker = 0; worker < load.workers; ++worker) traces.push_back(&TraceOf(load.mix, load.zipf, worker));
  uint64_t& first_new = first_new_[&peer];
  const int64_t warm_up_ns = load.mix == Mix::kD ? options_.warm_up_ns / 5 : options_.warm_up_ns;
  const RunOptions options{.warm_up_ns = warm_up_ns,
                           .measure_ns = options_.measure_ns,
                           .timed = load.timed,
                           .first_new = first_new,
                           .most_new = kMostNewOfSlice,
                           // Somewhere else each time, so that a short slice is not always the same requests.
                           .start = ycsb::Mix64(options_.seed + slices_++)};
  uint64_t inserted = 0;
  const Outcome outcome = Run(peer, traces, shape_.value_bytes, options, load.in_flight, &inserted);
  first_new += inserted * kMaxWorkers;
  return outcome;
}

std::string Number(const char* format, double value) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace peers
