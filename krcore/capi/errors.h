// What the C interfaces of krcore and kvs share: their codes are those of StatusCode, negated, and the message of a
// thread's last failure, of whichever interface, stays with the thread.
#ifndef KRCORE_CAPI_ERRORS_H_
#define KRCORE_CAPI_ERRORS_H_

#include <exception>
#include <new>
#include <string>

#include "krcore/status.h"

namespace krcore::capi {

inline thread_local std::string last_error;

// Allocates only for a message, and refusals of the data path have none.
inline int Fail(const Status& status) {
  last_error.assign(status.message());
  return -static_cast<int>(status.code());
}
inline int Report(const Status& status) { return status.ok() ? 0 : Fail(status); }

// Runs `call`. An exception (only running out of memory throws one) becomes a code.
template <typename Call>
int Guarded(Call call) {
  StatusCode code = StatusCode::kInternal;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    code = StatusCode::kOutOfMemory;
  } catch (...) {
  }
  last_error.clear();
  return -static_cast<int>(code);
}

inline int Refuse(const char* what, const char* why) {
  return Guarded([&] { return Fail({StatusCode::kInvalidArgument, std::string(what) + why}); });
}
inline int Missing(const char* what) { return Refuse(what, " is NULL"); }

inline const char* NameOf(int error) {
  if (error > 0 || error < -static_cast<int>(StatusCode::kInternal)) return "unknown error";
  return StatusCodeName(static_cast<StatusCode>(-error)).data();
}

}  // namespace krcore::capi

#endif  // KRCORE_CAPI_ERRORS_H_
