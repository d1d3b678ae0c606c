#include "tests/model/home_model.h"

#include "tests/model/home_client.h"

namespace model {

using M = HomeMutation;

const char* Name(HomeMutation mutation) {
  static const char* const kNames[] = {
      "unchecked",      "checked-at-head",      "checked-at-tail",    "checked-at-ends",
      "read-unchecked", "read-checked-at-tail", "adopts-pending",     "found-is-mine",
      "no-last-sweep",  "sweep-before-number",  "sweep-before-acks",  "no-number",
      "number-at-one",  "activate-at-once",     "wait-from-decision", "lease-from-answer",
      "beats-at-head",  "beats-at-tail",        "quiet-seen-early",   "quiet-seen-anywhere",
      "quiet-posts",    "sweep-ignores-head",   "no-first-sweep",     "checked-once",
      "skip-learner",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(M::kCount));
  return kNames[static_cast<size_t>(mutation)];
}

HomeModel::State HomeModel::Initial() const {
  State state{};
  for (int c = 0; c < kClients; ++c) {
    Client& client = state.clients[c];
    const bool exists = c < static_cast<int>(config_.programs.size());
    if (!exists) client.step = static_cast<uint8_t>(HomeStep::kOver);
    if (!exists || IsLeaseless(c)) continue;
    client.lease = Stepper::kLease;
    client.live = config_.views[0].Members();
  }
  return state;
}

// Step 2 of a new view is done: the replicas that stay have its number.
bool HomeModel::NumberIsWritten(const State& state) const {
  if (Mutated(M::kNoNumber)) return true;
  const ChainView& view = config_.views[state.decided];
  bool any = false, all = true;
  for (int r = 0; r < kMaxReplicas; ++r) {
    if (!view.Keeps(r)) continue;
    const bool written = state.numbers[r] == state.decided;
    all &= written;
    any |= written && config_.views[state.active].Keeps(r);
  }
  return all || (any && Mutated(M::kNumberAtOne));
}

// Nobody uses the old view any more, as far as whoever activates the new one can tell.
bool HomeModel::LeasesAreOver(const State& state) const {
  if (state.waited) return true;
  for (int c = 0; c < static_cast<int>(config_.programs.size()); ++c) {
    const bool knows = state.clients[c].view == state.decided || (state.quiet >> c & 1) != 0;
    if (!IsLeaseless(c) && !knows) return false;
  }
  return true;
}

// CAS forward, each replica by itself. Whoever writes the number may be late.
void HomeModel::WriteNumber(const State& before, const Emit& emit) const {
  if (Mutated(M::kNoNumber)) return;
  for (int r = 0; r < kMaxReplicas; ++r) {
    for (int number = before.numbers[r] + 1; number <= before.decided; ++number) {
      if (!config_.views[number].Keeps(r)) continue;
      State next = before;
      next.numbers[r] = static_cast<uint8_t>(number);
      if (before.active != before.decided && !NumberIsWritten(before) && NumberIsWritten(next)) {
        for (Client& client : next.clients) {  // the heartbeats of these were posted before
          if (client.lease == Stepper::kLease) client.lease = Stepper::kOldLease;
          if (client.beat != 0) client.beat_lease = Stepper::kOldLease;
        }
      }
      emit(kEnvironment, "the number of the view is written to a replica", next);
    }
  }
}

// READs the clients' words, at the replicas that stay. One that says quiet there will have no heartbeat that succeeds:
// its hop comes behind the number.
void HomeModel::LookForQuiet(const State& before, const Emit& emit) const {
  if (before.active == before.decided || (!NumberIsWritten(before) && !Mutated(M::kQuietSeenEarly))) return;
  uint8_t stay = config_.views[before.active].Members(false);
  if (!Mutated(M::kQuietSeenAnywhere)) stay &= config_.views[before.decided].Members(false);
  State next = before;
  for (int c = 0; c < static_cast<int>(config_.programs.size()); ++c) {
    if (!IsLeaseless(c) && (before.clients[c].live & stay) != stay) next.quiet |= static_cast<uint8_t>(1 << c);
  }
  if (next.quiet != before.quiet) emit(kEnvironment, "who is quiet", next);
}

void HomeModel::Wait(const State& before, const Emit& emit) const {
  if (before.active == before.decided || before.waited) return;
  const bool early = Mutated(M::kWaitFromDecision);
  if (!NumberIsWritten(before) && !early) return;
  State next = before;
  next.waited = 1;
  for (Client& client : next.clients) {
    const auto ends = [early](uint8_t lease) { return lease == Stepper::kOldLease || (early && lease != 0); };
    if (ends(client.lease)) client.lease = Stepper::kNoLease;
    if (client.beat != 0 && ends(client.beat_lease)) client.beat = client.beat_lease = 0;
  }
  emit(kEnvironment, "1.5 leases have passed", next);
}

void HomeModel::Decide(const State& before, const Emit& emit) const {
  if (before.decided + 1u == config_.views.size()) return;
  State next = before;
  const ChainView& old = config_.views[before.decided];
  const ChainView& view = config_.views[++next.decided];
  const bool active = before.active == before.decided;
  if (GivesUpPromotion(old, view) ? active : Promotes(config_.views, before.decided) && !active) return;
  const bool swept = before.sweep == Stepper::kSwept || Mutated(M::kNoFirstSweep);
  if (Promotes(config_.views, next.decided) && (!active || !swept)) return;
  if (view.learner >= 0 && view.learner != old.learner && !old.Has(view.learner)) {  // with fresh memory
    next.words[view.learner] = kUncopied;
    next.numbers[view.learner] = next.decided;
  }
  if (!Promotes(config_.views, next.decided)) next.sweep = Stepper::kNotSwept;
  next.waited = next.quiet = 0;
  emit(kEnvironment, "a view is decided", next);
}

void HomeModel::Activate(const State& before, const Emit& emit) const {
  if (before.active == before.decided || !NumberIsWritten(before)) return;
  const bool early = Mutated(M::kActivateAtOnce) || (Mutated(M::kWaitFromDecision) && before.waited);
  if (!LeasesAreOver(before) && !early) return;
  const bool swept = before.sweep == Stepper::kLastSwept || Mutated(M::kNoLastSweep);
  if (Promotes(config_.views, before.decided) && !swept) return;
  State next = before;
  next.active = before.decided;
  next.waited = next.quiet = 0;
  next.sweep = Stepper::kNotSwept;
  for (Client& client : next.clients) {
    if (client.lease == Stepper::kOldLease) client.lease = Stepper::kLease;
    if (client.beat != 0) client.beat_lease = Stepper::kLease;
  }
  emit(kEnvironment, "the view is active", next);
}

void HomeModel::Ghost(const State& before, int client, const Emit& emit) const {
  if (before.clients[client].ghost == 0) return;
  State next = before;
  Client& c = next.clients[client];
  Stepper(*this, &next, client).Swap(c.ghost - 1, c.ghost_from, c.ghost_to);
  c.ghost = c.ghost_from = c.ghost_to = 0;
  emit(client, "the CAS that was given up executes", next);
}

void HomeModel::Successors(const State& state, const Emit& emit) const {
  State before = state;  // that a stepper may refer to
  for (int c = 0; c <= kSweeper; ++c) {
    Stepper(*this, &before, c).Steps(emit);
    Ghost(before, c, emit);
  }
  WriteNumber(before, emit);
  LookForQuiet(before, emit);
  Wait(before, emit);
  Decide(before, emit);
  Activate(before, emit);
}

std::string HomeModel::Violation(const State& state) const {
  static const char* const kErrors[] = {"", "two have been told that they wrote the same number",
                                        "somebody is told less than has been told or read before",
                                        "a replica goes backwards"};
  if (state.error != HomeError::kNone) return kErrors[static_cast<int>(state.error)];
  const ChainView& view = config_.views[state.decided];
  for (int i = 0; i < view.length; ++i) {
    const int r = view.chain[i];
    const uint8_t word = state.words[r];
    const bool joins = Promotes(config_.views, state.decided) && state.active != state.decided && i + 1 == view.length;
    if (word == kUncopied && !joins) return "replica " + std::to_string(r) + " was not copied";
    if (i > 0 && word != kUncopied && Stepper::NumberOf(word) > Stepper::NumberOf(state.words[view.chain[i - 1]])) {
      return "replica " + std::to_string(r) + " is ahead of its predecessor";
    }
    if (state.active == state.decided && Stepper::NumberOf(word) < state.top) {
      return "replica " + std::to_string(r) + " lacks what was told or read";
    }
  }
  return "";
}

std::string HomeModel::Describe(const State& state) const {
  std::string text = "view " + std::to_string(state.decided) + (state.active == state.decided ? "" : " (not active)");
  for (int r = 0; r < kMaxReplicas; ++r) {
    const uint8_t word = state.words[r];
    const std::string writer = config_.claims ? "." + std::to_string(Stepper::WriterOf(word)) : "";
    text += " " + std::to_string(r) + ":" +
            (word == kUncopied ? "uncopied" : std::to_string(Stepper::NumberOf(word)) + writer) + "(view " +
            std::to_string(state.numbers[r]) + ")";
  }
  for (const Client& client : state.clients) {
    text += " [view " + std::to_string(client.view) + " lease " + std::to_string(client.lease) + "]";
  }
  return text + " top " + std::to_string(state.top);
}

}  // namespace model
