#include "computenode/redis/reply.h"

#include <algorithm>
#include <charconv>

namespace redis {

void Reply::Header(char type, int64_t number) {
  char digits[24];
  const auto written = std::to_chars(digits, digits + sizeof(digits), number);
  out_ += type;
  out_.append(digits, written.ptr);
  out_ += "\r\n";
}

void Reply::Simple(std::string_view text) {
  out_ += '+';
  out_ += text;
  out_ += "\r\n";
}

void Reply::Error(std::string_view text) {
  while (text.ends_with('\r') || text.ends_with('\n')) text.remove_suffix(1);
  out_ += '-';
  const size_t begin = out_.size();
  out_ += text;
  std::replace_if(
      out_.begin() + static_cast<std::ptrdiff_t>(begin), out_.end(), [](char c) { return c == '\r' || c == '\n'; },
      ' ');
  out_ += "\r\n";
}

void Reply::Bulk(std::string_view text) {
  Header('$', static_cast<int64_t>(text.size()));
  out_ += text;
  out_ += "\r\n";
}

void Reply::Null() { out_ += protocol_ == 3 ? "_\r\n" : "$-1\r\n"; }

void Reply::Verbatim(std::string_view text) {
  if (protocol_ == 2) return Bulk(text);
  Header('=', static_cast<int64_t>(text.size() + 4));
  out_ += "txt:";
  out_ += text;
  out_ += "\r\n";
}

void Reply::Map(size_t entries) {
  if (protocol_ == 3) return Header('%', static_cast<int64_t>(entries));
  Array(2 * entries);
}

}  // namespace redis
