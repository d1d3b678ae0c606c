#include "krcore/meta/meta_client.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace krcore::meta {
namespace {

// Retries of a lost race or an unknown outcome that each need a concurrent change by somebody else.
constexpr int kMaxClaimAttempts = 64;

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::string OwnerName(uint64_t owner) {
  return "node " + std::to_string(OwnerNode(owner)) + " (incarnation " + std::to_string(OwnerIncarnation(owner)) + ")";
}

}  // namespace

Result<std::unique_ptr<MetaClient>> MetaClient::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock) {
  std::unique_ptr<MetaClient> client(new MetaClient(device, clock));
  auto channel = OneSidedChannel::Create(device, pd, clock);
  if (!channel.ok()) return channel.status();
  client->channel_ = *std::move(channel);
  client->self_ = PackOwner(device.address().node, device.address().incarnation);
  return client;
}

// ---- verbs

Status MetaClient::Locate() {
  // One-sided verbs on a dead server's memory may go on working for a while (sw). Nobody else looks there any more.
  if (server_ && device_.QueryPeer(server_->target.address) == rnic::PeerState::kDead) server_.reset();
  if (server_) return {};
  auto value = device_.LookupRecord(kBootstrapName);
  if (!value.ok()) {
    if (value.status() == StatusCode::kNotFound)
      return {StatusCode::kUnavailable, "the fabric has no metadata server; start a memory node that hosts one"};
    return value.status();
  }
  Bootstrap bootstrap;
  if (value->size() != sizeof(bootstrap)) return {StatusCode::kCorrupt, "malformed metadata server announcement"};
  std::memcpy(&bootstrap, value->data(), sizeof(bootstrap));
  if (bootstrap.magic != kBootstrapMagic || !std::has_single_bit(bootstrap.buckets))
    return {StatusCode::kCorrupt, "the metadata server's announcement is of another version"};
  auto ah = device_.CreateAddressHandle(bootstrap.address);
  if (!ah.ok()) return {StatusCode::kUnavailable, "metadata server: " + ah.status().ToString()};
  server_ = std::make_unique<Server>();
  server_->target = {bootstrap.address, bootstrap.dct_num, bootstrap.dc_key};
  server_->ah = *std::move(ah);
  server_->table_addr = bootstrap.table_addr;
  server_->rkey = bootstrap.table_rkey;
  server_->buckets = bootstrap.buckets;
  ++server_generation_;
  return {};
}

Result<MetaClient::Place> MetaClient::BucketPlace(uint64_t key, uint32_t probe) {
  std::lock_guard lock(mutex_);
  KRCORE_RETURN_IF_ERROR(Locate());
  return Place{server_->table_addr + BucketOf(key, probe, server_->buckets) * kBucketBytes, server_generation_};
}

template <typename Verb>
Status MetaClient::WithServer(const Place& place, Verb verb) {
  std::lock_guard lock(mutex_);
  if (!server_ || server_generation_ != place.server_generation)
    return {StatusCode::kUnavailable, "the metadata server was replaced meanwhile"};
  Status status = verb(RemoteMemory{&server_->target, server_->ah.get(), place.addr, server_->rkey});
  if (!status.ok()) server_.reset();
  return status;
}

Status MetaClient::Read(const Place& place, std::span<std::byte> out, Deadline deadline) {
  return WithServer(place, [&](const RemoteMemory& remote) { return channel_->Read(remote, out, deadline); });
}

Status MetaClient::Write(const Place& place, std::span<const std::byte> data, Deadline deadline) {
  return WithServer(place, [&](const RemoteMemory& remote) { return channel_->Write(remote, data, deadline); });
}

Status MetaClient::CompareSwap(const Place& place, uint64_t expected, uint64_t desired, uint64_t* old,
                               Deadline deadline) {
  return WithServer(place, [&](const RemoteMemory& remote) {
    return channel_->CompareSwap(remote, expected, desired, old, deadline);
  });
}

// ---- the table

Result<MetaClient::Place> MetaClient::Find(uint64_t key, bool bind, Record* record, Deadline deadline) {
  std::array<Record, kRecordsPerBucket> bucket;
  for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
    auto bucket_place = BucketPlace(key, probe);
    if (!bucket_place.ok()) return bucket_place.status();
    KRCORE_RETURN_IF_ERROR(Read(*bucket_place, std::as_writable_bytes(std::span(bucket)), deadline));
    for (uint32_t i = 0; i < kRecordsPerBucket; ++i) {
      const Place place = *bucket_place + i * sizeof(Record);
      uint64_t binding = bucket[i].binding;
      if (binding == 0) {
        if (!bind) return StatusCode::kNotFound;
        KRCORE_RETURN_IF_ERROR(CompareSwap(place, 0, key, &binding, deadline));
        if (binding == 0) binding = key;
        bucket[i] = Record{};  // what was read before is outdated
        bucket[i].binding = binding;
        if (binding == key) KRCORE_RETURN_IF_ERROR(Read(place, BytesOf(bucket[i]), deadline));
      }
      if (binding == key) {
        *record = bucket[i];
        return place;
      }
    }
  }
  if (!bind) return StatusCode::kNotFound;
  return Status(StatusCode::kOutOfMemory, "the metadata server's table has no free record left; host it larger");
}

Result<Record> MetaClient::Lookup(uint64_t key, Deadline deadline) {
  Record record;
  auto place = Find(key, false, &record, deadline);
  // A remembered server may have been replaced; one that does not answer was forgotten, so the second try looks afresh.
  if (place.status() == StatusCode::kUnavailable) place = Find(key, false, &record, deadline);
  if (!place.ok()) return place.status();
  for (uint32_t spins = 0;; ++spins) {
    if (record.owner == 0) return StatusCode::kNotFound;
    if (ChecksumMatches(record)) return record;
    // Torn by a concurrent rewrite, or claimed and not written yet.
    if (deadline.Passed(clock_))
      return Status(StatusCode::kCorrupt, "the metadata record of " + OwnerName(record.owner) +
                                              " has a wrong checksum, still at the deadline");
    clock_.Relax(spins);
    KRCORE_RETURN_IF_ERROR(Read(*place, BytesOf(record), deadline));
  }
}

bool MetaClient::OwnerIsDead(uint64_t owner, const Record* record, Deadline deadline) {
  if (OwnerNode(owner) == OwnerNode(self_)) return owner != self_;  // ids are unique among the living
  rnic::DeviceAddress address;
  if (record != nullptr && record->owner == owner && ChecksumMatches(*record)) {
    address = record->address;
  } else {
    auto node_record = Lookup(NodeKey(OwnerNode(owner)), deadline);
    if (!node_record.ok()) return false;  // cannot be known
    address = node_record->address;
  }
  const rnic::PeerState state = device_.QueryPeer(address);
  if (address.incarnation == OwnerIncarnation(owner)) return state == rnic::PeerState::kDead;
  // Its record was replaced, which Claim does to a dead owner's only; or the id has another living holder.
  return record == nullptr || state == rnic::PeerState::kAlive;
}

Status MetaClient::Claim(const Place& place, Record* record, Deadline deadline) {
  for (int attempt = 0; attempt < kMaxClaimAttempts; ++attempt) {
    if (record->owner == self_) return {};
    if (record->owner != 0 && !OwnerIsDead(record->owner, record, deadline))
      return {StatusCode::kExists, "published by " + OwnerName(record->owner) + ", which is not known to be dead"};
    uint64_t old = 0;
    KRCORE_RETURN_IF_ERROR(CompareSwap(place + offsetof(Record, owner), record->owner, self_, &old, deadline));
    if (old == record->owner) return {};
    KRCORE_RETURN_IF_ERROR(Read(place, BytesOf(*record), deadline));
  }
  return {StatusCode::kUnavailable, "lost every race for a metadata record"};
}

Status MetaClient::PublishOnce(uint64_t key, Record& body, Deadline deadline) {
  Record before;
  auto place = Find(key, true, &before, deadline);
  if (!place.ok()) return place.status();
  KRCORE_RETURN_IF_ERROR(Claim(*place, &before, deadline));
  body.binding = key;
  body.owner = self_;
  body.sequence = before.sequence + 1;
  body.address = device_.address();
  body.checksum = ChecksumOf(body);
  KRCORE_RETURN_IF_ERROR(Write(*place + kBodyOffset, BytesOf(body).subspan(kBodyOffset), deadline));
  {
    // Written to a server that died meanwhile counts for nothing.
    std::lock_guard lock(mutex_);
    KRCORE_RETURN_IF_ERROR(Locate());
    if (server_generation_ != place->server_generation)
      return {StatusCode::kUnavailable, "the metadata server was replaced meanwhile"};
  }
  const auto same = [&](const Place& other) {
    return other.addr == place->addr && other.server_generation == place->server_generation;
  };
  if (std::none_of(published_.begin(), published_.end(), same)) published_.push_back(*place);
  return {};
}

Status MetaClient::Publish(uint64_t key, Record body, Deadline deadline) {
  std::lock_guard lock(publish_mutex_);
  for (uint32_t spins = 0;; ++spins) {
    Status status = PublishOnce(key, body, deadline);
    // Claiming and writing again is idempotent, so an unknown outcome may be tried again.
    if (!(status == StatusCode::kUnavailable)) return status;
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "not published before the deadline: " + std::string(status.message())};
    clock_.Relax(spins);
  }
}

void MetaClient::RemoveAll(Deadline deadline) {
  std::lock_guard lock(publish_mutex_);
  const uint64_t no_checksum = 0;
  for (const Place& place : published_) {
    // First the body, so that it cannot come back to life under a later claim of the same owner.
    if (!Write(place + kBodyOffset, std::as_bytes(std::span(&no_checksum, 1)), deadline).ok()) continue;
    uint64_t old = 0;
    (void)CompareSwap(place + offsetof(Record, owner), self_, 0, &old, deadline);
  }
  published_.clear();
}

}  // namespace krcore::meta
