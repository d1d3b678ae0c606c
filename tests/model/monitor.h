// The linearizability monitor: a part of every model's state that follows all linearizations of the history so far.
//
// For one key it holds a set of configurations (value of the key; for each process: idle, operation pending, or
// operation linearized with a result): those that some linearization of the history can be in. A response keeps those
// in which the operation was linearized with that very result. If none is left, the history is not linearizable.
#ifndef TESTS_MODEL_MONITOR_H_
#define TESTS_MODEL_MONITOR_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/model/engine.h"

namespace model {

inline constexpr int kMaxProcesses = 4;
inline constexpr int kKeys = 2;

// kModify: a Modify that sets its value, whatever the key has. (One that keeps what it sees takes the steps of a Get,
// and one that deletes it those of a Delete.)
enum class OpKind : uint8_t { kGet, kPut, kInsert, kUpdate, kDelete, kModify, kStructural };

// One operation of a program. Values are 1..13, one per writing operation; 0 is "absent".
struct Op {
  OpKind kind = OpKind::kGet;
  uint8_t key = 0;      // of a structural operation: whatever the model takes it for
  char structural = 0;  // its letter
  uint8_t value = 0;    // the value that it writes
  bool Writes() const { return kind != OpKind::kGet && kind != OpKind::kDelete && kind != OpKind::kStructural; }
};
using Program = std::vector<Op>;

// Parses "G1 P0 S0": each operation is a letter and a digit. G P I U D and C (a Modify) take a key, the letters of
// `structural` any digit. Numbers the values of all programs. Returns an empty vector with *error set if `texts` is
// something else.
std::vector<Program> ParsePrograms(std::span<const std::string> texts, const std::string& structural,
                                   std::string* error);

class Monitor {
 public:
  // `value`: the value of the key at the beginning.
  explicit Monitor(uint8_t value = 0) { configurations_[0] = value; }

  // The operations in flight. ops[p] is used only while process p has invoked and not yet responded.
  using InFlight = std::array<Op, kMaxProcesses>;
  void Invoke(int process, const InFlight& ops);
  // `result`: of a Get, the value; of a Modify, what it replaced, 0 if the key was absent; of the others, 1 for done
  // and 0 for not done (absent, or exists).
  void Respond(int process, uint8_t result);
  // The operation says that it has had no effect, and will have none.
  void RespondNoEffect(int process);

  bool linearizable() const { return count_ > 0; }
  bool MayHold(uint8_t value) const;
  void Hash(Hasher* hasher) const;

 private:
  static constexpr size_t kMaxConfigurations = 96;
  void Assign(std::vector<uint32_t>* configurations);
  void Keep(int process, uint32_t phase);

  uint32_t count_ = 1;
  std::array<uint32_t, kMaxConfigurations> configurations_{};
};

}  // namespace model

#endif  // TESTS_MODEL_MONITOR_H_
