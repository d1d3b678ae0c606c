// The metadata of peers that a node has looked up, and that which its host has.
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

// Plain data without padding, as it lies in the host's memory.
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

// HostCache: what the processes of a host have looked up of their peers, in memory that they share. So a new process
// finds the metadata of every peer that another one uses, and one lookup renews a lease for all.
//
// One entry for each node id modulo the number of entries; what does not fit displaces what was there. An entry is
// plain words and their checksum. Writers do not exclude each other, and may be killed in the middle: the words of two
// writers, or of half a one, have no valid checksum, and are as if nothing were there. An entry is what *one* lookup
// found and the lease that began with it; so the entry of any lookup is as good as that lookup, whatever overwrote what
// in which order, and what the rules of leases say of lookups holds (docs/krcore.md).
//
// Thread safety: from any thread of any process.
class HostCache {
 public:
  // Of rnic::Device::HostMemory: may be empty, then nothing is ever found.
  explicit HostCache(std::span<std::byte> memory);

  size_t capacity() const { return entries_.size(); }
  // What was looked up last, if its lease has not run out at `now_ns`.
  std::optional<HostRecord> Find(NodeId node, int64_t now_ns) const;
  void Put(const HostRecord& record);
  // Forgets what the cache has of `node`, so that the next to ask looks it up.
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

// PeerDirectory: the node-wide cache of DC metadata that makes qconnect cheap, in front of the host's.
//
// Thread safety: from any thread; the mutex is not held across a verb. Control path only.
class PeerDirectory {
 public:
  // share_host: whether to use what the host's processes share.
  PeerDirectory(rnic::Device& device, MetaClient& meta, Clock& clock, bool share_host)
      : device_(device), meta_(meta), clock_(clock), share_host_(share_host), host_(device.HostMemory()) {}

  // The cached metadata of a peer, the node's or, with a lease that has not run out, the host's; null if there is none.
  std::shared_ptr<const Peer> Cached(NodeId node);
  // Looks the peer up at the metadata server and caches what it found. kNotFound: no record. kUnavailable: its
  // record is of a dead incarnation (where that is asked over the network, perhaps not if it lived a second ago), or no
  // metadata server.
  Result<std::shared_ptr<const Peer>> Refresh(NodeId node, Deadline deadline);
  struct Renewed {
    std::shared_ptr<const Peer> peer;  // to be used from now on; null: that incarnation is gone
    bool looked_up = false;            // ... by this call; else another thread or process of the host had done it
    bool extended = false;             // without a lookup, because no metadata server answers
  };
  // For a peer whose lease is to be renewed, or has run out, at `now_ns`, on Clock::CoarseNowNs: looks its record up
  // again, once for the whole node and, but for processes that do so at the same moment, host. What is returned has a
  // lease that has not run out. Waits for a metadata server, and for the fabric, some milliseconds at most; while the
  // lease lasts, for no other thread.
  Renewed Renew(const std::shared_ptr<const Peer>& peer, int64_t now_ns);
  // Forgets `peer` unless it has been refreshed since, so that the next qconnect anywhere on the node looks anew.
  void Invalidate(const std::shared_ptr<const Peer>& peer);
  // Forgets what the host's processes know of `node`, which is one of them and has published itself anew, whether it
  // shares anything or not: leases would have them use what it said before for a while.
  void ForgetOnHost(NodeId node) { host_.Drop(node); }

 private:
  // A lease is renewed so long before it runs out.
  int64_t RenewAheadNs() const { return std::max<int64_t>(meta_.mr_lease_ns() / 4, 0); }
  // Makes `record`, with its lease, the cached metadata of its node unless that is newer.
  Result<std::shared_ptr<const Peer>> Use(const HostRecord& record);
  // The host's metadata of `node`. Null: there is none whose lease lasts longer than `now_ns`.
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
