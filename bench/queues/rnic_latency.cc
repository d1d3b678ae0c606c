#include "bench/queues/rnic_latency.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <vector>

#include "bench/common/timed_worker.h"
#include "bench/reproduce/child.h"
#include "krcore/rnic.h"

namespace rnic_latency {
namespace {

using namespace krcore;
using reproduce::Child;
using reproduce::SayNumbers;
using timed::Must;

constexpr uint32_t kRights = kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic;
constexpr NodeId kQueueTarget = 1, kBareTarget = 2;  // a store may have node 1, so the second is another
constexpr uint32_t kWarmUp = 100;
constexpr uint32_t kDepth = 16;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr Port kPort = 7;
constexpr size_t kReceived = kMostBytes;  // offset in the memory at which what arrives is put
constexpr size_t kMemoryBytes = 2 * kReceived;

void Fail(const std::string& what) { Must(Status(StatusCode::kInternal, what)); }
void Check(WcStatus status) {
  if (status != WcStatus::kSuccess) Fail("a request ended with: " + std::string(WcStatusName(status)));
}
// Looks at the clock now and then, since that costs more than a poll that finds nothing.
class Patience {
 public:
  void Poll() {
    if (++polls_ % 1024 != 0) return;
    if (end_ns_ == 0) end_ns_ = Now() + kPatienceNs;
    if (Now() > end_ns_) Fail("no answer within 20 s");
  }

 private:
  uint32_t polls_ = 0;
  int64_t end_ns_ = 0;
};

// The next line of the parent, as numbers; none: the parent has gone.
std::vector<int64_t> Hear() {
  std::string line;
  std::getline(std::cin, line);
  return reproduce::NumbersOf(line);
}

// One end of a path. `Do` is at the initiator: one request, over when it has succeeded. `Send` and `Receive`: a message
// from one end to the other.
class End {
 public:
  virtual ~End() = default;
  virtual void Do(Opcode opcode, uint32_t bytes) = 0;
  virtual void Send(uint32_t bytes) = 0;
  virtual void Receive() = 0;
};

void Answer(End& end, uint32_t messages, uint32_t bytes) {
  for (uint32_t i = 0; i < messages; ++i) {
    end.Receive();
    end.Send(bytes);
  }
}

// ---- a bare RC QP

class BareEnd final : public End {
 public:
  BareEnd(const Options& options, NodeId node) {
    device_ = Must(rnic::OpenDevice({.provider = options.fabric.rnic,
                                     .fabric = options.fabric.fabric,
                                     .node = node,
                                     .create_fabric = node == kBareTarget,
                                     .address = options.fabric.fabric_address,
                                     .port = options.fabric.rnic_port}));
    pd_ = Must(device_->CreatePd());
    cq_ = Must(device_->CreateCq(2 * kDepth));
    memory_ = Must(device_->AllocMemory(kMemoryBytes, {}));
    mr_ = Must(pd_->RegisterMemory(memory_->bytes().data(), kMemoryBytes, kRights));
    qp_ = Must(pd_->CreateQp({.send_cq = cq_.get(),
                              .recv_cq = cq_.get(),
                              .sq_depth = kDepth,
                              .rq_depth = kDepth,
                              .max_recv_bytes = kMostBytes}));
    inline_bytes_ = device_->caps().max_inline_bytes;
  }
  // What the other end needs to know.
  std::vector<int64_t> Card() const {
    std::vector<int64_t> card(sizeof(rnic::DeviceAddress) / sizeof(int64_t));
    std::memcpy(card.data(), &device_->address(), sizeof(rnic::DeviceAddress));
    card.insert(card.end(), {qp_->num(), reinterpret_cast<int64_t>(memory_->bytes().data()), mr_->rkey()});
    return card;
  }
  void Connect(const std::vector<int64_t>& card) {
    if (card.size() != Card().size()) Fail("the process at the other end said nothing");
    rnic::QpPeer peer;
    std::memcpy(static_cast<void*>(&peer.device), card.data(), sizeof(peer.device));
    peer.qpn = static_cast<uint32_t>(card[4]);
    remote_addr_ = static_cast<uint64_t>(card[5]);
    rkey_ = static_cast<uint32_t>(card[6]);
    Must(qp_->ToInit(kRights & ~kLocalWrite, 0));
    for (uint32_t i = 0; i < kDepth; ++i) PostReceive();
    Must(qp_->ToRtr(peer));
    Must(qp_->ToRts());
  }

  void Do(Opcode opcode, uint32_t bytes) override {
    Post(opcode, bytes, 0);
    Check(Next().status);
  }
  void Send(uint32_t bytes) override { Post(Opcode::kSend, bytes, bytes <= inline_bytes_ ? kInline : 0); }
  void Receive() override {
    Completion done = Next();  // of the last send, too
    while (done.status == WcStatus::kSuccess && done.opcode != Opcode::kRecv) done = Next();
    Check(done.status);
    PostReceive();
  }

 private:
  void Post(Opcode opcode, uint32_t bytes, uint8_t flags) {
    const Sge sge{reinterpret_cast<uint64_t>(memory_->bytes().data()), bytes, mr_->lkey()};
    rnic::SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.flags = static_cast<uint8_t>(kSignaled | flags);
    wr.remote_addr = remote_addr_;
    wr.rkey = rkey_;
    Must(qp_->PostSend({&wr, 1}, nullptr));
  }
  void PostReceive() {
    const Sge sge{reinterpret_cast<uint64_t>(memory_->bytes().data()) + kReceived, kMostBytes, mr_->lkey()};
    const rnic::RecvWr wr{0, &sge, 1};
    Must(qp_->PostRecv({&wr, 1}, nullptr));
  }
  Completion Next() {
    Completion done;
    for (Patience patience; cq_->Poll({&done, 1}) == 0;) patience.Poll();
    return done;
  }

  std::unique_ptr<rnic::Device> device_;
  std::unique_ptr<rnic::Pd> pd_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Memory> memory_;
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Qp> qp_;
  uint32_t inline_bytes_ = 0;
  uint64_t remote_addr_ = 0;
  uint32_t rkey_ = 0;
};

// ---- a VirtualQueue

class QueueEnd final : public End {
 public:
  // `messages`: the end receives messages, too, and so looks for them at every poll.
  QueueEnd(const Options& options, NodeId id, bool messages) : messages_(messages) {
    NodeOptions open = options.fabric;
    open.node = id;
    open.create_fabric = id == kQueueTarget;
    open.rc_peers = 1;
    node_ = Must(Node::Open(open));
    if (id == kQueueTarget) Must(node_->HostMetaServer(16));
    region_ = Must(node_->CreateRegion({.length = kMemoryBytes, .remote_rights = kRights & ~kLocalWrite}));
    Must(node_->Publish(Soon()));
    pool_ = Must(node_->CreateQueuePool({.copy_bytes = kMostBytes, .rc_hot_wrs = 1}));
    queue_ = Must(pool_->CreateQueue(kDepth));
    if (!messages_) return;
    Must(queue_->Bind(kPort, {.senders = 1, .copy_bytes = kMostBytes}, Soon()));
    for (uint32_t i = 0; i < kDepth; ++i) PostReceive();
  }
  // Connects to the other end and moves on to an RC queue, while the other end is in ReceiveAccepting.
  void Connect(NodeId peer) {
    Must(messages_ ? queue_->Connect(peer, kPort, Soon()) : queue_->Connect(peer, Soon()));
    for (const RemoteRegion& region : queue_->regions()) {
      if (region.length == kMemoryBytes) remote_ = region;
    }
    const Deadline deadline = Soon();
    while (pool_->stats().rc_connects == 0) {
      // Many at once: heat counts what is posted in a period, and a single READ that waits for the other end's CPU may
      // not be enough.
      for (uint32_t i = 0; i < kDepth; ++i) Post(Opcode::kRead, 8);
      Settle();
      if (deadline.Passed(*RealClock())) Fail("no RC connection within 20 s");
    }
  }
  // Sends the first message, where this end is not for messages.
  void Greet(NodeId peer) {
    auto queue = Must(pool_->CreateQueue(1));
    Must(queue->Connect(peer, kPort, Soon()));
    WorkRequest wr;
    wr.opcode = Opcode::kSend;
    wr.flags = kSignaled;
    Must(queue->Push({&wr, 1}));
    Completion done;
    for (Patience patience; queue->Pop({&done, 1}) == 0;) {
      pool_->Poll();
      patience.Poll();
    }
    Check(done.status);
  }
  // Receives the first message, whose sender connects first. Returns the sender.
  NodeId ReceiveAccepting() {
    Receive([this] { node_->PollConnections(); });
    return sender_;
  }

  void Do(Opcode opcode, uint32_t bytes) override {
    Post(opcode, bytes);
    Settle();
  }
  void Send(uint32_t bytes) override {
    for (Patience patience; queue_->credits() == 0;) {
      pool_->Poll();
      patience.Poll();
    }
    Post(Opcode::kSend, bytes);
  }
  void Receive() override {
    Receive([] {});
  }
  // Until all that was posted is complete.
  void Settle() {
    for (Patience patience; queue_->outstanding() > 0;) {
      pool_->Poll();
      patience.Poll();
    }
    const size_t count = queue_->Pop(done_);
    for (size_t i = 0; i < count; ++i) Check(done_[i].status);
  }

 private:
  // `between_polls` is called at every poll.
  template <typename Function>
  void Receive(Function between_polls) {
    Message message;
    for (Patience patience; queue_->PopMessages({&message, 1}) == 0;) {
      pool_->Poll();
      between_polls();
      patience.Poll();
    }
    Check(message.status);
    sender_ = message.sender.node;
    PostReceive();
    Settle();
  }
  void Post(Opcode opcode, uint32_t bytes) {
    const Sge sge{reinterpret_cast<uint64_t>(region_->bytes().data()), bytes, region_->lkey()};
    WorkRequest wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.remote_addr = remote_.addr;
    wr.rkey = remote_.rkey;
    Must(queue_->Push({&wr, 1}));
  }
  void PostReceive() {
    const krcore::Receive receive{
        0, {reinterpret_cast<uint64_t>(region_->bytes().data()) + kReceived, kMostBytes, region_->lkey()}};
    Must(queue_->PushRecv({&receive, 1}));
  }

  std::unique_ptr<Node> node_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<QueuePool> pool_;
  std::unique_ptr<VirtualQueue> queue_;
  const bool messages_;
  std::array<Completion, kDepth> done_;
  RemoteRegion remote_ = {};
  NodeId sender_ = kNoNode;
};

// ---- measuring

timed::Samples Time(const Options& options, End& end) {
  const bool send = options.operation == "send";
  const Opcode opcode = options.operation == "cas" ? Opcode::kCompareSwap : Opcode::kRead;
  timed::Samples ns;
  ns.reserve(options.requests);
  int64_t last = 0;
  for (uint32_t i = 0; i < kWarmUp + options.requests; ++i) {
    if (i == kWarmUp) last = Now();
    if (send) {
      end.Send(options.bytes);
      end.Receive();
    } else {
      end.Do(opcode, options.bytes);
    }
    if (i < kWarmUp) continue;
    const int64_t now = Now();
    ns.push_back((now - last) / (send ? 2 : 1));
    last = now;
  }
  return ns;
}

std::unique_ptr<BareEnd> ConnectBare(const Options& options, Child& target) {
  const std::vector<int64_t> card = target.HearNumbers();  // first: the target makes the fabric
  auto end = std::make_unique<BareEnd>(options, kNoNode);
  end->Connect(card);
  std::string mine;
  for (const int64_t number : end->Card()) mine += std::to_string(number) + " ";
  target.Say(mine);
  target.HearNumbers();
  return end;
}

timed::Samples TimeQueue(const Options& options, Child& target) {
  target.HearNumbers();
  const bool send = options.operation == "send";
  QueueEnd end(options, kNoNode, send);
  end.Connect(kQueueTarget);
  if (send) {
    end.Send(options.bytes);
    end.ReceiveAccepting();
  } else {
    end.Greet(kQueueTarget);
  }
  return Time(options, end);
}

timed::Samples TimeBare(const Options& options, Child& target) {
  const auto end = ConnectBare(options, target);
  return Time(options, *end);
}

}  // namespace

Deadline Soon() { return Deadline::After(*RealClock(), kPatienceNs); }

void Print(const Options& options, timed::Samples& ns, const std::string& more) {
  const auto us = [&](double percent) { return static_cast<double>(timed::Percentile(ns, percent)) / 1e3; };
  std::printf("rnic=%s path=%s operation=%s bytes=%u requests=%zu min_us=%.2f median_us=%.2f p99_us=%.2f%s\n",
              options.fabric.rnic.c_str(), options.path.c_str(), options.operation.c_str(), options.bytes, ns.size(),
              us(0), us(50), us(99), more.c_str());
  std::fflush(stdout);
}

class BareReader::Impl {
 public:
  explicit Impl(const Options& options) : target(StartTarget(options)), end(ConnectBare(options, target)) {}
  Child target;
  std::unique_ptr<BareEnd> end;
};

BareReader::BareReader(Options options) {
  options.path = "rc";
  options.operation = "read";
  impl_ = std::make_unique<Impl>(options);
}
BareReader::~BareReader() {
  impl_->end.reset();
  impl_->target.Reap();
}
void BareReader::Read(uint32_t bytes) { impl_->end->Do(Opcode::kRead, bytes); }

void RunTarget(const Options& options) {
  const bool send = options.operation == "send";
  const uint32_t messages = kWarmUp + options.requests;
  if (options.path == "rc") {
    BareEnd end(options, kBareTarget);
    SayNumbers(stdout, end.Card());
    end.Connect(Hear());
    SayNumbers(stdout, {});
    if (send) Answer(end, messages, options.bytes);
    Hear();
    return;
  }
  QueueEnd end(options, kQueueTarget, true);
  SayNumbers(stdout, {});
  const NodeId initiator = end.ReceiveAccepting();
  if (send) {
    end.Connect(initiator);
    end.Send(options.bytes);
    Answer(end, messages, options.bytes);
    end.Settle();
  }
  Hear();
}

Child StartTarget(const Options& options) {
  return Child::Exec({"--target", "--rnic=" + options.fabric.rnic, "--fabric=" + options.fabric.fabric,
                      "--fabric_address=" + options.fabric.fabric_address, "--rnic_port=" + options.fabric.rnic_port,
                      "--path=" + options.path, "--operation=" + options.operation,
                      "--bytes=" + std::to_string(options.bytes), "--requests=" + std::to_string(options.requests)});
}

void Measure(const Options& options) {
  Child target = StartTarget(options);
  timed::Samples ns = options.path == "rc" ? TimeBare(options, target) : TimeQueue(options, target);
  target.Reap();
  Print(options, ns);
}

}  // namespace rnic_latency
