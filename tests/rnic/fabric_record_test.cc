// Records of the fabric itself: what they promise, whichever provider keeps them. What happens between threads is in
// concurrency_test.cc, what happens when processes are killed in sw_process_test.cc and tests/krcore/kill_rnic_test.cc.
#include <string>
#include <vector>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

using Value = std::vector<std::byte>;

Value Text(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

class FabricRecords : public RnicTest {
 protected:
  void SetUp() override {
    if (!IsNic(*a_->device)) return;
    const Status reading = a_->device->ReadRecord("config").status();
    EXPECT_EQ(reading.code(), StatusCode::kUnsupported);
    EXPECT_NE(reading.message().find("verbs"), std::string_view::npos) << reading.ToString();
    EXPECT_EQ(a_->device->CompareAndSetRecord("config", 0, {}).code(), StatusCode::kUnsupported);
    GTEST_SKIP() << "the provider keeps no records of the fabric";
  }
  // Checks what every device reads.
  void ExpectRecord(const std::string& name, uint64_t version, const Value& value) {
    for (Endpoint* endpoint : {a_.get(), b_.get()}) {
      const auto record = endpoint->device->ReadRecord(name);
      ASSERT_TRUE(record.ok()) << record.status().ToString();
      EXPECT_EQ(record->version, version) << name;
      EXPECT_EQ(record->value, value) << name;
    }
  }
  void Set(Endpoint& endpoint, const std::string& name, uint64_t expected, const Value& value) {
    KRCORE_EXPECT_OK(endpoint.device->CompareAndSetRecord(name, expected, value));
  }
};
INSTANTIATE_RNIC_TESTS(FabricRecords);

TEST_P(FabricRecords, BeginWithVersionZeroAndGiveWhatWasSetLast) {
  ExpectRecord("config", 0, {});
  Set(*a_, "config", 0, Text("first"));
  ExpectRecord("config", 1, Text("first"));
  Set(*b_, "config", 1, Text("second, which is longer"));
  ExpectRecord("config", 2, Text("second, which is longer"));
  Set(*b_, "config", 2, Text("3"));
  ExpectRecord("config", 3, Text("3"));
}

TEST_P(FabricRecords, AStaleExpectationIsRefusedAndChangesNothing) {
  const auto refused = [&](uint64_t expected, uint64_t version, const Value& value) {
    const Status status = b_->device->CompareAndSetRecord("config", expected, Text("stale"));
    EXPECT_EQ(status.code(), StatusCode::kExists) << expected;
    EXPECT_NE(status.message().find("version " + std::to_string(version)), std::string_view::npos) << status.ToString();
    ExpectRecord("config", version, value);
  };
  refused(1, 0, {});
  refused(~uint64_t{0}, 0, {});
  Set(*a_, "config", 0, Text("1"));
  refused(0, 1, Text("1"));
  Set(*a_, "config", 1, Text("2"));
  for (const uint64_t stale : {0, 1, 3, 4}) refused(stale, 2, Text("2"));
  Set(*b_, "config", 2, Text("3"));
  ExpectRecord("config", 3, Text("3"));
}

TEST_P(FabricRecords, ValuesHaveAnySizeUpToTheLargest) {
  uint64_t version = 0;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{4071}, size_t{4072}, size_t{4073}, kMaxFabricRecordBytes, size_t{7}, size_t{0}}) {
    Value value(size);
    for (size_t i = 0; i < size; ++i) value[i] = static_cast<std::byte>(i * 7 + version);
    Set(*a_, "config", version, value);
    ExpectRecord("config", ++version, value);
  }
  const Status status = a_->device->CompareAndSetRecord("config", version, Value(kMaxFabricRecordBytes + 1));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ExpectRecord("config", version, {});
  EXPECT_GE(kMaxFabricRecordBytes, size_t{16} << 10);
}

TEST_P(FabricRecords, NamesAreCheckedAndDoNotMix) {
  const std::string longest(kMaxFabricRecordName, 'x');
  Set(*a_, "kvs-configuration", 0, Text("one"));
  Set(*b_, "kvs-configuratio", 0, Text("other"));
  Set(*b_, "kvs-configuratio", 1, Text("other again"));
  Set(*a_, longest, 0, Text("long"));
  ExpectRecord("kvs-configuration", 1, Text("one"));
  ExpectRecord("kvs-configuratio", 2, Text("other again"));
  ExpectRecord(longest, 1, Text("long"));
  ExpectRecord("kvs-configurati", 0, {});
  for (const std::string& name : {std::string(), longest + "x", std::string("Upper"), std::string("a.b"),
                                  std::string("a/b"), std::string("a\0b", 3)}) {
    EXPECT_EQ(a_->device->ReadRecord(name).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(a_->device->CompareAndSetRecord(name, 0, {}).code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST_P(FabricRecords, AreNotTheRecordsOrTheMemoryOfDevices) {
  KRCORE_EXPECT_OK(a_->device->PublishRecord("same", Text("a device's")));
  Set(*b_, "same", 0, Text("the fabric's"));
  const auto memory = a_->device->AllocMemory(4096, {.name = "same"}).value();
  EXPECT_FALSE(memory->adopted());
  EXPECT_EQ(b_->device->LookupRecord("same").value(), Text("a device's"));
  ExpectRecord("same", 1, Text("the fabric's"));
  EXPECT_EQ(b_->device->LookupRecord("other").status().code(), StatusCode::kNotFound);
}

TEST_P(FabricRecords, OutliveTheirWriterAndTheFabricsFounder) {
  Set(*a_, "config", 0, Text("founder's"));
  a_.reset();
  Set(*b_, "config", 1, Text("second's"));
  a_ = Open(3, false);
  b_.reset();
  b_ = Open(4, false);
  ExpectRecord("config", 2, Text("second's"));
}

}  // namespace
}  // namespace krcore::rnic::testing
