// A path for one-sided requests from local memory to a peer's: a physical queue over RC or DC, or a VirtualQueue over
// either. What must hold on each of them is written against this class and run on all.
#ifndef TESTS_RNIC_PATH_H_
#define TESTS_RNIC_PATH_H_

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {

enum class PathKind {
  kRc,
  kDc,
  kVirtual,    // a VirtualQueue whose pool has only DC initiators; its WRs are pushed
  kVirtualHot  // ... one that its peer's WRs have moved to an RC queue; they are staged, and posted by a Flush
};
inline void PrintTo(PathKind kind, std::ostream* os) { *os << static_cast<int>(kind); }

class Path {
 public:
  virtual ~Path() = default;
  virtual std::span<std::byte> local() const = 0;
  virtual std::span<std::byte> remote() const = 0;
  // A WR to the peer's memory at `offset`; sge, if not null, is the local side.
  virtual SendWr Wr(Opcode opcode, const Sge* sge, size_t offset, uint64_t wr_id = 0) const = 0;
  virtual Status Post(std::span<const SendWr> wrs, size_t* bad_index) = 0;
  Status Post(const SendWr& wr) { return Post({&wr, 1}, nullptr); }
  // Returns the next completion; a test failure if there is none after many polls.
  virtual Completion Next() = 0;

  // Posts `wr` and waits for its completion.
  Completion Run(const SendWr& wr);
  Sge Local(size_t offset, uint32_t length) const { return {Address(local(), offset), length, lkey()}; }
  char* Text(size_t offset = 0) const { return reinterpret_cast<char*>(Address(local(), offset)); }
  uint64_t& Word(size_t offset = 0) const { return *reinterpret_cast<uint64_t*>(Address(local(), offset)); }
  char* RemoteText(size_t offset = 0) const { return reinterpret_cast<char*>(Address(remote(), offset)); }
  uint64_t& RemoteWord(size_t offset = 0) const { return *reinterpret_cast<uint64_t*>(Address(remote(), offset)); }

 protected:
  virtual uint32_t lkey() const = 0;

 private:
  static uint64_t Address(std::span<std::byte> memory, size_t offset) {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
};

class PathTest : public ::testing::TestWithParam<std::tuple<Provider, PathKind>> {
 protected:
  void SetUp() override;
  static bool IsVirtual() {
    return std::get<1>(GetParam()) == PathKind::kVirtual || std::get<1>(GetParam()) == PathKind::kVirtualHot;
  }
  // Makes another path, with a queue of `depth` WRs, between nodes of its own.
  std::unique_ptr<Path> MakePath(uint32_t depth);

  std::unique_ptr<Path> path_;
};

// Paths of every kind over every provider, with their names.
inline auto Paths() {
  return ::testing::Combine(::testing::ValuesIn(Providers()),
                            ::testing::Values(PathKind::kRc, PathKind::kDc, PathKind::kVirtual, PathKind::kVirtualHot));
}
inline std::string PathName(const ::testing::TestParamInfo<std::tuple<Provider, PathKind>>& info) {
  static constexpr const char* kNames[] = {"Rc", "Dc", "Virtual", "VirtualHot"};
  return std::get<0>(info.param).label + kNames[static_cast<int>(std::get<1>(info.param))];
}

}  // namespace krcore::rnic::testing

#endif  // TESTS_RNIC_PATH_H_
