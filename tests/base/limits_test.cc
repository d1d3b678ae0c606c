// What is said of the system's limits, and that no more memory is offered than they allow.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "krcore/base/os.h"
#include "krcore/resources.h"

namespace krcore {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool Has(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string_view::npos;
}

TEST(Limits, AnErrorOfDescriptorsNamesTheirLimit) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const Status status = Status::FromErrno(EMFILE, "cannot open x");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Has(status, "(ulimit -n is " + std::to_string(files.rlim_cur) + ")")) << status.ToString();
  EXPECT_TRUE(Has(Status::FromErrno(ENFILE, "cannot open x"), "fs.file-max"));
}

// Runs in a child, whose limit is so low that no thread's stack fits.
TEST(Limits, AThreadThatCannotBeStartedIsAStatusThatNamesTheLimits) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory does not fit below a limit";
#endif
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    rlimit space{};
    getrlimit(RLIMIT_AS, &space);
    space.rlim_cur = kMiB;
    if (setrlimit(RLIMIT_AS, &space) != 0) _exit(2);
    const auto thread = StartThread("x", [] {});
    const Status status = thread.status();
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    const bool named = Has(status, "cannot start thread 'x'") && Has(status, "ulimit -v is 1024");
    const Status refused = OrOutOfMemory(
        "making it", [] { return std::string(64 * kMiB, 'x').empty() ? Status(StatusCode::kInternal) : Status(); });
    std::fprintf(stderr, "%s\n", refused.ToString().c_str());
    const bool memory = refused == StatusCode::kOutOfMemory && Has(refused, "making it") && Has(refused, "ulimit -v");
    _exit(status == StatusCode::kUnavailable && named && memory ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(pid, &ended, 0), pid);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
}

// A file system of control groups, made of files.
class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() : folder_(::testing::TempDir() + "cgroup-" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_ + "/mount");
    places_ = {folder_ + "/own", folder_ + "/mount"};
  }
  ~CgroupTest() override { std::filesystem::remove_all(folder_); }
  void Own(const std::string& lines) const { std::ofstream(places_.own) << lines; }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = places_.mount + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  Status Check(size_t bytes) const { return CheckCgroupMemory(bytes, places_); }

  const std::string folder_;
  CgroupPlaces places_;
};

TEST_F(CgroupTest, OfVersion2LimitsMemoryByWhatIsLeft) {
  Own("0::/a/b\n");
  Write("a/b/memory.max", std::to_string(100 * kMiB));
  Write("a/b/memory.current", std::to_string(50 * kMiB));
  Write("a/b/memory.stat", "anon 5\ninactive_file " + std::to_string(6 * kMiB) + "\nactive_file " +
                               std::to_string(4 * kMiB) + "\nshmem 7");
  EXPECT_TRUE(Check(60 * kMiB).ok()) << "the cache of files makes room";
  const Status status = Check(60 * kMiB + 1);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(Has(status, "memory.max of " + places_.mount + "/a/b is " + std::to_string(100 * kMiB) + ", of which " +
                              std::to_string(60 * kMiB) + " are free"))
      << status.ToString();
}

TEST_F(CgroupTest, ThatIsAroundThisOneCountsAsWell) {
  Own("0::/a/b\n");
  Write("a/b/memory.max", "max");
  Write("a/b/memory.current", "0");
  Write("a/memory.max", std::to_string(32 * kMiB));
  Write("a/memory.current", "0");
  EXPECT_TRUE(Check(32 * kMiB).ok());
  EXPECT_TRUE(Has(Check(33 * kMiB), places_.mount + "/a is "));
}

TEST_F(CgroupTest, OfVersion1LimitsMemoryToo) {
  Own("5:memory:/docker/x\n4:pids:/docker/x\n0::/init.scope\n");
  Write("memory/docker/x/memory.limit_in_bytes", std::to_string(64 * kMiB));
  Write("memory/docker/x/memory.usage_in_bytes", std::to_string(20 * kMiB));
  Write("memory/docker/x/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(4 * kMiB));
  Write("memory/memory.limit_in_bytes", "9223372036854771712");
  Write("memory/memory.usage_in_bytes", "1");
  Write("pids/docker/x/pids.max", "77");
  EXPECT_TRUE(Check(48 * kMiB).ok());
  EXPECT_TRUE(Has(Check(49 * kMiB), "memory.limit_in_bytes of " + places_.mount + "/memory/docker/x is "));
  EXPECT_NE(LimitsOfProcesses(places_).find("pids.max of " + places_.mount + "/pids/docker/x is 77"),
            std::string::npos);
}

// The mount is the container's own group there, whatever name /proc has for it.
TEST_F(CgroupTest, OfAContainerIsTheMountsRoot) {
  Own("5:memory:/docker/not-visible-here\n");
  Write("memory/memory.limit_in_bytes", std::to_string(32 * kMiB));
  Write("memory/memory.usage_in_bytes", "0");
  EXPECT_FALSE(Check(33 * kMiB).ok());
}

TEST_F(CgroupTest, WithoutALimitAllowsAll) {
  EXPECT_TRUE(Check(size_t{1} << 40).ok()) << "nothing is to be read";
  Own("0::/\n");
  Write("memory.max", "max");
  EXPECT_TRUE(Check(size_t{1} << 40).ok());
}

}  // namespace
}  // namespace krcore
