// The messages between members and the membership service of a fabric over TCP: a fixed header, then the body of its
// kind, in the byte order of x86 and ARM. A connection carries one request at a time, and each has one reply.
#ifndef KRCORE_RNIC_VERBS_WIRE_H_
#define KRCORE_RNIC_VERBS_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "krcore/rnic/request_form.h"

namespace krcore::rnic::verbs {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kWireMagic = 0x31'56'4b'53;  // "SKV1"
inline constexpr size_t kFabricBytes = 40;
inline constexpr size_t kMaxBody = 192;

enum class MessageType : uint8_t {
  kJoin = 1,  // JoinBody -> IdentityBody
  kAttach,    // AttachBody -> nothing
  kQuery,     // IncarnationBody -> StateBody
  kPublish,   // RecordBody -> nothing
  kLookup,    // RecordBody without a value -> RecordBody
  kLeave,     // nothing -> nothing
  kReply,
};

struct Header {
  uint32_t magic = kWireMagic;
  MessageType type = MessageType::kReply;
  uint8_t status = 0;       // replies: StatusCode; without a body unless kOk
  uint16_t body_bytes = 0;  // exactly as long as the type's body
};
static_assert(sizeof(Header) == 8);

struct JoinBody {
  char fabric[kFabricBytes] = {};  // padded with zeros
  uint32_t node = 0;               // kNoNode: the service chooses
  uint8_t address[24] = {};        // DeviceAddress::bytes
  uint32_t reserved = 0;
};
static_assert(sizeof(JoinBody) == 72);

// How a member proves on a further connection that it is the same member.
struct IdentityBody {
  uint32_t node = 0;
  uint32_t incarnation = 0;
  uint64_t token = 0;
};
static_assert(sizeof(IdentityBody) == 16);

struct AttachBody {
  char fabric[kFabricBytes] = {};
  uint64_t token = 0;
  uint32_t incarnation = 0;
  uint32_t channel = 0;
};
static_assert(sizeof(AttachBody) == 56);

struct IncarnationBody {
  uint32_t incarnation = 0;
};

struct StateBody {
  uint32_t state = 0;  // PeerState
};

struct RecordBody {
  char name[kRecordNameBytes] = {};
  uint32_t value_bytes = 0;
  uint8_t value[kRecordValueBytes] = {};
};
static_assert(sizeof(RecordBody) == 132);
static_assert(sizeof(RecordBody) <= kMaxBody && sizeof(JoinBody) <= kMaxBody);

// -1: there is no request of that type.
inline int RequestBytes(MessageType type) {
  switch (type) {
    case MessageType::kJoin: return sizeof(JoinBody);
    case MessageType::kAttach: return sizeof(AttachBody);
    case MessageType::kQuery: return sizeof(IncarnationBody);
    case MessageType::kPublish:
    case MessageType::kLookup: return sizeof(RecordBody);
    case MessageType::kLeave: return 0;
    case MessageType::kReply: break;
  }
  return -1;
}

template <typename Body>
std::span<const std::byte> BytesOf(const Body& body) {
  return std::as_bytes(std::span(&body, 1));
}
template <typename Body>
std::span<std::byte> WritableBytesOf(Body& body) {
  return std::as_writable_bytes(std::span(&body, 1));
}

// Returns a name of up to N bytes from a field padded with zeros.
template <size_t N>
std::string Text(const char (&field)[N]) {
  size_t length = 0;
  while (length < N && field[length] != 0) ++length;
  return {field, length};
}

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_WIRE_H_
