// A device of the verbs provider, opened on the fake NIC, with what a test of DC usually needs.
#ifndef TESTS_RNIC_MLX5_FIXTURE_H_
#define TESTS_RNIC_MLX5_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic.h"
#include "tests/rnic/harness.h"
#include "tests/rnic/mlx5/fake_nic.h"

namespace krcore::rnic::verbs::testing {

inline constexpr uint64_t kKey = 0x1234'5678'9abc'def0;
inline constexpr uint32_t kDctn = 0x4242;

// Of node 1 of a fabric of its own, which it creates.
DeviceOptions OptionsOfFake();
Result<std::unique_ptr<Device>> OpenFake();
// Another port's address, with `last` as the last byte of its GID.
DeviceAddress PeerOf(const Device& device, uint8_t last);
std::vector<Completion> Poll(Cq& cq);
// Completions that all CQs of the fake NIC have room for.
int RoomOfCqs();

class Mlx5Test : public ::testing::Test {
 protected:
  Mlx5Test() { FakeNic::Reset(); }
  // What every test ends with: all of it is gone, and the driver would have allowed everything.
  ~Mlx5Test() override;

  void Open();
  std::unique_ptr<Qp> MakeDci(uint32_t sq_depth = 64);
  std::unique_ptr<Qp> ReadyDci(uint32_t sq_depth = 64);
  // Of data_, to the target kDctn of key kKey at the peer.
  SendWr Wr(Opcode opcode, uint64_t wr_id, uint8_t flags = kSignaled);
  Status Post(Qp& qp, std::vector<SendWr> wrs, size_t* bad_index = nullptr) { return qp.PostSend(wrs, bad_index); }

  static FakeNic& nic() { return FakeNic::Get(); }
  std::unique_ptr<Device> device_;
  std::unique_ptr<Pd> pd_;
  std::unique_ptr<Cq> cq_;
  std::unique_ptr<AddressHandle> peer_;
  alignas(8) std::array<char, 256> data_{};
  Sge sge_{};
};

}  // namespace krcore::rnic::verbs::testing

#endif  // TESTS_RNIC_MLX5_FIXTURE_H_
