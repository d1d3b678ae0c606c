// An application that uses the store while its memory nodes come and go.
#ifndef TESTS_MEMNODE_WORKER_H_
#define TESTS_MEMNODE_WORKER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvs/client.h"
#include "tests/memnode/mirrored_nodes.h"

namespace surgekv_test {

using Instant = std::chrono::steady_clock::time_point;

// A thread with a client that writes keys and reads others, all the time, and knows what each may hold.
class Worker {
 public:
  // So many that the table splits: a key is in the pool of its subtable, and only then are there keys in each.
  static constexpr int kKeys = 20'000;

  explicit Worker(const std::string& fabric) : thread_([this, fabric] { Run(fabric); }) {}
  ~Worker() { End(); }
  Worker(const Worker&) = delete;

  // Ends it. The rest is to be asked afterwards.
  void End() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void AwaitEachKeyWritten() { each_written_.wait(); }
  // Ends it, and prints what it has seen.
  void ExpectNothingLost() {
    End();
    std::printf("%llu operations, %llu of unknown outcome, a key was silent for %.3f s at most\n",
                static_cast<unsigned long long>(operations()), static_cast<unsigned long long>(unknown_), longest_s_);
    EXPECT_THAT(problems_, ::testing::IsEmpty());
    EXPECT_GT(operations(), 1'000u);
  }
  uint64_t operations() const { return operations_; }

 private:
  void Run(const std::string& fabric) {
    const auto store = kvs::Store::Open({.fabric = fabric}).value();
    const auto client = store->NewClient().value();
    for (uint64_t n = 0; !stop_; ++n) {
      if (n == kKeys) each_written_.count_down();
      Put(*client, KeyOf(n), n);
      // Coprime steps: the key was written some time ago.
      if (n >= kKeys) Get(*client, KeyOf(n * 7 + 3));
    }
    std::vector<std::string> keys;
    for (const auto& [key, values] : may_hold_) keys.push_back(key);
    for (const std::string& key : keys) Get(*client, key);
  }
  static std::string KeyOf(uint64_t n) { return "worker-" + std::to_string(n % kKeys); }
  void Put(kvs::Client& client, const std::string& key, uint64_t n) {
    const std::string value = std::to_string(n) + std::string(n % 300, 'v');
    const Instant begin = std::chrono::steady_clock::now();
    const kvs::Status status = client.Put(key, value);
    Note(key, begin, status, "Put");
    if (status.ok()) {
      may_hold_[key] = {value};
    } else {
      may_hold_[key].insert(value);
    }
  }
  void Get(kvs::Client& client, const std::string& key) {
    std::string value;
    const Instant begin = std::chrono::steady_clock::now();
    const kvs::Status status = client.Get(key, &value);
    Note(key, begin, status, "Get");
    if (!status.ok() || may_hold_[key].contains(value)) return;
    Problem("Get of " + key + " returned " + value.substr(0, 12) + " of " + std::to_string(value.size()) + " bytes");
  }
  void Note(const std::string& key, Instant begin, const kvs::Status& status, const char* what) {
    ++operations_;
    const auto since = silent_since_.try_emplace(key, begin).first;
    longest_s_ = std::max(longest_s_, SecondsSince(since->second));
    if (status.ok()) {
      silent_since_.erase(since);
    } else if (status == kvs::StatusCode::kUnknown || status == kvs::StatusCode::kTimeout) {
      ++unknown_;
    } else {
      Problem(std::string(what) + " of " + key + ": " + status.ToString());
    }
  }
  void Problem(std::string problem) {
    if (problems_.size() < 10) problems_.push_back(std::move(problem));
  }

  std::atomic<bool> stop_ = false;
  std::latch each_written_{1};
  std::atomic<uint64_t> operations_ = 0;
  std::map<std::string, std::set<std::string>> may_hold_;
  std::map<std::string, Instant> silent_since_;  // keys whose last operation did not end well: since when
  uint64_t unknown_ = 0;
  double longest_s_ = 0;
  std::vector<std::string> problems_;  // the first failures and wrong values
  std::thread thread_;
};

}  // namespace surgekv_test

#endif  // TESTS_MEMNODE_WORKER_H_
