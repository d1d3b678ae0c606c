// What a verb does at its target, and why it may be refused.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "krcore/rnic/sim/device.h"
#include "krcore/rnic/sim/engine.h"
#include "krcore/rnic/sim/qp.h"

namespace krcore::rnic::sim {
namespace {

// Copies a part of a READ's or WRITE's words: each aligned word of the remote side belongs to one of up to four steps,
// drawn from a seed, so that nothing has to be remembered between steps.
struct WordStep {
  uint64_t seed = 0;
  uint8_t steps = 1;
  uint8_t step = 0;  // 0 to steps - 1
};

constexpr size_t kWordsPerGroup = 64;  // the words whose steps are drawn together

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns the words of a group that belong to the step, as bits. Each word draws two bits; values beyond the last step
// belong to the last one.
uint64_t WordsOf(const WordStep& part, uint64_t group) {
  const uint64_t low = Mix(part.seed ^ (2 * group)), high = Mix(part.seed ^ (2 * group + 1));
  switch (part.steps) {
    case 2: return part.step == 0 ? low : ~low;
    case 3: return part.step == 0 ? ~high & ~low : part.step == 1 ? ~high & low : high;
    default: return (part.step & 1 ? low : ~low) & (part.step & 2 ? high : ~high);
  }
}

// `remote` decides where words begin, whether it is the source or the destination.
void CopyWords(std::byte* to, const std::byte* from, size_t length, uint64_t remote, const WordStep& part) {
  if (part.steps == 1) {
    std::memcpy(to, from, length);
    return;
  }
  // Word w covers [begin(w), begin(w + 1)); the first and last may be shorter than 8 bytes.
  const size_t first = 8 - (remote & 7);
  const auto begin = [&](size_t word) { return word == 0 ? 0 : std::min(length, first + 8 * (word - 1)); };
  const size_t words = length <= first ? 1 : 1 + (length - first + 7) / 8;
  for (size_t group = 0; group * kWordsPerGroup < words; ++group) {
    const size_t base = group * kWordsPerGroup;
    uint64_t mask = WordsOf(part, group);
    if (words - base < kWordsPerGroup) mask &= (uint64_t{1} << (words - base)) - 1;
    for (; mask != 0; mask &= mask - 1) {
      const size_t word = base + static_cast<size_t>(std::countr_zero(mask));
      const size_t at = begin(word), bytes = begin(word + 1) - at;
      if (bytes == 8) {
        std::memcpy(to + at, from + at, 8);
      } else {
        std::memcpy(to + at, from + at, bytes);
      }
    }
  }
}

constexpr size_t kAtomicWords = 1024;  // the model: a NIC remembers the last atomic of this many words, by hash

std::byte* Pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

WcStatus Engine::CheckLocal(const Verb& verb) const {
  const SendQueue& queue = *verb.queue;
  if (verb.length > (queue.type == QpType::kUd ? kUdMtuBytes : kMaxMessageBytes)) return WcStatus::kLocalLengthError;
  if (verb.owns_payload) return WcStatus::kSuccess;
  const bool written = verb.IsRead() || verb.IsAtomic();
  for (const Sge& sge : verb.sges()) {
    if (!LocalRange(*queue.device, queue.pd, sge, written)) return WcStatus::kLocalProtectionError;
  }
  return WcStatus::kSuccess;
}

WcStatus Engine::FindTarget(const Verb& verb, QpEntry** entry) const {
  const SendQueue& queue = *verb.queue;
  DeviceState& target = *verb.target;
  if (target.life != Life::kAlive || IsCutOff(verb)) return WcStatus::kRetryExceeded;
  *entry = target.qps.Find(verb.remote_qpn);
  if (*entry == nullptr || !(*entry)->Serves()) return WcStatus::kRetryExceeded;
  switch (queue.type) {
    case QpType::kRc:
      if ((*entry)->type != EntryType::kRc || (*entry)->peer_incarnation != queue.device->incarnation ||
          (*entry)->peer_number != queue.number)
        return WcStatus::kRetryExceeded;
      break;
    case QpType::kDci:
      if ((*entry)->type != EntryType::kDct) return WcStatus::kRetryExceeded;
      if ((*entry)->dc_key != verb.dc_key) return WcStatus::kRemoteAccessError;
      break;
    case QpType::kUd:
      if ((*entry)->type != EntryType::kUd || (*entry)->qkey != verb.qkey) return WcStatus::kRetryExceeded;
      break;
  }
  return WcStatus::kSuccess;
}

WcStatus Engine::FindRemote(const Verb& verb, const QpEntry& entry, const MrEntry** mr) const {
  *mr = nullptr;
  if (verb.opcode == Opcode::kSend || verb.opcode == Opcode::kSendImm) return WcStatus::kSuccess;
  if (verb.length == 0) return WcStatus::kSuccess;  // as in verbs, a transfer of nothing needs no key
  const uint32_t need = verb.IsRead() ? kRemoteRead : verb.IsAtomic() ? kRemoteAtomic : kRemoteWrite;
  const MrEntry* found = verb.target->mrs.Find(verb.rkey);
  if (found == nullptr || found->pd != entry.pd || (found->rights & entry.rights & need) == 0)
    return WcStatus::kRemoteAccessError;
  const uint64_t offset = verb.remote_addr - found->base;
  if (offset > found->length || verb.length > found->length - offset) return WcStatus::kRemoteAccessError;
  *mr = found;
  return WcStatus::kSuccess;
}

// Returns when the target's NIC starts on this verb, whose turn it is.
int64_t Engine::ReserveTarget(const Verb& verb) {
  DeviceState& target = *verb.target;
  int64_t at_ns = std::max(now_ns_, target.serve_free_ns);
  if (verb.IsAtomic()) {
    if (const MrEntry* mr = target.mrs.Find(verb.rkey); mr != nullptr) {
      if (target.word_free.empty()) target.word_free.resize(kAtomicWords, 0);
      const uint64_t word = (verb.remote_addr - mr->base) / 8 * 0x9e3779b97f4a7c15 + mr->key;
      int64_t& free_ns = target.word_free[(word >> 32) % kAtomicWords];
      const int64_t executes_ns = std::max(at_ns, free_ns);
      free_ns = executes_ns + cost_.atomic_gap_ns;
      target.serve_free_ns = at_ns + cost_.verb_gap_ns;  // other verbs need not wait for the word
      return executes_ns;
    }
  }
  target.serve_free_ns = at_ns + cost_.verb_gap_ns + TransferNs(verb.length);
  return at_ns;
}

bool Engine::Begin(Verb& verb) {
  verb.running = true;
  const int64_t at_ns = ReserveTarget(verb);
  if (at_ns <= now_ns_) return Execute(verb);
  Schedule(verb, at_ns, EventKind::kExecute);
  return false;
}

bool Engine::Execute(Verb& verb) {
  if (verb.fate == Fate::kRequestLost) {
    Finish(verb, WcStatus::kRetryExceeded);
    return true;
  }
  DeviceState& own = *verb.queue->device;
  verb.acts = own.verbs_to_act != 0 && --own.verbs_to_act == 0;
  if (own.acts_before) Act(verb);
  const bool tearable = verb.length > 8 && !verb.IsMessage() && !verb.IsAtomic();
  verb.step = 0;
  verb.steps = 1;
  if (tearable && Chance(ChaosOf(verb).tear)) {
    ++stats_.torn;
    verb.steps = static_cast<uint8_t>(2 + random_() % 3);
    verb.tear_seed = random_();
    // The words are copied one by one, so the bytes must be in one piece. A READ collects them in its payload.
    if (!verb.owns_payload && verb.num_sge != 1) {
      if (verb.IsRead()) {
        verb.payload.resize(verb.length);
      } else {
        const auto bytes = Gathered(verb);
        verb.payload.assign(bytes.begin(), bytes.end());
        verb.owns_payload = true;
      }
    }
  }
  return ExecuteStep(verb);
}

// Each step looks everything up again, because it may have gone since the last step.
bool Engine::ExecuteStep(Verb& verb) {
  QpEntry* entry = nullptr;
  const MrEntry* mr = nullptr;
  WcStatus status = FindTarget(verb, &entry);
  if (status == WcStatus::kSuccess) status = FindRemote(verb, *entry, &mr);
  // A process that is dead, or has been told that the verb failed, no longer has the buffers.
  const bool buffers = !verb.completed;
  if (status == WcStatus::kSuccess && buffers) status = CheckLocal(verb);
  if (status != WcStatus::kSuccess) {
    Trace(verb, mr, 0);
    Act(verb);
    Finish(verb, verb.queue->type == QpType::kUd ? WcStatus::kSuccess : status);
    return true;
  }
  const WordStep part{verb.tear_seed, verb.steps, verb.step};
  uint64_t word = 0;
  switch (verb.opcode) {
    case Opcode::kRead: {
      if (!buffers || mr == nullptr) break;
      const std::byte* from = Pointer(verb.remote_addr);
      if (verb.num_sge == 1) {
        CopyWords(Pointer(verb.sges()[0].addr), from, verb.length, verb.remote_addr, part);
        break;
      }
      if (part.steps != 1) {
        CopyWords(verb.payload.data(), from, verb.length, verb.remote_addr, part);
        if (part.step + 1 != part.steps) break;
        from = verb.payload.data();
      }
      for (const Sge& sge : verb.sges()) {
        if (sge.length != 0) std::memcpy(Pointer(sge.addr), from, sge.length);
        from += sge.length;
      }
      break;
    }
    case Opcode::kWrite:
      if (mr != nullptr)
        CopyWords(Pointer(verb.remote_addr), Gathered(verb).data(), verb.length, verb.remote_addr, part);
      break;
    case Opcode::kCompareSwap:
    case Opcode::kFetchAdd: {
      std::memcpy(&word, Pointer(verb.remote_addr), 8);
      const uint64_t after = verb.opcode == Opcode::kFetchAdd ? word + verb.compare_add
                             : word == verb.compare_add       ? verb.swap
                                                              : word;
      std::memcpy(Pointer(verb.remote_addr), &after, 8);
      if (buffers) std::memcpy(Pointer(verb.sges()[0].addr), &word, 8);
      break;
    }
    default: status = SendMessage(verb, *entry, mr); break;
  }
  Trace(verb, mr, word);
  if (verb.step + 1 < verb.steps) {
    ++verb.step;
    const Chaos& chaos = ChaosOf(verb);
    const bool late = Chance(chaos.delay) && chaos.max_delay_ns > 0;
    Schedule(verb, now_ns_ + LogUniform(late ? chaos.max_delay_ns : 2 * cost_.one_way_ns), EventKind::kStep);
    return false;
  }
  Act(verb);
  Finish(verb, status);
  return true;
}

void Engine::Act(Verb& verb) {
  if (!std::exchange(verb.acts, false)) return;
  const std::function<void()> action = std::move(verb.queue->device->action);
  action();
}

bool Engine::IsCutOff(const Verb& verb) const {
  return std::max(verb.target->cut_off_until_ns, verb.queue->device->cut_off_until_ns) > now_ns_;
}

WcStatus Engine::SendMessage(Verb& verb, QpEntry& entry, const MrEntry* mr) {
  const bool datagram = verb.queue->type == QpType::kUd;
  if (entry.receiver == nullptr || entry.receiver->empty())
    return datagram ? WcStatus::kSuccess : WcStatus::kRnrRetryExceeded;
  const std::span<const std::byte> bytes = Gathered(verb);
  Message message{{.opcode = verb.opcode,
                   .length = verb.length,
                   .imm = verb.imm,
                   .src_qp = verb.queue->number,
                   .src_node = verb.queue->device->node},
                  {}};
  if (verb.opcode == Opcode::kWriteImm) {
    if (mr != nullptr) std::memcpy(Pointer(verb.remote_addr), bytes.data(), bytes.size());
  } else {
    message.bytes = bytes;
  }
  bool broken = false;
  SimQp* const qp = entry.qp;
  const WcStatus status = entry.receiver->Deliver(message, &broken);
  if (broken && qp != nullptr) qp->ReceiveFailed();
  return datagram ? WcStatus::kSuccess : status;
}

std::span<const std::byte> Engine::Gathered(const Verb& verb) {
  if (verb.owns_payload) return verb.payload;
  if (verb.num_sge == 1) return {Pointer(verb.sges()[0].addr), verb.length};
  scratch_.resize(verb.length);
  size_t at = 0;
  for (const Sge& sge : verb.sges()) {
    if (sge.length != 0) std::memcpy(&scratch_[at], Pointer(sge.addr), sge.length);
    at += sge.length;
  }
  return scratch_;
}

void Engine::Trace(const Verb& verb, const MrEntry* mr, uint64_t word) {
  const uint64_t offset = mr == nullptr ? 0 : verb.remote_addr - mr->base;
  const uint64_t what = uint64_t{verb.queue->device->node} << 40 ^ uint64_t { verb.target->node } << 16 ^
                        static_cast<uint64_t>(verb.opcode) << 8 ^ verb.step;
  for (const uint64_t part : {static_cast<uint64_t>(now_ns_), what, offset ^ uint64_t{verb.length} << 40, word}) {
    trace_hash_ = (trace_hash_ ^ part) * 0x9e3779b97f4a7c15;
    trace_hash_ ^= trace_hash_ >> 29;
  }
  if (trace_ == nullptr) return;
  std::fprintf(trace_, "%lld node %u -> %u %.*s mr %x +%llu %u B word %llx%s%s", static_cast<long long>(now_ns_),
               verb.queue->device->node, verb.target->node, static_cast<int>(OpcodeName(verb.opcode).size()),
               OpcodeName(verb.opcode).data(), verb.rkey, static_cast<unsigned long long>(offset), verb.length,
               static_cast<unsigned long long>(word), verb.completed ? " late" : "",
               verb.queue->owner == nullptr ? " zombie" : "");
  if (verb.steps > 1) std::fprintf(trace_, " part %u/%u", verb.step + 1U, verb.steps);
  std::fputc('\n', trace_);
}

}  // namespace krcore::rnic::sim
