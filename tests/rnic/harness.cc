#include "tests/rnic/harness.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "krcore/clock.h"
#include "tests/support/free_port.h"

namespace krcore::rnic::testing {

namespace {
constexpr size_t kMemoryBytes = 1 << 16;
constexpr int kPolls = 1 << 20;
constexpr int64_t kCompletionPatienceNs = 60'000'000'000;

// By fabric. Fabrics have names of their own, so Worlds that are gone are never looked up.
std::mutex worlds_mutex;
std::map<std::string, sim::World*> worlds_by_fabric;

sim::World* WorldOf(const std::string& fabric) {
  const std::lock_guard lock(worlds_mutex);
  const auto found = worlds_by_fabric.find(fabric);
  return found == worlds_by_fabric.end() ? nullptr : found->second;
}

}  // namespace

std::string UniqueFabric(const std::string& prefix) {
  static std::atomic<int> counter{0};
  return prefix + "test-" + std::to_string(getpid()) + "-" + std::to_string(counter++);
}

// SURGEKV_TEST_RNIC=verbs is set where there is an RDMA device (tests/vm): then the tests run on it.
std::vector<Provider> ThreadedProviders() {
  const char* const only = std::getenv("SURGEKV_TEST_RNIC");
  if (only != nullptr && std::string(only) == "verbs") return {{"Verbs", "verbs", ""}};
  return {{"SwInproc", "sw", "inproc:"}, {"SwShm", "sw", ""}};
}

std::vector<Provider> Providers() {
  std::vector<Provider> all = ThreadedProviders();
  if (all.front().provider == "verbs") return all;
  all.push_back({"Sim", "sim", ""});
  all.push_back({"SimChaos", "sim", "", {.tear = 0.5, .delay = 0.5, .max_delay_ns = 100'000}});
  return all;
}

std::unique_ptr<sim::World> MakeWorld(const sim::WorldOptions& options) {
  auto world = std::make_unique<sim::World>(options);
  const std::lock_guard lock(worlds_mutex);
  worlds_by_fabric[options.fabric] = world.get();
  return world;
}

std::unique_ptr<sim::World> MakeWorld(const Provider& provider, const std::string& fabric) {
  if (provider.provider != "sim") return nullptr;
  return MakeWorld({.fabric = fabric, .chaos = provider.chaos});
}

std::string AddressOf(const Provider& provider, const std::string& fabric) {
  if (provider.provider != "verbs") return "";
  static std::map<std::string, std::string> addresses;
  std::string& address = addresses[fabric];
  if (address.empty()) address = "127.0.0.1:" + std::to_string(testing_support::FreePort());
  return address;
}

Endpoint::Endpoint(const Provider& provider, const std::string& fabric, NodeId node, bool create)
    : world(WorldOf(fabric)) {
  device = OpenDevice({.provider = provider.provider,
                       .fabric = fabric,
                       .node = node,
                       .create_fabric = create,
                       .address = AddressOf(provider, fabric)})
               .value();
  pd = device->CreatePd().value();
  cq = device->CreateCq(256).value();
  memory = device->AllocMemory(kMemoryBytes, {}).value();
  mr = pd->RegisterMemory(memory->bytes().data(), memory->bytes().size(), kAllRights).value();
}

std::unique_ptr<Qp> Endpoint::MakeQp(const QpAttr& attr) {
  QpAttr filled = attr;
  if (filled.send_cq == nullptr) filled.send_cq = cq.get();
  if (filled.recv_cq == nullptr) filled.recv_cq = cq.get();
  return pd->CreateQp(filled).value();
}

std::unique_ptr<Qp> Endpoint::MakeReadyUd(uint32_t qkey, uint32_t rq_depth, uint32_t max_recv_bytes) {
  auto qp = MakeQp({.type = QpType::kUd, .rq_depth = rq_depth, .max_recv_bytes = max_recv_bytes});
  KRCORE_EXPECT_OK(qp->ToInit(0, qkey));
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  KRCORE_EXPECT_OK(qp->ToRts());
  return qp;
}

std::unique_ptr<Qp> Endpoint::MakeReadyDci(uint32_t sq_depth) {
  auto qp = MakeQp({.type = QpType::kDci, .sq_depth = sq_depth});
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  KRCORE_EXPECT_OK(qp->ToRts());
  return qp;
}

std::unique_ptr<Dct> Endpoint::MakeDct(uint32_t rq_depth, uint64_t dc_key) {
  return pd->CreateDct({.dc_key = dc_key, .recv_cq = cq.get(), .rq_depth = rq_depth}).value();
}

Completion Endpoint::Next() {
  Completion completion;
  // A NIC needs time, whatever the number of polls.
  const Deadline deadline = IsNic(*device) ? Deadline::After(*RealClock(), kCompletionPatienceNs) : Deadline{0};
  for (int i = 0; i < kPolls || !deadline.Passed(*RealClock()); ++i) {
    if (cq->Poll({&completion, 1}) == 1) return completion;
    if (world != nullptr && !world->Step()) break;
  }
  ADD_FAILURE() << "no completion came";
  completion.status = WcStatus::kGeneralError;
  return completion;
}

void Endpoint::Settle() {
  while (world != nullptr && world->Step()) {
  }
  // Nothing can be awaited where nothing is to come.
  if (IsNic(*device)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

bool Endpoint::Idle() {
  Settle();
  Completion completion;
  return cq->Poll({&completion, 1}) == 0;
}

bool IsNic(const Device& device) { return device.caps().provider == "verbs"; }

void ExpectStatus(const Device& device, WcStatus got, WcStatus wanted, WcStatus or_on_nic) {
  if (!IsNic(device) || got != or_on_nic) {
    EXPECT_EQ(got, wanted);
  }
}

void ConnectRc(Qp& qp, Qp& peer, const Device& peer_device, uint32_t rights) {
  KRCORE_EXPECT_OK(qp.ToInit(rights, 0));
  KRCORE_EXPECT_OK(qp.ToRtr({.device = peer_device.address(), .qpn = peer.num()}));
  KRCORE_EXPECT_OK(qp.ToRts());
}

Link::Link(Endpoint* from, Endpoint* to, Transport how, uint32_t sq_depth, uint32_t rq_depth, uint32_t rights)
    : a(from), b(to), transport(how) {
  if (transport == Transport::kRc) {
    qp = a->MakeQp({.type = QpType::kRc, .sq_depth = sq_depth});
    remote_qp = b->MakeQp({.type = QpType::kRc, .rq_depth = rq_depth});
    ConnectRc(*qp, *remote_qp, *b->device, rights);
    ConnectRc(*remote_qp, *qp, *a->device, rights);
  } else {
    dct = b->pd->CreateDct({.dc_key = kDcKey, .access_rights = rights, .recv_cq = b->cq.get(), .rq_depth = rq_depth})
              .value();
    address = a->device->CreateAddressHandle(b->device->address()).value();
    qp = a->MakeReadyDci(sq_depth);
  }
}

SendWr Link::Wr(Opcode opcode, const Sge* sge, size_t offset, uint64_t wr_id) const {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.sg_list = sge;
  wr.num_sge = sge == nullptr ? 0 : 1;
  wr.opcode = opcode;
  wr.remote_addr = b->Addr(offset);
  wr.rkey = b->mr->rkey();
  if (transport == Transport::kDc) {
    wr.ah = address.get();
    wr.remote_qpn = dct->num();
    wr.dc_key = dct->dc_key();
  }
  return wr;
}

Completion Link::Run(const SendWr& wr) {
  KRCORE_EXPECT_OK(Post(wr));
  return a->Next();
}

Status Link::PostRecv(const Sge* sge, uint64_t wr_id) {
  const RecvWr recv{wr_id, sge, static_cast<uint8_t>(sge == nullptr ? 0 : 1)};
  return transport == Transport::kRc ? remote_qp->PostRecv({&recv, 1}, nullptr) : dct->PostRecv({&recv, 1}, nullptr);
}

void TransportTest::SetUp() {
  const Provider& provider = std::get<0>(GetParam());
  fabric_ = UniqueFabric(provider.fabric_prefix);
  world_ = MakeWorld(provider, fabric_);
  a_ = std::make_unique<Endpoint>(provider, fabric_, 1, true);
  b_ = std::make_unique<Endpoint>(provider, fabric_, 2, false);
  if (transport() == Transport::kDc && !a_->device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  link_ = std::make_unique<Link>(a_.get(), b_.get(), transport(), 64, 8);
}

}  // namespace krcore::rnic::testing
