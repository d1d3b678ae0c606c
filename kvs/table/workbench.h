// Workbench: what a client needs to split or merge subtables, one at a time: registered buffers, a batch, and the locks
// of the tables.
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_WORKBENCH_H_
#define KVS_TABLE_WORKBENCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "kvs/epochs/common.h"
#include "kvs/epochs/operation.h"
#include "kvs/epochs/registrar.h"
#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"
#include "kvs/task.h"

namespace kvs {

// The address at an offset of the table.
inline GlobalAddress At(const TableRef& table, uint64_t offset) {
  return {table.address.node, table.address.offset + offset};
}

// Which of Workbench's images is which table of a split or merge.
inline constexpr uint32_t kNewImage = 0, kParentImage = 1, kChildImage = 2;

class Workbench : private Part {
 public:
  static constexpr uint32_t kWindow = 96;  // slots looked at, or words swapped, at once
  static constexpr uint32_t kImages = 3;   // two old tables, and the new one
  struct alignas(64) Registered {
    std::array<uint64_t, kWindow> cas{};
    std::array<BlockHeader, kWindow> blocks{};
    std::array<uint64_t, 8> words{};
    MergeRecord record{};
  };

  static size_t ArenaBytes(const SubtableGeometry& geometry) { return sizeof(Registered) + kImages * geometry.bytes(); }
  Workbench(const Common& common, const Registrar& registrar, ArenaPart arena)
      : Part(common), registrar_(registrar), arena_(arena), image_bytes_(common.shape.geometry.bytes()) {}

  // ---- whose turn it is
  // A split or merge is under way.
  bool busy() const { return busy_; }
  // Begins work for the operation that has this batch.
  void Begin(const Batch& on_behalf_of);
  void End() { busy_ = false; }
  // Begins a split or merge that no operation waits for. in_background() is true until it has ended.
  void Background(Task<void> task);
  bool in_background() const { return background_ > 0; }
  // As long as this lives, the caller counts as background work.
  class InBackground {
   public:
    explicit InBackground(Workbench& workbench) : workbench_(workbench) { ++workbench_.background_; }
    InBackground(const InBackground&) = delete;
    InBackground& operator=(const InBackground&) = delete;
    ~InBackground() { --workbench_.background_; }

   private:
    Workbench& workbench_;
  };

  // ---- locks, which only avoid double work
  uint64_t NewToken() { return uint64_t{registrar_.client_index() + 1} << 32 | (common_.random() & 0xffffffff); }
  // `takeovers` is incremented if the lock was taken over from another client.
  Task<Step> LockTable(TableRef table, uint64_t token, uint64_t* takeovers);
  Task<Step> UnlockTable(TableRef table, uint64_t token);

  // ---- between Begin and End
  Registered& words() { return *registered_; }
  Batch& batch() { return batch_; }
  // A CAS of a word of a table.
  struct Swap {
    uint64_t offset, expected, desired;
  };
  struct Swaps {
    uint32_t won = 0, lost = 0;  // lost: others were faster
  };
  // CASes the words that swap_of(0), ... swap_of(end - 1) name (std::optional<Swap>), each once and as many at once as
  // there is room for. Then the image has what is there.
  template <typename SwapOf>
  Task<Step> SwapOnce(TableRef table, uint32_t image, uint32_t end, SwapOf swap_of, Word whose, Swaps* swaps) {
    *swaps = {};
    for (uint32_t next = 0; next < end;) {
      const uint32_t count = AskToSwap(table, &next, end, swap_of, whose);
      KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
      for (uint32_t i = 0; i < count; ++i) {
        const bool won = registered_->cas[i] == swaps_[i].expected || Mutated(Mutation::kLostSwapIgnored);
        *reinterpret_cast<uint64_t*>(images() + image * image_bytes_ + swaps_[i].offset) =
            won ? swaps_[i].desired : registered_->cas[i];
        ++(won ? swaps->won : swaps->lost);
      }
    }
    common_.stats.cas_failures += swaps->lost;
    co_return Step::kOk;
  }
  // Reads the whole subtable.
  Task<Step> Look(TableRef table, uint32_t image) {
    ReadImage(table, image);
    KVS_CO_RETURN_UNLESS_OK(co_await batch_.Run());
    co_return Step::kOk;
  }
  // A whole subtable.
  std::span<std::byte> image(uint32_t i) { return {images() + i * image_bytes_, image_bytes_}; }
  // Asks for a table, to be read into an image.
  void ReadImage(const TableRef& table, uint32_t i) {
    batch_.Read(table.address, image(i).data(), static_cast<uint32_t>(image_bytes_));
  }
  // Asks to write the new image to memory for a table.
  void WriteImage(GlobalAddress table) {
    batch_.Write(image(kNewImage).data(), table, static_cast<uint32_t>(image_bytes_));
  }
  Slot& ImageSlot(uint32_t slot, uint32_t i) {
    return *reinterpret_cast<Slot*>(images() + i * image_bytes_ + SlotOffset(slot));
  }
  BucketHeader ImageHeader(uint32_t bucket, uint32_t i) const {
    return *reinterpret_cast<const BucketHeader*>(images() + i * image_bytes_ + BucketOffset(bucket));
  }

 private:
  // A lock word as it was last seen, and the time since which it has not changed.
  struct SeenLock {
    uint64_t word = 0;
    int64_t since_ns = 0;
  };
  // Asks for as many of SwapOnce's CASes as there is room for, from swap_of(*next) on. *next: where to go on. Returns
  // how many. (Not inlined: in a coroutine it costs a load 0.5% more instructions.)
  template <typename SwapOf>
  [[gnu::noinline]] uint32_t AskToSwap(const TableRef& table, uint32_t* next, uint32_t end, SwapOf swap_of,
                                       Word whose) {
    uint32_t count = 0;
    for (; *next < end && count < kWindow; ++*next) {
      const std::optional<Swap> swap = swap_of(*next);
      if (!swap) continue;
      batch_.CompareSwap(At(table, swap->offset), swap->expected, swap->desired, &registered_->cas[count], whose);
      swaps_[count++] = *swap;
    }
    return count;
  }
  std::byte* images() const { return arena_.memory + sizeof(Registered); }

  const Registrar& registrar_;
  const ArenaPart arena_;
  const size_t image_bytes_;
  std::array<Swap, kWindow> swaps_;   // that SwapOnce has asked for
  Registered* registered_ = nullptr;  // made when it is first needed
  Batch batch_;
  bool busy_ = false;
  size_t background_ = 0;
  std::unordered_map<uint64_t, SeenLock> locks_seen_;  // by table: others' locks that this client waited for
};

}  // namespace kvs

#endif  // KVS_TABLE_WORKBENCH_H_
