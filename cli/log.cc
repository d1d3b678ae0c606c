#include "cli/log.h"

#include <glog/logging.h>

#include <string>

#include "cli/common_flags.h"
#include "cli/fail.h"

DEFINE_string(log, "info", "What is logged on stderr: info, warning, error or off");

namespace cli {

krcore::Status InitLogging() {
  if (FLAGS_log == "info") {
    FLAGS_minloglevel = google::GLOG_INFO;
  } else if (FLAGS_log == "warning") {
    FLAGS_minloglevel = google::GLOG_WARNING;
  } else if (FLAGS_log == "error") {
    FLAGS_minloglevel = google::GLOG_ERROR;
  } else if (FLAGS_log == "off") {
    FLAGS_minloglevel = google::GLOG_FATAL;  // a broken invariant always speaks
  } else {
    return {krcore::StatusCode::kInvalidArgument, "--log=" + FLAGS_log + ": not one of info, warning, error, off"};
  }
  FLAGS_logtostderr = true;
  if (!google::IsGoogleLoggingInitialized()) {
    static const std::string name(ProgramName());  // glog keeps the pointer
    google::InitGoogleLogging(name.c_str());
  }
  return krcore::Status::Ok();
}

}  // namespace cli
