// Conversions of what users write and what libibverbs says into the interface's words.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/rnic/verbs/ud_port.h"
#include "tests/rnic/harness.h"

namespace krcore::rnic::verbs {
namespace {

TEST(VerbsAddress, HostAndPortOfBothFamilies) {
  const auto parsed = [](const std::string& text) {
    const HostPort address = ParseHostPort(text).value();
    return address.host + "|" + address.port;
  };
  EXPECT_EQ(parsed("10.0.0.1:7400"), "10.0.0.1|7400");
  EXPECT_EQ(parsed("node-1.example:1"), "node-1.example|1");
  EXPECT_EQ(parsed("[::1]:65535"), "::1|65535");
  EXPECT_EQ(parsed("[fe80::1%eth0]:7400"), "fe80::1%eth0|7400");
  EXPECT_EQ(parsed("node-1"), "node-1|7480");
  EXPECT_EQ(parsed("[::1]"), "::1|7480");
  for (const char* text : {"", ":", "host:", ":7400", "host:0", "host:65536", "host:99999999", "host:1x", "host:-1",
                           "::1:7400", "::1", "[]", "[]:1", "[::1:7400", "a[b]:1"}) {
    const auto refused = ParseHostPort(text);
    EXPECT_EQ(refused.status(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(refused.status().message().find("host:port"), std::string::npos) << text;
  }
}

TEST(VerbsPort, NamesDevicePortGidAndMtu) {
  EXPECT_EQ(ParsePortChoice("").value().device, "");
  EXPECT_FALSE(ParsePortChoice("").value().port);
  EXPECT_EQ(ParsePortChoice("rxe0").value().device, "rxe0");
  const PortChoice all = ParsePortChoice("mlx5_0:2:3").value();
  EXPECT_EQ(all.device, "mlx5_0");
  EXPECT_EQ(all.port, 2);
  EXPECT_EQ(all.gid_index, 3);
  EXPECT_FALSE(all.mtu);
  EXPECT_EQ(ParsePortChoice("mlx5_0:2:3:4096").value().mtu, IBV_MTU_4096);
  for (const char* text : {":1", "rxe0:", "rxe0:0", "rxe0:256", "rxe0:1:", "rxe0:1:256", "rxe0:1:1:1", "rxe0:1:1:1500",
                           "rxe0:1:1:1024:1", "rxe0:1::1024", "rxe0:a", "rxe0: 1"})
    EXPECT_EQ(ParsePortChoice(text).status(), StatusCode::kInvalidArgument) << text;
}

TEST(VerbsStatus, EveryStatusOfTheVerbsHasOneOfTheInterface) {
  EXPECT_EQ(FromWcStatus(IBV_WC_SUCCESS), WcStatus::kSuccess);
  EXPECT_EQ(FromWcStatus(IBV_WC_LOC_LEN_ERR), WcStatus::kLocalLengthError);
  EXPECT_EQ(FromWcStatus(IBV_WC_LOC_QP_OP_ERR), WcStatus::kLocalQpError);
  EXPECT_EQ(FromWcStatus(IBV_WC_LOC_PROT_ERR), WcStatus::kLocalProtectionError);
  EXPECT_EQ(FromWcStatus(IBV_WC_LOC_ACCESS_ERR), WcStatus::kLocalProtectionError);
  EXPECT_EQ(FromWcStatus(IBV_WC_WR_FLUSH_ERR), WcStatus::kFlushed);
  EXPECT_EQ(FromWcStatus(IBV_WC_REM_INV_REQ_ERR), WcStatus::kRemoteInvalidRequest);
  EXPECT_EQ(FromWcStatus(IBV_WC_REM_ACCESS_ERR), WcStatus::kRemoteAccessError);
  EXPECT_EQ(FromWcStatus(IBV_WC_REM_OP_ERR), WcStatus::kRemoteOperationError);
  EXPECT_EQ(FromWcStatus(IBV_WC_RETRY_EXC_ERR), WcStatus::kRetryExceeded);
  EXPECT_EQ(FromWcStatus(IBV_WC_RESP_TIMEOUT_ERR), WcStatus::kRetryExceeded);
  EXPECT_EQ(FromWcStatus(IBV_WC_RNR_RETRY_EXC_ERR), WcStatus::kRnrRetryExceeded);
  for (const ibv_wc_status other :
       {IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_FATAL_ERR, IBV_WC_GENERAL_ERR})
    EXPECT_EQ(FromWcStatus(other), WcStatus::kGeneralError) << other;
}

TEST(VerbsStatus, MemoryThatIsNotLockedNamesItsLimit) {
  rlimit locked{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &locked), 0);
  const rlimit before = locked;
  locked.rlim_cur = 64 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &locked), 0);
  const Status status = FailedCall(ENOMEM, "register 1 bytes");
  EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("(ulimit -l is 64)"), std::string_view::npos) << status.ToString();
}

TEST(VerbsStatus, RightsAndFlags) {
  EXPECT_EQ(ToAccessFlags(0), 0U);
  EXPECT_EQ(ToAccessFlags(kLocalWrite | kRemoteAtomic), unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_ATOMIC);
  EXPECT_EQ(ToAccessFlags(kRemoteRead | kRemoteWrite), unsigned{IBV_ACCESS_REMOTE_READ} | IBV_ACCESS_REMOTE_WRITE);
  EXPECT_EQ(ToSendFlags(kSignaled | kFence | kInline | kSolicited),
            unsigned{IBV_SEND_SIGNALED} | IBV_SEND_FENCE | IBV_SEND_INLINE | IBV_SEND_SOLICITED);
  EXPECT_EQ(ToWrOpcode(Opcode::kCompareSwap), IBV_WR_ATOMIC_CMP_AND_SWP);
  EXPECT_EQ(ToWrOpcode(Opcode::kFetchAdd), IBV_WR_ATOMIC_FETCH_AND_ADD);
}

TEST(VerbsKeys, TheLast256OfDestroyedMrsAreKnown) {
  RecentKeys keys;
  EXPECT_FALSE(keys.Has(0));
  for (uint32_t key = 0; key < 300; ++key) keys.Add(key);
  EXPECT_FALSE(keys.Has(43));
  for (uint32_t key = 44; key < 300; ++key) EXPECT_TRUE(keys.Has(key));
}

TEST(VerbsOpen, MistakesAreNamedBeforeAnythingIsOpened) {
  const auto refused = [](const DeviceOptions& options) {
    const auto opened = OpenDevice(options);
    EXPECT_EQ(opened.status(), StatusCode::kInvalidArgument);
    return std::string(opened.status().message());
  };
  EXPECT_NE(refused({.provider = "verbs", .fabric = "f"}).find("membership service"), std::string::npos);
  EXPECT_NE(refused({.provider = "verbs", .fabric = "f", .address = "nowhere:"}).find("'nowhere:'"), std::string::npos);
  EXPECT_NE(
      refused({.provider = "verbs", .fabric = "f", .address = "127.0.0.1:7400", .port = "rxe0:x"}).find("'rxe0:x'"),
      std::string::npos);
  EXPECT_NE(refused({.provider = "verbs", .address = "127.0.0.1:7400"}).find("fabric name"), std::string::npos);
  for (const char* provider : {"sw", "sim"}) {
    EXPECT_NE(refused({.provider = provider, .fabric = "f", .address = "::1"}).find("a fabric's address"),
              std::string::npos);
    EXPECT_NE(refused({.provider = provider, .fabric = "f", .port = "rxe0"}).find("a NIC's port"), std::string::npos);
  }
}

TEST(VerbsOpen, AMissingFabricIsNotFound) {
  const testing::Provider provider{"Verbs", "verbs", ""};
  const std::string address = testing::AddressOf(provider, testing::UniqueFabric(""));
  EXPECT_EQ(OpenDevice({.provider = "verbs", .fabric = "f", .address = address}).status(), StatusCode::kNotFound);
}

TEST(VerbsOpen, ADeviceThatIsNotThereIsUnavailableAndThoseThatAreAreNamed) {
  const testing::Provider provider{"Verbs", "verbs", ""};
  const std::string address = testing::AddressOf(provider, testing::UniqueFabric(""));
  const auto opened = OpenDevice(
      {.provider = "verbs", .fabric = "f", .create_fabric = true, .address = address, .port = "no_such_device"});
  EXPECT_EQ(opened.status(), StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find("no RDMA device no_such_device"), std::string::npos)
      << opened.status().ToString();
}

ibv_gid Gid(std::array<uint8_t, 16> bytes) {
  ibv_gid gid{};
  std::copy(bytes.begin(), bytes.end(), gid.raw);
  return gid;
}

TEST(VerbsSender, IsInTheHeaderThatThePortsKindOfAddressHas) {
  const ibv_gid ipv4 = Gid({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1});
  const ibv_gid ipv6 = Gid({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  const auto sender = [](const ibv_gid& own, const std::array<uint8_t, kGrhBytes>& header) {
    const auto found = SenderGid(own, header);
    return found ? std::vector<uint8_t>(std::begin(found->raw), std::end(found->raw)) : std::vector<uint8_t>();
  };
  std::array<uint8_t, kGrhBytes> header{};
  header.fill(0xee);  // fields without a meaning are not looked at
  header[20] = 0x45;
  const std::array<uint8_t, 4> source{10, 0, 0, 7};
  std::copy(source.begin(), source.end(), header.begin() + 32);
  EXPECT_EQ(sender(ipv4, header), (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7}));
  header[20] = 0x65;
  EXPECT_TRUE(sender(ipv4, header).empty());

  header.fill(0xee);
  header[0] = 0x60;
  for (size_t i = 0; i < 16; ++i) header[8 + i] = static_cast<uint8_t>(0xa0 + i);
  EXPECT_EQ(sender(ipv6, header), (std::vector<uint8_t>{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9,
                                                        0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf}));
  header[0] = 0x40;
  EXPECT_TRUE(sender(ipv6, header).empty());
}

}  // namespace
}  // namespace krcore::rnic::verbs
