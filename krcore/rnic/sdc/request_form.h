// The form of a one-sided request or a message: what is wrong with it whatever memory it names. Verbs refuse such a
// request when it is posted. This one rule serves the NIC interface of user space, the software DC and the kernel
// module. They have structs of their own for requests, so it takes the values.
#ifndef KRCORE_RNIC_SDC_REQUEST_FORM_H_
#define KRCORE_RNIC_SDC_REQUEST_FORM_H_

#include "krcore/rnic/sdc/types.h"

static inline bool sdc_is_atomic(uint32_t opcode) {
  return opcode == SDC_OP_COMPARE_SWAP || opcode == SDC_OP_FETCH_ADD;
}
static inline bool sdc_is_send(uint32_t opcode) { return opcode == SDC_OP_SEND || opcode == SDC_OP_SEND_IMM; }

// `opcode`: of sdc_opcode, if it is one. `bytes`: of all its SGEs; ignored for a request that is neither an atomic nor
// inline. The caller checks how many SGEs and bytes there may be.
static inline bool sdc_is_well_formed(uint32_t opcode, uint32_t sge_count, uint64_t bytes, uint64_t remote_addr,
                                      bool is_inline, uint32_t max_inline_bytes) {
  if (opcode > SDC_OP_FETCH_ADD) return false;
  // The NIC accepts only an aligned 8-byte word, and puts the old value into the request's SGE.
  if (sdc_is_atomic(opcode) && (sge_count != 1 || bytes != 8 || (remote_addr & 7) != 0)) return false;
  // A request cannot be inline if its local memory is written to: there is nothing to copy when it is posted.
  return !is_inline || (opcode != SDC_OP_READ && !sdc_is_atomic(opcode) && bytes <= max_inline_bytes);
}

#endif  // KRCORE_RNIC_SDC_REQUEST_FORM_H_
