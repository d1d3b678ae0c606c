// A client process that lives for a moment: it puts some keys and ends, in one way or another. A file that outlives it
// says what each key must hold, so that the next process can tell, even after this one was killed.
//
//   short_lived FABRIC LEDGER KEYS FIRST COUNT END
//     puts keys FIRST to FIRST + COUNT - 1 of KEYS. END: exit; kill (by SIGKILL, after half of them); pause (it stops
//     itself after half of them, and goes on when it is continued); fork-exit, fork-kill: after half of them it forks,
//     both go on with a half each, and the child ends so.
//   short_lived FABRIC LEDGER KEYS
//     reads every key.
// Exit status: 0; 3: something is not what it must be, which is printed; 4: no client, with the reason on stderr.
#include <fcntl.h>
#include <kvs/client.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace {

using kvs::Status;
using kvs::StatusCode;

// How often a key was put. `known` is certain; `maybe` includes a put that has begun and was not answered. 0: never.
struct Entry {
  std::atomic<uint32_t> known, maybe;
};

[[noreturn]] void Fail(const std::string& what) {
  std::printf("%d: %s\n", static_cast<int>(getpid()), what.c_str());
  std::fflush(stdout);
  _exit(3);
}

std::string NameOf(size_t key) { return "key" + std::to_string(key); }

std::string ValueOf(size_t key, uint32_t version) {
  std::string value = std::to_string(key) + ":" + std::to_string(version) + ":";
  value.resize(20 + (key * 7'001 + version * 1'301) % 4'000, static_cast<char>('a' + version % 26));
  return value;
}

class ShortLived {
 public:
  ShortLived(const char* fabric, const char* ledger, size_t keys) : fabric_(fabric) {
    const int fd = open(ledger, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const size_t bytes = keys * sizeof(Entry);
    void* at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0)
      at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
      std::perror(ledger);
      _exit(1);
    }
    close(fd);
    entries_ = {static_cast<Entry*>(at), keys};
  }

  void Open() {
    client_.reset();
    store_.reset();
    auto store = kvs::Store::Open({.fabric = fabric_});
    if (!store.ok()) NoClient(store.status());
    store_ = *std::move(store);
    auto client = store_->NewClient();
    if (!client.ok()) NoClient(client.status());
    client_ = *std::move(client);
  }

  void Put(size_t from, size_t to, bool may_be_expelled) {
    for (size_t key = from; key < to; ++key) {
      Entry& entry = entries_[key];
      if (entry.known == entry.maybe) entry.maybe = entry.known + 1;
      const Status status = client_->Put(NameOf(key), ValueOf(key, entry.maybe));
      if (status.ok()) {
        entry.known = entry.maybe.load();
      } else if (!(status == StatusCode::kUnknown && may_be_expelled)) {
        Fail("put " + NameOf(key) + ": " + status.ToString());
      }
    }
  }

  // Call it in a child that was forked while the client was open.
  void ForkedClientRefuses() {
    std::string value;
    for (const Status& status : {client_->Put("never", "written"), client_->Get("never", &value)}) {
      if (!(status == StatusCode::kBadState)) Fail("a client that was opened before fork: " + status.ToString());
    }
  }

  void Verify() {
    size_t present = 0;
    for (size_t key = 0; key < entries_.size(); ++key) {
      const uint32_t known = entries_[key].known, maybe = entries_[key].maybe;
      std::string value;
      const Status status = client_->Get(NameOf(key), &value);
      const auto is = [&](uint32_t version) {
        return version == 0 ? status == StatusCode::kNotFound : status.ok() && value == ValueOf(key, version);
      };
      if (!is(known) && !is(maybe)) {
        Fail(NameOf(key) + " was put " + std::to_string(known) + " to " + std::to_string(maybe) + " times, and reads " +
             status.ToString() + " " + value.substr(0, 20));
      }
      present += status.ok() ? 1 : 0;
    }
    std::printf("verified keys=%zu present=%zu\n", entries_.size(), present);
  }

 private:
  [[noreturn]] static void NoClient(const Status& status) {
    std::fprintf(stderr, "no client: %s\n", status.ToString().c_str());
    _exit(4);
  }

  const std::string fabric_;
  std::span<Entry> entries_;
  std::unique_ptr<kvs::Store> store_;
  std::unique_ptr<kvs::Client> client_;
};

int Fork(ShortLived& client, size_t from, size_t to, bool kill) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return 4;
  if (child == 0) {
    client.ForkedClientRefuses();
    client.Open();
    client.Put(from, to, false);
    if (kill) raise(SIGKILL);
    std::exit(0);  // with what static objects do at exit
  }
  client.Put(from - (to - from), from, false);
  int status = 0;
  waitpid(child, &status, 0);
  if (kill && WIFSIGNALED(status)) return 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 7) {
    std::fprintf(stderr, "usage: %s FABRIC LEDGER KEYS [FIRST COUNT END]\n", argv[0]);
    return 2;
  }
  ShortLived client(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  client.Open();
  if (argc == 4) {
    client.Verify();
    return 0;
  }
  const size_t first = std::strtoull(argv[4], nullptr, 10), half = std::strtoull(argv[5], nullptr, 10) / 2;
  const std::string_view end = argv[6];
  client.Put(first, first + half, false);
  if (end == "kill") raise(SIGKILL);
  if (end == "pause") raise(SIGSTOP);
  if (end.starts_with("fork")) return Fork(client, first + half, first + 2 * half, end == "fork-kill");
  client.Put(first + half, first + 2 * half, end == "pause");
  return 0;
}
