// Glob patterns, as KEYS, SCAN and CONFIG GET take them.
//
// Thread safety: functions without state.
#ifndef COMPUTENODE_REDIS_GLOB_H_
#define COMPUTENODE_REDIS_GLOB_H_

#include <string_view>

namespace redis {

// Returns whether the whole of `text` matches. "*": any bytes; "?": one byte; "[ab-d]", "[^ab]": one byte of a class;
// "\x": x itself, in a class too. A class without "]" ends with the pattern. Takes time in proportion to the product of
// both lengths at most.
bool GlobMatches(std::string_view pattern, std::string_view text);

}  // namespace redis

#endif  // COMPUTENODE_REDIS_GLOB_H_
