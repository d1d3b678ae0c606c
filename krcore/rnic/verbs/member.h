// A device's membership in its fabric: two connections to the membership service (service.h), kept up by a thread.
//
// The kernel tells the service that this process is gone by closing both connections. That must not happen before the
// NIC's context is closed, since only then nothing that was posted goes out any more. A process that ends closes its
// descriptors in ascending order, and the kernel then releases them in that order or in the reverse one; so one
// connection has a descriptor below those of the NIC, the other one above: when both are closed, the NIC's is.
// docs/krcore.md has the whole argument.
//
// Thread safety: all methods may be called from any thread. Deadlines are on RealClock; without one a method waits ten
// seconds at most. In a forked child they do nothing and fail: the connections
// stayed in the parent.
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
  // Connects, below all descriptors that are opened from now on. kNotFound: no service there.
  static Result<std::unique_ptr<Member>> Connect(const HostPort& service, const std::string& fabric,
                                                 Deadline deadline = {});
  ~Member() override;

  // The lowest descriptor that the NIC may have: what it opens must get one above, or a duplicate above.
  int low_descriptor() const;
  // Becomes a member. `address`: DeviceAddress::bytes. `highest`: of the NIC's descriptors. kExists: the node id is
  // taken. kNotFound: the service is another fabric's.
  Status Join(NodeId wanted, std::span<const uint8_t, 24> address, int highest, Deadline deadline = {});
  NodeId node() const { return identity_.node; }
  uint32_t incarnation() const { return identity_.incarnation; }

  // kUnreachable also when the service does not answer before the deadline.
  PeerState Query(uint32_t incarnation, Deadline deadline = {});
  // Of those that Query found dead: without asking anybody.
  bool KnownDead(uint32_t incarnation);
  Status Publish(const std::string& name, std::span<const std::byte> value, Deadline deadline = {});
  Result<std::vector<std::byte>> Lookup(const std::string& name, Deadline deadline = {});
  // Nothing of this device executes any more: it is dead from the return on. It does not come back.
  void Leave();

 private:
  struct Verdict {  // the service's
    StatusCode code;
  };
  struct Channel {
    Socket socket;
    bool broken = false;  // still open: closing it would look like this process's end
    bool late = false;    // a reply is still to come that nobody waits for any more
    // The reply that is coming, and how much of it has come.
    std::array<std::byte, sizeof(Header) + kMaxBody> reply;
    size_t got = 0;
  };

  Member(HostPort service, std::string fabric, Socket low, Socket spare, Socket stop);
  // One request and its reply; the body is stored if there is one. Any failure of the connection makes it broken; a
  // reply that is late does not, and is dropped when it comes. kTimeout: it has not come.
  Result<Verdict> Exchange(Channel& channel, MessageType type, std::span<const std::byte> body,
                           std::span<std::byte> reply, Deadline deadline, int stop = -1);
  // On the upper channel; if that broke, once the keeper has brought it back. While he tries in vain, who asks does not
  // wait for his next try: a network may be cut for long, and the asking thread has others' deadlines to keep.
  Result<Verdict> Ask(MessageType type, std::span<const std::byte> body, std::span<std::byte> reply,
                      Deadline deadline = {});
  // Until all of the next reply has come, header and body.
  static Status AwaitReply(Channel& channel, Deadline deadline, int stop);
  // Of the keeper, and without it of whoever joins or leaves. `attach`: until when to wait for the service's word once
  // it has the new connection.
  Status Resume(uint32_t index, Deadline connect, Deadline attach, int stop);
  Status Attach(Channel& channel, uint32_t index, Deadline deadline, int stop);
  void Keep();
  // Whether the service answers on this channel.
  bool Ping(uint32_t index);
  // Waits; true: the device closes.
  bool AwaitStop(bool whole, int64_t timeout_ns);
  void StopKeeper();

  const HostPort service_;
  const std::string fabric_;
  Identity identity_;
  int highest_ = -1;

  // Of what follows. Connections are replaced by the keeper alone, so it needs no lock to look at their descriptors.
  std::mutex mutex_;
  std::array<Channel, kChannels> channels_;
  bool expelled_ = false;  // came back when another had its id, or left
  Status refusal_;         // why the service cannot be reached; Ok: nobody has tried in vain since it could

  // The keeper's, and without it of whoever joins or leaves.
  Socket spare_;      // holds a low descriptor for the lower channel's successor
  Socket undecided_;  // does the service go by it? Nobody knows, so it ends when all do

  std::mutex dead_mutex_;
  std::set<uint32_t> dead_;

  Socket stop_;  // an eventfd
  std::thread keeper_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MEMBER_H_
