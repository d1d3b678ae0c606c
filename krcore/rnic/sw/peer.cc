#include "krcore/rnic/sw/peer.h"

#include <cstring>

namespace krcore::rnic::sw {

uint32_t IndexOf(const DeviceAddress& address) {
  uint32_t index = 0;
  std::memcpy(&index, address.bytes, sizeof(index));
  return index;
}

DeviceAddress MakeAddress(NodeId node, uint32_t incarnation, uint32_t index) {
  DeviceAddress address;
  address.node = node;
  address.incarnation = incarnation;
  std::memcpy(address.bytes, &index, sizeof(index));
  return address;
}

Peer::Peer(Fabric* fabric, uint32_t index, uint32_t incarnation, std::shared_ptr<Mapping> segment)
    : fabric_(fabric),
      index_(index),
      incarnation_(incarnation),
      node_(fabric->control().devices[index].node.load(std::memory_order_relaxed)),
      segment_(std::move(segment)),
      tables_(reinterpret_cast<DeviceSegment*>(segment_->addr())),
      life_(&fabric->control().devices[index].life),
      alive_word_(LifeWord(incarnation, Life::kAlive)) {}

bool Peer::Translate(uint32_t key, Translation* out) {
  if (key == 0) return false;
  const MrEntry& entry = tables_->mrs[MrIndex(key)];
  if (entry.key.load(std::memory_order_acquire) != key) return false;
  const uint32_t segment = entry.segment.load(std::memory_order_relaxed);
  const uint64_t serial = entry.serial.load(std::memory_order_relaxed);
  const uint64_t offset = entry.offset.load(std::memory_order_relaxed);
  out->base = entry.base.load(std::memory_order_relaxed);
  out->length = entry.length.load(std::memory_order_relaxed);
  out->rights = entry.rights.load(std::memory_order_relaxed);
  out->pd = entry.pd.load(std::memory_order_relaxed);
  // Unchanged after the fields: they belong to this key. Pairs with the owner's release store of the next key.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.key.load(std::memory_order_relaxed) != key || segment == kNoSegment) return false;
  const std::shared_ptr<Mapping> mapping = MapSegment(segment, serial);
  if (mapping == nullptr || offset > mapping->length() || out->length > mapping->length() - offset) return false;
  out->peer = this;
  out->key = key;
  out->live_key = &entry.key;
  out->delta = static_cast<int64_t>(reinterpret_cast<uint64_t>(mapping->addr()) + offset - out->base);
  out->mapping = mapping;
  out->owner = shared_from_this();
  return true;
}

std::shared_ptr<Mapping> Peer::MapSegment(uint32_t segment, uint64_t serial) {
  if (segment >= kMaxSegments) return nullptr;
  const std::lock_guard lock(mutex_);
  Mapped& mapped = segments_[segment];
  if (mapped.mapping != nullptr && mapped.serial == serial) return mapped.mapping;
  const SegmentEntry& entry = tables_->segments[segment];
  if (entry.serial.load(std::memory_order_acquire) != serial) return nullptr;
  uint64_t words[kSuffixBytes / 8];
  for (size_t i = 0; i < std::size(words); ++i) words[i] = entry.suffix[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.serial.load(std::memory_order_relaxed) != serial) return nullptr;
  char suffix[kSuffixBytes + 1] = {};
  std::memcpy(suffix, words, kSuffixBytes);
  auto opened = fabric_->backing().Open(suffix);
  if (!opened.ok()) return nullptr;
  mapped.serial = serial;
  mapped.mapping = *std::move(opened);
  return mapped.mapping;
}

Result<std::shared_ptr<Peer>> PeerCache::Get(const DeviceAddress& address) {
  const uint32_t index = IndexOf(address);
  if (index >= kMaxDevices) return Status(StatusCode::kNotFound, "not the address of a device of this fabric");
  const std::lock_guard lock(mutex_);
  const auto gone = [&] {
    return Status(StatusCode::kNotFound, "node " + std::to_string(address.node) + " (incarnation " +
                                             std::to_string(address.incarnation) + ") has no living device on fabric " +
                                             fabric_->name());
  };
  if (!fabric_->ConfirmAlive(index, address.incarnation)) return gone();
  const auto found = peers_.find(index);
  if (found != peers_.end() && found->second->incarnation() == address.incarnation) return found->second;
  auto segment = fabric_->backing().Open(Fabric::SegmentSuffix(index, address.incarnation, 0));
  if (!segment.ok()) return fabric_->ConfirmAlive(index, address.incarnation) ? segment.status() : gone();
  auto peer = std::make_shared<Peer>(fabric_, index, address.incarnation, *std::move(segment));
  peers_[index] = peer;
  return peer;
}

}  // namespace krcore::rnic::sw
