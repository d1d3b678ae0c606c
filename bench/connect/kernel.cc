// The kernel module's part of bench_connect: the first queue of a process, which opens the device's node, and a further
// queue of that process; and the least that an open, a call and a READ take.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "bench/connect/bench_connect.h"
#include "krcore/kernel/kernel_queue.h"

namespace connect_bench {
namespace {

using kernel::KernelQueue;

constexpr uint32_t kDepth = 64, kReadBytes = 64;

struct Connected {
  Samples whole, open, connect;
  void Keep(int64_t open_ns, int64_t connect_ns) {
    whole.push_back(open_ns + connect_ns);
    open.push_back(open_ns);
    connect.push_back(connect_ns);
  }
  void Print(const std::string& name, int64_t verbs_ns) {
    Report(name, whole, verbs_ns);
    Report("  the queue", open);
    Report("  connect", connect);
  }
};

std::string DeviceName(const NodeOptions& fabric) { return fabric.rnic_port.substr(0, fabric.rnic_port.find(':')); }

// One request, from the call to its completion.
void Read(KernelQueue& queue, const krc_request& request) {
  Must(queue.Push({&request, 1}));
  krc_completion done;
  while (queue.Pop({&done, 1}) == 0) {
  }
  if (done.status != KRC_SUCCESS) Must(Status(StatusCode::kInternal, "a READ failed"));
}

}  // namespace

KernelPeer::KernelPeer(const NodeOptions& fabric) {
  NodeOptions options = fabric;
  options.node = Peer::kId;
  node_ = Must(OpenNode("kernel", options));
  region_ = Must(node_->CreateRegion({.length = 1 << 16, .remote_rights = kRemoteRead | kRemoteWrite}));
  Must(node_->Publish(Deadline::Never()));
}

void ConnectByTheModule(const NodeOptions& fabric) {
  KernelQueue queue;
  (void)Must(queue.Start(DeviceName(fabric), kDepth, fabric.fabric, kNoNode, Peer::kId));
}

void KernelConnects(const NodeOptions& fabric, int64_t verbs_ns, int samples) {
  KernelPeer peer(fabric);
  const std::string device = DeviceName(fabric);
  KernelQueue own;  // what a process has already
  Must(own.Open());
  Must(own.Attach(device, kDepth));
  Must(own.Join(fabric.fabric, kNoNode));
  std::vector<std::byte> buffer(kWorkerBytes);
  const uint32_t key = Must(own.Register(buffer.data(), buffer.size(), KRC_LOCAL_WRITE));

  Connected cached, looked_up;
  Samples process_cached, process_looked_up, first, bare_read, bare_open, bare_call;
  for (int i = 0; i < samples; ++i) {
    Must(own.Connect(Peer::kId));  // looks up, and what is known then is believed for a second
    for (const bool forget : {false, true}) {
      if (forget) Must(peer.node().Publish(Deadline::Never()));  // the host forgets what it knew
      const int64_t begin = Now();
      KernelQueue queue;
      const krc_connect to = Must(queue.Start(device, kDepth, fabric.fabric, kNoNode, Peer::kId));
      (to.cached != 0 ? process_cached : process_looked_up).push_back(Now() - begin);
    }
    for (const bool forget : {false, true}) {
      if (forget) Must(peer.node().Publish(Deadline::Never()));
      const int64_t begin = Now();
      KernelQueue queue;
      Must(queue.OpenLike(own, kDepth));
      const int64_t opened = Now();
      const krc_connect to = Must(queue.Connect(Peer::kId));
      const int64_t connected = Now();
      (to.cached != 0 ? cached : looked_up).Keep(opened - begin, connected - opened);
      krc_request request = {};
      request.opcode = KRC_OP_READ;
      request.flags = KRC_SIGNALED;
      request.num_sge = 1;
      request.sges[0] = {reinterpret_cast<uint64_t>(buffer.data()), kReadBytes, key};
      request.rkey = to.regions[0].key;
      request.remote_addr = to.regions[0].addr;
      Time(first, [&] { Read(queue, request); });
      Time(bare_read, [&] { Read(queue, request); });
      Time(bare_call, [&] { (void)Must(queue.Query()); });
      const int64_t opens = Now();
      const int file = open(KRC_DEVICE_PATH, O_RDWR | O_CLOEXEC);
      bare_open.push_back(Now() - opens);
      if (file < 0) Must(Status::FromErrno(errno, KRC_DEVICE_PATH));
      close(file);
    }
  }
  Report("kernel, open and connect, cached", process_cached, verbs_ns, "goal: verbs / it >= 100");
  Report("kernel, open and connect, looked up", process_looked_up, verbs_ns, "goal: verbs / it >= 20");
  cached.Print("kernel, a further queue and connect, cached", verbs_ns);
  looked_up.Print("kernel, a further queue and connect, looked up", verbs_ns);
  Report("  (its first READ of 64 B, which maps the ring)", first);
  Report("  (a READ of 64 B)", bare_read);
  Report("  (a bare open)", bare_open);
  Report("  (a bare ioctl)", bare_call);
}

}  // namespace connect_bench
