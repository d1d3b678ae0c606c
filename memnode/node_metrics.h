// NodeMetrics: what a memory node tells those who operate it: metrics, whether it is able to serve, and what it
// announces of itself. It reads what others count; the store's view of this node it reads one-sided, like everybody,
// once a second.
//
// Thread safety: any thread may ask; all else belongs to the main one.
#ifndef MEMNODE_NODE_METRICS_H_
#define MEMNODE_NODE_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "krcore/status.h"
#include "kvs/memory/survey.h"
#include "memnode/huge_page_collapser.h"
#include "memnode/memory_server.h"
#include "memnode/options.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"
#include "metrics/families.h"

namespace memnode {

class NodeMetrics final : public metrics::Source {
 public:
  explicit NodeMetrics(const Options& options);

  // From now on it serves; until Detach both stay. `collapser`: null where there is none.
  void Attach(MemoryServer& server, const HugePageCollapser* collapser);
  // It stops. Waits for who is just asking.
  void Detach();
  // How writing the node's record went.
  void NoteRefresh(const krcore::Status& status);
  // Whether the fabric is found by its name, as krcore::Node::CheckName has it.
  void NoteName(const krcore::Status& status);
  // Where it is to be reached, if it is.
  void set_address(const metrics::Address& address);

  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string Trouble() const override;

  // The main thread's: looks what the store's home says of this node. Waits for up to 100 ms.
  metrics::Announcement Tell();

 private:
  enum class Stage : uint8_t { kStarting, kServing, kStopping };
  void AddMemory(metrics::Families* families) const;
  void AddStore(metrics::Families* families) const;
  std::string TroubleLocked() const;

  const Options& options_;
  const int64_t started_ns_;
  mutable std::mutex mutex_;  // guards the rest
  Stage stage_ = Stage::kStarting;
  MemoryServer* server_ = nullptr;  // while it serves
  const HugePageCollapser* collapser_ = nullptr;
  krcore::Status refreshed_, name_;
  uint64_t refresh_failures_ = 0;
  std::optional<kvs::MemberState> member_;  // as the home had it last; kNone: it is no member
  kvs::HomeView home_;
  metrics::Announcement said_;

  std::unique_ptr<kvs::Survey> survey_;  // the main thread's
};

}  // namespace memnode

#endif  // MEMNODE_NODE_METRICS_H_
