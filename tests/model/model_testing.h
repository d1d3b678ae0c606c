// Tests of a model are lines of kvs_model's command line, so that a failing one can be run by hand.
#ifndef TESTS_MODEL_MODEL_TESTING_H_
#define TESTS_MODEL_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include "tests/model/command.h"

namespace model {

// `line` is given without "kvs_model".
inline Result Run(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  Command command;
  std::string error;
  if (!ParseCommand(words, &command, &error)) {
    ADD_FAILURE() << line << ": " << error;
    return {.verdict = Verdict::kIncomplete};
  }
  return command.run(command.limits);
}

inline void ExpectHolds(const std::string& line) {
  const Result result = Run(line);
  EXPECT_EQ(result.verdict, Verdict::kHolds) << "kvs_model " << line << " --trace\n" << result.violation;
  EXPECT_GT(result.states, 10u);
}

// Expects that the protection is needed: without it something goes wrong, and with it nothing does.
inline void ExpectNeeded(const std::string& protection, const std::string& line) {
  const Result without = Run(line + " --without " + protection);
  EXPECT_EQ(without.verdict, Verdict::kViolation) << "kvs_model " << line << " --without " << protection;
  EXPECT_FALSE(without.trace.empty());
  ExpectHolds(line);
}

struct Needed {
  const char* protection;
  const char* line;
};

// A name for INSTANTIATE_TEST_SUITE_P: "table --key1 0 X1 U1" -> "table_key1_0_X1_U1".
inline std::string TestName(std::string text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  return name;
}
struct LineName {
  std::string operator()(const testing::TestParamInfo<const char*>& info) const { return TestName(info.param); }
};
struct NeededName {
  std::string operator()(const testing::TestParamInfo<Needed>& info) const { return TestName(info.param.protection); }
};

}  // namespace model

#endif  // TESTS_MODEL_MODEL_TESTING_H_
