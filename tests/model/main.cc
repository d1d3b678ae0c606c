// kvs_model: checks one configuration of a protocol model, by hand. See docs/protocol.md.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/model/command.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    std::fputs(model::Usage().c_str(), stdout);
    return 0;
  }
  model::Command command;
  std::string error;
  if (!model::ParseCommand(words, &command, &error)) {
    std::fprintf(stderr, "kvs_model: %s (--help tells more)\n", error.c_str());
    return 3;
  }
  const model::Result result = command.run(command.limits);
  if (command.trace) {
    for (const std::string& step : result.trace) std::printf("%s\n", step.c_str());
  }
  static const char* const kVerdicts[] = {"holds", "VIOLATED", "incomplete"};
  std::printf("%s%s%s: %llu states, %llu transitions, depth %zu, %.1f s\n", kVerdicts[static_cast<int>(result.verdict)],
              result.violation.empty() ? "" : ": ", result.violation.c_str(),
              static_cast<unsigned long long>(result.states), static_cast<unsigned long long>(result.transitions),
              result.depth, result.seconds);
  return static_cast<int>(result.verdict);
}
