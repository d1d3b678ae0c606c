// The form of a one-sided request or a message: what is wrong with it whatever memory it names. Verbs refuse that when
// a request is posted. One rule for the NIC interface of user space, the software DC and the kernel module, which have
// structs of their own for requests: it is told the values.
#ifndef KRCORE_RNIC_SDC_REQUEST_FORM_H_
#define KRCORE_RNIC_SDC_REQUEST_FORM_H_

#include "krcore/rnic/sdc/types.h"

static inline bool sdc_is_atomic(uint32_t opcode) {
  return opcode == SDC_OP_COMPARE_SWAP || opcode == SDC_OP_FETCH_ADD;
}
static inline bool sdc_is_send(uint32_t opcode) { return opcode == SDC_OP_SEND || opcode == SDC_OP_SEND_IMM; }

// `opcode`: of sdc_opcode, if it is one. `bytes`: of all its SGEs; of a request that is neither an atomic nor inline it
// does not matter. How many SGEs and bytes there may be is the caller's to know.
static inline bool sdc_is_well_formed(uint32_t opcode, uint32_t sge_count, uint64_t bytes, uint64_t remote_addr,
                                      bool is_inline, uint32_t max_inline_bytes) {
  if (opcode > SDC_OP_FETCH_ADD) return false;
  // The NIC takes no other word, and puts the old one into its SGE.
  if (sdc_is_atomic(opcode) && (sge_count != 1 || bytes != 8 || (remote_addr & 7) != 0)) return false;
  // What is written to cannot be copied when it is posted.
  return !is_inline || (opcode != SDC_OP_READ && !sdc_is_atomic(opcode) && bytes <= max_inline_bytes);
}

#endif  // KRCORE_RNIC_SDC_REQUEST_FORM_H_
