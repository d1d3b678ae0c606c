// What the conformance tests share. Tests are written against rnic.h and run once per entry of Providers(); a later
// provider adds an entry. A test of an optional capability skips, with the reason, where Caps lacks it.
#ifndef TESTS_RNIC_HARNESS_H_
#define TESTS_RNIC_HARNESS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sim/world.h"

namespace krcore::rnic::testing {

inline constexpr uint32_t kAllRights = kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic;
inline constexpr uint64_t kDcKey = 0x5eed'1234;
inline constexpr uint32_t kQkey = 0x1111;

inline std::vector<std::byte> Bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// A fabric name that no other test, process or run uses.
std::string UniqueFabric(const std::string& prefix);

struct Provider {
  std::string label;          // in test names
  std::string provider;       // for OpenDevice
  std::string fabric_prefix;  // "inproc:" or nothing
  sim::Chaos chaos = {};      // sim
};
std::vector<Provider> Providers();
// Returns where the membership service of `fabric` is to be: the same at each call. Empty where the provider needs
// none.
std::string AddressOf(const Provider& provider, const std::string& fabric);
// Returns the providers whose devices may be used by several threads at once.
std::vector<Provider> ThreadedProviders();
// Makes the simulated World in which the devices of `fabric` are to be opened. Null where the provider needs none.
std::unique_ptr<sim::World> MakeWorld(const sim::WorldOptions& options);
std::unique_ptr<sim::World> MakeWorld(const Provider& provider, const std::string& fabric);
inline void PrintTo(const Provider& provider, std::ostream* os) { *os << provider.label; }

// A device, with what a test usually needs of it.
struct Endpoint {
  Endpoint(const Provider& provider, const std::string& fabric, NodeId node, bool create);
  uint64_t Addr(size_t offset = 0) const { return reinterpret_cast<uint64_t>(memory->bytes().data()) + offset; }
  uint64_t& Word(size_t offset = 0) { return *reinterpret_cast<uint64_t*>(memory->bytes().data() + offset); }
  char* Text(size_t offset = 0) { return reinterpret_cast<char*>(memory->bytes().data() + offset); }
  Sge Local(size_t offset, uint32_t length) const { return {Addr(offset), length, mr->lkey()}; }
  std::unique_ptr<Qp> MakeQp(const QpAttr& attr);
  std::unique_ptr<Qp> MakeReadyUd(uint32_t qkey, uint32_t rq_depth = 8, uint32_t max_recv_bytes = 4096);
  std::unique_ptr<Qp> MakeReadyDci(uint32_t sq_depth = 64);
  std::unique_ptr<Dct> MakeDct(uint32_t rq_depth = 0, uint64_t dc_key = kDcKey);
  // Returns the next completion; a test failure if there is none after many polls.
  Completion Next();
  // Returns whether no completion is there or on its way.
  bool Idle();
  // Waits until everything that was posted has happened.
  void Settle();

  sim::World* world;  // null unless simulated
  std::unique_ptr<Device> device;
  std::unique_ptr<Pd> pd;
  std::unique_ptr<Cq> cq;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Mr> mr;  // all of memory, all rights
};

enum class Transport { kRc, kDc };
inline void PrintTo(Transport transport, std::ostream* os) { *os << (transport == Transport::kRc ? "RC" : "DC"); }

// Two endpoints, `a` posting and `b` the target, over RC or DC.
struct Link {
  Link(Endpoint* from, Endpoint* to, Transport transport, uint32_t sq_depth = 64, uint32_t rq_depth = 0,
       uint32_t rights = kRemoteRead | kRemoteWrite | kRemoteAtomic);
  // A WR to the target's MR at `offset`; sge is the local side.
  SendWr Wr(Opcode opcode, const Sge* sge, size_t offset, uint64_t wr_id = 0) const;
  Status Post(const SendWr& wr) { return qp->PostSend({&wr, 1}, nullptr); }
  // Posts `wr` and waits for its completion.
  Completion Run(const SendWr& wr);
  Status PostRecv(const Sge* sge, uint64_t wr_id);

  Endpoint* a;
  Endpoint* b;
  Transport transport;
  std::unique_ptr<Qp> qp;
  std::unique_ptr<Qp> remote_qp;           // RC
  std::unique_ptr<Dct> dct;                // DC
  std::unique_ptr<AddressHandle> address;  // DC
};

// A device in hardware, or a kernel's: its statuses may differ from the interface's where the verbs leave them open.
bool IsNic(const Device& device);
void ExpectStatus(const Device& device, WcStatus got, WcStatus wanted, WcStatus or_on_nic);

void ConnectRc(Qp& qp, Qp& peer, const Device& peer_device, uint32_t rights);

class RnicTest : public ::testing::TestWithParam<Provider> {
 protected:
  RnicTest()
      : fabric_(UniqueFabric(GetParam().fabric_prefix)),
        world_(MakeWorld(GetParam(), fabric_)),
        a_(Open(1, true)),
        b_(Open(2, false)) {}
  std::unique_ptr<Endpoint> Open(NodeId node, bool create) {
    return std::make_unique<Endpoint>(GetParam(), fabric_, node, create);
  }
  std::string fabric_;
  std::unique_ptr<sim::World> world_;
  std::unique_ptr<Endpoint> a_, b_;
};

// For what must hold on RC and DC alike.
class TransportTest : public ::testing::TestWithParam<std::tuple<Provider, Transport>> {
 protected:
  void SetUp() override;
  std::string fabric_;
  std::unique_ptr<sim::World> world_;
  std::unique_ptr<Endpoint> a_, b_;
  std::unique_ptr<Link> link_;
  Transport transport() const { return std::get<1>(GetParam()); }
};

#define KRCORE_EXPECT_OK(expr)                       \
  do {                                               \
    const ::krcore::Status status_ = (expr);         \
    EXPECT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)

}  // namespace krcore::rnic::testing

namespace krcore {
inline void PrintTo(WcStatus status, std::ostream* os) { *os << WcStatusName(status); }
inline void PrintTo(StatusCode code, std::ostream* os) { *os << StatusCodeName(code); }
}  // namespace krcore

#define INSTANTIATE_RNIC_TESTS(suite)                                                             \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::krcore::rnic::testing::Providers()), \
                           [](const auto& info) { return info.param.label; })
#define INSTANTIATE_TRANSPORT_TESTS(suite) INSTANTIATE_TRANSPORT_TESTS_ON(suite, ::krcore::rnic::testing::Providers())
#define INSTANTIATE_TRANSPORT_TESTS_ON(suite, providers)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                                           \
      All, suite,                                                                                                     \
      ::testing::Combine(::testing::ValuesIn(providers), ::testing::Values(::krcore::rnic::testing::Transport::kRc,   \
                                                                           ::krcore::rnic::testing::Transport::kDc)), \
      [](const auto& info) {                                                                                          \
        return std::get<0>(info.param).label +                                                                        \
               (std::get<1>(info.param) == ::krcore::rnic::testing::Transport::kRc ? "Rc" : "Dc");                    \
      })

#endif  // TESTS_RNIC_HARNESS_H_
