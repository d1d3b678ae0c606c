// What any client may send, by libFuzzer: tools/fuzz. Two connections share a client of the store. One says what the
// fuzzer makes up, in pieces; the other must go on as if it were alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "computenode/redis/conversation.h"
#include "tests/support/fake_store.h"

namespace {

constexpr size_t kMostHeldBytes = size_t{1} << 20;  // the input is shorter, and nothing in it may grow

std::string Run(redis::Conversation& conversation, kvs::Client& client) {
  std::string replies;
  while (conversation.state() == redis::Conversation::State::kHasMore) {
    client.Spawn(conversation.Run(client));
    client.Drain();
    replies += std::exchange(conversation.out(), {});
  }
  return replies;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

// The first byte: whether there is a password. Then pieces, each after a byte that has its length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  surgekv_test::FakeStore store;
  const std::unique_ptr<kvs::Client> client = store.NewClient({}).value();
  redis::Settings settings;
  if ((data[0] & 1) != 0) settings.password = "secret";
  settings.limits.request_bytes = size_t{64} << 10;
  settings.reply_bytes = size_t{64} << 10;
  redis::Conversation wild(settings, 1), other(settings, 2);
  if (!settings.password.empty()) other.Append("AUTH secret\r\n");
  Run(other, *client);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (int turn = 0; !rest.empty() && wild.state() != redis::Conversation::State::kOver; ++turn) {
    const size_t length = std::min<size_t>(static_cast<unsigned char>(rest.front()), rest.size() - 1);
    wild.Append(rest.substr(1, length));
    rest.remove_prefix(1 + length);
    (void)Run(wild, *client);
    Require(wild.held_bytes() < kMostHeldBytes);
    Require(wild.commands() >= wild.errors() || wild.state() == redis::Conversation::State::kOver);
    const std::string word = "turn" + std::to_string(turn);
    other.Append("ECHO " + word + "\r\n");
    Require(Run(other, *client) == "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n");
  }
  return 0;
}
