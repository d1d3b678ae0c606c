#include "krcore/rnic/verbs/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "krcore/base/descriptor.h"
#include "krcore/clock.h"
#include "krcore/resources.h"
#include "krcore/rnic/verbs/sdc_limits.h"
#include "krcore/rnic/verbs/software_dct.h"

namespace krcore::rnic::verbs {
namespace {

constexpr int kRepairMs = 100;

}  // namespace

Result<std::unique_ptr<Agent>> Agent::Start(Context* context) {
  auto stop = NewEvent();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<Agent> agent;
  {
    // A child that is forked between open and guard would keep the NIC's events.
    ForksHeld forks;
    HoldStandard();
    ibv_comp_channel* const channel = ibv_create_comp_channel(context->get());
    if (channel == nullptr) return FailedCall(errno, "create a completion channel");
    forks.Guard(channel->fd);
    agent.reset(new Agent(channel, *std::move(stop)));
  }
  auto thread = StartThread("agent of DC in software", [self = agent.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  agent->thread_ = *std::move(thread);
  return agent;
}

Agent::Agent(ibv_comp_channel* channel, Socket stop) : channel_(channel), stop_(std::move(stop)) {
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
}

Agent::~Agent() {
  SetEvent(stop_);
  if (thread_.joinable()) thread_.join();
  ForksHeld forks;
  forks.Unguard(channel_->fd);
  ibv_destroy_comp_channel(channel_);
}

void Agent::Add(SoftwareDct* dct) {
  const std::lock_guard lock(mutex_);
  dcts_.push_back(dct);
  dct->Arm();  // the agent may be asleep, and learns of it by an event
}

void Agent::Remove(SoftwareDct* dct) {
  const std::lock_guard lock(mutex_);
  std::erase(dcts_, dct);
}

bool Agent::ServeAll() {
  const std::shared_lock lock(mutex_);
  bool any = false;
  broken_ = false;
  for (SoftwareDct* const dct : dcts_) {
    any = dct->Serve() || any;
    broken_ = broken_ || dct->broken();
  }
  return any;
}

void Agent::ArmAll() {
  const std::shared_lock lock(mutex_);
  for (SoftwareDct* const dct : dcts_) dct->Arm();
}

// An event says no more than that something may have come.
void Agent::Sleep() {
  pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {channel_->fd, POLLIN, 0}};
  poll(polled, std::size(polled), broken_ ? kRepairMs : -1);
  // The device was taken from the system: there will be no event, and no wait for one.
  if ((polled[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) poll(polled, 1, -1);
  stopped_ = polled[0].revents != 0;
  // A CQ is not destroyed while one of its events is taken and not acknowledged.
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  while (ibv_get_cq_event(channel_, &cq, &unused) == 0) ibv_ack_cq_events(cq, 1);
}

void Agent::Run() {
  while (!stopped_) {
    if (ServeAll()) continue;
    ArmAll();
    if (!ServeAll()) Sleep();  // what came before it was armed is told by no event
  }
}

void Agent::AwaitAtomics(const Regions* regions) {
  std::vector<std::pair<const SoftwareDct*, uint64_t>> awaited;
  {
    const std::shared_lock lock(mutex_);
    for (const SoftwareDct* const dct : dcts_)
      if (dct->regions() == regions) awaited.emplace_back(dct, dct->atomics().posted());
  }
  const Deadline deadline = Deadline::After(*RealClock(), static_cast<int64_t>(kSdcTiming.grace_ns));
  for (uint32_t spins = 0; !awaited.empty() && !deadline.Passed(*RealClock()); ++spins) {
    {
      // Not while waiting: the agent could not go on if somebody wanted the list for himself.
      const std::shared_lock lock(mutex_);
      std::erase_if(awaited, [&](const auto& entry) {
        const bool present = std::find(dcts_.begin(), dcts_.end(), entry.first) != dcts_.end();
        return !present || entry.first->atomics().done() >= entry.second;
      });
    }
    if (!awaited.empty()) RealClock()->Relax(spins);
  }
}

int64_t Agent::CpuNs() const {
  clockid_t clock{};
  timespec used{};
  // pthread_getcpuclockid takes the handle by value, and the thread lives as long as the agent.
  if (pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock) != 0) return 0;
  clock_gettime(clock, &used);
  return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

Result<Agent*> AgentSlot::Get(Context* context) {
  const std::lock_guard lock(mutex_);
  if (agent_ == nullptr) {
    auto started = Agent::Start(context);
    if (!started.ok()) return started.status();
    agent_ = *std::move(started);
  }
  return agent_.get();
}

}  // namespace krcore::rnic::verbs
