// StopSignal: turns SIGINT, SIGTERM and SIGHUP into a request that a program's main loop sees and can wait for, so
// that it always ends by closing what it opened.
//
// SIGINT and SIGHUP stay ignored if the program was started so, by nohup or in the background of a script. They are
// never blocked, even if they were blocked in the process that started it.
//
// The first signal requests the stop. A second SIGINT (an impatient Ctrl-C) ends the process at once with status
// 130 and leaves its shared memory for --clean. Further SIGTERMs change nothing: supervisors and scripts send one to
// processes that a Ctrl-C has reached already. SIGPIPE is ignored: a closed stdout must not kill a memory node.
//
// Thread safety: Install once from the main thread, before others start; the rest from any thread.
#ifndef CLI_STOP_SIGNAL_H_
#define CLI_STOP_SIGNAL_H_

#include <atomic>
#include <cstdint>

#include "krcore/status.h"

namespace cli {

class StopSignal {
 public:
  // What SIGHUP does, which comes when a terminal is closed. kIgnored: for a program whose end makes others lose data.
  enum class Hangup { kStops, kIgnored };
  // Installs the handlers. Idempotent.
  static krcore::Status Install(Hangup hangup = Hangup::kStops);

  // Returns true from the first signal (or Request) on. One relaxed load: fit for a hot loop.
  static bool Requested() { return flag().load(std::memory_order_relaxed); }
  // Returns the flag itself, for interfaces that take one.
  static const std::atomic<bool>& flag();
  // Returns the signal that requested the stop; 0: none yet, or Request().
  static int signal_number();
  // Returns a descriptor that is readable (poll, epoll) from the request on, forever. -1 before Install().
  static int fd();

  // Requests a stop without a signal.
  static void Request();

  // Sleeps until a stop is requested or `timeout_ms` has passed (negative: without limit). Returns Requested().
  static bool WaitFor(int64_t timeout_ms);
};

}  // namespace cli

#endif  // CLI_STOP_SIGNAL_H_
