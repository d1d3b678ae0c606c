// The metadata of peers that a node has looked up, and of those that its host has.
#ifndef KRCORE_PEERS_PEER_DIRECTORY_H_
#define KRCORE_PEERS_PEER_DIRECTORY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/peers/meta_client.h"
#include "krcore/peers/peer.h"
#include "krcore/rnic.h"

namespace krcore::peers {

// Plain data without padding, as stored in the host's memory.
struct HostRecord {
  rnic::DeviceAddress address;
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  uint32_t sequence = 0;       // of the record
  int64_t lease_until_ns = 0;  // CLOCK_MONOTONIC, the host's
  uint32_t region_count = 0;
  uint32_t reserved = 0;
  std::array<RemoteRegion, kMaxRegionsPerNode> regions;
};
static_assert(std::has_unique_object_representations_v<HostRecord>);

// HostCache: what the processes of a host have looked up of their peers, in memory that they share. A new process finds
// the metadata of every peer that another one uses, and one lookup renews a lease for all.
//
// The node id modulo the number of entries chooses the entry; a record displaces the one that was there. An entry is
// plain words and their checksum. Writers do not exclude each other, and may be killed in the middle: words of two
// writers, or of an unfinished write, have no valid checksum and count as empty. An entry is what *one* lookup found,
// with the lease that began with it. So it is as good as that lookup, in whatever order entries were overwritten, and
// the rules of leases hold for it as for lookups (docs/krcore.md).
//
// Thread safety: any thread of any process may call.
class HostCache {
 public:
  // `memory`: rnic::Device::HostMemory. It may be empty; then nothing is ever found.
  explicit HostCache(std::span<std::byte> memory);

  size_t capacity() const { return entries_.size(); }
  // Returns what was looked up last, if its lease has not run out at `now_ns`.
  std::optional<HostRecord> Find(NodeId node, int64_t now_ns) const;
  void Put(const HostRecord& record);
  // Forgets what the cache has of `node`, so that the next user looks it up.
  void Drop(NodeId node);

 private:
  static constexpr size_t kWords = sizeof(HostRecord) / sizeof(uint64_t);
  struct alignas(64) Entry {
    std::atomic<uint64_t> checksum;  // 0: nothing is there
    std::array<std::atomic<uint64_t>, kWords> words;
  };
  Entry* EntryOf(NodeId node) const { return entries_.empty() ? nullptr : &entries_[node % entries_.size()]; }
  static bool Read(const Entry& entry, HostRecord* record, uint64_t* checksum);

  const std::span<Entry> entries_;
};

// PeerDirectory: the node-wide cache of DC metadata that makes qconnect cheap. It is asked before the host's cache.
//
// Thread safety: any thread may call; the mutex is not held across a verb. Control path only.
class PeerDirectory {
 public:
  // share_host: whether to use what the host's processes share.
  PeerDirectory(rnic::Device& device, MetaClient& meta, Clock& clock, bool share_host)
      : device_(device), meta_(meta), clock_(clock), share_host_(share_host), host_(device.HostMemory()) {}

  // Returns a peer's cached metadata: the node's, or the host's if its lease has not run out; null if there is none.
  std::shared_ptr<const Peer> Cached(NodeId node);
  // Looks the peer up at the metadata server and caches the result. kNotFound: no record. kUnavailable: its record is
  // of a dead incarnation (where that is asked over the network, perhaps not if it lived a second ago), or there is no
  // metadata server.
  Result<std::shared_ptr<const Peer>> Refresh(NodeId node, Deadline deadline);
  struct Renewed {
    std::shared_ptr<const Peer> peer;  // to use from now on; null: that incarnation is gone
    bool looked_up = false;            // ... by this call; otherwise another thread or process of the host had done it
    bool extended = false;             // without a lookup, because no metadata server answered
  };
  // For a peer whose lease has run out at `now_ns` (on Clock::CoarseNowNs) or is due for renewal: looks its record up
  // again. There is one lookup for the whole node and, except for processes that look up at the same moment, for the
  // host. The returned peer has a lease that has not run out. Waits for a metadata server and the fabric, some
  // milliseconds at most; while the lease lasts, waits for no other thread.
  Renewed Renew(const std::shared_ptr<const Peer>& peer, int64_t now_ns);
  // Forgets `peer` unless it has been refreshed since, so that the next qconnect anywhere on the node looks it up anew.
  void Invalidate(const std::shared_ptr<const Peer>& peer);
  // Forgets what the host's processes know of `node`, which is one of them and has published itself anew, even if it
  // shares nothing: otherwise their leases would let them use its old record for a while.
  void ForgetOnHost(NodeId node) { host_.Drop(node); }

 private:
  // How long before its end a lease is renewed.
  int64_t RenewAheadNs() const { return std::max<int64_t>(meta_.mr_lease_ns() / 4, 0); }
  // Makes `record`, with its lease, the cached metadata of its node unless the cached one is newer.
  Result<std::shared_ptr<const Peer>> Use(const HostRecord& record);
  // Returns the host's metadata of `node`. Null: there is none whose lease lasts longer than `now_ns`.
  std::shared_ptr<const Peer> FromHost(NodeId node, int64_t now_ns);
  std::shared_ptr<const Peer> Own(NodeId node);
  bool IsDead(const rnic::DeviceAddress& address, Deadline deadline);

  struct Alive {
    uint32_t incarnation;
    int64_t asked_ns;
  };
  rnic::Device& device_;
  MetaClient& meta_;
  Clock& clock_;
  const bool share_host_;
  HostCache host_;
  std::mutex renew_mutex_;  // one renewal at a time
  std::mutex mutex_;
  std::unordered_map<NodeId, std::shared_ptr<const Peer>> peers_;  // guarded by mutex_
  std::unordered_map<NodeId, Alive> alive_;                        // likewise; where liveness is asked over the network
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_PEER_DIRECTORY_H_
