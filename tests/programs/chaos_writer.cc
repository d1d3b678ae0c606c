// A client process that may be killed at any time, and yet it is known what the store must hold. It has keys of its
// own, takes them by Zipf's law as YCSB does, and notes each write in a file before the write begins and when it has
// ended. Its successor goes on with that file.
//
//   chaos_writer FABRIC CONTROL_PLANE LEDGER WRITER KEYS SEED
// Works until "quit" or the end of stdin. "verify" on stdin makes it read every key, retrying while the store cannot be
// reached, and print a line that begins with "verified". In that line, silent_ms is the longest time since the last
// such line in which some key did not answer: from the beginning of an operation to the first one that ended well. What
// contradicts the ledger is printed, and makes the exit status 3.
#include <fcntl.h>
#include <kvs/client.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ycsb/workload/generators.h"

namespace {

using kvs::Status;
using kvs::StatusCode;
using kvs::WriteKind;
using Clock = std::chrono::steady_clock;

constexpr size_t kAtOnce = 16;
constexpr int kOpenPatienceMs = 60'000;

// What a key has, or may have: version 63 | present 1. 0: the key was never written.
using Content = uint64_t;
constexpr bool Present(Content content) { return (content & 1) != 0; }
constexpr Content Next(Content content, bool present) { return ((content >> 1) + 1) << 1 | (present ? 1 : 0); }

// The state of a key. `known` and `maybe` differ while a write is under way whose outcome is not known. The next write
// is then the same again.
struct Entry {
  std::atomic<Content> known, maybe;
};

class Ledger {
 public:
  Ledger(const char* path, size_t keys) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const size_t bytes = keys * sizeof(Entry);
    void* at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0)
      at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
      std::perror(path);
      std::exit(1);
    }
    close(fd);
    entries_ = {static_cast<Entry*>(at), keys};
  }
  Entry& operator[](size_t key) { return entries_[key]; }
  size_t size() const { return entries_.size(); }

 private:
  std::span<Entry> entries_;
};

struct Counts {
  uint64_t done = 0, refused = 0, unavailable = 0, unknown = 0, no_room = 0, clients = 0;
};

struct Write {
  size_t key = 0;
  WriteKind kind = WriteKind::kPut;
  Content wanted = 0;      // what the key has if the write succeeds
  bool to_refuse = false;  // an Insert of a key that is there, or an Update or Delete of one that is not
  bool again = false;      // the outcome of the last write is not known, and this is the same write
  Clock::time_point begin;
  std::string name, value;  // the request borrows them
};

class Writer {
 public:
  Writer(kvs::StoreOptions options, Ledger* ledger, std::string prefix, uint64_t seed)
      : options_(std::move(options)),
        ledger_(*ledger),
        prefix_(std::move(prefix)),
        random_(seed),
        keys_(ledger->size(), /*theta=*/0.99),
        key_random_(seed) {}

  // Returns false if it found, and printed, a contradiction.
  bool Step() {
    if (client_ == nullptr || Chance(500)) NewClient();
    switch (random_() % 4) {
      case 0: Alone(); break;
      case 1: MultiWrite(); break;
      case 2: MultiGet(); break;
      default: Coroutines();
    }
    if (troubled_) Sleep(1);
    troubled_ = false;
    return right_;
  }

  bool Verify() {
    size_t present = 0;
    for (size_t key = 0; key < ledger_.size() && right_; ++key) {
      std::string value;
      for (Status status = StatusCode::kUnavailable;;) {
        if (client_ == nullptr) NewClient();
        const auto begin = Clock::now();
        status = client_->Get(NameOf(key), &value);
        JudgeGet(key, begin, status, value);
        if (!right_ || status.ok() || status == StatusCode::kNotFound) {
          present += status.ok() ? 1 : 0;
          break;
        }
        Sleep(5);
      }
    }
    if (right_) {
      std::printf("verified times=%d keys=%zu present=%zu done=%" PRIu64 " refused=%" PRIu64 " unavailable=%" PRIu64
                  " unknown=%" PRIu64 " no_room=%" PRIu64 " clients=%" PRIu64 " silent_ms=%.1f\n",
                  ++verified_, ledger_.size(), present, counts_.done, counts_.refused, counts_.unavailable,
                  counts_.unknown, counts_.no_room, counts_.clients, longest_silence_ms_);
      longest_silence_ms_ = 0;
    }
    return right_;
  }

 private:
  static void Sleep(int ms) {
    const timespec pause{ms / 1000, ms % 1000 * 1'000'000L};
    nanosleep(&pause, nullptr);
  }
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  std::string NameOf(size_t key) const { return prefix_ + std::to_string(key); }

  // Returns a value; the lengths cover small and large blocks and values out of line.
  std::string ValueOf(size_t key, Content content) const {
    static constexpr std::array<size_t, 8> kLengths = {8, 8, 30, 100, 100, 250, 1'000, 9'000};
    std::mt19937_64 bytes(content * 1'000'003 + key);
    std::string value(kLengths[bytes() % kLengths.size()], '\0');
    for (char& byte : value) byte = static_cast<char>(bytes());
    std::memcpy(value.data(), &content, sizeof(content));
    return value;
  }

  // Retries until the fabric and its home are there. Whoever starts this program ensures that they appear.
  void NewClient() {
    client_.reset();
    Status last;
    for (int waited_ms = 0; waited_ms < kOpenPatienceMs; waited_ms += 20) {
      if (store_ == nullptr || Chance(4)) {
        store_.reset();
        auto store = kvs::Store::Open(options_);
        last = store.status();
        if (store.ok()) store_ = *std::move(store);
      }
      if (store_ != nullptr) {
        auto client = store_->NewClient();
        if (client.ok()) {
          client_ = *std::move(client);
          ++counts_.clients;
          return;
        }
        last = client.status();
      }
      Sleep(20);
    }
    std::printf("no client: %s\n", last.ToString().c_str());
    std::exit(4);
  }

  void Contradict(size_t key, const std::string& what) {
    const Entry& entry = ledger_[key];
    std::printf("contradiction: %s %s, known %" PRIx64 ", maybe %" PRIx64 "\n", NameOf(key).c_str(), what.c_str(),
                entry.known.load(), entry.maybe.load());
    right_ = false;
  }

  std::vector<size_t> SomeKeys() {
    std::vector<size_t> keys;
    while (keys.size() < kAtOnce) {
      const size_t key = keys_.Next(key_random_);
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
    return keys;
  }

  Write Plan(size_t key) {
    Entry& entry = ledger_[key];
    const Content known = entry.known, maybe = entry.maybe;
    Write write{.key = key, .again = known != maybe, .begin = Clock::now(), .name = NameOf(key)};
    if (write.again) {
      write.kind = Present(maybe) ? WriteKind::kPut : WriteKind::kDelete;
      write.wanted = maybe;
    } else {
      static constexpr std::array kKinds = {WriteKind::kPut, WriteKind::kInsert, WriteKind::kUpdate,
                                            WriteKind::kDelete};
      write.kind = kKinds[random_() % kKinds.size()];
      write.to_refuse =
          write.kind == WriteKind::kInsert ? Present(known) : write.kind != WriteKind::kPut && !Present(known);
      write.wanted = write.to_refuse ? known : Next(known, write.kind != WriteKind::kDelete);
      entry.maybe = write.wanted;
    }
    if (write.kind != WriteKind::kDelete) write.value = ValueOf(key, Present(write.wanted) ? write.wanted : 1);
    return write;
  }

  // An operation of the key has ended, and did or did not end well.
  void NoteSilence(size_t key, Clock::time_point begin, bool answered) {
    const auto since = silent_since_.try_emplace(key, begin).first;
    const std::chrono::duration<double, std::milli> silence = Clock::now() - since->second;
    longest_silence_ms_ = std::max(longest_silence_ms_, silence.count());
    if (answered) silent_since_.erase(since);
  }

  void Judge(const Write& write, const Status& status) {
    Entry& entry = ledger_[write.key];
    const StatusCode code = status.code();
    const bool refused = code == (write.kind == WriteKind::kInsert ? StatusCode::kExists : StatusCode::kNotFound) &&
                         write.kind != WriteKind::kPut;
    const bool done = status.ok() || (refused && write.again && write.kind == WriteKind::kDelete);
    NoteSilence(write.key, write.begin, done || refused);
    if (done && !write.to_refuse) {
      entry.known = write.wanted;
      ++counts_.done;
    } else if (refused && write.to_refuse) {
      ++counts_.refused;
    } else if (code == StatusCode::kUnavailable || code == StatusCode::kOutOfMemory) {
      if (!write.again) entry.maybe = entry.known.load();
      ++(code == StatusCode::kUnavailable ? counts_.unavailable : counts_.no_room);
      troubled_ = true;
    } else if (code == StatusCode::kUnknown || code == StatusCode::kTimeout) {
      ++counts_.unknown;
      troubled_ = true;
    } else {
      Contradict(write.key, "write of kind " + std::to_string(static_cast<int>(write.kind)) +
                                (write.again ? ", again" : "") + ": " + status.ToString());
    }
  }

  void JudgeGet(size_t key, Clock::time_point begin, const Status& status, const std::string& value) {
    NoteSilence(key, begin, status.ok() || status == StatusCode::kNotFound);
    Entry& entry = ledger_[key];
    const Content known = entry.known, maybe = entry.maybe;
    if (status == StatusCode::kUnavailable || status == StatusCode::kTimeout) {
      ++counts_.unavailable;
      troubled_ = true;
      return;
    }
    const auto is = [&](Content content) {
      if (status == StatusCode::kNotFound) return !Present(content);
      return status.ok() && Present(content) && value == ValueOf(key, content);
    };
    ++counts_.done;
    if (is(maybe)) {
      entry.known = maybe;  // from now on this is the content
    } else if (!is(known)) {
      Content found = 0;
      if (value.size() >= sizeof(found)) std::memcpy(&found, value.data(), sizeof(found));
      std::array<char, 40> text{};
      std::snprintf(text.data(), text.size(), ", %zu bytes of %" PRIx64, value.size(), found);
      Contradict(key, "read: " + status.ToString() + (status.ok() ? text.data() : ""));
    }
  }

  void Alone() {
    // A key that does not answer is asked again soon, so that it is known for how long it does not.
    const size_t key = silent_since_.empty() ? keys_.Next(key_random_) : silent_since_.begin()->first;
    if (Chance(2)) {
      std::string value;
      const auto begin = Clock::now();
      const Status status = client_->Get(NameOf(key), &value);
      return JudgeGet(key, begin, status, value);
    }
    const Write write = Plan(key);
    switch (write.kind) {
      case WriteKind::kPut: return Judge(write, client_->Put(write.name, write.value));
      case WriteKind::kInsert: return Judge(write, client_->Insert(write.name, write.value));
      case WriteKind::kUpdate: return Judge(write, client_->Update(write.name, write.value));
      case WriteKind::kDelete: return Judge(write, client_->Delete(write.name));
      case WriteKind::kModify: return;  // Plan makes none
    }
  }

  void MultiWrite() {
    std::vector<Write> writes;
    for (const size_t key : SomeKeys()) writes.push_back(Plan(key));
    std::vector<kvs::WriteRequest> requests;
    for (const Write& write : writes) requests.push_back({write.kind, write.name, write.value});
    client_->MultiWrite(requests);
    for (size_t i = 0; i < writes.size(); ++i) Judge(writes[i], requests[i].status);
  }

  void MultiGet() {
    const std::vector<size_t> keys = SomeKeys();
    std::vector<std::string> names, values(keys.size());
    for (const size_t key : keys) names.push_back(NameOf(key));
    const std::vector<std::string_view> views(names.begin(), names.end());
    std::vector<Status> statuses(keys.size());
    const auto begin = Clock::now();
    client_->MultiGet(views, values, statuses);
    for (size_t i = 0; i < keys.size(); ++i) JudgeGet(keys[i], begin, statuses[i], values[i]);
  }

  kvs::Task<void> GetOne(size_t key) {
    const std::string name = NameOf(key);
    std::string value;
    const auto begin = Clock::now();
    const Status status = co_await client_->GetAsync(name, &value);
    JudgeGet(key, begin, status, value);
  }

  kvs::Task<void> WriteOne(size_t key) {
    const Write write = Plan(key);
    Status status;
    switch (write.kind) {
      case WriteKind::kPut: status = co_await client_->PutAsync(write.name, write.value); break;
      case WriteKind::kInsert: status = co_await client_->InsertAsync(write.name, write.value); break;
      case WriteKind::kUpdate: status = co_await client_->UpdateAsync(write.name, write.value); break;
      case WriteKind::kDelete: status = co_await client_->DeleteAsync(write.name); break;
      case WriteKind::kModify: break;  // Plan makes none
    }
    Judge(write, status);
  }

  void Coroutines() {
    for (const size_t key : SomeKeys()) client_->Spawn(Chance(2) ? GetOne(key) : WriteOne(key));
    client_->Drain();
  }

  const kvs::StoreOptions options_;
  Ledger& ledger_;
  const std::string prefix_;
  std::mt19937_64 random_;
  const ycsb::ScrambledZipfian keys_;
  ycsb::Random key_random_;
  std::unique_ptr<kvs::Store> store_;
  std::unique_ptr<kvs::Client> client_;
  Counts counts_;
  int verified_ = 0;
  std::map<size_t, Clock::time_point> silent_since_;  // keys whose last operation did not end well: since when
  double longest_silence_ms_ = 0;
  bool right_ = true;
  bool troubled_ = false;  // something did not answer, so the next step need not hurry
};

// Returns the next line of stdin, or "" if there is no whole one; "quit" at the end of stdin.
std::string Command() {
  static std::string text;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, 0) == 1) {
    std::array<char, 256> bytes;
    const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got <= 0) return "quit";
    text.append(bytes.data(), static_cast<size_t>(got));
  }
  const size_t end = text.find('\n');
  if (end == std::string::npos) return "";
  std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s FABRIC CONTROL_PLANE LEDGER WRITER KEYS SEED\n", argv[0]);
    return 2;
  }
  Ledger ledger(argv[3], std::strtoull(argv[5], nullptr, 10));
  Writer writer({.fabric = argv[1], .control_plane = argv[2], .operation_timeout_ms = 2'000}, &ledger,
                std::string("w") + argv[4] + "-", std::strtoull(argv[6], nullptr, 10));
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (;;) {
    const std::string command = Command();
    if (command == "quit") return 0;
    if (!(command == "verify" ? writer.Verify() : writer.Step())) return 3;
  }
}
