#include "computenode/redis/conversation.h"

namespace redis {

Conversation::Conversation(const Settings& settings, uint64_t id)
    : settings_(settings), parser_(settings.limits), session_{.id = id, .trusted = settings.password.empty()} {}

void Conversation::Append(std::string_view bytes) {
  if (state_ == State::kOver) return;
  parser_.Append(bytes);
  state_ = State::kHasMore;
}

kvs::Task<void> Conversation::Run(kvs::Client& client) {
  const uint64_t last = commands_ + kCommandsPerRun;
  while (state_ == State::kHasMore && out_.size() < settings_.output_bytes && commands_ < last) {
    const size_t begin = out_.size();
    Reply reply(out_, session_.protocol);
    switch (parser_.Next(session_.trusted)) {
      case RequestParser::Outcome::kNeedsInput: state_ = State::kNeedsInput; break;
      case RequestParser::Outcome::kFailed:
        reply.Error("ERR Protocol error: " + parser_.error());
        state_ = State::kOver;
        break;
      case RequestParser::Outcome::kRequest:
        co_await Execute(client, settings_, session_, parser_.arguments(), reply);
        ++commands_;
        if (session_.over) state_ = State::kOver;
        break;
    }
    if (out_.size() > begin && out_[begin] == '-') ++errors_;
  }
}

}  // namespace redis
