#include "krcore/peers/meta_client.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace krcore::peers {
namespace {

// Retries after a lost race or an unknown outcome. Each needs a concurrent change by another party.
constexpr int kMaxClaimAttempts = 64;
// How long a lookup waits for one server before it asks the next one. Where DC is software, an answer takes two agents
// that have to wake up, and the first answer two round trips: a client that gives up sooner starts over each time.
constexpr int64_t kServerPatienceNs = 20'000'000;
constexpr int64_t kSoftwareDcPatienceNs = 200'000'000;
// Rereads of a record that is being rewritten, before the next server is asked.
constexpr uint32_t kTornSpins = 64;
// After this many rereads the fabric is asked whether the owner of the record still lives.
constexpr uint32_t kTornLook = 8;
// A lookup looks for new announcements if those it knows are older.
constexpr int64_t kServersFreshNs = 1'000'000'000;
constexpr int64_t kHealNs = 20'000'000;
// A client with this many lookups is no short-lived worker, and takes a place at a server's desk.
constexpr uint64_t kLinkLookups = 8;

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

std::string OwnerName(uint64_t owner) {
  return "node " + std::to_string(OwnerNode(owner)) + " (incarnation " + std::to_string(OwnerIncarnation(owner)) + ")";
}

Status NoServer() {
  return {StatusCode::kUnavailable,
          "the fabric has no metadata server: start the memory node that hosted it again, or another one with "
          "--metaserver"};
}

bool DidNotAnswer(const Status& status) { return status == StatusCode::kUnavailable || status == StatusCode::kTimeout; }

using Bucket = std::array<Record, kRecordsPerBucket>;

}  // namespace

Result<std::unique_ptr<MetaClient>> MetaClient::Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                       const rnic::DeviceAddress& self) {
  std::unique_ptr<MetaClient> client(new MetaClient(device, pd, clock, self));
  auto channel = OneSidedChannel::Create(device, pd, clock);
  if (!channel.ok()) return channel.status();
  client->lanes_[0].channel = *std::move(channel);
  client->servers_ = std::make_shared<const ServerList>();
  return client;
}

MetaStats MetaClient::stats() const {
  return {lookups_.load(std::memory_order_relaxed), reads_.load(std::memory_order_relaxed),
          link_reads_.load(std::memory_order_relaxed), failovers_.load(std::memory_order_relaxed)};
}

// ---- servers

std::shared_ptr<const ServerList> MetaClient::Known() {
  std::lock_guard lock(servers_mutex_);
  if (!servers_->AnyServing() || clock_.NowNs() - servers_read_ns_ > kServersFreshNs) return nullptr;
  return servers_;
}

void MetaClient::ForgetServers() {
  std::lock_guard lock(servers_mutex_);
  servers_read_ns_ = kNever;
}

Result<std::shared_ptr<const ServerList>> MetaClient::ReadServers(Deadline deadline) {
  std::shared_ptr<const ServerList> known;
  {
    std::lock_guard lock(servers_mutex_);
    known = servers_;
  }
  const int64_t now_ns = clock_.NowNs();
  auto read = ReadServerList(device_, *known, deadline);
  if (!read.ok()) return read.status();
  read->nearest_first = read->NearestFirst(OwnerNode(self_));
  auto list = std::make_shared<const ServerList>(*std::move(read));
  if (!list->all.empty()) mr_lease_ns_.store(list->all.front()->info.mr_lease_ns, std::memory_order_relaxed);
  std::lock_guard lock(servers_mutex_);
  if (now_ns >= servers_read_ns_) {
    servers_ = list;
    servers_read_ns_ = now_ns;
  }
  return list;
}

// ---- verbs

template <typename Verb>
Status MetaClient::OnChannel(std::span<Lane> lanes, Deadline deadline, Verb verb) {
  for (uint32_t spins = 0;; ++spins) {
    for (Lane& lane : lanes) {
      const std::unique_lock lock(lane.mutex, std::try_to_lock);
      if (!lock.owns_lock()) continue;
      if (lane.channel == nullptr) {
        auto channel = OneSidedChannel::Create(device_, pd_, clock_);
        if (!channel.ok()) break;
        lane.channel = *std::move(channel);
      }
      if (lane.channel->IsReady()) return verb(*lane.channel);
    }
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "no queue for it was free: others wait for servers that do not answer"};
    clock_.Relax(spins);
  }
}

Status MetaClient::Read(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline) {
  return OnChannel(lanes_, deadline,
                   [&](OneSidedChannel& channel) { return channel.Read(server.At(offset), out, deadline); });
}

Status MetaClient::Write(const Server& server, size_t offset, std::span<const std::byte> data, Deadline deadline) {
  return OnChannel(writing_lane(), deadline,
                   [&](OneSidedChannel& channel) { return channel.Write(server.At(offset), data, deadline); });
}

Status MetaClient::CompareSwap(const Server& server, size_t offset, uint64_t expected, uint64_t desired, uint64_t* old,
                               Deadline deadline) {
  return OnChannel(writing_lane(), deadline, [&](OneSidedChannel& channel) {
    return channel.CompareSwap(server.At(offset), expected, desired, old, deadline);
  });
}

// ---- lookups

bool MetaClient::WorkOnLink(const NewOwner& new_owner, bool may_take_a_while) {
  if (lookups_.load(std::memory_order_relaxed) < kLinkLookups) return false;
  ServerPtr nearest;
  {
    std::lock_guard lock(servers_mutex_);
    if (!servers_->nearest_first.empty()) nearest = servers_->nearest_first.front();
  }
  if (nearest != nullptr && nearest->info.address.node == OwnerNode(self_)) nearest = nullptr;
  return link_.Work(nearest, new_owner, may_take_a_while);
}

Status MetaClient::ReadForLookup(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline) {
  reads_.fetch_add(1, std::memory_order_relaxed);
  if (const auto read = link_.Read(server, offset, out, deadline)) {
    link_reads_.fetch_add(1, std::memory_order_relaxed);
    return *read;
  }
  return Read(server, offset, out, deadline);
}

Result<Record> MetaClient::FindAt(const Server& server, const Key& key, Deadline deadline, bool* torn_for_good) {
  Bucket bucket;
  for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
    const size_t offset = server.info.geometry.BucketOffset(key, probe);
    KRCORE_RETURN_IF_ERROR(ReadForLookup(server, offset, std::as_writable_bytes(std::span(bucket)), deadline));
    bool last = false;
    for (uint32_t i = 0; i < kRecordsPerBucket; ++i) {
      Record& record = bucket[i];
      if (!key.Names(record)) {
        // Nobody uses the next bucket while this one has a never-used record.
        last |= record.owner == kNeverUsed && record.binding == 0;
        continue;
      }
      // Torn by a concurrent rewrite, or claimed and not written yet.
      uint64_t dead_owner = kNeverUsed;
      for (uint32_t spins = 0; !ChecksumMatches(record); ++spins) {
        if (key.kind == RecordKind::kService && IsVacant(record.owner)) return StatusCode::kNotFound;
        // Torn for good if it is still torn when read after its owner's death, which may have come after its last word.
        *torn_for_good = dead_owner != kNeverUsed && record.owner == dead_owner;
        if (spins == kTornLook &&
            device_.QueryIncarnation(OwnerIncarnation(record.owner), deadline) == rnic::PeerState::kDead)
          dead_owner = record.owner;
        if (*torn_for_good || spins == kTornSpins || deadline.Passed(clock_)) {
          return Status(StatusCode::kCorrupt, "the metadata record of " + OwnerName(record.owner) +
                                                  " has a wrong checksum, still at the deadline");
        }
        clock_.Relax(spins);
        const Status again = ReadForLookup(server, offset + i * sizeof(Record), BytesOf(record), deadline);
        if (again == StatusCode::kTimeout) continue;  // the deadline has passed, and the record was torn to the end
        if (!again.ok()) return again;
        if (!key.Names(record)) return StatusCode::kNotFound;  // removed meanwhile
      }
      if (IsVacant(record.owner)) return StatusCode::kNotFound;
      return record;
    }
    if (last) break;
  }
  return StatusCode::kNotFound;
}

Result<Record> MetaClient::Find(const Key& key, Deadline deadline, int64_t* posted_ns) {
  lookups_.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<const ServerList> servers = Known();
  bool fresh = false;  // `servers` was read by this lookup
  Status status = NoServer();
  Status torn_status;
  for (uint32_t spins = 0;; ++spins) {
    if (servers == nullptr) {
      auto read = ReadServers(deadline);
      if (!read.ok()) return torn_status.ok() ? read.status() : torn_status;
      servers = *std::move(read);
      if (servers->all.empty()) return torn_status.ok() ? NoServer() : torn_status;
      fresh = true;
    }
    std::optional<Record> of_the_dead;
    int64_t of_the_dead_posted_ns = 0;
    bool asked = false;
    bool all_torn_for_good = true;  // of those that were asked
    for (const ServerPtr& server : servers->nearest_first) {
      if (asked) failovers_.fetch_add(1, std::memory_order_relaxed);
      asked = true;
      const Deadline patience =
          Deadline::After(clock_, device_.caps().software_dc ? kSoftwareDcPatienceNs : kServerPatienceNs);
      const int64_t now_ns = clock_.CoarseNowNs();
      bool torn_for_good = false;
      auto record = FindAt(*server, key, {std::min(deadline.at_ns, patience.at_ns)}, &torn_for_good);
      // A dead server's memory may go on answering for a while (sw), and nobody writes there any more. Where that
      // cannot happen, a server that has answered is not asked about.
      if ((DidNotAnswer(record.status()) || !device_.caps().asks_over_network) &&
          IsDead(server->info.address, deadline)) {
        ForgetServers();
        status = {StatusCode::kUnavailable, "the metadata server died"};
        all_torn_for_good = false;
        continue;
      }
      all_torn_for_good &= torn_for_good;
      if (record.ok()) {
        // While a successor is publishing itself, its only record may be at another server.
        const bool dead =
            key.kind == RecordKind::kNode && servers->all.size() > 1 && IsDead(record->address(), deadline);
        if (dead) {
          if (!of_the_dead || NewerThan(*record, *of_the_dead)) {
            of_the_dead = *record;
            of_the_dead_posted_ns = now_ns;
          }
          continue;
        }
        if (posted_ns != nullptr) *posted_ns = now_ns;
        return record;
      }
      if (record.status() == StatusCode::kNotFound && !of_the_dead) return record;
      if (record.status() == StatusCode::kCorrupt) torn_status = record.status();
      if (!(record.status() == StatusCode::kNotFound)) status = record.status();
    }
    if (of_the_dead) {
      if (posted_ns != nullptr) *posted_ns = of_the_dead_posted_ns;
      return *of_the_dead;
    }
    // The owner died while it wrote the record, and has it nowhere else.
    if (asked && all_torn_for_good) return StatusCode::kNotFound;
    // The servers may just have died and been replaced; those that are catching up will serve soon; a record that is
    // torn everywhere may be written again.
    if (fresh && deadline.Passed(clock_)) {
      // Report a torn record even if the last READ did not come back in time.
      if (!torn_status.ok()) return torn_status;
      if (status == StatusCode::kTimeout) return Status(StatusCode::kUnavailable, std::string(status.message()));
      return status;
    }
    servers = nullptr;
    clock_.Relax(spins);
  }
}

Result<Record> MetaClient::Lookup(const Key& key, Deadline deadline, int64_t* posted_ns) {
  auto record = Find(key, deadline, posted_ns);
  std::shared_ptr<const ServerList> servers;
  {
    std::lock_guard lock(servers_mutex_);
    const auto complete = [&](const ServerPtr& server) {
      return std::find(complete_at_.begin(), complete_at_.end(), server->id()) != complete_at_.end();
    };
    if (has_published_ && !std::all_of(servers_->all.begin(), servers_->all.end(), complete)) servers = servers_;
  }
  if (servers != nullptr) HealOwnRecords(*servers, deadline);
  return record;
}

bool MetaClient::OwnerIsDead(uint64_t owner, const Record* record, Deadline deadline) {
  if (OwnerNode(owner) == OwnerNode(self_)) return owner != self_;  // ids are unique among the living
  rnic::DeviceAddress address;
  if (record != nullptr && record->owner == owner && ChecksumMatches(*record)) {
    address = record->address();
  } else {
    // If the fabric has a list, it tells more than a record: others take the places of dead owners' records, and a
    // living owner may not have published yet.
    const rnic::PeerState listed = device_.QueryIncarnation(OwnerIncarnation(owner), deadline);
    if (listed != rnic::PeerState::kUnreachable) return listed == rnic::PeerState::kDead;
    auto node_record = Find(Key::Node(OwnerNode(owner)), deadline, nullptr);
    if (!node_record.ok()) return false;  // cannot be known
    address = node_record->address();
  }
  const rnic::PeerState state = device_.QueryPeer(address, OfQuestions(deadline));
  if (address.incarnation == OwnerIncarnation(owner)) return state == rnic::PeerState::kDead;
  // Its record was replaced, which happens to a dead owner only, or the id has another living holder.
  return record == nullptr || state == rnic::PeerState::kAlive;
}

// ---- publishing

Status MetaClient::AwaitPredecessor(const Record& record, Deadline deadline) {
  if (!ChecksumMatches(record)) return {};  // nobody knows any more where it was
  for (uint32_t spins = 0; !IsDead(record.address(), deadline); ++spins) {
    if (deadline.Passed(clock_))
      return {StatusCode::kUnavailable, OwnerName(record.owner) + ", the predecessor, is not known to be dead yet"};
    clock_.Relax(spins);
  }
  return {};
}

Result<size_t> MetaClient::ClaimOwned(const Server& server, const Key& key, Deadline deadline) {
  for (int attempt = 0; attempt < kMaxClaimAttempts; ++attempt) {
    std::optional<size_t> place;
    uint64_t expected = 0;
    std::vector<std::pair<size_t, Record>> taken;
    Record predecessor;
    bool mine = false, last = false;
    for (uint32_t probe = 0; probe < kMaxProbes && !mine && !last; ++probe) {
      Bucket bucket;
      const size_t offset = server.info.geometry.BucketOffset(key, probe);
      KRCORE_RETURN_IF_ERROR(Read(server, offset, std::as_writable_bytes(std::span(bucket)), deadline));
      for (uint32_t i = 0; i < kRecordsPerBucket && !mine; ++i) {
        const Record& record = bucket[i];
        last |= record.owner == kNeverUsed;
        mine = key.Names(record);  // a predecessor's, or our own after an unknown outcome
        if (mine) predecessor = record;
        if (mine || (IsVacant(record.owner) && !place)) {
          place = offset + i * sizeof(Record);
          expected = record.owner;
        } else if (!IsVacant(record.owner)) {
          taken.emplace_back(offset + i * sizeof(Record), record);
        }
      }
    }
    for (auto other = taken.begin(); !place && other != taken.end(); ++other) {
      if (!OwnerIsDead(other->second.owner, &other->second, deadline)) continue;
      place = other->first;
      expected = other->second.owner;
    }
    if (!place)
      return Status(StatusCode::kOutOfMemory, "the metadata server of node " +
                                                  std::to_string(server.info.address.node) +
                                                  " has no free record left; host it larger");
    if (expected == self_) return *place;
    if (mine) KRCORE_RETURN_IF_ERROR(AwaitPredecessor(predecessor, deadline));
    uint64_t old = 0;
    KRCORE_RETURN_IF_ERROR(CompareSwap(server, *place, expected, self_, &old, deadline));
    if (old == expected) return *place;
  }
  return Status(StatusCode::kUnavailable, "lost every race for a metadata record");
}

Result<size_t> MetaClient::BindService(const Server& server, const Key& key, Record* record, Deadline deadline) {
  Bucket bucket;
  for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
    const size_t offset = server.info.geometry.BucketOffset(key, probe);
    KRCORE_RETURN_IF_ERROR(Read(server, offset, std::as_writable_bytes(std::span(bucket)), deadline));
    for (uint32_t i = 0; i < kRecordsPerBucket; ++i) {
      const size_t place = offset + i * sizeof(Record);
      uint64_t binding = bucket[i].binding;
      if (binding == 0) {
        KRCORE_RETURN_IF_ERROR(
            CompareSwap(server, place + offsetof(Record, binding), 0, key.value, &binding, deadline));
        if (binding == 0) binding = key.value;
        if (binding == key.value) KRCORE_RETURN_IF_ERROR(Read(server, place, BytesOf(bucket[i]), deadline));
      }
      if (binding == key.value) {
        *record = bucket[i];
        return place;
      }
    }
  }
  return Status(StatusCode::kOutOfMemory, "the metadata server of node " + std::to_string(server.info.address.node) +
                                              " has no free record left for a service; host it larger");
}

Result<size_t> MetaClient::ClaimService(const Server& server, const Key& key, Deadline deadline) {
  Record record;
  auto place = BindService(server, key, &record, deadline);
  if (!place.ok()) return place;
  for (int attempt = 0; attempt < kMaxClaimAttempts; ++attempt) {
    if (record.owner == self_) return place;
    if (OwnerNode(record.owner) == OwnerNode(self_)) {
      KRCORE_RETURN_IF_ERROR(AwaitPredecessor(record, deadline));
    } else if (!IsVacant(record.owner) && !OwnerIsDead(record.owner, &record, deadline)) {
      return Status(StatusCode::kExists, "published by " + OwnerName(record.owner) + ", which is not known to be dead");
    }
    uint64_t old = 0;
    KRCORE_RETURN_IF_ERROR(CompareSwap(server, *place, record.owner, self_, &old, deadline));
    if (old == record.owner) return place;
    KRCORE_RETURN_IF_ERROR(Read(server, *place, BytesOf(record), deadline));
  }
  return Status(StatusCode::kUnavailable, "lost every race for a metadata record");
}

Status MetaClient::WriteAt(const Server& server, Item& item, Deadline deadline) {
  Item::Copy& copy = item.copies[server.id()];
  if (!copy.offset) {
    auto place = item.key.kind == RecordKind::kService ? ClaimService(server, item.key, deadline)
                                                       : ClaimOwned(server, item.key, deadline);
    if (!place.ok()) return place.status();
    copy.offset = *place;
  }
  const size_t body = BodyOffset(item.key.kind);
  KRCORE_RETURN_IF_ERROR(Write(server, *copy.offset + body, BytesOf(item.record).subspan(body), deadline));
  copy.sequence = item.record.sequence;
  return {};
}

Status MetaClient::PublishPass(Item& item, Deadline deadline) {
  auto servers = ReadServers(OfQuestions(deadline));
  if (!servers.ok()) return servers.status();
  if (!(*servers)->AnyServing()) return NoServer();
  for (const ServerPtr& server : (*servers)->all) {
    // Its place in the order may still change, or it is copying what is written elsewhere.
    if (!server->serving())
      return {StatusCode::kUnavailable,
              "the metadata server of node " + std::to_string(server->info.address.node) + " is catching up"};
    const auto copy = item.copies.find(server->id());
    if (copy != item.copies.end() && copy->second.sequence == item.record.sequence) continue;
    const Status status = WriteAt(*server, item, deadline);
    if (!status.ok() && !(DidNotAnswer(status) && IsDead(server->info.address, OfQuestions(deadline)))) return status;
  }
  // Complete if all servers that are alive now have it. A copy at a server that died does not count.
  servers = ReadServers(OfQuestions(deadline));
  if (!servers.ok()) return servers.status();
  if ((*servers)->all.empty()) return NoServer();
  for (const ServerPtr& server : (*servers)->all) {
    const auto copy = item.copies.find(server->id());
    if (copy == item.copies.end() || copy->second.sequence != item.record.sequence)
      return {StatusCode::kUnavailable, "a metadata server was added meanwhile"};
  }
  std::erase_if(item.copies, [&](const auto& copy) { return !(*servers)->Contains(copy.first); });
  return {};
}

Status MetaClient::PublishEverywhere(Item& item, Deadline deadline) {
  for (uint32_t spins = 0;; ++spins) {
    const Status status = PublishPass(item, deadline);
    // Claiming and writing again is idempotent, so an unknown outcome may be tried again.
    if (!DidNotAnswer(status)) return status;
    if (deadline.Passed(clock_))
      return {StatusCode::kTimeout, "not published before the deadline: " + std::string(status.message())};
    clock_.Relax(spins);
  }
}

Status MetaClient::Publish(const Key& key, std::span<const std::byte> value, Deadline deadline) {
  std::lock_guard lock(publish_mutex_);
  auto item = std::find_if(items_.begin(), items_.end(), [&](const Item& other) { return other.key == key; });
  if (item == items_.end()) {
    items_.emplace_back().key = key;
    item = std::prev(items_.end());
  }
  Record& record = item->record;
  record.kind = key.kind;
  record.binding = key.kind == RecordKind::kNode ? 0 : key.value;
  record.set_address(self_address_);
  std::fill(std::begin(record.value), std::end(record.value), std::byte{});
  std::copy_n(value.begin(), std::min(value.size(), sizeof(record.value)), record.value);
  record.value_length = static_cast<uint8_t>(value.size());
  ++record.sequence;
  record.checksum = ChecksumOf(record);
  const Status status = PublishEverywhere(*item, deadline);
  if (status == StatusCode::kExists) {
    Release(*item, deadline);
    items_.erase(item);
    return status;
  }
  std::lock_guard servers_lock(servers_mutex_);
  has_published_ = true;
  complete_at_.clear();
  for (const ServerPtr& server : servers_->all) {
    const auto has = [&](const Item& other) {
      const auto copy = other.copies.find(server->id());
      return copy != other.copies.end() && copy->second.sequence == other.record.sequence;
    };
    if (std::all_of(items_.begin(), items_.end(), has)) complete_at_.push_back(server->id());
  }
  return status;
}

void MetaClient::HealOwnRecords(const ServerList& servers, Deadline deadline) {
  const std::unique_lock lock(publish_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;  // whoever has it writes to all servers anyway; otherwise next time
  const Deadline patience = Deadline::After(clock_, kHealNs);
  std::vector<uint32_t> complete;
  for (const ServerPtr& server : servers.all) {
    if (!server->serving()) continue;
    bool all = true;
    for (Item& item : items_) {
      if (item.copies[server->id()].sequence == item.record.sequence) continue;
      all &= WriteAt(*server, item, {std::min(deadline.at_ns, patience.at_ns)}).ok();
    }
    if (all) complete.push_back(server->id());
  }
  std::lock_guard servers_lock(servers_mutex_);
  complete_at_ = std::move(complete);
}

Status MetaClient::RemoveAt(const Server& server, const Item& item, size_t offset, Deadline deadline) {
  // The body first, so that it cannot come back to life under a later claim of the same owner.
  const std::array<uint64_t, 2> none{};  // binding and checksum; a service keeps its binding
  const size_t begin = BodyOffset(item.key.kind);
  const size_t end = offsetof(Record, checksum) + sizeof(Record::checksum);
  KRCORE_RETURN_IF_ERROR(Write(server, offset + begin, std::as_bytes(std::span(none)).first(end - begin), deadline));
  uint64_t old = 0;
  return CompareSwap(server, offset, self_, item.key.kind == RecordKind::kService ? kNeverUsed : kVacated, &old,
                     deadline);
}

void MetaClient::Release(Item& item, Deadline deadline) {
  auto servers = ReadServers(OfQuestions(deadline));
  if (!servers.ok()) return;
  for (const ServerPtr& server : (*servers)->all) {
    const auto copy = item.copies.find(server->id());
    if (copy != item.copies.end() && copy->second.offset) (void)RemoveAt(*server, item, *copy->second.offset, deadline);
  }
}

Status MetaClient::RemoveFrom(const Server& server, Item& item, Deadline deadline) {
  const auto copy = item.copies.find(server.id());
  std::optional<size_t> place;
  if (copy != item.copies.end()) place = copy->second.offset;
  // A server that was added since has copied it from another one.
  Bucket bucket;
  for (uint32_t probe = 0; probe < kMaxProbes && !place; ++probe) {
    const size_t offset = server.info.geometry.BucketOffset(item.key, probe);
    KRCORE_RETURN_IF_ERROR(Read(server, offset, std::as_writable_bytes(std::span(bucket)), deadline));
    for (uint32_t i = 0; i < kRecordsPerBucket; ++i)
      if (item.key.Names(bucket[i]) && bucket[i].owner == self_) place = offset + i * sizeof(Record);
  }
  return place ? RemoveAt(server, item, *place, deadline) : Status{};
}

void MetaClient::RemoveEverywhere(std::span<Item> items, Deadline deadline) {
  // Until the announcements name no server that has not been handled: a server announced meanwhile may have copied a
  // record before it was removed.
  std::vector<uint32_t> done;
  for (uint32_t spins = 0; !deadline.Passed(clock_); ++spins) {
    auto servers = ReadServers(OfQuestions(deadline));
    if (!servers.ok()) break;
    bool complete = true;
    for (const ServerPtr& server : (*servers)->all) {
      if (std::find(done.begin(), done.end(), server->id()) != done.end()) continue;
      complete = false;
      if (!server->serving()) continue;
      bool removed = true;
      for (Item& item : items) removed &= RemoveFrom(*server, item, deadline).ok();
      if (removed) done.push_back(server->id());
    }
    if (complete) break;
    clock_.Relax(spins);
  }
}

void MetaClient::RemoveAll(Deadline deadline) {
  std::lock_guard lock(publish_mutex_);
  if (!items_.empty()) RemoveEverywhere(items_, deadline);
  items_.clear();
}

void MetaClient::Remove(const Key& key, Deadline deadline) {
  std::lock_guard lock(publish_mutex_);
  const auto item = std::find_if(items_.begin(), items_.end(), [&](const Item& other) { return other.key == key; });
  if (item == items_.end()) return;
  RemoveEverywhere({&*item, 1}, deadline);
  items_.erase(item);
}

}  // namespace krcore::peers
