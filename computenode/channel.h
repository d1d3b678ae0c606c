// Channel: how a compute node and its operator talk: commands come in on a descriptor, a line each; answers and events
// go out on stdout, a JSON object a line.
//
// Thread safety: the structs and LineReader are values; a Channel belongs to the main thread.
#ifndef COMPUTENODE_CHANNEL_H_
#define COMPUTENODE_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "computenode/elastic/fleet.h"
#include "krcore/status.h"

namespace computenode {

struct Command {
  enum class Kind : uint8_t { kWorkers, kStatus, kQuit };
  Kind kind = Kind::kStatus;
  uint32_t workers = 0;  // kWorkers
};

// Parses "workers N", "status" or "quit"; blanks around and between the words do not count. kInvalidArgument: anything
// else; the message says what was expected.
krcore::Result<Command> ParseCommand(std::string_view line);

// Cuts input into lines. A line longer than kMaxLineBytes is cut at that length, so that a stray stream cannot fill
// memory.
class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = 4096;

  void Add(std::string_view input) { buffer_ += input; }
  // Returns the next line without its end; empty lines are left out.
  std::optional<std::string> Next();
  // At the end of the input: returns what is left of a line without an end.
  std::optional<std::string> Rest();

 private:
  std::string buffer_;
};

class Channel {
 public:
  // `input`: -1 if nobody sends commands.
  explicit Channel(int input) : input_(input) {}

  ~Channel() { Flush(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Queues a line for stdout, which Flush writes. Does not block, so locks may be held.
  static void Print(const nlohmann::ordered_json& json);
  // Writes what was printed. Blocks while the reader of stdout does not read, so no lock may be held. When the reader
  // has left, a stop is requested.
  static void Flush();
  // Sleeps until there is input, a stop signal, or `timeout_ns` is over. Calls `obey` for each command; answers lines
  // that are not commands itself.
  void Wait(int64_t timeout_ns, const std::function<void(const Command&)>& obey);
  // Returns whether somebody may still send commands.
  bool open() const { return input_ != -1; }

 private:
  void Obey(const std::string& line, const std::function<void(const Command&)>& obey);

  int input_;  // -1 once it has ended
  LineReader lines_;
};

}  // namespace computenode

#endif  // COMPUTENODE_CHANNEL_H_
