#include <string>

#include "cli/common_flags.h"

DEFINE_int64(operation_timeout_ms, 5'000, "How long one operation may take before it fails with a timeout");
DEFINE_int64(open_timeout_ms, 5'000, "How long to look for the metadata server and the memory nodes at the start");

namespace cli {

krcore::Status CheckClientFlags() {
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"operation_timeout_ms", FLAGS_operation_timeout_ms},
                                    {"open_timeout_ms", FLAGS_open_timeout_ms}}) {
    if (value > 0) continue;
    return {krcore::StatusCode::kInvalidArgument,
            "--" + std::string(name) + "=" + std::to_string(value) + ": must be at least 1 (milliseconds)"};
  }
  return krcore::Status::Ok();
}

}  // namespace cli
