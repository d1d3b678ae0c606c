// Measures how long programs take to start and to end: `--version` of ours, and a program that does nothing. All take
// turns, so that a busy moment of the machine concerns all of them. tools/spike measures how long a worker that is a
// fresh program takes to its first reply.
#include <fcntl.h>
#include <gflags/gflags.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "bench/common/timed_worker.h"
#include "cli/fail.h"
#include "cli/flags.h"

DEFINE_uint32(turns, 300, "how often each program is started");

namespace {

struct Command {
  std::vector<std::string> words;
  timed::Samples ns = {};
};

// Starts the program, waits for its end, and returns how long both took.
int64_t RunOnce(const Command& command) {
  std::vector<char*> argv;
  for (const std::string& word : command.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  int status = 0;
  const int64_t begin = timed::Now();
  const int error = posix_spawn(&pid, argv[0], &silent, nullptr, argv.data(), environ);
  if (error == 0) waitpid(pid, &status, 0);
  const int64_t end = timed::Now();
  posix_spawn_file_actions_destroy(&silent);
  if (error != 0 || status != 0)
    std::exit(cli::Fail({krcore::StatusCode::kNotFound, command.words[0] + " cannot be started, or it fails"}));
  return end - begin;
}

}  // namespace

int main(int argc, char** argv) {
  cli::Program program;
  program.name = "bench_start";
  program.summary = "Measures how long programs take to start and to end, next to a program that does nothing.";
  program.usage = "bench_start [\"program arguments...\"]... [flags]";
  program.flags = {"turns"};
  program.examples =
      "bench_start\n"
      "bench_start \"../before/build/bin/computenode --version\"     # next to ours";
  program.max_arguments = 16;
  const cli::CommandLine line = cli::ParseFlags(program, argc, argv);
  if (FLAGS_turns == 0) return cli::FailUsage("--turns=0: at least 1");

  const std::string folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "";
  std::vector<Command> commands = {{{folder + "bench_start_empty"}}};
  for (const char* name : {"memnode", "computenode", "ycsb", "surge"})
    commands.push_back({{folder + name, "--version"}});
  for (const std::string& argument : line.arguments) {
    std::istringstream words(argument);
    Command command;
    for (std::string word; words >> word;) command.words.push_back(word);
    if (!command.words.empty()) commands.push_back(command);
  }
  for (const Command& command : commands) RunOnce(command);  // from now on the files are in memory
  for (uint32_t turn = 0; turn < FLAGS_turns; ++turn)
    for (Command& command : commands) command.ns.push_back(RunOnce(command));

  std::printf("%9s %9s %9s %9s  %s\n", "median ms", "10%", "90%", "times", "program");
  const auto ms = [](Command& command, double percent) {
    return static_cast<double>(timed::Percentile(command.ns, percent)) * 1e-6;
  };
  const double base = ms(commands.front(), 50);
  for (Command& command : commands) {
    std::string text;
    for (const std::string& word : command.words) text += (text.empty() ? "" : " ") + word;
    std::printf("%9.2f %9.2f %9.2f %9.2f  %s\n", ms(command, 50), ms(command, 10), ms(command, 90),
                ms(command, 50) / base, text.c_str());
  }
  return 0;
}
