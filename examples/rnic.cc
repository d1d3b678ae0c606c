// RDMA from C++ without krcore's pool of connections: two devices, an RC queue pair on each, a WRITE and a READ. The
// objects are those of libibverbs; destroying one ends what it stands for. With --verbs this uses a NIC or Soft-RoCE;
// by default it uses shared memory. Both devices are in this process.
#include <krcore/rnic.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace rnic = krcore::rnic;

namespace {

// One end: a device of the fabric, and what is made on it. Members are destroyed from the last to the first.
struct End {
  std::unique_ptr<rnic::Device> device;
  std::unique_ptr<rnic::Pd> domain;
  std::unique_ptr<rnic::Cq> completions;
  std::unique_ptr<rnic::Memory> memory;
  std::unique_ptr<rnic::Mr> region;
  std::unique_ptr<rnic::Qp> queue;

  explicit End(const rnic::DeviceOptions& options) {
    device = rnic::OpenDevice(options).value();
    domain = device->CreatePd().value();
    completions = device->CreateCq(64).value();
    memory = device->AllocMemory(4096, {}).value();
    region = domain
                 ->RegisterMemory(memory->bytes().data(), memory->bytes().size(),
                                  krcore::kLocalWrite | krcore::kRemoteRead | krcore::kRemoteWrite)
                 .value();
    queue = domain->CreateQp({.type = rnic::QpType::kRc, .send_cq = completions.get(), .recv_cq = completions.get()})
                .value();
  }
  // Real programs send each other the address, the number of the queue pair, and the region's address and rkey. That is
  // what krcore's pool and its metadata servers do for their users.
  krcore::Status Connect(const End& peer) {
    krcore::Status status = queue->ToInit(krcore::kRemoteRead | krcore::kRemoteWrite, 0);
    if (status.ok()) status = queue->ToRtr({.device = peer.device->address(), .qpn = peer.queue->num(), .psn = 1});
    if (status.ok()) status = queue->ToRts();
    return status;
  }
};

}  // namespace

int main(int argc, char** argv) {
  rnic::DeviceOptions options{.fabric = "inproc:rnic", .create_fabric = true};
  if (argc > 1 && std::string_view(argv[1]) == "--verbs") {
    options = {.provider = "verbs", .fabric = "rnic", .create_fabric = true, .address = "127.0.0.1"};
  }
  End target(options);
  options.create_fabric = false;
  End initiator(options);
  // Both ends must be able to receive before one sends.
  krcore::Status status = target.Connect(initiator);
  if (status.ok()) status = initiator.Connect(target);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }

  constexpr std::string_view kText = "written one-sided";
  std::byte* const local = initiator.memory->bytes().data();
  std::memcpy(local, kText.data(), kText.size());
  const auto sge = [&](size_t offset) {
    return krcore::Sge{reinterpret_cast<uint64_t>(local) + offset, static_cast<uint32_t>(kText.size()),
                       initiator.region->lkey()};
  };
  const std::array<krcore::Sge, 2> sges = {sge(0), sge(64)};
  std::array<rnic::SendWr, 2> requests;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].wr_id = i;
    requests[i].opcode = i == 0 ? krcore::Opcode::kWrite : krcore::Opcode::kRead;
    requests[i].flags = krcore::kSignaled;
    requests[i].sg_list = &sges[i];
    requests[i].num_sge = 1;
    requests[i].remote_addr = reinterpret_cast<uint64_t>(target.region->addr());
    requests[i].rkey = target.region->rkey();
  }
  size_t bad_index = 0;
  status = initiator.queue->PostSend(requests, &bad_index);
  bool good = status.ok();
  std::array<krcore::Completion, 2> done;
  for (size_t count = 0; good && count < requests.size();) {
    const size_t polled = initiator.completions->Poll(done);
    for (size_t i = 0; i < polled; ++i) {
      if (done[i].status == krcore::WcStatus::kSuccess) continue;
      status = {krcore::StatusCode::kUnavailable, std::string(WcStatusName(done[i].status))};
      good = false;
    }
    count += polled;
  }
  good = good && std::memcmp(local + 64, kText.data(), kText.size()) == 0;
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::printf("read back: %.*s\n", good ? static_cast<int>(kText.size()) : 0, reinterpret_cast<char*>(local + 64));
  return good ? 0 : 1;
}
