// Channel: what a compute node and whoever operates it tell each other: commands, a line each, on a descriptor; answers
// and events on stdout, a JSON object a line.
//
// Thread safety: main thread only.
#ifndef COMPUTENODE_CHANNEL_H_
#define COMPUTENODE_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

#include "computenode/control.h"

namespace computenode {

class Channel {
 public:
  // `input`: -1 where nobody commands.
  explicit Channel(int input) : input_(input) {}

  // A line on stdout, at once: whoever reads it may be waiting for it. When the reader has left, a stop is requested.
  static void Print(const nlohmann::ordered_json& json);
  // Sleeps until there is input, a stop signal, or `timeout_ns` is over. Calls `obey` for each command; lines that are
  // none are answered here.
  void Wait(int64_t timeout_ns, const std::function<void(const Command&)>& obey);
  // Somebody may still command.
  bool open() const { return input_ != -1; }

 private:
  void Obey(const std::string& line, const std::function<void(const Command&)>& obey);

  int input_;  // -1 once it has ended
  LineReader lines_;
};

}  // namespace computenode

#endif  // COMPUTENODE_CHANNEL_H_
