// Registered memory and the batch that registration and maintenance use.
#ifndef KVS_SRC_EPOCH_BUFFERS_H_
#define KVS_SRC_EPOCH_BUFFERS_H_

#include <cstddef>
#include <new>

#include "kvs/layout/pool.h"
#include "kvs/src/connections.h"

namespace kvs {

class EpochBuffers {
 public:
  struct alignas(64) Registered {
    uint64_t epoch = 0;
    uint64_t announcement = 0;
    uint64_t cas = 0;
    uint64_t directory = 0;
    alignas(64) ClientEntry clients[kMaxClients] = {};
  };

  EpochBuffers(std::byte* memory, Connections* connections, uint32_t lkey) : registered_(new (memory) Registered) {
    batch_.Attach(connections, lkey);
  }
  Registered& words() { return *registered_; }
  Batch& batch() { return batch_; }

 private:
  Registered* registered_;
  Batch batch_{4};
};

}  // namespace kvs

#endif  // KVS_SRC_EPOCH_BUFFERS_H_
