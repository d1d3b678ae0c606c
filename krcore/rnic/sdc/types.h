// What the core of the software DC needs of its surroundings: fixed-width types, byte order, copying. Compiles as C11
// in user space and in the kernel, and as C++ (tests).
#ifndef KRCORE_RNIC_SDC_TYPES_H_
#define KRCORE_RNIC_SDC_TYPES_H_

#ifdef __KERNEL__
#  include <linux/types.h>
#else
#  include <stdbool.h>
#  include <stddef.h>
#  include <stdint.h>
#endif

#ifdef __cplusplus
#  define SDC_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#  define SDC_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

// Where a UD queue is reached: what is needed to make an address handle, and the queue's number. Compared byte by byte.
struct sdc_address {
  uint8_t bytes[24];
  uint32_t qpn;
  uint32_t reserved;  // 0
};
SDC_STATIC_ASSERT(sizeof(struct sdc_address) == 32, "an address has no padding");

struct sdc_sge {
  uint64_t addr;
  uint32_t length;
  uint32_t lkey;
};

#define SDC_MAX_SGE 4u

// In the order of krcore::Opcode.
enum sdc_opcode {
  SDC_OP_READ,
  SDC_OP_WRITE,
  SDC_OP_WRITE_IMM,
  SDC_OP_SEND,
  SDC_OP_SEND_IMM,
  SDC_OP_COMPARE_SWAP,
  SDC_OP_FETCH_ADD,
};

// In the order of krcore::WcStatus.
enum sdc_status {
  SDC_SUCCESS,
  SDC_LOCAL_LENGTH_ERROR,
  SDC_LOCAL_QP_ERROR,
  SDC_LOCAL_PROTECTION_ERROR,
  SDC_FLUSHED,
  SDC_REMOTE_INVALID_REQUEST,
  SDC_REMOTE_ACCESS_ERROR,
  SDC_REMOTE_OPERATION_ERROR,
  SDC_RETRY_EXCEEDED,
  SDC_RNR_RETRY_EXCEEDED,
};

// Of krcore::AccessRights.
enum sdc_access {
  SDC_ACCESS_READ = 2,
  SDC_ACCESS_WRITE = 4,
  SDC_ACCESS_ATOMIC = 8,
};

// Sequence numbers wrap. Returns whether `a` comes before `b`; they must be less than 2^31 apart.
static inline bool sdc_before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#  define SDC_LE16(x) ((uint16_t)(x))
#  define SDC_LE32(x) ((uint32_t)(x))
#  define SDC_LE64(x) ((uint64_t)(x))
#else
#  define SDC_LE16(x) __builtin_bswap16((uint16_t)(x))
#  define SDC_LE32(x) __builtin_bswap32((uint32_t)(x))
#  define SDC_LE64(x) __builtin_bswap64((uint64_t)(x))
#endif

static inline void sdc_copy(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0) __builtin_memcpy(to, from, bytes);
}

static inline void sdc_clear(void* at, uint64_t bytes) { __builtin_memset(at, 0, bytes); }

static inline bool sdc_same_address(const struct sdc_address* a, const struct sdc_address* b) {
  return __builtin_memcmp(a, b, sizeof(*a)) == 0;
}

// Copies from memory that others change: its aligned 8-byte words are read whole.
static inline void sdc_copy_from_shared(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  for (; bytes != 0 && ((uintptr_t)from & 7u) != 0; --bytes) *to++ = __atomic_load_n(from++, __ATOMIC_ACQUIRE);
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) {
    const uint64_t word = __atomic_load_n((const uint64_t*)from, __ATOMIC_ACQUIRE);
    __builtin_memcpy(to, &word, 8);
  }
  for (; bytes != 0; --bytes) *to++ = __atomic_load_n(from++, __ATOMIC_ACQUIRE);
}

// Copies to memory that others read: its aligned 8-byte words are written whole.
static inline void sdc_copy_to_shared(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  for (; bytes != 0 && ((uintptr_t)to & 7u) != 0; --bytes) __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) {
    uint64_t word;
    __builtin_memcpy(&word, from, 8);
    __atomic_store_n((uint64_t*)to, word, __ATOMIC_RELEASE);
  }
  for (; bytes != 0; --bytes) __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
}

// The form of a one-sided request or a message: what is wrong with it whatever memory it names. Verbs refuse such a
// request when it is posted. This one rule serves the NIC interface of user space, the software DC and the kernel
// module. They have structs of their own for requests, so it takes the values.

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

#endif  // KRCORE_RNIC_SDC_TYPES_H_
