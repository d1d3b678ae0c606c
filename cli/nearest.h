// What a misspelt name may have been meant for.
#ifndef CLI_NEAREST_H_
#define CLI_NEAREST_H_

#include <span>
#include <string_view>

namespace cli {

// The one of `known` that looks most like `name`: at most two letters are wrong, or it begins with `name` (of three
// letters or more). Empty: none does.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> known);

}  // namespace cli

#endif  // CLI_NEAREST_H_
