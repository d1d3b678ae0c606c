#include "tests/support/fake_store.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace surgekv_test {
namespace {

class FakeClient final : public kvs::Client {
 public:
  explicit FakeClient(FakeStore& store) : store_(store) { ++store_.open_clients; }
  ~FakeClient() override { --store_.open_clients; }

  kvs::Task<kvs::Status> GetAsync(std::string_view key, std::string* value) override {
    co_await NextPoll{*this};
    kvs::Status status = Begin("get", key);
    if (!status.ok()) co_return status;
    const std::lock_guard lock(store_.mutex);
    const auto found = store_.records.find(key);
    if (found == store_.records.end()) co_return kvs::StatusCode::kNotFound;
    *value = found->second;
    co_return status;
  }
  kvs::Task<void> MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                                std::span<kvs::Status> statuses) override {
    for (size_t i = 0; i < keys.size(); ++i) {
      const kvs::Status status = co_await GetAsync(keys[i], &values[i]);
      statuses[i] = status;
    }
  }
  kvs::Task<kvs::Status> PutAsync(std::string_view key, std::string_view value, uint64_t /*expires_at_ms*/) override {
    return Write("put", key, value, true, true);
  }
  kvs::Task<kvs::Status> InsertAsync(std::string_view key, std::string_view value,
                                     uint64_t /*expires_at_ms*/) override {
    return Write("insert", key, value, true, false);
  }
  kvs::Task<kvs::Status> UpdateAsync(std::string_view key, std::string_view value,
                                     uint64_t /*expires_at_ms*/) override {
    return Write("update", key, value, false, true);
  }
  kvs::Task<kvs::Status> DeleteAsync(std::string_view key) override {
    co_await NextPoll{*this};
    kvs::Status status = Begin("delete", key);
    if (!status.ok()) co_return status;
    const std::lock_guard lock(store_.mutex);
    if (store_.records.erase(std::string(key)) == 0) co_return kvs::StatusCode::kNotFound;
    co_return status;
  }

  kvs::Task<kvs::Status> ModifyAsync(std::string_view key, const kvs::ModifyFunction* function) override {
    co_await NextPoll{*this};
    kvs::Status status = Begin("modify", key);
    if (!status.ok()) co_return status;
    const std::lock_guard lock(store_.mutex);
    const auto found = store_.records.find(key);
    std::optional<kvs::Record> record;
    if (found != store_.records.end()) record = kvs::Record{found->second};
    // As a client may, it calls the function for what does not count as well.
    (void)(*function)(kvs::Record{"12", 1});
    (void)(*function)(std::nullopt);
    kvs::Modification wanted = (*function)(record);
    if (wanted.action == kvs::Modification::Action::kDelete) store_.records.erase(std::string(key));
    if (wanted.action == kvs::Modification::Action::kSet) store_.records[std::string(key)] = std::move(wanted.value);
    co_return status;
  }

  kvs::Task<void> MultiWriteAsync(std::span<kvs::WriteRequest> writes) override {
    for (kvs::WriteRequest& write : writes) {
      kvs::Status status;
      switch (write.kind) {
        case kvs::WriteKind::kPut: status = co_await PutAsync(write.key, write.value, 0); break;
        case kvs::WriteKind::kInsert: status = co_await InsertAsync(write.key, write.value, 0); break;
        case kvs::WriteKind::kUpdate: status = co_await UpdateAsync(write.key, write.value, 0); break;
        case kvs::WriteKind::kDelete: status = co_await DeleteAsync(write.key); break;
        case kvs::WriteKind::kModify: status = co_await ModifyAsync(write.key, write.modify); break;
      }
      write.status = std::move(status);
    }
  }

  void Spawn(kvs::Task<void> task) override {
    task.Start();
    if (!task.done()) tasks_.push_back(std::move(task));
  }
  size_t Poll() override {
    const size_t completions = waiting_.size();
    for (const std::coroutine_handle<> handle : std::exchange(waiting_, {})) {
      kvs::RunQueue::OfThisThread().Push(handle);
    }
    kvs::RunQueue::OfThisThread().RunAll();
    std::erase_if(tasks_, [](const kvs::Task<void>& task) { return task.done(); });
    return completions;
  }
  int64_t IdleUntil() override { return waiting_.empty() ? INT64_MAX : INT64_MIN; }
  size_t spawned() const override { return tasks_.size(); }
  const kvs::ClientStats& stats() const override { return stats_; }
  const kvs::ClientTimes& times() const override { return times_; }
  size_t connection_bytes() const override { return 4096; }
  kvs::Task<kvs::Status> ScanAsync(uint64_t* cursor, std::vector<kvs::ScanRecord>* found, kvs::ScanOptions) override {
    co_await NextPoll{*this};
    kvs::Status status = Begin("scan", {});
    const std::lock_guard lock(store_.mutex);
    found->clear();
    if (!status.ok()) co_return status;
    for (const auto& [key, value] : store_.records) found->push_back({key, value});
    *cursor = 0;
    co_return status;
  }
  kvs::Task<kvs::Status> CompactAsync(kvs::CompactOptions, kvs::CompactReport*) override {
    co_return kvs::Status::Ok();
  }
  kvs::Task<kvs::Status> DrainNodeAsync(krcore::NodeId, kvs::DrainOptions, kvs::DrainReport*) override {
    co_return kvs::StatusCode::kUnsupported;
  }
  kvs::Task<kvs::Status> UndrainNodeAsync(krcore::NodeId) override { co_return kvs::StatusCode::kUnsupported; }
  kvs::Result<kvs::TableStats> ReadTableStats() override { return kvs::StatusCode::kUnsupported; }

 private:
  struct NextPoll {
    FakeClient& client;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) { client.waiting_.push_back(handle); }
    void await_resume() const noexcept {}
  };

  kvs::Status Begin(const char* operation, std::string_view key) {
    ++stats_.operations;
    ++store_.operations;
    return store_.fault ? store_.fault(operation, key) : kvs::Status();
  }
  kvs::Task<kvs::Status> Write(const char* operation, std::string_view key, std::string_view value, bool may_insert,
                               bool may_update) {
    co_await NextPoll{*this};
    kvs::Status status = Begin(operation, key);
    if (!status.ok()) co_return status;
    const std::lock_guard lock(store_.mutex);
    const auto found = store_.records.find(key);
    if (found == store_.records.end()) {
      if (!may_insert) co_return kvs::StatusCode::kNotFound;
      store_.records.emplace(key, value);
    } else {
      if (!may_update) co_return kvs::StatusCode::kExists;
      found->second = value;
    }
    co_return status;
  }

  FakeStore& store_;
  kvs::ClientTimes times_;
  kvs::ClientStats stats_;
  std::vector<kvs::Task<void>> tasks_;
  std::vector<std::coroutine_handle<>> waiting_;
};

}  // namespace

kvs::Result<std::unique_ptr<kvs::Client>> FakeStore::NewClient(const kvs::ClientOptions& options) {
  if (client_fault) {
    if (kvs::Status status = client_fault(); !status.ok()) return status;
  }
  {
    const std::lock_guard lock(mutex);
    const auto same = std::find(prepared.begin(), prepared.end(), options);
    if (same != prepared.end()) prepared.erase(same);
  }
  return std::unique_ptr<kvs::Client>(std::make_unique<FakeClient>(*this));
}

kvs::Status FakeStore::PrepareClient(const kvs::ClientOptions& options) {
  const std::lock_guard lock(mutex);
  prepared.push_back(options);
  return kvs::Status::Ok();
}

krcore::Node& FakeStore::node() { std::abort(); }  // nothing under test asks for it

}  // namespace surgekv_test
