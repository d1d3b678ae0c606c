// The command line of kvs_model. Tests give their configurations as such lines, so that each can also be run by hand.
#ifndef TESTS_MODEL_COMMAND_H_
#define TESTS_MODEL_COMMAND_H_

#include <functional>
#include <span>
#include <string>

#include "tests/model/engine.h"

namespace model {

struct Command {
  std::function<Result(const Limits&)> run;
  Limits limits;
  bool trace = false;  // print how a violation comes about
};

std::string Usage();
// Returns false with *error set if the words are not a valid command.
bool ParseCommand(std::span<const std::string> words, Command* command, std::string* error);

}  // namespace model

#endif  // TESTS_MODEL_COMMAND_H_
