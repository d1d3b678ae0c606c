// Operation: how a compute node is watched: its endpoint of metrics and health, and its announcements in the fabric,
// if --metrics wants them. Of its own: a device of the fabric and threads that sleep, so that neither waits for the
// other's service.
//
// Thread safety: one thread, the main one, but for trouble().
#ifndef COMPUTENODE_OPERATION_H_
#define COMPUTENODE_OPERATION_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "computenode/options.h"
#include "krcore/node.h"
#include "metrics/announcer.h"
#include "metrics/exporter.h"

namespace computenode {

class Operation {
 public:
  // What is exported and announced must outlive it.
  Operation() = default;
  ~Operation() { Stop(); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Listens, if the options say so. After the process has made what is forked from it. kExists: the address is in use.
  krcore::Status Listen(const Options& options, const metrics::Source& source);
  // Announces it from now on, once the fabric is there. What fails is logged; the service goes on without.
  void Announce(const Options& options, std::function<metrics::Announcement()> tell);
  // Why the last announcement failed; empty: it did not, or there is none to be. Any thread may ask.
  std::string trouble() const;
  // Nobody asks `source` or `tell` any more when it returns.
  void Stop();

 private:
  mutable std::mutex mutex_;  // guards announcer_ against who asks for trouble
  std::unique_ptr<metrics::Exporter> exporter_;
  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<metrics::Announcer> announcer_;
};

}  // namespace computenode

#endif  // COMPUTENODE_OPERATION_H_
