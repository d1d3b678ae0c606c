// What the scripts of scenarios have in common.
#ifndef TESTS_SIM_SCRIPT_H_
#define TESTS_SIM_SCRIPT_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sim/simulation.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {

// `play` returns whether the client was held in the scenario's subject.
template <typename Play>
void OnStage(const StageOptions& options, RunResult* result, Play play) {
  if (!result->violation.empty()) return;
  auto stage = std::make_unique<Stage>(options);
  const bool held = play(*stage);
  if (stage->fine()) stage->Judge();
  result->counts.pauses += held;
  result->violation = stage->violation();
  result->text = stage->text();
  if (!stage->fine()) (void)stage.release();
}

// Gives, in order, the keys whose hash ends with `suffix` in `bits` bits.
class Keys {
 public:
  Keys(uint32_t bits, uint64_t suffix) : mask_((uint64_t{1} << bits) - 1), suffix_(suffix) {}
  uint32_t Next() {
    while ((Stage::HashOf(next_).h1 & mask_) != suffix_) ++next_;
    given_.push_back(next_);
    return next_++;
  }
  const std::vector<uint32_t>& given() const { return given_; }
  // The caller deletes the keys that this returns.
  std::vector<uint32_t> TakeAllBut(const std::vector<uint32_t>& kept) {
    std::vector<uint32_t> taken;
    for (const uint32_t key : given_) {
      if (std::find(kept.begin(), kept.end(), key) == kept.end()) taken.push_back(key);
    }
    given_ = kept;
    return taken;
  }
  void Skip(uint32_t key) { next_ = std::max(next_, key); }
  void Take(uint32_t key) { std::erase(given_, key); }
  void GiveBack(uint32_t key) { given_.push_back(key); }

 private:
  const uint64_t mask_, suffix_;
  uint32_t next_ = 0;
  std::vector<uint32_t> given_;
};

// Client c inserts keys until one of them has begun the split of dir[index], and is held there. Returns false if none
// did.
bool FillUntilSplit(Stage& stage, uint32_t c, Keys& keys, uint32_t index);

// Client c deletes all keys but those in `kept`, and then inserts and deletes a few more, until the table of dir[index]
// and its youngest child's are merging, and is held there. Returns false if they never merged.
bool DeleteUntilMerge(Stage& stage, uint32_t c, Keys& keys, const std::vector<uint32_t>& kept, uint32_t index = 0);

// Returns the first `count` inserted keys that leave the root at its first split.
std::vector<uint32_t> SomeMoving(const Keys& keys, size_t count);

// Two keys with one fingerprint and the same buckets; only their blocks tell them apart. The first one leaves the root
// at its first split, and the second one stays.
struct Twins {
  uint32_t moving = 0, staying = 0;
};
Twins FindTwins(uint32_t groups);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SCRIPT_H_
