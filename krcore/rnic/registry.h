// Opens a Device by the name of its provider. krcore/providers alone names them.
#ifndef KRCORE_RNIC_REGISTRY_H_
#define KRCORE_RNIC_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic/rnic.h"

namespace krcore::rnic {

struct DeviceOptions {
  std::string provider = "sw";
  // sw: the fabric's name ([A-Za-z0-9_-]{1,40}), shared by processes of one user on one host. A name that
  // starts with "inproc:" is private to this process: nothing appears in the file system.
  // sim: the name of a World of this process.
  std::string fabric;
  NodeId node = kNoNode;       // kNoNode: the fabric assigns one from kFirstDynamicNode up
  bool create_fabric = false;  // otherwise a missing fabric is kNotFound
  // verbs: where the fabric's membership service is, "host", "host:port" or "[host]:port". Who creates the fabric
  // becomes it, if the address is this host's and nobody has it; it must stay, for without it no device joins and no
  // death is known.
  std::string address{};
  // verbs: the NIC, "device[:port[:gid_index[:mtu]]]". What is left out is chosen: the first active port, and its GID
  // of RoCE v2 and IPv4 before others.
  std::string port{};
  // By which the deadlines of questions are given (rnic.h); null: RealClock. sim: always its World's.
  Clock* clock = nullptr;
  // Of opening. verbs: and twenty seconds at most for the membership service, which need not answer.
  Deadline deadline{};
};

// kNotFound: no such fabric. kExists: the node id is taken by a living device. kUnsupported: provider unknown to this
// build (the message lists the known ones). kInvalidArgument: malformed name, or an address or port that the provider
// has no use for. kUnavailable: no such NIC, or no active port; the message lists those that there are. kTimeout,
// kUnavailable: the membership service does not answer.
Result<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options);

// Opens the NIC that OpenDevice would choose, and closes it again; joins no fabric. kUnavailable, kInvalidArgument: as
// OpenDevice. kUnsupported: provider unknown, or it has no NICs to choose from.
Status TryNic(const DeviceOptions& options);

std::vector<std::string> ProviderNames();

// Names of the fabrics of this user that exist, in alphabetical order, also those without a living device. Empty where
// the provider keeps no list. kUnsupported: provider unknown.
Result<std::vector<std::string>> ListFabrics(const std::string& provider);

// Processes that have a device on a fabric of this name whose files were removed, so that nobody else finds it. Empty
// where fabrics have no files. kUnsupported: provider unknown.
Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& provider, const std::string& fabric);

struct CleanReport {
  std::vector<std::string> removed;  // names of fabrics that had no living device
};
// Removes the shared memory of fabrics of this user without a living device: all, or the named one.
// Fabrics whose memory was asked to be kept (AllocOptions::keep_on_close) stay unless `also_kept`.
Result<CleanReport> CleanStaleFabrics(const std::string& provider, const std::string& fabric, bool also_kept);

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_REGISTRY_H_
