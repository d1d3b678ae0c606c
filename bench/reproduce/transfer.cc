// Figure "transfer": what a serverless function does. A fresh worker connects to a peer, WRITEs 1 KB to 1 MB to it, and
// ends; one at a time. It is a thread of a process that has its Node open (krcore, lite), a process forked from one
// that has nothing open, or a program executed afresh. The peer's process looks at what has arrived.
#include <iostream>
#include <numeric>
#include <thread>

#include "bench/reproduce/report.h"
#include "bench/reproduce/roles.h"

namespace reproduce {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

// The parts of a worker's life, in ns, as its process says them.
using Times = std::vector<int64_t>;
enum : size_t { kSpawn, kOpen, kDatagrams, kConnect, kTransfer, kTotal, kDoneAt, kParts };

// Total: from wanted until the last byte is at the peer, without making up the bytes, which is the function's own work.
Times LiveOnce(const std::string& plane, const std::string& fabric, Node* shared, uint64_t bytes, uint64_t seed,
               int64_t wanted_ns) {
  const auto now = timed::Now;
  timed::TimedWorker worker(plane, {.fabric = fabric}, shared, bytes);
  Fill(worker.region().bytes().first(bytes), seed);
  VirtualQueue& queue = worker.Connect(timed::Peer::kId);
  const int64_t connected = now();
  const Sge sge = SgeOf(worker.region(), 0, bytes);
  worker.Do(queue, RequestOn(queue.regions()[0], 0, Opcode::kWrite, sge));
  const int64_t done = now();
  Times times = {worker.begun_ns() - wanted_ns, worker.open_ns(), worker.datagrams_ns(), worker.connect_ns().front(),
                 done - connected};
  times.push_back(std::accumulate(times.begin(), times.end(), int64_t{0}));
  times.push_back(done);
  return times;
}

// The times of a worker that is a process, and how long its end took.
std::pair<Times, int64_t> LiveInProcess(const Options& options, const std::string& plane, bool exec, uint64_t bytes,
                                        uint64_t seed) {
  const int64_t wanted = timed::Now();
  Child worker = exec ? StartRole({.name = "transfer",
                                   .fabric = options.fabric,
                                   .plane = plane,
                                   .bytes = bytes,
                                   .seed = seed,
                                   .wanted_ns = wanted})
                      : Child::Fork([&](std::FILE* answer) {
                          SayNumbers(answer, LiveOnce(plane, options.fabric, nullptr, bytes, seed, wanted));
                        });
  Times times = worker.HearNumbers();
  worker.Reap();
  const int64_t gone = timed::Now();
  if (times.size() != kParts) Must(Status(StatusCode::kInternal, "a worker said something else"));
  const int64_t end = gone - times[kDoneAt];
  return {std::move(times), end};
}

struct Lives {
  Samples parts[kDoneAt], end;

  void Add(const Times& times, int64_t took) {
    for (size_t part = 0; part < kDoneAt; ++part) parts[part].push_back(times.at(part));
    end.push_back(took);
  }
  void PutInto(Row& row) {
    row["samples"] = end.size();
    constexpr const char* kNames[kDoneAt] = {"spawn_us",   "open_us",     "datagrams_us",
                                             "connect_us", "transfer_us", "total_us"};
    for (size_t part = 0; part < kDoneAt; ++part) AddSpread(row, kNames[part], parts[part]);
    AddSpread(row, "end_us", end);
  }
};

// `live`: one life of a worker with this seed.
template <typename Live>
Row Measure(const Options& options, PeerProcess& peer, const std::string& plane, const std::string& kind,
            uint64_t bytes, uint64_t* seed, Live live) {
  Row row = {{"control_plane", plane}, {"worker_kind", kind}, {"bytes", bytes}};
  Lives lives;
  const int samples = options.quick ? 5 : 20;
  for (int i = -1; i < samples; ++i) {  // the first warms up
    const auto [times, end] = live(++*seed);
    if (!peer.Holds(bytes, *seed)) Must(Status(StatusCode::kCorrupt, "other bytes arrived than were sent"));
    if (i >= 0) lives.Add(times, end);
  }
  lives.PutInto(row);
  row["verified_bytes"] = static_cast<uint64_t>(samples) * bytes;
  return row;
}

Row MeasureThreads(const Options& options, PeerProcess& peer, const std::string& plane, uint64_t bytes,
                   uint64_t* seed) {
  Child host = StartRole({.name = "transfer-threads", .fabric = options.fabric, .plane = plane, .bytes = bytes});
  Row row = Measure(options, peer, plane, "thread", bytes, seed, [&](uint64_t worker_seed) {
    host.Say(std::to_string(worker_seed));
    Times times = host.HearNumbers();
    if (times.size() != kParts + 1) Must(Status(StatusCode::kInternal, "a worker said something else"));
    const int64_t end = times.back() - times[kDoneAt];
    return std::pair(std::move(times), end);
  });
  host.Reap();
  return row;
}

}  // namespace

void BeTransfer(const Role& role) {
  SayNumbers(stdout, LiveOnce(role.plane, role.fabric, nullptr, role.bytes, role.seed, role.wanted_ns));
}

void BeTransferThreads(const Role& role) {
  std::unique_ptr<Node> node;
  if (role.plane != "verbs") node = Must(OpenNode(role.plane, {.fabric = role.fabric}));
  for (std::string line; std::getline(std::cin, line);) {
    Times times;
    const int64_t wanted = timed::Now();
    std::thread worker(
        [&] { times = LiveOnce(role.plane, role.fabric, node.get(), role.bytes, std::stoull(line), wanted); });
    worker.join();
    times.push_back(timed::Now());
    SayNumbers(stdout, times);
  }
}

void Transfer(const Options& options) {
  PeerProcess peer(options.fabric, kMaxBytes, 0);
  uint64_t seed = options.seed;
  std::vector<Configuration> configurations;
  for (uint64_t bytes = 1 << 10; bytes <= kMaxBytes; bytes *= options.quick ? 32 : 4) {
    for (const std::string plane : kPlanes) {
      configurations.emplace_back(
          [=, &options, &peer, &seed] { return MeasureThreads(options, peer, plane, bytes, &seed); });
      for (const bool exec : {false, true}) {
        configurations.emplace_back([=, &options, &peer, &seed] {
          return Measure(options, peer, plane, exec ? "exec" : "fork", bytes, &seed,
                         [&](uint64_t worker_seed) { return LiveInProcess(options, plane, exec, bytes, worker_seed); });
        });
      }
    }
  }
  RunInterleaved(options, configurations);
  peer.End();
}

}  // namespace reproduce
