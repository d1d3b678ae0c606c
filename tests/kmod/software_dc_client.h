// A user of the module's software DC: provider verbs, as on a host without the module.
#ifndef TESTS_KMOD_SOFTWARE_DC_CLIENT_H_
#define TESTS_KMOD_SOFTWARE_DC_CLIENT_H_

#include <memory>
#include <span>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/sdc/wire.h"
#include "tests/kmod/fixture.h"

namespace kmod_test {

// A device and memory, in a fabric of which it is the only member.
struct Verbs {
  Verbs();
  std::unique_ptr<krcore::rnic::AddressHandle> HandleOf(const krc_dc_target& target);

  std::unique_ptr<krcore::rnic::Device> device;
  std::unique_ptr<krcore::rnic::Pd> pd;
  Pages memory;
  std::unique_ptr<krcore::rnic::Mr> mr;
};

// An initiator to one target.
class Initiator {
 public:
  Initiator(Verbs* verbs, const krc_dc_target& target);
  // A WR of `length` bytes between the verbs' memory at `local` and `remote`, which `rkey` names.
  krcore::rnic::SendWr Wr(krcore::Opcode opcode, size_t local, uint32_t rkey, const void* remote, uint32_t length = 8);
  krcore::Status Post(const krcore::rnic::SendWr& wr) { return qp_->PostSend({&wr, 1}, nullptr); }
  // Returns the status of the next completion; kGeneralError, and a test failure, if none comes.
  krcore::WcStatus Await();
  krcore::WcStatus Run(const krcore::rnic::SendWr& wr);
  // Call after a failure.
  void Restart();
  krc_dc_target target;

 private:
  void Start();

  Verbs* verbs_;
  std::unique_ptr<krcore::rnic::Cq> cq_;
  std::unique_ptr<krcore::rnic::Qp> qp_;
  std::unique_ptr<krcore::rnic::AddressHandle> handle_;
  std::vector<krcore::Sge> sges_;  // of WRs in flight, in turn
  size_t next_ = 0;
};

// A UD queue, from which anything may be sent to a target.
class Stranger {
 public:
  Stranger(Verbs* verbs, const krc_dc_target& target);
  void Send(std::span<const uint8_t> bytes);
  void Send(const sdc_packet& packet);
  // Takes the next answer. Returns false if none came in time.
  bool Receive(sdc_packet* packet, int timeout_ms);
  const krc_dc_target& target() const { return target_; }

 private:
  void PostReceive(uint64_t which);

  Verbs* verbs_;
  krc_dc_target target_;
  std::unique_ptr<krcore::rnic::Cq> send_cq_, recv_cq_;
  std::unique_ptr<krcore::rnic::Qp> qp_;
  std::unique_ptr<krcore::rnic::AddressHandle> handle_;
  uint64_t sent_ = 0, done_ = 0;
};

}  // namespace kmod_test

#endif  // TESTS_KMOD_SOFTWARE_DC_CLIENT_H_
