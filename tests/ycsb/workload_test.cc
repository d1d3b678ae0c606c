#include "ycsb/workload/workload.h"

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace ycsb {
namespace {

using ::krcore::StatusCode;

Result<Workload> Parse(const std::string& text, std::vector<std::string>* warnings = nullptr) {
  Properties properties;
  EXPECT_TRUE(properties.AddText(text, "w").ok());
  return Workload::FromProperties(properties, warnings);
}

Result<Workload> Shipped(const std::string& letter, std::vector<std::string>* warnings) {
  Properties properties;
  EXPECT_TRUE(properties.AddFile(testing_support::SourceDir() + "ycsb/workloads/workload" + letter).ok());
  return Workload::FromProperties(properties, warnings);
}

TEST(Workload, DefaultsAreThoseOfYcsb) {
  const Workload workload = Parse("recordcount=1000").value();
  EXPECT_EQ(workload.value_bytes(), 1000u);
  EXPECT_EQ(workload.read_proportion, 0.95);
  EXPECT_EQ(workload.update_proportion, 0.05);
  EXPECT_EQ(workload.distribution, Distribution::kUniform);
  EXPECT_TRUE(workload.hashed_order);
  EXPECT_EQ(workload.insert_count, 1000u);
}

TEST(Workload, ShippedFilesHaveYcsbsProportions) {
  struct Expected {
    const char* letter;
    double read, update, insert, read_modify_write;
    Distribution distribution;
  };
  for (const Expected& expected :
       {Expected{"a", .5, .5, 0, 0, Distribution::kZipfian}, Expected{"b", .95, .05, 0, 0, Distribution::kZipfian},
        Expected{"c", 1, 0, 0, 0, Distribution::kZipfian}, Expected{"d", .95, 0, .05, 0, Distribution::kLatest},
        Expected{"f", .5, 0, 0, .5, Distribution::kZipfian}}) {
    std::vector<std::string> warnings;
    const Workload workload = Shipped(expected.letter, &warnings).value();
    EXPECT_EQ(workload.read_proportion, expected.read) << expected.letter;
    EXPECT_EQ(workload.update_proportion, expected.update) << expected.letter;
    EXPECT_EQ(workload.insert_proportion, expected.insert) << expected.letter;
    EXPECT_EQ(workload.read_modify_write_proportion, expected.read_modify_write) << expected.letter;
    EXPECT_EQ(workload.distribution, expected.distribution) << expected.letter;
    EXPECT_EQ(workload.record_count, 1'000'000u);
    EXPECT_EQ(workload.key_length, 16u);
    EXPECT_EQ(workload.value_bytes(), 100u);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  }
}

TEST(Workload, ScansAreRefusedWithTheReason) {
  const Status status = Shipped("e", nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("hash table"), std::string_view::npos) << status.message();
}

TEST(Workload, ContradictionsAreRefusedByName) {
  const auto message = [](const std::string& text) { return std::string(Parse(text).status().message()); };
  EXPECT_NE(message("fieldcount=1").find("recordcount"), std::string::npos);
  EXPECT_NE(message("recordcount=0").find("w:1: recordcount=0"), std::string::npos);
  EXPECT_NE(message("recordcount=10\ninsertstart=10").find("w:2: insertstart=10"), std::string::npos);
  EXPECT_NE(message("recordcount=10\ninsertstart=5\ninsertcount=6").find("insertcount"), std::string::npos);
  EXPECT_NE(message("recordcount=10\nrequestdistribution=zipf").find("w:2: requestdistribution=zipf"),
            std::string::npos);
  EXPECT_NE(message("recordcount=1\nfieldcount=1000\nfieldlength=100000").find("16777216"), std::string::npos);
  EXPECT_NE(message("recordcount=1\ninsertorder=random").find("hashed or ordered"), std::string::npos);
  EXPECT_NE(message("recordcount=1\nreadproportion=0\nupdateproportion=0").find("all 0"), std::string::npos);
  EXPECT_NE(message("recordcount=100000000\nkeylength=8\ninsertorder=ordered").find("keylength"), std::string::npos);
  EXPECT_NE(message("recordcount=1\nkeylength=65536").find("keylength"), std::string::npos);
  EXPECT_EQ(Parse("recordcount=1\nrequestdistribution=exponential").status().code(), StatusCode::kUnsupported);
}

TEST(Workload, AnotherWorkloadClassIsNotRunAsCoreWorkload) {
  EXPECT_TRUE(Parse("recordcount=1\nworkload=com.yahoo.ycsb.workloads.CoreWorkload").ok());
  const Status status = Parse("recordcount=1\nworkload=site.ycsb.workloads.TimeSeriesWorkload").status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("w:2: workload=site.ycsb.workloads.TimeSeriesWorkload"), std::string_view::npos);
}

TEST(Workload, FieldLengthsAreDrawnAsYcsbDrawsThem) {
  const Workload drawn =
      Parse("recordcount=1\nfieldcount=3\nfieldlength=50\nminfieldlength=10\nfieldlengthdistribution=zipfian").value();
  EXPECT_EQ(drawn.field_lengths, FieldLengths::kZipfian);
  EXPECT_EQ(drawn.min_value_bytes(), 30u);
  EXPECT_EQ(drawn.value_bytes(), 150u);
  EXPECT_EQ(Parse("recordcount=1\nfieldlengthdistribution=uniform").value().min_value_bytes(), 10u);
  EXPECT_EQ(Parse("recordcount=1\nfieldlengthdistribution=histogram").status().code(), StatusCode::kUnsupported);
  const Status contradiction =
      Parse("recordcount=1\nfieldlength=5\nminfieldlength=6\nfieldlengthdistribution=uniform").status();
  EXPECT_NE(contradiction.message().find("w:3: minfieldlength=6"), std::string_view::npos) << contradiction.message();
}

TEST(Workload, ZeroPaddingIsForOrderedKeys) {
  const Workload padded = Parse("recordcount=1000\ninsertorder=ordered\nzeropadding=8").value();
  EXPECT_EQ(padded.zero_padding, 8u);
  EXPECT_EQ(padded.key_length, 12u);
  for (const char* refused :
       {"recordcount=1\nzeropadding=8", "recordcount=1\ninsertorder=ordered\nkeylength=20\nzeropadding=8"}) {
    EXPECT_NE(Parse(refused).status().message().find("zeropadding=8"), std::string_view::npos);
  }
}

TEST(Workload, UpdatesOfOneFieldAreNotMadeUpdatesOfAllInSilence) {
  std::vector<std::string> warnings;
  ASSERT_TRUE(Parse("recordcount=1\nfieldcount=10", &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("updates replace all 10 fields"), std::string::npos) << warnings[0];
  warnings.clear();
  ASSERT_TRUE(Parse("recordcount=1\nfieldcount=10\nwriteallfields=true", &warnings).ok());
  ASSERT_TRUE(Parse("recordcount=1\nfieldcount=1\nwriteallfields=false", &warnings).ok());
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

TEST(Workload, IneffectiveAndUnknownSettingsWarn) {
  std::vector<std::string> warnings;
  ASSERT_TRUE(Parse("recordcount=1\nwriteallfields=false\nrecrodcount=2", &warnings).ok());
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("w:3: recrodcount"), std::string::npos);
  EXPECT_NE(warnings[1].find("w:2: writeallfields"), std::string::npos);
}

}  // namespace
}  // namespace ycsb
