#include "krcore/rnic/sdc/wire.h"

#include "krcore/rnic/sdc/mutation.h"

#ifdef SURGEKV_MUTATIONS
enum sdc_mutation sdc_active_mutation = SDC_MUTATION_NONE;
#endif

static bool is_transfer(uint8_t kind) { return kind == SDC_READ || kind == SDC_WRITE || kind == SDC_SEND; }
static bool is_welcome(uint8_t kind) { return kind == SDC_WELCOME || kind == SDC_REFUSED || kind == SDC_BUSY; }

static uint32_t extension_bytes(uint8_t kind) {
  if (is_transfer(kind)) return sizeof(struct sdc_transfer);
  if (is_welcome(kind)) return sizeof(struct sdc_welcome);
  if (kind == SDC_HELLO) return sizeof(struct sdc_hello);
  if (kind == SDC_ATOMIC) return sizeof(struct sdc_atomic);
  if (kind == SDC_RESULT) return sizeof(uint64_t);
  return 0;
}

static uint8_t flags_of(uint8_t kind) {
  if (kind == SDC_WRITE || kind == SDC_SEND) return SDC_FLAG_IMM | SDC_FLAG_ACK;
  return kind == SDC_GONE ? SDC_FLAG_KNOWN : 0;
}

bool sdc_nak_carries(uint8_t code) { return code >= SDC_REMOTE_INVALID_REQUEST && code <= SDC_RETRY_EXCEEDED; }

static bool code_fits(uint8_t kind, uint8_t code) {
  if (kind == SDC_ATOMIC) return code == SDC_OP_COMPARE_SWAP || code == SDC_OP_FETCH_ADD;
  if (kind == SDC_NAK) return sdc_nak_carries(code);
  return code == 0;
}

static bool parse_header(const uint8_t* at, uint32_t bytes, struct sdc_packet* out) {
  struct sdc_header header;
  if (bytes < sizeof(header)) return false;
  sdc_copy(&header, at, sizeof(header));
  if (SDC_LE16(header.magic) != SDC_MAGIC || header.version != SDC_VERSION) return false;
  if (!sdc_is_request(header.kind) && !sdc_is_answer(header.kind)) return false;
  if ((header.flags & ~flags_of(header.kind)) != 0 || !code_fits(header.kind, header.code)) return false;
  sdc_clear(out, sizeof(*out));
  out->kind = header.kind;
  out->flags = header.flags;
  out->code = header.code;
  out->bytes = SDC_LE16(header.bytes);
  out->target = SDC_LE32(header.target);
  out->slot = SDC_LE32(header.slot);
  out->tag = SDC_LE32(header.tag);
  out->psn = SDC_LE32(header.psn);
  out->nonce = SDC_LE64(header.nonce);
  out->time = SDC_LE64(header.time);
  return true;
}

static bool parse_transfer(const uint8_t* at, struct sdc_packet* out) {
  struct sdc_transfer transfer;
  sdc_copy(&transfer, at, sizeof(transfer));
  out->addr = SDC_LE64(transfer.addr);
  out->rkey = SDC_LE32(transfer.rkey);
  out->length = SDC_LE32(transfer.length);
  out->offset = SDC_LE32(transfer.offset);
  out->imm = SDC_LE32(transfer.imm);
  if (out->offset > out->length || out->bytes > out->length - out->offset) return false;
  if ((out->bytes == 0) != (out->length == 0)) return false;
  return out->length == 0 || out->addr + (out->length - 1) >= out->addr;  // it does not wrap around
}

bool sdc_parse(const void* packet, uint32_t bytes, struct sdc_packet* out) {
  const uint8_t* at = (const uint8_t*)packet;
  if (!parse_header(at, bytes, out)) return false;
  at += sizeof(struct sdc_header);
  bytes -= (uint32_t)sizeof(struct sdc_header);
  const uint32_t extension = extension_bytes(out->kind);
  if (bytes < extension) return false;
  const uint32_t data = sdc_has_data(out->kind) ? out->bytes : 0;
  if (bytes - extension != data) return false;
  if (data == 0 && out->bytes != 0 && out->kind != SDC_READ) return false;
  out->data = at + extension;
  if (is_transfer(out->kind)) return parse_transfer(at, out);
  if (is_welcome(out->kind)) {
    struct sdc_welcome welcome;
    sdc_copy(&welcome, at, sizeof(welcome));
    out->life = SDC_LE64(welcome.life);
    out->id = SDC_LE32(welcome.id);
    return welcome.zero == 0;
  }
  if (out->kind == SDC_HELLO) {
    struct sdc_hello hello;
    sdc_copy(&hello, at, sizeof(hello));
    out->life = SDC_LE64(hello.life);
    out->key = SDC_LE64(hello.key);
    out->id = SDC_LE32(hello.id);
    return hello.zero == 0;
  }
  if (out->kind == SDC_ATOMIC) {
    struct sdc_atomic atomic;
    sdc_copy(&atomic, at, sizeof(atomic));
    out->addr = SDC_LE64(atomic.addr);
    out->compare_add = SDC_LE64(atomic.compare_add);
    out->swap = SDC_LE64(atomic.swap);
    out->rkey = SDC_LE32(atomic.rkey);
    return atomic.zero == 0;
  }
  if (out->kind == SDC_RESULT) {
    uint64_t word;
    sdc_copy(&word, at, sizeof(word));
    out->word = SDC_LE64(word);
  }
  return true;
}

uint32_t sdc_build(uint8_t* to, const struct sdc_packet* packet) {
  const struct sdc_header header = {
      .magic = SDC_LE16(SDC_MAGIC),
      .version = SDC_VERSION,
      .kind = packet->kind,
      .target = SDC_LE32(packet->target),
      .slot = SDC_LE32(packet->slot),
      .tag = SDC_LE32(packet->tag),
      .nonce = SDC_LE64(packet->nonce),
      .psn = SDC_LE32(packet->psn),
      .flags = packet->flags,
      .code = packet->code,
      .bytes = SDC_LE16(packet->bytes),
      .time = SDC_LE64(packet->time),
  };
  sdc_copy(to, &header, sizeof(header));
  to += sizeof(header);
  if (is_transfer(packet->kind)) {
    const struct sdc_transfer transfer = {SDC_LE64(packet->addr), SDC_LE32(packet->rkey), SDC_LE32(packet->length),
                                          SDC_LE32(packet->offset), SDC_LE32(packet->imm)};
    sdc_copy(to, &transfer, sizeof(transfer));
  } else if (is_welcome(packet->kind)) {
    const struct sdc_welcome welcome = {SDC_LE64(packet->life), SDC_LE32(packet->id), 0};
    sdc_copy(to, &welcome, sizeof(welcome));
  } else if (packet->kind == SDC_HELLO) {
    const struct sdc_hello hello = {SDC_LE64(packet->life), SDC_LE64(packet->key), SDC_LE32(packet->id), 0};
    sdc_copy(to, &hello, sizeof(hello));
  } else if (packet->kind == SDC_ATOMIC) {
    const struct sdc_atomic atomic = {SDC_LE64(packet->addr), SDC_LE64(packet->compare_add), SDC_LE64(packet->swap),
                                      SDC_LE32(packet->rkey), 0};
    sdc_copy(to, &atomic, sizeof(atomic));
  } else if (packet->kind == SDC_RESULT) {
    const uint64_t word = SDC_LE64(packet->word);
    sdc_copy(to, &word, sizeof(word));
  }
  return (uint32_t)sizeof(header) + extension_bytes(packet->kind);
}
