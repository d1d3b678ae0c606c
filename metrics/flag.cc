#include <gflags/gflags.h>

#include "metrics/exporter.h"

DEFINE_string(metrics, "",
              "HOST:PORT to listen on for Prometheus (/metrics) and for health checks (/healthz), such as "
              "127.0.0.1:9464 or [::1]:9464; port 0: any that is free, which the log tells. Empty: off");

namespace metrics {

krcore::Result<std::optional<Address>> AddressFromFlag() {
  if (FLAGS_metrics.empty()) return std::optional<Address>();
  auto address = ParseAddress(FLAGS_metrics);
  if (!address.ok()) return address.status();
  return std::optional<Address>(*std::move(address));
}

}  // namespace metrics
