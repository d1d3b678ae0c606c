// The file of `surge backup`: what was written comes back, and a file that is not whole is refused, whatever happened
// to it. Nothing that comes before the refusal is wrong.
#include "tools/surge/backup_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

#include "kvs/client.h"

namespace surge {
namespace {

using krcore::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class BackupFileTest : public ::testing::Test {
 protected:
  struct Record {
    std::string key, value;
    uint64_t expires_at_ms = 0;
    bool operator==(const Record&) const = default;
  };
  using Records = std::vector<Record>;

  BackupFileTest() {
    folder_ = std::filesystem::temp_directory_path() / ("surgekv-backup-" + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
  }
  ~BackupFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name = "file") const { return folder_ / name; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void SetBytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static void WriteFile(const std::string& path, const Records& records, bool overwrite = false) {
    auto writer = BackupWriter::Create(path, overwrite);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    for (const auto& [key, value, expires] : records) ASSERT_TRUE((*writer)->Add(key, value, expires).ok());
    const Status finished = (*writer)->Finish();
    ASSERT_TRUE(finished.ok()) << finished.ToString();
    EXPECT_EQ((*writer)->records(), records.size());
  }
  // Returns how reading ends, and adds what was read before.
  static Status ReadFile(const std::string& path, Records* records, std::vector<uint64_t>* blocks = nullptr) {
    auto reader = BackupReader::Open(path);
    if (!reader.ok()) return reader.status();
    std::vector<BackupReader::Record> block;
    for (;;) {
      if (blocks != nullptr) blocks->push_back((*reader)->offset());
      const Status status = (*reader)->Next(&block);
      if (!status.ok() || block.empty()) return status;
      for (const auto& [key, value, expires] : block)
        records->push_back({std::string(key), std::string(value), expires});
    }
  }
  // Three blocks that take little space.
  static Records ThreeBlocks(char fill) {
    Records records;
    for (const char* key : {"a", "b", "c"}) records.push_back({key, std::string(size_t{1} << 20, fill)});
    return records;
  }
  // The file is refused, and what was read before is the beginning of `whole`.
  static void ExpectRefused(const std::string& path, const Records& whole, const std::string& what) {
    Records read;
    const Status status = ReadFile(path, &read);
    ASSERT_FALSE(status.ok()) << what;
    ASSERT_LE(read.size(), whole.size()) << what;
    ASSERT_TRUE(std::equal(read.begin(), read.end(), whole.begin())) << what;
  }

  std::filesystem::path folder_;
};

TEST_F(BackupFileTest, WhatWasWrittenComesBackInOrder) {
  Records records = {{"key", "value"}, {"empty", ""}, {std::string("\0\xff", 2), std::string(100, '\0')}};
  for (uint64_t i = 0; i < 30'000; ++i)
    records.push_back({"key-" + std::to_string(i), std::string(i % 300, 'v'), i % 3 * 1'700'000'000'000});
  records.push_back({std::string(kvs::kMaxKeyBytes, 'k'), std::string(kvs::kMaxValueBytes, 'v'), UINT64_MAX});
  records.push_back({"last", "one"});
  WriteFile(Path(), records);
  Records read;
  std::vector<uint64_t> blocks;
  const Status status = ReadFile(Path(), &read, &blocks);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(read == records);
  EXPECT_GT(blocks.size(), 4u);
  EXPECT_THAT(Files(), ElementsAre("file"));
}

TEST_F(BackupFileTest, AnEmptyStoreHasABackupToo) {
  WriteFile(Path(), {});
  Records read;
  EXPECT_TRUE(ReadFile(Path(), &read).ok());
  EXPECT_THAT(read, IsEmpty());
}

TEST_F(BackupFileTest, AFlippedBitInAnyByteIsNoticed) {
  const Records records = ThreeBlocks('z');
  WriteFile(Path(), records);
  const std::string whole = Bytes(Path());
  ASSERT_LT(whole.size(), 1'000u);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << at % 8);
    SetBytes(Path(), bytes);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(Path(), records, "byte " + std::to_string(at)));
  }
}

TEST_F(BackupFileTest, AFileThatWasCutAnywhereIsNoticedAndSoIsOneWithMoreBehind) {
  const Records records = ThreeBlocks('z');
  WriteFile(Path(), records);
  const std::string whole = Bytes(Path());
  for (size_t length = 0; length < whole.size(); ++length) {
    SetBytes(Path(), whole.substr(0, length));
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(Path(), records, "length " + std::to_string(length)));
  }
  SetBytes(Path(), whole + '\0');
  ASSERT_NO_FATAL_FAILURE(ExpectRefused(Path(), records, "longer"));
}

TEST_F(BackupFileTest, BlocksAtAnotherPlaceOrOfAnotherFileAreNoticed) {
  const Records records = ThreeBlocks('z');
  WriteFile(Path(), records);
  WriteFile(Path("other"), ThreeBlocks('y'));
  const std::string whole = Bytes(Path()), other = Bytes(Path("other"));
  std::vector<uint64_t> begin;
  Records read;
  ASSERT_TRUE(ReadFile(Path(), &read, &begin).ok());
  ASSERT_EQ(begin.size(), 4u);
  const auto block = [&begin](const std::string& file, size_t i) {
    return file.substr(begin[i], begin[i + 1] - begin[i]);
  };
  ASSERT_EQ(block(whole, 0).size(), block(whole, 1).size());
  const std::string head = whole.substr(0, begin[0]), end = whole.substr(begin[3]);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"exchanged", head + block(whole, 1) + block(whole, 0) + block(whole, 2) + end},
      {"left out", head + block(whole, 0) + block(whole, 2) + end},
      {"twice", head + block(whole, 0) + block(whole, 0) + block(whole, 2) + end},
      {"none", head + end},
      {"another file's block", head + block(whole, 0) + block(other, 1) + block(whole, 2) + end},
      {"another file's end", whole.substr(0, begin[3]) + other.substr(other.size() - 32)},
  };
  for (const auto& [what, bytes] : cases) {
    SetBytes(Path(), bytes);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(Path(), records, what));
  }
}

TEST_F(BackupFileTest, ARefusalSaysWhere) {
  WriteFile(Path(), ThreeBlocks('z'));
  const std::string whole = Bytes(Path());
  std::vector<uint64_t> begin;
  Records read;
  ASSERT_TRUE(ReadFile(Path(), &read, &begin).ok());
  std::string bytes = whole;
  bytes[begin[1] + 40] ^= 1;
  SetBytes(Path(), bytes);
  read.clear();
  Status status = ReadFile(Path(), &read);
  EXPECT_EQ(status, StatusCode::kCorrupt);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is damaged at byte " + std::to_string(begin[1]) + ": "));
  EXPECT_EQ(read.size(), 1u);
  SetBytes(Path(), whole.substr(0, begin[2] + 50));
  status = ReadFile(Path(), &read);
  EXPECT_EQ(status, StatusCode::kCorrupt);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is cut at byte " + std::to_string(begin[2] + 50)));
}

TEST_F(BackupFileTest, OtherFilesAreRefused) {
  Records read;
  EXPECT_EQ(ReadFile(Path("absent"), &read), StatusCode::kInvalidArgument);
  SetBytes(Path(), std::string(100, 'x'));
  EXPECT_EQ(ReadFile(Path(), &read), StatusCode::kInvalidArgument);
  SetBytes(Path(), "");
  EXPECT_THAT(ReadFile(Path(), &read).ToString(), HasSubstr("is cut at byte 0"));
  EXPECT_FALSE(ReadFile(folder_, &read).ok()) << "a folder";
}

// A file that another program may have written: its checksums are right.
class Forged {
 public:
  explicit Forged(uint32_t version = 2, uint32_t flags = 0) {
    bytes_ = "SURGEBAK";
    Add(version);
    Add(flags);
    Add(kId);
    Seal(0);
  }
  // A block that says that it has so many records.
  Forged& Block(uint32_t kind, uint32_t records, const std::string& raw) {
    std::string stored(ZSTD_compressBound(raw.size()), '\0');
    stored.resize(ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), 1));
    return Stored(kind, records, raw.size(), stored.size(), stored);
  }
  // A block that says that it has so many bytes.
  Forged& Stored(uint32_t kind, uint32_t records, size_t raw_bytes, size_t stored_bytes, const std::string& stored) {
    const size_t begin = bytes_.size();
    Add(kind);
    Add(records);
    Add(static_cast<uint32_t>(raw_bytes));
    Add(static_cast<uint32_t>(stored_bytes));
    Add(uint64_t{XXH3_64bits(stored.data(), stored.size())});
    Seal(begin);
    bytes_ += stored;
    return *this;
  }
  std::string End(uint64_t blocks, uint64_t records) {
    const size_t begin = bytes_.size();
    Add(uint32_t{2});
    Add(uint32_t{0});
    Add(blocks);
    Add(records);
    Seal(begin);
    return bytes_;
  }
  // A record whose lengths are said to be these.
  static std::string Record(uint32_t key_bytes, uint32_t value_bytes, const std::string& bytes) {
    std::string record;
    for (const uint32_t length : {key_bytes, value_bytes})
      record.append(reinterpret_cast<const char*>(&length), sizeof(length));
    return record + std::string(8, '\0') + bytes;
  }

 private:
  static constexpr uint64_t kId = 42;
  template <typename Word>
  void Add(Word word) {
    bytes_.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  // Adds the checksum of what begins there.
  void Seal(size_t begin) { Add(uint64_t{XXH3_64bits_withSeed(&bytes_[begin], bytes_.size() - begin, kId + begin)}); }

  std::string bytes_;
};

TEST_F(BackupFileTest, WhatMakesNoSenseIsRefusedThoughItsChecksumsAreRight) {
  const std::string record = Forged::Record(1, 2, "kvv");
  const auto one = [&](const std::string& raw, uint32_t records = 1) {
    return Forged().Block(1, records, raw).End(1, records);
  };
  SetBytes(Path(), one(record));
  Records read;
  ASSERT_TRUE(ReadFile(Path(), &read).ok());
  ASSERT_EQ(read, (Records{{"k", "vv"}}));
  const std::string header = "header makes no sense", lengths = "impossible lengths";
  const size_t too_long = size_t{18} << 20;
  struct Case {
    std::string what, told, bytes;
  };
  const std::vector<Case> cases = {
      {"of another version", "has version 1 and flags 0", Forged(1).Block(1, 1, record).End(1, 1)},
      {"with flags", "has version 2 and flags 1", Forged(2, 1).Block(1, 1, record).End(1, 1)},
      {"a block of another kind", header, Forged().Block(3, 1, record).End(1, 1)},
      {"a block without records", header, Forged().Block(1, 0, "").End(1, 0)},
      {"a block that is too long", header, Forged().Stored(1, 1, too_long, record.size(), record).End(1, 1)},
      {"a block that takes too much", header, Forged().Stored(1, 1, record.size(), too_long, record).End(1, 1)},
      {"a block that is not compressed", "cannot be decompressed",
       Forged().Stored(1, 1, record.size(), record.size(), record).End(1, 1)},
      {"fewer records than it says", "fewer records than it says", one(record, 2)},
      {"more than its records", "more than its records", one(record + "x")},
      {"no key", lengths, one(Forged::Record(0, 2, "vv"))},
      {"a key that is too long", lengths,
       one(Forged::Record(kvs::kMaxKeyBytes + 1, 0, std::string(kvs::kMaxKeyBytes + 1, 'k')))},
      {"a value that is too long", lengths,
       one(Forged::Record(1, kvs::kMaxValueBytes + 1, std::string(kvs::kMaxValueBytes + 2, 'v')))},
      {"a value that goes beyond the block", lengths, one(Forged::Record(1, 3, "kvv"))},
      {"lengths whose sum is small", lengths, one(Forged::Record(1, UINT32_MAX, ""))},
      {"an end that counts other blocks", "1 blocks and 1 records, and its end says 2 and 1",
       Forged().Block(1, 1, record).End(2, 1)},
      {"an end that counts other records", "1 blocks and 1 records, and its end says 1 and 2",
       Forged().Block(1, 1, record).End(1, 2)},
  };
  for (const Case& forged : cases) {
    SetBytes(Path(), forged.bytes);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(Path(), {{"k", "vv"}}, forged.what));
    EXPECT_THAT(ReadFile(Path(), &read).ToString(), HasSubstr(forged.told)) << forged.what;
  }
}

TEST_F(BackupFileTest, AnExistingFileIsReplacedOnlyIfThatIsWanted) {
  WriteFile(Path(), {{"old", "1"}});
  EXPECT_EQ(BackupWriter::Create(Path(), false).status(), StatusCode::kExists);
  // One that is made meanwhile is not replaced either.
  auto late = BackupWriter::Create(Path("late"), false);
  ASSERT_TRUE(late.ok());
  SetBytes(Path("late"), "another's");
  EXPECT_FALSE((*late)->Finish().ok());
  late->reset();
  EXPECT_EQ(Bytes(Path("late")), "another's");
  std::filesystem::permissions(Path(), std::filesystem::perms::owner_read);
  WriteFile(Path(), {{"new", "2"}}, true);
  EXPECT_EQ(std::filesystem::status(Path()).permissions(), std::filesystem::perms::owner_read);
  Records read;
  ASSERT_TRUE(ReadFile(Path(), &read).ok());
  EXPECT_EQ(read.front().key, "new");
  EXPECT_THAT(Files(), testing::UnorderedElementsAre("file", "late"));
}

TEST_F(BackupFileTest, WhatIsNoRegularFileIsNeverReplaced) {
  WriteFile(Path("target"), {{"k", "v"}});
  std::filesystem::create_symlink("target", Path("link"));
  std::filesystem::create_symlink("nothing", Path("dangling"));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(Path("folder"));
  const std::vector<std::string> before = Files();
  for (const char* name : {"link", "dangling", "fifo", "folder", "folder/"}) {
    for (const bool overwrite : {false, true}) {
      EXPECT_EQ(BackupWriter::Create(Path(name), overwrite).status(), StatusCode::kInvalidArgument) << name;
    }
  }
  EXPECT_EQ(Files(), before);
}

TEST_F(BackupFileTest, WithoutItsEndNothingIsLeft) {
  {
    auto writer = BackupWriter::Create(Path(), false);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Add("key", std::string(size_t{2} << 20, 'v'), 0).ok());
    EXPECT_THAT(Files(), ElementsAre(testing::StartsWith("file.partial-")));
  }
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(BackupFileTest, AFullDiskIsToldAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{size_t{64} << 10, before.rlim_max};
  ASSERT_NE(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  Status status;
  {
    auto writer = BackupWriter::Create(Path(), false);
    ASSERT_TRUE(writer.ok());
    uint64_t random = 1;
    for (int i = 0; i < 1'000 && status.ok(); ++i) {
      std::string value(1'000, '\0');
      for (char& byte : value) byte = static_cast<char>((random = random * 6364136223846793005 + 1) >> 56);
      status = (*writer)->Add(std::to_string(i), value, 0);
    }
    if (status.ok()) status = (*writer)->Finish();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(status.ToString(), HasSubstr("writing: File too large"));
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace surge
