// The module's software DC, as its users find it: provider verbs in user space, which shares the protocol's core. Part
// of it runs in two guests of tools/vm (tests/vm/guest/kmod_*): KMOD_OTHER_HOST names the part.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "krcore/rnic/verbs/ud_port.h"
#include "tests/kmod/software_dc_client.h"

namespace kmod_test {
namespace {

using krcore::Opcode;
using krcore::WcStatus;
using krcore::rnic::SendWr;

constexpr char kFile[] = "software_dc";
constexpr char kFabric[] = "software_dc";

// A node that has published its memory except the first and the last page, and starting in the middle of a page.
struct Published : Side {
  static constexpr size_t kFrom = kPage + 24;
  explicit Published(size_t bytes = 64 * kPage, uint32_t access = kAllRights) : Side(64, bytes, 0) {
    EXPECT_EQ(queue.Register(begin(), length(), access, &rkey), 0);
    EXPECT_EQ(queue.Join(kFabric), 0);
    const krc_shared_region region = {0, 0, rkey, 0, 0, 0};
    EXPECT_EQ(queue.Publish({&region, 1}), 0);
    EXPECT_EQ(queue.DcTarget(&target), 0);
  }
  uint8_t* begin() const { return memory.bytes() + kFrom; }
  size_t length() const { return memory.size() - kFrom - kPage; }

  krc_dc_target target = {};
  uint32_t rkey = 0;
};

// Fills with bytes that differ at each place and in each round.
void Fill(uint8_t* bytes, size_t length, uint32_t round) {
  std::minstd_rand random(round + 1);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<uint8_t>(random() >> 8);
}

TEST(SoftwareDc, ReadsAndWritesWhatANodeHasPublished) {
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  const int64_t executed = Counter("executed", kFile);
  uint32_t round = 0;
  for (const uint32_t length : {1u, 7u, 8u, 63u, 960u, 961u, 4096u, 5000u, 65536u}) {
    for (const size_t offset : {size_t{0}, size_t{5}, kPage - 3, published.length() - length}) {
      uint8_t* const at = published.begin() + offset;
      Fill(verbs.memory.bytes(), length, ++round);
      ASSERT_EQ(initiator.Run(initiator.Wr(Opcode::kWrite, 0, published.rkey, at, length)), WcStatus::kSuccess);
      ASSERT_EQ(std::memcmp(at, verbs.memory.bytes(), length), 0) << length << " bytes at " << offset;
      Fill(at, length, ++round);
      ASSERT_EQ(initiator.Run(initiator.Wr(Opcode::kRead, 128 * 1024, published.rkey, at, length)), WcStatus::kSuccess);
      ASSERT_EQ(std::memcmp(at, verbs.memory.bytes() + 128 * 1024, length), 0) << length << " bytes at " << offset;
    }
  }
  EXPECT_GT(Counter("executed", kFile), executed + round);
  EXPECT_GT(Counter("cpu_ns", kFile), 0);
  // Nobody has touched what is before and after it.
  for (size_t i = 0; i < Published::kFrom; ++i) ASSERT_EQ(published.memory.bytes()[i], 0);
  for (size_t i = 0; i < kPage; ++i) ASSERT_EQ(published.begin()[published.length() + i], 0);
}

// The device is atomic only against itself: with the CPU's atomics, others' additions would be lost.
TEST(SoftwareDc, AtomicsAreTheDevices) {
  constexpr uint64_t kAdditions = 400;
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  const int64_t atomics = Counter("atomics", kFile);
  auto* const word = reinterpret_cast<uint64_t*>(published.begin());
  std::atomic<bool> stop{false};
  uint64_t by_queue = 0;
  std::thread other([&] {
    Side side;
    krc_request request = Side::Between(KRC_OP_FETCH_ADD, side.key, side.memory.words(), published.rkey,
                                        reinterpret_cast<uint64_t>(word));
    request.compare_add = uint64_t{1} << 32;
    while (!stop && !testing::Test::HasFailure()) {
      EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
      ++by_queue;
    }
  });
  uint32_t last = 0;
  for (uint64_t i = 0; i < kAdditions && !HasFailure(); ++i) {
    SendWr add = initiator.Wr(Opcode::kFetchAdd, 0, published.rkey, word);
    add.compare_add = 1;
    EXPECT_EQ(initiator.Run(add), WcStatus::kSuccess);
    last = static_cast<uint32_t>(verbs.memory.words()[0]);
    EXPECT_EQ(last, i);
  }
  stop = true;
  other.join();
  EXPECT_EQ(*word, kAdditions + (by_queue << 32));
  EXPECT_EQ(Counter("atomics", kFile), atomics + static_cast<int64_t>(kAdditions));
  for (const uint64_t expected : {*word + 1, *word}) {
    const uint64_t before = *word;
    SendWr swap = initiator.Wr(Opcode::kCompareSwap, 8, published.rkey, word);
    swap.compare_add = expected;
    swap.swap = 77;
    EXPECT_EQ(initiator.Run(swap), WcStatus::kSuccess);
    EXPECT_EQ(verbs.memory.words()[1], before);
    EXPECT_EQ(*word, expected == before ? 77 : before);
  }
}

// Many requests at a time fill the ring of the atomics, and READs wait for what is before them.
TEST(SoftwareDc, RequestsOfAQueueExecuteInTheirOrder) {
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  auto* const word = reinterpret_cast<uint64_t*>(published.begin());
  uint64_t sum = 0;
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < 32; ++i) {
      SendWr wr = initiator.Wr(i % 4 == 3 ? Opcode::kRead : Opcode::kFetchAdd, 8 * i, published.rkey, word);
      wr.compare_add = 1;
      ASSERT_TRUE(initiator.Post(wr).ok());
    }
    for (size_t i = 0; i < 32; ++i) ASSERT_EQ(initiator.Await(), WcStatus::kSuccess);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(verbs.memory.words()[i], sum);
      if (i % 4 != 3) ++sum;
    }
  }
  EXPECT_EQ(*word, sum);
}

TEST(SoftwareDc, RefusesWhatWasNotPublishedOrNotSo) {
  Published published, readable(8 * kPage, KRC_LOCAL_WRITE | KRC_REMOTE_READ),
      writable(8 * kPage, KRC_LOCAL_WRITE | KRC_REMOTE_WRITE), constant(8 * kPage, KRC_REMOTE_READ);
  Side hidden;  // has all rights, but is not published
  for (const Side* const side : {static_cast<Side*>(&published), static_cast<Side*>(&readable),
                                 static_cast<Side*>(&writable), static_cast<Side*>(&constant), &hidden})
    std::fill_n(side->memory.words(), side->memory.size() / sizeof(uint64_t), 9);
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  std::fill_n(verbs.memory.words(), kPage, 5);
  uint8_t* const end = published.begin() + published.length();
  const struct {
    const char* name;
    Opcode opcode;
    uint32_t rkey;
    const void* at;
    uint32_t length = 8;
    uint64_t wrong_key = 0;
    WcStatus status = WcStatus::kRemoteAccessError;
  } kRefused[] = {
      {"a WRITE to what may be read", Opcode::kWrite, readable.rkey, readable.begin()},
      {"a CAS on what may be read", Opcode::kCompareSwap, readable.rkey, readable.begin()},
      {"a FETCH_ADD on what may be written", Opcode::kFetchAdd, writable.rkey, writable.begin()},
      {"a READ of what may be written", Opcode::kRead, writable.rkey, writable.begin()},
      {"a WRITE to what its own process may only read", Opcode::kWrite, constant.rkey, constant.begin()},
      {"a WRITE beyond the end", Opcode::kWrite, published.rkey, end - 8, 9},
      {"a long one beyond the end, whose first segments are not", Opcode::kWrite, published.rkey, end - 8000, 8001},
      {"a READ behind the end", Opcode::kRead, published.rkey, end, 1},
      {"before the begin", Opcode::kWrite, published.rkey, published.begin() - 8, 16},
      {"an atomic at the end", Opcode::kFetchAdd, published.rkey, end},
      {"around the end of addresses, which is no request", Opcode::kRead, published.rkey,
       reinterpret_cast<void*>(~uintptr_t{0} - 3), 8, 0, WcStatus::kRetryExceeded},
      {"one's key with another's address", Opcode::kRead, readable.rkey, published.begin()},
      {"what was not published", Opcode::kRead, hidden.key, hidden.memory.bytes()},
      {"an atomic on what was not published", Opcode::kFetchAdd, hidden.key, hidden.memory.bytes()},
      {"a key that names nothing", Opcode::kRead, published.rkey ^ 1, published.begin()},
      {"a device's rkey, 0", Opcode::kRead, 0, published.begin()},
      {"with another DC key", Opcode::kRead, published.rkey, published.begin(), 8, 1},
  };
  for (const auto& refused : kRefused) {
    SendWr wr = initiator.Wr(refused.opcode, 0, refused.rkey, refused.at, refused.length);
    wr.dc_key ^= refused.wrong_key;
    wr.compare_add = 1;
    EXPECT_EQ(initiator.Run(wr), refused.status) << refused.name;
    initiator.Restart();
  }
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kRead, 0, constant.rkey, constant.begin())), WcStatus::kSuccess);
  EXPECT_EQ(verbs.memory.words()[0], 9u);
  for (const Side* const side : {static_cast<Side*>(&published), static_cast<Side*>(&readable),
                                 static_cast<Side*>(&writable), static_cast<Side*>(&constant), &hidden})
    for (size_t i = 0; i < side->memory.size() / sizeof(uint64_t); ++i) ASSERT_EQ(side->memory.words()[i], 9u) << i;
}

TEST(SoftwareDc, TakesNoMessages) {
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kSend, 0, 0, nullptr)), WcStatus::kRnrRetryExceeded);
  initiator.Restart();
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kWriteImm, 0, published.rkey, published.begin())),
            WcStatus::kRnrRetryExceeded);
}

// A region ends while requests use it: none is executed after DEREG_MR.
TEST(SoftwareDc, RegionsEndWhileTheyAreUsed) {
  Published node;
  Verbs verbs;
  Initiator initiator(&verbs, node.target);
  std::atomic<uint32_t> rkey{0};
  std::atomic<bool> stop{false};
  uint64_t served = 0, refused = 0;
  std::thread user([&] {
    for (uint64_t i = 0; !stop; ++i) {
      const Opcode opcode = i % 2 == 0 ? Opcode::kWrite : Opcode::kFetchAdd;
      verbs.memory.words()[0] = 1;
      if (initiator.Run(initiator.Wr(opcode, 0, rkey, node.memory.bytes())) == WcStatus::kSuccess) {
        ++served;
      } else {
        ++refused;
        initiator.Restart();
      }
    }
  });
  for (int round = 0; round < 60; ++round) {
    uint32_t key;
    ASSERT_EQ(node.queue.Register(node.memory.bytes(), kPage, kAllRights, &key), 0);
    const krc_shared_region region = {0, 0, key, 0, 0, 0};
    ASSERT_EQ(node.queue.Publish({&region, 1}), 0);
    rkey = key;
    usleep(5'000);  // some are served
    ASSERT_EQ(node.queue.Deregister(key), 0);
    node.memory.words()[0] = 1000;
    usleep(2'000);  // a late effect would be seen
    ASSERT_EQ(node.memory.words()[0], 1000u);
  }
  stop = true;
  user.join();
  EXPECT_GT(served, 0u);
  EXPECT_GT(refused, 0u);
}

TEST(SoftwareDc, WhatTheNetworkLosesDoublesAndDelaysIsDoneOnce) {
  static constexpr krcore::rnic::verbs::DatagramFaults kFaults{.lost = 20, .doubled = 10, .late = 10, .seed = 3};
  krcore::rnic::verbs::datagram_faults = &kFaults;
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  krcore::rnic::verbs::datagram_faults = nullptr;
  const int64_t repeated = Counter("repeated", kFile);
  constexpr uint32_t kLength = 4000;
  constexpr uint64_t kRounds = 100;
  for (uint64_t round = 0; round < kRounds; ++round) {
    Fill(verbs.memory.bytes() + kPage, kLength, static_cast<uint32_t>(round));
    SendWr wrs[] = {initiator.Wr(Opcode::kWrite, kPage, published.rkey, published.begin() + kPage, kLength),
                    initiator.Wr(Opcode::kFetchAdd, 0, published.rkey, published.begin()),
                    initiator.Wr(Opcode::kRead, 4 * kPage, published.rkey, published.begin() + kPage, kLength)};
    wrs[1].compare_add = 1;
    for (const SendWr& wr : wrs) ASSERT_TRUE(initiator.Post(wr).ok());
    for (size_t i = 0; i < 3; ++i) ASSERT_EQ(initiator.Await(), WcStatus::kSuccess);
    ASSERT_EQ(verbs.memory.words()[0], round);
    ASSERT_EQ(std::memcmp(verbs.memory.bytes() + kPage, verbs.memory.bytes() + 4 * kPage, kLength), 0);
  }
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(published.begin()), kRounds);
  EXPECT_GT(Counter("repeated", kFile), repeated);
}

// Its QPs break and are made to work again under the same number, and what was in flight is asked for again.
TEST(SoftwareDc, OutlivesItsQueues) {
  Published published;
  Verbs verbs;
  Initiator initiator(&verbs, published.target);
  const int64_t repaired = Counter("repaired", kFile);
  std::atomic<bool> stop{false};
  std::thread breaker([&] {
    for (int i = 0; i < 40; ++i) {
      BreakConnections();
      usleep(20'000);  // requests go on between two faults
    }
    stop = true;
  });
  constexpr size_t kUnderWay = 32;
  uint64_t succeeded = 0, unknown = 0;
  auto* const word = reinterpret_cast<uint64_t*>(published.begin());
  const auto add = [&] {
    SendWr wr = initiator.Wr(Opcode::kFetchAdd, 0, published.rkey, word);
    wr.compare_add = 1;
    return wr;
  };
  while (!stop) {
    for (size_t i = 0; i < kUnderWay; ++i) ASSERT_TRUE(initiator.Post(add()).ok());
    WcStatus first = WcStatus::kSuccess;
    for (size_t i = 0; i < kUnderWay; ++i) {
      const WcStatus status = initiator.Await();
      ++(status == WcStatus::kSuccess ? succeeded : unknown);
      if (first == WcStatus::kSuccess) first = status;
    }
    if (first == WcStatus::kSuccess) continue;
    EXPECT_EQ(first, WcStatus::kRetryExceeded);
    initiator.Restart();
  }
  breaker.join();
  // The target works again, the atomics too.
  EXPECT_EQ(initiator.Run(add()), WcStatus::kSuccess);
  ++succeeded;
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kRead, 8, published.rkey, word)), WcStatus::kSuccess);
  EXPECT_EQ(verbs.memory.words()[1], verbs.memory.words()[0] + 1);
  EXPECT_GT(succeeded, kUnderWay);
  EXPECT_GE(*word, succeeded);
  EXPECT_LE(*word, succeeded + unknown);
  EXPECT_GT(Counter("repaired", kFile), repaired);
}

// ---- what no initiator sends

sdc_packet Hello(const krc_dc_target& target, uint64_t life) {
  sdc_packet hello{};
  hello.kind = SDC_HELLO;
  hello.target = target.number;
  hello.life = life;
  hello.key = target.key;
  hello.id = 1;
  return hello;
}

TEST(SoftwareDc, ALatePacketOfASessionThatEndedIsNotExecuted) {
  Published published;
  Verbs verbs;
  Stranger stranger(&verbs, published.target);
  sdc_packet answer;
  stranger.Send(Hello(published.target, 1));
  ASSERT_TRUE(stranger.Receive(&answer, kPatienceMs));
  ASSERT_EQ(answer.kind, SDC_WELCOME);
  const uint64_t value = 42;
  sdc_packet write{};
  write.kind = SDC_WRITE;
  write.flags = SDC_FLAG_ACK;
  write.target = published.target.number;
  write.slot = answer.slot;
  write.nonce = answer.nonce;
  write.psn = answer.psn;
  write.time = answer.time + 1'000'000'000'000;
  write.addr = reinterpret_cast<uint64_t>(published.begin());
  write.rkey = published.rkey;
  write.bytes = sizeof(value);
  write.length = sizeof(value);
  write.data = reinterpret_cast<const uint8_t*>(&value);
  auto* const word = reinterpret_cast<uint64_t*>(published.begin());
  const struct {
    const char* name;
    uint64_t nonce_change;
    uint64_t time;  // 0: there is enough of it
    int answer;     // -1: none
  } kSent[] = {
      {"as it should be", 0, 0, SDC_ACK},
      {"again: it is answered, and not done", 0, 0, SDC_ACK},
      {"of another session", 1, 0, SDC_GONE},
      {"behind its deadline", 0, 1, -1},
  };
  for (const auto& sent : kSent) {
    sdc_packet packet = write;
    packet.nonce ^= sent.nonce_change;
    if (sent.time != 0) packet.time = sent.time;
    if (sent.answer == -1) packet.psn++;  // the next PSN, so that nothing else keeps the packet from being executed
    const uint64_t before = *word;
    stranger.Send(packet);
    if (sent.answer == -1) {
      EXPECT_FALSE(stranger.Receive(&answer, 200)) << sent.name;
    } else {
      ASSERT_TRUE(stranger.Receive(&answer, kPatienceMs)) << sent.name;
      EXPECT_EQ(answer.kind, sent.answer) << sent.name;
    }
    EXPECT_EQ(*word, &sent == kSent ? value : before) << sent.name;
    *word = 7;
  }
}

// Half of its packets are right, half wrong in places. It learns the state of its session from the answers.
class Attacker {
 public:
  Attacker(Verbs* verbs, const krc_dc_target& target, uint64_t seed, uint32_t rkey, const void* begin, size_t length)
      : stranger_(verbs, target), random_(seed), rkey_(rkey), begin_(begin), length_(length) {}

  void Step() {
    sdc_packet answer;
    while (stranger_.Receive(&answer, 0)) Hear(answer);
    const bool greets = session_.nonce == 0;
    std::vector<uint8_t> bytes = greets || In(0, 7) != 0 ? Build() : Noise();
    const uint64_t changes = greets || In(0, 1) == 0 ? 0 : In(0, 3);
    for (uint64_t i = 0; i < changes; ++i) {
      const uint64_t odd = Odd();
      const size_t width = size_t{1} << In(0, 3);
      const size_t at = In(0, bytes.size() - 1) / width * width;
      if (at + width <= bytes.size()) std::memcpy(&bytes[at], &odd, width);
    }
    if (!greets && In(0, 9) == 0) bytes.resize(In(1, 1000));
    stranger_.Send(bytes);
    // Mostly it waits for the answer, because without it, it does not know what comes next.
    if ((greets || In(0, 3) != 0) && stranger_.Receive(&answer, 2)) Hear(answer);
  }

 private:
  uint64_t In(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
  uint64_t Odd() {
    static constexpr uint64_t kOdd[] = {0, 1, 7, 8, 255, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 1ULL << 63, ~0ULL};
    return In(0, 1) == 0 ? kOdd[In(0, 10)] : random_();
  }
  void Hear(const sdc_packet& answer) {
    if (answer.kind == SDC_WELCOME) session_ = answer;
    if (answer.kind == SDC_GONE || answer.kind == SDC_CLOSED || answer.kind == SDC_NAK) session_ = {};
    if (answer.kind == SDC_ACK || answer.kind == SDC_GAP || answer.kind == SDC_RNR) session_.psn = answer.psn;
    if (answer.kind == SDC_DATA || answer.kind == SDC_RESULT) session_.psn = answer.psn + 1;
    session_.time = answer.time;
  }
  std::vector<uint8_t> Noise() {
    std::vector<uint8_t> bytes(In(1, 1000));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    return bytes;
  }
  std::vector<uint8_t> Build() {
    sdc_packet packet = Hello(stranger_.target(), In(1, 8));
    packet.id = ++hellos_;
    if (session_.nonce != 0) {
      static constexpr uint8_t kKinds[] = {SDC_READ,   SDC_WRITE, SDC_SEND,
                                           SDC_ATOMIC, SDC_CLOSE, SDC_ACK};  // the last two are rare
      packet = {};
      packet.kind = In(0, 30) == 0 ? static_cast<uint8_t>(In(0, 30)) : kKinds[In(0, 29) == 0 ? In(4, 5) : In(0, 3)];
      packet.target = stranger_.target().number;
      packet.slot = session_.slot;
      packet.nonce = session_.nonce;
      packet.psn = session_.psn + static_cast<uint32_t>(In(0, 4) == 0 ? In(0, 8) - 4 : 0);
      packet.time = session_.time + 1'000'000'000;
      packet.rkey = rkey_;
      packet.addr = reinterpret_cast<uint64_t>(begin_) + In(0, length_ / 8) * 8;
      packet.bytes = static_cast<uint16_t>(In(0, 900));
      packet.length = static_cast<uint32_t>(In(0, 3) != 0 ? packet.bytes : In(0, 20) == 0 ? Odd() : In(0, 3000));
      packet.offset = packet.length == packet.bytes ? 0 : static_cast<uint32_t>(In(0, packet.length));
      if (packet.kind == SDC_WRITE || packet.kind == SDC_SEND)
        packet.flags = static_cast<uint8_t>(SDC_FLAG_ACK | (In(0, 9) == 0 ? SDC_FLAG_IMM : 0));
      if (packet.kind == SDC_ATOMIC) {
        packet.code = static_cast<uint8_t>(In(SDC_OP_COMPARE_SWAP, SDC_OP_FETCH_ADD));
        packet.bytes = 0;
      }
    }
    std::vector<uint8_t> bytes(1000);
    const uint32_t head = sdc_build(bytes.data(), &packet);
    bytes.resize(std::min<size_t>(1000, head + (sdc_has_data(packet.kind) ? packet.bytes : 0)));
    return bytes;
  }

  Stranger stranger_;
  std::mt19937_64 random_;
  sdc_packet session_{};
  uint32_t hellos_ = 0;
  uint32_t rkey_;
  const void* begin_;
  size_t length_;
};

TEST(SoftwareDc, WhateverArrivesTouchesNothingButWhatWasPublishedAndHarmsNobodyElse) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Published published;
  Verbs verbs, other;
  Attacker attacker(&verbs, published.target, seed, published.rkey, published.begin(), published.length());
  Published untouched;
  Initiator initiator(&other, untouched.target);
  const int64_t malformed = Counter("malformed", kFile), executed = Counter("executed", kFile),
                atomics = Counter("atomics", kFile);
  for (uint32_t i = 0; i < 6000 && !HasFailure(); ++i) {
    attacker.Step();
    if (i % 200 != 0) continue;
    Fill(other.memory.bytes(), 3000, i);
    EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kWrite, 0, untouched.rkey, untouched.begin(), 3000)),
              WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(other.memory.bytes(), untouched.begin(), 3000), 0);
  }
  EXPECT_GT(Counter("malformed", kFile), malformed + 500);
  EXPECT_GT(Counter("executed", kFile), executed + 500);
  EXPECT_GT(Counter("atomics", kFile), atomics + 50);
  for (size_t i = 0; i < Published::kFrom; ++i) ASSERT_EQ(published.memory.bytes()[i], 0);
  for (size_t i = 0; i < kPage; ++i) ASSERT_EQ(published.begin()[published.length() + i], 0);
}

// Goes on for KMOD_ATTACK_SECONDS with no file of the module open, while it is unloaded (tests/vm/kmod_guest.sh).
TEST(SoftwareDc, IsAttacked) {
  const char* const seconds = std::getenv("KMOD_ATTACK_SECONDS");
  if (seconds == nullptr) GTEST_SKIP() << "needs KMOD_ATTACK_SECONDS";
  krc_dc_target target;
  {
    Queue queue;
    ASSERT_EQ(queue.Open(), 0);
    ASSERT_EQ(queue.Attach("", 8), 0);
    ASSERT_EQ(queue.DcTarget(&target), 0);
  }
  Verbs verbs;
  Attacker attacker(&verbs, target, 1, 1, verbs.memory.bytes(), verbs.memory.size());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(seconds));
  while (std::chrono::steady_clock::now() < end) attacker.Step();
}

// ---- another host

constexpr krcore::NodeId kNode = 78;

TEST(SoftwareDcOfOtherHost, Serves) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Side side(8, 64 * kPage);
  krc_dc_target target;
  ASSERT_EQ(side.queue.Join("software_dc_host", kNode), 0);
  const krc_shared_region region = {0, 0, side.key, 0, 0, 0};
  ASSERT_EQ(side.queue.Publish({&region, 1}), 0);
  ASSERT_EQ(side.queue.DcTarget(&target), 0);
  ASSERT_EQ(side.queue.SetService("key", target.key), 0);
  ASSERT_EQ(side.queue.SetService("number", target.number), 0);
  AwaitFile("/common/served");
  EXPECT_EQ(side.memory.words()[0], 200u);
  EXPECT_GT(Counter("atomics", kFile), 199);
}

TEST(SoftwareDcOfOtherHost, IsUsed) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  Side side;
  ASSERT_EQ(side.queue.Join("software_dc_host"), 0);
  krc_dc_target target = {};
  uint64_t number;
  for (int error = ENOENT; error == ENOENT;) error = side.queue.GetService("number", &number);
  uint64_t key;
  ASSERT_EQ(side.queue.GetService("key", &key), 0);
  krc_connect found;
  ASSERT_EQ(side.queue.Connect(kNode, &found), 0);
  target.key = key;
  target.number = static_cast<uint32_t>(number);
  std::memcpy(target.gid, found.gid, sizeof(target.gid));
  const krc_shared_region region = found.regions[0];
  Verbs verbs;
  Initiator initiator(&verbs, target);
  const auto at = [&](size_t offset) { return reinterpret_cast<void*>(region.addr + offset); };
  for (uint32_t round = 0; round < 100; ++round) {
    Fill(verbs.memory.bytes() + kPage, 20'000, round);
    SendWr wrs[] = {initiator.Wr(Opcode::kWrite, kPage, region.key, at(kPage), 20'000),
                    initiator.Wr(Opcode::kFetchAdd, 0, region.key, at(0)),
                    initiator.Wr(Opcode::kRead, 8 * kPage, region.key, at(kPage), 20'000),
                    initiator.Wr(Opcode::kFetchAdd, 8, region.key, at(0))};
    for (SendWr& wr : wrs) wr.compare_add = 1;
    for (const SendWr& wr : wrs) ASSERT_TRUE(initiator.Post(wr).ok());
    for (size_t i = 0; i < std::size(wrs); ++i) ASSERT_EQ(initiator.Await(), WcStatus::kSuccess);
    ASSERT_EQ(verbs.memory.words()[0], 2 * round);
    ASSERT_EQ(verbs.memory.words()[1], 2 * round + 1);
    ASSERT_EQ(std::memcmp(verbs.memory.bytes() + kPage, verbs.memory.bytes() + 8 * kPage, 20'000), 0);
  }
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kRead, 0, region.key ^ 1, at(0))), WcStatus::kRemoteAccessError);
}

// The other host's device goes while its atomics and WRITEs are in flight.
TEST(SoftwareDcOfOtherHost, ServesUntilItsDeviceGoes) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Side side(8, 64 * kPage);
  krc_dc_target target;
  ASSERT_EQ(side.queue.Join("software_dc_host", kNode), 0);
  const krc_shared_region region = {0, 0, side.key, 0, 0, 0};
  ASSERT_EQ(side.queue.Publish({&region, 1}), 0);
  ASSERT_EQ(side.queue.DcTarget(&target), 0);
  ASSERT_EQ(side.queue.SetService("key of what goes", target.key), 0);
  ASSERT_EQ(side.queue.SetService("number of what goes", target.number), 0);
  for (const int64_t atomics = Counter("atomics", kFile); Counter("atomics", kFile) < atomics + 100;) Pause();
  ASSERT_EQ(std::system("rdma link del rxe0"), 0);  // NOLINT(cert-env33-c)
  EXPECT_EQ(side.queue.DcTarget(&target), ENODEV);
  const uint64_t word = side.memory.words()[0];
  EXPECT_GE(word, 50u);
  usleep(300'000);  // a late effect would be seen
  EXPECT_EQ(side.memory.words()[0], word);
}

TEST(SoftwareDcOfOtherHost, IsUsedUntilItsDeviceGoes) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  krc_dc_target target = {};
  krc_connect found;
  {
    Side side;
    ASSERT_EQ(side.queue.Join("software_dc_host"), 0);
    uint64_t key, number;
    for (int error = ENOENT; error == ENOENT;) error = side.queue.GetService("number of what goes", &number);
    ASSERT_EQ(side.queue.GetService("key of what goes", &key), 0);
    ASSERT_EQ(side.queue.Connect(kNode, &found), 0);
    target.key = key;
    target.number = static_cast<uint32_t>(number);
    std::memcpy(target.gid, found.gid, sizeof(target.gid));
  }
  Verbs verbs;
  Initiator initiator(&verbs, target);
  const krc_shared_region region = found.regions[0];
  const auto wr = [&](size_t i) {
    SendWr made = initiator.Wr(i % 2 == 0 ? Opcode::kFetchAdd : Opcode::kWrite, 8 * kPage, region.key,
                               reinterpret_cast<void*>(region.addr + (i % 2 == 0 ? 0 : kPage)), i % 2 == 0 ? 8 : 9000);
    made.compare_add = 1;
    return made;
  };
  constexpr size_t kUnderWay = 16;
  size_t posted = 0;
  while (posted < kUnderWay) ASSERT_TRUE(initiator.Post(wr(posted++)).ok());
  WcStatus status;
  while ((status = initiator.Await()) == WcStatus::kSuccess) ASSERT_TRUE(initiator.Post(wr(posted++)).ok());
  EXPECT_EQ(status, WcStatus::kRetryExceeded);
}

}  // namespace
}  // namespace kmod_test
