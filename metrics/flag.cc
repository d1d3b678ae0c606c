#include <gflags/gflags.h>

#include "metrics/exporter.h"

DEFINE_string(metrics, "",
              "HOST:PORT at which to serve Prometheus (/metrics) and health checks (/healthz), such as 127.0.0.1:9464 "
              "or [::1]:9464. Port 0: any free port, which the log names. Default: off");

namespace metrics {

krcore::Result<std::optional<cli::Address>> AddressFromFlag() {
  if (FLAGS_metrics.empty()) return std::optional<cli::Address>();
  auto address = cli::ParseAddress(FLAGS_metrics, "--metrics");
  if (!address.ok()) return address.status();
  return std::optional<cli::Address>(*std::move(address));
}

}  // namespace metrics
