// Announcer: a thread that announces a program once a second, whatever else the program does, and whether or not a
// metadata server lives.
//
// Thread safety: create and destroy from one thread; trouble() from any.
#ifndef METRICS_ANNOUNCER_H_
#define METRICS_ANNOUNCER_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "krcore/node.h"
#include "metrics/announcement.h"

namespace metrics {

class Announcer {
 public:
  // `tell` is called on the thread, once a second; it must not wait for longer than some 100 ms. `node` and `tell` must
  // outlive this.
  // kUnavailable: the system has no thread for it.
  static krcore::Result<std::unique_ptr<Announcer>> Start(krcore::Node& node, std::function<Announcement()> tell);
  // Ends within some 100 ms. The announcement goes with the node.
  ~Announcer();
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  // Why the last announcement failed; empty: it did not.
  std::string trouble() const;
  uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  Announcer(krcore::Node& node, std::function<Announcement()> tell) : node_(node), tell_(std::move(tell)) {}
  void Run();

  krcore::Node& node_;
  const std::function<Announcement()> tell_;
  std::atomic<uint64_t> failures_{0};  // a figure on its own
  mutable std::mutex mutex_;           // guards the rest
  std::condition_variable changed_;
  bool stop_ = false;
  std::string trouble_;
  std::thread thread_;
};

}  // namespace metrics

#endif  // METRICS_ANNOUNCER_H_
