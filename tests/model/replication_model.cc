#include "tests/model/replication_model.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/model/replication_stepper.h"

namespace model {
namespace {

using M = ReplicationMutation;
constexpr uint8_t kInitialValue = 15;

std::string Show(uint8_t word) {
  if (word == ReplicationModel::kUncopied) return "uncopied";
  const std::string name = StateOf(word) == SlotState::kFree ? "free" : kSlotNames[static_cast<int>(StateOf(word))];
  return name + std::to_string(BlockOf(word));
}

}  // namespace

const char* Name(ReplicationMutation mutation) {
  static const char* const kNames[] = {
      "tail-first",
      "tail-before-middle",
      "read-head",
      "no-help",
      "hop-failure-is-loss",
      "help-backwards",
      "ins-at-head-only",
      "free-recurs-by-delete",
      "free-recurs-by-kill",
      "reuse-ins-block",
      "activate-at-once",
      "act-before-active",
      "report-before-active",
      "new-word-at-new-head",
      "unknown-is-lost",
      "expelled-read-returns",
      "quiet-posts",
      "quiet-with-verb",
      "ack-per-pool",
      "expelled-hop-counts",
      "promote-uncopied",
      "ignore-learner",
      "skip-uncopied",
      "learner-own-word",
      "learner-unseen-word",
      "sync-without-block",
      "help-without-block",
      "block-not-rewritten",
      "ack-midway",
      "promote-despite-loss",
      "promote-with-zombies",
      "sweep-ignores-head",
      "handover-reads-tail",
      "helped-not-rewritten",
      "sync-outlives-view",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

ReplicationModel::ReplicationModel(ReplicationConfig config) : config_(std::move(config)) {
  // Without these a word comes back, or passes a replica by. The monitor has to notice that.
  for (const M mutation :
       {M::kFreeRecursByDelete, M::kFreeRecursByKill, M::kInsAtHeadOnly, M::kTailFirst, M::kReuseInsBlock}) {
    checks_order_ &= !Mutated(mutation);
  }
  for (const ChainView& view : config_.views) handover_ |= view.handover;
}

ReplicationModel::State ReplicationModel::Initial() const {
  State state{.body = {}, .monitor = Monitor(config_.present ? kInitialValue : 0)};
  Body& body = state.body;
  for (size_t c = config_.programs.size(); c < kClients; ++c) {
    body.clients[c].step = static_cast<uint8_t>(ReplicationStep::kOver);
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    const bool has_key = slot == 0 && config_.present;
    const uint8_t word = MakeSlot(has_key ? SlotState::kVal : SlotState::kFree, kFirstId + slot);
    for (int r = 0; r < kMaxReplicas; ++r) {
      if (config_.views[0].Has(r)) body.words[r][slot] = word;
    }
    body.history[slot][body.length[slot]++] = word;
  }
  body.holders[kFirstId] = BlockView(0).Members();
  return state;
}

void ReplicationModel::Hash(const State& state, Hasher* hasher) const {
  hasher->AddBytes(state.body);
  state.monitor.Hash(hasher);
}

uint8_t ReplicationModel::ValueOfBlock(int block) const {
  if (block >= kFirstId) return kInitialValue;
  const int operation = block / kAttempts;
  return config_.programs[operation / kOperations][operation % kOperations].value;
}

// What the replica, alone, would answer.
uint8_t ReplicationModel::ValueAt(const Body& body, int replica) const {
  for (const uint8_t word : body.words[replica]) {
    if (StateOf(word) == SlotState::kVal || StateOf(word) == SlotState::kFrz) return ValueOfBlock(BlockOf(word));
  }
  return 0;
}

std::string ReplicationModel::OrderViolation(const Body& body) const {
  const ChainView& view = config_.views[body.decided];
  for (int slot = 0; slot < config_.slots; ++slot) {
    int before = kHistory;
    for (int i = 0; i < view.length + (view.learner >= 0); ++i) {
      const int r = i < view.length ? view.chain[i] : view.learner;
      const uint8_t word = body.words[r][slot];
      if (r == view.learner && word == kUncopied) continue;
      const uint8_t* end = body.history[slot] + body.length[slot];
      const uint8_t* at = std::find(body.history[slot], end, word);
      if (at == end) return "replica " + std::to_string(r) + " has a word that its head never had, or an uncopied one";
      const int index = static_cast<int>(at - body.history[slot]);
      if (index > before) return "replica " + std::to_string(r) + " is ahead of its predecessor";
      before = index;
    }
  }
  return "";
}

// With two pools: a word that may be read, now or once the replicas before are gone, names a block that the other pool
// has at each of its replicas.
std::string ReplicationModel::BlockViolation(const Body& body) const {
  const ChainView& view = config_.views[body.decided];
  const uint8_t needed = BlockView(body.decided).Members(false);
  for (int i = 0; i < view.length; ++i) {
    for (int slot = 0; slot < config_.slots; ++slot) {
      const uint8_t word = body.words[view.chain[i]][slot];
      if (HasBlock(word) && (body.holders[BlockOf(word)] & needed) != needed) {
        return "a word of replica " + std::to_string(view.chain[i]) + " names a block that the other pool lacks";
      }
    }
  }
  return "";
}

bool ReplicationModel::PromotesLearner(int view) const {
  return Promotes(config_.views, view) || (TwoPools() && Promotes(config_.block_views, view));
}

std::string ReplicationModel::Violation(const State& state) const {
  static const char* const kErrors[] = {
      "",
      "a replica names a block that it lacks",
      "a reader finds no block",
      "a word comes back at the head",
      "a replica goes backwards",
      "a CAS is reported as done before the tail has its word",
      "a CAS is reported as lost and the tail has its old word",
  };
  const Body& body = state.body;
  if (body.error != ReplicationError::kNone) return kErrors[static_cast<int>(body.error)];
  if (!state.monitor.linearizable()) return "not linearizable: the last result fits no linearization";
  if (checks_order_) {
    if (const std::string violation = OrderViolation(body); !violation.empty()) return violation;
  }
  if (TwoPools()) {
    if (const std::string violation = BlockViolation(body); !violation.empty()) return violation;
  }
  bool quiet = body.active == body.decided;
  State copy = state;
  for (int c = 0; c < kClients; ++c) {
    const Stepper client(*this, &copy, c);
    quiet &= !client.InOperation() || body.clients[c].expelled != 0;
    if (config_.solo && !ComesToItsEnd(state, c)) return "client " + std::to_string(c) + ", alone, never ends";
  }
  const ChainView& view = config_.views[body.decided];
  for (int i = 0; i < view.length && quiet; ++i) {
    const int r = view.chain[i];
    const bool dead = (body.dead >> r & 1) != 0;
    if (!dead && !state.monitor.MayHold(ValueAt(body, r)))
      return "replica " + std::to_string(r) + " has lost something";
  }
  return "";
}

std::string ReplicationModel::Describe(const State& state) const {
  const Body& body = state.body;
  std::string text = "view " + std::to_string(body.decided) + (body.active == body.decided ? "" : " (not active)");
  for (int slot = 0; slot < config_.slots; ++slot) {
    text += ", slot " + std::to_string(slot) + ":";
    for (int r = 0; r < kMaxReplicas; ++r) {
      if (body.words[r][slot] == 0) continue;
      text += " " + std::to_string(r) + ((body.dead >> r & 1) != 0 ? "+" : ":") + Show(body.words[r][slot]);
    }
  }
  return text;
}

// The client's verb executes, and the client never learns that. Returns whether that changed a word.
bool ReplicationModel::ExecuteUnseen(State* state, int client) const {
  State executed = *state;
  Stepper(*this, &executed, client, false).Execute();
  Body &to = state->body, &from = executed.body;
  if (std::memcmp(to.words, from.words, sizeof(to.words)) == 0) return false;
  std::memcpy(to.words, from.words, sizeof(to.words));
  std::memcpy(to.history, from.history, sizeof(to.history));
  std::memcpy(to.length, from.length, sizeof(to.length));
  to.error = from.error;
  return true;
}

void ReplicationModel::Expel(const State& before, int client, const Emit& emit) const {
  State next = before;
  Stepper expelled(*this, &next, client);
  Client& c = next.body.clients[client];
  if (expelled.IsZombie()) {
    c.expelled = 2;
    return emit(client, "its death is confirmed: its verb never executes", next);
  }
  if (!expelled.InOperation() || c.expelled != 0) return;
  if (Mutated(M::kQuietWithVerb)) {
    c.expelled = 1;
    emit(client, "says that it is quiet", next);
    next = before;
  }
  if (next.body.expelled == config_.expel) return;
  ++next.body.expelled;
  // What it had posted may execute. In a view that is not active it has posted nothing.
  c.expelled = c.view == next.body.active && !c.broken ? 1 : 2;
  if (!Mutated(M::kPromoteDespiteLoss) && !config_.views[next.body.active].handover) next.body.sync = 0;
  emit(client, "IS EXPELLED", next);
}

// A replica dies only where later views go on without it.
void ReplicationModel::Deaths(const State& before, const Emit& emit) const {
  for (int r = 0; r < kMaxReplicas; ++r) {
    if ((config_.mortal >> r & 1) == 0 || (before.body.dead >> r & 1) != 0) continue;
    if (!config_.views[before.body.decided].Keeps(r)) continue;
    bool leaves = false;
    for (size_t v = before.body.decided; v < config_.views.size(); ++v) leaves |= !config_.views[v].Keeps(r);
    if (!leaves) continue;
    State next = before;
    next.body.dead |= static_cast<uint8_t>(1 << r);
    emit(kEnvironment, "a replica dies", next);
  }
}

bool ReplicationModel::MayDecideNext(const Body& body) const {
  if (body.decided + 1u == config_.views.size()) return false;
  const ChainView &now = config_.views[body.decided], &next = config_.views[body.decided + 1];
  const bool active = body.active == body.decided;
  for (int i = 0; i < now.length; ++i) {
    const int r = now.chain[i];
    if (!next.Has(r) && ((body.dead | config_.suspect) >> r & 1) == 0) return false;
  }
  for (int i = 0; i < next.length; ++i) {
    if ((body.dead >> next.chain[i] & 1) != 0) return false;
  }
  // A promotion that is not active may be given up. Nothing else may follow it.
  if (GivesUpPromotion(now, next)) return !active;
  if (PromotesLearner(body.decided) && !active) return false;
  if (!PromotesLearner(body.decided + 1)) return true;
  return active && (body.sync == 2 || Mutated(M::kPromoteUncopied));
}

void ReplicationModel::Decide(const State& before, const Emit& emit) const {
  if (!MayDecideNext(before.body)) return;
  State next = before;
  Body& body = next.body;
  const ChainView& old = config_.views[body.decided];
  const ChainView& view = config_.views[++body.decided];
  if (view.learner >= 0 && view.learner != old.learner && !old.Has(view.learner)) {  // with fresh memory
    for (uint8_t& word : body.words[view.learner]) word = kUncopied;
    for (uint8_t& holders : body.holders) holders &= static_cast<uint8_t>(~(1 << view.learner));
  }
  if (!PromotesLearner(body.decided) && !Mutated(M::kSyncOutlivesView)) body.sync = 0;
  if (view.head() != old.head() && checks_order_) {
    // From now on the history is that of the new head.
    const Stepper any(*this, &next, 0);
    for (int slot = 0; slot < config_.slots; ++slot) {
      const int length = any.Index(slot, body.words[view.head()][slot]) + 1;
      for (int i = length; i < body.length[slot]; ++i) body.history[slot][i] = 0;
      body.length[slot] = static_cast<uint8_t>(length);
    }
  }
  emit(kEnvironment, "a view is decided", next);
}

bool ReplicationModel::MayActivate(const Body& body) const {
  if (body.active == body.decided) return false;
  if (Mutated(M::kActivateAtOnce)) return true;
  for (const Client& client : body.clients) {
    const bool in_operation = client.step >= static_cast<uint8_t>(ReplicationStep::kScan);
    if (in_operation && client.expelled == 0 && client.view != body.decided) return false;
  }
  return !PromotesLearner(body.decided) || body.sync == 2 || Mutated(M::kPromoteUncopied);
}

void ReplicationModel::Activate(Body* body) const {
  body->active = body->decided;
  if (Mutated(M::kActivateAtOnce)) return;
  for (Client& client : body->clients) {
    const bool in_operation = client.step >= static_cast<uint8_t>(ReplicationStep::kScan);
    const bool learns = !in_operation && client.expelled == 0 && !Mutated(M::kQuietPosts);
    if (learns) client.view = body->decided;
  }
}

void ReplicationModel::Successors(const State& state, const Emit& emit) const {
  State before = state;  // that a stepper may refer to
  for (int c = 0; c < static_cast<int>(config_.programs.size()); ++c) {
    Stepper(*this, &before, c).Steps(emit);
    Expel(before, c, emit);
  }
  Deaths(before, emit);
  Decide(before, emit);
  if (!MayActivate(before.body)) return;
  Activate(&before.body);
  emit(kEnvironment, "the view is active", before);
}

// Whether the client, alone from here, comes to its end: views that can become active do.
bool ReplicationModel::ComesToItsEnd(State state, int client) const {
  for (int step = 0; step < 80; ++step) {
    Stepper alone(*this, &state, client);
    const Client& c = state.body.clients[client];
    if (c.expelled != 0 || !alone.InOperation()) return true;
    if (MayActivate(state.body)) Activate(&state.body);
    if (c.view < state.body.decided || !alone.MayPost() || !alone.Reachable() || c.broken) {
      bool moved = false;
      State next = state;
      alone.Steps([&](int /*process*/, const char* /*name*/, const State& after) {
        next = after;
        moved = true;
      });
      if (!moved) return true;  // it waits for others, who acknowledge or are expelled
      state = next;
      continue;
    }
    const int attempt = c.attempt;
    alone.Execute();
    if (alone.InOperation() && c.attempt == kAttempts - 1 && attempt < kAttempts - 1) return false;
  }
  return false;
}

}  // namespace model
