// The HTTP endpoint: what it answers, and that it ends whatever clients do.
#include "metrics/exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "metrics/announcement.h"
#include "metrics/families.h"

namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FakeSource final : public metrics::Source {
 public:
  std::string Collect() const override {
    asked = true;
    while (hold) std::this_thread::yield();
    metrics::Families families;
    families.AddGauge("answer", "The answer", 42);
    return families.Text();
  }
  std::string Trouble() const override {
    const std::lock_guard lock(mutex);
    return trouble;
  }
  std::string Remark() const override {
    const std::lock_guard lock(mutex);
    return remark;
  }
  mutable std::mutex mutex;
  std::string trouble, remark;
  mutable std::atomic<bool> asked{false};
  std::atomic<bool> hold{false};
};

// A connection to the endpoint.
class Client {
 public:
  explicit Client(const cli::Address& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &in.sin_addr);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&in), sizeof(in)) == 0;
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void Send(const std::string& text) { (void)send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Reads until the other side hangs up.
  std::string ReadAll() {
    std::string text;
    char bytes[4096];
    for (ssize_t got; (got = read(fd_, bytes, sizeof(bytes))) > 0;) text.append(bytes, static_cast<size_t>(got));
    return text;
  }
  // Reads what is there.
  std::string ReadNow() {
    char bytes[4096];
    const ssize_t got = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    return {bytes, got > 0 ? static_cast<size_t>(got) : 0};
  }

 private:
  int fd_;
  bool connected_ = false;
};

// Whether this machine has an IPv4 address by which others reach it.
bool HasAnAddressOfItsOwn() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    found |= entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP) != 0 &&
             (entry->ifa_flags & IFF_LOOPBACK) == 0;
  }
  freeifaddrs(all);
  return found;
}

class ExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto exporter = metrics::Exporter::Start(*cli::ParseAddress("127.0.0.1:0", "--metrics"), source_);
    ASSERT_TRUE(exporter.ok()) << exporter.status().ToString();
    exporter_ = *std::move(exporter);
  }
  std::string Ask(const std::string& request) {
    Client client(exporter_->address());
    client.Send(request + " HTTP/1.1\r\nHost: here\r\n\r\n");
    return client.ReadAll();
  }

  FakeSource source_;
  std::unique_ptr<metrics::Exporter> exporter_;
};

TEST_F(ExporterTest, WhoListensAtAllAddressesAnnouncesOneThatOthersReach) {
  const auto everywhere =
      metrics::Exporter::Start(cli::ParseAddress("0.0.0.0:0", "--metrics").value(), source_).value();
  metrics::Announcement announcement;
  announcement.set_metrics(everywhere->address());
  const cli::Address told = cli::ParseAddress(announcement.metrics(), "").value();
  EXPECT_NE(told.host, "0.0.0.0");
  EXPECT_EQ(told.host.starts_with("127."), !HasAnAddressOfItsOwn()) << told.host;
  EXPECT_EQ(told.port, everywhere->address().port);
  Client client(told);
  ASSERT_TRUE(client.connected());
  client.Send("GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200"));
}

TEST_F(ExporterTest, MetricsAreText) {
  EXPECT_THAT(Ask("GET /metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    EndsWith("\r\n\r\n# HELP answer The answer\n# TYPE answer gauge\nanswer 42\n")));
}

TEST_F(ExporterTest, HealthIs200Or503WithTheReason) {
  EXPECT_THAT(Ask("GET /healthz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  {
    const std::lock_guard lock(source_.mutex);
    source_.remark = "spare";
  }
  EXPECT_THAT(Ask("GET /healthz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok: spare\n")));
  {
    const std::lock_guard lock(source_.mutex);
    source_.trouble = "draining";
  }
  EXPECT_THAT(Ask("GET /healthz"), AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("\r\n\r\ndraining\n")));
}

TEST_F(ExporterTest, WhatIsNotThereIs404AndOtherMethodsAreRefused) {
  for (const char* path : {"/", "/metrics/x", "/healthz2", "/etc/passwd", "/../../etc/passwd"}) {
    const std::string answer = Ask(std::string("GET ") + path);
    EXPECT_THAT(answer, ::testing::AnyOf(StartsWith("HTTP/1.1 404 "), StartsWith("HTTP/1.1 400 "))) << path;
  }
  EXPECT_THAT(Ask("POST /metrics"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("HEAD /metrics"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\n")));
}

TEST_F(ExporterTest, AnAddressInUseIsSaidToBe) {
  const auto second = metrics::Exporter::Start(exporter_->address(), source_);
  EXPECT_EQ(second.status().code(), krcore::StatusCode::kExists);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("--metrics=" + exporter_->address().ToString()), HasSubstr("in use")));
}

TEST_F(ExporterTest, AnAddressOfAnotherMachineIsRefused) {
  const auto other = metrics::Exporter::Start(*cli::ParseAddress("192.0.2.1:0", "--metrics"), source_);
  EXPECT_EQ(other.status().code(), krcore::StatusCode::kUnavailable) << other.status().ToString();
}

TEST_F(ExporterTest, ItEndsWithAScrapeInFlightThatIsAnswered) {
  source_.hold = true;
  std::string answer;
  std::thread asking([&] { answer = Ask("GET /metrics"); });
  while (!source_.asked) std::this_thread::yield();
  std::thread ending([&] { exporter_.reset(); });
  source_.hold = false;
  ending.join();
  asking.join();
  EXPECT_THAT(answer, EndsWith("answer 42\n"));
}

TEST_F(ExporterTest, ItEndsThoughClientsSayNothingOrHalfARequest) {
  Client silent(exporter_->address()), half(exporter_->address()), third(exporter_->address());
  ASSERT_TRUE(silent.connected() && half.connected() && third.connected());
  half.Send("GET /met");
  third.Send("GET /metrics HTTP/1.1\r\n");
  exporter_.reset();
  // The server need not hang up on a client that was waiting for a thread: the end of the process does.
  EXPECT_EQ(silent.ReadNow(), "");
}

TEST_F(ExporterTest, ManyClientsThatSayNothingOrTakeNothingDoNotKeepHealthFromAnswering) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<Client>(exporter_->address()));
    if (i % 3 == 1) clients.back()->Send("GET /met");
    if (i % 3 == 2) clients.back()->Send("GET /metrics HTTP/1.1\r\n\r\n");
  }
  // A server that serves clients in turn would have to give up each of these first.
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Ask("GET /healthz"), EndsWith("\r\n\r\nok\n")) << i;
}

TEST_F(ExporterTest, HealthAnswersWhereTheProcessHasNoDescriptorLeft) {
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(std::make_unique<Client>(exporter_->address()));
  const int asking = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::vector<int> all;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int fd = 0; (fd = dup(asking)) >= 0;) all.push_back(fd);
  EXPECT_EQ(errno, EMFILE);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(exporter_->address().port);
  inet_pton(AF_INET, exporter_->address().host.c_str(), &in.sin_addr);
  ASSERT_EQ(connect(asking, reinterpret_cast<const sockaddr*>(&in), sizeof(in)), 0);
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(asking, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[512];
  for (ssize_t got; (got = read(asking, bytes, sizeof(bytes))) > 0;) answer.append(bytes, static_cast<size_t>(got));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nok\n"));
  for (const int fd : all) close(fd);
  close(asking);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ExporterTest, WhatIsNoRequestIsRefused) {
  EXPECT_THAT(Ask("nonsense"), StartsWith("HTTP/1.1 "));
  Client client(exporter_->address());
  client.Send(std::string(20'000, 'x'));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 431 "));
}

TEST(MetricsAddress, IsHostAndPort) {
  EXPECT_EQ(cli::ParseAddress("127.0.0.1:9464", "--metrics")->ToString(), "127.0.0.1:9464");
  EXPECT_EQ(cli::ParseAddress("localhost:0", "--metrics")->ToString(), "127.0.0.1:0");
  EXPECT_EQ(cli::ParseAddress("[::1]:65535", "--metrics")->ToString(), "[::1]:65535");
  for (const char* wrong : {"", "9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
                            "::1:80", "[::1]", "example.invalid:80", "127.0.0.1:1 ", ":80", "1.2.3:4"}) {
    const auto address = cli::ParseAddress(wrong, "--metrics");
    EXPECT_EQ(address.status().code(), krcore::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(address.status().message()), StartsWith(std::string("--metrics=") + wrong + ": "));
  }
}

TEST(MetricsAddress, TravelsInAnAnnouncement) {
  for (const char* text : {"127.0.0.1:9464", "[::1]:1", "10.0.0.1:80", "[2001:db8::17]:65535"}) {
    metrics::Announcement announcement;
    EXPECT_EQ(announcement.metrics(), "");
    announcement.set_metrics(*cli::ParseAddress(text, "--metrics"));
    EXPECT_EQ(announcement.metrics(), text);
  }
}

}  // namespace
