// The workers' side of the model: a queue of requests, first come first served, and the workers that take them. Two
// implementations of one interface: exact, request by request, and fluid, which treats requests as a liquid that
// workers drain, so that its cost does not depend on their number. What the fluid leaves out, waits due to chance while
// there are workers enough, MdnWaitNs gives.
#ifndef BENCH_SPIKE_MODEL_SERVERS_H_
#define BENCH_SPIKE_MODEL_SERVERS_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spike_model {

// Of durations in ns; weights need not be whole. Buckets are 1/64 of a power of two wide.
class Waits {
 public:
  void Add(double wait_ns, double weight);
  // What `percent` of the weight does not exceed, by the upper end of its bucket; 0 without weight.
  double Percentile(double percent) const;
  double ShareAbove(double wait_ns) const;  // of the weight; to a bucket's width
  double weight() const { return weight_; }
  double mean_ns() const { return weight_ == 0 ? 0 : sum_ / weight_; }
  double max_ns() const { return max_; }

 private:
  std::vector<double> buckets_;
  double weight_ = 0, sum_ = 0, max_ = 0;
};

// Requests that arrive in [from_ns, to_ns) are to have their waits in `waits`.
struct WaitWindow {
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  Waits waits;
};

class Servers {
 public:
  explicit Servers(std::vector<WaitWindow> windows) : windows_(std::move(windows)) {}
  virtual ~Servers() = default;

  // At now_ns(); `id` is of the caller's choice.
  virtual void Add(uint32_t id, double service_ns) = 0;
  virtual void SetService(uint32_t id, double service_ns) = 0;
  // It finishes the request that it has begun.
  virtual void Remove(uint32_t id) = 0;
  // The worker takes no request for this time.
  virtual void Stall(uint32_t id, double ns) = 0;

  // `count` requests arrive in [now_ns(), to_ns), at random times in it. To be called once for each such interval.
  virtual void Arrive(int64_t to_ns, double count) = 0;
  // Lets workers begin what they can before to_ns.
  virtual void Advance(int64_t to_ns) = 0;

  int64_t now_ns() const { return now_ns_; }
  double arrived() const { return arrived_; }
  double begun() const { return begun_; }  // requests taken by a worker
  virtual double backlog() const = 0;      // arrived and not taken
  virtual int64_t oldest_wait_ns() const = 0;
  // Share of the workers' time that was spent since the last call.
  double TakeUtilisation();
  const std::vector<WaitWindow>& windows() const { return windows_; }

 protected:
  void Record(double arrived_ns, double wait_ns, double weight);

  int64_t now_ns_ = 0;
  double arrived_ = 0, begun_ = 0;
  double busy_ns_ = 0, worker_ns_ = 0;  // since the last TakeUtilisation

 private:
  std::vector<WaitWindow> windows_;
};

// `limit_per_s`: the most that is served in a second, whatever the workers could do.
std::unique_ptr<Servers> MakeFluidServers(std::vector<WaitWindow> windows,
                                          double limit_per_s = std::numeric_limits<double>::infinity());
std::unique_ptr<Servers> MakeExactServers(std::vector<WaitWindow> windows, uint64_t seed);

// Probability that a request waits in M/M/n with `load` = arrival rate x service time (Erlang C).
double ErlangC(uint32_t n, double load);
// The wait that `percent` of the requests do not exceed in M/D/n: that of M/M/n, with half its tail, as deterministic
// service has half the mean wait (exact for n = 1 under heavy load, else an approximation).
double MdnWaitNs(uint32_t n, double service_ns, double utilisation, double percent);

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_SERVERS_H_
