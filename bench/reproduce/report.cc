#include "bench/reproduce/report.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace reproduce {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

uint64_t Word(uint64_t seed, size_t index) {
  const uint64_t mixed = (seed + 1) * kStep + index;
  return mixed * 0xD6E8FEB86659FD93 ^ mixed >> 29;
}

void Print(const Row& row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

void AddSpread(Row& row, const std::string& name, Samples ns) {
  std::sort(ns.begin(), ns.end());
  // The nearest rank: of few samples p99 is the largest.
  const auto percentile = [&](size_t percent) {
    return static_cast<double>(ns.at((ns.size() * percent + 99) / 100 - 1)) / 1e3;
  };
  const double sum = std::accumulate(ns.begin(), ns.end(), 0.0);
  row[name] = {{"mean", sum / static_cast<double>(ns.size()) / 1e3}, {"p50", percentile(50)}, {"p99", percentile(99)}};
}

void RunInterleaved(const Options& options, const std::vector<Configuration>& configurations) {
  Print({{"rows", configurations.size() * options.rounds}});
  std::mt19937_64 random(options.seed);
  std::vector<size_t> order(configurations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (uint32_t round = 0; round < options.rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      Row row = configurations[i]();
      row["round"] = round;
      Print(row);
    }
  }
}

void Fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = Word(seed, at / sizeof(uint64_t));
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
  }
}

bool Matches(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = Word(seed, at / sizeof(uint64_t));
    if (std::memcmp(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at)) != 0) return false;
  }
  return true;
}

void MustMatch(std::span<const std::byte> bytes, uint64_t seed) {
  if (!Matches(bytes, seed)) Must(Status(StatusCode::kCorrupt, "other bytes arrived than were sent"));
}

WorkRequest RequestOn(const RemoteRegion& region, size_t offset, Opcode opcode, const Sge& sge) {
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.remote_addr = region.addr + offset;
  wr.rkey = region.rkey;
  return wr;
}

}  // namespace reproduce
