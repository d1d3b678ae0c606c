// Sizes as people write them: "1G", "512M", "64K", "4096". Units are powers of 1024.
#ifndef CLI_SIZE_H_
#define CLI_SIZE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "krcore/status.h"

namespace cli {

// Parses a whole number of bytes, or of K, M, G or T (either case; "GB" and "GiB" mean the same as "G").
// kInvalidArgument names what is wrong with `text`.
krcore::Result<uint64_t> ParseSize(std::string_view text);
// Does the same for the value of a flag; the message begins with "--name=text: ".
krcore::Result<uint64_t> ParseSizeFlag(std::string_view name, std::string_view text);

// Returns "1G", "1.5M", "4096 bytes": the shortest form that is exact or has one decimal.
std::string FormatSize(uint64_t bytes);

}  // namespace cli

#endif  // CLI_SIZE_H_
