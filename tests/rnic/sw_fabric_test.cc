// Fabrics of the software RNIC as files: names, modes, room, adoption, and what is removed when.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/rnic/sw/shm_file.h"
#include "tests/rnic/harness.h"
#include "tests/rnic/sw_child.h"

namespace krcore::rnic::testing {
namespace {

std::vector<std::string> Files(const std::string& fabric) { return sw::ListShm(sw::FabricPrefix(fabric)).value(); }

Result<std::unique_ptr<Device>> OpenNode(const std::string& fabric, NodeId node, bool create) {
  return OpenDevice({.fabric = fabric, .node = node, .create_fabric = create});
}

void FillAndDie(Child::Self& self, const std::string& fabric, NodeId node, const AllocOptions& options) {
  auto device = OpenNode(fabric, node, true).value();
  auto memory = device->AllocMemory(8192, options).value();
  std::memset(memory->bytes().data(), 'k', 8192);
  self.Ready();
  self.Sleep();
}

void RemoveFile(const std::string& name) {
  EXPECT_EQ(unlink((std::string(sw::kShmDirectory) + "/" + name).c_str()), 0) << name;
}

// Does what a cleaner does: removes the files, or only the one by which the fabric is found.
void RemoveFiles(const std::string& fabric) {
  for (const std::string& name : Files(fabric)) RemoveFile(name);
}
void RemoveControlFile(const std::string& fabric) { RemoveFile(sw::FabricPrefix(fabric) + "ctl"); }

TEST(SwFabric, UnknownProviderNamesTheKnownOnes) {
  const auto opened = OpenDevice({.provider = "carrier-pigeon", .fabric = "x"});
  EXPECT_EQ(opened.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(opened.status().message().find("sw"), std::string_view::npos);
  EXPECT_EQ(ProviderNames().front(), "sw");
}

TEST(SwFabric, MissingFabricIsNotFound) {
  for (const char* prefix : {"", "inproc:"}) {
    EXPECT_EQ(OpenNode(UniqueFabric(prefix), 1, false).status().code(), StatusCode::kNotFound);
  }
}

TEST(SwFabric, MalformedNamesAreRefused) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a.b"), std::string(41, 'x')}) {
    EXPECT_EQ(OpenNode(name, 1, true).status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(SwFabric, FilesArePrivateAndGoneAfterACleanClose) {
  const std::string fabric = UniqueFabric("");
  {
    Endpoint a({"", "sw", ""}, fabric, 1, true), b({"", "sw", ""}, fabric, 2, false);
    auto kept = a.device->AllocMemory(4096, {.name = "named"}).value();
    Link link(&a, &b, Transport::kRc, 64, 8);
    EXPECT_GE(Files(fabric).size(), 6U);
    for (const std::string& name : Files(fabric)) {
      struct stat info {};
      ASSERT_EQ(stat((std::string(sw::kShmDirectory) + "/" + name).c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0600U) << name;
    }
  }
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, InprocLeavesNothingInTheFileSystem) {
  const size_t before = sw::ListShm(sw::UserPrefix() + "inproc").value().size();
  Endpoint a({"", "sw", ""}, UniqueFabric("inproc:"), 1, true);
  EXPECT_EQ(sw::ListShm(sw::UserPrefix() + "inproc").value().size(), before);
}

TEST(SwFabric, NodeIdOfALivingDeviceIsTakenAndTheMessageNamesItsProcess) {
  for (const char* prefix : {"", "inproc:"}) {
    const std::string fabric = UniqueFabric(prefix);
    auto device = OpenNode(fabric, 7, true).value();
    const auto second = OpenNode(fabric, 7, true);
    EXPECT_EQ(second.status().code(), StatusCode::kExists);
    EXPECT_NE(second.status().message().find(std::to_string(getpid())), std::string_view::npos);
    device.reset();
    EXPECT_TRUE(OpenNode(fabric, 7, true).ok());
  }
}

TEST(SwFabric, DynamicNodeIdsAreDistinctAndAboveTheMemoryNodes) {
  const std::string fabric = UniqueFabric("inproc:");
  auto first = OpenNode(fabric, kNoNode, true).value();
  auto second = OpenNode(fabric, kNoNode, true).value();
  EXPECT_GE(first->address().node, kFirstDynamicNode);
  EXPECT_NE(first->address().node, second->address().node);
}

TEST(SwFabric, SuccessorsDifferInIncarnation) {
  const std::string fabric = UniqueFabric("");
  auto other = OpenNode(fabric, 1, true).value();
  auto first = OpenNode(fabric, 2, false).value();
  const DeviceAddress old = first->address();
  first.reset();
  auto second = OpenNode(fabric, 2, false).value();
  EXPECT_NE(second->address().incarnation, old.incarnation);
  EXPECT_EQ(other->QueryPeer(old), PeerState::kDead);
  EXPECT_EQ(other->QueryPeer(second->address()), PeerState::kAlive);
}

TEST(SwFabric, MoreMemoryThanThereIsIsAClearErrorAndLeavesNothing) {
  const std::string fabric = UniqueFabric("");
  auto device = OpenNode(fabric, 1, true).value();
  const size_t files = Files(fabric).size();
  struct statvfs info {};
  ASSERT_EQ(statvfs(sw::kShmDirectory, &info), 0);
  const auto memory = device->AllocMemory(info.f_blocks * info.f_frsize + 4096, {.name = "big"});
  EXPECT_EQ(memory.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(memory.status().message().find(sw::kShmDirectory), std::string_view::npos);
  EXPECT_EQ(device->AllocMemory(~size_t{0}, {}).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(device->AllocMemory(0, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Files(fabric).size(), files);
}

TEST(SwFabric, MemoryIsZeroedAlignedAndCollapsible) {
  for (const char* prefix : {"", "inproc:"}) {
    auto device = OpenNode(UniqueFabric(prefix), 1, true).value();
    auto memory = device->AllocMemory(kHugePageBytes * 2 + 100, {}).value();
    EXPECT_EQ(memory->bytes().size(), kHugePageBytes * 2 + 100);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->bytes().data()) % kHugePageBytes, 0U);
    EXPECT_FALSE(memory->adopted());
    EXPECT_TRUE(
        std::all_of(memory->bytes().begin(), memory->bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
    memory->bytes()[kHugePageBytes] = std::byte{9};
    const Status collapsed = memory->CollapseToHugePages(0, memory->bytes().size());
    EXPECT_TRUE(collapsed.ok() || collapsed == StatusCode::kUnsupported) << collapsed.ToString();
    EXPECT_EQ(memory->bytes()[kHugePageBytes], std::byte{9});
    EXPECT_EQ(memory->CollapseToHugePages(1, memory->bytes().size()).code(), StatusCode::kInvalidArgument);
  }
}

TEST(SwFabric, NamedMemoryOfAKilledDeviceIsAdoptedByItsSuccessor) {
  const std::string fabric = UniqueFabric("");
  {
    Child child([&](Child::Self& self) { FillAndDie(self, fabric, 5, {.name = "pool"}); });
    ASSERT_TRUE(child.WaitReady());
    child.Kill();
  }
  EXPECT_EQ(OpenNode(fabric, 5, false).status().code(), StatusCode::kNotFound);
  {
    // Another node reclaims the rest, but not the named memory.
    auto other = OpenNode(fabric, 6, true).value();
    EXPECT_FALSE(other->AllocMemory(8192, {.name = "pool"}).value()->adopted());
  }
  auto device = OpenNode(fabric, 5, true).value();
  EXPECT_EQ(device->AllocMemory(1 << 20, {.name = "pool"}).status().code(), StatusCode::kInvalidArgument);
  auto memory = device->AllocMemory(8192, {.name = "pool"}).value();
  EXPECT_TRUE(memory->adopted());
  EXPECT_EQ(memory->bytes()[8191], std::byte{'k'});
  EXPECT_EQ(device->AllocMemory(8192, {.name = "pool"}).status().code(), StatusCode::kExists);
  memory.reset();
  EXPECT_FALSE(device->AllocMemory(8192, {.name = "pool"}).value()->adopted());
  device.reset();
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, KeptMemoryOutlivesACleanCloseUntilItIsCleaned) {
  for (const char* prefix : {"", "inproc:"}) {
    const std::string fabric = UniqueFabric(prefix);
    const AllocOptions options{.name = "pool", .keep_on_close = true};
    {
      auto device = OpenNode(fabric, 5, true).value();
      device->AllocMemory(8192, options).value()->bytes()[1] = std::byte{7};
    }
    EXPECT_EQ(OpenNode(fabric, 5, false).status().code(), StatusCode::kNotFound);
    {
      auto device = OpenNode(fabric, 5, true).value();
      auto memory = device->AllocMemory(8192, options).value();
      EXPECT_TRUE(memory->adopted());
      EXPECT_EQ(memory->bytes()[1], std::byte{7});
      memory.reset();
      // Allocated without "keep", it finally goes.
      EXPECT_TRUE(device->AllocMemory(8192, {.name = "pool"}).value()->adopted());
      EXPECT_FALSE(device->AllocMemory(8192, {.name = "pool"}).value()->adopted());
    }
  }
}

TEST(SwFabric, NamedMemoryOfOthersIsFoundAsLongAsItIsThere) {
  const auto found = [](Device& device, const std::string& name, size_t bytes = 2) {
    std::vector<std::pair<NodeId, std::string>> all;
    const auto memories = device.FindMemory(name, bytes);
    for (const FoundMemory& memory : *memories) {
      std::string text(memory.begin.size(), 0);
      std::memcpy(text.data(), memory.begin.data(), text.size());
      all.emplace_back(memory.node, text);
    }
    return all;
  };
  using All = decltype(found(std::declval<Device&>(), ""));
  for (const char* prefix : {"", "inproc:"}) {
    const std::string fabric = UniqueFabric(prefix);
    auto looking = OpenNode(fabric, 6, true).value();
    auto own = looking->AllocMemory(4096, {.name = "pool"}).value();
    EXPECT_EQ(found(*looking, "pool"), All{});
    auto device = OpenNode(fabric, 15, false).value();
    for (const bool keep : {false, true}) {
      auto memory = device->AllocMemory(4096, {.name = "pool", .keep_on_close = keep}).value();
      auto unnamed = device->AllocMemory(4096, {}).value();
      std::memcpy(memory->bytes().data(), "Ab", 2);
      EXPECT_EQ(found(*looking, "pool"), (All{{15, "Ab"}}));
      EXPECT_EQ(found(*looking, "pool", 1), (All{{15, "A"}}));
      EXPECT_EQ(found(*looking, "pool", 1 << 20)[0].second.size(), 4096U) << "no more than there is";
      EXPECT_EQ(found(*looking, "poo"), All{});
      EXPECT_EQ(found(*looking, "ool"), All{});
      EXPECT_EQ(found(*device, "pool")[0].first, 6U) << "not its own";
      memory.reset();
      EXPECT_EQ(found(*looking, "pool").size(), keep ? 1U : 0U);
    }
    device.reset();
    EXPECT_EQ(found(*looking, "pool"), (All{{15, "Ab"}}));
    EXPECT_EQ(looking->FindMemory("No name", 1).status().code(), StatusCode::kInvalidArgument);
    device = OpenNode(fabric, 15, false).value();
    (void)device->AllocMemory(4096, {.name = "pool"}).value();  // finally goes
  }
  const std::string fabric = UniqueFabric("");
  auto looking = OpenNode(fabric, 6, true).value();
  {
    Child child([&](Child::Self& self) { FillAndDie(self, fabric, 5, {.name = "pool"}); });
    ASSERT_TRUE(child.WaitReady());
    child.Kill();
  }
  EXPECT_EQ(found(*looking, "pool"), (All{{5, "kk"}}));
  looking.reset();
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

// ---- records of the fabric itself

uint64_t VersionOf(Device& device) {
  const auto record = device.ReadRecord("config");
  EXPECT_TRUE(record.ok()) << record.status().ToString();
  return record.ok() ? record->version : ~uint64_t{0};
}
void SetRecord(Device& device, uint64_t expected) {
  KRCORE_EXPECT_OK(device.CompareAndSetRecord("config", expected, {}));
}
std::string RecordFile(const std::string& fabric) {
  return std::string(sw::kShmDirectory) + "/" + sw::FabricPrefix(fabric) + sw::kRecordPrefix + "config";
}

TEST(SwFabric, ItsRecordsGoWithTheLastDeviceUnlessMemoryIsKept) {
  for (const char* prefix : {"", "inproc:"}) {
    const std::string fabric = UniqueFabric(prefix);
    const AllocOptions options{.name = "pool", .keep_on_close = true};
    {
      auto device = OpenNode(fabric, 5, true).value();
      SetRecord(*device, 0);
    }
    EXPECT_TRUE(Files(fabric).empty());
    {
      auto device = OpenNode(fabric, 5, true).value();
      EXPECT_EQ(VersionOf(*device), 0U);
      SetRecord(*device, 0);
      (void)device->AllocMemory(8192, options).value();
    }
    {
      auto device = OpenNode(fabric, 6, true).value();
      EXPECT_EQ(VersionOf(*device), 1U);
      SetRecord(*device, 1);
    }
    {
      auto device = OpenNode(fabric, 5, true).value();
      EXPECT_EQ(VersionOf(*device), 2U);
      (void)device->AllocMemory(8192, {.name = "pool"}).value();  // finally goes
      EXPECT_EQ(VersionOf(*device), 2U);
    }
    EXPECT_TRUE(Files(fabric).empty());
    auto device = OpenNode(fabric, 5, true).value();
    EXPECT_EQ(VersionOf(*device), 0U);
  }
}

TEST(SwFabric, ItsRecordsOutliveAllItsProcessesAsLongAsNamedMemoryDoes) {
  for (const bool named : {false, true}) {
    const std::string fabric = UniqueFabric("");
    Child child([&](Child::Self& self) {
      auto device = OpenNode(fabric, 5, true).value();
      SetRecord(*device, 0);
      std::unique_ptr<Memory> memory;
      if (named) memory = device->AllocMemory(8192, {.name = "pool"}).value();
      self.Ready();
      self.Sleep();
    });
    ASSERT_TRUE(child.WaitReady());
    child.Kill();
    EXPECT_EQ(OpenNode(fabric, 6, false).status().code(), StatusCode::kNotFound);
    {
      auto device = OpenNode(fabric, 6, true).value();
      EXPECT_EQ(VersionOf(*device), named ? 1U : 0U);
    }
    EXPECT_EQ(Files(fabric).size(), named ? 2U : 0U);
    ASSERT_TRUE(CleanStaleFabrics("sw", fabric, false).ok());
    EXPECT_TRUE(Files(fabric).empty());
  }
}

TEST(SwFabric, ItsRecordsAreCleanedWithItsMemoryAndNotBefore) {
  const std::string fabric = UniqueFabric("");
  auto first = OpenNode(fabric, 5, true).value();
  auto memory = first->AllocMemory(8192, {.name = "pool", .keep_on_close = true}).value();
  SetRecord(*first, 0);
  RemoveControlFile(fabric);
  EXPECT_EQ(CleanStaleFabrics("sw", fabric, true).status().code(), StatusCode::kExists) << "memory is in use";
  EXPECT_EQ(Files(fabric).size(), 3U) << "segment, memory, record";
  memory.reset();
  first.reset();
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, false).value().removed.empty());
  EXPECT_EQ(VersionOf(*OpenNode(fabric, 6, true).value()), 1U);
  EXPECT_EQ(CleanStaleFabrics("sw", fabric, true).value().removed, std::vector<std::string>{fabric});
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, WhoseFilesWereRemovedNeitherReadsNorSetsRecordsOfTheNextFabricOfThatName) {
  const std::string fabric = UniqueFabric("");
  auto first = OpenNode(fabric, 1, true).value();
  SetRecord(*first, 0);
  const auto refused = [&] {
    const auto record = first->ReadRecord("config");
    EXPECT_EQ(record.status().code(), StatusCode::kUnavailable) << "never set, or another fabric's";
    const Status set = first->CompareAndSetRecord("config", 1, {});
    EXPECT_EQ(set.code(), StatusCode::kUnavailable);
    EXPECT_NE(set.message().find("removed"), std::string_view::npos) << set.ToString();
  };
  RemoveControlFile(fabric);
  refused();
  auto second = OpenNode(fabric, 1, true).value();
  EXPECT_EQ(VersionOf(*second), 0U) << "a fabric that begins has no memory, and no record";
  refused();
  SetRecord(*second, 0);
  refused();
  first.reset();
  EXPECT_EQ(VersionOf(*second), 1U);
  second.reset();
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, ReadersOfItsRecordsDoNotWaitForWriters) {
  const std::string fabric = UniqueFabric("");
  auto device = OpenNode(fabric, 1, true).value();
  SetRecord(*device, 0);
  const auto locking = sw::OpenShmBacking(fabric, false).value();  // has the admin lock, as a writer that is stopped
  EXPECT_EQ(VersionOf(*device), 1U);
  locking->UnlockAdmin();
  SetRecord(*device, 1);
}

// Its deadlines have passed as soon as it is asked.
class LateClock : public Clock {
 public:
  int64_t NowNs() override { return asked_ = true, int64_t{2}; }
  void Relax(uint32_t /*spins*/) override {}
  bool WasAsked() { return std::exchange(asked_, false); }

 private:
  bool asked_ = false;
};

TEST(SwFabric, WhoeverWaitsForAStoppedWriterGivesUpAtTheDeadline) {
  const std::string fabric = UniqueFabric("");
  LateClock clock;
  auto device = OpenDevice({.fabric = fabric, .node = 1, .create_fabric = true, .clock = &clock}).value();
  const Deadline deadline{1};
  {
    const auto locking = sw::OpenShmBacking(fabric, false).value();  // has the admin lock, as a writer that is stopped
    EXPECT_EQ(device->CompareAndSetRecord("config", 0, {}, deadline).code(), StatusCode::kTimeout);
    EXPECT_TRUE(clock.WasAsked());
    EXPECT_EQ(device->PublishRecord("own", {}, deadline).code(), StatusCode::kTimeout);
    EXPECT_TRUE(clock.WasAsked());
    EXPECT_EQ(device->LookupRecord("own", deadline).status().code(), StatusCode::kTimeout);
    EXPECT_TRUE(clock.WasAsked());
    locking->UnlockAdmin();
  }
  {
    const sw::NamesLock names;
    EXPECT_FALSE(device->CompareAndSetRecord("config", 0, {}, deadline).ok());
    EXPECT_TRUE(clock.WasAsked());
  }
  EXPECT_EQ(VersionOf(*device), 0U);
  EXPECT_FALSE(clock.WasAsked());
  krcore::Status set;
  do {
    set = device->CompareAndSetRecord("config", 0, {}, deadline);
  } while (set == StatusCode::kTimeout);  // the lock of names is the machine's: another test may have it
  KRCORE_EXPECT_OK(set);
}

TEST(SwFabric, AFileThatIsNoRecordIsCorrupt) {
  const std::string fabric = UniqueFabric("");
  auto device = OpenNode(fabric, 1, true).value();
  SetRecord(*device, 0);
  for (const auto length : {off_t{8}, off_t{4096}}) {
    ASSERT_EQ(truncate(RecordFile(fabric).c_str(), 0), 0);
    ASSERT_EQ(truncate(RecordFile(fabric).c_str(), length), 0);
    EXPECT_EQ(device->ReadRecord("config").status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(device->CompareAndSetRecord("config", 1, {}).code(), StatusCode::kCorrupt);
  }
  device.reset();
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, CleaningSparesTheLivingAndTheKept) {
  const std::string stale = UniqueFabric(""), kept = UniqueFabric(""), living = UniqueFabric("");
  {
    Child child([&](Child::Self& self) { FillAndDie(self, stale, 5, {.name = "pool"}); });
    ASSERT_TRUE(child.WaitReady());
    child.Kill();
  }
  {
    auto device = OpenNode(kept, 5, true).value();
    (void)device->AllocMemory(8192, {.name = "pool", .keep_on_close = true}).value();
  }
  auto device = OpenNode(living, 1, true).value();
  for (const std::string& fabric : {stale, kept, living}) {
    auto report = CleanStaleFabrics("sw", fabric, false);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->removed.size(), fabric == stale ? 1U : 0U);
  }
  EXPECT_TRUE(Files(stale).empty());
  EXPECT_FALSE(Files(kept).empty());
  EXPECT_FALSE(Files(living).empty());
  EXPECT_EQ(CleanStaleFabrics("sw", kept, true).value().removed, std::vector<std::string>{kept});
  EXPECT_TRUE(Files(kept).empty());
  EXPECT_TRUE(OpenNode(living, 2, false).ok());
}

TEST(SwFabric, ALinkOrForeignModeInPlaceOfTheControlFileIsRefused) {
  const std::string fabric = UniqueFabric("");
  const std::string path = std::string(sw::kShmDirectory) + "/" + sw::FabricPrefix(fabric) + "ctl";
  ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_FALSE(OpenNode(fabric, 1, true).ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  const int fd = open(path.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0666), 0);
  close(fd);
  EXPECT_EQ(OpenNode(fabric, 1, true).status().code(), StatusCode::kPermissionDenied);
  ASSERT_EQ(unlink(path.c_str()), 0);
}

TEST(SwFabric, WhoseFilesWereRemovedLeavesThoseOfTheNextFabricOfThatName) {
  const std::string fabric = UniqueFabric("");
  auto first = OpenNode(fabric, 1, true).value();
  auto first_memory = first->AllocMemory(8192, {.name = "pool"}).value();
  RemoveFiles(fabric);
  auto second = OpenNode(fabric, 1, true).value();
  auto memory = second->AllocMemory(8192, {.name = "pool"}).value();
  EXPECT_FALSE(memory->adopted());
  std::memset(memory->bytes().data(), 's', 8192);
  const std::vector<std::string> files = Files(fabric);
  EXPECT_FALSE(first->AllocMemory(4096, {.name = "more"}).ok()) << "the name is the other one's";
  first_memory.reset();
  first.reset();
  EXPECT_EQ(Files(fabric), files);
  // This holds not only for the names: a node that joins now finds the second one's memory.
  auto third = OpenNode(fabric, 3, false).value();
  const auto found = third->FindMemory("pool", 1).value();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].begin[0], std::byte{'s'});
  third.reset();
  memory.reset();
  second.reset();
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, WhoseFilesWereRemovedGoesOnWhenTheNextFabricOfThatNameEnds) {
  const std::string fabric = UniqueFabric("");
  auto first = OpenNode(fabric, 1, true).value();
  auto peer = OpenNode(fabric, 2, false).value();
  auto memory = first->AllocMemory(8192, {.name = "pool"}).value();
  std::memset(memory->bytes().data(), 'f', 8192);
  RemoveFiles(fabric);
  {
    auto second = OpenNode(fabric, 1, true).value();
    (void)second->AllocMemory(8192, {.name = "pool"}).value();
  }
  EXPECT_TRUE(Files(fabric).empty());
  EXPECT_EQ(peer->QueryPeer(first->address()), PeerState::kAlive);
  EXPECT_EQ(memory->bytes()[8191], std::byte{'f'});
  EXPECT_TRUE(first->PublishRecord("record", {}).ok());
  EXPECT_TRUE(peer->LookupRecord("record").ok());
}

TEST(SwFabric, MemoryOfALivingProcessIsNeitherAdoptedNorCleanedThoughTheControlFileWasRemoved) {
  const std::string fabric = UniqueFabric("");
  auto first = OpenNode(fabric, 1, true).value();
  auto memory = first->AllocMemory(8192, {.name = "pool"}).value();
  RemoveControlFile(fabric);
  const std::vector<std::string> files = Files(fabric);
  EXPECT_EQ(CleanStaleFabrics("sw", fabric, true).status().code(), StatusCode::kExists);
  EXPECT_EQ(Files(fabric), files);
  {
    auto second = OpenNode(fabric, 1, true).value();
    const auto adopted = second->AllocMemory(8192, {.name = "pool"});
    ASSERT_EQ(adopted.status().code(), StatusCode::kExists);
    EXPECT_NE(adopted.status().message().find("in use by a process that lives"), std::string_view::npos);
  }
  EXPECT_EQ(Files(fabric), files) << "the second one takes its own files with it, and no others";
  memory.reset();
  first.reset();
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, AnAttachedDeviceDoesNotReachMemoryOfTheNextFabricOfThatName) {
  const std::string fabric = UniqueFabric("");
  Endpoint reader({"", "sw", ""}, fabric, 1, true), owner({"", "sw", ""}, fabric, 2, false);
  auto memory = owner.device->AllocMemory(8192, {.name = "pool"}).value();
  auto mr = owner.pd->RegisterMemory(memory->bytes().data(), 8192, kAllRights).value();
  Link link(&reader, &owner, Transport::kRc, 64, 8);
  RemoveFiles(fabric);
  auto second = OpenNode(fabric, 2, true).value();
  auto other_memory = second->AllocMemory(8192, {.name = "pool"}).value();
  std::memset(other_memory->bytes().data(), 's', 8192);
  std::memset(reader.Text(), 'r', 8);
  const Sge sge = reader.Local(0, 8);
  SendWr wr = link.Wr(Opcode::kRead, &sge, 0);
  wr.remote_addr = reinterpret_cast<uint64_t>(memory->bytes().data());
  wr.rkey = mr->rkey();
  EXPECT_NE(link.Run(wr).status, WcStatus::kSuccess);
  EXPECT_EQ(*reader.Text(), 'r') << "read from the other fabric";
}

TEST(SwFabric, ManyProcessesMayCreateJoinAndLeaveAtOnce) {
  const std::string fabric = UniqueFabric("");
  const auto come_and_go = [&](Child::Self&) {
    for (int i = 0; i < 50; ++i) {
      auto device = OpenNode(fabric, kNoNode, true);
      EXPECT_TRUE(device.ok()) << device.status().ToString();
    }
  };
  {
    Child first(come_and_go), second(come_and_go), third(come_and_go);
    EXPECT_EQ(first.Wait(), 0);
    EXPECT_EQ(second.Wait(), 0);
    EXPECT_EQ(third.Wait(), 0);
  }
  EXPECT_TRUE(Files(fabric).empty());
}

TEST(SwFabric, EveryTableHasAClearLimit) {
  Endpoint a({"", "sw", ""}, UniqueFabric("inproc:"), 1, true);
  std::vector<std::unique_ptr<Mr>> mrs;
  std::vector<std::unique_ptr<Qp>> qps;
  Status status;
  while (status.ok()) {
    auto mr = a.pd->RegisterMemory(a.memory->bytes().data(), 64, kLocalWrite);
    status = mr.status();
    if (mr.ok()) mrs.push_back(*std::move(mr));
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_GE(mrs.size(), 1000U);
  status = {};
  while (status.ok()) {
    auto qp = a.pd->CreateQp({.send_cq = a.cq.get()});
    status = qp.status();
    if (qp.ok()) qps.push_back(*std::move(qp));
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_GE(qps.size(), 1000U);
}

}  // namespace
}  // namespace krcore::rnic::testing
