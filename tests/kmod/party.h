// What the tests of messages share: a node that sends and receives, in buffers of its memory.
#ifndef TESTS_KMOD_PARTY_H_
#define TESTS_KMOD_PARTY_H_

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kmod/fixture.h"

namespace kmod_test {

inline constexpr char kMessageFabric[] = "message_test";
inline constexpr uint16_t kPort = 7;
inline constexpr krc_bind kBind = {
    .port = kPort, .senders = 4, .slots = 8, .copy_bytes = 1000, .receive_depth = 64, .reserved = 0};

inline krc_bind BindWith(uint32_t senders, uint32_t slots, uint32_t copy_bytes = 1000) {
  krc_bind bind = kBind;
  bind.senders = senders;
  bind.slots = slots;
  bind.copy_bytes = copy_bytes;
  return bind;
}

// A side that is a node and has published its memory.
struct Party : Side {
  explicit Party(krcore::NodeId node = krcore::kNoNode) : Side(64, 16 * kPage) {
    EXPECT_EQ(queue.Join(kMessageFabric, node), 0);
    const krc_shared_region region = {0, 0, key, 7, 0, 0};
    EXPECT_EQ(queue.Publish({&region, 1}), 0);
  }
  int Bind(const krc_bind& bind = kBind) {
    uint16_t port;
    return queue.Bind(bind, &port);
  }
  int ConnectTo(krcore::NodeId node, uint16_t port = kPort) { return queue.Connect(node, &found, port); }

  // While connections break, a connect may find none that works.
  int Reconnect(krcore::NodeId node, uint16_t port = kPort) {
    int error = EIO;
    for (int tries = 0; tries < 200 && (error == EIO || error == ENETDOWN); ++tries) error = ConnectTo(node, port);
    return error;
  }

  // Buffers of its memory, of 1,024 bytes.
  uint8_t* Buffer(size_t index) const { return memory.bytes() + index * 1024; }
  int Receive(size_t first, size_t count, uint32_t length = 1024) {
    std::vector<krc_receive> receives;
    for (size_t i = first; i < first + count; ++i)
      receives.push_back({i, reinterpret_cast<uint64_t>(Buffer(i)), length, key});
    return queue.PushRecv(receives);
  }
  krc_request Send(uint64_t wr_id, const std::string& text, size_t buffer = 0) const {
    std::memcpy(Buffer(buffer), text.data(), text.size());
    krc_request request = {};
    request.opcode = KRC_OP_SEND;
    request.flags = KRC_SIGNALED;
    request.wr_id = wr_id;
    request.num_sge = text.empty() ? 0 : 1;
    request.sges[0] = {reinterpret_cast<uint64_t>(Buffer(buffer)), static_cast<uint32_t>(text.size()), key};
    return request;
  }
  // A message of 900 bytes that are all one number.
  krc_request SendNumber(uint32_t number, size_t buffer = 0) const {
    const krc_request request = Send(number, std::string(900, ' '), buffer);
    for (size_t word = 0; word < 225; ++word) std::memcpy(Buffer(buffer) + 4 * word, &number, 4);
    return request;
  }
  uint32_t Number(const krc_message& message) const {
    EXPECT_EQ(message.status, KRC_SUCCESS);
    EXPECT_EQ(message.byte_len, 900u);
    uint32_t words[225];
    std::memcpy(words, Buffer(message.wr_id), sizeof(words));
    EXPECT_EQ(std::count(std::begin(words), std::end(words), words[0]), 225) << "torn";
    return words[0];
  }
  // The next message; `wr_id` is the buffer it is in.
  krc_message Next() {
    krc_message message = {};
    // A test that has failed does not wait long.
    for (int left = ::testing::Test::HasFailure() ? 100 : 20'000; left > 0; --left) {
      size_t count = 0;
      EXPECT_EQ(queue.PopMessages({&message, 1}, &count), 0);
      if (count == 1) return message;
      Pause();
    }
    ADD_FAILURE() << "no message";
    message.status = KRC_GENERAL_ERROR;
    return message;
  }
  bool HasNone() {
    krc_message message;
    size_t count = 0;
    EXPECT_EQ(queue.PopMessages({&message, 1}, &count), 0);
    return count == 0;
  }
  std::string Text(const krc_message& message) const {
    return {reinterpret_cast<const char*>(Buffer(message.wr_id)), message.byte_len};
  }
  // Waits until the queue has `wanted` credits, which takes a look at the receiver's memory.
  bool AwaitCredits(uint32_t wanted) {
    for (int left = ::testing::Test::HasFailure() ? 100 : 20'000; left > 0; --left) {
      uint32_t credits = 0;
      EXPECT_EQ(queue.Credits(&credits), 0);
      if (credits == wanted) return true;
      Pause();
    }
    return false;
  }

  krc_connect found;
};

}  // namespace kmod_test

#endif  // TESTS_KMOD_PARTY_H_
