// A merge that goes on, as its record says.
#ifndef KVS_SRC_MERGE_H_
#define KVS_SRC_MERGE_H_

#include <array>
#include <cstdint>
#include <utility>

#include "kvs/layout/directory.h"
#include "kvs/src/directory_cache.h"

namespace kvs {

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

#endif  // KVS_SRC_MERGE_H_
