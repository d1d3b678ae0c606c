#include "metrics/announcement.h"

#include <arpa/inet.h>
#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <span>
#include <utility>

#include "krcore/clock.h"
#include "krcore/resources.h"

namespace metrics {
namespace {

using krcore::Deadline;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

// Places below this one are those of memory nodes, by id.
constexpr uint32_t kFirstShared = krcore::kMaxMemoryNode + 1;
constexpr std::array<uint8_t, 12> kMappedV4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::string PlaceName(uint32_t place) { return "surge-" + std::to_string(place); }

constexpr std::chrono::milliseconds kPeriod(1'000);
constexpr int64_t kPatienceNs = 100'000'000;

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kMemory: return "memory";
    case Role::kMetadata: return "metadata";
    case Role::kCompute: return "compute";
  }
  return "unknown";
}

const char* StateName(State state) {
  switch (state) {
    case State::kStarting: return "starting";
    case State::kServing: return "serving";
    case State::kDraining: return "draining";
    case State::kDrained: return "drained";
    case State::kTroubled: return "troubled";
  }
  return "unknown";
}

void Announcement::set_metrics(const cli::Address& listening) {
  const cli::Address where = ReachableAddress(listening);
  port = where.port;
  if (where.v6) {
    inet_pton(AF_INET6, where.host.c_str(), address.data());
    return;
  }
  std::copy(kMappedV4.begin(), kMappedV4.end(), address.begin());
  inet_pton(AF_INET, where.host.c_str(), address.data() + kMappedV4.size());
}

std::string Announcement::metrics() const {
  if (port == 0) return "";
  const bool v6 = !std::equal(kMappedV4.begin(), kMappedV4.end(), address.begin());
  std::array<char, INET6_ADDRSTRLEN> host{};
  inet_ntop(v6 ? AF_INET6 : AF_INET, v6 ? address.data() : address.data() + kMappedV4.size(), host.data(), host.size());
  return cli::Address{host.data(), port, v6}.ToString();
}

int64_t UnixNowNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

AnnouncementWriter::AnnouncementWriter(krcore::Node& node)
    : node_(node), place_(node.id() < kFirstShared ? node.id() : kFirstShared + node.id() % (kPlaces - kFirstShared)) {}

Status AnnouncementWriter::Write(Announcement announcement, Deadline deadline) {
  announcement.node = node_.id();
  announcement.incarnation = node_.incarnation();
  announcement.updated_ns = UnixNowNs();
  const auto bytes = std::as_bytes(std::span(&announcement, 1));
  for (uint32_t tried = 0; tried < kPlaces - kFirstShared; ++tried) {
    Status status = node_.PublishService(PlaceName(place_), bytes, deadline);
    if (!(status == StatusCode::kExists) || place_ < kFirstShared) return status;
    place_ = kFirstShared + (place_ + 1 - kFirstShared) % (kPlaces - kFirstShared);
  }
  return {StatusCode::kOutOfMemory, "no place is free in the metadata servers for the announcement of another program"};
}

Result<std::vector<Announcement>> ReadAnnouncements(krcore::Node& node, Deadline deadline) {
  std::vector<Announcement> found;
  for (uint32_t place = 0; place < kPlaces; ++place) {
    const auto value = node.LookupService(PlaceName(place), deadline);
    if (!value.ok()) {
      // A problem with this one record is no reason to hide the others.
      if (value.status() == StatusCode::kNotFound || value.status() == StatusCode::kCorrupt) continue;
      return value.status();
    }
    Announcement announcement;
    if (value->size() != sizeof(announcement)) continue;
    std::memcpy(&announcement, value->data(), sizeof(announcement));
    if (announcement.magic == Announcement::kMagic) found.push_back(announcement);
  }
  return found;
}

krcore::Result<std::unique_ptr<Announcer>> Announcer::Start(krcore::Node& node, std::function<Announcement()> tell) {
  std::unique_ptr<Announcer> announcer(new Announcer(node, std::move(tell)));
  auto thread = krcore::StartServiceThread("announcer", [self = announcer.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  announcer->thread_ = *std::move(thread);
  return announcer;
}

Announcer::~Announcer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Announcer::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Announcer::Run() {
  AnnouncementWriter writer(node_);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const krcore::Status status = writer.Write(tell_(), krcore::Deadline::After(*krcore::RealClock(), kPatienceNs));
    std::string trouble = status.ok() ? "" : status.ToString();
    if (!status.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
    lock.lock();
    if (trouble.empty() != trouble_.empty()) {
      if (trouble.empty()) {
        LOG(INFO) << "announced at the metadata server again";
      } else {
        LOG(WARNING) << "not announced at a metadata server: " << trouble << "; trying again every second";
      }
    }
    trouble_ = std::move(trouble);
    changed_.wait_for(lock, kPeriod, [this] { return stop_; });
  }
}

}  // namespace metrics
