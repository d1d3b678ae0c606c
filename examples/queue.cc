// krcore from C++: one node exposes memory; another connects a queue to it in a microsecond, and writes and reads
// one-sided. Both are in this process; the fabric "inproc:..." is private to it. Real nodes are processes that name the
// same fabric.
#include <krcore/node.h>
#include <krcore/queue_pool.h>
#include <krcore/virtual_queue.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>

int main() {
  constexpr int64_t kSecond = 1'000'000'000;
  krcore::Clock& clock = *krcore::RealClock();

  // A memory node. Every node of the fabric finds what it publishes.
  auto memory_node = krcore::Node::Open({.fabric = "inproc:example", .node = 1, .create_fabric = true}).value();
  auto exposed =
      memory_node->CreateRegion({.length = 4096, .remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite}).value();
  krcore::Status status = memory_node->HostMetaServer(16);
  if (status.ok()) status = memory_node->Publish(krcore::Deadline::After(clock, 5 * kSecond));

  // A worker: a node, a pool for its thread, a queue, memory of its own.
  auto node = krcore::Node::Open({.fabric = "inproc:example"}).value();
  auto pool = node->CreateQueuePool({}).value();
  auto queue = pool->CreateQueue(64).value();
  if (status.ok()) status = queue->Connect(1, krcore::Deadline::After(clock, 5 * kSecond));
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::array<char, 64> sent = {"written one-sided"}, received = {};
  auto from = node->RegisterLocal(sent.data(), sent.size()).value();
  auto to = node->RegisterLocal(received.data(), received.size()).value();

  // A WRITE, and a READ of the same bytes. A READ does not overtake what was pushed before it.
  const krcore::RemoteRegion& remote = queue->regions()[0];
  const std::array<krcore::Sge, 2> sges = {
      {{reinterpret_cast<uint64_t>(sent.data()), sent.size(), from->lkey()},
       {reinterpret_cast<uint64_t>(received.data()), received.size(), to->lkey()}}};
  const auto request = [&remote](uint64_t wr_id, krcore::Opcode opcode, const krcore::Sge& sge) {
    krcore::WorkRequest wr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.remote_addr = remote.addr;
    wr.rkey = remote.rkey;
    return wr;
  };
  const std::array requests = {request(1, krcore::Opcode::kWrite, sges[0]), request(2, krcore::Opcode::kRead, sges[1])};
  status = queue->Push(requests);
  bool good = status.ok();
  std::array<krcore::Completion, 2> completions;
  for (size_t done = 0; good && done < requests.size();) {
    const size_t popped = queue->Pop(completions);
    for (size_t i = 0; i < popped; ++i) good &= completions[i].status == krcore::WcStatus::kSuccess;
    done += popped;
    if (popped == 0) pool->Poll();
  }
  std::printf("the memory node has \"%s\"\n", received.data());
  return good && std::strcmp(received.data(), "written one-sided") == 0 ? 0 : 1;
}
