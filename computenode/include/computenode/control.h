// The control channel of a compute node: commands a line each, and the pieces of input that they arrive in.
//
// Thread safety: values.
#ifndef COMPUTENODE_CONTROL_H_
#define COMPUTENODE_CONTROL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "krcore/status.h"

namespace computenode {

inline constexpr uint32_t kMaxWorkers = 1024;

struct Command {
  enum class Kind : uint8_t { kWorkers, kStatus, kQuit };
  Kind kind = Kind::kStatus;
  uint32_t workers = 0;  // kWorkers
};

// "workers N", "status" or "quit"; blanks around and between do not count. kInvalidArgument: anything else, with what
// was expected.
krcore::Result<Command> ParseCommand(std::string_view line);

// Cuts input into lines. A line longer than kMaxLineBytes is cut there, so that a stray stream cannot fill memory.
class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = 4096;

  void Add(std::string_view input) { buffer_ += input; }
  // The next line without its end; empty lines are left out.
  std::optional<std::string> Next();
  // At the input's end: what is left of a line without an end.
  std::optional<std::string> Rest();

 private:
  std::string buffer_;
};

}  // namespace computenode

#endif  // COMPUTENODE_CONTROL_H_
