// MetaClient: reads and writes the tables of the fabric's metadata servers by one-sided verbs. One per Node.
//
// Publications and removals are made at every announced server, oldest first. They are complete when the announcements,
// read again, name no other server. So what has been published before a lookup begins is found at any serving server.
// Lookups ask the nearest server, and the others if that one does not answer, is dead, or has a torn record.
//
// Thread safety: any thread may call all methods. No mutex that a lookup needs is held while waiting for another party.
#ifndef KRCORE_PEERS_META_CLIENT_H_
#define KRCORE_PEERS_META_CLIENT_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "krcore/clock.h"
#include "krcore/peers/meta_servers.h"
#include "krcore/peers/meta_table.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::peers {

struct MetaStats {
  uint64_t lookups = 0;
  uint64_t reads = 0;       // one-sided READs of lookups
  uint64_t link_reads = 0;  // of these, READs over the RC connection
  uint64_t failovers = 0;   // steps of lookups from one server to another
};

class MetaClient {
 public:
  // `self`: the owner of the records that this client publishes; except in tests, the device's own address.
  static Result<std::unique_ptr<MetaClient>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock,
                                                    const rnic::DeviceAddress& self);

  // kNotFound: no such record. kUnavailable: the fabric has no metadata server, or none answers before the deadline.
  // kCorrupt: until then the checksum matched at no server. *posted_ns, if not null, becomes a time before the READ
  // that found the record was posted. A node's record may be of a dead incarnation; then no server has a newer one.
  Result<Record> Lookup(const Key& key, Deadline deadline, int64_t* posted_ns = nullptr);

  // Writes `value` (NodePayload; services and ports: up to kMaxServiceBytes) to `key`'s record at every metadata
  // server. Waits for a first one to serve, and for those that are catching up. kExists: the service has another owner
  // that is not confirmed dead. kTimeout: the value may be visible at some servers; publishing again completes it.
  // kOutOfMemory: a table is full.
  Status Publish(const Key& key, std::span<const std::byte> value, Deadline deadline);
  // Withdraws everything that was published, for a clean close. Best effort: readers also notice a dead owner. The
  // records of nodes and ports then become free for others, that of a service for its name.
  void RemoveAll(Deadline deadline);
  void Remove(const Key& key, Deadline deadline);

  // As Node::IsConfirmedDead. `record` was written by this owner, or is null.
  bool OwnerIsDead(uint64_t owner, const Record* record, Deadline deadline);

  // ServerLink::Work for the nearest server, once this client has made enough lookups to be worth a QP there.
  bool WorkOnLink(const NewOwner& new_owner, bool may_take_a_while);

  // The fabric's lease on remote MRs, as its servers announce it; 0: none has been seen.
  int64_t mr_lease_ns() const { return mr_lease_ns_.load(std::memory_order_relaxed); }
  MetaStats stats() const;

 private:
  // What this client publishes.
  struct Item {
    Key key;
    Record record;
    // The item at one server, by the server's id.
    struct Copy {
      std::optional<size_t> offset;  // of the record in its table, once claimed
      uint32_t sequence = 0;         // the last one written there
    };
    std::unordered_map<uint32_t, Copy> copies;
  };
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<OneSidedChannel> channel;  // guarded by mutex; made when first needed
  };

  MetaClient(rnic::Device& device, rnic::Pd& pd, Clock& clock, const rnic::DeviceAddress& self)
      : device_(device),
        pd_(pd),
        clock_(clock),
        self_address_(self),
        self_(PackOwner(self.node, self.incarnation)),
        link_(device, pd, clock, self) {}

  // ---- servers
  std::shared_ptr<const ServerList> Known();
  // The next lookup reads the announcements.
  void ForgetServers();
  Result<std::shared_ptr<const ServerList>> ReadServers(Deadline deadline);
  bool IsDead(const rnic::DeviceAddress& address, Deadline deadline) {
    return device_.QueryPeer(address, deadline) == rnic::PeerState::kDead;
  }
  // The deadline of questions to the fabric while publishing: the given one, or later if that would leave no time for
  // the twenty round trips in which all servers are found.
  static constexpr int64_t kQuestionsNs = 500'000'000;
  Deadline OfQuestions(Deadline deadline) { return {std::max(deadline.at_ns, clock_.NowNs() + kQuestionsNs)}; }

  // ---- one verb each
  // On the first lane that is free and has nothing pending that failed.
  template <typename Verb>
  Status OnChannel(std::span<Lane> lanes, Deadline deadline, Verb verb);
  // Uses the shortest way that there is.
  Status ReadForLookup(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline);
  Status Read(const Server& server, size_t offset, std::span<std::byte> out, Deadline deadline);
  Status Write(const Server& server, size_t offset, std::span<const std::byte> data, Deadline deadline);
  Status CompareSwap(const Server& server, size_t offset, uint64_t expected, uint64_t desired, uint64_t* old,
                     Deadline deadline);

  // ---- reading: Lookup without its care for this client's own records
  Result<Record> Find(const Key& key, Deadline deadline, int64_t* posted_ns);
  // Searches one server. kNotFound, kUnavailable, kTimeout; kCorrupt: torn; *torn_for_good if the owner is dead.
  Result<Record> FindAt(const Server& server, const Key& key, Deadline deadline, bool* torn_for_good);

  // ---- publishing; publish_mutex_ held
  Status PublishEverywhere(Item& item, Deadline deadline);
  // Makes one attempt. kUnavailable: try again.
  Status PublishPass(Item& item, Deadline deadline);
  Status WriteAt(const Server& server, Item& item, Deadline deadline);
  // Claims this client's record for `key` and returns where it is.
  Result<size_t> ClaimOwned(const Server& server, const Key& key, Deadline deadline);  // nodes, ports
  Result<size_t> ClaimService(const Server& server, const Key& key, Deadline deadline);
  Result<size_t> BindService(const Server& server, const Key& key, Record* record, Deadline deadline);
  // Ids are unique among the living, so the former holder of this one is dead. Returns once nothing that it posted can
  // arrive any more.
  Status AwaitPredecessor(const Record& record, Deadline deadline);
  // Gives up the claims of an item that another owner has won.
  void Release(Item& item, Deadline deadline);
  Status RemoveAt(const Server& server, const Item& item, size_t offset, Deadline deadline);
  Status RemoveFrom(const Server& server, Item& item, Deadline deadline);
  void RemoveEverywhere(std::span<Item> items, Deadline deadline);
  // Publishes again at a server that had nobody to learn from, and so lacks what was published before.
  void HealOwnRecords(const ServerList& servers, Deadline deadline);

  rnic::Device& device_;
  rnic::Pd& pd_;
  Clock& clock_;
  const rnic::DeviceAddress self_address_;
  const uint64_t self_;

  // Two, for threads that look up at the same time, or while a server does not answer. All writes use the first: so a
  // WRITE or CAS that was not answered is over before the next one is posted.
  std::array<Lane, 2> lanes_;
  std::span<Lane> writing_lane() { return std::span(lanes_).first(1); }
  ServerLink link_;

  std::mutex servers_mutex_;
  std::shared_ptr<const ServerList> servers_;  // guarded by servers_mutex_; never null
  static constexpr int64_t kNever = INT64_MIN / 2;
  int64_t servers_read_ns_ = kNever;     // likewise
  std::atomic<int64_t> mr_lease_ns_{0};  // relaxed: a number on its own

  std::mutex publish_mutex_;  // one publication at a time: a record has one writer
  std::vector<Item> items_;   // guarded by publish_mutex_
  // Servers that hold all of items_. Guarded by servers_mutex_, so that lookups see it while a publication waits.
  std::vector<uint32_t> complete_at_;
  bool has_published_ = false;  // complete_at_ does not say so: at times no server has all

  // Relaxed counters.
  std::atomic<uint64_t> lookups_{0}, reads_{0}, link_reads_{0}, failovers_{0};
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_META_CLIENT_H_
