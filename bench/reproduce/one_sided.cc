// Figure "one_sided": READ and WRITE by length, one at a time and in batches: the bare RNIC's RC queue, and
// VirtualQueues over DC and over RC. One thread of one process posts; sw executes what it posts in that thread, and the
// target's CPU takes no part. All WRs of a batch are signaled, and a batch is over when all its completions were
// polled.
#include "bench/common/promote.h"
#include "bench/reproduce/report.h"
#include "bench/reproduce/slices.h"
#include "krcore/rnic.h"

namespace reproduce {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr size_t kMaxBatch = 32;
constexpr size_t kMemory = kMaxBytes * kMaxBatch;
constexpr uint32_t kRights = kRemoteRead | kRemoteWrite;

// A way to have requests executed on the memory of a target, which this process can look at.
class Transport {
 public:
  virtual ~Transport() = default;
  // The batch: request i moves `length` bytes at i times that.
  virtual void Prepare(Opcode opcode, uint32_t length, size_t batch) = 0;
  virtual void RunBatch() = 0;
  virtual std::span<std::byte> local() = 0;
  virtual std::span<std::byte> remote() = 0;
};

template <typename Wr>
struct Batch {
  std::vector<Sge> sges;
  std::vector<Wr> wrs;
  std::vector<Completion> out;

  void Prepare(Opcode opcode, uint32_t length, size_t batch, uint64_t local, uint32_t lkey, uint64_t remote,
               uint32_t rkey) {
    sges.resize(batch);
    out.resize(batch);
    wrs.assign(batch, {});
    for (size_t i = 0; i < batch; ++i) {
      sges[i] = {local + i * length, length, lkey};
      wrs[i].wr_id = i;
      wrs[i].sg_list = &sges[i];
      wrs[i].num_sge = 1;
      wrs[i].opcode = opcode;
      wrs[i].remote_addr = remote + i * length;
      wrs[i].rkey = rkey;
    }
  }
  // Of the first `got` completions.
  void MustHaveSucceeded(size_t got) const {
    for (size_t i = 0; i < got; ++i)
      if (out[i].status != WcStatus::kSuccess)
        Must(Status(StatusCode::kInternal, "a request ended with: " + std::string(WcStatusName(out[i].status))));
  }
};

class BareRc final : public Transport {
 public:
  BareRc(const std::string& fabric, NodeId id)
      : target_(Must(rnic::OpenDevice({.fabric = fabric, .node = id, .create_fabric = true}))),
        initiator_(Must(rnic::OpenDevice({.fabric = fabric, .node = id + 1}))),
        remote_(Must(target_->AllocMemory(kMemory, {}))),
        local_(Must(initiator_->AllocMemory(kMemory, {}))),
        target_pd_(Must(target_->CreatePd())),
        pd_(Must(initiator_->CreatePd())),
        remote_mr_(Must(target_pd_->RegisterMemory(remote_->bytes().data(), kMemory, kLocalWrite | kRights))),
        local_mr_(Must(pd_->RegisterMemory(local_->bytes().data(), kMemory, kLocalWrite))),
        target_cq_(Must(target_->CreateCq(64))),
        cq_(Must(initiator_->CreateCq(64))) {
    target_qp_ = Must(target_pd_->CreateQp({.send_cq = target_cq_.get(), .recv_cq = target_cq_.get()}));
    qp_ = Must(pd_->CreateQp({.send_cq = cq_.get(), .recv_cq = cq_.get()}));
    Must(target_qp_->ToInit(kRights, 0));
    Must(qp_->ToInit(0, 0));
    Must(target_qp_->ToRtr({.device = initiator_->address(), .qpn = qp_->num()}));
    Must(qp_->ToRtr({.device = target_->address(), .qpn = target_qp_->num()}));
    Must(target_qp_->ToRts());
    Must(qp_->ToRts());
  }
  void Prepare(Opcode opcode, uint32_t length, size_t batch) override {
    batch_.Prepare(opcode, length, batch, reinterpret_cast<uint64_t>(local().data()), local_mr_->lkey(),
                   reinterpret_cast<uint64_t>(remote().data()), remote_mr_->rkey());
  }
  void RunBatch() override {
    Must(qp_->PostSend(batch_.wrs, nullptr));
    for (size_t done = 0; done < batch_.wrs.size();) {
      const size_t got = cq_->Poll(batch_.out);
      batch_.MustHaveSucceeded(got);
      done += got;
    }
  }
  std::span<std::byte> local() override { return local_->bytes(); }
  std::span<std::byte> remote() override { return remote_->bytes(); }

 private:
  std::unique_ptr<rnic::Device> target_, initiator_;
  std::unique_ptr<rnic::Memory> remote_, local_;
  std::unique_ptr<rnic::Pd> target_pd_, pd_;
  std::unique_ptr<rnic::Mr> remote_mr_, local_mr_;
  std::unique_ptr<rnic::Cq> target_cq_, cq_;
  std::unique_ptr<rnic::Qp> target_qp_, qp_;
  Batch<rnic::SendWr> batch_;
};

class Virtual final : public Transport {
 public:
  Virtual(const std::string& fabric, NodeId id, bool rc)
      : target_(Must(Node::Open({.fabric = fabric, .node = id, .create_fabric = true, .rc_peers = rc ? 1u : 0}))),
        remote_(Must(target_->CreateRegion({.length = kMemory, .remote_rights = kRights}))) {
    Must(target_->HostMetaServer(64));
    Must(target_->Publish(Deadline::Never()));
    node_ = Must(Node::Open({.fabric = fabric, .node = id + 1}));
    local_ = Must(node_->CreateRegion({.length = kMemory}));
    pool_ = Must(node_->CreateQueuePool({.max_rc_queues = rc ? 1u : 0, .rc_hot_wrs = UINT32_MAX}));
    queue_ = Must(pool_->CreateQueue(2 * kMaxBatch));
    Must(queue_->Connect(id, Deadline::Never()));
    if (rc && !MoveToRc(*target_, *pool_)) Must(Status(StatusCode::kUnavailable, "no RC connection"));
  }
  void Prepare(Opcode opcode, uint32_t length, size_t batch) override {
    const RemoteRegion& region = queue_->regions()[0];
    batch_.Prepare(opcode, length, batch, reinterpret_cast<uint64_t>(local().data()), local_->lkey(), region.addr,
                   region.rkey);
  }
  void RunBatch() override {
    Must(queue_->Push(batch_.wrs));
    for (size_t done = 0; done < batch_.wrs.size();) {
      pool_->Poll();
      const size_t got = queue_->Pop(batch_.out);
      batch_.MustHaveSucceeded(got);
      done += got;
    }
  }
  std::span<std::byte> local() override { return local_->bytes(); }
  std::span<std::byte> remote() override { return remote_->bytes(); }

 private:
  std::unique_ptr<Node> target_;
  std::unique_ptr<Region> remote_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Region> local_;
  std::unique_ptr<QueuePool> pool_;
  std::unique_ptr<VirtualQueue> queue_;
  Batch<WorkRequest> batch_;
};

Row Measure(const Options& options, Transport& transport, const std::string& name, Opcode opcode, uint32_t length,
            size_t batch, uint64_t* seed) {
  Row row = {{"transport", name}, {"op", opcode == Opcode::kRead ? "READ" : "WRITE"}, {"bytes", length}};
  const bool read = opcode == Opcode::kRead;
  const std::span<std::byte> from = (read ? transport.remote() : transport.local()).first(length * batch);
  const std::span<std::byte> to = (read ? transport.local() : transport.remote()).first(length * batch);
  Fill(from, ++*seed);
  std::fill(to.begin(), to.end(), std::byte{0});
  transport.Prepare(opcode, length, batch);
  RunSlice(options, batch, row, [&] { transport.RunBatch(); });
  MustMatch(to, *seed);
  row["verified_bytes"] = to.size();
  return row;
}

}  // namespace

void OneSided(const Options& options) {
  BareRc bare(options.fabric, 1);
  Virtual dc(options.fabric, 3, false);
  Virtual rc(options.fabric, 5, true);
  const std::pair<const char*, Transport*> transports[] = {{"bare RC", &bare}, {"krcore DC", &dc}, {"krcore RC", &rc}};
  uint64_t seed = options.seed;
  std::vector<Configuration> configurations;
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite}) {
    for (const uint32_t length : {8u, 64u, 512u, 4096u, 32768u, 262144u, 1048576u}) {
      for (const size_t batch : {1, 16, 32}) {
        for (const auto& [name, transport] : transports) {
          configurations.emplace_back([=, transport = transport, name = name, &options, &seed] {
            return Measure(options, *transport, name, opcode, length, batch, &seed);
          });
        }
      }
    }
  }
  RunInterleaved(options, configurations);
}

}  // namespace reproduce
