#include "computenode/elastic/worker.h"

#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <memory>
#include <string>
#include <type_traits>

namespace computenode {
namespace {

using krcore::StatusCode;

// A worker that waits for the store sleeps this long in Clock::Relax, but not if a lane is due sooner.
constexpr int64_t kSleepGrainNs = 200'000;
constexpr uint32_t kSpinningRelax = 100;  // Clock::Relax spins below 200
// The longest delay before an idle worker sees that it is to retire, or that somebody asks what it has measured.
constexpr int64_t kLongestSleepNs = 5'000'000;
// Rounds between two times that a worker shares its progress: half a second if it is idle. If it is busy, the cost of
// copying some forty words is not visible. Only every 16th time shares what takes a system call or longer.
constexpr uint64_t kShareRounds = 256;
constexpr uint64_t kCostlyRounds = 16 * kShareRounds;

uint64_t ThreadCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Memory to touch in advance: what a worker's client takes, of which 1 MiB is its address cache, and what it allocates
// beyond that until its first replies.
constexpr size_t kClientBytes = size_t{2} << 20;
constexpr size_t kBeginBytes = size_t{256} << 10;
// Enough keys for some of them to be in tables on every memory node.
constexpr uint32_t kRehearsedKeys = 32;

bool IsCalled(const std::atomic<uint32_t>& call) { return call.load(std::memory_order_relaxed) != 0; }  // a hint

// Gives pages to the next `bytes` that this thread's part of the heap hands out; otherwise the first touch of each page
// costs microseconds.
void TouchHeap(size_t bytes, const std::atomic<uint32_t>& call) {
  // Makes the heap keep what is freed there, for other threads too, and serve large requests from there as well. The
  // heap is the whole program's: it keeps this much for each of its parts, of which there are eight a core.
  static const bool kept =
      mallopt(M_MMAP_THRESHOLD, int{4 * kClientBytes}) != 0 && mallopt(M_TRIM_THRESHOLD, int{4 * kClientBytes}) != 0;
  if (!kept) return;
  constexpr size_t kPageBytes = 4096;
  const auto memory = std::make_unique_for_overwrite<char[]>(bytes);
  volatile char* const touched = memory.get();
  for (size_t i = 0; i < bytes && !IsCalled(call); i += kPageBytes) touched[i] = 0;
}

// All members of Stats are counts.
template <typename Stats>
void AddCounts(const Stats& more, Stats* sum) {
  using Counts = std::array<uint64_t, sizeof(Stats) / sizeof(uint64_t)>;
  static_assert(std::is_trivially_copyable_v<Stats> && sizeof(Counts) == sizeof(Stats));
  Counts total = std::bit_cast<Counts>(*sum);
  const Counts added = std::bit_cast<Counts>(more);
  for (size_t i = 0; i < total.size(); ++i) total[i] += added[i];
  *sum = std::bit_cast<Stats>(total);
}

}  // namespace

void WorkerJob::Sleep(krcore::Clock& clock, int64_t until_ns) {
  if (&clock != krcore::RealClock()) {  // virtual time, which may stand still until another thread moves it
    int64_t last_ns = -1;
    for (int64_t now_ns; (now_ns = clock.NowNs()) < until_ns && now_ns != last_ns; last_ns = now_ns) clock.Relax(0);
    return;
  }
  const timespec at{until_ns / 1'000'000'000, until_ns % 1'000'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

void ClientTrace::Share(const WorkerProgress& now) {
  static_assert(std::is_trivially_copyable_v<WorkerProgress> && sizeof(words_) == sizeof(now));
  const auto words = std::bit_cast<std::array<uint64_t, kWords>>(now);
  // Each count stands alone: they order nothing.
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
}

WorkerProgress ClientTrace::Load() const {
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
  return std::bit_cast<WorkerProgress>(words);
}

void SetProgress(const WorkerProgress& progress, WorkerRecord* record) {
  record->client_stats = progress.stats;
  record->cpu_ns = progress.cpu_ns;
  record->connection_bytes = progress.connection_bytes;
  record->software_dc = progress.software_dc;
}

void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum) { AddCounts(more, sum); }

std::optional<krcore::SoftwareDcStats> TotalSoftwareDc(const std::vector<WorkerRecord>& records) {
  krcore::SoftwareDcStats sum;
  for (const WorkerRecord& record : records) AddCounts(record.software_dc, &sum);
  if (sum.sent == 0) return {};
  return sum;
}

void GetReady(kvs::Store& store, uint32_t lanes, bool rehearse, const std::atomic<uint32_t>& call) {
  TouchHeap(kClientBytes, call);
  if (rehearse && !IsCalled(call)) {
    kvs::ClientOptions options = WorkerClient(lanes);
    options.address_cache_entries = 0;  // other caches than the prepared ones, which are for workers
    const auto client = store.NewClient(options);
    std::string unused;
    for (uint32_t key = 0; client.ok() && key < kRehearsedKeys && !IsCalled(call); ++key) {
      // Most likely the key does not exist, which is just as good.
      const Status got = (*client)->Get(std::to_string(key), &unused);
      if (got == StatusCode::kUnavailable || got == StatusCode::kTimeout) break;
    }
  }
  if (IsCalled(call)) return;
  (void)store.PrepareClient(WorkerClient(lanes));
  TouchHeap(kBeginBytes, call);
}

Status Serve(WorkerContext& context, kvs::Store& store, Job& job, const NoteTime& note, ClientTrace* trace) {
  krcore::Clock& clock = context.clock();
  // Makes this thread's sleeps end on time, not up to 50 us later to merge wake-ups.
  prctl(PR_SET_TIMERSLACK, 1UL);
  krcore::Result<std::unique_ptr<kvs::Client>> made = store.NewClient(WorkerClient(context.lanes_));
  if (!made.ok()) return made.status();
  kvs::Client& client = **made;
  context.client_ = &client;
  trace->times = client.times();
  WorkerProgress progress;
  const auto share = [&](bool costly) {
    progress.stats = client.stats();
    if (costly) {
      progress.cpu_ns = ThreadCpuNs();
      progress.connection_bytes = client.connection_bytes();
      progress.software_dc = store.software_dc().value_or(krcore::SoftwareDcStats{});
    }
    trace->Share(progress);
  };
  note(&WorkerTimes::client_ns, clock.NowNs());
  {
    const std::unique_ptr<WorkerJob> worker_job = job.StartWorker(context);
    if (worker_job == nullptr) return {StatusCode::kUnavailable, "the process has no descriptor left for the worker"};
    for (uint32_t lane = 0; lane < context.lanes_; ++lane) client.Spawn(worker_job->Lane(context, lane));
    const int64_t lanes_ns = clock.NowNs();
    context.ready_ns_ = lanes_ns;
    note(&WorkerTimes::lanes_ns, lanes_ns);
    uint32_t idle_rounds = 0;
    bool reply_noted = false;
    const auto note_reply = [&] {
      reply_noted = true;
      note(&WorkerTimes::first_begin_ns, context.first_begin_ns_ != 0 ? context.first_begin_ns_ : lanes_ns);
      note(&WorkerTimes::first_reply_ns, context.first_reply_ns_);
    };
    while (client.spawned() > 0) {
      if (++context.round_ % kShareRounds == 0) [[unlikely]]
        share(context.round_ % kCostlyRounds == kShareRounds);
      const int64_t due_ns = worker_job->OnRound(context);
      for (const std::coroutine_handle<> lane : context.yielded_) kvs::RunQueue::OfThisThread().Push(lane);
      context.yielded_.clear();
      const bool resumes = !kvs::RunQueue::OfThisThread().empty();
      const size_t completions = client.Poll();
      if (!reply_noted && context.first_reply_ns_ != 0) [[unlikely]]
        note_reply();
      if (completions > 0 || resumes || !context.yielded_.empty()) {
        idle_rounds = 0;
        continue;
      }
      const int64_t now_ns = clock.NowNs();
      // Do not sleep after the first idle round: that Poll may have ended operations of lanes that OnRound has not seen
      // yet.
      const int64_t wake_ns =
          idle_rounds == 0 ? now_ns : std::min({due_ns, client.IdleUntil(), now_ns + kLongestSleepNs});
      if (wake_ns > now_ns) {
        worker_job->Sleep(clock, wake_ns);
        idle_rounds = 0;
      } else {
        clock.Relax(due_ns - now_ns < kSleepGrainNs ? kSpinningRelax : idle_rounds);
        ++idle_rounds;
      }
    }
    if (!reply_noted && context.first_reply_ns_ != 0) note_reply();
  }
  progress.stats = client.stats();
  made->reset();
  progress.connection_bytes = 0;
  progress.cpu_ns = ThreadCpuNs();
  progress.software_dc = store.software_dc().value_or(krcore::SoftwareDcStats{});
  trace->Share(progress);
  return {};
}

}  // namespace computenode
