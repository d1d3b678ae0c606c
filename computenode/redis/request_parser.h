// RequestParser: cuts what a connection sent into requests: arrays of bulk strings, or inline commands. It remembers
// how far it came, so that a request that arrives in pieces is not read again from its start.
//
// Thread safety: one thread at a time.
#ifndef COMPUTENODE_REDIS_REQUEST_PARSER_H_
#define COMPUTENODE_REDIS_REQUEST_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computenode/redis/settings.h"

namespace redis {

class RequestParser {
 public:
  enum class Outcome : uint8_t {
    kNeedsInput,  // what is left is no whole request
    kRequest,     // arguments() has at least one
    kFailed,      // error() says why; nothing more can be read
  };

  explicit RequestParser(const RequestLimits& limits) : limits_(limits) {}

  // Not while arguments() are in use.
  void Append(std::string_view bytes);
  // Ends the request before, and reads the next one. `trusted`: the other side has given the password, if there is one.
  // Otherwise requests must be small.
  Outcome Next(bool trusted);
  // Valid until Next or Append.
  std::span<const std::string_view> arguments() const { return arguments_; }
  const std::string& error() const { return error_; }
  // Memory that it holds.
  size_t held_bytes() const;

 private:
  struct Range {
    size_t begin, length;  // in buffer_
  };
  enum class Line : uint8_t { kWhole, kPart, kMalformed };

  Outcome Fail(std::string error);
  void EndRequest();
  void DropRead();
  Outcome ReadArray(bool trusted);
  std::optional<Outcome> ReadCount(bool trusted);
  std::optional<Outcome> ReadArgument(bool trusted);
  Outcome ReadInline();
  // Reads the number after the first byte of a line, up to "\r\n".
  Line ReadNumber(size_t* next, std::optional<int64_t>* number) const;

  const RequestLimits& limits_;
  std::string buffer_;
  size_t begin_ = 0;  // of the request that is being read; what is before is done
  size_t at_ = 0;     // read up to here
  // Of an array:
  bool counted_ = false;
  size_t missing_ = 0;                 // arguments that are still to come
  std::optional<size_t> bulk_length_;  // of the argument at at_
  std::vector<Range> ranges_;
  // Of an inline command:
  std::vector<std::string> words_;
  std::vector<std::string_view> arguments_;
  std::string error_;
};

// Cuts an inline command into words. They may be in "..." with \n, \r, \t, \b, \a and \xHH, or in '...' with \'.
// Nothing: quotes do not end, or something follows them at once.
std::optional<std::vector<std::string>> SplitInline(std::string_view line);

}  // namespace redis

#endif  // COMPUTENODE_REDIS_REQUEST_PARSER_H_
