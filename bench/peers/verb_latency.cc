#include "bench/peers/verb_latency.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "bench/common/promote.h"
#include "bench/peers/stores/server_process.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace peers {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr int kReads = 500'000;

}  // namespace

Result<double> VirtualQueueReadNs() {
  static std::atomic<uint32_t> count = 0;
  const std::string fabric = "inproc:verb-latency-" + std::to_string(count.fetch_add(1));
  auto target = krcore::Node::Open({.fabric = fabric, .node = 1, .create_fabric = true, .rc_peers = 1});
  if (!target.ok()) return target.status();
  auto remote = (*target)->CreateRegion({.length = 4096, .remote_rights = krcore::kRemoteRead});
  if (!remote.ok()) return remote.status();
  KRCORE_RETURN_IF_ERROR((*target)->HostMetaServer(4));
  KRCORE_RETURN_IF_ERROR((*target)->Publish(krcore::Deadline::Never()));
  auto node = krcore::Node::Open({.fabric = fabric, .node = 2});
  if (!node.ok()) return node.status();
  auto local = (*node)->CreateRegion({.length = 4096});
  if (!local.ok()) return local.status();
  auto pool = (*node)->CreateQueuePool({.max_rc_queues = 1, .rc_hot_wrs = UINT32_MAX});
  if (!pool.ok()) return pool.status();
  auto queue = (*pool)->CreateQueue(16);
  if (!queue.ok()) return queue.status();
  KRCORE_RETURN_IF_ERROR((*queue)->Connect(1, krcore::Deadline::Never()));
  if (!MoveToRc(**target, **pool)) return Status(StatusCode::kUnavailable, "no RC queue");

  const krcore::Sge sge{reinterpret_cast<uint64_t>((*local)->bytes().data()), kVerbBytes, (*local)->lkey()};
  krcore::WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = krcore::Opcode::kRead;
  wr.flags = krcore::kSignaled;
  wr.remote_addr = (*queue)->regions()[0].addr;
  wr.rkey = (*queue)->regions()[0].rkey;
  std::array<krcore::Completion, 1> done;
  int64_t begin_ns = 0;
  for (int i = -kReads / 8; i < kReads; ++i) {
    if (i == 0) begin_ns = krcore::RealClock()->NowNs();
    KRCORE_RETURN_IF_ERROR((*queue)->Push({&wr, 1}));
    while ((*queue)->Pop(done) == 0) (*pool)->Poll();
    if (done[0].status != krcore::WcStatus::kSuccess) return Status(StatusCode::kUnavailable, "a READ failed");
  }
  return static_cast<double>(krcore::RealClock()->NowNs() - begin_ns) / kReads;
}

Result<double> UcxGetNs(bool uct) {
  const std::string program = FindProgram("ucx_perftest");
  if (program.empty()) return Status(StatusCode::kNotFound, "the program ucx_perftest is not installed");
  // In one process, as VirtualQueueReadNs. -f -v: the final numbers alone, as CSV: iterations, percentile, average
  // and overall latency in microseconds, ...
  const std::string test = uct ? " -t get -d memory -x posix -D bcopy" : " -t ucp_get";
  const std::string command = "UCX_TLS=posix UCX_LOG_LEVEL=fatal '" + program + "' -l -f -v -n 1000000 -s " +
                              std::to_string(kVerbBytes) + test + " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return Status::FromErrno(errno, "ucx_perftest");
  std::array<char, 512> line{};
  double ns = 0;
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    double percentile = 0, average = 0;
    if (std::sscanf(line.data(), "%*f,%lf,%lf", &percentile, &average) == 2) ns = average * 1000;
  }
  if (ns == 0) return Status(StatusCode::kUnavailable, "ucx_perftest does not run here");
  return ns;
}

}  // namespace peers
