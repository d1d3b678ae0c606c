// Fuzzes /dev/krcore: processes that make random calls, from nonsense to right ones, in two threads each on the same
// files. All are killed in the middle. It checks only that the module goes on and that requests are accepted, because
// what is refused at the door meets little of the module. The kernel's log tells the rest.
//
//   kmod_fuzz SECONDS [SEED]
//
// On a kernel with failslab, allocations of its calls fail as well, with the probability that is set there.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kmod/include/uapi/krcore/krcore_ioctl.h"
#include "tests/support/kill_process.h"

namespace {

using Random = std::mt19937_64;
constexpr size_t kPage = 4096, kBytes = 64 * kPage;
constexpr int kFiles = 3;
constexpr int kProcesses = 4;

// A region of some process, as other processes would learn of it. All fields are relaxed: a slot that is read half old
// and half new is one more wrong request.
struct Slot {
  std::atomic<pid_t> pid;  // 0: none
  std::atomic<uint64_t> addr, length;
  std::atomic<uint32_t> key;
};

struct Shared {  // shared by the processes, so that they name each other's memory
  std::array<Slot, 64> slots;
  std::atomic<uint64_t> pushed, accepted;  // requests
  std::atomic<uint64_t> messages;          // messages that were popped
};

// What a slot held.
struct Named {
  uint64_t addr, length;
  uint32_t key;
};

constexpr auto kRelaxed = std::memory_order_relaxed;

struct Process {
  Shared* shared;
  uint8_t* memory;
  std::array<int, kFiles> files;
  std::array<void*, kFiles> rings;
  std::array<uint8_t, KRC_GID_BYTES> gid;
};

template <typename T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

uint64_t Word(Random& random) {
  switch (random() % 4) {
    case 0: return random();
    case 1: return random() % 16;
    case 2: return OneOf<uint64_t>(random, {0, 1, 7, 8, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, ~0ull, 1ull << 63});
    default: return 1ull << random() % 64;
  }
}

uint64_t Address(Random& random, const Process& process) {
  if (random() % 8 == 0) return Word(random);
  return reinterpret_cast<uint64_t>(process.memory) + random() % kBytes / 8 * 8;
}

Slot& AnySlot(Random& random, const Process& process) {
  return process.shared->slots[random() % process.shared->slots.size()];
}

// A region, of this process or of any. If there is none, what a slot still holds, which names nothing.
Named Region(Random& random, const Process& process, bool own) {
  Slot* slot = &AnySlot(random, process);
  for (int tries = 0; tries < 200; ++tries) {
    const pid_t pid = slot->pid.load(kRelaxed);
    if (own ? pid == getpid() : pid != 0) break;
    slot = &AnySlot(random, process);
  }
  return {slot->addr.load(kRelaxed), std::max<uint64_t>(1, slot->length.load(kRelaxed)), slot->key.load(kRelaxed)};
}

// Takes back the slots of a process whose regions have gone.
void Forget(Shared* shared, pid_t pid) {
  for (Slot& slot : shared->slots) {
    if (slot.pid.load(kRelaxed) == pid) slot.pid.store(0, kRelaxed);
  }
}

// Returns an address in the region for `bytes` bytes, aligned for atomics.
uint64_t Within(Random& random, const Named& region, uint64_t bytes) {
  return region.addr + (region.length > bytes ? random() % (region.length - bytes + 1) / 8 * 8 : 0);
}

// A request that is right in everything, if its regions are still there and have the rights.
krc_request Request(Random& random, const Process& process, bool is_message) {
  krc_request request = {};
  request.opcode = OneOf<uint8_t>(random, {KRC_OP_READ, KRC_OP_WRITE, KRC_OP_COMPARE_SWAP, KRC_OP_FETCH_ADD});
  if (is_message) request.opcode = OneOf<uint8_t>(random, {KRC_OP_SEND, KRC_OP_SEND_IMM});
  request.flags = static_cast<uint8_t>(random() % 4);
  request.num_sge = 1;
  const Named remote = Region(random, process, false);
  const bool is_atomic = request.opcode >= KRC_OP_COMPARE_SWAP;
  if (!is_atomic && remote.length >= KRC_MAX_SGE && random() % 4 == 0)
    request.num_sge = static_cast<uint8_t>(1 + random() % KRC_MAX_SGE);
  uint64_t bytes = 0;
  for (krc_sge& sge : request.sges) {
    const Named local = Region(random, process, true);
    const uint64_t most =
        std::min({local.length, remote.length / request.num_sge, uint64_t{is_message ? 200u : 9000u}});
    sge.length = is_atomic ? 8 : static_cast<uint32_t>(1 + random() % most);
    sge.addr = Within(random, local, sge.length);
    sge.lkey = local.key;
    if (&sge < request.sges + request.num_sge) bytes += sge.length;
  }
  request.rkey = remote.key;
  request.remote_addr = Within(random, remote, bytes);
  request.wr_id = random();
  return request;
}

// Most likely makes the request wrong in one respect.
void Spoil(Random& random, const Process& process, krc_request& request) {
  krc_sge& sge = request.sges[random() % request.num_sge];
  switch (random() % 6) {
    case 0: sge.addr = Address(random, process); break;
    case 1: request.remote_addr = Address(random, process); break;
    case 2:
      sge.lkey = random() % 2 == 0 ? static_cast<uint32_t>(Word(random)) : Region(random, process, false).key;
      break;
    case 3: request.rkey = static_cast<uint32_t>(Word(random)); break;
    case 4: sge.length = static_cast<uint32_t>(Word(random)); break;
    default: reinterpret_cast<uint8_t*>(&request)[random() % sizeof(request)] = static_cast<uint8_t>(random());
  }
}

void MapRing(Process& process, size_t which, const krc_attach& attach) {
  std::memcpy(process.gid.data(), attach.gid, process.gid.size());
  void* const ring = mmap(nullptr, attach.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, process.files[which], 0);
  if (ring != MAP_FAILED) process.rings[which] = ring;
}

void Attach(Process& process, size_t which, uint32_t depth) {
  krc_attach attach = {};
  attach.depth = depth;
  if (ioctl(process.files[which], KRC_IOC_ATTACH, &attach) == 0) MapRing(process, which, attach);
}

void Connect(const Process& process, int fd) {
  krc_connect_device connect = {};
  std::memcpy(connect.gid, process.gid.data(), sizeof(connect.gid));
  (void)ioctl(fd, KRC_IOC_CONNECT_DEVICE, &connect);
}

// The few nodes and services that all processes use.
constexpr uint32_t kNodes = 4;

void Join(Random& random, int fd) {
  krc_join join = {};
  join.fabric[0] = 'f';
  join.node = random() % 2 == 0 ? 0 : 1 + static_cast<uint32_t>(random() % kNodes);
  (void)ioctl(fd, KRC_IOC_JOIN, &join);
}

// Does all steps at once, on a file that may be fresh.
void Start(Random& random, Process& process, size_t which) {
  krc_start start = {};
  start.abi_version = KRC_ABI_VERSION;
  start.attach.depth = 1 + static_cast<uint32_t>(random() % 200);
  start.join.fabric[0] = 'f';
  start.join.node = static_cast<uint32_t>(random() % (kNodes + 1));
  start.connect.node = static_cast<uint32_t>(random() % (kNodes + 1));
  start.connect.port = static_cast<uint32_t>(random() % 3);
  if (random() % 4 == 0) reinterpret_cast<uint8_t*>(&start)[random() % sizeof(start)] = static_cast<uint8_t>(random());
  (void)ioctl(process.files[which], KRC_IOC_START, &start);
  if (start.done >= KRC_ATTACHED) MapRing(process, which, start.attach);
}

// Replaces a file of this process, which closes with whatever it has in flight.
void Replace(Process& process, int fd, int fresh) {
  if (fresh < 0) return;
  dup2(fresh, fd);
  close(fresh);
  Forget(process.shared, getpid());  // the regions of the other files as well: more are registered soon
}

// Makes a queue of a node, connected to the device or to a node.
void NewQueue(Random& random, Process& process, int fd) {
  krc_new_queue made = {
      random() % 8 == 0 ? static_cast<uint32_t>(Word(random)) : 1 + static_cast<uint32_t>(random() % 200), 0, 0, 0};
  if (ioctl(process.files[random() % kFiles], KRC_IOC_NEW_QUEUE, &made) != 0) return;
  if (random() % 2 == 0) Connect(process, made.file);
  if (random() % 4 == 0)
    Replace(process, fd, made.file);
  else
    close(made.file);
}

void CallOfNode(Random& random, const Process& process, int fd) {
  switch (random() % 4) {
    case 0: {
      krc_publish publish = {};
      publish.count = static_cast<uint32_t>(random() % (KRC_MAX_SHARED + 1));
      for (krc_shared_region& region : publish.regions) region.key = Region(random, process, true).key;
      (void)ioctl(fd, KRC_IOC_PUBLISH, &publish);
      break;
    }
    case 1: {
      krc_connect connect = {};
      connect.node = 1 + static_cast<uint32_t>(random() % kNodes);
      connect.port = static_cast<uint32_t>(random() % 3);
      if (random() % 32 == 0) connect.port = static_cast<uint32_t>(Word(random));
      (void)ioctl(fd, KRC_IOC_CONNECT, &connect);
      break;
    }
    case 2: {
      krc_service service = {};
      service.name[0] = static_cast<uint8_t>('a' + random() % 4);
      service.length = static_cast<uint32_t>(random() % (KRC_VALUE_BYTES + 1));
      (void)ioctl(fd, random() % 2 == 0 ? KRC_IOC_SET_SERVICE : KRC_IOC_GET_SERVICE, &service);
      break;
    }
    default: {
      krc_peer_state state = {1 + static_cast<uint32_t>(random() % kNodes), static_cast<uint32_t>(Word(random)), 0, 0};
      (void)ioctl(fd, KRC_IOC_PEER_STATE, &state);
    }
  }
}

// Posts receives, or takes the messages that came, of whatever is bound.
void CallOfMessages(Random& random, const Process& process, int fd) {
  switch (random() % 4) {
    case 0: {
      std::array<krc_receive, 8> receives;
      for (krc_receive& receive : receives) {
        const Named region = Region(random, process, true);
        const uint64_t length = 1 + random() % std::min<uint64_t>(region.length, 1200);
        receive = {random(), Within(random, region, length), static_cast<uint32_t>(length), region.key};
      }
      if (random() % 4 == 0)
        reinterpret_cast<uint8_t*>(receives.data())[random() % sizeof(receives)] = static_cast<uint8_t>(random());
      krc_push_recv push = {reinterpret_cast<uint64_t>(receives.data()),
                            static_cast<uint32_t>(1 + random() % receives.size()), 0};
      if (random() % 32 == 0) push.count = static_cast<uint32_t>(Word(random));
      (void)ioctl(fd, KRC_IOC_PUSH_RECV, &push);
      break;
    }
    case 1: {
      krc_credits credits = {};
      (void)ioctl(fd, KRC_IOC_CREDITS, &credits);
      break;
    }
    default: {
      std::array<krc_message, 8> messages;
      krc_pop_msgs pop = {reinterpret_cast<uint64_t>(messages.data()), static_cast<uint32_t>(messages.size()), 0};
      if (random() % 16 == 0) pop.messages = Address(random, process);
      if (ioctl(fd, KRC_IOC_POP_MSGS, &pop) == 0) process.shared->messages.fetch_add(pop.count, kRelaxed);
    }
  }
}

// Binds a port of a node, mostly one of the few that all know.
void Bind(Random& random, int fd) {
  krc_bind bind = {static_cast<uint32_t>(random() % 3),      1 + static_cast<uint32_t>(random() % 8),
                   1 + static_cast<uint32_t>(random() % 16), static_cast<uint32_t>(random() % 2000),
                   1 + static_cast<uint32_t>(random() % 64), 0};
  if (random() % 8 == 0) reinterpret_cast<uint32_t*>(&bind)[random() % 6] = static_cast<uint32_t>(Word(random));
  (void)ioctl(fd, KRC_IOC_BIND, &bind);
}

void Register(Random& random, const Process& process, int fd, uint64_t length, uint32_t access) {
  krc_reg_mr reg = {};
  reg.addr = Address(random, process);
  reg.length = length;
  reg.access = access;
  if (ioctl(fd, KRC_IOC_REG_MR, &reg) != 0) return;
  Slot& slot = AnySlot(random, process);
  slot.addr.store(reg.addr, kRelaxed);
  slot.length.store(reg.length, kRelaxed);
  slot.key.store(reg.key, kRelaxed);
  slot.pid.store(getpid(), kRelaxed);
}

void OneCall(Random& random, Process& process) {
  const size_t which = random() % kFiles;
  const int fd = process.files[which];
  switch (random() % 22) {
    case 0: {  // any number, any bytes
      std::array<uint64_t, 64> bytes;
      for (uint64_t& word : bytes) word = Word(random);
      const unsigned long request =
          random() % 2 == 0
              ? random() & 0xFFFFFFFF
              : OneOf<unsigned long>(
                    random, {KRC_IOC_QUERY, KRC_IOC_ATTACH, KRC_IOC_CONNECT_DEVICE, KRC_IOC_REG_MR, KRC_IOC_DEREG_MR,
                             KRC_IOC_PUSH, KRC_IOC_JOIN, KRC_IOC_PUBLISH, KRC_IOC_CONNECT, KRC_IOC_SET_SERVICE,
                             KRC_IOC_GET_SERVICE, KRC_IOC_PEER_STATE, KRC_IOC_NEW_QUEUE, KRC_IOC_BIND,
                             KRC_IOC_PUSH_RECV, KRC_IOC_POP_MSGS, KRC_IOC_CREDITS, KRC_IOC_DC_TARGET, KRC_IOC_START});
      const bool makes_a_file = request == KRC_IOC_NEW_QUEUE;  // its number has to be known
      if (random() % 4 == 0 && !makes_a_file) {
        (void)ioctl(fd, request, Address(random, process));
      } else if (ioctl(fd, request, bytes.data()) == 0 && makes_a_file) {
        krc_new_queue made;
        std::memcpy(&made, bytes.data(), sizeof(made));
        close(made.file);
      }
      break;
    }
    case 1: Attach(process, which, static_cast<uint32_t>(random() % 8 == 0 ? Word(random) : 1 + random() % 200)); break;
    case 2: Connect(process, fd); break;
    case 3:
    case 4:
      Register(random, process, fd, random() % 8 == 0 ? Word(random) : 1 + random() % 20000,
               static_cast<uint32_t>(random() % 16 == 0 ? random() % 32 : 15));
      break;
    case 5: {
      Slot& slot = AnySlot(random, process);
      krc_dereg_mr dereg = {random() % 8 == 0 ? static_cast<uint32_t>(Word(random)) : slot.key.load(kRelaxed)};
      if (ioctl(fd, KRC_IOC_DEREG_MR, &dereg) == 0) slot.pid.store(0, kRelaxed);
      break;
    }
    case 6:  // writes its ring, instead of the module or while the module does
      if (process.rings[which] != nullptr) {
        auto* const ring = static_cast<krc_ring_header*>(process.rings[which]);
        const uint32_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
        __atomic_store_n(&ring->tail, random() % 4 == 0 ? static_cast<uint32_t>(Word(random)) : head, __ATOMIC_RELEASE);
        if (random() % 16 == 0) __atomic_store_n(&ring->head, static_cast<uint32_t>(Word(random)), __ATOMIC_RELAXED);
      }
      break;
    case 7: {
      pollfd waited = {fd, static_cast<short>(random() % 2 == 0 ? POLLIN : POLLIN | POLLPRI), 0};
      (void)poll(&waited, 1, random() % 8 == 0 ? 5 : 0);
      break;
    }
    case 8:
      if (random() % 64 == 0) {
        Replace(process, fd, open(KRC_DEVICE_PATH, O_RDWR));
        if (random() % 2 == 0) Start(random, process, which);
      }
      if (random() % 16 == 0) NewQueue(random, process, fd);
      break;
    case 9:
      if (random() % 2 == 0)
        Join(random, fd);
      else
        Start(random, process, which);
      break;
    case 10: CallOfNode(random, process, fd); break;
    case 11: Bind(random, fd); break;
    case 12:
    case 13: CallOfMessages(random, process, fd); break;
    default: {
      std::vector<krc_request> batch(1 + random() % (random() % 4 == 0 ? 20 : 4));
      const bool are_messages = random() % 6 == 0;
      for (krc_request& request : batch) request = Request(random, process, are_messages);
      // One wrong request refuses the whole batch.
      if (random() % 2 == 0) Spoil(random, process, batch[random() % batch.size()]);
      krc_push push = {reinterpret_cast<uint64_t>(batch.data()), static_cast<uint32_t>(batch.size()), 0};
      if (random() % 32 == 0) push.count = static_cast<uint32_t>(Word(random));
      process.shared->pushed.fetch_add(batch.size(), kRelaxed);
      if (ioctl(fd, KRC_IOC_PUSH, &push) == 0) {
        process.shared->accepted.fetch_add(push.count, kRelaxed);
      } else if ((errno == ECONNRESET || errno == ENOTCONN) && random() % 4 != 0) {
        Connect(process, fd);
      }
      // Mostly marks the ring as read.
      if (process.rings[which] != nullptr && random() % 4 != 0) {
        auto* const ring = static_cast<krc_ring_header*>(process.rings[which]);
        __atomic_store_n(&ring->tail, __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
      }
    }
  }
}

// From now on allocations of this thread's calls may fail.
void LetAllocationsFail() {
  const int failing = open("/proc/thread-self/make-it-fail", O_WRONLY);
  if (failing < 0) return;
  (void)!write(failing, "1", 1);
  close(failing);
}

[[noreturn]] void RunProcess(Shared* shared, uint8_t* memory, uint64_t seed) {
  Process process = {shared, memory, {}, {}, {}};
  for (int& fd : process.files) fd = open(KRC_DEVICE_PATH, O_RDWR);
  Random random(seed);
  // All files but one can be used from the start, whatever else becomes of them.
  for (size_t i = 0; i + 1 < process.files.size(); ++i) {
    Attach(process, i, 200);
    Connect(process, process.files[i]);
    for (int regions = 0; regions < 4; ++regions) Register(random, process, process.files[i], 20000, 15);
  }
  std::thread other([&] {
    LetAllocationsFail();
    Random others(seed + 1);
    for (;;) OneCall(others, process);
  });
  LetAllocationsFail();
  for (;;) OneCall(random, process);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: kmod_fuzz SECONDS [SEED]\n");
    return 2;
  }
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : std::random_device()();
  std::printf("kmod_fuzz: seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  auto* const shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  // The memory is at the same addresses in all processes, so that one's is mistaken for another's. It lies between
  // pages that cannot be registered, so that no region reaches into the program's own memory.
  auto* const guarded =
      static_cast<uint8_t*>(mmap(nullptr, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED || guarded == MAP_FAILED) return 1;
  uint8_t* const memory = guarded + kPage;
  if (mprotect(memory, kBytes, PROT_READ | PROT_WRITE) != 0) return 1;
  Random random(seed);
  std::array<pid_t, kProcesses> children = {};
  uint64_t started = 0, broken = 0;
  while (std::chrono::steady_clock::now() < end) {
    const size_t which = random() % kProcesses;
    if (children[which] != 0) {
      if (!testing_support::KillProcess(children[which])) return 1;
      waitpid(children[which], nullptr, 0);
      Forget(shared, children[which]);
    }
    if (random() % 4 == 0) {  // connections break as well, if there is a device now
      const int fd = open("/sys/kernel/debug/krcore/rxe0/break", O_WRONLY);
      if (fd >= 0 && write(fd, "1", 1) == 1) ++broken;
      if (fd >= 0) close(fd);
    }
    const uint64_t child_seed = random();
    ++started;
    children[which] = fork();
    if (children[which] == 0) RunProcess(shared, memory, child_seed);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));  // it goes on for so long before the next
  }
  for (const pid_t child : children) {
    if (child == 0) continue;
    if (!testing_support::KillProcess(child)) return 1;
    waitpid(child, nullptr, 0);
  }
  const uint64_t pushed = shared->pushed.load(), accepted = shared->accepted.load();
  std::printf("kmod_fuzz: %llu processes, all killed in the middle; connections broken %llu times\n",
              static_cast<unsigned long long>(started), static_cast<unsigned long long>(broken));
  std::printf("kmod_fuzz: %llu of %llu requests were accepted\n", static_cast<unsigned long long>(accepted),
              static_cast<unsigned long long>(pushed));
  std::printf("kmod_fuzz: %llu messages came\n", static_cast<unsigned long long>(shared->messages.load()));
  return accepted < pushed / 100 || accepted == 0 ? 1 : 0;  // a third is accepted where nothing is wrong
}
