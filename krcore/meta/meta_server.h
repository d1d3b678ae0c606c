// MetaServer: the table's memory at the node that hosts it. Nothing but memory: every record, also the host's
// own, is written and read by one-sided verbs.
#ifndef KRCORE_META_META_SERVER_H_
#define KRCORE_META_META_SERVER_H_

#include <cstdint>
#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/status.h"

namespace krcore::meta {

class MetaServer {
 public:
  // Allocates and registers the table, then announces it on the fabric. kExists: a living device announces one.
  static Result<std::unique_ptr<MetaServer>> Host(rnic::Device& device, rnic::Pd& pd, const rnic::Dct& dct,
                                                  uint32_t capacity);

 private:
  MetaServer() = default;
  std::unique_ptr<rnic::Memory> memory_;
  std::unique_ptr<rnic::Mr> mr_;
};

}  // namespace krcore::meta

#endif  // KRCORE_META_META_SERVER_H_
