// The flag --metrics of the programs that can be watched.
#ifndef METRICS_FLAG_H_
#define METRICS_FLAG_H_

#include <optional>

#include "krcore/status.h"
#include "metrics/exporter.h"

namespace metrics {

// Where --metrics says; nothing: no metrics are wanted. kInvalidArgument: a message for the user.
krcore::Result<std::optional<Address>> AddressFromFlag();

}  // namespace metrics

#endif  // METRICS_FLAG_H_
