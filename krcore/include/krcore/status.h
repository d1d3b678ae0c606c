// Status and Result<T>: how every SurgeKV library reports failure.
//
// A Status is a one-word code on the data path (no allocation) and may carry a message on the control
// path. No SurgeKV library throws across its interface or ends the process.
//
// Thread safety: values; distinct objects may be used by distinct threads.
#ifndef KRCORE_STATUS_H_
#define KRCORE_STATUS_H_

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace krcore {

enum class StatusCode : unsigned char {
  kOk = 0,
  kNotFound,          // the key, node or name does not exist
  kExists,            // it exists already
  kInvalidArgument,   // the caller's mistake; the message names the argument
  kOutOfMemory,       // no room left in the memory nodes, or locally
  kUnavailable,       // the peer is dead or unreachable; may be tried again
  kTimeout,           // the deadline passed
  kUnknown,           // a WRITE or atomic may or may not have happened (flush, retry exceeded)
  kUnsupported,       // this provider or build lacks the operation
  kPermissionDenied,  // access rights, protection domain or ownership forbid it
  kQueueFull,         // more was posted than the queue holds
  kBadState,          // the object's state forbids the call
  kCorrupt,           // checksum or format mismatch that retries did not cure
  kInternal,          // a broken expectation; please report
};

// The code's name as written above, e.g. "kNotFound" -> "not found". Never null.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code) : code_(code) {}  // NOLINT(google-explicit-constructor): codes are statuses
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::make_unique<std::string>(std::move(message))) {}
  Status(const Status& other) : code_(other.code_) {
    if (other.message_) message_ = std::make_unique<std::string>(*other.message_);
  }
  Status& operator=(const Status& other) {
    if (this != &other) *this = Status(other);
    return *this;
  }
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;
  ~Status() = default;

  static Status Ok() { return {}; }
  // Appends strerror(errnum) to the message and maps the errno to a code.
  static Status FromErrno(int errnum, std::string what);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  std::string_view message() const { return message_ ? std::string_view(*message_) : std::string_view(); }
  // "out of memory: memory node 1 has 0 of 64 chunks left"
  std::string ToString() const;

  friend bool operator==(const Status& status, StatusCode code) { return status.code_ == code; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::unique_ptr<std::string> message_;
};

[[noreturn]] void DieOfMissingValue(const Status& status);

// Either a T or a Status that is not ok.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok());
  }
  Result(StatusCode code) : Result(Status(code)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // Returns the value. If there is none, prints the status to stderr and ends the process (for examples and tests, and
  // for callers that have checked).
  T& value() & {
    if (!ok()) DieOfMissingValue(status_);
    return *value_;
  }
  const T& value() const& {
    if (!ok()) DieOfMissingValue(status_);
    return *value_;
  }
  T&& value() && {
    if (!ok()) DieOfMissingValue(status_);
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

// Propagates a failure to the caller.
#define KRCORE_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                         \
    if (::krcore::Status krcore_status_ = (expr); !krcore_status_.ok()) return krcore_status_; \
  } while (false)

}  // namespace krcore

#endif  // KRCORE_STATUS_H_
