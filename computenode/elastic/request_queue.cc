#include "computenode/elastic/request_queue.h"

#include <algorithm>
#include <string>
#include <utility>

namespace computenode {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr char kName[] = "surgekv-requests";
constexpr uint64_t kMagic = 0x3130515552534b53;  // "SKSRUQ01"
constexpr uint64_t kIndexMask = (uint64_t{1} << 40) - 1, kNothingOpen = kIndexMask;

constexpr uint64_t NextChange(uint64_t reopened, uint64_t index) {
  return (reopened & ~kIndexMask) + kIndexMask + 1 + index;
}

}  // namespace

uint64_t RequestQueue::Bytes(uint64_t count) { return sizeof(Header) + count * (sizeof(int64_t) + sizeof(Entry)); }

RequestQueue::RequestQueue(SharedMemory memory)
    : memory_(std::move(memory)),
      header_(reinterpret_cast<Header*>(memory_.data())),
      count_((memory_.size() - sizeof(Header)) / (sizeof(int64_t) + sizeof(Entry))),
      due_(reinterpret_cast<int64_t*>(memory_.data() + sizeof(Header))),
      entries_(reinterpret_cast<Entry*>(due_ + count_)) {}

Result<std::unique_ptr<RequestQueue>> RequestQueue::Create(std::span<const int64_t> due) {
  if (due.empty() || due.size() > kMaxRequests) {
    return Status(StatusCode::kInvalidArgument,
                  std::to_string(due.size()) + " requests: expected 1 to " + std::to_string(kMaxRequests));
  }
  Result<SharedMemory> memory = SharedMemory::Create(kName, Bytes(due.size()));
  if (!memory.ok()) return memory.status();
  std::unique_ptr<RequestQueue> queue(new RequestQueue(std::move(*memory)));
  std::copy(due.begin(), due.end(), queue->due_);
  queue->header_->count = due.size();
  queue->header_->reopened.store(kNothingOpen, std::memory_order_relaxed);
  queue->header_->magic = kMagic;
  return queue;
}

Result<std::unique_ptr<RequestQueue>> RequestQueue::Attach(int fd) {
  Result<SharedMemory> memory = SharedMemory::Attach(kName, fd);
  if (!memory.ok()) return memory.status();
  const auto* const header = reinterpret_cast<const Header*>(memory->data());
  if (memory->size() < Bytes(1) || header->magic != kMagic || Bytes(header->count) != memory->size()) {
    return Status(StatusCode::kInvalidArgument, "the descriptor does not refer to a queue of requests");
  }
  return std::unique_ptr<RequestQueue>(new RequestQueue(std::move(*memory)));
}

void RequestQueue::Start(int64_t start_ns) { header_->start_ns.store(start_ns, std::memory_order_release); }

bool RequestQueue::Claim(uint32_t worker, Request* request) {
  const int64_t start_ns = this->start_ns();
  if (start_ns == 0) return false;
  if ((header_->reopened.load(std::memory_order_acquire) & kIndexMask) != kNothingOpen) [[unlikely]] {
    if (ClaimReopened(worker, request)) return true;
  }
  uint64_t head = header_->head.load(std::memory_order_relaxed);
  while (head < count_) {
    uint64_t open = Word(State::kOpen, 0);
    const bool claimed =
        entries_[head].word.compare_exchange_strong(open, Word(State::kClaimed, worker), std::memory_order_acq_rel);
    // Any worker that finds the request claimed moves the head on, because its claimer may be dead.
    uint64_t expected = head;
    header_->head.compare_exchange_strong(expected, head + 1, std::memory_order_relaxed);
    if (claimed) {
      *request = {head, start_ns + due_[head]};
      return true;
    }
    ++head;
  }
  return false;
}

bool RequestQueue::ClaimReopened(uint32_t worker, Request* request) {
  uint64_t reopened = header_->reopened.load(std::memory_order_acquire);
  // Look one beyond the head: a worker that found it claimed may be about to move the head past it, though it is open
  // again.
  const uint64_t end = std::min(header_->head.load(std::memory_order_relaxed) + 1, count_);
  for (uint64_t i = reopened & kIndexMask; i < end; ++i) {
    uint64_t open = Word(State::kOpen, 0);
    if (entries_[i].word.load(std::memory_order_relaxed) != open) continue;
    if (!entries_[i].word.compare_exchange_strong(open, Word(State::kClaimed, worker), std::memory_order_acq_rel))
      continue;
    *request = {i, start_ns() + due_[i]};
    return true;
  }
  // None is open, unless one was reopened meanwhile: then the word has changed.
  header_->reopened.compare_exchange_strong(reopened, NextChange(reopened, kNothingOpen), std::memory_order_acq_rel);
  return false;
}

// To be called after requests from `index` on were opened.
void RequestQueue::LookAgainFrom(uint64_t index) {
  uint64_t reopened = header_->reopened.load(std::memory_order_relaxed);
  while (!header_->reopened.compare_exchange_weak(
      reopened, NextChange(reopened, std::min(index, reopened & kIndexMask)), std::memory_order_acq_rel)) {
  }
}

void RequestQueue::Return(uint32_t worker, uint64_t index) {
  uint64_t claimed = Word(State::kClaimed, worker);
  if (index >= count_) return;
  if (!entries_[index].word.compare_exchange_strong(claimed, Word(State::kOpen, 0), std::memory_order_acq_rel)) return;
  LookAgainFrom(index);
}

bool RequestQueue::Reply(uint32_t worker, uint64_t index, int64_t now_ns, bool failed) {
  if (index >= count_) return false;
  Entry& entry = entries_[index];
  uint64_t claimed = Word(State::kClaimed, worker);
  if (entry.word.load(std::memory_order_relaxed) != claimed) return false;
  entry.done_ns.store(now_ns - start_ns(), std::memory_order_relaxed);
  return entry.word.compare_exchange_strong(claimed, Word(failed ? State::kFailed : State::kReplied, worker),
                                            std::memory_order_acq_rel);
}

uint64_t RequestQueue::TakeBack(uint32_t worker) {
  uint64_t taken = 0;
  // Look one beyond the head: the worker may have died between its claim and the head's move.
  const uint64_t end = std::min(header_->head.load(std::memory_order_acquire) + 1, count_);
  for (uint64_t i = replied_; i < end; ++i) {
    uint64_t claimed = Word(State::kClaimed, worker);
    if (entries_[i].word.load(std::memory_order_relaxed) != claimed) continue;
    taken +=
        entries_[i].word.compare_exchange_strong(claimed, Word(State::kOpen, 0), std::memory_order_acq_rel) ? 1 : 0;
  }
  // This also covers what the worker returned last, if it died before it said so.
  LookAgainFrom(replied_);
  return taken;
}

RequestLoad RequestQueue::Look(int64_t now_ns) {
  RequestLoad load;
  const int64_t start_ns = this->start_ns();
  if (start_ns == 0) return load;
  while (due_count_ < count_ && start_ns + due_[due_count_] <= now_ns) ++due_count_;
  load.due = due_count_;
  const uint64_t head = header_->head.load(std::memory_order_acquire);
  uint64_t oldest = head;
  for (uint64_t i = header_->reopened.load(std::memory_order_acquire) & kIndexMask; i < std::min(head, due_count_);
       ++i) {
    if (entries_[i].word.load(std::memory_order_relaxed) != Word(State::kOpen, 0)) continue;
    oldest = std::min(oldest, i);
    ++load.backlog;
  }
  load.backlog += due_count_ - std::min(due_count_, head);
  if (load.backlog > 0) load.oldest_wait_ns = now_ns - start_ns - due_[oldest];
  return load;
}

uint64_t RequestQueue::Replied() {
  const auto replied = [this](uint64_t index) {
    return (entries_[index].word.load(std::memory_order_acquire) & 3) >= static_cast<uint64_t>(State::kReplied);
  };
  while (replied_ < count_ && replied(replied_)) ++replied_;
  return replied_;
}

RequestRecord RequestQueue::RecordOf(uint64_t index) const {
  const uint64_t word = entries_[index].word.load(std::memory_order_acquire);
  const auto state = static_cast<State>(word & 3);
  RequestRecord record{.due_ns = due_[index]};
  if (state != State::kReplied && state != State::kFailed) return record;
  record.done_ns = entries_[index].done_ns.load(std::memory_order_relaxed);
  record.worker = static_cast<uint32_t>(word >> 2);
  record.failed = state == State::kFailed;
  return record;
}

}  // namespace computenode
