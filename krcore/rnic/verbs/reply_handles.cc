#include "krcore/rnic/verbs/reply_handles.h"

#include <algorithm>
#include <cstring>

#include "krcore/rnic/verbs/address_handle.h"

namespace krcore::rnic::verbs {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
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
  if (context_->inert()) return;
  for (const Handle& handle : handles_) ibv_destroy_ah(handle.ah);
  for (const Handle& handle : retired_) ibv_destroy_ah(handle.ah);
}

ibv_ah* ReplyHandles::Get(const sdc_address& address, const UdPort& port) {
  Key key;
  std::memcpy(key.data(), address.bytes, key.size());
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    handles_.splice(handles_.begin(), handles_, found->second);
    found->second->used = port.sent();
    return found->second->ah;
  }
  Retire(port);
  PortAddress to;
  std::memcpy(&to, address.bytes, sizeof(to));
  ibv_ah_attr attr = PathTo(*context_, to);
  ibv_ah* const ah = ibv_create_ah(pd_, &attr);
  if (ah == nullptr) return nullptr;
  handles_.push_front({key, ah, port.sent()});
  by_key_[key] = handles_.begin();
  return ah;
}

void ReplyHandles::Retire(const UdPort& port) {
  if (handles_.size() == limit_) {
    retired_.push_back(handles_.back());
    by_key_.erase(handles_.back().key);
    handles_.pop_back();
  }
  while (!retired_.empty() && retired_.front().used < port.done()) {
    ibv_destroy_ah(retired_.front().ah);
    retired_.pop_front();
  }
}

}  // namespace krcore::rnic::verbs
