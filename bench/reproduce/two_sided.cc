// Figure "two_sided": messages by length, one at a time and 16 under way, all copied and all by zero-copy. One thread
// plays both ends: what is measured is the work of both, without a wake-up between them.
#include "bench/common/message_pair.h"
#include "bench/reproduce/report.h"
#include "bench/reproduce/slices.h"

namespace reproduce {
namespace {

constexpr uint32_t kMaxBytes = 256 << 10;
constexpr size_t kWindow = 16;

Row Measure(const Options& options, MessagePair& pair, bool zero_copy, uint32_t length, size_t in_flight,
            uint64_t* seed) {
  Row row = {{"mode", zero_copy ? "zero-copy" : "copy"}, {"bytes", length}};
  ++*seed;
  for (size_t i = 0; i < in_flight; ++i) {
    Fill(pair.sent(i, length), *seed * kWindow + i);
    std::ranges::fill(pair.received(i, length), std::byte{0});
  }
  RunSlice(options, in_flight, row, [&] {
    if (!pair.Send(in_flight, length)) Must(Status(StatusCode::kInternal, "a message failed"));
  });
  for (size_t i = 0; i < in_flight; ++i) MustMatch(pair.received(i, length), *seed * kWindow + i);
  row["verified_bytes"] = in_flight * length;
  return row;
}

}  // namespace

void TwoSided(const Options& options) {
  MessagePair copy(options.fabric, 1, false, kMaxBytes, kWindow);
  MessagePair zero_copy(options.fabric, 3, true, kMaxBytes, kWindow);
  uint64_t seed = options.seed;
  std::vector<Configuration> configurations;
  for (const uint32_t length : {8u, 64u, 256u, 512u, 1024u, 2048u, 4096u, 16384u, 65536u, 262144u}) {
    for (const size_t in_flight : {size_t{1}, kWindow}) {
      for (MessagePair* const pair : {&copy, &zero_copy}) {
        configurations.emplace_back([=, &options, &seed, &zero_copy] {
          return Measure(options, *pair, pair == &zero_copy, length, in_flight, &seed);
        });
      }
    }
  }
  RunInterleaved(options, configurations);
}

}  // namespace reproduce
