// Exporter: the HTTP endpoint of a program: /metrics in Prometheus's text format, and /healthz. A few threads of
// the web server's, which sleep while nobody asks; whatever is asked is computed then. A client that says nothing holds
// one of them for a second.
//
// Thread safety: create and destroy from one thread. The source is asked from the server's threads.
#ifndef METRICS_EXPORTER_H_
#define METRICS_EXPORTER_H_

#include <prometheus/collectable.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "krcore/status.h"

struct mg_connection;
struct mg_context;

namespace metrics {

// What is exported. Both may be called from several threads at a time.
class Source : public prometheus::Collectable {
 public:
  // Why the program is not able to serve, in one line; empty: it is.
  virtual std::string Trouble() const = 0;
};

// "HOST:PORT" as --metrics has it: an IPv4 address, an IPv6 one in brackets, or localhost; port 0: any free one.
struct Address {
  std::string host;  // as inet_pton reads it
  uint16_t port = 0;
  bool v6 = false;

  std::string ToString() const;
};
// kInvalidArgument: a message for the user.
krcore::Result<Address> ParseAddress(const std::string& text);
// Where others reach who listens there: at the first address of this host's that is not of the loopback, if that is all
// of them (0.0.0.0, ::) and there is one.
Address ReachableAddress(const Address& listening);

class Exporter {
 public:
  // `source` must outlive it. kExists: the address is in use. kUnavailable: another failure to listen.
  static krcore::Result<std::unique_ptr<Exporter>> Start(const Address& address, const Source& source);
  // Answers what is being asked, if that takes no longer than a second, and ends within some seconds whatever clients
  // do.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Where it listens, with the port that was chosen.
  const Address& address() const { return address_; }

 private:
  Exporter(Address address, const Source& source) : address_(std::move(address)), source_(source) {}
  static int OnComplaint(const mg_connection* connection, const char* message);
  static int OnMetrics(mg_connection* connection, void* self);
  static int OnHealth(mg_connection* connection, void* self);
  static int OnOther(mg_connection* connection, void* self);

  Address address_;
  const Source& source_;
  std::atomic<bool> started_{false};  // set by the maker; from then on complaint_ is not touched
  std::string complaint_;             // the first of the server, while it starts
  std::atomic<int> under_way_{0};     // answers; a hint for who ends it
  mg_context* server_ = nullptr;
};

}  // namespace metrics

#endif  // METRICS_EXPORTER_H_
