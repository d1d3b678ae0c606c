// Epochs: what a client has below its table. That is its place in the store, its operations and its memory; epochs say
// when memory may be reused (docs/protocol.md, "Epochs").
#ifndef KVS_EPOCHS_EPOCHS_H_
#define KVS_EPOCHS_EPOCHS_H_

#include <cstddef>
#include <cstdint>

#include "kvs/epochs/allocator.h"
#include "kvs/epochs/common.h"
#include "kvs/epochs/directory_cache.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/epochs/operations.h"
#include "kvs/epochs/registrar.h"
#include "kvs/epochs/registration.h"

namespace kvs {

// The members are in the order in which they build on each other.
struct Epochs {
  static size_t ArenaBytes(uint32_t max_in_flight) {
    return Operations::ArenaBytes(max_in_flight) + sizeof(Home::Registered);
  }
  // `arena`: ArenaBytes(max_in_flight) of registered memory.
  Epochs(const Common& common_parts, uint32_t max_in_flight, ArenaPart arena)
      : common(common_parts),
        home(common, arena.After(Operations::ArenaBytes(max_in_flight))),
        registration(common.clock, common.shape.lease_ns),
        operations(common, home, registration, max_in_flight, arena),
        memory(common.shape.chunk_bytes),
        retired(common, home, cache, memory),
        registrar(common, home, operations, registration, memory, retired, own_work),
        observer(common, home, registrar, own_work),
        chunks(common, home, memory),
        allocator(common, home, memory, chunks, operations, room, own_work) {}

  const Common common;
  OwnWork own_work;
  Room room;
  Home home;
  Registration registration;
  Operations operations;
  DirectoryCache cache;
  ClientMemory memory;
  RetiredTables retired;
  Registrar registrar;
  Observer observer;
  Chunks chunks;
  Allocator allocator;
};

}  // namespace kvs

#endif  // KVS_EPOCHS_EPOCHS_H_
