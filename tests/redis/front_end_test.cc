// FrontEnd: its sockets, its limits, and connections that move between workers.
#include "computenode/front_end/front_end.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench/peers/stores/server_process.h"
#include "computenode/elastic/fleet.h"
#include "tests/kvs/linearizability.h"
#include "tests/kvs/test_store.h"
#include "tests/redis/speakers.h"

namespace redis {
namespace {

using ::redis_test::Encode;
using ::redis_test::Speaker;
using ::redis_test::SpeakOver;
using ::redis_test::Words;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Waits for something that another thread is about to do; if it never happens, the test's time limit ends the wait. It
// sleeps in between, since the threads that it waits for need the cores.
void Await(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int Connect(const std::string& address) {
  const bool is_path = address.find('/') != std::string::npos;
  const int fd = socket(is_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int connected = -1;
  if (is_path) {
    sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
    address.copy(at.sun_path, sizeof(at.sun_path) - 1);
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at));
  } else {
    const size_t colon = address.rfind(':');
    sockaddr_in at{.sin_family = AF_INET,
                   .sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1)))),
                   .sin_addr = {},
                   .sin_zero = {}};
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr);
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at));
  }
  EXPECT_EQ(connected, 0) << address;
  return fd;
}

// A front end over a store, with its workers.
class Served {
 public:
  explicit Served(kvs::Store& store, FrontEndOptions options = {}, uint32_t workers = 1)
      : front_end_(Listen(std::move(options))), workers_(store, *front_end_, {}) {
    EXPECT_TRUE(workers_.AddWorkers(workers).ok());
  }
  ~Served() { front_end_->Stop(); }

  std::unique_ptr<Speaker> Dial() const { return SpeakOver(Connect(front_end_->address())); }
  FrontEnd& front_end() const { return *front_end_; }
  computenode::ElasticWorkers& workers() { return workers_; }
  // Waits until so many clients are there.
  void AwaitClients(uint64_t clients) const {
    Await([&] { return front_end_->Counts().clients == clients; });
  }

 private:
  static std::unique_ptr<FrontEnd> Listen(FrontEndOptions options) {
    if (options.path.empty()) options.address = {.host = "127.0.0.1", .port = 0, .v6 = false};
    return FrontEnd::Listen(options).value();
  }

  const std::unique_ptr<FrontEnd> front_end_;
  computenode::ElasticWorkers workers_;
};

std::string AskOne(Speaker& speaker, const Words& words) {
  const std::vector<std::string> replies = speaker.Ask(Encode(words), 1);
  return replies.empty() ? "" : replies.front();
}

class FrontEndTest : public ::testing::Test {
 protected:
  const std::unique_ptr<kvs::Store> store_ = kvs::Store::OpenEmbedded({}).value();
};

TEST_F(FrontEndTest, ServesClientsOverTcp) {
  const Served served(*store_);
  const auto one = served.Dial(), other = served.Dial();
  EXPECT_EQ(AskOne(*one, {"SET", "key", "value"}), "+OK\r\n");
  EXPECT_EQ(AskOne(*other, {"GET", "key"}), "$5\r\nvalue\r\n");
}

TEST_F(FrontEndTest, ServesClientsOverAUnixSocketAndReplacesOneThatWasLeftBehind) {
  const auto folder = peers::PrivateFolder::Create().value();
  const std::string path = folder->path() + "/redis";
  {
    const Served served(*store_, {.path = path});
    EXPECT_EQ(AskOne(*served.Dial(), {"PING"}), "+PONG\r\n");
    const auto second = FrontEnd::Listen({.path = path});
    EXPECT_EQ(second.status(), krcore::StatusCode::kExists) << second.status().ToString();
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "it is removed at the end";
  // As a killed process leaves one.
  const int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(at.sun_path, sizeof(at.sun_path) - 1);
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  close(left);
  const Served served(*store_, {.path = path});
  EXPECT_EQ(AskOne(*served.Dial(), {"PING"}), "+PONG\r\n");
}

TEST_F(FrontEndTest, SaysWhyItCannotListen) {
  Served served(*store_);
  FrontEndOptions options;
  const std::string address = served.front_end().address();
  options.address = {.host = "127.0.0.1", .port = 0, .v6 = false};
  options.address.port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  EXPECT_EQ(FrontEnd::Listen(options).status(), krcore::StatusCode::kExists);
  const auto folder = peers::PrivateFolder::Create().value();
  const std::string file = folder->path() + "/file";
  std::ofstream(file) << "precious";
  EXPECT_EQ(FrontEnd::Listen({.path = file}).status(), krcore::StatusCode::kInvalidArgument);
  std::string kept;
  EXPECT_TRUE(std::ifstream(file) >> kept && kept == "precious") << "only a socket is replaced";
  EXPECT_EQ(FrontEnd::Listen({.path = "/tmp/" + std::string(200, 'x')}).status(), krcore::StatusCode::kInvalidArgument);
  EXPECT_EQ(FrontEnd::Listen({.path = "/nowhere/socket"}).status(), krcore::StatusCode::kUnavailable);
}

TEST_F(FrontEndTest, AsksForThePassword) {
  const Served served(*store_, {.password = "secret"});
  const auto client = served.Dial();
  EXPECT_THAT(AskOne(*client, {"GET", "key"}), StartsWith("-NOAUTH"));
  EXPECT_EQ(AskOne(*client, {"AUTH", "secret"}), "+OK\r\n");
  EXPECT_EQ(AskOne(*client, {"GET", "key"}), "$-1\r\n");
}

TEST_F(FrontEndTest, PipelinedCommandsAreAnsweredInOrder) {
  const Served served(*store_);
  std::string requests, expected;
  for (int i = 1; i <= 5'000; ++i) {
    requests += Encode({"INCR", "counter"});
    expected += ":" + std::to_string(i) + "\r\n";
  }
  const auto client = served.Dial();
  std::string replies;
  for (const std::string& reply : client->Ask(requests, 5'000)) replies += reply;
  EXPECT_EQ(replies, expected);
}

TEST_F(FrontEndTest, AClientThatHasSaidEverythingGetsAllReplies) {
  const Served served(*store_);
  EXPECT_EQ(served.Dial()->AskLast(Encode({"SET", "key", "value"}) + Encode({"GET", "key"})), "+OK\r\n$5\r\nvalue\r\n");
  EXPECT_EQ(served.Dial()->AskLast(Encode({"PING"}) + Encode({"QUIT"}) + Encode({"PING"})), "+PONG\r\n+OK\r\n");
}

TEST_F(FrontEndTest, OneClientTooManyIsToldSo) {
  const Served served(*store_, {.max_clients = 2});
  const auto one = served.Dial();
  auto other = served.Dial();
  EXPECT_EQ(AskOne(*one, {"PING"}), "+PONG\r\n");
  EXPECT_EQ(AskOne(*other, {"PING"}), "+PONG\r\n");
  EXPECT_EQ(served.Dial()->AskLast(""), "-ERR max number of clients reached\r\n");
  other.reset();
  served.AwaitClients(1);
  EXPECT_EQ(AskOne(*served.Dial(), {"PING"}), "+PONG\r\n");
}

TEST_F(FrontEndTest, AClientThatSaysNothingIsDisconnected) {
  Served served(*store_, {.idle_ns = 1'000'000});
  const auto client = served.Dial();
  EXPECT_EQ(AskOne(*client, {"PING"}), "+PONG\r\n");
  EXPECT_THAT(client->Ask("", 1), IsEmpty());  // returns when the connection has ended
  served.AwaitClients(0);
  EXPECT_EQ(served.front_end().Counts().idle, 1u);
}

// Its replies wait in the front end, up to a limit, and then its requests in the socket.
TEST_F(FrontEndTest, AClientThatDoesNotReadHoldsUpNobodyAndGetsEverythingWhenItDoes) {
  Served served(*store_);
  const auto other = served.Dial();
  EXPECT_EQ(AskOne(*other, {"SET", "large", std::string(100'000, 'x')}), "+OK\r\n");
  constexpr size_t kRequests = 1'500;  // less than is read at a time
  std::string requests;
  for (size_t i = 0; i < kRequests; ++i) requests += Encode({"GET", "large"});
  const int slow = Connect(served.front_end().address());
  const auto ask = [&] {
    EXPECT_EQ(send(slow, requests.data(), requests.size(), MSG_NOSIGNAL), static_cast<ssize_t>(requests.size()));
  };
  ask();
  // Soon no more of it is executed, while the other client says much.
  uint64_t commands = 0, others = 1;  // the SET
  for (uint64_t before = UINT64_MAX; commands == 0 || commands != before;) {
    before = commands;
    for (int i = 0; i < 200; ++i, ++others) EXPECT_EQ(AskOne(*other, {"PING"}), "+PONG\r\n");
    commands = served.front_end().Counts().commands - others;
  }
  EXPECT_LT(commands, kRequests / 3) << "the other replies are not made yet";
  std::array<char, 65'536> buffer{};
  for (size_t missing = kRequests * (std::string("$100000\r\n").size() + 100'000 + 2); missing > 0;) {
    const ssize_t length = recv(slow, buffer.data(), buffer.size(), 0);
    ASSERT_GT(length, 0);
    missing -= static_cast<size_t>(length);
  }
  ask();
  EXPECT_GT(recv(slow, buffer.data(), buffer.size(), 0), 0);
  close(slow);  // in the middle of a reply
  served.AwaitClients(1);
  EXPECT_EQ(AskOne(*other, {"GET", "none"}), "$-1\r\n");
}

TEST_F(FrontEndTest, ListsClientsOfAllWorkers) {
  Served served(*store_, {}, 3);
  std::vector<std::unique_ptr<Speaker>> clients;
  for (int i = 0; i < 9; ++i) {
    clients.push_back(served.Dial());
    EXPECT_EQ(AskOne(*clients.back(), {"CLIENT", "SETNAME", "client" + std::to_string(i)}), "+OK\r\n");
  }
  const std::string list = AskOne(*clients.front(), {"CLIENT", "LIST"});
  for (int i = 0; i < 9; ++i) EXPECT_THAT(list, HasSubstr("name=client" + std::to_string(i) + " "));
  EXPECT_THAT(list, HasSubstr("addr=127.0.0.1:"));
  EXPECT_THAT(AskOne(*clients.front(), {"INFO"}), HasSubstr("connected_clients:9\r\n"));
}

// ---- workers come and go

// Each counts up a key of its own. A command that was lost, doubled, or answered out of turn shows at once.
class Counter {
 public:
  Counter(const Served& served, int number)
      : thread_([this, client = served.Dial(), number] {
          const std::string key = "counter" + std::to_string(number);
          for (int64_t expected = 1; !stop_; ++expected) {
            const std::string reply = AskOne(*client, {"INCR", key});
            if (reply == ":" + std::to_string(expected) + "\r\n") {
              ++counted_;
              continue;
            }
            wrong_ = reply.empty() ? "disconnected" : reply;
            return;
          }
        }) {}
  ~Counter() {
    stop_ = true;
    thread_.join();
    EXPECT_EQ(wrong_, "");
  }
  uint64_t counted() const { return counted_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> counted_{0};
  std::string wrong_;
  std::thread thread_;
};

void AwaitShares(Served& served, const std::vector<uint64_t>& shares) {
  Await([&] { return served.front_end().Counts().of_workers == shares; });
}

TEST_F(FrontEndTest, AWorkerThatIsAddedTakesOverItsShareOfTheConnections) {
  Served served(*store_);
  std::vector<std::unique_ptr<Speaker>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(served.Dial());
    EXPECT_EQ(AskOne(*clients.back(), {"PING"}), "+PONG\r\n");
  }
  EXPECT_TRUE(served.workers().AddWorkers(3).ok());
  AwaitShares(served, {3, 3, 3, 3});
  for (const auto& client : clients) EXPECT_EQ(AskOne(*client, {"PING"}), "+PONG\r\n");
  // ... and hands them on when it is retired.
  served.workers().RetireWorkers(3);
  AwaitShares(served, {12});
  for (const auto& client : clients) EXPECT_EQ(AskOne(*client, {"PING"}), "+PONG\r\n");
}

TEST_F(FrontEndTest, NothingIsLostWhileWorkersComeAndGo) {
  Served served(*store_);
  std::vector<std::unique_ptr<Counter>> counters;
  for (int i = 0; i < 8; ++i) counters.push_back(std::make_unique<Counter>(served, i));
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(served.workers().SetWorkers(1 + random() % 4).ok());
    const Counter& counter = *counters[static_cast<size_t>(i % 8)];
    const uint64_t before = counter.counted();
    Await([&] { return counter.counted() >= before + 20; });
  }
  EXPECT_GT(served.front_end().Counts().moved, 40u);
}

TEST_F(FrontEndTest, ClientsWaitWhileThereIsNoWorker) {
  Served served(*store_);
  const auto before = served.Dial();
  EXPECT_EQ(AskOne(*before, {"SET", "key", "value"}), "+OK\r\n");
  served.workers().RetireWorkers(1);
  EXPECT_TRUE(served.workers().WaitForAll());
  const auto meanwhile = served.Dial();
  std::string replies[2];
  std::thread asks([&] { replies[0] = AskOne(*before, {"GET", "key"}); });
  std::thread asks_too([&] { replies[1] = AskOne(*meanwhile, {"GET", "key"}); });
  Await([&] { return served.front_end().Counts().waiting == 2; });
  EXPECT_TRUE(served.workers().AddWorkers(1).ok());
  asks.join();
  asks_too.join();
  EXPECT_THAT(replies, ElementsAre("$5\r\nvalue\r\n", "$5\r\nvalue\r\n"));
}

TEST_F(FrontEndTest, WhatWasNotSentYetMovesWithItsConnection) {
  Served served(*store_);
  const auto other = served.Dial();
  EXPECT_EQ(AskOne(*other, {"SET", "large", std::string(8 << 20, 'x')}), "+OK\r\n");
  const int slow = Connect(served.front_end().address());
  const std::string request = Encode({"GET", "large"}) + Encode({"GET", "large"}) + Encode({"ECHO", "end"});
  ASSERT_EQ(send(slow, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  pollfd readable{.fd = slow, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&readable, 1, -1), 1);
  served.workers().RetireWorkers(1);
  Await([&] { return served.front_end().Counts().waiting == 2; });
  EXPECT_TRUE(served.workers().AddWorkers(1).ok());
  shutdown(slow, SHUT_WR);
  const std::string value = "$8388608\r\n" + std::string(8 << 20, 'x') + "\r\n";
  EXPECT_TRUE(SpeakOver(slow)->AskLast("") == value + value + "$3\r\nend\r\n");
}

TEST_F(FrontEndTest, APipelineMovesInTheMiddle) {
  Served served(*store_);
  constexpr int kCommands = 20'000;
  std::string requests, expected;
  for (int i = 1; i <= kCommands; ++i) {
    requests += Encode({"INCR", "counter"});
    expected += ":" + std::to_string(i) + "\r\n";
  }
  std::atomic<bool> over{false};
  std::string replies;
  std::thread client([&, speaker = served.Dial()] {
    replies = speaker->AskLast(requests);
    over = true;
  });
  while (!over) {  // ends without a worker and goes on with another one, again and again
    EXPECT_TRUE(served.workers().SetWorkers(0).ok());
    Await([&] { return over || served.front_end().Counts().waiting == 1; });
    const uint64_t before = served.front_end().Counts().commands;
    EXPECT_TRUE(served.workers().SetWorkers(1).ok());
    Await([&] { return over || served.front_end().Counts().commands > before; });
  }
  client.join();
  EXPECT_TRUE(replies == expected) << replies.size() << " of " << expected.size() << " bytes";
}

TEST_F(FrontEndTest, RepliesThatWaitAreSentBeforeTheEnd) {
  auto served = std::make_unique<Served>(*store_);
  EXPECT_EQ(AskOne(*served->Dial(), {"SET", "large", std::string(8 << 20, 'x')}), "+OK\r\n");
  const auto slow = served->Dial();
  const uint64_t before = served->front_end().Counts().commands;
  std::string reply;
  std::thread ends([&] {
    Await([&] { return served->front_end().Counts().commands > before; });
    served.reset();
  });
  EXPECT_EQ(AskOne(*slow, {"GET", "large"}).size(), std::string("$8388608\r\n\r\n").size() + (8 << 20));
  ends.join();
}

TEST_F(FrontEndTest, StopsWithClientsInTheMiddleOfEverything) {
  std::vector<std::thread> clients;
  {
    Served served(*store_, {}, 2);
    for (int i = 0; i < 6; ++i) {
      clients.emplace_back([client = served.Dial(), i] {
        while (!AskOne(*client, {"INCR", "counter" + std::to_string(i)}).empty()) {
        }
      });
    }
    Await([&] { return served.front_end().Counts().commands >= 1'000; });
  }
  for (std::thread& client : clients) client.join();
}

// ---- rubbish

// What needs no store is answered as it is read, and there is always more of it.
TEST_F(FrontEndTest, AClientThatFloodsItsWorkerHoldsUpNobody) {
  const Served served(*store_);
  for (const std::string& request : {std::string("\r\n"), std::string("PING\r\n")}) {
    const int flooding = Connect(served.front_end().address());
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      std::string much;
      while (much.size() < 100'000) much += request;
      std::array<char, 65'536> replies{};
      while (!stop) {
        if (send(flooding, much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
          (void)!recv(flooding, replies.data(), replies.size(), MSG_DONTWAIT);
        }
      }
    });
    const auto other = served.Dial();
    for (int i = 0; i < 200; ++i) EXPECT_EQ(AskOne(*other, {"SET", "key", std::to_string(i)}), "+OK\r\n");
    stop = true;
    sender.join();
    close(flooding);
  }
}

TEST_F(FrontEndTest, RubbishHarmsNobody) {
  Served served(*store_, {}, 2);
  const Counter counter(served, 0);
#ifdef SURGEKV_TEST_SECONDS
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(SURGEKV_TEST_SECONDS);
#else
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
#endif
  const std::vector<Words> commands{{"SET", "a", "1", "EX", "10"},
                                    {"GET", "a"},
                                    {"INCRBY", "a", "5"},
                                    {"APPEND", "a", "xyz"},
                                    {"SETRANGE", "a", "9", "z"},
                                    {"MSET", "a", "b", "c", "d"},
                                    {"SCAN", "0", "MATCH", "*"},
                                    {"HELLO", "3"},
                                    {"KEYS", "*"},
                                    {"DEL", "a", "c"},
                                    {"GETEX", "a", "PERSIST"},
                                    {"CLIENT", "SETNAME", "x"}};
  // Other bytes in each repetition with --gtest_shuffle.
  std::mt19937 random(static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()));
  uint64_t connections = 0;
  for (; std::chrono::steady_clock::now() < end; ++connections) {
    std::string bytes;
    for (uint32_t i = random() % 8; i > 0; --i) bytes += Encode(commands[random() % commands.size()]);
    for (uint32_t i = random() % 6; i > 0 && !bytes.empty(); --i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 9); break;
        case 2: bytes.insert(at, std::to_string(random())); break;
        default: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40)); break;
      }
    }
    const int fd = Connect(served.front_end().address());
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (random() % 2 == 0) {  // reads some, and goes without a word
      std::array<char, 64> some{};
      pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 1) == 1) (void)!recv(fd, some.data(), some.size(), 0);
      close(fd);
    } else {
      (void)SpeakOver(fd)->AskLast("");
    }
  }
  served.AwaitClients(1);
  EXPECT_GT(connections, 10u);
  EXPECT_GT(served.front_end().Counts().errors, 10u);
  std::printf("%lu connections, %lu errors\n", connections, served.front_end().Counts().errors);
}

// ---- what clients of several front ends see

// A host's clock that is ahead of the others'.
class ClockAhead final : public krcore::Clock {
 public:
  int64_t NowNs() override { return krcore::RealClock()->NowNs(); }
  void Relax(uint32_t spins) override { krcore::RealClock()->Relax(spins); }
  uint64_t UnixMs() override { return krcore::RealClock()->UnixMs() + 1'000; }
};

// One client, which does everything at random and notes it, by key.
class Witness {
 public:
  using Op = surgekv_test::RegisterOp;
  using Kind = surgekv_test::OpKind;
  using Result = surgekv_test::OpResult;
  static constexpr size_t kKeys = 4;

  Witness(std::unique_ptr<Speaker> client, uint32_t seed, std::atomic<uint32_t>& next_value)
      : client_(std::move(client)), random_(seed), next_value_(next_value) {}

  void DoOne() {
    const size_t k = random_() % kKeys;
    const std::string key = "key" + std::to_string(k);
    const uint32_t id = next_value_++;
    const std::string value = std::to_string(id);
    Op op{.start_ns = krcore::RealClock()->NowNs()};
    switch (random_() % 10) {
      case 0:
        op.kind = Kind::kPut, op.value = id;
        EXPECT_EQ(AskOne(*client_, {"SET", key, value}), "+OK\r\n");
        break;
      case 1: {  // it expires at any time: by somebody's clock it has expired already
        op.kind = Kind::kPut, op.value = id;
        EXPECT_EQ(AskOne(*client_, {"SET", key, value, "PX", std::to_string(1 + random_() % 1'100)}), "+OK\r\n");
        histories[k].push_back(
            {.start_ns = op.start_ns, .kind = Kind::kModify, .result = Result::kUnknown, .read = id});
        break;
      }
      case 2:
        op.kind = Kind::kInsert, op.value = id;
        op.result = AskOne(*client_, {"SET", key, value, "NX"}) == "+OK\r\n" ? Result::kOk : Result::kExists;
        break;
      case 3:
        op.kind = Kind::kUpdate, op.value = id;
        op.result = AskOne(*client_, {"SET", key, value, "XX"}) == "+OK\r\n" ? Result::kOk : Result::kNotFound;
        break;
      case 4:
        op.kind = Kind::kDelete;
        op.result = AskOne(*client_, {"DEL", key}) == ":1\r\n" ? Result::kOk : Result::kNotFound;
        break;
      case 5:
        op.kind = Kind::kModify, op.value = id;
        op.read = Number(AskOne(*client_, {"GETSET", key, value}));
        break;
      case 6:
        op.kind = Kind::kModify, op.value = id, op.read = seen_[k];
        if (AskOne(*client_, {"SET", key, value, "IFEQ", std::to_string(seen_[k])}) != "+OK\r\n") return;
        break;
      case 7: counts.push_back(Number(AskOne(*client_, {"INCR", "counter"}))); return;
      default:
        op.value = Number(AskOne(*client_, {"GET", key}));
        op.result = op.value == surgekv_test::kAbsent ? Result::kNotFound : Result::kOk;
        seen_[k] = op.value;
    }
    op.end_ns = krcore::RealClock()->NowNs();
    histories[k].push_back(op);
  }

  std::vector<Op> histories[kKeys];
  std::vector<uint32_t> counts;  // what its INCRs returned

 private:
  // The number that a reply has; absent: 0.
  static uint32_t Number(const std::string& reply) {
    if (reply == "$-1\r\n") return surgekv_test::kAbsent;
    const size_t begin = reply.front() == ':' ? 1 : reply.find('\n') + 1;
    return static_cast<uint32_t>(std::stoul(reply.substr(begin)));
  }

  const std::unique_ptr<Speaker> client_;
  std::mt19937 random_;
  std::atomic<uint32_t>& next_value_;
  uint32_t seen_[kKeys] = {};
};

TEST(FrontEnds, ClientsOfSeveralSeeOneLinearizableStoreThoughTheirClocksDiffer) {
  constexpr uint32_t kClients = 6;
  constexpr int kOperations = 2'000;
  const surgekv_test::TestStore fabric({.fabric = "redis-front-ends-" + std::to_string(getpid())});
  ClockAhead ahead;
  const auto one = surgekv_test::TestStore::Attach(fabric.fabric(), {});
  const auto other = surgekv_test::TestStore::Attach(fabric.fabric(), {.clock = &ahead});
  Served front_ends[2]{Served(*one), Served(*other, {.clock = &ahead})};
  std::atomic<uint32_t> next_value{1};
  std::atomic<uint32_t> running{kClients};
  std::vector<std::unique_ptr<Witness>> witnesses;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kClients; ++i) {
    witnesses.push_back(std::make_unique<Witness>(front_ends[i % 2].Dial(), i, next_value));
    threads.emplace_back([&, witness = witnesses.back().get()] {
      for (int done = 0; done < kOperations; ++done) witness->DoOne();
      --running;
    });
  }
  std::mt19937 random(7);
  while (running > 0) {
    EXPECT_TRUE(front_ends[random() % 2].workers().SetWorkers(1 + random() % 3).ok());
    const uint32_t until = next_value + 100;
    Await([&] { return running == 0 || next_value >= until; });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint32_t> counts;
  size_t counted = 0;
  for (const auto& witness : witnesses) {
    counted += witness->counts.size();
    counts.insert(witness->counts.begin(), witness->counts.end());
  }
  EXPECT_EQ(counts.size(), counted) << "each INCR returns another number";
  EXPECT_EQ(*counts.rbegin(), counted);
  for (size_t k = 0; k < Witness::kKeys; ++k) {
    std::vector<Witness::Op> history;
    for (const auto& witness : witnesses) {
      history.insert(history.end(), witness->histories[k].begin(), witness->histories[k].end());
    }
    EXPECT_EQ(CheckLinearizable(history), surgekv_test::Verdict::kLinearizable) << "key" << k;
  }
  EXPECT_GT(front_ends[0].front_end().Counts().moved + front_ends[1].front_end().Counts().moved, 5u);
}

}  // namespace
}  // namespace redis
