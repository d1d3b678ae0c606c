// Records of all sizes, nine tenths of which are deleted. The tests of memory given back share this.
#ifndef TESTS_KVS_GIVEN_BACK_H_
#define TESTS_KVS_GIVEN_BACK_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvs/client.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {

inline constexpr uint64_t kSmallChunk = uint64_t{64} << 10;

inline std::string Key(uint32_t i) { return "key-" + std::to_string(i); }
// Returns values of every size: most are small, some do not fit in a slot's length, few have chunks of their own.
inline std::string Value(uint32_t i) {
  const uint32_t dice = i * 2654435761u;
  const size_t bytes = dice % 97 == 0 ? 80'000 + dice % 50'000 : dice % 11 == 0 ? 3'000 + dice % 6'000 : dice % 700;
  std::string value(bytes, static_cast<char>('a' + i % 26));
  value += std::to_string(i);
  return value;
}

inline kvs::Task<void> PutRange(kvs::Client& client, uint32_t begin, uint32_t end, uint32_t step, uint32_t* failed) {
  for (uint32_t i = begin; i < end; i += step) {
    const std::string key = Key(i), value = Value(i);
    const kvs::Status put = co_await client.PutAsync(key, value);
    if (!put.ok()) ++*failed;
  }
}
inline kvs::Task<void> DeleteRange(kvs::Client& client, uint32_t begin, uint32_t end, uint32_t step, uint32_t* failed) {
  for (uint32_t i = begin; i < end; i += step) {
    const std::string key = Key(i);
    if (i % 10 == 0) continue;  // every tenth stays
    const kvs::Status deleted = co_await client.DeleteAsync(key);
    if (!deleted.ok()) ++*failed;
  }
}
template <typename Range>
void InLanes(kvs::Client& client, uint32_t count, const Range& range) {
  constexpr uint32_t kLanes = 16;
  uint32_t failed = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) client.Spawn(range(client, lane, count, kLanes, &failed));
  client.Drain();
  ASSERT_EQ(failed, 0u);
}
inline void CheckTenth(kvs::Client& client, uint32_t count) {
  std::string value;
  for (uint32_t i = 0; i < count; ++i) {
    const kvs::Status got = client.Get(Key(i), &value);
    if (i % 10 == 0) {
      ASSERT_TRUE(got.ok()) << Key(i) << ": " << got.ToString();
      ASSERT_EQ(value, Value(i)) << Key(i);
    } else {
      ASSERT_EQ(got, kvs::StatusCode::kNotFound) << Key(i);
    }
  }
}

inline void CheckPools(const TestStore& store, bool after_deaths = false) {
  const std::vector<PoolImage> images = store.images();
  PoolCheckOptions options;
  options.after_deaths = after_deaths;
  const PoolReport report = surgekv_test::CheckPools(images, options);
  EXPECT_TRUE(report.ok()) << report.ToString();
}

}  // namespace surgekv_test

#endif  // TESTS_KVS_GIVEN_BACK_H_
