// What the figures of reproduce_bench share: options, rows, and bytes that can be recognized where they arrive.
//
// A row is one line of JSON on stdout: a configuration in one round, with what was measured in it. tools/reproduce
// takes the medians over the rounds. Times are elapsed ones, in microseconds.
#ifndef BENCH_REPRODUCE_REPORT_H_
#define BENCH_REPRODUCE_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/common/timed_worker.h"

namespace reproduce {

using namespace krcore;
using timed::Must;
using timed::Samples;
using Row = nlohmann::ordered_json;

struct Options {
  std::string fabric;
  uint64_t seed = 1;
  uint32_t rounds = 3;  // each has all configurations once, in an order of its own
  bool quick = false;
};

inline constexpr const char* kPlanes[] = {"krcore", "lite", "verbs"};

// Mean, p50 and p99 of `ns` as row[name].
void AddSpread(Row& row, const std::string& name, Samples ns);

// Calls each configuration once in every round, in an order drawn from the seed: so what disturbs the machine for a
// while meets all alike. Says first how many rows there will be, and prints those that the configurations return.
using Configuration = std::function<Row()>;
void RunInterleaved(const Options& options, const std::vector<Configuration>& configurations);

// Eight bytes at a time, different for each seed and place; the length need not be a multiple.
void Fill(std::span<std::byte> bytes, uint64_t seed);
bool Matches(std::span<const std::byte> bytes, uint64_t seed);
// Ends the program if the bytes are others.
void MustMatch(std::span<const std::byte> bytes, uint64_t seed);

// A request on [offset, offset + length) of the peer's region. `sge` must live until it is posted.
WorkRequest RequestOn(const RemoteRegion& region, size_t offset, Opcode opcode, const Sge& sge);
inline Sge SgeOf(const Region& region, size_t offset, size_t length) {
  return {reinterpret_cast<uint64_t>(region.bytes().data()) + offset, static_cast<uint32_t>(length), region.lkey()};
}

// The figures, each from its own file.
void ManyToOne(const Options& options);
void FullMesh(const Options& options);
void OneSided(const Options& options);
void TwoSided(const Options& options);
void Transfer(const Options& options);

}  // namespace reproduce

#endif  // BENCH_REPRODUCE_REPORT_H_
