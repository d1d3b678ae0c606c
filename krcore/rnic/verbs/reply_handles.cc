#include "krcore/rnic/verbs/reply_handles.h"

#include <algorithm>
#include <cstring>

#include "krcore/rnic/verbs/address_handle.h"

namespace krcore::rnic::verbs {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
// The network is asked for some seconds: who waits for that again and again has no time for others.
constexpr int64_t kAgainNs = 1'000'000'000;
constexpr size_t kIpv4At = 20, kIpv4SourceAt = kIpv4At + 12, kSourceGidAt = 8;

}  // namespace

std::optional<ibv_gid> SenderGid(const ibv_gid& own, std::span<const uint8_t, kGrhBytes> header) {
  ibv_gid gid{};
  if (std::equal(std::begin(kMappedPrefix), std::end(kMappedPrefix), own.raw)) {
    if (header[kIpv4At] >> 4 != 4) return {};
    std::memcpy(gid.raw, kMappedPrefix, sizeof(kMappedPrefix));
    std::memcpy(gid.raw + sizeof(kMappedPrefix), &header[kIpv4SourceAt], 4);
    return gid;
  }
  if (header[0] >> 4 != 6) return {};
  std::memcpy(gid.raw, &header[kSourceGidAt], sizeof(gid.raw));
  return gid;
}

ReplyHandles::~ReplyHandles() {
  for (const Handle& handle : handles_)
    if (handle.ah != nullptr) ibv_destroy_ah(handle.ah);
  for (const Handle& handle : retired_) ibv_destroy_ah(handle.ah);
}

ReplyHandles::Key ReplyHandles::KeyOf(const sdc_address& address) {
  Key key;
  std::memcpy(key.data(), address.bytes, key.size());
  return key;
}

ReplyHandles::Handle* ReplyHandles::Known(const Key& key, const UdPort& port) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  handles_.splice(handles_.begin(), handles_, found->second);
  handles_.front().used = port.sent();
  return &handles_.front();
}

ibv_ah* ReplyHandles::Find(const sdc_address& address, const UdPort& port) {
  const Handle* const handle = Known(KeyOf(address), port);
  return handle != nullptr ? handle->ah : nullptr;
}

ibv_ah* ReplyHandles::Get(const sdc_address& address, const UdPort& port) {
  const Key key = KeyOf(address);
  if (Known(key, port) == nullptr) {
    Retire(port);
    handles_.push_front({key, nullptr, port.sent(), INT64_MIN});
    by_key_[key] = handles_.begin();
  }
  Handle& handle = handles_.front();
  if (handle.ah != nullptr || clock_->NowNs() < handle.again_ns) return handle.ah;
  PortAddress to;
  std::memcpy(&to, address.bytes, sizeof(to));
  ibv_ah_attr attr = PathTo(*context_, to);
  handle.ah = ibv_create_ah(pd_, &attr);
  if (handle.ah == nullptr) handle.again_ns = clock_->NowNs() + kAgainNs;
  return handle.ah;
}

void ReplyHandles::Retire(const UdPort& port) {
  if (handles_.size() == limit_) {
    if (handles_.back().ah != nullptr) retired_.push_back(handles_.back());
    by_key_.erase(handles_.back().key);
    handles_.pop_back();
  }
  while (!retired_.empty() && retired_.front().used < port.done()) {
    ibv_destroy_ah(retired_.front().ah);
    retired_.pop_front();
  }
}

}  // namespace krcore::rnic::verbs
