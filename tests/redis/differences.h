// Where our replies are meant to differ from redis-server's. Whatever is not here must be the same, byte by byte.
#ifndef TESTS_REDIS_DIFFERENCES_H_
#define TESTS_REDIS_DIFFERENCES_H_

#include <cstdint>
#include <string_view>

namespace redis_test {

// Replies to commands that are compared less strictly.
enum class Leniency : uint8_t {
  kConnection,  // but for the connection's number
  kOrder,       // the same elements
  kMoment,      // numbers of milliseconds or seconds that are nearly the same
  kInstant,     // the same, but a time after 2096 is exact: no request asks for it as so long from now on
};
struct LenientReply {
  std::string_view command;
  Leniency leniency;
  std::string_view reason;
};
inline constexpr std::string_view kTwoMoments = "the two execute the command at two moments";
inline constexpr LenientReply kLenientReplies[] = {
    {"hello", Leniency::kConnection, "each server counts its own connections"},
    {"keys", Leniency::kOrder, "the order of keys is that of the table, and no promise"},
    {"ttl", Leniency::kMoment, kTwoMoments},
    {"pttl", Leniency::kMoment, kTwoMoments},
    {"expiretime", Leniency::kInstant, kTwoMoments},
    {"pexpiretime", Leniency::kInstant, kTwoMoments},
};

// Requests, as bytes on a new connection, that are answered otherwise.
struct OtherReply {
  std::string_view request, theirs, ours;
  std::string_view reason;
};
inline constexpr std::string_view kNoEmptyKeys = "kvs has no empty keys";
inline constexpr std::string_view kStrictFraming = "bytes that end no line show that the sender is confused";
inline constexpr std::string_view kStrictCursor = "no client sends a cursor that it did not get";
inline constexpr std::string_view kNewer = "it is newer than redis 7.0, and clients use it";
inline constexpr OtherReply kOtherReplies[] = {
    {"GET \"\"\r\n", "$-1\r\n", "-ERR a key must have 1 to 65535 bytes\r\n", kNoEmptyKeys},
    {"MGET a \"\"\r\n", "*2\r\n$-1\r\n$-1\r\n", "-ERR a key must have 1 to 65535 bytes\r\n", kNoEmptyKeys},
    {"MSET a 1 \"\" 2\r\n", "+OK\r\n", "-ERR a key must have 1 to 65535 bytes\r\n", kNoEmptyKeys},
    {"MSETNX x 1 y 2\r\n", ":1\r\n", "-ERR MSETNX of several keys is not supported: it could not be atomic\r\n",
     "kvs has no transactions over several keys"},
    {"SCAN +0\r\n", "*2\r\n$1\r\n0\r\n*0\r\n", "-ERR invalid cursor\r\n", kStrictCursor},
    {"SCAN \"\"\r\n", "*2\r\n$1\r\n0\r\n*0\r\n", "-ERR invalid cursor\r\n", kStrictCursor},
    {"*1\r\n$4\r\nPINGxy", "+PONG\r\n", "-ERR Protocol error: expected CRLF after a bulk string\r\n", kStrictFraming},
    {"*1\rx$4\r\nPING\r\n", "+PONG\r\n", "-ERR Protocol error: invalid multibulk length\r\n", kStrictFraming},
    {"*1\r\n$4\rxPING\r\n", "+PONG\r\n", "-ERR Protocol error: invalid bulk length\r\n", kStrictFraming},
    {"SET k v IFEQ v\r\n", "-ERR syntax error\r\n", "$-1\r\n", kNewer},
    {std::string_view("ECHO a\0b\r\n", 10), "", std::string_view("$3\r\na\0b\r\n", 9),
     "redis-server waits for ever for the end of a line with a byte 0"},
    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", "-ERR wrong number of arguments for 'get' command\r\n",
     "what was answered before is sent; that the connection ends then is the same"},
};

}  // namespace redis_test

#endif  // TESTS_REDIS_DIFFERENCES_H_
