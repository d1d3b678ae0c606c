// The home model: a client, with or without a lease, and the sweeper.
#include "tests/model/home_client.h"

namespace model {

void HomeModel::Stepper::Fail(HomeError error) {
  if (s_.error == HomeError::kNone) s_.error = error;
}

// A CAS at one replica. Returns what was there.
uint8_t HomeModel::Stepper::Swap(int replica, uint8_t from, uint8_t to) {
  const uint8_t was = s_.words[replica];
  if (was != from || from == to) return was;
  s_.words[replica] = to;
  if (was != kUncopied && NumberOf(to) < NumberOf(was)) Fail(HomeError::kBackwards);
  return was;
}

int HomeModel::Stepper::Replica() const {
  switch (step()) {
    case Step::kHead: return view().head();
    case Step::kLook:
    case Step::kHop: return view().chain[p().hop];
    case Step::kLearn:
    case Step::kLearnFix: return view().learner;
    default: return view().tail();
  }
}

// Whether a completion counts. The READ of `configuration` is part of the verb's step: if it shows the old number, then
// it did so when the verb executed.
bool HomeModel::Stepper::Counts() const {
  if (IsSweeper()) return p().view == s_.active && (s_.sweep == kPass || s_.sweep == kLastPass);
  if (!model_.IsLeaseless(id_)) return p().lease != kNoLease;
  if (Mutated(M::kUnchecked)) return true;
  const bool reads = step() == Step::kRead || step() == Step::kLook;
  const bool at_head = Replica() == view().head(), at_tail = Replica() == view().tail();
  if (reads && Mutated(M::kReadUnchecked)) return true;
  if (!reads && Mutated(M::kCheckedOnce)) return true;
  if (!reads && Mutated(M::kCheckedAtHead) && !at_head) return true;
  if (!reads && Mutated(M::kCheckedAtTail) && !at_tail) return true;
  if (!reads && Mutated(M::kCheckedAtEnds) && !at_head && !at_tail) return true;
  return s_.numbers[Replica()] == p().view;
}

// A client whose lease has ended posts nothing more. The verb that it has outstanding may still execute.
bool HomeModel::Stepper::MayPost() const {
  if (IsSweeper() || model_.IsLeaseless(id_)) return true;
  return p().lease == kNoLease ? InOperation() : p().view <= s_.active;
}

void HomeModel::Stepper::Clear() {
  Client fresh{};
  fresh.step = p().step;
  fresh.view = p().view;
  fresh.op = p().op;
  fresh.attempt = p().attempt;
  fresh.lease = p().lease;
  fresh.beat = p().beat;
  fresh.beat_lease = p().beat_lease;
  fresh.live = p().live;
  fresh.floor = p().floor;
  fresh.mine = p().mine;
  fresh.ghost = p().ghost;
  fresh.ghost_from = p().ghost_from;
  fresh.ghost_to = p().ghost_to;
  p() = fresh;
}

// The outcome is unknown, or another was faster: from the READ on, or in the next view.
void HomeModel::Stepper::Again(Step step) {
  Clear();
  if (IsSweeper()) {  // another begins the pass again
    if (s_.sweep == kPass) s_.sweep = kNotSwept;
    if (s_.sweep == kLastPass) s_.sweep = kSwept;
    return Go(Step::kIdle);
  }
  if (++p().attempt == kAttempts) return EndOperation();
  Go(step);
}

void HomeModel::Stepper::EndOperation() {
  p().mine = p().floor = p().attempt = 0;
  Clear();
  ++p().op;
  Go(p().op == config_.programs[id_].size() ? Step::kOver : Step::kIdle);
}

// The client is told `word`: by a READ, or as the one that it has written.
void HomeModel::Stepper::Tell(uint8_t word, bool done) {
  const uint8_t number = NumberOf(word);
  uint8_t& told = s_.told[number];
  if (number < p().floor + (done ? 1 : 0)) Fail(HomeError::kGone);
  if (config_.claims) {
    if (told != 0 && told != WriterOf(word)) Fail(HomeError::kTwice);
    told = WriterOf(word);
  } else if (done) {
    if (told != 0) Fail(HomeError::kTwice);
    told = static_cast<uint8_t>(id_ + 1);
  }
  s_.top = std::max(s_.top, number);
  EndOperation();
}

void HomeModel::Stepper::BeginCas(uint8_t old) {
  Clear();
  Go(Step::kHead);
  p().old = p().target = old;
  if (IsSweeper()) return;
  p().target = p().mine = MakeWord(NumberOf(old) + 1, config_.claims ? id_ + 1 : 0);
}

void HomeModel::Stepper::EndCas() {
  if (IsSweeper()) {
    s_.sweep = s_.sweep == kPass ? kSwept : kLastSwept;
    Clear();
    return Go(Step::kIdle);
  }
  if (!model_.IsLeaseless(id_) || !Mutated(M::kCheckedOnce)) return Report();
  p().hop = 0;
  Go(Step::kLook);
}

void HomeModel::Stepper::Report() {
  if (p().won) return Tell(p().mine, true);
  if (++p().attempt == kAttempts) return EndOperation();
  BeginCas(p().tail);  // the tail has had that
}

void HomeModel::Stepper::NextHop() {
  if (p().hop < view().length) return Go(Step::kHop);
  const bool skips = model_.IsLeaseless(id_) && Mutated(M::kSkipLearner);
  if (view().learner >= 0 && !skips) return Go(Step::kLearn);
  EndCas();
}

void HomeModel::Stepper::AtHead() {
  if (IsSweeper() && Mutated(M::kSweepIgnoresHead)) {
    p().tail = p().old;
    p().hop = static_cast<uint8_t>(view().length);
    return NextHop();
  }
  const uint8_t was = Swap(Replica(), p().old, p().target);
  p().won = was == p().old || (config_.claims && was == p().target);
  if (was == p().target && Mutated(M::kFoundIsMine) && p().attempt > 0) p().won = 1;
  if (!p().won) p().target = was;
  p().tail = p().target;
  p().hop = 1;
  if (p().won && IsSweeper()) p().hop = static_cast<uint8_t>(view().length);
  NextHop();
}

void HomeModel::Stepper::Hop() {
  const uint8_t was = Swap(Replica(), p().old, p().target);
  p().tail = was == p().old ? p().target : was;
  ++p().hop;
  NextHop();
}

// The learner may be behind by more than one word, or have nothing. It gets what the tail has.
void HomeModel::Stepper::Learn() {
  switch (step()) {
    case Step::kLearn:
      p().learner = Swap(Replica(), p().old, p().tail);
      if (p().learner == p().old || p().learner == p().tail) return EndCas();
      return Go(Step::kLearnRead);
    case Step::kLearnRead:
      p().target = s_.words[Replica()];
      return p().target == p().learner ? EndCas() : Go(Step::kLearnFix);
    default:
      const uint8_t was = Swap(Replica(), p().learner, p().target);
      if (was == p().learner) return EndCas();
      p().learner = was;
      return Go(Step::kLearnRead);
  }
}

void HomeModel::Stepper::Read() {
  const uint8_t word = s_.words[Replica()];
  if (IsSweeper()) return BeginCas(word);
  const bool own = config_.claims && p().mine != 0 && word == p().mine;
  if (op().structural == 'N' && !own) return BeginCas(word);
  p().tail = word;
  p().won = own;
  p().hop = 0;
  Look();
}

// Behind a READ that is reported. The tail may have left, and have no number that tells. So all replicas are asked.
void HomeModel::Stepper::Look() {
  const bool everywhere = model_.IsLeaseless(id_) && !Mutated(M::kReadCheckedAtTail);
  if (everywhere && p().hop < view().length) return Go(Step::kLook);
  op().structural == 'R' ? Tell(p().tail, false) : Report();
}

void HomeModel::Stepper::Execute() {
  const bool counts = Counts();
  const State before = s_;
  switch (step()) {
    case Step::kRead: Read(); break;
    case Step::kLook:
      ++p().hop;
      Look();
      break;
    case Step::kHead: AtHead(); break;
    case Step::kHop: Hop(); break;
    default: Learn(); break;
  }
  if (counts) return;
  // The verb has executed, and the client does not know.
  State unseen = before;
  std::copy(std::begin(s_.words), std::end(s_.words), std::begin(unseen.words));
  if (s_.error == HomeError::kBackwards) unseen.error = s_.error;
  s_ = unseen;
  Again(Step::kAgain);
}

// A heartbeat is a CAS along the chain. Only its looks at `configuration` matter here, one a step.
void HomeModel::Stepper::Heartbeat(const Emit& emit) const {
  if (IsSweeper() || model_.IsLeaseless(id_) || step() == Step::kOver) return;
  State next = s_;
  Stepper client(model_, &next, id_);
  Client& c = client.p();
  if (c.beat == 0) {
    if (c.lease == kNoLease) {  // it was quiet, or late: it takes the view that it is told
      if (InOperation()) return;
      c.view = s_.active;
    }
    c.beat = 1;
    c.beat_lease = kLease;
    return emit(id_, "posts a heartbeat", next);
  }
  const int at = c.beat - 1;
  c.live |= static_cast<uint8_t>(1 << view().chain[at]);
  const bool looks = (!Mutated(M::kBeatsAtHead) || at == 0) && (!Mutated(M::kBeatsAtTail) || at + 1 == view().length);
  if (looks && s_.numbers[view().chain[at]] != c.view) {
    c.beat = c.beat_lease = 0;
    return emit(id_, "heartbeat: there is another view", next);
  }
  if (++c.beat <= view().length) return emit(id_, "heartbeat: a hop", next);
  c.lease = Mutated(M::kLeaseFromAnswer) ? kLease : c.beat_lease;
  c.beat = c.beat_lease = 0;
  emit(id_, "heartbeat: has a lease", next);
}

// Between two operations, or where its operation begins again.
void HomeModel::Stepper::Idle(const Emit& emit) const {
  State next = s_;
  Stepper client(model_, &next, id_);
  const bool leaseless = model_.IsLeaseless(id_);
  const uint8_t newest = Mutated(M::kAdoptsPending) ? s_.decided : s_.active;
  if (leaseless && p().view < newest) {
    client.p().view = newest;
    emit(id_, "learns of the new view", next);
    next = s_;
  }
  if (!leaseless && step() == Step::kIdle && p().lease != kNoLease && p().beat == 0) {
    client.p().lease = kNoLease;
    client.p().live = 0;
    emit(id_, "is quiet", next);
    next = s_;
    if (Mutated(M::kQuietPosts)) return;
  }
  if (!leaseless && p().lease == kNoLease) {
    if (!Mutated(M::kQuietPosts) || step() != Step::kIdle) return;
    client.p().lease = kLease;
    client.p().floor = s_.top;
    client.Go(Step::kRead);
    return emit(id_, "posts, after it was quiet", next);
  }
  if (!MayPost()) return;
  if (step() == Step::kIdle) client.p().floor = s_.top;
  client.Go(Step::kRead);
  emit(id_, step() == Step::kIdle ? "begins an operation" : "begins again", next);
}

void HomeModel::Stepper::Sweep(const Emit& emit) const {
  State next = s_;
  Stepper sweeper(model_, &next, id_);
  if (config_.views[s_.active].learner < 0) return;
  sweeper.p().view = s_.active;
  sweeper.Go(Step::kRead);
  if (s_.active == s_.decided) {
    if (s_.sweep != kNotSwept) return;
    next.sweep = kPass;
    return emit(id_, "begins copy and sweep", next);
  }
  if (!Promotes(config_.views, s_.decided)) return;
  if (s_.sweep != kSwept && (s_.sweep != kNotSwept || !Mutated(M::kNoFirstSweep))) return;
  if (!model_.NumberIsWritten(s_) && !Mutated(M::kSweepBeforeNumber)) return;
  if (!model_.LeasesAreOver(s_) && !Mutated(M::kSweepBeforeAcks)) return;
  next.sweep = kLastPass;
  emit(id_, "begins the last sweep", next);
}

void HomeModel::Stepper::Steps(const Emit& emit) const {
  if (step() == Step::kOver) return;
  Heartbeat(emit);
  if (IsSweeper() && step() == Step::kIdle) return Sweep(emit);
  State next = s_;
  Stepper client(model_, &next, id_);
  if (!IsSweeper() && !model_.IsLeaseless(id_) && p().lease != kNoLease && p().view < s_.decided) {
    client.p().view = s_.decided;  // none of its verbs is outstanding
    client.p().beat = client.p().beat_lease = 0;
    if (InOperation()) client.Again(Step::kAgain);
    emit(id_, "acknowledges the new view", next);
    next = s_;
  }
  if (!InOperation()) return Idle(emit);
  if (!MayPost()) return;
  static const char* const kNames[] = {"",
                                       "",
                                       "",
                                       "READ",
                                       "READ the view",
                                       "CAS at the head",
                                       "CAS of a hop",
                                       "CAS of the learner",
                                       "READ the tail for the learner",
                                       "CAS of the learner, again"};
  client.Execute();
  emit(id_, kNames[p().step], next);
  const bool swaps = step() > Step::kLook && step() != Step::kLearnRead;
  if (!swaps || p().ghost != 0 || s_.ghosts == config_.ghosts) return;
  next = s_;
  const bool learner = step() == Step::kLearn;
  client.p().ghost = static_cast<uint8_t>(Replica() + 1);
  client.p().ghost_from = step() == Step::kLearnFix ? p().learner : p().old;
  client.p().ghost_to = learner ? p().tail : p().target;
  ++next.ghosts;
  client.Again(Step::kAgain);
  emit(id_, "gives its CAS up", next);
}

}  // namespace model
