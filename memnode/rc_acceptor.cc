#include "memnode/rc_acceptor.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "krcore/clock.h"
#include "krcore/resources.h"

namespace memnode {
namespace {

// After a request more are likely: a client makes several connections in a row.
constexpr int64_t kAttentiveNs = 2'000'000;
// After that, a nap lasts a hundredth of the time since the last request, so a client that connects waits for hardly
// more than that; and a nap is no longer than this.
constexpr int64_t kMinNapNs = 50'000;
constexpr int64_t kMaxNapNs = 20'000'000;
constexpr int64_t kSweepNs = 1'000'000'000;
// On a busy machine, a thread that yields runs again sooner than one that has used up its share.
constexpr uint32_t kYieldingRelax = 1'000;  // Clock::Relax yields, and does not sleep

int64_t NapNs(int64_t since_request_ns) { return std::clamp(since_request_ns / 100, kMinNapNs, kMaxNapNs); }

}  // namespace

krcore::Result<std::unique_ptr<RcAcceptor>> RcAcceptor::Start(krcore::Node& node, RcAcceptorMode mode) {
  auto acceptor = krcore::Acceptor::Create(node);
  if (!acceptor.ok()) return acceptor.status();
  std::unique_ptr<RcAcceptor> made(new RcAcceptor(*std::move(acceptor), mode));
  auto thread = krcore::StartServiceThread("rc_acceptor", [self = made.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  made->thread_ = *std::move(thread);
  return made;
}

RcAcceptor::~RcAcceptor() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

int64_t RcAcceptor::cpu_ns() { return krcore::ThreadCpuNs(thread_.native_handle()); }

void RcAcceptor::Sweep() {
  (void)acceptor_->Renew();  // if that fails, the next call does it
  if (acceptor_->connections() == 0) return;
  const size_t dropped = acceptor_->Sweep();
  if (dropped == 0) return;
  LOG(INFO) << "RC connections: dropped " << dropped << " of clients that died; " << acceptor_->connections()
            << " are left";
}

void RcAcceptor::Run() {
  krcore::Clock& clock = *krcore::RealClock();
  int64_t request_ns = clock.NowNs();  // the last one
  int64_t sweep_at_ns = 0;
  uint32_t idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const size_t served = acceptor_->Serve();
    const int64_t now_ns = clock.NowNs();
    if (now_ns >= sweep_at_ns) {
      Sweep();
      sweep_at_ns = now_ns + kSweepNs;
    }
    connections_.store(acceptor_->connections(), std::memory_order_relaxed);
    if (served != 0) {
      requests_.fetch_add(served, std::memory_order_relaxed);
      request_ns = now_ns;
      idle = 0;
    } else if (mode_ == RcAcceptorMode::kSpin) {
      clock.Relax(std::min(++idle, kYieldingRelax));
    } else if (now_ns - request_ns < kAttentiveNs) {
      clock.Relax(++idle);
    } else {
      const timespec nap{0, static_cast<long>(NapNs(now_ns - request_ns))};
      nanosleep(&nap, nullptr);
    }
  }
}

}  // namespace memnode
