// RedisLoad: the load is what clients of Redis ask for. Workers are threads that serve connections (redis/front_end.h);
// an autoscaler or commands decide how many there are. docs/operating.md.
//
// Thread safety: as Load's.
#ifndef COMPUTENODE_REDIS_LOAD_H_
#define COMPUTENODE_REDIS_LOAD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "computenode/front_end/front_end.h"
#include "computenode/load.h"

namespace computenode {

class RedisLoad final : public Load {
 public:
  using Load::Load;
  ~RedisLoad() override { fleet_.reset(); }  // its workers serve the front end

  Status Listen() override;
  Status Open() override;
  krcore::Result<bool> Ready() override { return FirstWorkersServe(); }
  void Begin() override;
  int64_t WakeNs(int64_t now_ns) const override;
  void Tend(int64_t now_ns) override;
  const char* End(int64_t, bool) override { return gave_up_ ? "workers cannot start" : nullptr; }
  void Stop() override { front_end_->Stop(); }
  void AddReady(nlohmann::ordered_json* json) const override;
  void AddStatus(nlohmann::ordered_json* json) override;
  bool AddSummary(const std::string& end, nlohmann::ordered_json* json) override;
  void AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView& view, metrics::Families* families) override;

 private:
  std::unique_ptr<redis::FrontEnd> front_end_;
  int64_t window_from_ns_ = 0;  // between decisions of the autoscaler
  redis::FrontEndCounts window_counts_;
  int64_t status_from_ns_ = 0;
  redis::FrontEndCounts status_counts_;
};

}  // namespace computenode

#endif  // COMPUTENODE_REDIS_LOAD_H_
