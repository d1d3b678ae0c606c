// Mutations: each protection of the protocol has a switch that takes it away, so that tests can show that they would
// notice. Only the library kvs_mutable has the switches; elsewhere Mutated() is false and costs nothing.
//
// To add one, write a line in mutations.def, from which tests take their list, and Mutated(Mutation::kIt) at the
// protection.
#ifndef KVS_MEMORY_MUTATION_H_
#define KVS_MEMORY_MUTATION_H_

#include <cstdint>

namespace kvs {

enum class Mutation : uint8_t {
  kNone,
#define MUTATION(id, name, what) id,
#include "kvs/memory/mutations.def"
#undef MUTATION
};

#ifdef SURGEKV_MUTATIONS
// The mutation that is in force. Tests set it before any client exists.
inline Mutation active_mutation = Mutation::kNone;
inline bool Mutated(Mutation mutation) { return active_mutation == mutation; }
#else
constexpr bool Mutated(Mutation) { return false; }
#endif

}  // namespace kvs

#endif  // KVS_MEMORY_MUTATION_H_
