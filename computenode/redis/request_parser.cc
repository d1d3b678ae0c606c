#include "computenode/redis/request_parser.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <utility>

#include "computenode/redis/words.h"

namespace redis {
namespace {

constexpr int64_t kUntrustedArguments = 10;
constexpr int64_t kUntrustedArgumentBytes = 16'384;
// What is larger is given back after the request that needed it.
constexpr size_t kKeptBytes = size_t{256} << 10, kKeptArguments = 4'096;
// So that a count that nothing follows costs no memory.
constexpr size_t kReservedArguments = 1'024;

// ---- the words of an inline command

// A form feed or vertical tab separates words, but within one it is a byte like any other.
bool IsSpace(char byte) { return std::isspace(static_cast<unsigned char>(byte)) != 0; }
bool EndsWord(char byte) { return IsSpace(byte) && byte != '\v' && byte != '\f'; }
bool IsHexDigit(char byte) { return std::isxdigit(static_cast<unsigned char>(byte)) != 0; }

char Unescaped(char letter) {
  switch (letter) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'b': return '\b';
    case 'a': return '\a';
    default: return letter;
  }
}

// Reads one byte, or one escape sequence, between quotes. Returns how long it is in `text`.
size_t ReadQuoted(std::string_view text, char quote, std::string* word) {
  const bool escaped = text.front() == '\\' && text.size() >= 2;
  if (escaped && quote == '"' && text.size() >= 4 && text[1] == 'x' && IsHexDigit(text[2]) && IsHexDigit(text[3])) {
    unsigned value = 0;
    std::from_chars(text.data() + 2, text.data() + 4, value, 16);
    word->push_back(static_cast<char>(value));
    return 4;
  }
  if (escaped && quote == '"') {
    word->push_back(Unescaped(text[1]));
    return 2;
  }
  if (escaped && text[1] == '\'') {
    word->push_back('\'');
    return 2;
  }
  word->push_back(text.front());
  return 1;
}

// Takes a word from the front of `text`, which begins with one.
std::optional<std::string> TakeWord(std::string_view* text) {
  std::string word;
  while (!text->empty() && !EndsWord(text->front())) {
    const char quote = text->front();
    text->remove_prefix(1);
    if (quote != '"' && quote != '\'') {
      word.push_back(quote);
      continue;
    }
    while (!text->empty() && text->front() != quote) text->remove_prefix(ReadQuoted(*text, quote, &word));
    if (text->empty()) return std::nullopt;
    text->remove_prefix(1);
    if (!text->empty() && !IsSpace(text->front())) return std::nullopt;
  }
  return word;
}

}  // namespace

void RequestParser::Append(std::string_view bytes) {
  if (begin_ > 0 && begin_ >= buffer_.size() / 2) DropRead();
  buffer_ += bytes;
}

// Drops the requests that are done.
void RequestParser::DropRead() {
  buffer_.erase(0, begin_);
  if (buffer_.capacity() > kKeptBytes && buffer_.size() < kKeptBytes) buffer_.shrink_to_fit();
  for (Range& range : ranges_) range.begin -= begin_;
  at_ -= begin_;
  begin_ = 0;
}

size_t RequestParser::held_bytes() const {
  return buffer_.capacity() + ranges_.capacity() * sizeof(Range) + words_.capacity() * sizeof(std::string) +
         arguments_.capacity() * sizeof(std::string_view);
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
  counted_ = false;
  bulk_length_.reset();
  ranges_.clear();
  words_.clear();
  arguments_.clear();
  if (arguments_.capacity() > kKeptArguments) {
    ranges_.shrink_to_fit();
    words_.shrink_to_fit();
    arguments_.shrink_to_fit();
  }
  begin_ = at_;
  // What is left is moved once: then the buffer is small.
  const bool shrinks = buffer_.capacity() > kKeptBytes && buffer_.size() - at_ < kKeptBytes / 4;
  if (at_ == buffer_.size() || shrinks) DropRead();
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

std::optional<std::vector<std::string>> SplitInline(std::string_view line) {
  std::vector<std::string> words;
  while (true) {
    while (!line.empty() && IsSpace(line.front())) line.remove_prefix(1);
    if (line.empty()) return words;
    std::optional<std::string> word = TakeWord(&line);
    if (!word) return std::nullopt;
    words.push_back(*std::move(word));
  }
}

}  // namespace redis
