#include "memnode/requests.h"

#include <glog/logging.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/stop_signal.h"
#include "krcore/clock.h"
#include "kvs/client.h"

namespace memnode {
namespace {

constexpr int64_t kProgressNs = 1'000'000'000;
constexpr int64_t kDrainMs = int64_t{365} * 24 * 3600 * 1000;  // a year: until somebody stops it

const char* WhatNow(const kvs::DrainReport& report) {
  if (report.mirrored) return report.closed ? "The memory nodes go on with it, until you run --undrain." : "";
  return report.closed ? "Clients take no more memory on it. Run --drain again to go on, or --undrain to use it again."
                       : "Clients may still take memory on it, so it may be in use as before.";
}

struct Attached {
  std::unique_ptr<kvs::Store> store;
  std::unique_ptr<kvs::Client> client;  // closed before the store
};

krcore::Result<std::unique_ptr<kvs::Store>> OpenStore(const Options& options) {
  kvs::StoreOptions open{.control_plane = options.control_plane, .open_timeout_ms = options.wait_ms};
  cli::SetFabric(&open);
  return kvs::Store::Open(open);
}

krcore::Result<Attached> Attach(const Options& options) {
  Attached attached;
  auto store = OpenStore(options);
  if (!store.ok()) return store.status();
  attached.store = std::move(*store);
  auto client = attached.store->NewClient({.max_in_flight = 4, .address_cache_entries = 0});
  if (!client.ok()) return client.status();
  attached.client = std::move(*client);
  return attached;
}

kvs::Task<void> RunDrain(kvs::Client& client, krcore::NodeId node, kvs::DrainReport* report, krcore::Status* status) {
  *status = co_await client.DrainNodeAsync(node, {.timeout_ms = kDrainMs}, report);
}

void Print(const char* what, const Options& options, const kvs::DrainReport& report) {
  if (report.mirrored) {
    std::printf("%s fabric=%s node=%u pool=%u\n", what, options.fabric.c_str(), options.drain, report.pool);
    std::fflush(stdout);
    if (report.waits) {
      LOG_FIRST_N(WARNING, 1) << "no memory node can take its place: start one, with as much --memory at least";
    }
    return;
  }
  std::printf(
      "%s fabric=%s node=%u chunks_left=%llu tables_left=%llu tables_moved=%llu blocks_moved=%llu "
      "bytes_moved=%llu\n",
      what, options.fabric.c_str(), options.drain, static_cast<unsigned long long>(report.chunks_left),
      static_cast<unsigned long long>(report.tables_left), static_cast<unsigned long long>(report.tables_moved),
      static_cast<unsigned long long>(report.blocks_moved), static_cast<unsigned long long>(report.bytes_moved));
  std::fflush(stdout);
}

}  // namespace

int Drain(const Options& options) {
  if (const krcore::Status status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  auto attached = Attach(options);
  if (!attached.ok()) return cli::FailToOpen(attached.status());
  kvs::Client& client = *attached->client;
  krcore::Clock& clock = *krcore::RealClock();
  kvs::DrainReport report;
  krcore::Status status;
  client.Spawn(RunDrain(client, options.drain, &report, &status));
  int64_t print_at_ns = clock.NowNs() + kProgressNs;
  for (uint32_t idle = 0; client.spawned() > 0;) {
    if (client.Poll() != 0) {
      idle = 0;
    } else {
      clock.Relax(++idle);
    }
    if (cli::StopSignal::Requested()) {
      attached->client.reset();  // ends the drain
      return cli::Fail({krcore::StatusCode::kUnavailable,
                        "the drain of memory node " + std::to_string(options.drain) + " was stopped by a signal"},
                       WhatNow(report));
    }
    if (clock.NowNs() < print_at_ns) continue;
    print_at_ns += kProgressNs;
    Print("draining", options, report);
  }
  if (status.ok()) {
    Print("drained", options, report);
    return 0;
  }
  switch (status.code()) {
    case krcore::StatusCode::kOutOfMemory:
      return cli::Fail(
          status, "The memory node is in use again, and nothing is lost. Start another memory node, or larger ones.");
    case krcore::StatusCode::kUnavailable: return cli::Fail(status, report.mirrored ? "" : WhatNow(report));
    default: return cli::Fail(status);
  }
}

int Undrain(const Options& options) {
  auto attached = Attach(options);
  if (!attached.ok()) return cli::FailToOpen(attached.status());
  const krcore::Status status = attached->client->UndrainNode(options.undrain);
  if (!status.ok()) {
    const bool stopped = status == krcore::StatusCode::kUnavailable;
    return cli::Fail(status, stopped ? "If the memory node was stopped, just start it: then it is in use again." : "");
  }
  std::printf("undrained fabric=%s node=%u\n", options.fabric.c_str(), options.undrain);
  return 0;
}

int SetReplicas(const Options& options) {
  const auto store = OpenStore(options);
  if (!store.ok()) return cli::FailToOpen(store.status());
  const krcore::Status status = (*store)->SetReplicas(options.set_replicas);
  if (!status.ok()) return cli::Fail(status);
  std::printf("set fabric=%s replicas=%u\n", options.fabric.c_str(), options.set_replicas);
  return 0;
}

}  // namespace memnode
