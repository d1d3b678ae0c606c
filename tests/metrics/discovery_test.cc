// What `surge status` is made of: announcements in the metadata servers, one-sided surveys of the store's memory, and
// the text made of both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/memory/join.h"
#include "kvs/memory/survey.h"
#include "metrics/announcement.h"
#include "tools/surge/cluster.h"

namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

krcore::Deadline Soon() { return krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000); }

// A fabric inside this process.
class Discovery : public ::testing::Test {
 protected:
  static constexpr uint64_t kPoolBytes = uint64_t{16} << 20;

  struct Memory {
    std::unique_ptr<krcore::Node> node;
    std::unique_ptr<krcore::Region> pool;  // destroyed before the node
  };

  std::unique_ptr<krcore::Node> Open(krcore::NodeId id = krcore::kNoNode) {
    krcore::NodeOptions options;
    options.fabric = fabric_;
    options.node = id;
    options.create_fabric = true;
    return krcore::Node::Open(options).value();
  }
  // The first memory node hosts the metadata server.
  Memory MakeMemory(krcore::NodeId id) {
    Memory memory;
    memory.node = Open(id);
    if (id == 1) {
      EXPECT_TRUE(memory.node->HostMetaServer(100).ok());
    }
    memory.pool = memory.node->CreateRegion(kvs::PoolRegion(kPoolBytes)).value();
    EXPECT_TRUE(kvs::JoinStore(*memory.node, *memory.pool, kvs::HomeOptions{}, Soon()).ok());
    return memory;
  }
  static metrics::Announcement Of(metrics::Role role, uint64_t operations = 0) {
    metrics::Announcement announcement;
    announcement.role = role;
    announcement.state = metrics::State::kServing;
    announcement.operations = operations;
    announcement.started_s = static_cast<uint32_t>(metrics::UnixNowNs() / 1'000'000'000 - 60);
    return announcement;
  }
  static std::vector<krcore::NodeId> Ids(krcore::Node& node) {
    std::vector<krcore::NodeId> ids;
    const std::vector<metrics::Announcement> found = metrics::ReadAnnouncements(node, Soon()).value();
    for (const metrics::Announcement& announcement : found) {
      ids.push_back(announcement.node);
    }
    return ids;
  }

  const std::string fabric_ = std::string("inproc:") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(Discovery, AnnouncementsAreFoundByAnybodyAndGoWithTheirNode) {
  const Memory memory = MakeMemory(1);
  auto compute = Open();
  const auto reader = Open();
  EXPECT_THAT(Ids(*reader), IsEmpty());
  metrics::AnnouncementWriter of_memory(*memory.node), of_compute(*compute);
  ASSERT_TRUE(of_memory.Write(Of(metrics::Role::kMemory), Soon()).ok());
  for (const uint64_t operations : {5u, 17u}) {
    ASSERT_TRUE(of_compute.Write(Of(metrics::Role::kCompute, operations), Soon()).ok());
  }
  const auto found = metrics::ReadAnnouncements(*reader, Soon()).value();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].node, 1u);
  EXPECT_EQ(found[1].node, compute->id());
  EXPECT_EQ(found[1].incarnation, compute->incarnation());
  EXPECT_EQ(found[1].operations, 17u);
  EXPECT_NEAR(static_cast<double>(found[1].updated_ns), static_cast<double>(metrics::UnixNowNs()), 60e9);
  compute.reset();
  EXPECT_THAT(Ids(*reader), ElementsAre(1u));
}

TEST_F(Discovery, NodesThatWantOnePlaceFindOthers) {
  const Memory memory = MakeMemory(1);
  const uint32_t shared = metrics::kPlaces - krcore::kMaxMemoryNode - 1;
  const auto reader = Open();
  auto one = Open(1000), two = Open(1000 + shared), three = Open(1000 + 2 * shared);
  metrics::AnnouncementWriter first(*one), second(*two), third(*three);
  for (int i = 0; i < 2; ++i) {
    for (metrics::AnnouncementWriter* writer : {&first, &second, &third}) {
      ASSERT_TRUE(writer->Write(Of(metrics::Role::kCompute), Soon()).ok());
    }
  }
  EXPECT_THAT(Ids(*reader), ElementsAre(one->id(), two->id(), three->id()));
  one.reset();
  EXPECT_THAT(Ids(*reader), ElementsAre(two->id(), three->id()));
  one = Open(1000 + 3 * shared);
  metrics::AnnouncementWriter successor(*one);
  ASSERT_TRUE(successor.Write(Of(metrics::Role::kCompute), Soon()).ok());
  EXPECT_THAT(Ids(*reader), ElementsAre(one->id(), two->id(), three->id()));
}

TEST_F(Discovery, WithoutAMetadataServerThatIsSaid) {
  const auto node = Open(7);
  EXPECT_EQ(metrics::ReadAnnouncements(*node, Soon()).status().code(), krcore::StatusCode::kUnavailable);
  metrics::AnnouncementWriter writer(*node);
  const auto soon = krcore::Deadline::After(*krcore::RealClock(), 1'000'000);
  EXPECT_FALSE(writer.Write(Of(metrics::Role::kMemory), soon).ok());
}

TEST_F(Discovery, AnAnnouncerGoesOnWithoutAMetadataServerAndEnds) {
  const auto node = Open(7);
  std::atomic<int> told{0};
  const auto started = metrics::Announcer::Start(*node, [&] {
    ++told;
    return Of(metrics::Role::kMemory);
  });
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  const metrics::Announcer& announcer = **started;
  // The announcer's thread does not report its tries.
  while (announcer.failures() == 0) usleep(1'000);
  while (announcer.trouble().empty()) usleep(1'000);
  ASSERT_TRUE(node->HostMetaServer(100).ok());
  while (!announcer.trouble().empty()) usleep(1'000);
  const auto reader = Open();
  EXPECT_THAT(Ids(*reader), ElementsAre(7u));
  EXPECT_GE(told, 2);
}

TEST_F(Discovery, ASurveySaysWhatTheStoresOwnClientSays) {
  const Memory one = MakeMemory(1), two = MakeMemory(2);
  const auto store = kvs::Store::Open({.fabric = fabric_}).value();
  auto client = store->NewClient().value();
  const std::string value(4'000, 'v');
  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(client->Put("key" + std::to_string(i), value).ok());
  const std::string large(3 << 20, 'l');
  ASSERT_TRUE(client->Put("large", large).ok());

  const auto node = Open();
  const auto survey = kvs::Survey::Create(*node).value();
  const kvs::HomeView home = survey->ReadHome(Soon()).value();
  EXPECT_EQ(home.home.node, 1u);
  EXPECT_EQ(home.clients, 1u);
  ASSERT_THAT(home.members, SizeIs(2));
  EXPECT_EQ(home.members[1].node, 2u);
  EXPECT_EQ(home.members[1].incarnation, two.node->incarnation());
  EXPECT_EQ(home.members[1].state, kvs::MemberState::kInUse);

  const kvs::TableStats stats = client->ReadTableStats().value();
  ASSERT_THAT(stats.memory_nodes, SizeIs(2));
  uint64_t runs = 0, used = 0;
  for (const auto& expected : stats.memory_nodes) {
    const kvs::PoolUse use = survey->ReadPool(expected.node, Soon()).value();
    EXPECT_EQ(use.total_bytes(), kPoolBytes);
    EXPECT_EQ(use.used_bytes() + use.reserved_bytes(), expected.taken_bytes);
    EXPECT_EQ(use.used_bytes() + use.reserved_bytes() + use.free_bytes(), kPoolBytes);
    used += use.used_bytes();
    EXPECT_GT(use.reserved_bytes(), 0u);
    runs += use.chunks[static_cast<size_t>(kvs::ChunkKind::kRun)];
    const kvs::PoolUse local = kvs::CountChunks((expected.node == 1 ? one : two).pool->bytes());
    EXPECT_EQ(local.chunks, use.chunks);
    EXPECT_EQ(local.chunk_bytes, use.chunk_bytes);
  }
  EXPECT_EQ(runs, 1u);
  EXPECT_GT(used, 7u << 20);
  client.reset();
  EXPECT_EQ(survey->ReadHome(Soon())->clients, 0u);
}

TEST_F(Discovery, AClusterTellsTheDeadFromTheLivingAndRatesFromTwoSamples) {
  const Memory one = MakeMemory(1);
  Memory two = MakeMemory(2);
  auto compute = Open();
  metrics::AnnouncementWriter of_one(*one.node), of_compute(*compute);
  ASSERT_TRUE(of_one.Write(Of(metrics::Role::kMemory), Soon()).ok());
  ASSERT_TRUE(of_compute.Write(Of(metrics::Role::kCompute, 1'000), Soon()).ok());
  auto cluster = surge::Cluster::Open("krcore", {.fabric = fabric_}).value();
  const auto state_of = [](const surge::ClusterView& view, krcore::NodeId id) {
    for (const surge::NodeView& node : view.nodes) {
      if (node.id == id) return node.state;
    }
    return std::string("none");
  };
  surge::ClusterView view = cluster->Look().value();
  EXPECT_THAT(view.problems, IsEmpty());
  ASSERT_THAT(view.nodes, SizeIs(3));  // node 2 does not announce itself; the store lists it
  EXPECT_EQ(state_of(view, 1), "serving");
  EXPECT_EQ(state_of(view, 2), "serving");
  EXPECT_EQ(view.memory.total, 2 * kPoolBytes);
  EXPECT_FALSE(view.nodes[2].operations_per_s.has_value());
  EXPECT_NEAR(view.nodes[0].uptime_s, 60, 59);
  ASSERT_TRUE(of_compute.Write(Of(metrics::Role::kCompute, 3'000), Soon()).ok());
  view = cluster->Look().value();
  ASSERT_TRUE(view.nodes[2].operations_per_s.has_value());
  EXPECT_GT(*view.nodes[2].operations_per_s, 0);

  two.pool.reset();
  two.node.reset();
  view = cluster->Look().value();
  EXPECT_EQ(state_of(view, 2), "dead");
  EXPECT_EQ(view.memory.total, kPoolBytes);
  EXPECT_THAT(surge::Table(view), ContainsRegex("\n2 +memory +dead "));
}

surge::ClusterView SampleView() {
  surge::ClusterView view;
  view.fabric = "demo";
  view.clients = 3;
  surge::NodeView memory;
  memory.id = 1;
  memory.role = "memory";
  memory.state = "serving";
  memory.uptime_s = 12.34;
  memory.announcement.emplace();
  memory.announcement->flags = metrics::Announcement::kHome | metrics::Announcement::kMetaServer;
  memory.announcement->set_metrics(*cli::ParseAddress("127.0.0.1:9464", "--metrics"));
  memory.memory = surge::Memory{1 << 20, 1 << 18, 1 << 19, 1 << 18};
  view.memory = *memory.memory;
  surge::NodeView compute;
  compute.id = 256;
  compute.role = "compute";
  compute.state = "serving";
  compute.uptime_s = 7'300;
  compute.announcement.emplace();
  compute.announcement->role = metrics::Role::kCompute;
  compute.announcement->workers_wanted = 4;
  compute.announcement->workers_serving = 2;
  compute.announcement->workers_starting = 1;
  compute.announcement->operations = 99;
  compute.operations_per_s = 1'234.5;
  surge::NodeView dead = compute;
  dead.id = 257;
  dead.state = "dead";
  surge::NodeView listed;
  listed.id = 3;
  listed.role = "memory";
  listed.state = "dead";
  view.nodes = {memory, listed, compute, dead};
  view.problems = {"something"};
  return view;
}

TEST(SurgeTable, HasALineForEachNodeAndTheSumsOfTheLiving) {
  EXPECT_EQ(surge::Table(SampleView()),
            "NODE  ROLE                  STATE    UPTIME  USED  FREE  FULL  WORKERS  OPS/S  METRICS\n"
            "1     memory,home,metadata  serving  12.3 s  256K  512K  33%   -        -      127.0.0.1:9464\n"
            "3     memory                dead     -       -     -     -     -        -      -\n"
            "256   compute               serving  2.0 h   -     -     -     2/4 +1   1234   -\n"
            "257   compute               dead     2.0 h   -     -     -     2/4 +1   1234   -\n"
            "fabric demo: memory 256K used, 512K free; 2 workers, 3 clients, 1234 operations/s\n"
            "problem: something\n");
}

surge::ClusterView MirroredView() {
  surge::ClusterView view = SampleView();
  view.configuration = 7;
  view.nodes[0].pool = 1;
  view.nodes[0].place = "head";
  view.nodes[1].place = "spare";
  return view;
}

TEST(SurgeTable, HasAColumnOfPoolsWhereTheseAreMirrored) {
  EXPECT_EQ(surge::Table(MirroredView()),
            "NODE  ROLE                  STATE    POOL    UPTIME  USED  FREE  FULL  WORKERS  OPS/S  METRICS\n"
            "1     memory,home,metadata  serving  1 head  12.3 s  256K  512K  33%   -        -      127.0.0.1:9464\n"
            "3     memory                dead     spare   -       -     -     -     -        -      -\n"
            "256   compute               serving  -       2.0 h   -     -     -     2/4 +1   1234   -\n"
            "257   compute               dead     -       2.0 h   -     -     -     2/4 +1   1234   -\n"
            "fabric demo: memory 256K used, 512K free; 2 workers, 3 clients, 1234 operations/s; configuration 7\n"
            "problem: something\n");
}

TEST(SurgeJson, SaysWhichPoolANodeHasAndInWhichPlace) {
  const auto mirrored = nlohmann::json::parse(surge::Json(MirroredView()));
  EXPECT_EQ(mirrored["configuration"], 7);
  EXPECT_EQ(mirrored["nodes"][0]["pool"], 1);
  EXPECT_EQ(mirrored["nodes"][0]["replica"], "head");
  EXPECT_TRUE(mirrored["nodes"][1]["pool"].is_null());
  EXPECT_EQ(mirrored["nodes"][1]["replica"], "spare");
  const auto other = nlohmann::json::parse(surge::Json(SampleView()));
  EXPECT_TRUE(other["configuration"].is_null());
  EXPECT_TRUE(other["nodes"][0]["pool"].is_null());
  EXPECT_TRUE(other["nodes"][0]["replica"].is_null());
}

TEST(SurgeJson, HasOneShapeForEveryNode) {
  const auto json = nlohmann::json::parse(surge::Json(SampleView()));
  EXPECT_EQ(json["fabric"], "demo");
  EXPECT_EQ(json["clients"], 3);
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["operations_per_s"], 1'234.5);
  EXPECT_EQ(json["memory"]["free_bytes"], 1 << 19);
  ASSERT_THAT(json["problems"], ElementsAre("something"));
  ASSERT_THAT(json["nodes"], SizeIs(4));
  for (const auto& node : json["nodes"]) {
    std::vector<std::string> members;
    for (const auto& [name, value] : node.items()) members.push_back(name);
    EXPECT_THAT(members, ElementsAre("home", "id", "memory", "metaserver", "metrics", "operations", "operations_per_s",
                                     "pid", "pool", "replica", "role", "state", "uptime_s", "workers"));
  }
  EXPECT_EQ(json["nodes"][0]["memory"]["used_bytes"], 1 << 18);
  EXPECT_EQ(json["nodes"][0]["metrics"], "127.0.0.1:9464");
  EXPECT_TRUE(json["nodes"][0]["workers"].is_null());
  EXPECT_TRUE(json["nodes"][1]["pid"].is_null());
  EXPECT_EQ(json["nodes"][2]["workers"]["wanted"], 4);
  EXPECT_EQ(json["nodes"][2]["operations"], 99);
}

}  // namespace
