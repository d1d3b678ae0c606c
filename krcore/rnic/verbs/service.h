// The membership service of a fabric, and the roster that is its state.
#ifndef KRCORE_RNIC_VERBS_SERVICE_H_
#define KRCORE_RNIC_VERBS_SERVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "krcore/rnic.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/rnic/verbs/wire.h"

namespace krcore::rnic::verbs {

inline constexpr size_t kMaxMembers = 1024;
inline constexpr size_t kMaxRecords = 256;
inline constexpr size_t kChannels = 2;
// How long a packet that has left a NIC may still be on its way or be executed by the NIC that it reaches.
inline constexpr int64_t kPacketLifetimeNs = 100'000'000;
// How long after the end of a process its posted requests may still be executed: the software DC's requests wait at the
// targets' agents until their deadlines.
inline constexpr int64_t kSettledNs = 3'000'000'000;
inline constexpr int64_t kResumeNs = 60'000'000'000;

enum class Loss : uint8_t {
  kClosed,  // by the member's kernel: FIN or RST. No living member closes a channel that its service knows.
  kBroken,  // by the network, or by the service itself
};

struct Identity {
  NodeId node = kNoNode;
  uint32_t incarnation = 0;
  uint64_t token = 0;  // secret between service and member
};

// Who belongs to a fabric: the state of its membership service, without sockets or a clock, so that every order of
// events can be tested. docs/krcore.md says why a member is dead when this says so.
//
// A member holds two connections, its channels. It counts as alive while both are open. It is dead once its kernel has
// closed both and kSettledNs have passed, or once it has left. In all other cases it is unreachable, and may come back
// with its old identity. When `resume_ns` have passed it is away: its records are gone, and its id, or its room among
// kMaxMembers, goes to whichever device wants it. A member that lost its place so is not let in again, and stays
// unreachable for ever, since nobody knows what it does.
class Roster {
 public:
  // Incarnations start at `first_incarnation`, which is random, so that those of earlier and later services differ.
  // `seed` is for the tokens.
  Roster(uint32_t first_incarnation, uint64_t seed, int64_t resume_ns = kResumeNs);

  // kExists: the node id is held by a member that is neither dead nor away. kOutOfMemory: kMaxMembers.
  Result<Identity> Join(NodeId wanted, int64_t now_ns);
  // Opens a channel, perhaps in place of one that broke. kNotFound: no such member, or not any more.
  Status Attach(uint32_t incarnation, uint64_t token, uint32_t channel, int64_t now_ns);
  void Lose(uint32_t incarnation, uint32_t channel, Loss loss, int64_t now_ns);
  void Leave(uint32_t incarnation);

  PeerState StateOf(uint32_t incarnation, int64_t now_ns);
  bool Present(uint32_t incarnation) const { return members_.count(incarnation) != 0; }

  // kExists: the record belongs to another device that is not dead. kInvalidArgument: name or length. kOutOfMemory:
  // kMaxRecords. kUnavailable: the member is not back yet with both channels.
  Status Publish(uint32_t incarnation, const std::string& name, std::span<const std::byte> value, int64_t now_ns);
  Result<std::vector<std::byte>> Lookup(const std::string& name, int64_t now_ns);

  // Forgets dead members, and the records of those that are away.
  void Expire(int64_t now_ns);

 private:
  enum class Channel : uint8_t { kNever, kOpen, kClosed, kBroken };
  struct Member {
    NodeId node;
    uint64_t token;
    std::array<Channel, kChannels> channels{};
    int64_t lost_ns = 0;  // when the last channel was lost, or the member joined or came back
    bool away = false;    // lost for resume_ns_
  };
  struct Record {
    uint32_t owner;
    std::vector<std::byte> value;
  };

  static bool Alive(const Member& member);
  static bool Dead(const Member& member, int64_t now_ns);
  bool Taken(NodeId node) const;
  bool MakeRoom();
  uint64_t NextToken();
  void Remove(uint32_t incarnation);
  void Expel(uint32_t incarnation);
  void ForgetRecords(uint32_t incarnation);

  uint32_t first_incarnation_;
  int64_t resume_ns_;
  uint32_t next_incarnation_;
  NodeId next_node_ = kFirstDynamicNode;
  uint64_t seed_;
  std::map<uint32_t, Member> members_;
  std::map<std::string, Record> records_;
  std::set<uint32_t> expelled_;  // incarnations
};

// The membership service of a fabric: a thread of the process that created it, which answers its members over TCP. A
// stranger, a slow reader or a broken connection costs its own connection and nothing else.
//
// Thread safety: all methods may be called from any thread. The destructor ends the thread and closes all connections:
// members then have no service, but keep what they have connected.
class Service final : public OfOneProcess {
 public:
  // Statuses as Listen(). `resume_ns`: the time after which a lost member is away (see Roster); tests shorten it.
  static Result<std::unique_ptr<Service>> Start(const HostPort& address, const std::string& fabric,
                                                int64_t resume_ns = kResumeNs);
  ~Service() override;

  // Ends every connection, as a failing network does. For tests.
  void BreakConnections();

 private:
  struct Connection {
    explicit Connection(Socket accepted, int64_t now_ns) : socket(std::move(accepted)), since_ns(now_ns) {}
    Socket socket;
    int64_t since_ns;
    std::vector<std::byte> in, out;
    uint32_t incarnation = 0;  // 0: still a stranger
    uint32_t channel = 0;
  };
  // What happened to a connection.
  enum class Fate : uint8_t { kGoesOn, kClosed, kBroken };

  Service(Socket listener, Socket wake, std::string fabric, Roster roster);
  void Run();
  void Accept(int64_t now_ns);
  Fate Read(Connection& connection, int64_t now_ns);
  static Fate Write(Connection& connection);
  Fate Answer(Connection& connection, const Header& header, const std::byte* body, int64_t now_ns);
  void Attached(Connection& connection, uint32_t incarnation, uint32_t channel);
  void Drop(std::list<Connection>::iterator connection, Fate fate);
  // Closes the connection of the stranger that has been silent longest. False: there is none.
  bool DropStranger();

  const std::string fabric_;
  Socket listener_;
  const Socket wake_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> break_all_{false};
  Roster roster_;
  std::list<Connection> connections_;
  int64_t accept_again_ns_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SERVICE_H_
