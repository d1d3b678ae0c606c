// Combiner: operations of one client on one key take turns. Without it, a client with many operations in flight
// competes with itself for the hot keys, and reads them over and over.
//
// Reads of a key have one line and its writes another, so they do not wait for each other (but the read of a value that
// has expired becomes a Modify). The first operation goes at once. Operations that come while it is in flight wait.
// When it ends, the first of those leads a group: all reads that wait then become one READ of the key; a run of Puts
// and Updates at the head of the line becomes one write, of the last value; a run of Modifies becomes one Modify, in
// which each function runs on what the one before it has left. Inserts and Deletes go alone.
//
// Why that is linearizable: a group is closed before anything is posted for it (Gather), so all of its members have
// begun by then and none has ended. They take effect one right after the other, in the order in which they came, at the
// moment at which the group's operation does. Nobody ever joins what is posted.
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_COMBINER_H_
#define KVS_TABLE_COMBINER_H_

#include <coroutine>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvs/client.h"
#include "kvs/layout/subtable.h"

namespace kvs {

class Combiner;

// Returns the status of a write whose value has so many bytes, which are too many.
Status ValueTooLong(size_t bytes);

// An operation's place in the line of its key. It lives in the coroutine of the operation or its MultiWrite.
//
//   Turn turn(combiner, hash, key, kind, ...);
//   if (!turn.leads()) co_await turn.Wait(deadline);
//   if (!turn.leads()) co_return turn.TakeResult();  // its group's leader did it as well, or its own time is up
//   ...                                             // wait for whatever is needed before anything is posted
//   turn.Gather();
//   ...
//   co_return turn.Share(status);
class Turn {
 public:
  Turn(Combiner& combiner, const KeyHash& hash, std::string_view key, std::string* out);
  // `modify`: the function of a Modify.
  Turn(Combiner& combiner, const KeyHash& hash, std::string_view key, WriteKind kind, Record in,
       const ModifyFunction* modify = nullptr);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // Of a leader: members that it gathered and could not serve go on waiting, and the first in the line leads.
  ~Turn();

  bool leads() const { return leads_; }
  // The time by which it must have ended; 0: it has not waited.
  int64_t deadline_ns() const { return deadline_ns_; }

  auto Wait(int64_t deadline_ns) {
    struct Awaiter {
      Turn& turn;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> handle) { turn.handle_ = handle; }
      void await_resume() const {}
    };
    deadline_ns_ = deadline_ns;
    return Awaiter{*this};
  }
  Status TakeResult() { return std::move(result_); }

  // Closes the leader's group: its members are those which wait now and can be done together with it.
  void Gather() {
    if (waiting_ != nullptr) [[unlikely]]
      GatherWaiting();
  }
  // What the one write that stands for the whole group writes, and its kind.
  const Record& in() const { return group_in_; }
  WriteKind kind() const { return group_kind_; }
  bool modifies() const { return modify_ != nullptr; }
  // Lets the members wait again, so that the leader can be done alone. False: there are none.
  bool LetMembersWait();
  // Of Modifies: runs the functions of the whole group, in their order, each on what the one before it has left.
  // Returns what is to become of the key, which has `record`. If that is done, Share gives each its result.
  Modification Fold(std::optional<Record> record, krcore::Clock& clock);

  // Gives the members their results and returns the leader's. `existed`: the key was there before a write that
  // happened. An outcome that concerns the leader alone (its time was up, no memory for its value) is not passed on:
  // the members try again.
  Status Share(Status status, bool existed = true) {
    if (members_ == nullptr && !modifies()) [[likely]]
      return status;
    return ShareWithMembers(std::move(status), existed);
  }

 private:
  friend class Combiner;
  void GatherWaiting();
  Status ShareWithMembers(Status status, bool existed);
  bool is_write() const { return kind_.has_value(); }
  // Returns whether the two, which are in one line, can be done together.
  bool GoesWith(const Turn& other) const {
    if (modifies() || other.modifies()) return modifies() && other.modifies();
    const auto alone = [](const Turn& turn) {
      return turn.kind_ == WriteKind::kInsert || turn.kind_ == WriteKind::kDelete;
    };
    return !alone(*this) && !alone(other);
  }

  Combiner& combiner_;
  const uint64_t hash_;
  const std::string_view key_;
  const std::optional<WriteKind> kind_;  // nothing: it is a read
  bool leads_ = true;
  WriteKind group_kind_{};
  std::string* const out_ = nullptr;
  const Record in_;
  const ModifyFunction* const modify_ = nullptr;
  Record group_in_;
  int64_t deadline_ns_ = 0;
  Turn* chain_ = nullptr;  // leaders: the next one in the bucket
  Turn* next_ = nullptr;   // the others: the one that came next
  Turn* members_ = nullptr;
  Turn* waiting_ = nullptr;
  Turn* last_waiting_ = nullptr;
  std::coroutine_handle<> handle_;
  Status result_;
};

class Combiner {
 public:
  explicit Combiner(ClientStats& stats) : stats_(stats) {}
  void SetSize(uint32_t max_in_flight);

  // Returns whether a write of the key would wait for another one.
  bool IsBeingWritten(const KeyHash& hash, std::string_view key) const {
    for (const Turn* leader = buckets_[IndexOf(hash.h1)]; leader != nullptr; leader = leader->chain_) {
      if (leader->hash_ == hash.h1 && leader->is_write() && leader->key_ == key) return true;
    }
    return false;
  }
  // Returns whether there is an operation whose time may run out while it waits.
  bool any_waiting() const { return waiting_count_ > 0; }
  // Ends the waiting of operations whose deadline has passed. It is cheap to call often.
  void EndOverdue(int64_t now_ns);

 private:
  friend class Turn;
  static constexpr int64_t kLookEveryNs = 50'000'000;

  size_t IndexOf(uint64_t hash) const { return hash >> 24 & (buckets_.size() - 1); }
  Turn** BucketOf(uint64_t hash) { return &buckets_[IndexOf(hash)]; }
  // Makes `turn` the leader of its line, or puts it at the end of the line.
  void Enter(Turn& turn);
  void Leave(Turn& leader);
  void HandOver(Turn& leader);

  ClientStats& stats_;
  std::vector<Turn*> buckets_;  // chains of leaders; a power of two of them
  uint32_t waiting_count_ = 0;
  int64_t look_at_ns_ = 0;
};

inline Turn::Turn(Combiner& combiner, const KeyHash& hash, std::string_view key, std::string* out)
    : combiner_(combiner), hash_(hash.h1), key_(key), out_(out) {
  combiner_.Enter(*this);
}

inline Turn::Turn(Combiner& combiner, const KeyHash& hash, std::string_view key, WriteKind kind, Record in,
                  const ModifyFunction* modify)
    : combiner_(combiner),
      hash_(hash.h1),
      key_(key),
      kind_(kind),
      group_kind_(kind),
      in_(in),
      modify_(modify),
      group_in_(in) {
  combiner_.Enter(*this);
}

inline Turn::~Turn() {
  if (leads_) combiner_.Leave(*this);
}

inline void Combiner::Leave(Turn& leader) {
  if (leader.waiting_ != nullptr || leader.members_ != nullptr) [[unlikely]]
    return HandOver(leader);
  Turn** link = BucketOf(leader.hash_);
  while (*link != &leader) link = &(*link)->chain_;
  *link = leader.chain_;
}

}  // namespace kvs

#endif  // KVS_TABLE_COMBINER_H_
