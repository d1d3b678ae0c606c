#include "tests/sim/node_points.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/script.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

using krcore::NodeId;
using krcore::StatusCode;
using kvs::Mutation;

// What a memory node fails in.
enum class Work : uint8_t { kGet, kInsert, kUpdate, kDelete, kModify, kSplit, kMerge, kView, kJoin };
constexpr const char* kWorkNames[] = {"Get", "Insert", "Update", "Delete", "Modify", "split", "merge", "view", "join"};

// What becomes of it, at a verb of the client that works: before the verb executes, or just after, so that nobody
// learns that it did.
enum class Harm : uint8_t { kDies, kCutOff, kCutOffAWhile, kBlinks, kStops, kStopsLong };
constexpr const char* kHarmNames[] = {"dies", "is cut off", "is cut off a while", "blinks", "stops", "stops long"};

// What another client does meanwhile.
enum class Other : uint8_t { kPolled, kWrites, kSleeps };
constexpr const char* kOtherNames[] = {"", ", another one writes the key", ", another one sleeps"};

constexpr uint32_t kLearner = 3;  // as a rank

struct Case {
  Work work = Work::kGet;
  uint32_t replicas = 2;
  NodeId pool = 1;    // the home, or the pool of the client's blocks
  uint32_t rank = 0;  // in the chain, 0 being the head
  Harm harm = Harm::kDies;
  Other other = Other::kPolled;
  uint32_t every = 1;  // which verbs: the first one, and each so many later
  uint32_t lost = 0;   // kView, kJoin: the rank of a replica of the same pool that has died before
};

constexpr NodeId kHome = 1, kSecondPool = 2;
constexpr int64_t kShortLeaseNs = 200 * kMs;
// How long it is away: shorter than a verb is tried; longer than that and than a client tries to connect, and shorter
// than the lease; longer than the lease and than a view takes without an acknowledgement.
constexpr int64_t kBlinkNs = 2 * kMs, kStopNs = kShortLeaseNs / 2, kLongStopNs = 2 * kShortLeaseNs,
                  kForEverNs = 3'600'000 * kMs;
constexpr int64_t kSlowTempoNs = 50 * kUs;
constexpr uint32_t kWrittenKey = 7, kAbsentKey = 8;
constexpr uint32_t kSettleRounds = 40;  // of fast polls, in which an operation leaves a split or merge behind
constexpr uint32_t kMostWorkers = 8;
constexpr uint32_t kMostRounds = 200'000;
constexpr uint32_t kMostVerbs = 10'000'000;

struct Step {
  OpKind kind = OpKind::kGet;
  uint32_t key = 0;
};

struct Point {
  uint64_t verb = 1;
  bool before = true;
};

std::string NameOf(const Case& the, const Point& point) {
  static constexpr const char* kRanks[] = {"head", "second", "third", "learner"};
  std::string text = std::string(kWorkNames[static_cast<int>(the.work)]) + ", " + std::to_string(the.replicas) +
                     " replicas: the " + kRanks[the.rank] + " of pool " + std::to_string(the.pool) + " " +
                     kHarmNames[static_cast<int>(the.harm)] + (point.before ? " before" : " behind") + " verb " +
                     std::to_string(point.verb) + kOtherNames[static_cast<int>(the.other)];
  if (the.work == Work::kView) text += std::string(" (behind the death of the ") + kRanks[the.lost] + ")";
  return text + "\n";
}

StageOptions OptionsOf(const Case& the) {
  return {
      .seed = 1, .memory_nodes = 2, .replicas = the.replicas, .breaks = true, .agree = true, .lease_ns = kShortLeaseNs};
}

// The operations of one client up to the one that begins a split, or, if `merges`, up to the one that begins a merge.
std::vector<Step> StepsUntil(const Case& the, bool merges) {
  Stage stage(OptionsOf(the));
  const uint32_t c = stage.AddClient();
  std::vector<Step> steps;
  const auto run = [&](OpKind kind, uint32_t key, const std::function<bool()>& begun) {
    steps.push_back({kind, key});
    (void)stage.Do(c, kind, key);
    for (uint32_t i = 0; i < 6 && !begun(); ++i) stage.Poll(c);
    return begun();
  };
  const auto grown = [&] { return stage.Entry(0).splitting() || stage.Entry(0).depth() > 0; };
  const auto shrunk = [&] { return stage.Entry(0).merging() || stage.Entry(0).depth() == 0; };
  uint32_t key = 0;
  while (key < 500 && !run(OpKind::kInsert, key, grown)) ++key;
  stage.Poll(c, kSettleRounds * 4);
  for (uint32_t k = 0; merges && k <= key && !run(OpKind::kDelete, k, shrunk); ++k) {
  }
  for (uint32_t k = 1'000; merges && k < 1'100 && !shrunk(); ++k) {
    if (!run(OpKind::kInsert, k, shrunk)) (void)run(OpKind::kDelete, k, shrunk);
  }
  stage.Poll(c, kSettleRounds * 4);
  return steps;
}

// One point: a stage, the work with its failure, and what must hold afterwards.
class Play {
 public:
  Play(Stage& stage, const Case& the, const Point& point, const std::vector<Step>& steps)
      : stage_(stage), the_(the), point_(point), steps_(steps) {}

  // Returns whether the work reached the verb.
  bool Run() {
    other_ = stage_.AddClient();
    AddWorker();
    if (stage_.fine()) (the_.work == Work::kJoin) ? Join() : Operate();
    stage_.world().AtVerb(struck_node_, 0, true, {});
    if (stage_.fine() && struck_) Return();
    if (stage_.fine() && IsUsable()) UseAll();
    return struck_;
  }
  // Whether what is left can be judged: of a pool with one replica that is gone for ever there is nothing to judge.
  bool IsUsable() const {
    return the_.replicas > 1 || !struck_ || (the_.harm != Harm::kDies && the_.harm != Harm::kCutOff);
  }

  // A split or merge whose only replica was away may stay as it is until somebody needs it to end.
  bool MayJudge() const {
    const bool may_be_left = the_.work == Work::kSplit || the_.work == Work::kMerge;
    return IsUsable() && (is_mirrored() || !struck_ || !may_be_left);
  }

 private:
  bool is_mirrored() const { return the_.replicas > 1; }

  // The worker's blocks are in the pool that is to lose a node.
  void AddWorker() {
    (void)stage_.Do(other_, OpKind::kInsert, kWrittenKey);
    for (bool found = false; !found;) {
      worker_ = stage_.AddClient();
      (void)stage_.Do(worker_, OpKind::kUpdate, kWrittenKey);
      found = the_.pool == kHome || BlockPool(kWrittenKey) == the_.pool || worker_ == kMostWorkers;
      if (!found) stage_.Close(worker_);
    }
    for (size_t i = 0; i + 1 < steps_.size(); ++i) {
      (void)stage_.Do(worker_, steps_[i].kind, steps_[i].key);
      stage_.Poll(worker_, 6);
      if (i % 8 == 0) stage_.Poll(other_);
    }
    if (!steps_.empty()) stage_.Poll(worker_, kSettleRounds);
  }

  NodeId BlockPool(uint32_t key) const {
    const kvs::KeyPlaces places = kvs::PlacesOf(Stage::HashOf(key), 2);
    for (const kvs::CombinedBucket& place : places.place) {
      for (uint32_t s = 0; s < kvs::kCombinedSlots; ++s) {
        const kvs::Slot slot =
            stage_.SlotOf(stage_.Entry(0).subtable(), kvs::FirstBucket(place) * kvs::kSlotsPerBucket + s);
        if (slot.has_block() && slot.fingerprint() == Stage::HashOf(key).fingerprint()) return slot.block().node;
      }
    }
    return krcore::kNoNode;
  }

  void Arm(NodeId initiator, NodeId victim) {
    struck_node_ = initiator;
    victim_ = victim;
    stage_.world().AtVerb(initiator, point_.verb, point_.before, [this] {
      struck_ = true;
      struck_ns_ = stage_.world().now_ns();
      krcore::rnic::sim::World& world = stage_.world();
      switch (the_.harm) {
        case Harm::kDies: return world.Kill(victim_, 0);
        case Harm::kCutOff: return world.CutOff(victim_, kForEverNs);
        case Harm::kCutOffAWhile: return world.CutOff(victim_, kStopNs);
        case Harm::kBlinks: return world.Freeze(victim_, kBlinkNs);
        case Harm::kStops: return world.Freeze(victim_, kStopNs);
        case Harm::kStopsLong: return world.Freeze(victim_, kLongStopNs);
      }
    });
  }

  Step TheStep() const {
    switch (the_.work) {
      case Work::kGet: return {OpKind::kGet, kWrittenKey};
      case Work::kInsert: return {OpKind::kInsert, kAbsentKey};
      case Work::kUpdate:
      case Work::kView: return {OpKind::kUpdate, kWrittenKey};
      case Work::kDelete: return {OpKind::kDelete, kWrittenKey};
      case Work::kModify: return {OpKind::kModify, kWrittenKey};
      default: return steps_.back();
    }
  }

  void Operate() {
    const std::vector<NodeId> chain = stage_.memory_nodes().ChainOf(the_.pool);
    if (the_.work == Work::kView) stage_.KillMemoryNode(chain[the_.lost]);
    Arm(stage_.NodeOf(worker_), chain[the_.rank]);
    const Step step = TheStep();
    const uint32_t operation = stage_.Begin(worker_, step.kind, step.key);
    std::optional<uint32_t> contender;
    if (the_.other == Other::kWrites) {
      contender = stage_.Begin(other_, the_.work == Work::kModify ? OpKind::kModify : OpKind::kPut, step.key);
    }
    const auto ended = [&] { return stage_.Ended(operation) && (!contender || stage_.Ended(*contender)); };
    for (uint32_t round = 0; round < kMostRounds && !ended(); ++round) PollBoth();
    if (!ended()) return stage_.Violation("hang", "never answered\n" + stage_.Describe(operation));
    if (the_.work == Work::kSplit || the_.work == Work::kMerge) {
      const auto goes_on = [&] { return stage_.Entry(0).splitting() || stage_.Entry(0).merging(); };
      stage_.set_tempo(5 * kUs);
      for (uint32_t i = 0; i < kSettleRounds; ++i) PollBoth();
      // The mover's clock decides after which operation it is.
      for (uint32_t key = 1'000; key < 1'100 && the_.work == Work::kMerge && !struck_ && Unmerged(); ++key) {
        for (const OpKind kind : {OpKind::kInsert, OpKind::kDelete}) {
          const uint32_t more = stage_.Begin(worker_, kind, key);
          for (uint32_t round = 0; round < kMostRounds && !stage_.Ended(more); ++round) PollBoth();
          for (uint32_t i = 0; i < 6; ++i) PollBoth();
          if (!stage_.Ended(more)) return stage_.Violation("hang", "never answered\n" + stage_.Describe(more));
          Check(more);
        }
      }
      for (uint32_t i = 0; i < kMostRounds / 20 && IsUsable() && goes_on(); ++i) PollBoth();
      if (!struck_ && (stage_.Entry(0).depth() > 0) != (the_.work == Work::kSplit))
        stage_.Violation("setup", "there was no split, or no merge");
    }
    Check(operation);
    if (contender) Check(*contender);
  }

  bool Unmerged() const { return !stage_.Entry(0).merging() && stage_.Entry(0).depth() > 0; }

  // With a replica left, an operation waits for another view, and is done. Only if another client writes the same word,
  // or the lease ended, its outcome may be unknown (docs/replication.md, M8 and M10).
  void Check(uint32_t operation) {
    const OpRecord& record = stage_.Record(operation);
    const StatusCode status = record.status;
    const bool lapsed = record.end_ns - record.start_ns >= kShortLeaseNs;
    const bool write = record.kind != OpKind::kGet;
    const bool done = status == StatusCode::kOk || status == StatusCode::kNotFound || status == StatusCode::kExists;
    const bool unknown =
        status == StatusCode::kUnknown && write && (!is_mirrored() || the_.other == Other::kWrites || lapsed);
    const bool away = status == StatusCode::kUnavailable && !is_mirrored() && struck_;
    if (!done && !unknown && !away) {
      stage_.Violation("status", std::string(krcore::StatusCodeName(status)) + "\n" + stage_.Describe(operation));
    }
    // Nobody is waited for who does not sleep, so a change takes no lease.
    if (is_mirrored() && the_.other != Other::kSleeps && record.end_ns - record.start_ns > kShortLeaseNs)
      stage_.Violation("late", stage_.Describe(operation));
  }

  void PollBoth() {
    if (struck_ && !slow_) {
      stage_.set_tempo(kSlowTempoNs);
      slow_ = true;
    }
    stage_.Poll(worker_);
    if (the_.other != Other::kSleeps) stage_.Poll(other_);
  }

  // If the memory node is back some time, lets it come back. Whoever sleeps goes on sleeping: so others have gone on in
  // a view that it does not know of, and the node that it knows answers again.
  void Return() {
    const bool returns = the_.harm != Harm::kDies && the_.harm != Harm::kCutOff;
    const int64_t away_ns = the_.harm == Harm::kStopsLong ? kLongStopNs : kStopNs;
    while (stage_.world().now_ns() < struck_ns_ + away_ns && returns) {
      stage_.set_tempo(kMs);
      stage_.Poll(worker_);
      if (the_.other != Other::kSleeps) stage_.Poll(other_);
    }
    stage_.set_tempo(kSlowTempoNs);
  }

  // A client that could not reach the only replica waits a while until it tries again.
  void Do(uint32_t c, OpKind kind, uint32_t key) {
    for (uint32_t tries = 0; tries < 100 && struck_ && !is_mirrored(); ++tries) {
      const uint32_t probe = stage_.Begin(c, OpKind::kGet, key);
      for (uint32_t round = 0; round < kMostRounds && !stage_.Ended(probe); ++round) PollAll();
      if (!stage_.Ended(probe)) return stage_.Violation("hang", "never answered\n" + stage_.Describe(probe));
      if (stage_.Record(probe).status != StatusCode::kUnavailable) break;
      for (uint32_t round = 0; round < 400; ++round) PollAll();
    }
    DoOnce(c, kind, key);
  }

  void PollAll() {
    stage_.Poll(worker_);
    stage_.Poll(other_);
  }

  void DoOnce(uint32_t c, OpKind kind, uint32_t key) {
    const uint32_t operation = stage_.Begin(c, kind, key);
    for (uint32_t round = 0; round < kMostRounds && !stage_.Ended(operation); ++round) {
      stage_.Poll(c);
      if (stage_.Ended(operation)) break;
      stage_.Poll(c == worker_ ? other_ : worker_);
    }
    if (!stage_.Ended(operation)) return stage_.Violation("hang", "never answered\n" + stage_.Describe(operation));
    const OpRecord& record = stage_.Record(operation);
    const bool done = record.status == StatusCode::kOk || record.status == StatusCode::kNotFound ||
                      record.status == StatusCode::kExists;
    const bool unknown = record.status == StatusCode::kUnknown && kind != OpKind::kGet && struck_ &&
                         record.end_ns - record.start_ns >= kShortLeaseNs;
    if (!done && !unknown) {
      stage_.Violation("status", "afterwards: " + std::string(krcore::StatusCodeName(record.status)) + "\n" +
                                     stage_.Describe(operation));
    }
  }

  // Afterwards everybody reads and writes the keys.
  void UseAll() {
    const std::vector<uint32_t> keys = steps_.empty() ? std::vector<uint32_t>{kWrittenKey, kAbsentKey}
                                                      : std::vector<uint32_t>{steps_.back().key, kWrittenKey};
    for (const uint32_t key : keys) {
      if (stage_.fine()) Do(other_, OpKind::kGet, key);
      if (stage_.fine()) Do(worker_, OpKind::kGet, key);
      if (stage_.fine()) Do(other_, OpKind::kPut, key);
      if (stage_.fine()) Do(worker_, OpKind::kGet, key);
      if (stage_.fine()) Do(worker_, OpKind::kDelete, key);
      if (stage_.fine()) Do(other_, OpKind::kGet, key);
      if (stage_.fine()) Do(other_, OpKind::kPut, key);
    }
    if (!stage_.fine() || !struck_ || !is_mirrored()) return;
    if (the_.harm != Harm::kDies && the_.harm != Harm::kCutOff) return;
    // Every write and heartbeat goes to the home, so that somebody has missed the node.
    const std::vector<NodeId> chain = stage_.memory_nodes().ChainOf(the_.pool);
    if (the_.pool == kHome && std::ranges::find(chain, victim_) != chain.end())
      stage_.Violation("view", "memory node " + std::to_string(victim_) + " is still a replica");
  }

  void Join() {
    for (uint32_t key = 20; key < 28; ++key) (void)stage_.Do(worker_, OpKind::kPut, key);
    const std::vector<NodeId> chain = stage_.memory_nodes().ChainOf(the_.pool);
    stage_.set_tempo(kSlowTempoNs);
    stage_.KillMemoryNode(chain[the_.lost]);
    for (uint32_t round = 0; round < kMostRounds && stage_.memory_nodes().ChainOf(the_.pool).size() == chain.size();
         ++round) {
      if (round % 50 == 0 && stage_.InFlight(worker_) == 0) (void)stage_.Begin(worker_, OpKind::kPut, kWrittenKey);
      PollBoth();
    }
    for (uint32_t round = 0; round < 1'000; ++round) PollBoth();
    const std::vector<NodeId> left = stage_.memory_nodes().ChainOf(the_.pool);
    const NodeId learner = stage_.Join();
    Arm(stage_.KeepersNode(), the_.rank == kLearner ? learner : left[the_.rank]);
    const auto joined = [&] { return stage_.keeper().state == kvs::ReplicaState::kMember; };
    const auto learner_is_lost = [&] {
      return struck_ && the_.rank == kLearner && (the_.harm == Harm::kDies || the_.harm == Harm::kCutOff);
    };
    for (uint32_t round = 0; round < kMostRounds && !joined() && !learner_is_lost(); ++round) {
      stage_.StepKeeper();
      // Others write meanwhile.
      if (round % 4 == 0 && stage_.InFlight(other_) == 0) (void)stage_.Begin(other_, OpKind::kPut, 20 + round / 4 % 8);
      PollBoth();
    }
    if (learner_is_lost() && the_.harm == Harm::kDies) stage_.KillKeeper(learner);
    if (!joined() && !learner_is_lost()) stage_.Violation("join", "the memory node never became a replica");
  }

  Stage& stage_;
  const Case& the_;
  const Point point_;
  const std::vector<Step>& steps_;
  uint32_t worker_ = 0, other_ = 0;
  NodeId struck_node_ = krcore::kNoNode, victim_ = krcore::kNoNode;
  bool struck_ = false, slow_ = false;
  int64_t struck_ns_ = 0;
};

// A join takes more than a hundred thousand verbs, most of which copy: the first ones are all tried, later ones ever
// less densely.
uint64_t Next(const Case& the, uint64_t verb) {
  return verb + std::max<uint64_t>(the.every, the.work == Work::kJoin ? verb / 4 : 0);
}

// Plays all points of a case: the first verb, and so on, until the work ends without reaching the verb.
RunResult PlayCase(const Case& the) {
  RunResult result;
  std::vector<Step> steps;
  if (the.work == Work::kSplit || the.work == Work::kMerge) steps = StepsUntil(the, the.work == Work::kMerge);
  for (const bool before : {true, false}) {
    bool reached = true;
    for (uint64_t verb = 1; reached && result.violation.empty(); verb = Next(the, verb)) {
      const Point point{verb, before};
      auto stage = std::make_unique<Stage>(OptionsOf(the));
      Play play(*stage, the, point, steps);
      reached = play.Run();
      if (stage->fine() && play.MayJudge()) stage->Judge();
      if (stage->fine() && verb > kMostVerbs) stage->Violation("setup", "it never ends");
      result.counts.pauses += reached;
      result.violation = stage->violation();
      if (stage->fine()) continue;
      result.text = NameOf(the, point) + stage->text();
      (void)stage.release();
    }
  }
  return result;
}

// Sets of cases. kEvery: of the verbs of what takes many.
constexpr Harm kHarms[] = {Harm::kDies,   Harm::kCutOff, Harm::kCutOffAWhile,
                           Harm::kBlinks, Harm::kStops,  Harm::kStopsLong};

std::vector<Case> Operations() {
  std::vector<Case> all;
  for (const Harm harm : kHarms) {
    for (const Work work : {Work::kGet, Work::kInsert, Work::kUpdate, Work::kDelete, Work::kModify}) {
      for (uint32_t replicas = 1; replicas <= 3; ++replicas) {
        for (const NodeId pool : {kHome, kSecondPool}) {
          for (uint32_t rank = 0; rank < replicas; ++rank) {
            for (const Other other : {Other::kPolled, Other::kWrites, Other::kSleeps}) {
              const bool alone = replicas == 1 || harm == Harm::kBlinks || harm == Harm::kStops ||
                                 (other == Other::kWrites && harm != Harm::kDies && harm != Harm::kCutOffAWhile);
              if (other == Other::kPolled || !alone) all.push_back({work, replicas, pool, rank, harm, other});
            }
          }
        }
      }
    }
  }
  return all;
}

template <uint32_t kEvery>
std::vector<Case> SplitsAndMerges() {
  std::vector<Case> all;
  for (const Harm harm : kHarms) {
    for (const Work work : {Work::kSplit, Work::kMerge}) {
      for (uint32_t replicas = 1; replicas <= 3; ++replicas) {
        for (const NodeId pool : {kHome, kSecondPool}) {
          for (uint32_t rank = 0; rank < replicas; ++rank) {
            for (const Other other : {Other::kPolled, Other::kSleeps}) {
              all.push_back({work, replicas, pool, rank, harm, other, kEvery});
            }
          }
        }
      }
    }
  }
  return all;
}

// A replica fails while the view without another one is made. One of three is left.
template <uint32_t kEvery>
std::vector<Case> Views() {
  std::vector<Case> all;
  for (const Harm harm : kHarms) {
    for (const NodeId pool : {kHome, kSecondPool}) {
      for (uint32_t rank = 0; rank < 3; ++rank) {
        for (uint32_t lost = 0; lost < 3; ++lost) {
          for (const Other other : {Other::kPolled, Other::kWrites}) {
            if (lost != rank) all.push_back({Work::kView, 3, pool, rank, harm, other, kEvery, lost});
          }
        }
      }
    }
  }
  return all;
}

// Of three replicas the tail has died; the head, the next one or the one that joins in its place fails.
std::vector<Case> Joins() {
  std::vector<Case> all;
  for (const Harm harm : {Harm::kDies, Harm::kCutOff, Harm::kBlinks}) {
    for (const NodeId pool : {kHome, kSecondPool}) {
      for (const uint32_t rank : {0u, 1u, kLearner}) {
        if (harm == Harm::kCutOff && rank == kLearner) continue;
        all.push_back({Work::kJoin, 3, pool, rank, harm, Other::kPolled, 1, 2});
      }
    }
  }
  return all;
}

using Cases = std::vector<Case> (*)();
template <Cases kCases>
const std::vector<Case>& Table() {
  static const std::vector<Case> all = kCases();
  return all;
}
template <Cases kCases>
RunResult PlayOne(uint64_t point) {
  return PlayCase(Table<kCases>()[point]);
}
template <Cases kCases>
Scenario Of(const char* name, std::vector<Mutation> catches, RunsIn runs_in) {
  return {name, std::move(catches), static_cast<uint32_t>(Table<kCases>().size()), PlayOne<kCases>, runs_in};
}

}  // namespace

std::vector<Scenario> NodePointScenarios() {
  return {
      Of<Operations>("NodeFailsInAnOperation", {Mutation::kTailFirst, Mutation::kLostHopIsLoss},
                     RunsIn::kTestsWithoutSanitizer),
      Of<Views<5>>("NodeFailsInAView", {Mutation::kWritesToHeadOnly}, RunsIn::kTestsWithoutSanitizer),
      Of<SplitsAndMerges<97>>("NodeFailsInASplitOrMerge", {Mutation::kLostHopIsLoss}, RunsIn::kTestsWithoutSanitizer),
      Of<SplitsAndMerges<1>>("NodeFailsAtEveryVerbOfASplitOrMerge", {}, RunsIn::kByHand),
      Of<Views<1>>("NodeFailsAtEveryVerbOfAView", {}, RunsIn::kByHand),
      Of<Joins>("NodeFailsInAJoin", {}, RunsIn::kByHand),
  };
}

}  // namespace surgekv_sim
