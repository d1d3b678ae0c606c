// The quick program of a test runs it once; the slow one again and again with other seeds, for SURGEKV_TEST_SECONDS.
// Every seed is printed on failure; SURGEKV_TEST_SEED runs that one.
#ifndef TESTS_KVS_REPEAT_H_
#define TESTS_KVS_REPEAT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "krcore/clock.h"

#ifndef SURGEKV_TEST_SECONDS
#  define SURGEKV_TEST_SECONDS 0
#endif

namespace surgekv_test {

template <typename Body>
void Repeat(const Body& body) {
  krcore::Clock& clock = *krcore::RealClock();
  const char* const wanted = std::getenv("SURGEKV_TEST_SEED");
  uint32_t seed = wanted != nullptr ? static_cast<uint32_t>(std::strtoul(wanted, nullptr, 10))
                                    : static_cast<uint32_t>(clock.NowNs() / 1000) % 1'000'000;
  const krcore::Deadline end = krcore::Deadline::After(clock, int64_t{SURGEKV_TEST_SECONDS} * 1'000'000'000);
  do {
    std::printf("SURGEKV_TEST_SEED=%u\n", seed);
    std::fflush(stdout);
    SCOPED_TRACE(testing::Message() << "SURGEKV_TEST_SEED=" << seed);
    body(seed++);
  } while (wanted == nullptr && !testing::Test::HasFailure() && !end.Passed(clock));
}

}  // namespace surgekv_test

#endif  // TESTS_KVS_REPEAT_H_
