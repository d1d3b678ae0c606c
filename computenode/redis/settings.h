// Settings: what all conversations of a server share.
//
// Thread safety: immutable once conversations use it. The hooks are called by any thread that runs a conversation.
#ifndef COMPUTENODE_REDIS_SETTINGS_H_
#define COMPUTENODE_REDIS_SETTINGS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "krcore/clock.h"
#include "kvs/client.h"

namespace redis {

// Longer requests are protocol errors.
struct RequestLimits {
  size_t argument_bytes = kvs::kMaxValueBytes;
  size_t arguments = size_t{1} << 20;
  size_t request_bytes = size_t{64} << 20;  // of one request: its arguments and what frames them
  size_t line_bytes = size_t{64} << 10;     // of an inline command, or a line with a length
};

struct Settings {
  std::string password{};  // empty: everybody may use all commands
  RequestLimits limits{};
  // Run stops after the command that made out() so long.
  size_t output_bytes = size_t{256} << 10;
  // A command whose reply would be longer fails instead: KEYS, MGET.
  size_t reply_bytes = size_t{64} << 20;
  krcore::Clock* clock = nullptr;  // the store's; null: the host's
  // More lines for INFO, each ended by "\r\n".
  std::function<std::string()> info{};
  // All connections, for CLIENT LIST, each line ended by "\n". Without it a conversation lists itself alone.
  std::function<std::string()> client_list{};
};

}  // namespace redis

#endif  // COMPUTENODE_REDIS_SETTINGS_H_
