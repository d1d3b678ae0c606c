#include "kvs/client/caretaker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "krcore/clock.h"
#include "krcore/resources.h"
#include "kvs/client/client_core.h"

namespace kvs {
namespace {

// The time between two rounds. It is longer if a round takes long, so that they take at most one part in kRest of a
// core.
constexpr int64_t kRoundNs = 10'000'000;
constexpr int64_t kRest = 200;

}  // namespace

// A client, and who is in it: its own thread in a call, or the caretaker.
struct Caretaker::Kept {
  explicit Kept(std::unique_ptr<ClientCore> client) : core(std::move(client)) {}

  static uint64_t Self() {
    static thread_local char self;
    return reinterpret_cast<uint64_t>(&self);
  }
  bool TryEnter() {
    uint64_t nobody = 0;
    return holder.compare_exchange_strong(nobody, Self(), std::memory_order_acquire, std::memory_order_relaxed);
  }
  void Leave() { holder.store(0, std::memory_order_release); }

  std::atomic<uint64_t> holder = 0;
  std::atomic<uint32_t> calls = 0;   // written by the client's thread
  std::unique_ptr<ClientCore> core;  // only for the holder; null: it has ended

  // The caretaker's own.
  uint32_t calls_seen = 0;
  bool under_way = false;  // what it began, and nobody has called since
};

class Caretaker::KeptClient final : public Client {
 public:
  KeptClient(Caretaker& caretaker, std::shared_ptr<Kept> kept) : caretaker_(caretaker), kept_(std::move(kept)) {}
  ~KeptClient() override {
    {
      const Call call(*this);
      kept_->core.reset();
    }
    const std::lock_guard lock(caretaker_.mutex_);
    std::erase(caretaker_.kept_, kept_);
  }

  Status Get(std::string_view key, std::string* value) override { return Call(*this)->Get(key, value); }
  Status Put(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return Call(*this)->Put(key, value, expires_at_ms);
  }
  Status Insert(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return Call(*this)->Insert(key, value, expires_at_ms);
  }
  Status Update(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return Call(*this)->Update(key, value, expires_at_ms);
  }
  Status Delete(std::string_view key) override { return Call(*this)->Delete(key); }
  Status Modify(std::string_view key, const ModifyFunction& function) override {
    return Call(*this)->Modify(key, function);
  }
  Status Scan(uint64_t* cursor, std::vector<ScanRecord>* records, const ScanOptions& options) override {
    return Call(*this)->Scan(cursor, records, options);
  }
  Status Compact(const CompactOptions& options, CompactReport* report) override {
    return Call(*this)->Compact(options, report);
  }
  Status DrainNode(krcore::NodeId node, const DrainOptions& options, DrainReport* report) override {
    return Call(*this)->DrainNode(node, options, report);
  }
  Status UndrainNode(krcore::NodeId node) override { return Call(*this)->UndrainNode(node); }
  void MultiGet(std::span<const std::string_view> keys, std::span<std::string> values,
                std::span<Status> statuses) override {
    Call(*this)->MultiGet(keys, values, statuses);
  }
  void MultiWrite(std::span<WriteRequest> writes) override { Call(*this)->MultiWrite(writes); }
  void Drain() override { Call(*this)->Drain(); }

  // These coroutines begin when they are awaited: inside Spawn or Poll.
  Task<Status> GetAsync(std::string_view key, std::string* value) override { return core().GetAsync(key, value); }
  Task<void> MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                           std::span<Status> statuses) override {
    return core().MultiGetAsync(keys, values, statuses);
  }
  Task<Status> PutAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return core().PutAsync(key, value, expires_at_ms);
  }
  Task<Status> InsertAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return core().InsertAsync(key, value, expires_at_ms);
  }
  Task<Status> UpdateAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) override {
    return core().UpdateAsync(key, value, expires_at_ms);
  }
  Task<Status> DeleteAsync(std::string_view key) override { return core().DeleteAsync(key); }
  Task<Status> ModifyAsync(std::string_view key, const ModifyFunction* function) override {
    return core().ModifyAsync(key, function);
  }
  Task<void> MultiWriteAsync(std::span<WriteRequest> writes) override { return core().MultiWriteAsync(writes); }
  Task<Status> ScanAsync(uint64_t* cursor, std::vector<ScanRecord>* records, ScanOptions options) override {
    return core().ScanAsync(cursor, records, options);
  }
  Task<Status> CompactAsync(CompactOptions options, CompactReport* report) override {
    return core().CompactAsync(options, report);
  }
  Task<Status> DrainNodeAsync(krcore::NodeId node, DrainOptions options, DrainReport* report) override {
    return core().DrainNodeAsync(node, options, report);
  }
  Task<Status> UndrainNodeAsync(krcore::NodeId node) override { return core().UndrainNodeAsync(node); }

  void Spawn(Task<void> task) override { Call(*this)->Spawn(std::move(task)); }
  size_t Poll() override { return Call(*this)->Poll(); }
  int64_t IdleUntil() override { return Call(*this)->IdleUntil(); }
  size_t spawned() const override { return Call(*this)->spawned(); }
  const ClientStats& stats() const override { return stats_ = Call(*this)->stats(); }
  const ClientTimes& times() const override { return core().times(); }
  size_t connection_bytes() const override { return Call(*this)->connection_bytes(); }
  Result<TableStats> ReadTableStats() override { return Call(*this)->ReadTableStats(); }

 private:
  // Keeps the caretaker out for its lifetime. It may stand inside another one of this thread: a coroutine that is
  // resumed by Poll calls Spawn. In a forked child nobody waits: the parent's caretaker may have been in.
  class Call {
   public:
    explicit Call(const KeptClient& client) : kept_(*client.kept_) {
      if (client.forked() || kept_.holder.load(std::memory_order_relaxed) == Kept::Self()) return;
      for (uint32_t spins = 0; !kept_.TryEnter();) krcore::RealClock()->Relax(++spins);
      entered_ = true;
      kept_.calls.store(kept_.calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      if (entered_) kept_.Leave();
    }
    ClientCore* operator->() const { return kept_.core.get(); }

   private:
    Kept& kept_;
    bool entered_ = false;
  };

  ClientCore& core() const { return *kept_->core; }

  Caretaker& caretaker_;
  const std::shared_ptr<Kept> kept_;
  mutable ClientStats stats_;
};

Result<std::unique_ptr<Caretaker>> Caretaker::Start() {
  std::unique_ptr<Caretaker> caretaker(new Caretaker);
  auto thread = krcore::StartServiceThread("kvs-caretaker", [taker = caretaker.get()] { taker->Run(); });
  if (!thread.ok()) return thread.status();
  caretaker->thread_ = *std::move(thread);
  return caretaker;
}

Caretaker::~Caretaker() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ends_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<Client> Caretaker::Keep(std::unique_ptr<ClientCore> client) {
  auto kept = std::make_shared<Kept>(std::move(client));
  auto own = std::make_unique<KeptClient>(*this, kept);
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(kept));
  return own;
}

void Caretaker::Run() {
  krcore::Clock& clock = *krcore::RealClock();
  int64_t rest_ns = kRoundNs;
  for (std::vector<std::shared_ptr<Kept>> round;;) {
    {
      std::unique_lock lock(mutex_);
      if (ends_.wait_for(lock, std::chrono::nanoseconds(rest_ns), [this] { return end_; })) return;
      round = kept_;
    }
    const int64_t begun_ns = clock.NowNs();
    for (const auto& kept : round) {
      const uint32_t calls = kept->calls.load(std::memory_order_relaxed);
      if (std::exchange(kept->calls_seen, calls) != calls) {
        kept->under_way = false;
        continue;
      }
      if (!kept->TryEnter()) continue;
      if (kept->core != nullptr) kept->under_way = kept->core->CareWhileIdle(kept->under_way);
      kept->Leave();
    }
    round.clear();
    rest_ns = std::max(kRoundNs, kRest * (clock.NowNs() - begun_ns));
  }
}

}  // namespace kvs
