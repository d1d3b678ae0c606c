// kill -9 at every store to shared memory, and before every system call that changes what processes share.
//
// A script's victim is forked again and again. In it, from EnumerateFromHere() on, every mapping of a shared file is
// read-only. A store faults, is counted, and is then executed by a single step with its page open. So the product needs
// no hooks, and no store can be missed, be it a locked instruction, a vector or an iteration of a string instruction.
// The first run counts. Then there is a run for each store, which the victim does not survive: it kills itself when it
// is about to execute that store. (About to execute store n + 1 is just after store n.) System calls are counted
// likewise if they make, remove, grow or rename files in /dev/shm, or take or drop locks on them: open with O_CREAT,
// posix_fallocate, rename, unlink, fcntl(F_OFD_SETLK), and close. A run that is not killed earlier is killed at the end
// of victim().
//
// Not killed at each: long fills and copies (more than kLongRun stores in succession that one instruction makes or that
// go upwards through memory; kKilledInLongRun: the first and last ones and some in between); and locks that are taken
// and dropped again and again while nothing is written, as when records are looked up (kKilledInLockRun).
//
// x86-64 Linux, one thread in the victim. The executable is linked by surgekv_kill_test (tests/krcore/CMakeLists.txt),
// which leads those calls here. Not under sanitizers: they own the signals.
#ifndef TESTS_KRCORE_KILL_EACH_STORE_H_
#define TESTS_KRCORE_KILL_EACH_STORE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace krcore::test {

struct KillScript {
  // Runs in a forked child, whose exit status means a failure unless it was killed. What it does before
  // EnumerateFromHere() is not enumerated. A GoogleTest failure in it fails the test.
  std::function<void()> victim;
  // Runs in the parent again and again while the victim lives, so that it can be the victim's partner. Null: nothing.
  std::function<void()> meanwhile = nullptr;
  // Runs in the parent after each death: EXPECTs that everything works and that all resources have come back. Whatever
  // it waits for must have a deadline. If it takes more than a minute, that is itself a failure that names the point.
  std::function<void()> survivors;
};

inline constexpr size_t kLongRun = 64;
inline constexpr size_t kKilledInLongRun = 48;
inline constexpr size_t kKilledInLockRun = 8;

// Runs the script for every point and prints how many there were. Stops at the first that fails, with the point, the
// instruction and the place it would have written to. KILL_POINT=n in the environment runs point n alone.
void KillAtEachStore(const KillScript& script);

// The victim's stores count from here on. Does nothing elsewhere (as when survivors do the same once more).
void EnumerateFromHere();
// For code that both run, where only one of them may act: the parent's devices and nodes are not the victim's.
bool InVictim();

// What a fabric holds. Compared before and after, it shows whether all resources have come back.
struct FabricState {
  std::vector<std::string> files;    // in /dev/shm
  std::vector<std::string> devices;  // taken slots: index, life and incarnation
  std::vector<std::string> records;  // taken slots: name and owner
  std::vector<std::string> tables;   // of each device: how many MRs, queues and segments it has

  static FabricState Of(const std::string& fabric);
  friend bool operator==(const FabricState&, const FabricState&) = default;
};
void PrintTo(const FabricState& state, std::ostream* os);

}  // namespace krcore::test

#endif  // TESTS_KRCORE_KILL_EACH_STORE_H_
