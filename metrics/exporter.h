// Exporter: the HTTP endpoint of a program: /metrics in Prometheus's text format, and /healthz. One thread serves it,
// which sleeps while nobody asks and never waits for a client: it hangs up on one that says nothing, or does not take
// its answer, after two seconds, or sooner if others want its place. Answers are computed when they are asked for.
//
// Thread safety: create and destroy from one thread. The source is asked from the server's thread.
#ifndef METRICS_EXPORTER_H_
#define METRICS_EXPORTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cli/address.h"
#include "krcore/status.h"

namespace metrics {

// What is exported. All are called from the server's thread.
class Source {
 public:
  virtual ~Source() = default;
  // Returns all metrics, in Prometheus's text format (families.h).
  virtual std::string Collect() const = 0;
  // Returns in one line why the program is not able to serve; empty: it is able.
  virtual std::string Trouble() const = 0;
  // Returns in one line what else there is to say of one that is able; may be empty.
  virtual std::string Remark() const { return ""; }
};

// Returns where others reach a program that listens there. If `listening` means all addresses (0.0.0.0, ::), that is
// the first address of this host that is not a loopback one, if there is one.
cli::Address ReachableAddress(const cli::Address& listening);

// Returns the address from the flag --metrics; nothing: no metrics are wanted. kInvalidArgument: a message for the
// user. A program that calls it has the flag (flag.cc).
krcore::Result<std::optional<cli::Address>> AddressFromFlag();

class Exporter {
 public:
  // `source` must outlive it. kExists: the address is in use. kUnavailable: another failure to listen,
  // or the system has no thread or descriptor left; the message names the limit.
  static krcore::Result<std::unique_ptr<Exporter>> Start(const cli::Address& address, const Source& source);
  // Answers the clients that have asked, and ends within two seconds whatever clients do.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Returns where it listens, with the port that was chosen.
  const cli::Address& address() const { return address_; }

 private:
  class Server;
  explicit Exporter(cli::Address address);

  cli::Address address_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace metrics

#endif  // METRICS_EXPORTER_H_
