// A network that loses, doubles and reorders the software DC's datagrams: for tests, which have no such network between
// queues of one NIC. Nothing else sets it.
#ifndef KRCORE_RNIC_VERBS_DATAGRAM_FAULTS_H_
#define KRCORE_RNIC_VERBS_DATAGRAM_FAULTS_H_

#include <atomic>
#include <cstdint>

namespace krcore::rnic::verbs {

struct DatagramFaults {
  // Of so many datagrams one, each on its own; 0: none.
  uint32_t lost = 0, doubled = 0, late = 0;  // late: behind the next one
  uint64_t seed = 1;
};

// Of all queues of the process that are made from now on; null: none. What it points to stays. Relaxed: set before they
// are made.
inline std::atomic<const DatagramFaults*> datagram_faults{nullptr};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_DATAGRAM_FAULTS_H_
