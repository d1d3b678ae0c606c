// Where the datagrams of strangers come from, and the address handles by which they are answered: a bounded number, of
// which the one used least recently gives way.
#ifndef KRCORE_RNIC_VERBS_REPLY_HANDLES_H_
#define KRCORE_RNIC_VERBS_REPLY_HANDLES_H_

#include <infiniband/verbs.h>

#include <array>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <span>

#include "krcore/clock.h"
#include "krcore/rnic/sdc/types.h"
#include "krcore/rnic/verbs/context.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {

// The GID in the 40 bytes in front of a datagram that a port with the GID `own` received: of IPv4 if that is, where the
// first 20 bytes have no meaning, and else of IPv6 or InfiniBand. Empty: it is neither.
std::optional<ibv_gid> SenderGid(const ibv_gid& own, std::span<const uint8_t, kGrhBytes> header);

// Thread safety: one thread at a time.
class ReplyHandles {
 public:
  ReplyHandles(Context* context, ibv_pd* pd, uint32_t limit, Clock* clock)
      : context_(context), pd_(pd), limit_(limit), clock_(clock) {}
  ~ReplyHandles();

  // By sdc_address::bytes, GID and LID. `port` is what it is used with next. Null: it cannot be made, and for a second
  // that is not tried again. May wait for the network, which is asked for an address that is new.
  ibv_ah* Get(const sdc_address& address, const UdPort& port);
  // The same without waiting: null, too, if Get has not been called for it lately.
  ibv_ah* Find(const sdc_address& address, const UdPort& port);

 private:
  using Key = std::array<uint8_t, 24>;
  struct Handle {
    Key key;
    ibv_ah* ah;        // null: it could not be made
    uint64_t used;     // by the port's datagrams before this one
    int64_t again_ns;  // when it is tried again
  };
  static Key KeyOf(const sdc_address& address);
  Handle* Known(const Key& key, const UdPort& port);
  void Retire(const UdPort& port);

  Context* const context_;
  ibv_pd* const pd_;
  const uint32_t limit_;
  Clock* const clock_;
  std::list<Handle> handles_;  // used last in front
  std::map<Key, std::list<Handle>::iterator> by_key_;
  std::deque<Handle> retired_;  // datagrams to them may be under way
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_REPLY_HANDLES_H_
