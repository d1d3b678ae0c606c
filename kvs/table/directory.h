// The directory at the store's home: finding the table of a hash when the cache does not know it, or knows it wrongly.
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_DIRECTORY_H_
#define KVS_TABLE_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvs/epochs/common.h"
#include "kvs/epochs/directory_cache.h"
#include "kvs/epochs/operation.h"
#include "kvs/layout/directory.h"
#include "kvs/task.h"

namespace kvs {

class Directory : private Part {
 public:
  Directory(const Common& common, DirectoryCache& cache) : Part(common), cache_(cache) {}

  // Reads every entry that the hash may belong to in one round trip: dir[0] and, for each set bit of the suffix, the
  // index that ends with it. The deepest present one is the table. They are read deepest first.
  Task<Step> Resolve(Operation& op, TableRef* table);
  // Asks for entries, in this order, into `words`, which are registered. co_await what this returns to have them.
  template <typename... Index>
  auto ReadWords(Batch& batch, uint64_t* words, Index... indexes) {
    (batch.Read(EntryAddress(indexes), words++, sizeof(*words)), ...);
    common_.stats.directory_reads += sizeof...(indexes);
    return batch.Run();
  }
  // Reads one entry. `scratch`: 8 registered bytes. An entry that names no subtable gives a table without an address.
  Task<Step> ReadEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table);
  // Reads the record that `entry` names, which this operation has read. The record stays valid until the operation
  // ends.
  Task<Step> ReadMerge(Batch& batch, MergeRecord* scratch, DirectoryEntry entry, Merge* merge);
  GlobalAddress EntryAddress(uint32_t index) const {
    return {common_.shape.home, kDirectoryOffset + uint64_t{index} * sizeof(uint64_t)};
  }

  // Notes another client's split or merge of dir[index] that may have stopped, for upkeep to look at.
  void NoteUnfinished(uint32_t index);
  // Takes one of those, to look after it.
  std::optional<uint32_t> TakeUnfinished();

 private:
  DirectoryCache& cache_;
  std::vector<uint32_t> unfinished_;  // indexes whose entries were SPLITTING or MERGING
};

}  // namespace kvs

#endif  // KVS_TABLE_DIRECTORY_H_
