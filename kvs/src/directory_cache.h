// A client's copy of the directory entries it has met: a flat array by the low bits of the hash. Entries are hints,
// bucket headers decide, so a stale one costs round trips, never correctness.
#ifndef KVS_SRC_DIRECTORY_CACHE_H_
#define KVS_SRC_DIRECTORY_CACHE_H_

#include <cstdint>
#include <vector>

#include "kvs/layout/directory.h"
#include "kvs/layout/hash.h"

namespace kvs {

// A subtable as the directory described it.
struct TableRef {
  GlobalAddress address;
  uint32_t index = 0;  // of its canonical directory entry
  DirectoryEntry entry;

  bool migrating() const { return entry.state() == DirectoryState::kMigrating; }
};

class DirectoryCache {
 public:
  DirectoryCache() : entries_(1) {}

  // False if nothing is known for the hash.
  bool Lookup(const KeyHash& hash, TableRef* table) const {
    const DirectoryEntry entry(entries_[hash.h1 & (entries_.size() - 1)]);
    if (!entry.present()) return false;
    *table = {entry.subtable(), hash.Suffix(entry.depth()), entry};
    return true;
  }

  // Takes dir[index] = entry for every hash it covers and for which nothing deeper is known.
  void Insert(uint32_t index, DirectoryEntry entry) {
    while (entries_.size() < size_t{1} << entry.depth()) {
      const size_t size = entries_.size();
      entries_.resize(size * 2);
      for (size_t i = 0; i < size; ++i) entries_[size + i] = entries_[i];
    }
    for (size_t i = index; i < entries_.size(); i += size_t{1} << entry.depth()) {
      if (DirectoryEntry(entries_[i]).depth() <= entry.depth()) entries_[i] = entry.word();
    }
  }

 private:
  std::vector<uint64_t> entries_;  // a power of two of them
};

}  // namespace kvs

#endif  // KVS_SRC_DIRECTORY_CACHE_H_
