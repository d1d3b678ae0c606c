// The wire format: packets that are built parse, and nothing else does.
#include "krcore/rnic/sdc/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace {

std::vector<uint8_t> Build(const sdc_packet& packet) {
  std::vector<uint8_t> bytes(SDC_MAX_MTU_BYTES);
  const uint32_t head = sdc_build(bytes.data(), &packet);
  bytes.resize(head + (sdc_has_data(packet.kind) ? packet.bytes : 0), 0xab);
  return bytes;
}

bool Parses(const std::vector<uint8_t>& bytes) {
  sdc_packet packet;
  return sdc_parse(bytes.data(), static_cast<uint32_t>(bytes.size()), &packet);
}

sdc_packet Write() {
  sdc_packet packet{};
  packet.kind = SDC_WRITE;
  packet.bytes = 16;
  packet.length = 64;
  packet.offset = 48;
  packet.addr = 0x123456789abcdef0;
  packet.rkey = 0x11223344;
  packet.imm = 5;
  packet.flags = SDC_FLAG_IMM | SDC_FLAG_ACK;
  packet.target = 1;
  packet.slot = 2;
  packet.tag = 3;
  packet.psn = 0xfffffffe;
  packet.nonce = 0x8877665544332211;
  packet.time = ~uint64_t{0};
  return packet;
}

TEST(SdcWire, ARequestIsParsedAsItWasBuilt) {
  const std::vector<uint8_t> bytes = Build(Write());
  ASSERT_EQ(bytes.size(), 40u + 24 + 16);
  sdc_packet read;
  ASSERT_TRUE(sdc_parse(bytes.data(), static_cast<uint32_t>(bytes.size()), &read));
  const sdc_packet wrote = Write();
  EXPECT_EQ(read.kind, wrote.kind);
  EXPECT_EQ(read.addr, wrote.addr);
  EXPECT_EQ(read.rkey, wrote.rkey);
  EXPECT_EQ(read.length, wrote.length);
  EXPECT_EQ(read.offset, wrote.offset);
  EXPECT_EQ(read.imm, wrote.imm);
  EXPECT_EQ(read.flags, wrote.flags);
  EXPECT_EQ(read.target, wrote.target);
  EXPECT_EQ(read.slot, wrote.slot);
  EXPECT_EQ(read.tag, wrote.tag);
  EXPECT_EQ(read.psn, wrote.psn);
  EXPECT_EQ(read.nonce, wrote.nonce);
  EXPECT_EQ(read.time, wrote.time);
  EXPECT_EQ(read.bytes, wrote.bytes);
  EXPECT_EQ(read.data, bytes.data() + 64);
}

TEST(SdcWire, TheBytesAreLittleEndian) {
  const std::vector<uint8_t> bytes = Build(Write());
  EXPECT_EQ(bytes[0], 0x44);
  EXPECT_EQ(bytes[1], 0x53);
  EXPECT_EQ(bytes[16], 0x11);  // the nonce
  EXPECT_EQ(bytes[23], 0x88);
  EXPECT_EQ(bytes[40], 0xf0);  // the address
}

TEST(SdcWire, EveryKindIsParsedAtItsVeryLength) {
  for (int kind = 0; kind < 256; ++kind) {
    sdc_packet packet{};
    packet.kind = static_cast<uint8_t>(kind);
    if (kind == SDC_ATOMIC) packet.code = SDC_OP_FETCH_ADD;
    if (kind == SDC_NAK) packet.code = SDC_RETRY_EXCEEDED;
    std::vector<uint8_t> bytes = Build(packet);
    EXPECT_EQ(Parses(bytes), sdc_is_request(packet.kind) || sdc_is_answer(packet.kind)) << kind;
    bytes.push_back(0);
    EXPECT_FALSE(Parses(bytes)) << kind;
    bytes.pop_back();
    while (!bytes.empty()) {
      bytes.pop_back();
      EXPECT_FALSE(Parses(bytes)) << kind << " of " << bytes.size();
    }
  }
}

TEST(SdcWire, WhatIsNoPacketIsNotParsed) {
  const auto changed = [](size_t at, uint8_t value) {
    std::vector<uint8_t> bytes = Build(Write());
    bytes[at] = value;
    return Parses(bytes);
  };
  EXPECT_TRUE(changed(4, 9));     // the target: any
  EXPECT_FALSE(changed(0, 0));    // magic
  EXPECT_FALSE(changed(2, 2));    // version
  EXPECT_FALSE(changed(28, 4));   // a flag that WRITE does not have
  EXPECT_FALSE(changed(29, 1));   // a code
  EXPECT_FALSE(changed(30, 17));  // more bytes than there are
  EXPECT_FALSE(changed(30, 15));
}

TEST(SdcWire, LengthsNearTheEndOfTheirRangeDoNotOverflow) {
  sdc_packet packet = Write();
  packet.length = 0xffffffff;
  packet.offset = 0xffffffff - 16;
  packet.addr = 0;
  EXPECT_TRUE(Parses(Build(packet)));
  packet.offset = 0xffffffff - 15;  // offset + bytes wraps to 0
  EXPECT_FALSE(Parses(Build(packet)));
  packet = Write();
  packet.addr = ~uint64_t{0} - 63;
  EXPECT_TRUE(Parses(Build(packet)));
  packet.addr = ~uint64_t{0} - 62;  // its last byte is beyond the last of memory
  EXPECT_FALSE(Parses(Build(packet)));
  packet = Write();
  packet.bytes = 0;  // a segment of nothing, of a message of something
  EXPECT_FALSE(Parses(Build(packet)));
}

TEST(SdcWire, ASegmentFitsTheMtu) {
  for (const uint32_t mtu : {256u, 1024u, 2048u, 4096u}) {
    EXPECT_LE(sdc_segment_bytes(mtu) + 64, mtu);
    EXPECT_EQ(sdc_segment_bytes(mtu) % 8, 0u);
  }
}

}  // namespace
