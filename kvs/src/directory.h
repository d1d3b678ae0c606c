// What a client knows of the directory: the tables and the merges that it has met there.
#ifndef KVS_SRC_DIRECTORY_H_
#define KVS_SRC_DIRECTORY_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvs/layout/directory.h"
#include "kvs/layout/hash.h"

namespace kvs {

// A subtable as the directory described it.
struct TableRef {
  GlobalAddress address;
  uint32_t index = 0;  // of its canonical directory entry
  DirectoryEntry entry;
  uint64_t ticket = 0;  // DirectoryCache::Ticket() before the entry's READ was posted

  bool migrating() const { return entry.migrating(); }
};

// A client's copy of the directory entries it has met: a flat array by the low bits of the hash. Entries are hints,
// bucket headers decide, so a stale one costs round trips, never correctness. It names tables without pinning them: it
// is cleared before memory that it may name can be reused (docs/protocol.md, "Epochs").
class DirectoryCache {
 public:
  DirectoryCache() : entries_(1) {}

  // False if nothing is known for the hash.
  bool Lookup(const KeyHash& hash, TableRef* table) const {
    const DirectoryEntry entry(entries_[hash.h1 & (entries_.size() - 1)]);
    if (!entry.present()) return false;
    *table = {entry.subtable(), hash.Suffix(entry.depth()), entry, clears_};
    return true;
  }

  // Who reads an entry takes a ticket before the READ is posted: the entry does not come in if the cache was cleared
  // since.
  uint64_t Ticket() const { return clears_; }
  // Takes an entry for every hash it covers and for which nothing deeper is known.
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
  // Drops what names this table, which a Lookup gave: the next Lookup of such a hash finds nothing.
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

// ---- merges

// A merge that goes on, as its record says.
struct Merge {
  GlobalAddress record;  // none: no merge
  MergeRecord terms{};   // the status may have gone on since

  bool known() const { return record.valid(); }
  // The words of dir[s] and dir[c] while the record is in them.
  DirectoryEntry parent_word() const { return terms.parent_engaged(record); }
  DirectoryEntry child_word() const { return terms.child_engaged(record); }
  // The two tables that it takes out of use.
  TableRef parent() const { return {terms.parent().subtable(), terms.parent_index, terms.parent()}; }
  TableRef child() const { return {terms.child().subtable(), terms.child_index, terms.child()}; }
  // Do keys with this hash belong to one of them?
  bool Covers(const KeyHash& hash) const { return hash.Suffix(terms.depth()) == terms.parent_index; }
  TableRef TableOf(const KeyHash& hash) const { return (hash.h1 >> terms.depth() & 1) != 0 ? child() : parent(); }
};

// What a merge is begun for.
enum class MergeFor : uint8_t {
  kSpace,  // two tables that have few keys become one
  kJoin,   // the same, however many they have, if that will do
  kCopies  // each is replaced by a copy, which lies elsewhere
};

// Memory for new subtables, allocated before anything is begun that would need it.
struct SpareTables {
  std::array<GlobalAddress, 2> tables;

  GlobalAddress Take() {
    GlobalAddress& spare = tables[tables[0].valid() ? 0 : 1];
    return std::exchange(spare, GlobalAddress{});
  }
};

}  // namespace kvs

#endif  // KVS_SRC_DIRECTORY_H_
