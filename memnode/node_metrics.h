// NodeMetrics: what a memory node tells its operators: metrics, whether it is able to serve, and what it announces of
// itself. It reads what others count. Once a second it reads the store's view of this node, one-sided as everybody
// does.
//
// Thread safety: any thread may ask; everything else belongs to the main thread.
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
#include "memnode/memory_server.h"
#include "memnode/options.h"
#include "memnode/steward.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"
#include "metrics/families.h"

namespace memnode {

class NodeMetrics final : public metrics::Source {
 public:
  explicit NodeMetrics(const Options& options);

  // Call when the node begins to serve; both must stay until Detach. `steward`: null where there is none.
  void Attach(MemoryServer& server, const Steward* steward);
  // Call when the node stops serving. Waits for threads that are just asking.
  void Detach();
  // Records how writing the node's record went.
  void NoteRefresh(const krcore::Status& status);
  // Records whether the fabric is found by its name, as krcore::Node::CheckName has it.
  void NoteName(const krcore::Status& status);
  // Sets the address at which the node is reached, if it has one.
  void set_address(const cli::Address& address);

  std::string Collect() const override;
  std::string Trouble() const override;
  std::string Remark() const override;

  // For the main thread: reads what the store's home says of this node. Waits for up to 100 ms.
  metrics::Announcement Tell();

 private:
  enum class Stage : uint8_t { kStarting, kServing, kStopping };
  void AddMemory(metrics::Families* families) const;
  void AddStore(metrics::Families* families) const;
  void AddReplica(metrics::Families* families) const;
  void FindMember();
  std::string TroubleLocked() const;
  bool IsHomeLocked() const;

  const Options& options_;
  const int64_t started_ns_;
  mutable std::mutex mutex_;  // guards the rest
  Stage stage_ = Stage::kStarting;
  MemoryServer* server_ = nullptr;    // while it serves
  const Steward* steward_ = nullptr;  // where pools are mirrored
  krcore::Status refreshed_, name_;
  uint64_t refresh_failures_ = 0;
  // As the home had it last; kNone: it is no member. Where pools are mirrored, of its pool, if that is in use.
  std::optional<kvs::MemberState> member_;
  kvs::HomeView home_;
  metrics::Announcement said_;

  std::unique_ptr<kvs::Survey> survey_;  // used by the main thread only
};

}  // namespace memnode

#endif  // MEMNODE_NODE_METRICS_H_
