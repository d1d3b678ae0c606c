#include "tests/redis/speakers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "computenode/redis/request_parser.h"

namespace redis_test {
namespace {

// Returns where the elements of a reply begin, and how many there are; 0 for one without elements.
struct Head {
  size_t length = 0;    // of the reply's own bytes
  size_t elements = 0;  // that follow
};
std::optional<Head> ReadHead(std::string_view bytes) {
  const size_t end = bytes.find("\r\n");
  if (end == std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  std::from_chars(bytes.data() + 1, bytes.data() + end, number);
  const size_t count = number > 0 ? static_cast<size_t>(number) : 0;
  switch (bytes.front()) {
    case '$':
    case '=':
      if (number < 0) return Head{end + 2};
      if (bytes.size() < end + 2 + count + 2) return std::nullopt;
      return Head{end + 2 + count + 2};
    case '*':
    case '~': return Head{end + 2, count};
    case '%': return Head{end + 2, 2 * count};
    default: return Head{end + 2};
  }
}

class SocketSpeaker final : public Speaker {
 public:
  explicit SocketSpeaker(int socket) : socket_(socket) {}
  ~SocketSpeaker() override { ::close(socket_); }

  std::vector<std::string> Ask(std::string_view bytes, size_t count) override {
    Send(bytes);
    std::vector<std::string> replies;
    while (replies.size() < count) {
      const std::optional<size_t> length = ReplyLength(received_);
      if (length) {
        replies.push_back(received_.substr(0, *length));
        received_.erase(0, *length);
      } else if (!Receive()) {
        break;
      }
    }
    return replies;
  }
  std::string AskLast(std::string_view bytes) override {
    Send(bytes);
    ::shutdown(socket_, SHUT_WR);
    while (Receive()) {
    }
    return std::exchange(received_, {});
  }

 private:
  void Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // it has hung up: its last replies tell why
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  bool Receive() {
    char buffer[65'536];
    const ssize_t length = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (length > 0) received_.append(buffer, static_cast<size_t>(length));
    return length > 0;
  }

  const int socket_;
  std::string received_;
};

class OurConnection final : public Speaker {
 public:
  explicit OurConnection(OurServer& server) : server_(server), conversation_(server.settings(), 1) {}

  std::vector<std::string> Ask(std::string_view bytes, size_t /*count*/) override { return CutReplies(AskLast(bytes)); }
  std::string AskLast(std::string_view bytes) override {
    std::string replies;
    while (!bytes.empty()) {
      const size_t length = 1 + random_() % std::min<size_t>(bytes.size(), 10 + bytes.size() / 4);
      conversation_.Append(bytes.substr(0, length));
      bytes.remove_prefix(length);
      replies += server_.Run(conversation_);
    }
    return replies;
  }

 private:
  OurServer& server_;
  redis::Conversation conversation_;
  std::mt19937_64 random_{1};
};

}  // namespace

std::string Encode(const Words& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  return bytes;
}

std::string EncodeInline(const Words& words) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string bytes;
  for (const std::string& word : words) {
    bytes += '"';
    for (const char letter : word) {
      const auto byte = static_cast<unsigned char>(letter);
      if (std::isalnum(byte) != 0) {
        bytes += letter;
      } else {
        bytes += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
      }
    }
    bytes += "\" ";
  }
  return bytes + "\r\n";
}

Words Split(std::string_view line) { return redis::SplitInline(line).value(); }

std::optional<size_t> ReplyLength(std::string_view bytes) {
  const std::optional<Head> head = bytes.empty() ? std::nullopt : ReadHead(bytes);
  if (!head) return std::nullopt;
  size_t length = head->length;
  for (size_t i = 0; i < head->elements; ++i) {
    const std::optional<size_t> element = ReplyLength(bytes.substr(length));
    if (!element) return std::nullopt;
    length += *element;
  }
  return length;
}

std::vector<std::string> CutReplies(std::string_view bytes) {
  std::vector<std::string> replies;
  while (!bytes.empty()) {
    const size_t length = ReplyLength(bytes).value_or(bytes.size());
    replies.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return replies;
}

std::vector<std::string> SortedElements(std::string_view reply) {
  const std::optional<Head> head = ReadHead(reply);
  std::vector<std::string> elements = CutReplies(reply.substr(head ? head->length : 0));
  std::sort(elements.begin(), elements.end());
  return elements;
}

std::unique_ptr<Speaker> SpeakOver(int socket) { return std::make_unique<SocketSpeaker>(socket); }

RedisServer::RedisServer(const std::vector<std::string>& options) : folder_(peers::PrivateFolder::Create().value()) {
  // With our limits for one value, and with one database.
  std::vector<std::string> arguments{"--port",
                                     "0",
                                     "--unixsocket",
                                     Socket(),
                                     "--save",
                                     "",
                                     "--appendonly",
                                     "no",
                                     "--dir",
                                     folder_->path(),
                                     "--proto-max-bulk-len",
                                     "16mb",
                                     "--databases",
                                     "1"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  process_ = peers::ServerProcess::Start("redis-server", arguments).value();
}

std::unique_ptr<Speaker> RedisServer::Connect() const { return SpeakOver(process_->Connect(Socket()).value()); }

OurServer::OurServer(redis::Settings settings)
    : settings_(std::move(settings)), store_(kvs::Store::OpenEmbedded({}).value()) {
  for (int i = 0; i < 2; ++i) clients_.push_back(store_->NewClient().value());
}

std::unique_ptr<Speaker> OurServer::Connect() { return std::make_unique<OurConnection>(*this); }

std::string OurServer::Run(redis::Conversation& conversation) {
  std::string sent;
  while (conversation.state() == redis::Conversation::State::kHasMore) {
    kvs::Client& client = *clients_[turn_++ % clients_.size()];
    client.Spawn(conversation.Run(client));
    client.Drain();
    sent += std::exchange(conversation.out(), {});
  }
  for (const std::unique_ptr<kvs::Client>& client : clients_) client->Poll();
  return sent;
}

}  // namespace redis_test
