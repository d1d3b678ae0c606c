// A device as its initiators see it: its life word, its tables, and the segments of it that this process has
// mapped. One Peer per (device of this process, remote incarnation), shared by Qps and address handles.
//
// Thread safety: all methods may be called from any thread.
#ifndef KRCORE_RNIC_SW_PEER_H_
#define KRCORE_RNIC_SW_PEER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/fabric.h"

namespace krcore::rnic::sw {

// One remote MR as resolved from its key: where it is mapped here, and what the owner said of it.
struct alignas(64) Translation {
  const void* peer = nullptr;  // the Peer; null: empty
  uint32_t key = 0;
  uint32_t rights = 0;
  const std::atomic<uint32_t>* live_key = nullptr;  // MrEntry::key; another value than `key`: destroyed
  uint64_t base = 0;
  uint64_t length = 0;
  int64_t delta = 0;  // remote address + delta = address here
  uint32_t pd = 0;
  std::shared_ptr<const Mapping> mapping;
  std::shared_ptr<const void> owner;  // keeps the Peer, and with it live_key
};

class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(Fabric* fabric, uint32_t index, uint32_t incarnation, std::shared_ptr<Mapping> segment);

  // One load; no system call. Someone has to have noticed a death: see ConfirmAlive.
  bool Alive() const { return life_->load(std::memory_order_acquire) == alive_word_; }
  bool ConfirmAlive() const { return fabric_->ConfirmAlive(index_, incarnation_); }
  uint32_t index() const { return index_; }
  uint32_t incarnation() const { return incarnation_; }
  NodeId node() const { return node_; }
  DeviceSegment& tables() const { return *tables_; }

  // Fills `out` from the key; false if there is no such MR, or it is private memory.
  bool Translate(uint32_t key, Translation* out);
  // Maps one of the peer's segments; null if it is gone.
  std::shared_ptr<Mapping> MapSegment(uint32_t segment, uint64_t serial);

 private:
  Fabric* const fabric_;
  const uint32_t index_, incarnation_;
  NodeId node_;
  const std::shared_ptr<Mapping> segment_;
  DeviceSegment* const tables_;
  const std::atomic<uint64_t>* const life_;
  const uint64_t alive_word_;
  std::mutex mutex_;
  struct Mapped {
    uint64_t serial = 0;
    std::shared_ptr<Mapping> mapping;
  };
  std::unordered_map<uint32_t, Mapped> segments_;  // by index in the peer's segment table
};

// The Peers of one Device.
class PeerCache {
 public:
  explicit PeerCache(Fabric* fabric) : fabric_(fabric) {}
  // kNotFound: no such living device.
  Result<std::shared_ptr<Peer>> Get(const DeviceAddress& address);

 private:
  Fabric* const fabric_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<Peer>> peers_;  // by device index; the latest incarnation asked for
};

uint32_t IndexOf(const DeviceAddress& address);
DeviceAddress MakeAddress(NodeId node, uint32_t incarnation, uint32_t index);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_PEER_H_
