// Cost of one work request through the Qp interface of the software RNIC: post, execute, poll; one process, DC
// initiator, addresses in a fixed pseudo-random order over a working set.
// Args: batch (WRs behind one doorbell, the last one signaled), working set in KiB (32: warm lines; larger: cache
// misses).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "krcore/rnic/registry.h"
#include "krcore/rnic/rnic.h"

namespace krcore::rnic {
namespace {

constexpr size_t kMaxBatch = 64;
constexpr uint64_t kDcKey = 42;
constexpr uint32_t kRights = kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic;

struct Bench {
  explicit Bench(size_t bytes) {
    const std::string fabric = "bench-" + std::to_string(getpid());
    target = OpenDevice({.fabric = fabric, .node = 1, .create_fabric = true}).value();
    initiator = OpenDevice({.fabric = fabric, .node = 2}).value();
    memory = target->AllocMemory(bytes, {}).value();
    (void)memory->CollapseToHugePages(0, bytes);
    target_pd = target->CreatePd().value();
    remote = target_pd->RegisterMemory(memory->bytes().data(), bytes, kRights).value();
    dct = target_pd->CreateDct({.dc_key = kDcKey}).value();
    pd = initiator->CreatePd().value();
    cq = initiator->CreateCq(256).value();
    buffer.resize(kMaxBatch * 128);
    local = pd->RegisterMemory(buffer.data(), buffer.size(), kLocalWrite).value();
    address = initiator->CreateAddressHandle(target->address()).value();
    qp = pd->CreateQp({.type = QpType::kDci, .send_cq = cq.get()}).value();
    (void)qp->ToInit(0, 0);
    (void)qp->ToRtr({});
    (void)qp->ToRts();
  }
  std::unique_ptr<Device> target, initiator;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Pd> target_pd, pd;
  std::unique_ptr<Mr> remote, local;
  std::unique_ptr<Dct> dct;
  std::unique_ptr<Cq> cq;
  std::vector<char> buffer;
  std::unique_ptr<AddressHandle> address;
  std::unique_ptr<Qp> qp;
};

void Run(benchmark::State& state, Opcode opcode, uint32_t length) {
  const size_t batch = static_cast<size_t>(state.range(0));
  const size_t bytes = static_cast<size_t>(state.range(1)) << 10;
  Bench bench(bytes);
  std::vector<Sge> sges(batch);
  std::vector<SendWr> wrs(batch);
  for (size_t i = 0; i < batch; ++i) {
    sges[i] = {reinterpret_cast<uint64_t>(bench.buffer.data()) + i * 128, length, bench.local->lkey()};
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = opcode;
    wrs[i].flags = i + 1 == batch ? kSignaled : 0;
    wrs[i].rkey = bench.remote->rkey();
    wrs[i].ah = bench.address.get();
    wrs[i].remote_qpn = bench.dct->num();
    wrs[i].dc_key = kDcKey;
  }
  const uint64_t base = reinterpret_cast<uint64_t>(bench.memory->bytes().data());
  uint64_t random = 88172645463325252;
  for (auto step : state) {
    for (SendWr& wr : wrs) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      wr.remote_addr = base + ((random & (bytes - 1)) & ~uint64_t{127});
    }
    Completion done;
    if (!bench.qp->PostSend(wrs, nullptr).ok() || bench.cq->Poll({&done, 1}) != 1 ||
        done.status != WcStatus::kSuccess) {
      state.SkipWithError("a work request failed");
      break;
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(batch));
  state.counters["per_wr"] = benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(batch),
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Read64(benchmark::State& state) { Run(state, Opcode::kRead, 64); }
void Read128(benchmark::State& state) { Run(state, Opcode::kRead, 128); }
void Write128(benchmark::State& state) { Run(state, Opcode::kWrite, 128); }
void CompareSwap(benchmark::State& state) { Run(state, Opcode::kCompareSwap, 8); }

#define KRCORE_RNIC_BENCHMARK(name) \
  BENCHMARK(name)->ArgNames({"batch", "kib"})->ArgsProduct({{1, 16, 64}, {32, 256 << 10}})
KRCORE_RNIC_BENCHMARK(Read64);
KRCORE_RNIC_BENCHMARK(Read128);
KRCORE_RNIC_BENCHMARK(Write128);
KRCORE_RNIC_BENCHMARK(CompareSwap);

}  // namespace
}  // namespace krcore::rnic
