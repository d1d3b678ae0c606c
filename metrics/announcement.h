// Announcement: what a program that belongs to a fabric says of itself once a second in the fabric's metadata servers.
// `surge status` finds it by the fabric's name alone, and reads it with one-sided verbs.
//
// There are kPlaces service names for it ("surge-0" and so on), each with one owner. A memory node's place is that of
// its id; all others look for one that is free or whose owner is dead.
#ifndef METRICS_ANNOUNCEMENT_H_
#define METRICS_ANNOUNCEMENT_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "metrics/exporter.h"

namespace metrics {

enum class Role : uint8_t { kMemory = 0, kMetadata = 1, kCompute = 2 };
enum class State : uint8_t { kStarting = 0, kServing = 1, kDraining = 2, kDrained = 3, kTroubled = 4 };
const char* RoleName(Role role);
const char* StateName(State state);

struct Announcement {
  static constexpr uint16_t kMagic = 0x5341;
  static constexpr uint16_t kHome = 1, kMetaServer = 2, kRemoved = 4;  // flags; kRemoved: of its mirrored pool

  uint16_t magic = kMagic;
  Role role = Role::kMemory;
  State state = State::kStarting;
  krcore::NodeId node = krcore::kNoNode;
  uint32_t incarnation = 0;
  uint32_t pid = 0;
  uint32_t started_s = 0;  // seconds since 1970
  uint16_t flags = 0;
  uint16_t port = 0;  // of the metrics; 0: there are none
  uint16_t workers_wanted = 0, workers_starting = 0, workers_serving = 0, workers_draining = 0;
  std::array<uint8_t, 16> address{};  // of the metrics; IPv4 as IPv6 maps it
  uint64_t operations = 0;            // of the store, done by its workers so far
  int64_t updated_ns = 0;             // since 1970

  void set_metrics(const cli::Address& listening);  // says where others reach it
  // Returns "HOST:PORT", or empty.
  std::string metrics() const;
};
static_assert(sizeof(Announcement) == krcore::kMaxServiceBytes);

int64_t UnixNowNs();

inline constexpr uint32_t kPlaces = 512;

// Writes the announcements of `node`, which must outlive it, into the place that it finds for it.
//
// Thread safety: one thread at a time.
class AnnouncementWriter {
 public:
  explicit AnnouncementWriter(krcore::Node& node);
  // Fills in who announces, and when. kUnavailable, kTimeout: no metadata server lives. kOutOfMemory: no place is free.
  krcore::Status Write(Announcement announcement, krcore::Deadline deadline);

 private:
  krcore::Node& node_;
  uint32_t place_;
};

// Returns all announcements, also those of nodes that have died since. kUnavailable: no metadata server lives.
krcore::Result<std::vector<Announcement>> ReadAnnouncements(krcore::Node& node, krcore::Deadline deadline);

// Announcer: a thread that announces a program once a second, whatever else the program does, and whether or not a
// metadata server lives.
//
// Thread safety: create and destroy from one thread; trouble() from any.
class Announcer {
 public:
  // `tell` is called on the thread, once a second; it must not wait for longer than some 100 ms. `node` and `tell` must
  // outlive this.
  // kUnavailable: the system has no thread for it.
  static krcore::Result<std::unique_ptr<Announcer>> Start(krcore::Node& node, std::function<Announcement()> tell);
  // Ends within some 100 ms. The announcement is removed with the node.
  ~Announcer();
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  // Returns why the last announcement failed; empty: it did not.
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

#endif  // METRICS_ANNOUNCEMENT_H_
