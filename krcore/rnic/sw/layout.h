// What the processes of a fabric share: the control segment (one per fabric) and the device segment (one per device).
// It is plain memory with the same layout in every process; addresses in it are the owner's and mean nothing elsewhere.
// docs/krcore.md says why a kill -9 at any instruction leaves all of it usable.
//
// Who writes what: slots of the control segment change under the fabric's admin lock. The exceptions are
// DeviceSlot::life, which anybody may move from alive to dead by CAS; the words of a HostQp, likewise by single
// atomics; and the host's memory, whose users take care of it. Only its owner writes a device segment. Inboxes
// (inbox.h) are the only structure that several devices write.
#ifndef KRCORE_RNIC_SW_LAYOUT_H_
#define KRCORE_RNIC_SW_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "krcore/rnic/software_nic.h"
#include "krcore/types.h"

namespace krcore::rnic::sw {

// Increment with every change of a structure below: processes of different builds must not share a fabric.
inline constexpr uint64_t kControlMagic = 0x73'75'72'67'65'6b'00'03;

inline constexpr uint32_t kMaxDevices = 1024;
inline constexpr uint32_t kDynamicNodes = 2 * kMaxDevices;  // ids handed out, in a cycle
inline constexpr uint32_t kMaxRecords = 256;
inline constexpr uint32_t kMaxMrs = 2048;       // per device
inline constexpr uint32_t kMaxQps = 1024;       // per device; Qps and Dcts
inline constexpr uint32_t kMaxSegments = 1024;  // per device; memories and inboxes
inline constexpr uint32_t kNoSegment = ~uint32_t{0};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

enum class Life : uint8_t { kFree = 0, kAlive = 1, kDead = 2 };

// Incarnation and life share a word, so that one load tells a device's initiators whether *their* peer lives.
constexpr uint64_t LifeWord(uint32_t incarnation, Life life) {
  return uint64_t{incarnation} << 8 | static_cast<uint64_t>(life);
}
constexpr Life LifeOf(uint64_t word) { return static_cast<Life>(word & 0xff); }
constexpr uint32_t IncarnationOf(uint64_t word) { return static_cast<uint32_t>(word >> 8); }

struct alignas(64) DeviceSlot {
  std::atomic<uint64_t> life;  // released when the device segment is complete; pairs with acquire loads of peers
  std::atomic<uint32_t> node;
  std::atomic<int32_t> pid;  // for messages only, never for decisions
};
static_assert(sizeof(DeviceSlot) == 64);

struct alignas(64) RecordSlot {
  uint64_t version;  // 0: free. Written last, so that a publisher's death leaves a free slot or a whole record
  uint32_t owner;    // incarnation of the device that published it
  uint32_t length;
  char name[kRecordNameBytes];
  std::byte value[kRecordValueBytes];
};
static_assert(sizeof(RecordSlot) == 192);

// A segment of its own, with the value behind this. Never changed once it has the name of its record.
struct FabricRecordHeader {
  uint64_t magic;
  uint64_t version;
  uint64_t length;
};
static_assert(sizeof(FabricRecordHeader) == 24);
inline constexpr uint64_t kFabricRecordMagic = 0x73'75'72'67'65'72'00'01;

inline constexpr uint32_t kHostQps = 16;
inline constexpr uint32_t kHostQpParts = 63;  // of each initiator
inline constexpr size_t kHostMemoryBytes = size_t{384} << 10;

// A DC initiator that the host's processes share (HostQpPart).
struct alignas(64) HostQp {
  std::atomic<uint64_t> state;                  // number of resets << 1 | in ERR
  std::atomic<uint64_t> holders[kHostQpParts];  // PeerWord of the device and its QP; 0: the part is free
};

struct Control {
  uint64_t magic;  // written last when the segment is made, under the admin lock
  uint32_t next_incarnation;
  uint32_t next_node;
  uint64_t next_record_version;
  uint64_t reserved[5];
  DeviceSlot devices[kMaxDevices];
  RecordSlot records[kMaxRecords];
  HostQp host_qps[kHostQps];
  alignas(64) std::byte host_memory[kHostMemoryBytes];  // Device::HostMemory
};
static_assert(offsetof(Control, devices) == 64);
static_assert(sizeof(Control) ==
              64 + 64 * kMaxDevices + 192 * kMaxRecords + sizeof(HostQp) * kHostQps + kHostMemoryBytes);

inline constexpr size_t kSuffixBytes = 48;

// A piece of memory that peers may map: its file is the fabric's prefix and `suffix`.
struct alignas(64) SegmentEntry {
  std::atomic<uint64_t> serial;  // 0: free. Never reused within a device; readers check it before and after
  uint64_t reserved;
  std::atomic<uint64_t> suffix[kSuffixBytes / 8];  // NUL-padded
};
static_assert(sizeof(SegmentEntry) == 64);

// One memory region. `key` is lkey and rkey: generation << 16 | index. A peer that sees the key it was given (acquire;
// the owner stores it last, with release) may use the other fields, and checks the key again before every access.
struct alignas(64) MrEntry {
  std::atomic<uint32_t> key;     // 0: free
  std::atomic<uint32_t> rights;  // of AccessRights
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> segment;  // kNoSegment: private memory
  std::atomic<uint64_t> serial;   // of that segment
  std::atomic<uint64_t> base;     // the owner's address, which remote_addr is based on
  std::atomic<uint64_t> length;
  std::atomic<uint64_t> offset;  // of base in the segment
};
static_assert(sizeof(MrEntry) == 64);

// The other bits of the index part are zero in every key handed out, so comparing whole keys finds bad indices too.
constexpr uint32_t MrIndex(uint32_t key) { return key & (kMaxMrs - 1); }
static_assert((kMaxMrs & (kMaxMrs - 1)) == 0 && kMaxMrs <= 0x10000);

// State of a Qp or Dct, as peers need it, in one word: number << 32 | type << 8 | state (QpState). RTR and RTS differ
// only in the lowest bit, so "serves requests" is one mask and one compare.
inline constexpr uint64_t kServingMask = ~uint64_t{1};
static_assert(static_cast<uint8_t>(QpState::kRtr) == 2 && static_cast<uint8_t>(QpState::kRts) == 3);
constexpr uint64_t QpWord(uint32_t number, EntryType type, uint8_t state) {
  return uint64_t{number} << 32 | uint64_t{static_cast<uint8_t>(type)} << 8 | state;
}

struct alignas(64) QpEntry {
  std::atomic<uint64_t> word;  // 0: free. Stored with release after the fields; pairs with initiators' acquire
  std::atomic<uint64_t> peer;  // RC: PeerWord of the connected Qp; DCT: the dc_key
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> rights;
  std::atomic<uint32_t> qkey;
  std::atomic<uint32_t> inbox_segment;  // kNoSegment: receives nothing
  std::atomic<uint64_t> inbox_serial;
};
static_assert(sizeof(QpEntry) == 64);

// Incarnations are unique on a fabric, so this word names one Qp of one device for ever.
constexpr uint64_t PeerWord(uint32_t incarnation, uint32_t number) { return uint64_t{incarnation} << 32 | number; }

// Numbers are 24 bits wide as in verbs: generation << 10 | index.
static_assert(kMaxQps == 1 << 10);
constexpr uint32_t QpIndex(uint32_t number) { return number & (kMaxQps - 1); }

struct DeviceSegment {
  MrEntry mrs[kMaxMrs];
  QpEntry qps[kMaxQps];
  SegmentEntry segments[kMaxSegments];
};
static_assert(sizeof(DeviceSegment) == 64 * (kMaxMrs + kMaxQps + kMaxSegments));

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_LAYOUT_H_
