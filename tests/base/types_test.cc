#include "krcore/types.h"

#include <gtest/gtest.h>

#include <set>

namespace krcore {
namespace {

TEST(Types, EveryOpcodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int opcode = 0; opcode <= static_cast<int>(Opcode::kRecvWithImm); ++opcode) {
    EXPECT_TRUE(names.insert(OpcodeName(static_cast<Opcode>(opcode))).second) << opcode;
  }
  EXPECT_FALSE(names.contains("unknown opcode"));
}

TEST(Types, EveryCompletionStatusHasItsOwnName) {
  std::set<std::string_view> names;
  for (int status = 0; status <= static_cast<int>(WcStatus::kGeneralError); ++status) {
    EXPECT_TRUE(names.insert(WcStatusName(static_cast<WcStatus>(status))).second) << status;
  }
  EXPECT_FALSE(names.contains("unknown completion status"));
}

}  // namespace
}  // namespace krcore
