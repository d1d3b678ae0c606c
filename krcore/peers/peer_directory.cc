#include "krcore/peers/peer_directory.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "krcore/peers/rc_desk.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::peers {
namespace {

using Words = std::array<uint64_t, sizeof(HostRecord) / sizeof(uint64_t)>;
static_assert(sizeof(Words) == sizeof(HostRecord));

// Increment with every change of HostRecord: different builds that meet on a fabric must ignore each other's entries.
constexpr uint64_t kFormat = 1;

// Never 0.
uint64_t ChecksumOf(const Words& words) {
  return std::max<uint64_t>(XXH3_64bits_withSeed(words.data(), sizeof(words), kFormat << 16 | sizeof(words)), 1);
}

}  // namespace

HostCache::HostCache(std::span<std::byte> memory)
    : entries_(reinterpret_cast<Entry*>(memory.data()), memory.size() / sizeof(Entry)) {}

// Relaxed: nothing but the checksum says that the words belong together.
bool HostCache::Read(const Entry& entry, HostRecord* record, uint64_t* checksum) {
  *checksum = entry.checksum.load(std::memory_order_relaxed);
  if (*checksum == 0) return false;
  Words words;
  for (size_t i = 0; i < kWords; ++i) words[i] = entry.words[i].load(std::memory_order_relaxed);
  if (ChecksumOf(words) != *checksum) return false;
  *record = std::bit_cast<HostRecord>(words);
  return true;
}

std::optional<HostRecord> HostCache::Find(NodeId node, int64_t now_ns) const {
  const Entry* const entry = EntryOf(node);
  HostRecord record;
  uint64_t checksum = 0;
  if (entry == nullptr || !Read(*entry, &record, &checksum)) return std::nullopt;
  if (record.address.node != node || record.lease_until_ns <= now_ns) return std::nullopt;
  return record;
}

void HostCache::Put(const HostRecord& record) {
  Entry* const entry = EntryOf(record.address.node);
  if (entry == nullptr) return;
  const auto words = std::bit_cast<Words>(record);
  for (size_t i = 0; i < kWords; ++i) entry->words[i].store(words[i], std::memory_order_relaxed);
  entry->checksum.store(ChecksumOf(words), std::memory_order_relaxed);
}

void HostCache::Drop(NodeId node) {
  Entry* const entry = EntryOf(node);
  HostRecord record;
  uint64_t checksum = 0;
  if (entry == nullptr || !Read(*entry, &record, &checksum) || record.address.node != node) return;
  entry->checksum.compare_exchange_strong(checksum, 0, std::memory_order_relaxed);
}

// ---- the node's

namespace {

constexpr int64_t kRenewPatienceNs = 2'000'000;
// For an answer that takes two agents that have to wake up.
constexpr int64_t kSoftwareDcRenewPatienceNs = 20'000'000;
// How long an answer counts where liveness is asked over the network.
constexpr int64_t kAliveNs = 1'000'000'000;

// For lookups that raced: an older one must not overwrite a newer one.
bool SameTarget(const Peer& a, const Peer& b) {
  const auto same = [](const RemoteRegion& x, const RemoteRegion& y) {
    return x.addr == y.addr && x.length == y.length && x.rkey == y.rkey && x.tag == y.tag;
  };
  return a.target.address.incarnation == b.target.address.incarnation && a.target.dct_num == b.target.dct_num &&
         a.target.dc_key == b.target.dc_key && a.region_count == b.region_count && same(a.desk, b.desk) &&
         std::equal(a.regions.begin(), a.regions.begin() + a.region_count, b.regions.begin(), same);
}

}  // namespace

std::shared_ptr<const Peer> PeerDirectory::Own(NodeId node) {
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(node);
  return found == peers_.end() ? nullptr : found->second;
}

std::shared_ptr<const Peer> PeerDirectory::FromHost(NodeId node, int64_t now_ns) {
  if (!share_host_) return nullptr;
  const auto record = host_.Find(node, now_ns);
  if (!record) return nullptr;
  auto peer = Use(*record);
  if (peer.ok()) return *std::move(peer);
  host_.Drop(node);  // dead, as far as anybody can tell
  return nullptr;
}

std::shared_ptr<const Peer> PeerDirectory::Cached(NodeId node) {
  auto own = Own(node);
  return own != nullptr || !share_host_ ? own : FromHost(node, clock_.NowNs());
}

bool PeerDirectory::IsDead(const rnic::DeviceAddress& address, Deadline deadline) {
  const bool remembers = device_.caps().asks_over_network;
  const int64_t now_ns = clock_.NowNs();
  if (remembers) {
    const std::lock_guard lock(mutex_);
    const auto known = alive_.find(address.node);
    if (known != alive_.end() && known->second.incarnation == address.incarnation &&
        now_ns - known->second.asked_ns < kAliveNs)
      return false;
  }
  const rnic::PeerState state = device_.QueryPeer(address, deadline);
  if (remembers && state == rnic::PeerState::kAlive) {
    const std::lock_guard lock(mutex_);
    alive_[address.node] = {address.incarnation, now_ns};
  }
  return state == rnic::PeerState::kDead;
}

Result<std::shared_ptr<const Peer>> PeerDirectory::Refresh(NodeId node, Deadline deadline) {
  int64_t posted_ns = 0;
  auto found = meta_.Lookup(Key::Node(node), deadline, &posted_ns);
  if (!found.ok()) {
    if (found.status() == StatusCode::kNotFound)
      return Status(StatusCode::kNotFound, "node " + std::to_string(node) + " has not published itself");
    return found.status();
  }
  const NodePayload payload = found->node();
  if (found->kind != RecordKind::kNode || payload.region_count > kMaxRegionsPerNode)
    return Status(StatusCode::kCorrupt, "the record of node " + std::to_string(node) + " is not one of a node");
  HostRecord record;
  record.address = found->address();
  record.dc_key = payload.dc_key;
  record.dct_num = payload.dct_num;
  record.sequence = found->sequence;
  record.region_count = payload.region_count;
  std::copy_n(payload.regions, payload.region_count, record.regions.begin());
  // Counts from the posting of the READ: what it found may have been withdrawn right after.
  const int64_t lease_ns = meta_.mr_lease_ns();
  record.lease_until_ns = lease_ns > 0 ? posted_ns + lease_ns : INT64_MAX;
  if (IsDead(record.address, deadline))
    return Status(StatusCode::kUnavailable, "node " + std::to_string(node) + " (incarnation " +
                                                std::to_string(record.address.incarnation) + ") is dead");
  if (share_host_ && lease_ns > 0) host_.Put(record);
  return Use(record);
}

Result<std::shared_ptr<const Peer>> PeerDirectory::Use(const HostRecord& record) {
  auto peer = std::make_shared<Peer>();
  peer->target = {record.address, record.dct_num, record.dc_key};
  peer->sequence = record.sequence;
  for (const RemoteRegion& region : std::span(record.regions.data(), record.region_count)) {
    if (region.tag == kDeskTag)
      peer->desk = region;
    else
      peer->regions[peer->region_count++] = region;
  }
  const int64_t renew_ns = record.lease_until_ns - RenewAheadNs();
  peer->StartLease(record.lease_until_ns, renew_ns);

  std::lock_guard lock(mutex_);
  std::shared_ptr<const Peer>& cached = peers_[record.address.node];
  // Another server may be less up to date than the one where the cached version was found.
  const bool older = cached && cached->target.address.incarnation == record.address.incarnation &&
                     static_cast<int32_t>(cached->sequence - peer->sequence) > 0;
  if (older || (cached && SameTarget(*cached, *peer))) {
    // If the older version is still found, no publication after the cached one is complete, so that one is valid too.
    cached->Extend(record.lease_until_ns, renew_ns);
    return cached;  // keeps its address handle
  }
  auto ah = device_.CreateAddressHandle(record.address);
  if (!ah.ok()) {
    if (!cached) peers_.erase(record.address.node);
    return Status(StatusCode::kUnavailable, "address handle: " + ah.status().ToString());
  }
  peer->ah = *std::move(ah);
  cached = std::move(peer);
  return cached;
}

PeerDirectory::Renewed PeerDirectory::Renew(const std::shared_ptr<const Peer>& peer, int64_t now_ns) {
  const rnic::DeviceAddress& address = peer->target.address;
  const bool lasts = peer->lease_until_ns() > now_ns;
  std::unique_lock renewing(renew_mutex_, std::defer_lock);
  if (!lasts)
    renewing.lock();
  else if (!renewing.try_lock())
    return {peer};
  const int64_t wanted_ns = lasts ? now_ns + RenewAheadNs() : now_ns;
  auto cached = Own(address.node);
  if (cached == nullptr || cached->lease_until_ns() <= wanted_ns) cached = FromHost(address.node, wanted_ns);
  if (cached != nullptr) {
    if (cached->target.address.incarnation != address.incarnation) cached = nullptr;
    return {std::move(cached)};
  }
  peer->PutRenewalOff();  // not done by a thread that finds the lease renewed by another one
  const int64_t patience_ns = device_.caps().software_dc ? kSoftwareDcRenewPatienceNs : kRenewPatienceNs;
  auto found = Refresh(address.node, Deadline::After(clock_, patience_ns));
  if (found.ok()) {
    if ((*found)->target.address.incarnation != address.incarnation) return {nullptr, true};
    if ((*found)->lease_until_ns() > now_ns) return {*std::move(found), true};
  } else if (device_.QueryPeer(address, Deadline::After(clock_, rnic::kPollingAskNs)) == rnic::PeerState::kDead) {
    Invalidate(peer);
    return {nullptr, true};
  }
  if (lasts) return {peer, true};
  // The peer lives, but nobody can tell what it exposes: no metadata server answers, or the one that does had nobody to
  // learn from. Then the peer cannot withdraw a region in an orderly way either, and its NIC refuses a request for a
  // region that is gone.
  const int64_t until_ns = now_ns + std::max<int64_t>(meta_.mr_lease_ns() / 8, 1'000'000);
  peer->Extend(until_ns, until_ns);
  return {peer, true, true};
}

void PeerDirectory::Invalidate(const std::shared_ptr<const Peer>& peer) {
  host_.Drop(peer->target.address.node);
  std::lock_guard lock(mutex_);
  alive_.erase(peer->target.address.node);
  const auto found = peers_.find(peer->target.address.node);
  if (found != peers_.end() && found->second == peer) peers_.erase(found);
}

}  // namespace krcore::peers
