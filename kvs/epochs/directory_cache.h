// What a client knows of tables without pinning them, and must forget before their memory is used again.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_DIRECTORY_CACHE_H_
#define KVS_EPOCHS_DIRECTORY_CACHE_H_

#include <cstdint>
#include <vector>

#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"

namespace kvs {

// A client's copy of the directory entries that it has met: a flat array, indexed by the low bits of the hash. Entries
// are hints and bucket headers decide, so a stale entry costs round trips, never correctness. The cache names tables
// without pinning them. So it is cleared before memory that it may name can be reused (docs/protocol.md, "Epochs").
class DirectoryCache {
 public:
  DirectoryCache() : entries_(1) {}

  // Finds the table of the hash. False: nothing is known for it.
  bool Lookup(const KeyHash& hash, TableRef* table) const {
    const DirectoryEntry entry(entries_[hash.h1 & (entries_.size() - 1)]);
    if (!entry.present()) return false;
    *table = {entry.subtable(), hash.Suffix(entry.depth()), entry, clears_};
    return true;
  }

  // Take a ticket before the READ of an entry is posted: the entry is not inserted if the cache was cleared since.
  uint64_t Ticket() const { return clears_; }
  // Inserts an entry for every hash that it covers and for which nothing deeper is known.
  void Insert(const TableRef& table) {
    const DirectoryEntry entry = table.entry;
    if (table.ticket != clears_ || !entry.has_subtable()) return;
    while (entries_.size() < size_t{1} << entry.depth()) {
      const size_t size = entries_.size();
      entries_.resize(size * 2);
      for (size_t i = 0; i < size; ++i) entries_[size + i] = entries_[i];
    }
    for (size_t i = table.index; i < entries_.size(); i += size_t{1} << entry.depth()) {
      if (DirectoryEntry(entries_[i]).depth() <= entry.depth()) entries_[i] = entry.word();
    }
  }
  // Drops the entries that name this table, which a Lookup gave. The next Lookup of such a hash finds nothing.
  void Forget(const TableRef& table) {
    for (size_t i = table.index; i < entries_.size(); i += size_t{1} << table.entry.depth()) {
      const DirectoryEntry entry(entries_[i]);
      if (entry.present() && entry.subtable() == table.address) entries_[i] = 0;
    }
  }
  // Drops everything.
  void Clear() {
    entries_.assign(1, 0);
    ++clears_;
  }

 private:
  std::vector<uint64_t> entries_;  // a power of two of them
  uint64_t clears_ = 0;
};

}  // namespace kvs

#endif  // KVS_EPOCHS_DIRECTORY_CACHE_H_
