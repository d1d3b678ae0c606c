// Load: what a compute node does, and the workers that do it. Service drives one. JobLoad: the operations of a
// workload, which threads share out. QueueLoad (queue_load.h): a queue of requests. RedisLoad (redis_load.h): clients
// of Redis.
//
// Thread safety: one thread at a time; Service has a lock for that. Open is called while the process has one thread.
#ifndef COMPUTENODE_LOAD_H_
#define COMPUTENODE_LOAD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "computenode/elastic/autoscaler.h"
#include "computenode/elastic/fleet.h"
#include "computenode/operation.h"
#include "computenode/options.h"
#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "metrics/families.h"
#include "ycsb/workload/job.h"

namespace computenode {

inline double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }
inline double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

class Load {
 public:
  explicit Load(const Options& options);
  virtual ~Load() = default;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Takes the addresses at which others reach it, if any.
  virtual Status Listen() { return {}; }
  // Makes the fleet; opens the store if the workers are threads.
  virtual Status Open() = 0;
  // Asks for the first workers; time counts from now on.
  Status AddFirstWorkers();
  // Returns whether the first workers are able to serve, as far as the load waits for that.
  virtual krcore::Result<bool> Ready() { return true; }
  // Called when they are: the load begins.
  virtual void Begin() {}
  // Returns when Tend is to be called next.
  virtual int64_t WakeNs(int64_t now_ns) const = 0;
  virtual void Tend(int64_t now_ns) = 0;
  // Returns why the load is over; null: it goes on. `commanded`: somebody may still ask for workers.
  virtual const char* End(int64_t now_ns, bool commanded) = 0;
  // From now on no more operations are begun. Workers are to be retired then.
  virtual void Stop() {}

  Fleet& fleet() const { return *fleet_; }
  // Sets how many workers there should be from now on, and tells it.
  void SetWorkers(uint32_t count, const char* why);
  // Returns whether something other than the user decides how many there are.
  bool scaled() const { return scaler_ && !options_.elastic->dry_run; }
  // Returns whether the fabric has another store than the one that threads have opened.
  bool store_is_gone() const { return store_ != nullptr && store_->gone(); }
  FleetView View() const;
  double SecondsSinceStart(int64_t now_ns) const;

  // Each adds what one of the events "ready", "status" and "summary" says of the load.
  virtual void AddReady(nlohmann::ordered_json* json) const = 0;
  virtual void AddStatus(nlohmann::ordered_json* json) = 0;
  // Called after the last worker has ended. `end`: as the summary has it. Returns whether all went well.
  virtual bool AddSummary(const std::string& end, nlohmann::ordered_json* json) = 0;
  // Returns why the load is not able to serve, besides what the fleet shows; empty: nothing.
  std::string trouble() const {
    return failing_ ? "workers cannot start: " + fleet_->FirstError().ToString() : std::string();
  }
  // Releases `lock`, which is held, before anything that takes long. `view`: of now.
  virtual void AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView& view, metrics::Families* families) = 0;

 protected:
  // Prints what threads of the fleet have noted since the last call. (Worker processes log theirs.)
  void PrintProblems();
  // Makes a fleet of threads, which do `job`; it must outlive them.
  Status OpenThreads(Job& job, uint32_t standby, bool rehearse);
  // Adds the workers that ever existed, with the parts of their starts, and how many seconds they lived altogether.
  void AddStarts(const FleetView& view, nlohmann::ordered_json* json) const;
  // Returns whether all first workers serve; or why one has ended.
  krcore::Result<bool> FirstWorkersServe();

  // Starts workers in place of those that have ended without being asked to. One that could not even start is replaced
  // after a growing delay. Sets gave_up_ after some.
  void ReplaceTheDead(int64_t now_ns);

  // ---- for loads that an autoscaler follows

  // Begins, if options_.elastic asks for it. The first decision is due an interval after `from_ns`.
  void StartScaling(int64_t from_ns);
  bool ScalingIsDue(int64_t now_ns) const {
    return scaler_ && now_ns >= decide_at_ns_ && now_ns >= replace_not_before_ns_;
  }
  // Returns what the next decision goes by, so far as it is known to the fleet.
  ScaleSample SampleFleet(int64_t now_ns) const;
  void Scale(const ScaleSample& sample);
  // Returns when the next decision is due, but at most `most_ns`.
  int64_t ScalingAtNs(int64_t most_ns) const { return scaler_ ? std::min(most_ns, decide_at_ns_) : most_ns; }

  const Options& options_;
  krcore::Clock& clock_;
  std::unique_ptr<kvs::Store> store_;       // for threads
  std::unique_ptr<ycsb::WorkloadJob> job_;  // for threads
  std::unique_ptr<Fleet> fleet_;
  uint32_t wanted_ = 0;
  uint64_t replaced_ = 0;
  bool gave_up_ = false;  // none serves, and none could start, several times in a row
  int64_t start_ns_;

 private:
  std::optional<Autoscaler> scaler_;
  int64_t decide_at_ns_ = 0;
  int64_t replace_not_before_ns_ = 0;  // after one that could not start
  bool failing_ = false;               // the last worker that was started could not start
};

class JobLoad final : public Load {
 public:
  using Load::Load;

  Status Open() override;
  void Begin() override { status_from_ns_ = start_ns_; }
  int64_t WakeNs(int64_t now_ns) const override;
  void Tend(int64_t now_ns) override;
  const char* End(int64_t now_ns, bool commanded) override;
  void Stop() override { job_->Stop(); }
  void AddReady(nlohmann::ordered_json* json) const override;
  void AddStatus(nlohmann::ordered_json* json) override;
  bool AddSummary(const std::string& end, nlohmann::ordered_json* json) override;
  void AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView& view, metrics::Families* families) override;

 private:
  int64_t status_from_ns_ = 0;
  uint64_t status_due_ = 0;  // operations that were due by then
  Status reported_error_;
};

}  // namespace computenode

#endif  // COMPUTENODE_LOAD_H_
