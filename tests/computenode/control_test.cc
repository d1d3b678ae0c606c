#include <gtest/gtest.h>

#include "computenode/channel.h"

namespace computenode {
namespace {

TEST(Control, CommandsParseWithBlanksAround) {
  EXPECT_EQ(ParseCommand("workers 4")->workers, 4u);
  EXPECT_EQ(ParseCommand("  workers\t0 \r")->workers, 0u);
  EXPECT_EQ(ParseCommand("status")->kind, Command::Kind::kStatus);
  EXPECT_EQ(ParseCommand(" quit ")->kind, Command::Kind::kQuit);
}

TEST(Control, AnythingElseSaysWhatIsExpected) {
  for (const char* line : {"", "worker 4", "workers", "workers -1", "workers 4 5", "workers 1025", "workers 4x",
                           "status now", "quit 1", "workers 99999999999999"}) {
    const auto command = ParseCommand(line);
    ASSERT_FALSE(command.ok()) << line;
    EXPECT_NE(command.status().message().find("expected \"workers N\""), std::string_view::npos);
  }
}

TEST(Control, LinesAreJoinedFromPieces) {
  LineReader lines;
  lines.Add("wor");
  EXPECT_FALSE(lines.Next());
  lines.Add("kers 2\n\n \nstatus\nqu");
  EXPECT_EQ(lines.Next(), "workers 2");
  EXPECT_EQ(lines.Next(), "status");
  EXPECT_FALSE(lines.Next());
  EXPECT_EQ(lines.Rest(), "qu");
  EXPECT_FALSE(lines.Rest());
}

TEST(Control, EndlessLinesAreCut) {
  LineReader lines;
  lines.Add(std::string(LineReader::kMaxLineBytes + 10, 'x'));
  EXPECT_EQ(lines.Next()->size(), LineReader::kMaxLineBytes);
  EXPECT_FALSE(lines.Next());
}

}  // namespace
}  // namespace computenode
