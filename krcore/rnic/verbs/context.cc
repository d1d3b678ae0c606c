#include "krcore/rnic/verbs/context.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "krcore/base/descriptor.h"
#include "krcore/resources.h"

namespace krcore::rnic::verbs {
namespace {

constexpr uint8_t kMaxReadDepth = 16;

// A forked child's copies of a NIC's mapped queues would keep the NIC's context after the parent's death. Reads
// /proc/self/maps without allocating: between fork and exec nothing else is safe.
void UnmapNics() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  static char text[8192];
  size_t held = 0;
  for (;;) {
    const ssize_t got = read(fd, text + held, sizeof(text) - 1 - held);
    if (got <= 0) break;
    held += static_cast<size_t>(got);
    text[held] = 0;
    char* line = text;
    for (char* end = nullptr; (end = std::strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = 0;
      if (std::strstr(line, " /dev/infiniband/uverbs") == nullptr) continue;
      char* rest = nullptr;
      const auto begin = static_cast<uintptr_t>(std::strtoull(line, &rest, 16));
      const auto after = static_cast<uintptr_t>(std::strtoull(rest + 1, nullptr, 16));
      munmap(reinterpret_cast<void*>(begin), after - begin);
    }
    held = static_cast<size_t>(text + held - line);
    std::memmove(text, line, held);
    if (held == sizeof(text) - 1) held = 0;  // no line is that long
  }
  close(fd);
}

}  // namespace

Result<std::unique_ptr<Context>> Context::Open(const PortChoice& choice, int floor) {
  // Without this a child, or the parent by writing while there is one, would take registered pages away from the NIC.
  // It keeps them out of children, with whatever else lies on them. A kernel that copies them for children (from 5.12
  // on) needs none of that, though libibverbs would do it there as well.
  if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED) {
    if (const int error = ibv_fork_init(); error != 0) return FailedCall(error, "prepare libibverbs for fork");
  }
  RunInForkedChildren(UnmapNics);
  auto stop = NewEvent();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<Context> context;
  {
    // A child that is forked between open and guard would keep the context, and what is posted on it later.
    ForksHeld forks;
    HoldStandard();
    auto port = OpenPort(choice);
    if (!port.ok()) return port.status();
    int duplicate = -1;
    if (port->context->cmd_fd <= floor) {
      duplicate = fcntl(port->context->cmd_fd, F_DUPFD_CLOEXEC, floor + 1);
      if (duplicate < 0) return Status::FromErrno(errno, "cannot duplicate the NIC's descriptor");
      forks.Guard(duplicate);
    }
    for (const int fd : {port->context->cmd_fd, port->context->async_fd}) forks.Guard(fd);
    context.reset(new Context(*std::move(port), *std::move(stop), duplicate));
  }
  auto thread = StartThread("events of the NIC", [self = context.get()] { self->Run(); });
  if (!thread.ok()) return thread.status();
  context->thread_ = *std::move(thread);
  return context;
}

Context::Context(Port port, Socket stop, int duplicate)
    : port_(std::move(port)), stop_(std::move(stop)), duplicate_(duplicate) {
  const int events = get()->async_fd;
  fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);
}

Context::~Context() {
  SetEvent(stop_);
  if (thread_.joinable()) thread_.join();
  if (duplicate_ >= 0) UnguardAndClose(duplicate_, generation_);
  ForksHeld forks;
  for (const int fd : {get()->cmd_fd, get()->async_fd}) forks.Unguard(fd);
  port_.context.reset();
}

PortAddress Context::address() const {
  PortAddress address;
  std::memcpy(address.gid, port_.gid.raw, sizeof(address.gid));
  address.lid = port_.attr.lid;
  address.mtu = static_cast<uint8_t>(port_.attr.active_mtu);
  const int depth = std::min(port_.device.max_qp_rd_atom, port_.device.max_qp_init_rd_atom);
  address.read_depth = static_cast<uint8_t>(std::clamp<int>(depth, 1, kMaxReadDepth));
  return address;
}

int Context::highest_descriptor() const { return std::max(get()->cmd_fd, duplicate_); }

void Context::Run() {
  for (;;) {
    pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {get()->async_fd, POLLIN, 0}};
    poll(polled, std::size(polled), -1);
    if (polled[0].revents != 0) return;
    // The device was taken from the system: there will be no event, and no wait for one.
    if ((polled[1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      port_active_ = false;
      poll(polled, 1, -1);
      return;
    }
    ibv_async_event event{};
    while (ibv_get_async_event(get(), &event) == 0) {
      Handle(event);
      ibv_ack_async_event(&event);  // a queue is not destroyed before its events were acknowledged
    }
  }
}

void Context::Handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      // Null: a queue whose owner looks at its completions only.
      if (auto* const owner = static_cast<QueueEvents*>(event.element.qp->qp_context); owner != nullptr)
        owner->fatal.store(true, std::memory_order_release);
      break;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == port_.number) port_active_ = true;
      break;
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == port_.number) port_active_ = false;
      break;
    case IBV_EVENT_DEVICE_FATAL: port_active_ = false; break;
    default: break;
  }
}

}  // namespace krcore::rnic::verbs
