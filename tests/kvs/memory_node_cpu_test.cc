// A memory node's CPU never changes a word of its published pool, because NICs are atomic only with respect to
// themselves. Here the memory node is a process of its own, which can no longer write even to its mapping of the pool,
// while a client in another process fills the pool, splits and merges.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "tests/kvs/child.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(fds_), 0); }
  ~Pipe() {
    close(fds_[0]);
    close(fds_[1]);
  }
  void Send() {
    const char byte = 0;
    EXPECT_EQ(write(fds_[1], &byte, 1), 1);
  }
  void Await() {
    char byte = 0;
    EXPECT_EQ(read(fds_[0], &byte, 1), 1);
  }

 private:
  int fds_[2] = {-1, -1};
};

// Serves until it is told to end. With `meddle` it changes a word by an atomic instruction of its CPU.
void ServeWithoutWriting(const TestStoreOptions& options, Pipe& ready, Pipe& end, bool meddle) {
  TestStore store(options);
  const std::span<std::byte> memory = store.memory();
  ASSERT_EQ(mprotect(memory.data(), memory.size(), PROT_READ), 0);
  ready.Send();
  if (meddle) std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory.data())).fetch_add(0);
  end.Await();
  ASSERT_EQ(mprotect(memory.data(), memory.size(), PROT_READ | PROT_WRITE), 0);
}

TEST(MemoryNodesCpu, ChangesNoWord) {
  TestStoreOptions options;
  options.fabric = UniqueFabric();
  Pipe ready, end;
  Child memory_node([&] { ServeWithoutWriting(options, ready, end, /*meddle=*/false); });
  ready.Await();
  {
    const auto store = TestStore::Attach(options.fabric, options);
    const auto client = store->NewClient().value();
    const auto key = [](int i) { return "key-" + std::to_string(i); };
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(client->Insert(key(i), "a").ok());
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(client->Update(key(i), "b").ok());
    for (int i = 0; i < 490; ++i) ASSERT_TRUE(client->Delete(key(i)).ok());
    EXPECT_TRUE(client->Compact().ok());
    EXPECT_GT(client->stats().splits, 0u);
    EXPECT_GT(client->stats().merges, 0u);
  }
  end.Send();
  EXPECT_EQ(memory_node.Wait(), 0);
}

TEST(MemoryNodesCpu, WouldBeCaughtAtIt) {
  TestStoreOptions options;
  Pipe ready, end;
  Child memory_node([&] { ServeWithoutWriting(options, ready, end, /*meddle=*/true); });
  ready.Await();
  end.Send();  // it does not get here
  EXPECT_NE(memory_node.Wait(), 0);
}

}  // namespace
}  // namespace surgekv_test
