#include "krcore/rnic/sim/tables.h"

#include <string>

#include "krcore/rnic/sim/limits.h"

namespace krcore::rnic::sim {
namespace {

// A free index, or a new one at the end; false: none left.
template <typename Entry>
bool TakeIndex(std::vector<Entry>* entries, std::vector<uint32_t>* free, uint32_t limit, uint32_t* index) {
  if (!free->empty()) {
    *index = free->back();
    free->pop_back();
    return true;
  }
  if (entries->size() == limit) return false;
  *index = static_cast<uint32_t>(entries->size());
  entries->emplace_back();
  return true;
}

Status TableFull(const char* what, uint32_t limit) {
  return {StatusCode::kOutOfMemory, "this device has " + std::to_string(limit) + " " + what + ", its limit"};
}

}  // namespace

Result<uint32_t> MrTable::Add(uint32_t pd, const void* addr, size_t length, uint32_t rights) {
  uint32_t index = 0;
  if (!TakeIndex(&entries_, &free_, kMaxMrs, &index)) return TableFull("memory regions", kMaxMrs);
  const uint32_t generation = entries_[index].generation == 0xffff ? 1 : entries_[index].generation + 1;
  entries_[index] = {reinterpret_cast<uint64_t>(addr), length, generation << 16 | index, rights, pd, generation};
  return entries_[index].key;
}

void MrTable::Remove(uint32_t key) {
  MrEntry& entry = entries_[key & 0xffff];
  entry.key = 0;
  free_.push_back(key & 0xffff);
}

Result<uint32_t> QpTable::Add(EntryType type, uint32_t pd) {
  uint32_t index = 0;
  if (!TakeIndex(&entries_, &free_, kMaxQps, &index)) return TableFull("queue pairs and DC targets", kMaxQps);
  const uint32_t generation = entries_[index].generation == 0xfff ? 1 : entries_[index].generation + 1;
  entries_[index] = {.number = generation << 12 | index, .generation = generation, .type = type, .pd = pd};
  return entries_[index].number;
}

void QpTable::Remove(uint32_t number) {
  QpEntry& entry = entries_[number & 0xfff];
  entry = {.generation = entry.generation};
  free_.push_back(number & 0xfff);
}

}  // namespace krcore::rnic::sim
