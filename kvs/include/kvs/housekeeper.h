// Housekeeper: keeps a store's memory in order where its clients do not live long enough to do it. It finds dead
// clients, expels stopped ones, has chunks emptied, and removes values that have expired. It is a client like others,
// which do the same as long as they live. Only the amount of free memory depends on it. See docs/protocol.md,
// "Housekeeping".
//
//   auto housekeeper = kvs::Housekeeper::Create(*store).value();
//   while (serving) Sleep(housekeeper->Step());
//
// Thread safety: one thread at a time.
#ifndef KVS_HOUSEKEEPER_H_
#define KVS_HOUSEKEEPER_H_

#include <cstdint>
#include <memory>

#include "kvs/client.h"

namespace kvs {

// Monotonic counts.
struct HousekeeperStats {
  uint64_t sweeps = 0;  // runs of the mover, for each of which it was a client
  uint64_t chunks_freed = 0;
  uint64_t expired = 0;    // values removed because they had expired
  bool is_client = false;  // others wait for it
};

class Housekeeper {
 public:
  // `store` must outlive it. Fails with kOutOfMemory.
  static Result<std::unique_ptr<Housekeeper>> Create(Store& store);
  // Blocks for the few round trips in which it gives up what it is doing.
  virtual ~Housekeeper() = default;

  // Does what is due, and returns in how many nanoseconds there is more. A look blocks for a tenth of a second at most,
  // not counting connecting and asking the fabric which clients are dead. Most of the time the housekeeper is not a
  // client, so Step may be called late. While it is one, others wait for it; Step then returns less than 0.1 ms. Where
  // pools are mirrored, it neither begins nor ends to be one while another view is pending, as that would block.
  virtual int64_t Step() = 0;
  virtual const HousekeeperStats& stats() const = 0;
};

}  // namespace kvs

#endif  // KVS_HOUSEKEEPER_H_
