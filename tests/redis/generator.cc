#include "tests/redis/generator.h"

#include <cctype>

namespace redis_test {
namespace {

// A command and its arguments: k a key, v a value, n a number, f a float, i an index, p a pattern, K several keys,
// P several keys with values, s options of SET, g of GETEX, t a time and options of that command.
struct Form {
  std::string_view command, arguments;
};
constexpr Form kForms[] = {
    {"GET", "k"},        {"GET", "k"},        {"SET", "kv"},           {"SET", "kv"},        {"SET", "kvs"},
    {"SET", "kvs"},      {"SETNX", "kv"},     {"SETEX", "ktv"},        {"PSETEX", "ktv"},    {"GETSET", "kv"},
    {"GETDEL", "k"},     {"GETEX", "kg"},     {"MGET", "K"},           {"MSET", "P"},        {"MSETNX", "kv"},
    {"DEL", "K"},        {"DEL", "k"},        {"UNLINK", "K"},         {"EXISTS", "K"},      {"TOUCH", "K"},
    {"TYPE", "k"},       {"STRLEN", "k"},     {"APPEND", "kv"},        {"GETRANGE", "kii"},  {"SUBSTR", "kii"},
    {"SETRANGE", "kiv"}, {"INCR", "k"},       {"DECR", "k"},           {"INCRBY", "kn"},     {"DECRBY", "kn"},
    {"SET", "kn"},       {"SET", "kf"},       {"INCRBYFLOAT", "kf"},   {"EXPIRE", "kt"},     {"PEXPIRE", "kt"},
    {"EXPIREAT", "kt"},  {"PEXPIREAT", "kt"}, {"EXPIRETIME", "k"},     {"PEXPIRETIME", "k"}, {"PERSIST", "k"},
    {"TTL", "k"},        {"PTTL", "k"},       {"KEYS", "p"},           {"PING", ""},         {"PING", "v"},
    {"ECHO", "v"},       {"SELECT", "n"},     {"NOSUCHCOMMAND", "Kv"},
};

constexpr std::string_view kValues[] = {"",
                                        "a",
                                        "hello world",
                                        "0",
                                        "10",
                                        "-7",
                                        " 1",
                                        "1 ",
                                        "01",
                                        "-0",
                                        "+1",
                                        "--1",
                                        "3.0",
                                        "1e3",
                                        "0x1A",
                                        "nan",
                                        "infinity",
                                        std::string_view("\0\r\n\xff", 4),
                                        std::string_view("1\0", 2),
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "9223372036854775808"};
constexpr std::string_view kNumbers[] = {
    "0", "1", "-1",  "2",  "10",  "100", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
    "",  "x", "1.5", " 1", "007", "-0",  "4611686018427387904"};
constexpr std::string_view kFloats[] = {"0",
                                        "1",
                                        "-1",
                                        "0.1",
                                        "-0.1",
                                        "3.0e3",
                                        "1e-5",
                                        "1e-17",
                                        "1e-19",
                                        "1e17",
                                        "1e300",
                                        "-1e300",
                                        "1e4000",
                                        "-1e4000",
                                        "1e5000",
                                        "1e-5000",
                                        "inf",
                                        "-inf",
                                        "nan",
                                        "0x1p3",
                                        " 1",
                                        "1 ",
                                        "1,5",
                                        "",
                                        ".5",
                                        "5.",
                                        "+2",
                                        "3.14159265358979323846",
                                        "9007199254740993",
                                        "123456789012345678"};
constexpr std::string_view kIndexes[] = {"0",
                                         "1",
                                         "2",
                                         "3",
                                         "-1",
                                         "-2",
                                         "-3",
                                         "5",
                                         "-5",
                                         "100",
                                         "-100",
                                         "x",
                                         "",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "1.0",
                                         "16777216"};
constexpr std::string_view kPatterns[] = {"*",        "k*",   "key?",  "key[0-4]", "key[^0-4]", "*[12]*", "[k]ey\\1",
                                          "key[4-0]", "key[", "*\\",   "key[\\]]", "**1",       "k*y*3",  "",
                                          "?",        "????", "key[^", "key[]1]",  "[a-",       "key[1",  "KEY1"};
// Ends of lifetimes since 1970, in seconds: long ago, and in the next centuries.
constexpr std::string_view kSeconds[] = {"1", "1000000000", "4100000000", "4100000000", "4200000000", "5000000000"};
constexpr std::string_view kWrongTimes[] = {"0", "-1", "x", "", "9223372036854775807", "-9223372036854775808", "1.5"};
constexpr std::string_view kConditions[] = {"NX", "XX", "GT", "LT", "gt", "ZZ"};
constexpr std::string_view kUnits[] = {"EX", "PX", "EXAT", "PXAT"};
constexpr std::string_view kSetWords[] = {"NX", "XX", "GET", "KEEPTTL", "nx", "Get", "PERSIST", "ZZ"};

}  // namespace

Words Generator::Next() {
  const Form& form = kForms[Below(std::size(kForms))];
  Words words{std::string(form.command)};
  for (const char kind : form.arguments) {
    switch (kind) {
      case 'K':
        for (size_t i = 1 + Below(5); i > 0; --i) words.push_back(Word('k'));
        break;
      case 'P':
        for (size_t i = 1 + Below(4); i > 0; --i) words.insert(words.end(), {Word('k'), Word('v')});
        break;
      case 's': AddSetOptions(&words, true); break;
      case 'g': AddSetOptions(&words, false); break;
      case 't':
        words.push_back(Lifetime(form.command));
        while (form.command.find("EXPIRE") != std::string_view::npos && Chance(40)) {
          words.emplace_back(OneOf(kConditions));
        }
        break;
      default: words.push_back(Word(kind));
    }
  }
  if (Chance(4)) Spoil(&words);
  if (Chance(20)) {
    for (char& letter : words[0]) letter = static_cast<char>(Chance(50) ? std::tolower(letter) : letter);
  }
  return words;
}

std::string Generator::Word(char kind) {
  switch (kind) {
    case 'k': return "key" + std::to_string(Below(12));
    case 'n': return std::string(OneOf(kNumbers));
    case 'f': return std::string(OneOf(kFloats));
    case 'i': return std::string(OneOf(kIndexes));
    case 'p': return std::string(OneOf(kPatterns));
    default: return Chance(2) ? std::string(20'000, 'x') : std::string(OneOf(kValues));
  }
}

// `unit`: an option or a command.
std::string Generator::Lifetime(std::string_view unit) {
  if (Chance(15)) return std::string(OneOf(kWrongTimes));
  const std::string zeros = unit.starts_with('P') ? "000" : "";
  if (unit.ends_with("AT")) return std::string(OneOf(kSeconds)) + zeros;
  return std::to_string(1'000'000 + 60 * (++lifetimes_ * 7'919 % 100'003)) + zeros;
}

void Generator::AddSetOptions(Words* words, bool of_set) {
  do {
    if (Chance(50)) {
      const std::string_view unit = OneOf(kUnits);
      words->insert(words->end(), {std::string(unit), Lifetime(unit)});
    } else {
      words->emplace_back(of_set ? OneOf(kSetWords) : Chance(80) ? "PERSIST" : "KEEPTTL");
    }
  } while (Chance(35));
}

// One argument too many, too few, or a strange one in place of another. Keys stay: they may not be empty.
void Generator::Spoil(Words* words) {
  if (Chance(50)) return words->push_back(Word('k'));
  if (words->size() > 1) words->pop_back();
}

}  // namespace redis_test
