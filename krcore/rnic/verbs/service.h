// The membership service of a fabric: a thread of the process that created it, which answers its members over TCP.
// A stranger, a slow reader or a broken connection costs its own connection and nothing else.
//
// Thread safety: all methods may be called from any thread. The destructor ends the thread and closes all connections:
// members then have no service, and keep what they have connected.
#ifndef KRCORE_RNIC_VERBS_SERVICE_H_
#define KRCORE_RNIC_VERBS_SERVICE_H_

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "krcore/rnic/verbs/roster.h"
#include "krcore/rnic/verbs/socket.h"
#include "krcore/rnic/verbs/wire.h"

namespace krcore::rnic::verbs {

class Service final : public OfOneProcess {
 public:
  // As Listen().
  // `resume_ns`: after which a lost member is away (roster.h); tests have no time for it.
  static Result<std::unique_ptr<Service>> Start(const HostPort& address, const std::string& fabric,
                                                int64_t resume_ns = kResumeNs);
  ~Service() override;

  // Ends every connection, as a network that fails does. For tests.
  void BreakConnections();

 private:
  struct Connection {
    explicit Connection(Socket accepted, int64_t now_ns) : socket(std::move(accepted)), since_ns(now_ns) {}
    Socket socket;
    int64_t since_ns;
    std::vector<std::byte> in, out;
    uint32_t incarnation = 0;  // 0: a stranger still
    uint32_t channel = 0;
  };
  // What became of a connection.
  enum class Fate : uint8_t { kGoesOn, kClosed, kBroken };

  Service(Socket listener, Socket wake, std::string fabric, Roster roster);
  void Run();
  void Accept(int64_t now_ns);
  Fate Read(Connection& connection, int64_t now_ns);
  static Fate Write(Connection& connection);
  Fate Answer(Connection& connection, const Header& header, const std::byte* body, int64_t now_ns);
  void Attached(Connection& connection, uint32_t incarnation, uint32_t channel);
  void Drop(std::list<Connection>::iterator connection, Fate fate);
  // Closes the connection of the stranger who is silent longest. False: there is none.
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
