// Registered memory and the batch that registration and maintenance use.
#ifndef KVS_SRC_EPOCH_BUFFERS_H_
#define KVS_SRC_EPOCH_BUFFERS_H_

#include <array>
#include <cstddef>
#include <new>

#include "kvs/layout/pool.h"
#include "kvs/src/connections.h"

namespace kvs {

class EpochBuffers {
 public:
  static constexpr uint32_t kWindow = 1024;  // chunk words read at once
  struct alignas(64) Registered {
    uint64_t epoch = 0;
    uint64_t announcement = 0;
    uint64_t cas = 0;
    uint64_t directory = 0;
    std::array<uint64_t, 4> renewal{};
    HomeCounters counters{};
    HashSeed hash_seed{};
    std::array<uint64_t, 32> old{};  // old words of CASes that nobody looks at
    alignas(64) uint64_t evacuation[kEvacuationSlots];
    alignas(64) uint64_t members[krcore::kMaxMemoryNode + 1];
    alignas(64) ChunkWord chunks[kWindow];
    alignas(64) ClientEntry clients[kMaxClients];  // not cleared: most of it is never touched
  };

  EpochBuffers(std::byte* memory, Connections* connections, uint32_t lkey) : registered_(new (memory) Registered) {
    batch_.Attach(connections, lkey);
  }
  Registered& words() { return *registered_; }
  Batch& batch() { return batch_; }

 private:
  Registered* registered_;
  Batch batch_{32};
};

}  // namespace kvs

#endif  // KVS_SRC_EPOCH_BUFFERS_H_
