#include "computenode/operation.h"

#include <glog/logging.h>

#include <utility>

#include "krcore/baseline.h"

namespace computenode {

krcore::Status Operation::Listen(const Options& options, const metrics::Source& source) {
  if (!options.metrics) return {};
  auto exporter = metrics::Exporter::Start(*options.metrics, source);
  if (!exporter.ok()) return exporter.status();
  exporter_ = *std::move(exporter);
  LOG(INFO) << "metrics at " << exporter_->address().ToString();
  return {};
}

void Operation::Announce(const Options& options, std::function<metrics::Announcement()> tell) {
  if (exporter_ == nullptr) return;
  krcore::NodeOptions open;
  open.rnic = options.store.rnic;
  open.fabric = options.store.fabric;
  open.fabric_address = options.store.fabric_address;
  open.rnic_port = options.store.rnic_port;
  // Where its memory nodes are: those of verbs and lite are krcore's.
  auto node = krcore::OpenNode(options.store.control_plane == "kernel" ? "kernel" : "krcore", open);
  if (!node.ok()) {
    LOG(WARNING) << "not announced, surge status will not find it: " << node.status().ToString();
    return;
  }
  node_ = *std::move(node);
  auto announcer = metrics::Announcer::Start(*node_, [this, tell = std::move(tell)] {
    metrics::Announcement announcement = tell();
    announcement.set_metrics(exporter_->address());
    return announcement;
  });
  if (!announcer.ok()) {
    LOG(WARNING) << "not announced, surge status will not find it: " << announcer.status().ToString();
    return;
  }
  const std::lock_guard lock(mutex_);
  announcer_ = *std::move(announcer);
}

std::string Operation::trouble() const {
  const std::lock_guard lock(mutex_);
  return announcer_ == nullptr ? "" : announcer_->trouble();
}

void Operation::Stop() {
  {
    std::unique_lock lock(mutex_);
    const std::unique_ptr<metrics::Announcer> ending = std::move(announcer_);
    lock.unlock();  // its thread may just be asking for trouble
  }
  node_.reset();
  exporter_.reset();
}

}  // namespace computenode
