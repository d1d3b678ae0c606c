// Anything may arrive: random bytes, changed or truncated packets, other senders' packets. Seeded; runs under
// AddressSanitizer and UBSan as well. Neither end may touch memory that it was not given, or lose count.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/rnic/sdc/pair.h"

namespace sdc_test {
namespace {

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}
  uint64_t In(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
  uint64_t Odd() {
    static constexpr uint64_t kOdd[] = {0, 1, 7, 8, 255, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 1ULL << 63, ~0ULL};
    return In(0, 1) == 0 ? kOdd[In(0, 10)] : random_();
  }

  // Returns random bytes, in memory of exactly their length, so that a read of one byte too many is found.
  std::vector<uint8_t> Noise() {
    std::vector<uint8_t> bytes(In(0, 300));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    if (bytes.size() > 3 && In(0, 1) == 0) {
      bytes[0] = 0x44;
      bytes[1] = 0x53;
      bytes[2] = SDC_VERSION;
      bytes[3] = static_cast<uint8_t>(In(0, 30));
      if (In(0, 1) == 0) {
        // No flags, code or data, and a length that some kind of packet has.
        bytes.resize(40 + 8 * In(0, 4));
        std::fill(bytes.begin() + 28, bytes.begin() + 32, 0);
        if (In(0, 1) == 0) std::fill(bytes.begin() + 40, bytes.end(), 0);
      }
    }
    return bytes;
  }

  // Returns a packet that is right except for what is changed in it.
  std::vector<uint8_t> Change(std::vector<uint8_t> bytes) {
    const uint64_t changes = In(0, 3);
    for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
      const uint64_t odd = Odd();
      const size_t width = size_t{1} << In(0, 3);
      const size_t at = In(0, bytes.size() - 1) / width * width;
      if (at + width <= bytes.size()) std::memcpy(&bytes[at], &odd, width);
    }
    if (In(0, 4) == 0) bytes.resize(In(0, bytes.size() + 8));
    bytes.shrink_to_fit();
    return bytes;
  }

  // Returns a packet of a right length with fields of any value. It belongs to a session where there is one.
  std::vector<uint8_t> Make(const Pair& pair) {
    sdc_packet packet{};
    const uint8_t kinds[] = {SDC_HELLO,    SDC_READ,    SDC_WRITE, SDC_SEND, SDC_ATOMIC, SDC_CLOSE,
                             SDC_WELCOME,  SDC_REFUSED, SDC_BUSY,  SDC_ACK,  SDC_DATA,   SDC_RESULT,
                             SDC_PROGRESS, SDC_NAK,     SDC_RNR,   SDC_GAP,  SDC_GONE,   SDC_CLOSED};
    packet.kind = kinds[In(0, sizeof(kinds) - 1)];
    const sdc_peer& peer = pair.initiator.config.peers[In(0, 7)];
    const sdc_session& session = pair.target.config.sessions[In(0, 1)];
    const bool to_target = sdc_is_request(packet.kind);
    packet.target = Pair::kNumber;
    packet.tag = In(0, 3) == 0 ? static_cast<uint32_t>(Odd())
                               : Pair::kFirstTag + static_cast<uint32_t>(&peer - pair.initiator.config.peers);
    packet.slot = to_target ? static_cast<uint32_t>(&session - pair.target.config.sessions) : peer.slot;
    packet.nonce = to_target ? session.nonce : peer.nonce;
    packet.psn =
        (to_target ? session.psn : peer.psn) + static_cast<uint32_t>(In(0, 4)) - static_cast<uint32_t>(In(0, 8));
    packet.time = In(0, 1) == 0 ? pair.now_ns + 1000 : Odd();
    packet.life = In(0, 1);
    packet.id = In(0, 1) == 0 ? peer.hello_id : static_cast<uint32_t>(Odd());
    packet.key = Pair::kKey;
    packet.rkey = Pair::kRkey;
    packet.addr = reinterpret_cast<uint64_t>(pair.memory.data()) + In(0, 1) * 8 * In(0, 5000);
    packet.bytes = static_cast<uint16_t>(In(0, 200));
    packet.length = static_cast<uint32_t>(In(0, 1) == 0 ? packet.bytes : In(0, 1000));
    packet.offset = packet.length == packet.bytes ? 0 : static_cast<uint32_t>(In(0, packet.length));
    packet.code = packet.kind == SDC_ATOMIC ? static_cast<uint8_t>(In(5, 6))
                  : packet.kind == SDC_NAK  ? static_cast<uint8_t>(In(5, 7))
                                            : 0;
    if (packet.kind == SDC_WRITE || packet.kind == SDC_SEND) packet.flags = static_cast<uint8_t>(In(0, 3));
    if (packet.kind == SDC_GONE) packet.flags = In(0, 1) == 0 ? SDC_FLAG_KNOWN : 0;
    if (packet.kind != SDC_READ && !sdc_has_data(packet.kind)) packet.bytes = 0;
    std::vector<uint8_t> bytes(64 + 256);
    const uint32_t head = sdc_build(bytes.data(), &packet);
    bytes.resize(head + (sdc_has_data(packet.kind) ? packet.bytes : 0));
    bytes.shrink_to_fit();
    return bytes;
  }

 private:
  std::mt19937_64 random_;
};

void CheckCounts(const Pair& pair) {
  const sdc_initiator& initiator = pair.initiator;
  ASSERT_LE(initiator.slot_tail - initiator.slot_head, SDC_WINDOW);
  ASSERT_LE(initiator.posted - initiator.polled, initiator.config.depth);
  ASSERT_LE(initiator.done - initiator.polled, initiator.posted - initiator.polled);
  uint32_t users = 0, closing = 0;
  for (uint32_t i = 0; i < initiator.config.peer_count; ++i) {
    const sdc_peer& peer = initiator.config.peers[i];
    users += peer.users;
    closing += peer.state == SDC_PEER_CLOSING;
    ASSERT_LE(peer.in_flight, SDC_WINDOW);
    ASSERT_LE(peer.atomics, peer.in_flight);
  }
  ASSERT_EQ(users, initiator.slot_tail - initiator.slot_head);
  ASSERT_EQ(closing, initiator.closing);
  const sdc_target& target = pair.target;
  uint32_t held = 0;
  for (uint32_t i = 0; i < target.config.session_count; ++i) {
    const sdc_session& session = target.config.sessions[i];
    if (session.state != SDC_SESSION_FREE && session.has_message) ++held;
  }
  ASSERT_EQ(held, target.receives_held);
  ASSERT_LE(target.receives_posted + held, target.config.receive_count);
}

TEST(SdcFuzz, NoiseIsNoPacketOrAnHonestOne) {
  Fuzzer fuzzer(1);
  uint32_t parsed = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::vector<uint8_t> bytes = fuzzer.Noise();
    sdc_packet packet;
    if (!sdc_parse(bytes.data(), static_cast<uint32_t>(bytes.size()), &packet)) continue;
    ++parsed;
    ASSERT_TRUE(sdc_is_request(packet.kind) || sdc_is_answer(packet.kind));
    ASSERT_TRUE(!sdc_has_data(packet.kind) || packet.data + packet.bytes == bytes.data() + bytes.size());
    ASSERT_LE(packet.offset, packet.length);
  }
  EXPECT_GT(parsed, 0u);
}

void Attack(uint64_t seed, uint64_t* packets) {
  Fuzzer fuzzer(seed);
  Pair pair;
  std::vector<std::vector<uint8_t>> seen;
  for (int step = 0; step < 300; ++step) {
    if (fuzzer.In(0, 3) == 0 && sdc_initiator_is_reset(&pair.initiator)) {
      static constexpr sdc_opcode kOpcodes[] = {SDC_OP_READ,     SDC_OP_WRITE,        SDC_OP_WRITE_IMM, SDC_OP_SEND,
                                                SDC_OP_SEND_IMM, SDC_OP_COMPARE_SWAP, SDC_OP_FETCH_ADD};
      const sdc_opcode opcode = kOpcodes[fuzzer.In(0, 6)];
      const bool atomic = opcode == SDC_OP_COMPARE_SWAP || opcode == SDC_OP_FETCH_ADD;
      pair.Post(pair.Wr(opcode, atomic ? 8 : static_cast<uint32_t>(fuzzer.In(0, 1000))));
    }
    if (fuzzer.In(0, 5) == 0) pair.PostReceive(1024);
    for (auto* queue : {&pair.requests, &pair.answers}) {
      if (!queue->empty() && seen.size() < 200) seen.push_back(queue->front());
    }
    const uint64_t what = fuzzer.In(0, 9);
    std::vector<uint8_t> bytes = what < 3 ? fuzzer.Make(pair) : fuzzer.Noise();
    if (what >= 5 && !seen.empty()) bytes = fuzzer.Change(seen[fuzzer.In(0, seen.size() - 1)]);
    bytes.shrink_to_fit();
    *packets += 2;
    pair.Arrive(bytes);
    sdc_initiator_receive(&pair.initiator, bytes.data(), static_cast<uint32_t>(bytes.size()), pair.now_ns);
    ASSERT_NO_FATAL_FAILURE(CheckCounts(pair)) << "seed " << seed << " step " << step;
    if (!pair.requests.empty() && fuzzer.In(0, 2) != 0) pair.Request();
    if (!pair.answers.empty() && fuzzer.In(0, 2) != 0) pair.Answer();
    if (!pair.atomics.empty() && fuzzer.In(0, 2) == 0) pair.ExecuteAtomic();
    if (fuzzer.In(0, 3) == 0) pair.Wait(fuzzer.In(0, 3 * Pair::kRetryNs));
    pair.Completions();
    if (fuzzer.In(0, 50) == 0 || pair.initiator.state == SDC_QUEUE_ERROR)
      sdc_initiator_reset(&pair.initiator, pair.now_ns);
    ASSERT_NO_FATAL_FAILURE(CheckCounts(pair)) << "seed " << seed << " step " << step;
  }
}

TEST(SdcFuzz, BothEndsSurviveForgedPackets) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kSeeds = 100;
#else
  constexpr uint64_t kSeeds = 500;
#endif
  uint64_t packets = 0;
  for (uint64_t seed = 1; seed <= kSeeds && !HasFatalFailure(); ++seed) Attack(seed, &packets);
  EXPECT_GE(packets, kSeeds * 2);
}

}  // namespace
}  // namespace sdc_test
