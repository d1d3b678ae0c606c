// Explicit-state model checking: every state that a model can reach is visited once, depth first, and checked.
//
// A model is a class with
//   State                                       a copyable value
//   void Hash(const State&, Hasher*) const      adds everything that tells two states apart
//   void Successors(const State&, Emit) const   calls emit(process, name of the step, next) for each possible step
//   std::string Violation(const State&) const   empty, or what is wrong with this state
//   std::string Describe(const State&) const    one line, for the trace of a counterexample
//
// A process that stops for ever needs no step of its own: the states in which the others go on without it are among
// those visited. States are recognized by a hash of 128 bits: among 10^8 different ones, two collide with probability
// 10^-23.
#ifndef TESTS_MODEL_ENGINE_H_
#define TESTS_MODEL_ENGINE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace model {

struct Fingerprint {
  uint64_t low = 0, high = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

class Hasher {
 public:
  void Add(uint64_t word) {
    low_ = Mix(low_ ^ word) + 0x1234567;
    high_ = Mix(high_ + word * 0x9E3779B97F4A7C15) ^ (high_ << 7);
  }
  // Only types without padding: two equal values must have equal bytes.
  template <typename T>
  void AddBytes(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    uint64_t word = 0;
    size_t i = 0;
    for (; i + sizeof(word) <= sizeof(T); i += sizeof(word)) {
      std::memcpy(&word, bytes + i, sizeof(word));
      Add(word);
    }
    word = 0;
    std::memcpy(&word, bytes + i, sizeof(T) - i);
    Add(word);
  }
  Fingerprint Get() const { return {low_, high_ | 1}; }  // never all zero, which marks an empty place of the set

 private:
  static uint64_t Mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccd;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53;
    return h ^ h >> 33;
  }
  uint64_t low_ = 1469598103934665603, high_ = 0x9E3779B97F4A7C15;
};

// Open addressing, with 16 bytes a state at a load of 35 to 70%.
class VisitedSet {
 public:
  VisitedSet() : places_(1 << 12) {}

  bool Contains(const Fingerprint& fingerprint) { return Find(fingerprint) == fingerprint; }
  void Insert(const Fingerprint& fingerprint) {
    if (size_ * 10 > places_.size() * 7) Grow();
    Find(fingerprint) = fingerprint;
    ++size_;
  }
  uint64_t size() const { return size_; }

 private:
  Fingerprint& Find(const Fingerprint& fingerprint) {
    const size_t mask = places_.size() - 1;
    size_t i = fingerprint.low & mask;
    while (places_[i] != Fingerprint{} && places_[i] != fingerprint) i = (i + 1) & mask;
    return places_[i];
  }
  void Grow() {
    std::vector<Fingerprint> old(places_.size() * 2);
    old.swap(places_);
    for (const Fingerprint& fingerprint : old) {
      if (fingerprint != Fingerprint{}) Find(fingerprint) = fingerprint;
    }
  }

  std::vector<Fingerprint> places_;
  uint64_t size_ = 0;
};

struct Limits {
  uint64_t max_states = 400'000'000;
  double seconds = 600;
};

enum class Verdict {
  kHolds,       // every reachable state was visited
  kViolation,   // `trace` tells how to get there
  kIncomplete,  // a limit was met first
};

struct Result {
  Verdict verdict = Verdict::kHolds;
  uint64_t states = 0, transitions = 0;
  size_t depth = 0;  // of the deepest state that the search reached
  double seconds = 0;
  std::string violation;
  std::vector<std::string> trace;  // the steps that lead to the violation
};

template <typename Model>
Result Explore(const Model& model, const typename Model::State& initial, const Limits& limits = {}) {
  using State = typename Model::State;
  struct Step {
    int process;
    const char* name;
    State next;
  };
  struct Frame {
    std::vector<Step> steps;
    size_t taken = 0;
  };

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Result result;
  VisitedSet visited;
  std::vector<Frame> path;

  const auto fingerprint_of = [&model](const State& state) {
    Hasher hasher;
    model.Hash(state, &hasher);
    return hasher.Get();
  };
  const auto enter = [&](const State& state, const Fingerprint& fingerprint) {
    visited.Insert(fingerprint);
    Frame frame;
    model.Successors(state, [&frame](int process, const char* name, const State& next) {
      frame.steps.push_back({process, name, next});
    });
    path.push_back(std::move(frame));
    result.depth = std::max(result.depth, path.size());
  };

  result.violation = model.Violation(initial);
  if (!result.violation.empty()) {
    result.verdict = Verdict::kViolation;
    return result;
  }
  enter(initial, fingerprint_of(initial));
  while (!path.empty()) {
    Frame& frame = path.back();
    if (frame.taken == frame.steps.size()) {
      path.pop_back();
      continue;
    }
    const State& state = frame.steps[frame.taken++].next;  // stays where it is: `path` may move frames, not their steps
    ++result.transitions;
    const Fingerprint fingerprint = fingerprint_of(state);
    if (visited.Contains(fingerprint)) continue;
    result.violation = model.Violation(state);
    if (!result.violation.empty()) {
      result.verdict = Verdict::kViolation;
      for (const Frame& f : path) {
        const Step& step = f.steps[f.taken - 1];
        result.trace.push_back(std::string("P") + std::to_string(step.process) + " " + step.name + "  " +
                               model.Describe(step.next));
      }
      break;
    }
    if (visited.size() >= limits.max_states || (result.transitions % 4096 == 0 && elapsed() > limits.seconds)) {
      result.verdict = Verdict::kIncomplete;
      break;
    }
    enter(state, fingerprint);
  }
  result.states = visited.size();
  result.seconds = elapsed();
  return result;
}

}  // namespace model

#endif  // TESTS_MODEL_ENGINE_H_
