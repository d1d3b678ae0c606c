// The C interface over the C++ classes. It decides nothing itself.
#include "krcore/krcore.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "krcore/capi/errors.h"
#include "krcore/clock.h"
#include "krcore/message.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/status.h"
#include "krcore/virtual_queue.h"

using krcore::Deadline;
using krcore::StatusCode;
using krcore::capi::Fail;
using krcore::capi::Guarded;
using krcore::capi::Missing;
using krcore::capi::Report;

struct krcore_node {
  std::unique_ptr<krcore::Node> node;
};
struct krcore_mr {
  std::unique_ptr<krcore::Region> region;
  uint32_t access;
};
struct krcore_pool {
  std::unique_ptr<krcore::QueuePool> pool;
};
struct krcore_queue {
  std::unique_ptr<krcore::VirtualQueue> queue;
  krcore::Clock* clock;
};

namespace {

// The structs of the hot path are passed through as they are.
static_assert(sizeof(krcore_sge) == sizeof(krcore::Sge) && offsetof(krcore_sge, lkey) == offsetof(krcore::Sge, lkey));
static_assert(sizeof(krcore_wr) == 56 && sizeof(krcore::WorkRequest) == 56);
#define KRCORE_SAME_FIELD(field) static_assert(offsetof(krcore_wr, field) == offsetof(krcore::WorkRequest, field))
KRCORE_SAME_FIELD(wr_id);
KRCORE_SAME_FIELD(sg_list);
KRCORE_SAME_FIELD(num_sge);
KRCORE_SAME_FIELD(opcode);
KRCORE_SAME_FIELD(flags);
KRCORE_SAME_FIELD(imm);
KRCORE_SAME_FIELD(remote_addr);
KRCORE_SAME_FIELD(rkey);
KRCORE_SAME_FIELD(compare_add);
KRCORE_SAME_FIELD(swap);
#undef KRCORE_SAME_FIELD
static_assert(sizeof(krcore_recv) == sizeof(krcore::Receive));
static_assert(sizeof(krcore_region) == sizeof(krcore::RemoteRegion));
static_assert(sizeof(krcore_sender) == sizeof(krcore::Sender) &&
              offsetof(krcore_sender, port) == offsetof(krcore::Sender, port) &&
              offsetof(krcore_sender, route) == offsetof(krcore::Sender, route));
static_assert(sizeof(krcore_completion) == 16 && sizeof(krcore_message) == 136);
static_assert(-KRCORE_EINTERNAL == static_cast<int>(StatusCode::kInternal) &&
              -KRCORE_EQUEUEFULL == static_cast<int>(StatusCode::kQueueFull) &&
              -KRCORE_EUNKNOWN == static_cast<int>(StatusCode::kUnknown));
static_assert(KRCORE_FETCH_ADD == static_cast<int>(krcore::Opcode::kFetchAdd) &&
              KRCORE_RECV_WITH_IMM == static_cast<int>(krcore::Opcode::kRecvWithImm));
static_assert(KRCORE_WC_GENERAL_ERROR == static_cast<int>(krcore::WcStatus::kGeneralError) &&
              KRCORE_WC_RETRY_EXCEEDED == static_cast<int>(krcore::WcStatus::kRetryExceeded));
static_assert(int{KRCORE_SOLICITED} == int{krcore::kSolicited} && int{KRCORE_INLINE} == int{krcore::kInline});
static_assert(uint32_t{KRCORE_REMOTE_ATOMIC} == uint32_t{krcore::kRemoteAtomic} &&
              uint32_t{KRCORE_REMOTE_READ} == uint32_t{krcore::kRemoteRead});

Deadline After(krcore::Clock& clock, int64_t timeout_ns) {
  return timeout_ns < 0 ? Deadline::Never() : Deadline::After(clock, timeout_ns);
}

}  // namespace

extern "C" {

const char* krcore_strerror(int error) { return krcore::capi::NameOf(error); }
const char* krcore_wc_strerror(uint8_t wc_status) {
  return krcore::WcStatusName(static_cast<krcore::WcStatus>(wc_status)).data();
}
const char* krcore_last_error(void) { return krcore::capi::last_error.c_str(); }

// ---- node

int krcore_open(const struct krcore_node_options* options, krcore_node_t** node) {
  if (options == nullptr || node == nullptr) return Missing("options or node");
  *node = nullptr;
  return Guarded([&] {
    krcore::NodeOptions node_options;
    if (options->rnic != nullptr) node_options.rnic = options->rnic;
    if (options->fabric != nullptr) node_options.fabric = options->fabric;
    if (options->fabric_address != nullptr) node_options.fabric_address = options->fabric_address;
    if (options->rnic_port != nullptr) node_options.rnic_port = options->rnic_port;
    node_options.node = options->node;
    node_options.create_fabric = options->create_fabric != 0;
    auto opened = krcore::Node::Open(node_options);
    if (!opened.ok()) return Fail(opened.status());
    *node = new krcore_node_t{*std::move(opened)};
    return int{KRCORE_OK};
  });
}
void krcore_close(krcore_node_t* node) { delete node; }
uint32_t krcore_node_id(const krcore_node_t* node) { return node->node->id(); }
int krcore_host_meta(krcore_node_t* node, uint32_t capacity) {
  return Guarded([&] { return Report(node->node->HostMetaServer(capacity)); });
}
int krcore_publish(krcore_node_t* node, int64_t timeout_ns) {
  return Guarded([&] { return Report(node->node->Publish(After(node->node->clock(), timeout_ns))); });
}

// ---- memory

int krcore_qreg_mr(krcore_node_t* node, void* addr, uint64_t length, uint32_t access, krcore_mr_t** mr) {
  if (node == nullptr || mr == nullptr) return Missing("node or mr");
  *mr = nullptr;
  return Guarded([&] {
    if (addr != nullptr && access != 0)
      return Fail({StatusCode::kUnsupported, "peers can reach only memory that krcore allocates (addr NULL)"});
    auto region = addr != nullptr ? node->node->RegisterLocal(addr, length)
                                  : node->node->CreateRegion({.length = length, .remote_rights = access});
    if (!region.ok()) return Fail(region.status());
    *mr = new krcore_mr_t{*std::move(region), access};
    return int{KRCORE_OK};
  });
}
void krcore_qdereg_mr(krcore_mr_t* mr) { delete mr; }
void krcore_mr_info(const krcore_mr_t* mr, struct krcore_mr_info* info) {
  const std::span<std::byte> bytes = mr->region->bytes();
  *info = {bytes.data(), bytes.size(), mr->region->lkey(), mr->access != 0 ? mr->region->rkey() : 0};
}

// ---- queues

int krcore_pool_open(krcore_node_t* node, const struct krcore_pool_options* options, krcore_pool_t** pool) {
  if (node == nullptr || pool == nullptr) return Missing("node or pool");
  *pool = nullptr;
  return Guarded([&] {
    krcore::QueuePoolOptions pool_options;
    if (options != nullptr) {
      if (options->dc_initiators != 0) pool_options.dc_initiators = options->dc_initiators;
      if (options->sq_depth != 0) pool_options.sq_depth = options->sq_depth;
      if (options->copy_bytes != 0) pool_options.copy_bytes = options->copy_bytes;
    }
    auto made = node->node->CreateQueuePool(pool_options);
    if (!made.ok()) return Fail(made.status());
    *pool = new krcore_pool_t{*std::move(made)};
    return int{KRCORE_OK};
  });
}
void krcore_pool_close(krcore_pool_t* pool) { delete pool; }
size_t krcore_qpoll(krcore_pool_t* pool) { return pool->pool->Poll(); }

int krcore_queue(krcore_pool_t* pool, uint32_t depth, krcore_queue_t** queue) {
  if (pool == nullptr || queue == nullptr) return Missing("pool or queue");
  *queue = nullptr;
  return Guarded([&] {
    auto made = pool->pool->CreateQueue(depth);
    if (!made.ok()) return Fail(made.status());
    *queue = new krcore_queue_t{*std::move(made), &pool->pool->node().clock()};
    return int{KRCORE_OK};
  });
}
void krcore_qclose(krcore_queue_t* queue) { delete queue; }

int krcore_qconnect(krcore_queue_t* queue, uint32_t peer, uint16_t port, int64_t timeout_ns) {
  return Guarded([&] {
    const Deadline deadline = After(*queue->clock, timeout_ns);
    return Report(port == KRCORE_NO_PORT ? queue->queue->Connect(peer, deadline)
                                         : queue->queue->Connect(peer, port, deadline));
  });
}
int krcore_qconnect_sender(krcore_queue_t* queue, const struct krcore_sender* sender, int64_t timeout_ns) {
  if (sender == nullptr) return Missing("sender");
  return Guarded([&] {
    krcore::Sender to;
    std::memcpy(static_cast<void*>(&to), sender, sizeof(to));
    return Report(queue->queue->Connect(to, After(*queue->clock, timeout_ns)));
  });
}
size_t krcore_qregions(const krcore_queue_t* queue, struct krcore_region* regions, size_t count) {
  const std::span<const krcore::RemoteRegion> all = queue->queue->regions();
  for (size_t i = 0; i < std::min(count, all.size()); ++i)
    regions[i] = {all[i].addr, all[i].length, all[i].rkey, all[i].tag};
  return all.size();
}

int krcore_qpush(krcore_queue_t* queue, const struct krcore_wr* wrs, size_t count, size_t* bad_index) {
  if (wrs == nullptr && count != 0) return Missing("wrs");
  return Guarded([&] {
    // The layouts are the same, see above.
    const std::span<const krcore::WorkRequest> requests(reinterpret_cast<const krcore::WorkRequest*>(wrs), count);
    return Report(queue->queue->Push(requests, bad_index));
  });
}

size_t krcore_qpop(krcore_queue_t* queue, struct krcore_completion* completions, size_t count) {
  krcore::Completion popped[32];
  size_t total = 0;
  while (total < count) {
    const size_t got = queue->queue->Pop(std::span(popped).first(std::min(count - total, std::size(popped))));
    if (got == 0) break;
    for (size_t i = 0; i < got; ++i) {
      const krcore::Completion& from = popped[i];
      completions[total + i] = {
          from.wr_id,   static_cast<uint8_t>(from.status), static_cast<uint8_t>(from.opcode), from.flags, 0,
          from.byte_len};
    }
    total += got;
  }
  return total;
}

uint32_t krcore_qcredits(const krcore_queue_t* queue) { return queue->queue->credits(); }

int krcore_qbind(krcore_queue_t* queue, uint16_t port, const struct krcore_bind_options* options, int64_t timeout_ns) {
  return Guarded([&] {
    krcore::BindOptions bind;
    if (options != nullptr) {
      if (options->senders != 0) bind.senders = options->senders;
      if (options->slots != 0) bind.slots = options->slots;
      if (options->copy_bytes != 0) bind.copy_bytes = options->copy_bytes;
      if (options->receive_depth != 0) bind.receive_depth = options->receive_depth;
    }
    return Report(queue->queue->Bind(port, bind, After(*queue->clock, timeout_ns)));
  });
}
uint16_t krcore_qport(const krcore_queue_t* queue) { return queue->queue->port(); }

int krcore_qpush_recv(krcore_queue_t* queue, const struct krcore_recv* receives, size_t count, size_t* bad_index) {
  if (receives == nullptr && count != 0) return Missing("receives");
  return Guarded([&] {
    const std::span<const krcore::Receive> posted(reinterpret_cast<const krcore::Receive*>(receives), count);
    return Report(queue->queue->PushRecv(posted, bad_index));
  });
}

size_t krcore_qpop_msgs(krcore_queue_t* queue, struct krcore_message* messages, size_t count) {
  krcore::Message popped[8];
  size_t total = 0;
  while (total < count) {
    const size_t got = queue->queue->PopMessages(std::span(popped).first(std::min(count - total, std::size(popped))));
    if (got == 0) break;
    for (size_t i = 0; i < got; ++i) {
      const krcore::Message& from = popped[i];
      struct krcore_message& to = messages[total + i];
      to = {};
      to.wr_id = from.wr_id;
      to.status = static_cast<uint8_t>(from.status);
      to.opcode = static_cast<uint8_t>(from.opcode);
      to.flags = from.flags;
      to.zero_copy = from.zero_copy;
      to.byte_len = from.byte_len;
      to.imm = from.imm;
      std::memcpy(&to.sender, &from.sender, sizeof(to.sender));
    }
    total += got;
  }
  return total;
}

}  // extern "C"
