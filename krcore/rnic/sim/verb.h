// Verb: one posted WR on its way, and the pool of verbs, which makes allocation unnecessary in the steady state.
#ifndef KRCORE_RNIC_SIM_VERB_H_
#define KRCORE_RNIC_SIM_VERB_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/rnic.h"

namespace krcore::rnic::sim {

class SendQueue;
class SimQp;
struct DeviceState;

using VerbId = uint32_t;
inline constexpr VerbId kNoVerb = ~VerbId{0};

// What happens to a verb that breaks its queue.
enum class Fate : uint8_t {
  kNormal,
  kAnswerLost,   // it executes, but the initiator never learns that
  kRequestLost,  // neither it nor the verbs that follow it to that peer execute
  kLate,         // it fails first and executes afterwards, unless the QP is reset before
};

inline constexpr size_t kFewSges = 4;

struct Verb {
  VerbId id = kNoVerb;
  uint32_t generation = 0;

  // ---- the request
  uint64_t wr_id;
  uint64_t remote_addr;
  uint64_t compare_add, swap;
  uint64_t dc_key;
  uint32_t rkey;
  uint32_t imm;
  uint32_t remote_qpn;
  uint32_t qkey;
  uint32_t length;
  Opcode opcode;
  uint8_t flags;
  uint8_t num_sge;
  std::array<Sge, kFewSges> few_sges;
  std::vector<Sge> many_sges;
  std::vector<std::byte> payload;  // if owns_payload: inline, or fetched before the buffer was given back

  // ---- its place
  SendQueue* queue;
  DeviceState* target;
  uint64_t position;     // in its queue, from 1
  uint64_t fence_after;  // kFence: the position that must have completed first
  uint32_t flow;
  uint32_t others_before;  // READ: WRITEs, SENDs and atomics of its flow before it
  VerbId next_in_queue, next_in_flow;

  // ---- its progress
  int64_t due_ns;       // events of its execution before this time are void
  int64_t response_ns;  // valid once answered
  int64_t response_delay_ns;
  uint64_t tear_seed;
  WcStatus status;
  Fate fate;
  bool owns_payload;
  bool acts;               // something is planned for when it executes
  bool launched;           // on the wire: in its flow's list until it is done
  bool arrived;            // its turn comes when earlier verbs are done
  bool running;            // waits for the target's NIC, or is half done
  bool done;               // executed, refused or dropped
  bool answered;           // response_ns is known
  bool response_expected;  // by an event
  bool responded;
  bool completed;  // the initiator has been told and has the buffers back
  uint8_t steps, step;

  bool IsRead() const { return opcode == Opcode::kRead; }
  bool IsAtomic() const { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
  bool IsMessage() const {
    return opcode == Opcode::kSend || opcode == Opcode::kSendImm || opcode == Opcode::kWriteImm;
  }
  std::span<const Sge> sges() const {
    return {num_sge <= kFewSges ? few_sges.data() : many_sges.data(), size_t{num_sge}};
  }
  std::span<Sge> sges() { return {num_sge <= kFewSges ? few_sges.data() : many_sges.data(), size_t{num_sge}}; }
};

// A list of verbs through one of their links.
template <VerbId Verb::*kNext>
struct VerbList {
  VerbId head = kNoVerb, tail = kNoVerb;
  bool empty() const { return head == kNoVerb; }
};

class VerbPool {
 public:
  Verb& operator[](VerbId id) { return chunks_[id / kChunk][id % kChunk]; }

  // Returns a verb whose vectors keep their capacity; everything else must be assigned.
  Verb& Take() {
    if (free_.empty()) Grow();
    Verb& verb = (*this)[free_.back()];
    free_.pop_back();
    return verb;
  }
  void Give(Verb& verb) {
    ++verb.generation;
    if (verb.payload.capacity() > kKeepBytes) std::vector<std::byte>().swap(verb.payload);
    free_.push_back(verb.id);
  }

  template <VerbId Verb::*kNext>
  void Append(VerbList<kNext>* list, Verb& verb) {
    verb.*kNext = kNoVerb;
    if (list->head == kNoVerb) {
      list->head = verb.id;
    } else {
      (*this)[list->tail].*kNext = verb.id;
    }
    list->tail = verb.id;
  }
  template <VerbId Verb::*kNext>
  Verb& PopFront(VerbList<kNext>* list) {
    Verb& verb = (*this)[list->head];
    list->head = verb.*kNext;
    if (list->head == kNoVerb) list->tail = kNoVerb;
    return verb;
  }

 private:
  static constexpr size_t kChunk = 64;
  static constexpr size_t kKeepBytes = 64 << 10;
  void Grow() {
    const auto first = static_cast<VerbId>(chunks_.size() * kChunk);
    chunks_.push_back(std::make_unique<Verb[]>(kChunk));
    for (VerbId i = kChunk; i-- > 0;) {
      chunks_.back()[i].id = first + i;
      free_.push_back(first + i);
    }
  }
  std::vector<std::unique_ptr<Verb[]>> chunks_;
  std::vector<VerbId> free_;
};

// SendQueue: the verbs of one Qp that are in flight, in two orders: posting order, in which they complete, and one
// order for each peer (flow), in which they execute. It outlives its Qp if the process that owns it is killed.

// What one SendQueue has in flight to one peer. Each list is executed from its head only. A READ waits for every
// earlier verb of the flow, the others wait only for each other: there is no other order.
struct Flow {
  DeviceState* target = nullptr;
  VerbList<&Verb::next_in_flow> reads, others;
  uint32_t others_sent = 0, others_done = 0;
  uint64_t stopped_after = UINT64_MAX;  // position of a verb that failed or was lost: nothing after it executes
};

class SendQueue {
 public:
  SendQueue(DeviceState* owning_device, SimQp* told, QpType qp_type, uint32_t qp_number, uint32_t pd_number)
      : device(owning_device), owner(told), type(qp_type), number(qp_number), pd(pd_number) {}

  uint32_t FlowTo(DeviceState* target) {
    for (uint32_t i = 0; i < flows.size(); ++i) {
      if (flows[i].target == target) return i;
    }
    flows.push_back({.target = target});
    return static_cast<uint32_t>(flows.size() - 1);
  }

  DeviceState* const device;
  SimQp* owner;  // is told the results; null: its process is dead
  const QpType type;
  const uint32_t number, pd;
  // RC: the connected Qp.
  DeviceState* peer = nullptr;
  uint32_t peer_number = 0;

  VerbList<&Verb::next_in_queue> posted;  // not completed yet
  VerbId waiting = kNoVerb;               // the first of these that has not left: a fence holds it back
  uint64_t completed = 0;                 // position of the last that completed
  uint64_t last_fenceable = 0;            // position of the last READ or atomic
  bool failed_locally = false;            // nothing leaves any more
  bool answer_missed = false;             // a verb was answered before earlier ones
  std::vector<Flow> flows;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_VERB_H_
