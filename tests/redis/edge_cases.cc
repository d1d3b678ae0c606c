#include "tests/redis/edge_cases.h"

#include <algorithm>
#include <string_view>

#include "tests/redis/speakers.h"

namespace redis_test {
namespace {

// Commands end with the line, or with " ; ". Lines with "#" say what follows.
constexpr std::string_view kEdgeCases = R"(
FLUSHALL ; FLUSHALL SYNC ; FLUSHDB async ; FLUSHALL NOW ; FLUSHALL SYNC SYNC ; DBSIZE ; DBSIZE x ; RANDOMKEY
KEYS *
# Numbers of arguments.
GET ; get a b ; SET ; SET k ; MSET ; MSET a ; MSET a 1 b ; MSETNX a 1 b ; DEL ; EXISTS ; TOUCH ; TYPE ; TYPE a b
INCR ; INCRBY a ; EXPIRE a ; TTL ; GETEX ; GETRANGE a 1 ; SUBSTR a 1 ; SETRANGE a 1 ; SCAN ; KEYS ; KEYS a b
PING a b ; ECHO ; ECHO a b ; SELECT ; TIME x ; STRLEN ; APPEND a ; SETEX a 1 ; PSETEX a 1 b c ; GETDEL ; GETSET a
PERSIST ; INCRBYFLOAT a
# Unknown commands.
NOSUCH ; nosuch a b c ; 'no such' 'a b' ; nosuch "\r\n" ; "a\r\nb" ; nosuch '' ; '' a ; 'GET ' a
nosuch aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc ddd
nosuch "a\x00b" c ; "no\x00such" c ; CLIENT|ID ; client|nosuch x
# Replies without keys.
PING ; ping hello ; ECHO '' ; SELECT 0 ; SELECT 1 ; SELECT -1 ; SELECT x ; SELECT 99999999999
SELECT 9999999999999999999 ; CLIENT ; CLIENT SETNAME ; CLIENT SETNAME a b ; CLIENT SETNAME 'a b'
CLIENT SETNAME abc ; CLIENT GETNAME ; CLIENT SETNAME '' ; CLIENT GETNAME ; CLIENT NOSUCH ; CLIENT GETNAME x ; CONFIG
CONFIG GET ; CONFIG NOSUCH x ; CONFIG GET save ; CONFIG GET nosuchparameter ; COMMAND NOSUCH
COMMAND INFO nosuch nosuch2 ; COMMAND COUNT x ; AUTH ; AUTH x ; AUTH default x ; AUTH x y ; AUTH a b c ; HELLO x
HELLO 1 ; HELLO 4 ; HELLO 3 AUTH ; HELLO 3 AUTH x y ; HELLO 3 NOSUCH ; HELLO 2 SETNAME ; HELLO 2 SETNAME 'a b'
HELLO 99999999999999999999
# SET and its options.
SET k v ; GET k ; SET k w NX ; SET k w XX ; SET n w XX ; SET k x NX GET ; SET n x NX GET ; DEL n ; SET n x XX GET
SET k y GET ; SET k v NX XX ; SET k v XX NX ; SET k v EX ; SET k v EX 0 ; SET k v EX -1 ; SET k v EX x
SET k v PX 0 ; SET k v EXAT 0 ; SET k v PXAT -5 ; SET k v EX 10 PX 10000 ; SET k v EX 1000000 EX 2000000 ; TTL k
SET k v KEEPTTL ; TTL k ; SET k v GET KEEPTTL ; TTL k ; SET k v KEEPTTL KEEPTTL ; SET k v KEEPTTL EX 5
SET k v EX 5 KEEPTTL ; SET k v PERSIST ; SET k v XX KEEPTTL ; TTL k ; SET k v ; TTL k ; SET k v EX 9223372036854775
SET k v EX 9223372036854776 ; SET k v PX 9223372036854775807 ; SET k v EXAT 9223372036854775 ; EXPIRETIME k ; TTL k
SET k v PXAT 9223372036854775807 ; PEXPIRETIME k ; SET k v EXAT 1 ; GET k ; EXISTS k ; SET k v GET PXAT 1
SET k v GET ; SET k v ex 1000000 nx ; SET k v xx ex 1000000 get ; SETEX k 0 v ; SETEX k -1 v ; SETEX k x v
PSETEX k 0 v ; PSETEX k 9223372036854775807 v ; SETEX k 9223372036854775807 v ; SETEX k 1000000 v ; TTL k
SETNX k w ; SETNX fresh w ; MSETNX k 1 ; MSETNX fresh2 1 ; DEL fresh fresh2 fresh
# GETEX.
SET k v EX 1000000 ; GETEX k ; TTL k ; GETEX k PERSIST ; TTL k ; GETEX k PERSIST ; GETEX k EX 0 ; GETEX k EX x
GETEX none EX 0 ; GETEX none EX x ; GETEX none ; GETEX k EX 1000000 PERSIST ; GETEX k PERSIST EX 1000000
GETEX k NX ; GETEX k KEEPTTL ; GETEX k EX 5 PX 6 ; GETEX k EX 1000000 ; TTL k ; GETEX k PXAT 4100000000000
PEXPIRETIME k ; GETEX k EXAT 4100000001 ; EXPIRETIME k ; GETEX k EXAT 1 ; GET k ; SET k v
GETEX k PX 9223372036854775807 ; GETEX k GET
# Several keys.
MSET a 1 b 2 a 3 ; MGET a b c a ; EXISTS a a b c ; TOUCH a a c ; DEL a a c ; UNLINK a b b ; MGET a b
MSET a '' b '' ; MGET a b
# Parts.
SET s 'This is a string' ; GETRANGE s 0 3 ; GETRANGE s -3 -1 ; GETRANGE s 0 -1 ; GETRANGE s 10 100 ; GETRANGE s 5 2
GETRANGE s -1 -5 ; GETRANGE s -100 -50 ; GETRANGE s -100 3 ; GETRANGE s 100 200 ; GETRANGE s 3 -100
GETRANGE none 0 -1 ; GETRANGE s a 1 ; GETRANGE s 0 9223372036854775807 ; GETRANGE s -9223372036854775808 -1
GETRANGE s 9223372036854775807 -9223372036854775808 ; SUBSTR s 1 2 ; SET e '' ; GETRANGE e 0 0 ; GETRANGE e -1 -1
STRLEN e ; STRLEN none ; STRLEN s ; SETRANGE s 5 xx ; GET s ; SETRANGE none 0 '' ; EXISTS none ; SETRANGE none 5 ''
SETRANGE none -1 x ; SETRANGE none 3 abc ; GET none ; SETRANGE s 9223372036854775807 x
SETRANGE s 9223372036854775807 '' ; SETRANGE s 16777216 x ; SETRANGE s 16777216 '' ; SETRANGE s x y
EXPIRE none 1000000 ; SETRANGE none 0 z ; TTL none ; APPEND none y ; TTL none ; APPEND empty '' ; EXISTS empty
STRLEN empty ; GETSET none q ; TTL none ; GETDEL none ; GETDEL none
# Numbers.
DEL n ; INCR n ; DECR n ; DECR n ; INCRBY n 10 ; DECRBY n -10 ; SET n 9223372036854775807 ; INCR n ; INCRBY n 0
DECR n ; SET n -9223372036854775808 ; DECR n ; INCR n ; DECRBY n -9223372036854775808 ; DECRBY n 9223372036854775807
INCRBY n x ; INCRBY n 1.0 ; INCRBY n 99999999999999999999 ; SET n ' 1' ; INCR n ; SET n 1.0 ; INCR n ; SET n ''
INCR n ; INCRBY n x ; SET n 00 ; INCR n ; SET n -0 ; INCR n ; SET n 5 EX 1000000 ; INCR n ; TTL n
INCRBYFLOAT n 0.5 ; TTL n ; GET n ; DEL f ; INCRBYFLOAT f 0.1 ; INCRBYFLOAT f 0.2 ; INCRBYFLOAT f -0.3 ; GET f
INCRBYFLOAT f 5.0e3 ; INCRBYFLOAT f 1e-17 ; INCRBYFLOAT f nan ; INCRBYFLOAT f inf ; INCRBYFLOAT f -infinity
INCRBYFLOAT f '' ; INCRBYFLOAT f ' 1' ; INCRBYFLOAT f '1 ' ; INCRBYFLOAT f 0x10 ; INCRBYFLOAT f 1e400
INCRBYFLOAT f 1e4900 ; SET f 1e4932 ; INCRBYFLOAT f 1e4932 ; INCRBYFLOAT f 1e5000 ; SET f abc ; INCRBYFLOAT f 1
SET f -0 ; INCRBYFLOAT f 0 ; SET f 1 ; INCRBYFLOAT f -1 ; SET f 10.50 ; INCRBYFLOAT f 0.1 ; SET f 3.0
INCRBYFLOAT f 0 ; SET f 123456789012345678901234567890 ; INCRBYFLOAT f 0 ; INCRBYFLOAT f 1e-4940 ; SET f 1e-4940
INCRBYFLOAT f 1e-4940 ; SET f inf ; INCRBYFLOAT f 1 ; SET f "1\x00" ; INCRBYFLOAT f 1
# Lifetimes.
DEL x ; EXPIRE x 100 ; SET x v ; EXPIRE x abc ; EXPIRE x '' ; EXPIRE none abc ; EXPIRE x 1.5 ; EXPIRE x 1000000 NX
EXPIRE x 1000000 NX ; EXPIRE x 2000000 XX ; EXPIRE x 3000000 GT ; EXPIRE x 2500000 GT ; EXPIRE x 2400000 LT
EXPIRE x 9000000 LT ; TTL x ; PERSIST x ; PERSIST x ; EXPIRE x 100 GT ; EXPIRE x 100 XX ; EXPIRE x 1000000 LT
TTL x ; EXPIRE x 5 NX XX ; EXPIRE x 5 NX GT ; EXPIRE x 5 LT NX ; EXPIRE x 5 GT LT ; EXPIRE x 5 GT LT NX
EXPIRE x 5000000 XX GT ; EXPIRE x 5 ZZ ; EXPIRE x 5 NX ZZ ; EXPIRE x abc ZZ ; EXPIRE x abc NX XX ; EXPIRE x 5 ''
EXPIRE x 9223372036854775807 ; EXPIRE x 9223372036854775 ; EXPIRE x -9223372036854775808
PEXPIRE x 9223372036854775807 ; PEXPIRE x -9223372036854775808 ; SET x v ; PEXPIREAT x 9223372036854775000
EXPIRETIME x ; PEXPIRETIME x ; TTL x ; EXPIREAT x 9223372036854775807 ; EXPIREAT x 4100000000 ; EXPIRETIME x
PEXPIRETIME x ; EXPIREAT x 4100000000 GT ; EXPIREAT x 4100000000 LT ; PEXPIREAT x 4100000000499 ; EXPIRETIME x
PEXPIREAT x 4100000000500 ; EXPIRETIME x ; EXPIREAT x 1 GT ; EXPIREAT x 0 ; EXISTS x ; SET x v ; EXPIRE x 0
EXISTS x ; SET x v ; EXPIRE x -1 LT ; EXISTS x ; SET x v ; PEXPIREAT x 1 ; GET x ; TTL x ; PTTL x ; EXPIRETIME x
PEXPIRETIME x ; PERSIST x ; TYPE x ; SET x v ; TYPE x ; TTL x ; EXPIRETIME x ; PTTL x
# SCAN.
SCAN x ; SCAN 0 COUNT ; SCAN 0 COUNT 0 ; SCAN 0 COUNT -1 ; SCAN 0 COUNT x ; SCAN 0 NOSUCH 1 ; SCAN 0 MATCH
SCAN x COUNT 0 ; SCAN 99999999999999999999 ; SCAN '0 ' ; SCAN 1x ; SCAN 0 TYPE ; SCAN 0 COUNT 10 MATCH
# Patterns.
FLUSHALL ; MSET hello 1 hallo 2 hillo 3 h*llo 4 h[llo 5 'h\llo' 6 h]llo 7 h^llo 8 h-llo 9 hllo 10 heello 11
KEYS h?llo ; KEYS h*llo ; KEYS h[ae]llo ; KEYS h[^e]llo ; KEYS h[a-e]llo ; KEYS h[e-a]llo ; KEYS 'h\*llo'
KEYS 'h\[llo' ; KEYS 'h[\]]llo' ; KEYS 'h[\\]llo' ; KEYS 'h\\llo' ; KEYS h[]llo ; KEYS h[]]llo ; KEYS h[^]llo
KEYS h[^^]llo ; KEYS h[-]llo ; KEYS h[a-]llo ; KEYS h[a-]]llo ; KEYS h[ ; KEYS h[ell ; KEYS hell[o ; KEYS hell[^x
KEYS hello* ; KEYS *hello ; KEYS *l*o* ; KEYS ** ; KEYS ????? ; KEYS HELLO ; KEYS '' ; KEYS "*\\" ; KEYS "hello\\"
MSET "h\xe4llo" 12 "h\xff" 13 "h\x7f" 14 ; KEYS "h[a-\xff]*" ; KEYS "h[\xe4-\xff]*" ; KEYS "h[\x80-\x7f]*"
KEYS 'h\ello' ; KEYS h[^a-z]llo ; KEYS h[a-zA-Z*]llo ; KEYS *?*?*?*?*?* ; KEYS *?*?*?*?*?*?* ; FLUSHALL
# Starting again.
RESET ; PING ; CLIENT GETNAME
)";

// Returns what is before `end`, and takes both away.
std::string_view TakeUntil(std::string_view* text, std::string_view end) {
  const std::string_view part = text->substr(0, text->find(end));
  text->remove_prefix(std::min(text->size(), part.size() + end.size()));
  return part;
}

}  // namespace

std::vector<std::string> EdgeCases() {
  std::vector<std::string> commands;
  for (std::string_view text = kEdgeCases; !text.empty();) {
    std::string_view line = TakeUntil(&text, "\n");
    if (line.starts_with('#')) continue;
    while (!line.empty()) commands.emplace_back(TakeUntil(&line, " ; "));
  }
  return commands;
}

std::vector<std::string> WrongFramings() {
  const std::string after = "PING\r\n";
  std::vector<std::string> framings = {"",
                                       "\r\n",
                                       "\n",
                                       "  \r\n",
                                       "\r\n\r\n",
                                       "*0\r\n",
                                       "*-1\r\n",
                                       "*-10\r\n",  // these mean nothing
                                       "PING",
                                       "PING\n",
                                       "PING\r\n",
                                       "  PING  \r\n",
                                       "\tPING\t\r\n",
                                       "*1\r\n$4\r\nPING",
                                       "*1\r\n$4\r\nPING\r",
                                       "*1\r\n$4\r\n",
                                       "*1\r\n",
                                       "*1\r",
                                       "*",
                                       "*x\r\n",
                                       "*1x\r\n",
                                       "* 1\r\n",
                                       "*\r\n",
                                       "*+1\r\n",
                                       "*01\r\n",
                                       "*2147483648\r\n",
                                       "*99999999999999999999\r\n",
                                       "*1\r\nPING\r\n",
                                       "*1\r\n:4\r\nPING\r\n",
                                       "*1\r\n\r\n\r\n",
                                       "*1\r\n*1\r\n",
                                       "*1\r\n$x\r\n",
                                       "*1\r\n$\r\n",
                                       "*1\r\n$-1\r\n",
                                       "*1\r\n$ 4\r\nPING\r\n",
                                       "*1\r\n$16777217\r\n",
                                       "*1\r\n$16777216\r\nabc",
                                       "*1\r\n$99999999999999999999\r\n",
                                       "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
                                       "ECHO \"abc",
                                       "ECHO 'abc",
                                       "ECHO \"abc\"d",
                                       "ECHO 'abc'd",
                                       "ECHO abc\"d\"",
                                       "ECHO abc'd",
                                       "ECHO \"\\x41\\x4\\n\\t\\q\\\"\"",
                                       "ECHO '\\x41\\n\\''",
                                       "ECHO \"'\" ",
                                       "ECHO '\"'",
                                       "ECHO \"\\x",
                                       "ECHO \"\\",
                                       "ECHO '\\",
                                       "ECHO \\x41",
                                       "ECHO \"\"",
                                       "ECHO ''",
                                       "ECHO \"\\xzz\"",
                                       "ECHO \"\\xFf\"",
                                       "ECHO a\tb",
                                       "ECHO a\vb",
                                       "$4\r\n",
                                       "+OK\r\n",
                                       ":1\r\n",
                                       "-x\r\n",
                                       "{}",

                                       "POST / HTTP/1.1\r\n",
                                       "post",
                                       "HOST: x\r\n",
                                       "*1\r\n$4\r\nPOST\r\n",
                                       "QUIT",
                                       "quit a b c",
                                       "*1\r\n$4\r\nQUIT\r\n",
                                       "PING\r\nQUIT\r\nPING",
                                       "SET a 1\r\nRESET\r\nGET a\r\nQUIT",
                                       "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n"};
  for (std::string& framing : framings) {
    if (!framing.empty() && framing.front() != '*' && framing.back() != '\n' && framing != "PING") framing += "\r\n";
  }
  const size_t count = framings.size();
  for (size_t i = 0; i < count; ++i) {
    if (framings[i].ends_with('\n')) framings.push_back(framings[i] + after);
  }
  framings.push_back(std::string(70'000, 'a'));
  framings.push_back("*" + std::string(70'000, '1'));
  framings.push_back("*1\r\n$" + std::string(70'000, '1'));
  framings.push_back("ECHO " + std::string(60'000, 'a') + "\r\n" + after);
  return framings;
}

std::vector<std::string> PasswordDialogues() {
  const std::string many = "*11\r\n$3\r\nDEL\r\n";
  const std::string large = "*2\r\n$4\r\nECHO\r\n$16385\r\n";
  return {"PING\r\nGET a\r\nNOSUCH\r\nGET\r\nCLIENT NOSUCH\r\nCLIENT ID\r\nSELECT 0\r\nQUIT\r\n",
          "AUTH\r\nAUTH wrong\r\nAUTH default wrong\r\nAUTH nobody secret\r\nPING\r\n",
          "AUTH secretsecret\r\nAUTH secreT\r\nAUTH secre\r\nAUTH \"\"\r\nPING\r\n",
          "AUTH secret\r\nPING\r\nAUTH wrong\r\nPING\r\nRESET\r\nPING\r\n",
          "AUTH default secret\r\nPING\r\nAUTH default secret more\r\n",
          "HELLO\r\nHELLO 3\r\nHELLO 3 SETNAME x\r\nHELLO 5\r\nPING\r\n",
          "HELLO 3 AUTH default wrong\r\nPING\r\n",
          "HELLO 3 AUTH default wrong NOSUCH\r\nHELLO 3 AUTH default wrong AUTH default secret\r\nPING\r\n",
          "HELLO 3 SETNAME x AUTH default secret NOSUCH\r\nPING\r\nCLIENT GETNAME\r\nGET none\r\n",
          "HELLO 3 AUTH default secret SETNAME 'a b'\r\nPING\r\n",
          "HELLO 3 AUTH default secret\r\nGET none\r\nHELLO 2\r\nGET none\r\n",
          "HELLO 2 SETNAME x AUTH default secret\r\nCLIENT GETNAME\r\nHELLO\r\n",
          many,
          large,
          "AUTH secret\r\n" + large + std::string(16'385, 'x') + "\r\n",
          "AUTH secret\r\n" + many + "$1\r\na\r\n"};
}

}  // namespace redis_test
