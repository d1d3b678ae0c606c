#include "krcore/meta/server_list.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

namespace krcore::meta {

std::string BootstrapName(uint32_t index) { return "metaserver" + std::to_string(index); }

bool operator<(const Server& a, const Server& b) {
  const auto place = [](const Server& server) {
    return std::tuple(server.info.state == ServerState::kChoosing, server.info.serial, server.id());
  };
  return place(a) < place(b);
}

bool ServerList::AnyServing() const {
  return std::any_of(all.begin(), all.end(), [](const ServerPtr& server) { return server->serving(); });
}

bool ServerList::Contains(uint32_t server_id) const {
  return std::any_of(all.begin(), all.end(), [&](const ServerPtr& server) { return server->id() == server_id; });
}

std::vector<ServerPtr> ServerList::NearestFirst(NodeId self) const {
  std::vector<ServerPtr> serving;
  for (const ServerPtr& server : all)
    if (server->serving()) serving.push_back(server);
  if (serving.empty()) return serving;
  size_t near = self % serving.size();
  for (size_t i = 0; i < serving.size(); ++i)
    if (serving[i]->info.address.node == self) near = i;
  std::rotate(serving.begin(), serving.begin() + static_cast<ptrdiff_t>(near), serving.end());
  return serving;
}

namespace {

// Reads over the announcements that are made again when servers come and go meanwhile.
constexpr int kMaxCollects = 64;

using Announcements = std::array<std::vector<std::byte>, kMaxServers>;

// One after the other.
Result<Announcements> Collect(rnic::Device& device, Deadline deadline) {
  Announcements all;
  for (uint32_t i = 0; i < kMaxServers; ++i) {
    auto value = device.LookupRecord(BootstrapName(i), deadline);
    if (value.ok())
      all[i] = *std::move(value);
    else if (!(value.status() == StatusCode::kNotFound))
      return value.status();
  }
  return all;
}

// All of them as they stood at one moment. Twice the same shows that, since none returns to what it was.
Result<Announcements> Snapshot(rnic::Device& device, Deadline deadline) {
  auto announced = Collect(device, deadline);
  for (int collects = 1; announced.ok(); ++collects) {
    auto again = Collect(device, deadline);
    if (!again.ok() || *announced == *again) return again;
    if (collects == kMaxCollects) return Status(StatusCode::kUnavailable, "metadata servers come and go all the time");
    announced = std::move(again);
  }
  return announced;
}

// The server announced by `value`, unless it is withdrawn. *died: the process behind it is gone.
Result<ServerPtr> ServerOf(rnic::Device& device, const std::vector<std::byte>& value, const ServerList& known,
                           Deadline deadline, bool* died) {
  Bootstrap info;
  if (value.size() != sizeof(info)) return Status(StatusCode::kCorrupt, "malformed announcement of a metadata server");
  std::memcpy(&info, value.data(), sizeof(info));
  if (info.magic != kBootstrapMagic || !info.geometry.valid())
    return Status(StatusCode::kCorrupt, "the metadata server's announcement is of another version");
  if (info.state == ServerState::kWithdrawn) return ServerPtr();
  auto server = std::make_shared<Server>();
  server->info = info;
  server->target = {info.address, info.dct_num, info.dc_key};
  for (const ServerPtr& old : known.all)
    if (old->id() == server->id()) server->ah = old->ah;
  if (server->ah == nullptr) {
    auto ah = device.CreateAddressHandle(info.address);
    if (!ah.ok()) {
      *died = device.QueryPeer(info.address, deadline) == rnic::PeerState::kDead;
      return Status(StatusCode::kUnavailable, "metadata server: " + ah.status().ToString());
    }
    server->ah = *std::move(ah);
  }
  return ServerPtr(std::move(server));
}

}  // namespace

Result<ServerList> ReadServerList(rnic::Device& device, const ServerList& known, Deadline deadline) {
  ServerList list;
  for (int attempts = 0;; ++attempts) {
    auto announced = Snapshot(device, deadline);
    if (!announced.ok()) return announced.status();
    list.all.clear();
    bool died = false;
    Status failed;
    for (const std::vector<std::byte>& value : *announced) {
      if (value.empty()) continue;
      auto server = ServerOf(device, value, known, deadline, &died);
      if (!server.ok())
        failed = server.status();
      else if (*server != nullptr)
        list.all.push_back(*std::move(server));
    }
    if (failed.ok()) break;
    // Died since: another one may have come for it.
    if (!died || attempts == kMaxCollects) return failed;
  }
  std::sort(list.all.begin(), list.all.end(), [](const ServerPtr& a, const ServerPtr& b) { return *a < *b; });
  return list;
}

}  // namespace krcore::meta
