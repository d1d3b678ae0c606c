// The words of an inline command.
#include <cctype>
#include <charconv>

#include "computenode/redis/request_parser.h"

namespace redis {
namespace {

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
