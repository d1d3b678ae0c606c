#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "ycsb/workload/arrivals.h"

namespace ycsb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

RateProfile Parsed(const std::string& text) { return RateProfile::Parse(text).value(); }

// A file of this test, which is removed at the test's end.
class TraceFile {
 public:
  explicit TraceFile(const std::string& content)
      : path_(::testing::TempDir() + "trace-" + std::to_string(getpid()) + ".txt") {
    std::ofstream(path_) << content;
  }
  ~TraceFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(RateProfile, EachFormHasItsRates) {
  struct Case {
    const char* text;
    double end_s, requests, peak;
    std::vector<std::pair<double, double>> rates;  // second, rate
  };
  for (const Case& one :
       {Case{"constant:1000,5", 5, 5000, 1000, {{-1, 0}, {0, 1000}, {4.999, 1000}, {5, 0}, {6, 0}}},
        Case{"constant:0.5,3", 3, 1.5, 0.5, {{0, 0.5}}}, Case{"constant:1e3,5e-1", 0.5, 500, 1000, {{0.4, 1000}}},
        Case{"ramp:100,300,10", 10, 2000, 300, {{0, 100}, {5, 200}, {7.5, 250}, {9.999999, 300}, {10, 0}}},
        Case{"ramp:300,0,10", 10, 1500, 300, {{0, 300}, {5, 150}, {10, 0}}},
        Case{"burst:10,100,2,1,5", 5, 140, 100, {{0, 10}, {1.999, 10}, {2, 100}, {2.999, 100}, {3, 10}, {5, 0}}},
        Case{"burst:10,100,0,1,2", 2, 110, 100, {{0, 100}, {1, 10}}},
        Case{"burst:10,100,1,1,2", 2, 110, 100, {{0.5, 10}, {1, 100}, {1.999, 100}, {2, 0}}},
        Case{"burst:100,10,1,1,3", 3, 210, 100, {{0, 100}, {1, 10}, {2, 100}}},
        Case{"burst:1,2,0.1,0.2,0.3", 0.3, 0.5, 2, {{0.05, 1}, {0.299, 2}}},  // 0.1 + 0.2 is more than 0.3
        Case{"step:7@0,end@2", 2, 14, 7, {{0, 7}, {1.999, 7}, {2, 0}}},
        Case{"step:100@0,0@5,50@6.5,end@12", 12, 775, 100, {{0, 100}, {5, 0}, {6.4, 0}, {6.5, 50}, {12, 0}}}}) {
    const RateProfile profile = Parsed(one.text);
    EXPECT_EQ(profile.text(), one.text);
    EXPECT_EQ(profile.end_s(), one.end_s) << one.text;
    EXPECT_DOUBLE_EQ(profile.Requests(), one.requests) << one.text;
    EXPECT_EQ(profile.PeakRate(), one.peak) << one.text;
    for (const auto& [second, rate] : one.rates) {
      EXPECT_NEAR(profile.RateAt(second), rate, 1e-3) << one.text << " at " << second;
    }
  }
}

TEST(RateProfile, ATraceFileIsItsStepsAndItsLastLineTheEnd) {
  const TraceFile file("# second rate\n\n0 100\n  5\t0 # nobody\r\n6.5   50\n12 777\n");
  const RateProfile profile = Parsed("file:" + file.path());
  const RateProfile steps = Parsed("step:100@0,0@5,50@6.5,end@12");
  EXPECT_EQ(profile.end_s(), 12);
  EXPECT_EQ(profile.Requests(), 775);
  EXPECT_EQ(profile.PeakRate(), 100);  // the last line's rate is not used
  for (double second = -1; second < 14; second += 0.25)
    EXPECT_EQ(profile.RateAt(second), steps.RateAt(second)) << second;
}

TEST(RateProfile, BadTextSaysWhatWasExpected) {
  struct Case {
    const char* text;
    const char* why;
  };
  constexpr char kRates[] = "requests per second, 0 to 1000000000";
  constexpr char kNotAProfile[] =
      "expected a profile. The rate over time, in requests per second: constant:RATE,SECONDS | ramp";
  for (const Case& one : {Case{"", kNotAProfile},
                          {"1000", kNotAProfile},
                          {"constance:1,2", kNotAProfile},
                          {"step", kNotAProfile},
                          {"file:", kNotAProfile},
                          {"constant", "expected constant:RATE,SECONDS"},
                          {"constant:1", "expected constant:RATE,SECONDS"},
                          {"constant:1,2,3", "expected constant:RATE,SECONDS"},
                          {"ramp:1,2", "expected ramp:FROM,TO,SECONDS"},
                          {"burst:1,2,3,4", "expected burst:BASE,PEAK,START,LENGTH,SECONDS"},
                          {"constant:x,2", "'x' as RATE: expected requests per second, 0 to 1000000000"},
                          {"constant: 1,2", "' 1' as RATE: expected"},
                          {"constant:,2", "'' as RATE: expected"},
                          {"constant:5k,2", kRates},
                          {"constant:-1,2", kRates},
                          {"constant:nan,2", kRates},
                          {"constant:inf,2", kRates},
                          {"constant:1000000001,2", kRates},
                          {"constant:1,0", "'0' as SECONDS: expected seconds, more than 0 and at most 1000000000"},
                          {"constant:1,-2", "'-2' as SECONDS: expected"},
                          {"constant:1,1000000001", "'1000000001' as SECONDS: expected"},
                          {"constant:0,5", "contains no request"},
                          {"ramp:0,0,5", "contains no request"},
                          {"step:0@0,0@2,end@5", "contains no request"},
                          {"ramp:1,y,3", "'y' as TO: expected"},
                          {"ramp:y,1,3", "'y' as FROM: expected"},
                          {"burst:1,2,-1,4,5", "'-1' as START: expected seconds, 0 to 1000000000"},
                          {"burst:1,2,1,0,5", "'0' as LENGTH: expected seconds, more than 0"},
                          {"burst:1,2,3,2.5,5", "START + LENGTH is more than SECONDS"},
                          {"burst:1,2,6,1,5", "START + LENGTH is more than SECONDS"},
                          {"step:", "'': expected RATE@SECOND, or end@SECOND as the last"},
                          {"step:5", "'5': expected RATE@SECOND, or end@SECOND as the last"},
                          {"step:5@0,", "'': expected RATE@SECOND"},
                          {"step:5@0", "'5@0': expected end@SECOND as the last"},
                          {"step:5@0,end@1,6@2", "'end@1': expected end@SECOND only as the last"},
                          {"step:end@5", "'end@5': expected RATE@0 as the first"},
                          {"step:5@1,end@2", "'5@1': expected RATE@0 as the first"},
                          {"step:x@0,end@2", "'x@0' as RATE: expected"},
                          {"step:5@0,6@x,end@2", "'6@x' as SECOND: expected seconds, 0 to 1000000000"},
                          {"step:5@0,6@-1,end@2", "'6@-1' as SECOND: expected"},
                          {"step:5@0,6@0,end@2", "'6@0': expected ascending seconds"},
                          {"step:5@0,6@3,7@2,end@4", "'7@2': expected ascending seconds"},
                          {"step:5@0,end@0", "'end@0': expected ascending seconds"}}) {
    const Status status = RateProfile::Parse(one.text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << one.text;
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string(one.text) + ": "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.why));
  }
}

TEST(RateProfile, ABadTraceFileIsNamedWithItsLine) {
  struct Case {
    const char* content;
    const char* line;  // the text before the message
    const char* why;
  };
  for (const Case& one : {Case{"0 100\n\n# x\nabc\n", ":4: ", "'abc': expected a line `SECOND RATE`"},
                          {"0 100 5\n9 9\n", ":1: ", "'0 100 5': expected a line `SECOND RATE`"},
                          {"0,100\n9,9\n", ":1: ", "'0,100': expected a line"},
                          {"0 100\nx 100\n", ":2: ", "'x' as SECOND: expected seconds, 0 to 1000000000"},
                          {"0 100\n-1 100\n", ":2: ", "'-1' as SECOND: expected"},
                          {"0 100\n1 fast\n", ":2: ", "'fast' as RATE: expected requests per second, 0 to 1000000000"},
                          {"0 100\n1 -5\n", ":2: ", "'-5' as RATE: expected"},
                          {"0 100\n1 2e9\n", ":2: ", "'2e9' as RATE: expected"},
                          {"# x\n1 100\n2 100\n", ":2: ", "'1': expected 0 as the first SECOND"},
                          {"0 100\n5 100\n5 200\n", ":3: ", "'5': expected ascending seconds; the line before has 5"},
                          {"0 100\n5 100\n3 200\n", ":3: ", "'3': expected ascending seconds"},
                          {"0 100\n", ": ", "expected at least two lines `SECOND RATE`"},
                          {"# nothing\n", ": ", "expected at least two lines `SECOND RATE`"},
                          {"0 0\n5 100\n", ": ", "contains no request"}}) {
    const TraceFile file(one.content);
    const std::string text = "file:" + file.path();
    const Status status = RateProfile::Parse(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << one.content;
    EXPECT_THAT(std::string(status.message()), StartsWith(text + one.line + one.why));
  }
  const Status missing = RateProfile::Parse("file:/nonexistent/trace").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "file:/nonexistent/trace: cannot read the file (No such file or directory)");
  const Status folder = RateProfile::Parse("file:" + ::testing::TempDir()).status();
  EXPECT_EQ(folder.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.message()), HasSubstr("not a readable file"));
}

// The meaning of the forms, written down independently.
struct Reference {
  const char* text;
  std::function<double(double)> rate;
};
const std::vector<Reference>& References() {
  static const std::vector<Reference> references = {
      {"constant:123.4,8", [](double) { return 123.4; }},
      {"ramp:0,500,8", [](double s) { return 500 * s / 8; }},
      {"ramp:400,30,8", [](double s) { return 400 - 370 * s / 8; }},
      {"ramp:400,0,8", [](double s) { return 400 - 50 * s; }},
      {"burst:20,900,2.5,1.25,8", [](double s) { return s >= 2.5 && s < 3.75 ? 900.0 : 20.0; }},
      {"step:0@0,100@1,0@3,0@4,350@5,2@6,end@8", [](double s) {
         return s < 1 ? 0.0 : s < 3 ? 100.0 : s < 5 ? 0.0 : s < 6 ? 350.0 : 2.0;
       }}};
  return references;
}

// Integrates by the midpoint rule, on a grid that contains every step of the references.
class BruteForce {
 public:
  static constexpr double kStep = 1e-4;
  explicit BruteForce(const std::function<double(double)>& rate) {
    for (int i = 0; i < 80'000; ++i) sums_.push_back(sums_.back() + kStep * rate((i + 0.5) * kStep));
  }
  double By(double seconds) const {
    const double at = seconds / kStep;
    const auto cell = std::min(static_cast<size_t>(at), sums_.size() - 2);
    return sums_[cell] + (at - static_cast<double>(cell)) * (sums_[cell + 1] - sums_[cell]);
  }

 private:
  std::vector<double> sums_ = {0};
};

TEST(RateProfile, IntegralAgreesWithNumericIntegration) {
  for (const Reference& reference : References()) {
    const RateProfile profile = Parsed(reference.text);
    const BruteForce brute(reference.rate);
    EXPECT_EQ(profile.RequestsBy(-1), 0);
    for (double second = 0; second < 8; second += 0.0371) {
      EXPECT_NEAR(profile.RateAt(second), reference.rate(second), 1e-9) << reference.text << " at " << second;
      EXPECT_NEAR(profile.RequestsBy(second), brute.By(second), 1e-4) << reference.text << " at " << second;
    }
    EXPECT_NEAR(profile.Requests(), brute.By(8), 1e-6) << reference.text;
    EXPECT_EQ(profile.RequestsBy(8), profile.Requests());
    EXPECT_EQ(profile.RequestsBy(100), profile.Requests());
  }
}

TEST(RateProfile, InverseIsWhereTheNumericIntegralExceedsIt) {
  for (const Reference& reference : References()) {
    const RateProfile profile = Parsed(reference.text);
    const BruteForce brute(reference.rate);
    double last = 0;
    for (double requests = 0; requests < profile.Requests(); requests += 0.37) {
      const double second = profile.SecondsAt(requests);
      EXPECT_GE(second, last);
      EXPECT_NEAR(brute.By(second), requests, 1e-4) << reference.text;
      EXPECT_GT(brute.By(second + 2e-3), requests) << reference.text << ": at " << second << " the rate is still 0";
      last = second;
    }
    EXPECT_LE(last, 8);
  }
}

TEST(RateProfile, WhatFallsIntoATimeWithoutRequestsIsDueAtItsEnd) {
  const RateProfile profile = Parsed("step:0@0,100@1,0@3,0@4,100@5,end@6");
  EXPECT_EQ(profile.SecondsAt(0), 1);
  EXPECT_EQ(profile.SecondsAt(100), 2);
  EXPECT_EQ(profile.SecondsAt(200), 5);
  EXPECT_NEAR(profile.SecondsAt(199.999), 3, 1e-4);
}

// 0.7 requests a second for 10 s are 7, though 0.7 * 0.1 * 100 in binary is not 7. An eighth request would come 90 s
// early.
TEST(RateProfile, WholeSumsOfDecimalsAreWhole) {
  std::string text = "step:";
  for (int i = 0; i < 100; ++i) text += "0.7@" + std::to_string(i / 10) + "." + std::to_string(i % 10) + ",";
  const RateProfile profile = Parsed(text + "0@10,0.7@100,end@110");
  EXPECT_EQ(profile.RequestsBy(10), 7);
  EXPECT_EQ(profile.SecondsAt(7), 100);
  EXPECT_EQ(profile.Requests(), 14);
}

}  // namespace
}  // namespace ycsb
