// Conversation: one connection that speaks the protocol of Redis, without its socket. What the connection received goes
// in; the commands in it run on a client of the store; what is to be sent comes out.
//
//   redis::Conversation conversation(settings, id);
//   conversation.Append(received);
//   do {
//     co_await conversation.Run(client);
//     ... send conversation.out(), and clear what was sent
//   } while (conversation.state() == redis::Conversation::State::kHasMore);
//   if (conversation.state() == redis::Conversation::State::kOver) ... close
//
// Commands run one after the other, in order. Each Run may be given another client.
//
// Thread safety: one thread at a time. While a Run has not ended, only that Run touches the conversation.
#ifndef COMPUTENODE_REDIS_CONVERSATION_H_
#define COMPUTENODE_REDIS_CONVERSATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "computenode/redis/command.h"
#include "computenode/redis/request_parser.h"
#include "computenode/redis/settings.h"
#include "kvs/client.h"
#include "kvs/task.h"

namespace redis {

class Conversation {
 public:
  enum class State : uint8_t {
    kNeedsInput,  // all that was received has been executed, but for part of a command. Append, then Run
    kHasMore,     // there may be more commands to run. Send out() first: while it is long, Run does nothing
    kOver,        // send out(), then close the connection: QUIT, a protocol error, or an unknown outcome
  };

  static constexpr int kCommandsPerRun = 16;

  // `settings` is borrowed. `id` is the connection's, for CLIENT ID.
  Conversation(const Settings& settings, uint64_t id);
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  // Does nothing when the conversation is over. Append in pieces of moderate length, and only when the state is
  // kNeedsInput: so what the conversation holds is limited by Settings::limits.
  void Append(std::string_view bytes);
  // Executes what was received: until nothing is left, at most kCommandsPerRun commands, and while out() is shorter
  // than Settings::output_bytes.
  kvs::Task<void> Run(kvs::Client& client);
  State state() const { return state_; }
  // What is to be sent. The caller removes what it has sent, or takes the whole string.
  std::string& out() { return out_; }

  const Session& session() const { return session_; }
  // Commands so far, and those of them that failed, protocol errors included.
  uint64_t commands() const { return commands_; }
  uint64_t errors() const { return errors_; }
  // Memory that it holds for requests. What is to be sent is apart.
  size_t held_bytes() const { return parser_.held_bytes(); }

 private:
  const Settings& settings_;
  RequestParser parser_;
  Session session_;
  std::string out_;
  State state_ = State::kNeedsInput;
  uint64_t commands_ = 0, errors_ = 0;
};

}  // namespace redis

#endif  // COMPUTENODE_REDIS_CONVERSATION_H_
