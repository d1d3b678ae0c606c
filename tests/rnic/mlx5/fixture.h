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

// Options of node 1 of a fabric of its own, which it creates.
DeviceOptions OptionsOfFake();
Result<std::unique_ptr<Device>> OpenFake();
// Another port's address, with `last` as the last byte of its GID.
DeviceAddress PeerOf(const Device& device, uint8_t last);
std::vector<Completion> Poll(Cq& cq);
// Returns how many completions all CQs of the fake NIC have room for.
int RoomOfCqs();

class Mlx5Test : public ::testing::Test {
 protected:
  Mlx5Test() { FakeNic::Reset(); }
  // Checks at the end of every test that everything is gone and that the driver would have allowed all calls.
  ~Mlx5Test() override;

  void Open();
  std::unique_ptr<Qp> MakeDci(uint32_t sq_depth = 64);
  std::unique_ptr<Qp> ReadyDci(uint32_t sq_depth = 64);
  // A WR of data_, to the target kDctn with key kKey at the peer.
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
