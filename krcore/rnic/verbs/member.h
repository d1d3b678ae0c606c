// A device's membership in its fabric: two connections to the membership service (service.h), maintained by a thread.
//
// The kernel tells the service that this process is gone by closing both connections. That must not happen before the
// NIC's context is closed, since only then nothing that was posted goes out any more. A process that ends closes its
// descriptors in ascending order, and the kernel then releases them in that order or in the reverse one. So one
// connection has a descriptor below the NIC's descriptors, the other one above: when both are closed, the NIC's are,
// too. docs/krcore.md has the whole argument.
//
// Thread safety: all methods may be called from any thread. Deadlines are on RealClock; without one a method waits ten
// seconds at most. In a forked child they do nothing and fail, because the connections stayed in the parent.
#ifndef KRCORE_RNIC_VERBS_MEMBER_H_
#define KRCORE_RNIC_VERBS_MEMBER_H_

#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "krcore/rnic/verbs/service.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/rnic/verbs/wire.h"

namespace krcore::rnic::verbs {

class Member final : public OfOneProcess {
 public:
  // Connects, with a descriptor below all that are opened from now on. kNotFound: no service there.
  static Result<std::unique_ptr<Member>> Connect(const HostPort& service, const std::string& fabric,
                                                 Deadline deadline = {});
  ~Member() override;

  // The NIC's descriptors must be above this one: what it opens must get a descriptor, or a duplicate, above it.
  int low_descriptor() const;
  // Becomes a member. `address`: DeviceAddress::bytes. `highest`: the NIC's highest descriptor. kExists: the node id is
  // taken. kNotFound: the service is another fabric's.
  Status Join(NodeId wanted, std::span<const uint8_t, 24> address, int highest, Deadline deadline = {});
  NodeId node() const { return identity_.node; }
  uint32_t incarnation() const { return identity_.incarnation; }

  // kUnreachable also when the service does not answer before the deadline.
  PeerState Query(uint32_t incarnation, Deadline deadline = {});
  // Whether Query has found it dead; asks nobody.
  bool KnownDead(uint32_t incarnation);
  Status Publish(const std::string& name, std::span<const std::byte> value, Deadline deadline = {});
  Result<std::vector<std::byte>> Lookup(const std::string& name, Deadline deadline = {});
  // Call when nothing of this device executes any more: it is dead when this returns, and does not come back.
  void Leave();

 private:
  struct Verdict {  // the service's
    StatusCode code;
  };
  struct Channel {
    Socket socket;
    bool broken = false;  // still open: closing it would look like this process's end
    bool late = false;    // a reply is still to come, and nobody waits for it any more
    // The reply that is arriving, and how much of it has arrived.
    std::array<std::byte, sizeof(Header) + kMaxBody> reply;
    size_t got = 0;
  };

  Member(HostPort service, std::string fabric, Socket low, Socket spare, Socket stop);
  // Sends one request and receives its reply; stores the body if there is one. Any failure of the connection marks it
  // broken. A late reply does not, and is dropped when it comes. kTimeout: it has not come.
  Result<Verdict> Exchange(Channel& channel, MessageType type, std::span<const std::byte> body,
                           std::span<std::byte> reply, Deadline deadline, int stop = -1);
  // Uses the upper channel; if that broke, waits until the keeper has restored it. If the keeper's try has failed, this
  // does not wait for the next one: a network may be cut for long, and the calling thread has others' deadlines to
  // keep.
  Result<Verdict> Ask(MessageType type, std::span<const std::byte> body, std::span<std::byte> reply,
                      Deadline deadline = {});
  // Waits until all of the next reply, header and body, has arrived.
  static Status AwaitReply(Channel& channel, Deadline deadline, int stop);
  // Called by the keeper, and without one by the thread that joins or leaves. `attach`: until when to wait for the
  // service's answer once it has the new connection.
  Status Resume(uint32_t index, Deadline connect, Deadline attach, int stop);
  Status Attach(Channel& channel, uint32_t index, Deadline deadline, int stop);
  void Keep();
  // Whether the service answers on this channel.
  bool Ping(uint32_t index);
  // Waits; returns true if the device closes.
  bool AwaitStop(bool whole, int64_t timeout_ns);
  void StopKeeper();

  const HostPort service_;
  const std::string fabric_;
  Identity identity_;
  int highest_ = -1;

  // Guards what follows. Only the keeper replaces connections, so it needs no lock to look at their descriptors.
  std::mutex mutex_;
  std::array<Channel, kChannels> channels_;
  bool expelled_ = false;  // came back when another device had its id, or left
  Status refusal_;         // why the service cannot be reached; Ok: no try has failed since it could

  // Used by the keeper, and without one by the thread that joins or leaves.
  Socket spare_;      // holds a low descriptor for the lower channel's successor
  Socket undecided_;  // nobody knows whether the service uses it, so it is closed only with all others

  std::mutex dead_mutex_;
  std::set<uint32_t> dead_;

  Socket stop_;  // an eventfd
  std::thread keeper_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MEMBER_H_
