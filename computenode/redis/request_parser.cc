#include "computenode/redis/request_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "computenode/redis/numbers.h"

namespace redis {
namespace {

constexpr int64_t kUntrustedArguments = 10;
constexpr int64_t kUntrustedArgumentBytes = 16'384;
// An empty buffer that is larger than this is given back.
constexpr size_t kKeptBytes = size_t{256} << 10;
// So that a count that nothing follows costs no memory.
constexpr size_t kReservedArguments = 1'024;

}  // namespace

void RequestParser::Append(std::string_view bytes) {
  if (begin_ > 0 && begin_ >= buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    for (Range& range : ranges_) range.begin -= begin_;
    at_ -= begin_;
    begin_ = 0;
  }
  buffer_ += bytes;
}

RequestParser::Outcome RequestParser::Next(bool trusted) {
  if (!error_.empty()) return Outcome::kFailed;
  if (!arguments_.empty()) EndRequest();
  while (begin_ < buffer_.size()) {
    const Outcome outcome = buffer_[begin_] == '*' ? ReadArray(trusted) : ReadInline();
    if (outcome != Outcome::kRequest || !arguments_.empty()) return outcome;
    EndRequest();  // an empty array or line means nothing
  }
  return Outcome::kNeedsInput;
}

RequestParser::Outcome RequestParser::Fail(std::string error) {
  error_ = std::move(error);
  return Outcome::kFailed;
}

void RequestParser::EndRequest() {
  if (at_ == buffer_.size()) {
    buffer_.clear();
    if (buffer_.capacity() > kKeptBytes) buffer_.shrink_to_fit();
    at_ = 0;
  }
  begin_ = at_;
  counted_ = false;
  bulk_length_.reset();
  ranges_.clear();
  words_.clear();
  arguments_.clear();
}

RequestParser::Line RequestParser::ReadNumber(size_t* next, std::optional<int64_t>* number) const {
  const size_t end = buffer_.find('\r', at_);
  if (end == std::string::npos || end + 1 == buffer_.size()) return Line::kPart;
  if (buffer_[end + 1] != '\n') return Line::kMalformed;
  *number = ParseInteger(std::string_view(buffer_).substr(at_ + 1, end - at_ - 1));
  *next = end + 2;
  return Line::kWhole;
}

RequestParser::Outcome RequestParser::ReadArray(bool trusted) {
  if (!counted_) {
    if (const std::optional<Outcome> ended = ReadCount(trusted)) return *ended;
  }
  while (missing_ > 0) {
    if (const std::optional<Outcome> ended = ReadArgument(trusted)) return *ended;
  }
  for (const Range& range : ranges_) {
    arguments_.push_back(std::string_view(buffer_).substr(range.begin, range.length));
  }
  return Outcome::kRequest;
}

std::optional<RequestParser::Outcome> RequestParser::ReadCount(bool trusted) {
  std::optional<int64_t> count;
  size_t next = 0;
  const Line line = ReadNumber(&next, &count);
  if (line == Line::kMalformed) return Fail("invalid multibulk length");
  if (line == Line::kPart) {
    if (buffer_.size() - at_ > limits_.line_bytes) return Fail("too big mbulk count string");
    return Outcome::kNeedsInput;
  }
  if (!count || *count > static_cast<int64_t>(limits_.arguments)) return Fail("invalid multibulk length");
  if (!trusted && *count > kUntrustedArguments) return Fail("unauthenticated multibulk length");
  at_ = next;
  counted_ = true;
  missing_ = static_cast<size_t>(std::max<int64_t>(*count, 0));
  ranges_.reserve(std::min(missing_, kReservedArguments));
  return std::nullopt;
}

std::optional<RequestParser::Outcome> RequestParser::ReadArgument(bool trusted) {
  if (!bulk_length_) {
    if (at_ == buffer_.size()) return Outcome::kNeedsInput;
    std::optional<int64_t> length;
    size_t next = 0;
    const Line line = ReadNumber(&next, &length);
    if (line == Line::kPart) {
      if (buffer_.size() - at_ > limits_.line_bytes) return Fail("too big bulk count string");
      return Outcome::kNeedsInput;
    }
    if (buffer_[at_] != '$') return Fail(std::string("expected '$', got '") + buffer_[at_] + "'");
    if (line == Line::kMalformed || !length || *length < 0) return Fail("invalid bulk length");
    if (*length > static_cast<int64_t>(limits_.argument_bytes)) return Fail("invalid bulk length");
    if (!trusted && *length > kUntrustedArgumentBytes) return Fail("unauthenticated bulk length");
    at_ = next;
    bulk_length_ = static_cast<size_t>(*length);
    if (at_ - begin_ + *bulk_length_ > limits_.request_bytes) return Fail("too big request");
  }
  if (buffer_.size() - at_ < *bulk_length_ + 2) return Outcome::kNeedsInput;
  if (buffer_.compare(at_ + *bulk_length_, 2, "\r\n") != 0) return Fail("expected CRLF after a bulk string");
  ranges_.push_back({at_, *bulk_length_});
  at_ += *bulk_length_ + 2;
  bulk_length_.reset();
  --missing_;
  return std::nullopt;
}

RequestParser::Outcome RequestParser::ReadInline() {
  const size_t end = buffer_.find('\n', begin_);
  if (end == std::string::npos) {
    if (buffer_.size() - begin_ > limits_.line_bytes) return Fail("too big inline request");
    return Outcome::kNeedsInput;
  }
  std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::optional<std::vector<std::string>> words = SplitInline(line);
  if (!words) return Fail("unbalanced quotes in request");
  words_ = *std::move(words);
  arguments_.assign(words_.begin(), words_.end());
  at_ = end + 1;
  return Outcome::kRequest;
}

}  // namespace redis
