// Outbox: what operations post to one memory node between two doorbells. Verbs of many batches go to the VirtualQueue
// together, and only the last of them is signaled. Completions of one queue come in order, so that one stands for all.
//
// A batch's verbs to the node are a *part*. Parts are in the order in which they were added, and end in that order:
//
//     head_ ................... handed_on_ ........... tail_
//        the queue's, to be completed     in the outbox
//
// The wr_id of a verb is its batch's address. That of a signaled verb is the number of parts that have ended with it,
// marked by the lowest bit. So an error of any verb finds its batch, and a marker ends all parts up to its own.
//
// Thread safety: the client's thread.
#ifndef KVS_MEMORY_OUTBOX_H_
#define KVS_MEMORY_OUTBOX_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "krcore/types.h"
#include "kvs/layout/subtable.h"

namespace kvs {

class Batch;

// What a batch asks for. `offset` is an offset in the memory node's pool.
struct Verb {
  krcore::Opcode opcode;
  uint64_t offset;
  krcore::Sge local;
  uint64_t expected = 0, desired = 0;  // of a CAS
};

class Outbox {
 public:
  // The outbox is handed on before it has more verbs. Once verbs are handed on, they are waited for: the more go at a
  // time, the more of their cache misses or round trips overlap.
  static constexpr uint32_t kMostVerbs = 32;
  // For how many verbs cache lines are asked for together: as many as a CPU can wait for at once.
  static constexpr uint32_t kHintEvery = 4;

  // `queue_depth` is that of the queue to which the outbox is handed on.
  explicit Outbox(uint32_t queue_depth)
      : hand_on_(std::min(kMostVerbs, queue_depth)),
        mask_(std::bit_ceil(queue_depth + kMostVerbs) - 1),
        parts_(new Batch*[size_t{mask_} + 1]) {
    for (uint32_t i = 0; i < kMostVerbs; ++i) {
      wrs_[i].sg_list = &sges_[i];
      wrs_[i].num_sge = 1;
    }
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  bool empty() const { return count_ == 0; }
  // Whether nothing is in it and all that it handed on has completed.
  bool idle() const { return head_ == tail_; }
  size_t memory_bytes() const { return sizeof(*this) + (size_t{mask_} + 1) * sizeof(Batch*); }
  // Whether this many verbs fit in, without handing on what is there or ending what was handed on.
  bool HasRoom(size_t verbs) const { return (count_ == 0 || count_ + verbs <= hand_on_) && tail_ - head_ <= mask_; }

  // The same, for verbs that go to the last part because that is the batch's.
  bool HasRoomInPart(const Batch* batch, size_t verbs) const { return last_ == batch && count_ + verbs <= hand_on_; }

  // Adds verbs of `batch`, on memory that begins at `base` and that `rkey` opens. They go to the last part if that is
  // the batch's, else to a new one. Returns whether it made a new one.
  template <size_t kCount>
  bool Add(const std::array<Verb, kCount>& verbs, uint64_t base, uint32_t rkey, Batch* batch) {
    assert(HasRoom(kCount) || HasRoomInPart(batch, kCount));
    const bool is_new = last_ != batch;
    if (is_new) {
      if (head_ == tail_) head_ = handed_on_ = tail_ = 0;  // the front of the ring is in the caches
      begins_[tail_ - handed_on_] = static_cast<uint8_t>(count_);
      parts_[tail_++ & mask_] = last_ = batch;
    }
    for (size_t i = 0; i < kCount; ++i) {
      const Verb& verb = verbs[i];
      sges_[count_ + i] = verb.local;
      krcore::WorkRequest& wr = wrs_[count_ + i];
      wr.wr_id = reinterpret_cast<uint64_t>(batch);
      wr.opcode = verb.opcode;
      wr.flags = 0;
      wr.remote_addr = base + verb.offset;
      wr.rkey = rkey;
      if (verb.opcode == krcore::Opcode::kCompareSwap) {
        wr.compare_add = verb.expected;
        wr.swap = verb.desired;
      }
    }
    count_ += static_cast<uint32_t>(kCount);
    return is_new;
  }

  // Takes the verbs after those that were taken before, if there are enough of them to be worth a hint to their queue
  // (VirtualQueue::Prefetch). Otherwise it takes none.
  std::span<const krcore::WorkRequest> TakeForHint(uint32_t worth = kHintEvery) {
    if (count_ - hinted_ < worth) return {};
    const uint32_t from = std::exchange(hinted_, count_);
    return std::span(wrs_).subspan(from, count_ - from);
  }

  // Returns all verbs, the last one marked, for VirtualQueue::Push. Then call Accepted or Refused.
  std::span<const krcore::WorkRequest> Verbs() {
    krcore::WorkRequest& last = wrs_[count_ - 1];
    last.wr_id = uint64_t{tail_} << 1 | kMarker;
    last.flags = krcore::kSignaled;
    return std::span(wrs_).first(count_);
  }
  void Accepted() {
    count_ = hinted_ = 0;
    handed_on_ = tail_;
    last_ = nullptr;
  }
  void Refused() {
    krcore::WorkRequest& last = wrs_[count_ - 1];
    last.wr_id = reinterpret_cast<uint64_t>(last_);
    last.flags = 0;
  }

  // Removes the part that has this verb, so that it is not posted. Returns its batch, and how many verbs it had.
  Batch* Remove(uint32_t verb, uint32_t* verbs) {
    assert(verb < count_);
    uint32_t part = tail_ - handed_on_ - 1;
    while (begins_[part] > verb) --part;
    Batch* const batch = parts_[(handed_on_ + part) & mask_];
    const uint32_t begin = begins_[part];
    const uint32_t end = part + 1 == tail_ - handed_on_ ? count_ : begins_[part + 1];
    *verbs = end - begin;
    for (uint32_t i = end; i < count_; ++i) {
      const uint32_t to = i - *verbs;
      sges_[to] = sges_[i];
      wrs_[to] = wrs_[i];
      wrs_[to].sg_list = &sges_[to];
    }
    count_ -= *verbs;
    hinted_ = std::min(hinted_, count_);
    for (uint32_t p = part; handed_on_ + p + 1 != tail_; ++p) {
      begins_[p] = static_cast<uint8_t>(begins_[p + 1] - *verbs);
      parts_[(handed_on_ + p) & mask_] = parts_[(handed_on_ + p + 1) & mask_];
    }
    --tail_;
    last_ = tail_ == handed_on_ ? nullptr : parts_[(tail_ - 1) & mask_];
    return batch;
  }

  static bool IsMarker(uint64_t wr_id) { return (wr_id & kMarker) != 0; }
  // Returns the batch whose verb failed, by the wr_id of the completion.
  Batch* BatchOf(uint64_t wr_id) const {
    return IsMarker(wr_id) ? parts_[(EndOf(wr_id) - 1) & mask_] : reinterpret_cast<Batch*>(wr_id);
  }
  // Ends the parts up to a marker's, oldest first.
  template <typename Each>
  void End(uint64_t marker, Each each) {
    for (const uint32_t end = EndOf(marker); head_ != end;) each(*parts_[head_++ & mask_]);
  }

 private:
  static constexpr uint64_t kMarker = 1;
  static uint32_t EndOf(uint64_t marker) { return static_cast<uint32_t>(marker >> 1); }

  const uint32_t hand_on_;
  const uint32_t mask_;
  uint32_t count_ = 0;                            // of verbs
  uint32_t hinted_ = 0;                           // of them
  uint32_t head_ = 0, handed_on_ = 0, tail_ = 0;  // counts of parts, from 0 whenever there are none
  std::array<krcore::WorkRequest, kMostVerbs> wrs_;
  std::array<krcore::Sge, kMostVerbs> sges_;
  std::array<uint8_t, kMostVerbs> begins_;  // of the parts in the outbox
  const std::unique_ptr<Batch*[]> parts_;   // a ring
  Batch* last_ = nullptr;                   // the batch of the last part in the outbox
};

}  // namespace kvs

#endif  // KVS_MEMORY_OUTBOX_H_
