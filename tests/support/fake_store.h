// FakeStore: a kvs::Store in one map of this process, for tests of what is built on the store. An operation ends in the
// Poll after the one in which it was started, as a real client's operation ends after a round trip. Nothing expires.
//
// Thread safety: as kvs::Store.
#ifndef TESTS_SUPPORT_FAKE_STORE_H_
#define TESTS_SUPPORT_FAKE_STORE_H_

#include <atomic>
#include <coroutine>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvs/client.h"

namespace surgekv_test {

class FakeStore final : public kvs::Store {
 public:
  kvs::Result<std::unique_ptr<kvs::Client>> NewClient(const kvs::ClientOptions& options) override;
  kvs::Status PrepareClient(const kvs::ClientOptions& options) override;
  bool gone() const override { return false; }
  krcore::Node& node() override;
  kvs::Status SetReplicas(uint32_t) override { return kvs::StatusCode::kUnsupported; }
  std::optional<krcore::SoftwareDcStats> software_dc() override { return dc; }

  // Called before every operation ("get", "put", "insert", "update", "delete", "modify", "scan"). If it does not return
  // Ok, that is the operation's result.
  std::function<kvs::Status(const char* operation, std::string_view key)> fault;
  std::optional<krcore::SoftwareDcStats> dc;  // set it before workers are started
  // Called by NewClient.
  std::function<kvs::Status()> client_fault;

  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> records;  // under mutex
  std::atomic<uint64_t> operations{0};
  std::atomic<int> open_clients{0};
  std::vector<kvs::ClientOptions> prepared;  // under mutex: clients that NewClient has not taken yet
};

}  // namespace surgekv_test

#endif  // TESTS_SUPPORT_FAKE_STORE_H_
