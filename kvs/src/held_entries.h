// The entries of the home's client table that the clients of one node are at. All of them have one owner word, and the
// outcome of a CAS of it may be unknown: so what is done to an entry by that word one client does at a time, from
// before it claims the entry until that is known to be given back (docs/protocol.md, "Registration").
//
// Thread safety: all methods from any thread.
#ifndef KVS_SRC_HELD_ENTRIES_H_
#define KVS_SRC_HELD_ENTRIES_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace kvs {

// An entry, and the word that says whose it is.
struct ClaimedEntry {
  uint32_t index = 0;
  uint64_t owner = 0;
};

class HeldEntries {
 public:
  void RemoveFrom(std::vector<uint32_t>* indexes);
  bool Hold(uint32_t index);  // false: another client is at it, or it was abandoned
  // It is free, or another node's.
  void LetGo(uint32_t index);
  // It is the node's still, or may be, and the client that held it has ended or given up: nobody else can find that out
  // while this process lives. Another client takes it, and gives the entry back in its stead.
  void Abandon(const ClaimedEntry& entry);
  // Held by the caller from now on. Nothing: none was abandoned.
  std::optional<ClaimedEntry> TakeAbandoned();

 private:
  std::mutex mutex_;
  std::set<uint32_t> held_;              // guarded by mutex_; abandoned ones included
  std::vector<ClaimedEntry> abandoned_;  // guarded by mutex_
};

}  // namespace kvs

#endif  // KVS_SRC_HELD_ENTRIES_H_
