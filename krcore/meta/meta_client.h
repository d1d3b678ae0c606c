// MetaClient: reads and writes the metadata server's table by one-sided verbs. One per Node.
//
// Thread safety: all methods from any thread. Verbs are serialized by a mutex that is held for one verb at a
// time, never while waiting for somebody else.
#ifndef KRCORE_META_META_CLIENT_H_
#define KRCORE_META_META_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/dct/peer.h"
#include "krcore/meta/one_sided_channel.h"
#include "krcore/meta/record.h"
#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::meta {

class MetaClient {
 public:
  static Result<std::unique_ptr<MetaClient>> Create(rnic::Device& device, rnic::Pd& pd, Clock& clock);

  // kNotFound: no such record. kUnavailable: no metadata server. kCorrupt: the checksum did not match until the
  // deadline.
  Result<Record> Lookup(uint64_t key, Deadline deadline);

  // Writes the body of `key`'s record after claiming it for this device; `body` needs kind and payload only. Waits for
  // a metadata server. kExists: a service of another owner that is not confirmed dead. kTimeout. kOutOfMemory: the
  // table is full.
  Status Publish(uint64_t key, Record body, Deadline deadline);
  // Takes back what was published, for a clean close. Best effort: readers also notice a dead owner.
  void RemoveAll(Deadline deadline);

  // As Node::IsConfirmedDead, `record` being one that this owner wrote, or null.
  bool OwnerIsDead(uint64_t owner, const Record* record, Deadline deadline);

 private:
  // A metadata server as its Bootstrap describes it.
  struct Server {
    dct::Target target;
    std::unique_ptr<rnic::AddressHandle> ah;
    uint64_t table_addr = 0;
    uint32_t rkey = 0;
    uint32_t buckets = 0;
  };
  // Where a record or bucket is. A place in the table of an earlier server is refused, never used in the new one's.
  struct Place {
    uint64_t addr = 0;
    uint64_t server_generation = 0;
    Place operator+(size_t bytes) const { return {addr + bytes, server_generation}; }
  };

  MetaClient(rnic::Device& device, Clock& clock) : device_(device), clock_(clock) {}

  Status PublishOnce(uint64_t key, Record& body, Deadline deadline);
  // Where `key`'s record is, and its contents; binds the first free one if `bind`. kNotFound: not bound;
  // kOutOfMemory: no free one.
  Result<Place> Find(uint64_t key, bool bind, Record* record, Deadline deadline);
  // Makes this device the owner; *record is what was there before.
  Status Claim(const Place& place, Record* record, Deadline deadline);

  // One verb each; forget the server when it does not answer.
  Status Read(const Place& place, std::span<std::byte> out, Deadline deadline);
  Status Write(const Place& place, std::span<const std::byte> data, Deadline deadline);
  Status CompareSwap(const Place& place, uint64_t expected, uint64_t desired, uint64_t* old, Deadline deadline);
  template <typename Verb>
  Status WithServer(const Place& place, Verb verb);
  // Finds the server, or confirms that the one known still lives. mutex_ held.
  Status Locate();
  Result<Place> BucketPlace(uint64_t key, uint32_t probe);

  rnic::Device& device_;
  Clock& clock_;
  uint64_t self_ = 0;  // PackOwner of this device

  std::mutex publish_mutex_;      // one publication at a time: a record has one writer
  std::vector<Place> published_;  // guarded by publish_mutex_

  std::mutex mutex_;  // guards the rest
  std::unique_ptr<OneSidedChannel> channel_;
  std::unique_ptr<Server> server_;
  uint64_t server_generation_ = 0;  // of server_; grows with each Locate that found one
};

}  // namespace krcore::meta

#endif  // KRCORE_META_META_CLIENT_H_
