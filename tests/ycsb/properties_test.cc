#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/program.h"
#include "ycsb/workload/workload.h"

namespace ycsb {
namespace {

using ::krcore::StatusCode;

TEST(Properties, ReadsCommentsBlanksAndEverySeparator) {
  Properties properties;
  ASSERT_TRUE(properties
                  .AddText("# comment\n! comment too\n\n  recordcount = 10 \r\ntarget:5\nworkload a.b.C\n"
                           "table=a=b\nexporter=one,\\\n   two\n",
                           "w")
                  .ok());
  const std::map<std::string, std::string> expected = {
      {"recordcount", "10"}, {"target", "5"}, {"workload", "a.b.C"}, {"table", "a=b"}, {"exporter", "one,two"}};
  EXPECT_EQ(properties.ToMap(), expected);
  EXPECT_EQ(properties.Origin("target"), "w:5");
}

TEST(Properties, OverridesReplaceTheFile) {
  Properties properties;
  ASSERT_TRUE(properties.AddText("recordcount=10", "w").ok());
  ASSERT_TRUE(properties.AddOverride("recordcount=20").ok());
  uint64_t count = 0;
  ASSERT_TRUE(properties.Read("recordcount", 0, 100, &count).ok());
  EXPECT_EQ(count, 20u);
  EXPECT_EQ(properties.Origin("recordcount"), "-p");
}

TEST(Properties, MalformedNumberNamesKeyValueFileAndLine) {
  Properties properties;
  ASSERT_TRUE(properties.AddText("\nrecordcount=1e6\n", "my/workload").ok());
  uint64_t count = 7;
  const Status status = properties.Read("recordcount", 0, 100, &count);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "my/workload:2: recordcount=1e6: expected a whole number from 0 to 100");
  EXPECT_EQ(count, 7u);
}

TEST(Properties, RefusesWhatLooksLikeANumberButIsNot) {
  for (const char* text : {"", "-1", "+1", "1.5", "1 ", "0x10", "101", "99999999999999999999999"}) {
    Properties properties;
    properties.Set("k", text, "-p");
    uint64_t number = 0;
    EXPECT_FALSE(properties.Read("k", 0, 100, &number).ok()) << '"' << text << '"';
  }
  for (const char* text : {"", "nan", "inf", "-0.1", "1.1", "half", "0.5x"}) {
    Properties properties;
    properties.Set("k", text, "-p");
    double number = 0;
    EXPECT_FALSE(properties.Read("k", 0.0, 1.0, &number).ok()) << '"' << text << '"';
  }
  Properties properties;
  properties.Set("k", "yes", "-p");
  bool flag = false;
  EXPECT_FALSE(properties.Read("k", &flag).ok());
}

TEST(Properties, OverrideWithoutEqualsSaysWhatIsExpected) {
  Properties properties;
  EXPECT_EQ(properties.AddOverride("recordcount").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(properties.AddOverride("=3").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(properties.AddText("=3\n", "w").message(), "w:1: no key before '='; expected key=value");
}

TEST(Properties, MissingFileIsNotFound) {
  Properties properties;
  EXPECT_EQ(properties.AddFile("/nonexistent/workloadz").code(), StatusCode::kNotFound);
  EXPECT_FALSE(properties.AddFile("/").ok());  // a folder
}

TEST(Properties, WhatHasNoEffectIsListedWithItsOriginAndWhatItMayBeMeantFor) {
  Properties properties;
  ASSERT_TRUE(
      properties.AddText("recordcount=1\nrecordcuont=2\nverbosity=3\nexporter=Json\nreadallfields=true\n", "w").ok());
  EXPECT_THAT(
      properties.Ineffective(),
      testing::ElementsAre("w:4: exporter=Json has no effect: the summary is text; --json=FILE also writes JSON",
                           "w:2: recordcuont: unknown property, ignored; did you mean recordcount?",
                           "w:3: verbosity: unknown property, ignored"));
}

TEST(Properties, EachPropertyIsDoneOrWarnedOfOrRefusedAsTheManualSays) {
  std::ifstream manual(testing_support::SourceDir() + "docs/operating.md");
  std::string table;
  for (std::string line; std::getline(manual, line);) {
    if (line.starts_with("| `") && line.find(" | ") != std::string::npos) table += line + '\n';
  }
  for (const KnownProperty& known : KnownProperties()) {
    const std::string name(known.name);
    std::string support = "done";
    if (known.support != Support::kDone) support = known.support == Support::kWarned ? "warned of" : "refused";
    if (!known.same.empty()) support += ", but for `" + std::string(known.same) + "`";
    std::string row = "| `";
    row.append(name).append("` | ").append(support).append(" | ").append(known.text).append(" |\n");
    EXPECT_THAT(table, testing::HasSubstr(row));
    Properties properties;
    properties.Set(name, "something else", "-p");
    EXPECT_EQ(properties.Ineffective().size(), known.support == Support::kWarned ? 1u : 0u) << name;
    EXPECT_EQ(properties.CheckRefused().ok(), known.support != Support::kRefused) << name;
    if (known.same.empty()) continue;
    properties.Set(name, std::string(known.same.substr(0, known.same.find(' '))), "-p");
    EXPECT_THAT(properties.Ineffective(), testing::IsEmpty());
    EXPECT_TRUE(properties.CheckRefused().ok()) << name;
  }
}

}  // namespace
}  // namespace ycsb
