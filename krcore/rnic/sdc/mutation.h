// Mutations: each switch takes away one protection of the protocol, so that tests can show that they would notice. Only
// the library krcore_sdc_mutable has the switches; elsewhere sdc_mutated() is 0 and costs nothing.
#ifndef KRCORE_RNIC_SDC_MUTATION_H_
#define KRCORE_RNIC_SDC_MUTATION_H_

enum sdc_mutation {
  SDC_MUTATION_NONE,
#define MUTATION(id, name, what) SDC_MUTATION_##id,
#include "krcore/rnic/sdc/mutations.def"
#undef MUTATION
};

#ifdef SURGEKV_MUTATIONS
#  ifdef __cplusplus
extern "C" {
#  endif
extern enum sdc_mutation sdc_active_mutation;  // the active one
#  ifdef __cplusplus
}
#  endif
#  define sdc_mutated(id) (sdc_active_mutation == SDC_MUTATION_##id)
#else
#  define sdc_mutated(id) 0
#endif

#endif  // KRCORE_RNIC_SDC_MUTATION_H_
