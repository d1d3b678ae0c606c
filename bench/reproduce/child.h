// Child: a process of reproduce_bench, executed afresh or forked. It and its parent exchange lines. Children end with
// their parent: it kills them by their ids when a signal ends it or Must fails, and they see the end of their input
// when it dies.
//
// The parent has one thread, and no device: nothing else may be forked.
#ifndef BENCH_REPRODUCE_CHILD_H_
#define BENCH_REPRODUCE_CHILD_H_

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace reproduce {

// Numbers as a line, from a child to its parent, and back.
void SayNumbers(std::FILE* to, const std::vector<int64_t>& numbers);
std::vector<int64_t> NumbersOf(const std::string& line);

class Child {
 public:
  // Before the first child: from now on SIGINT, SIGTERM, SIGHUP and SIGABRT kill and reap the children first.
  static void CleanUpOnSignals();

  // This program with these arguments; its stdin and stdout are pipes to here.
  static Child Exec(const std::vector<std::string>& arguments);
  // Runs `body` in a copy of this process, which ends when it returns.
  static Child Fork(const std::function<void(std::FILE* answer)>& body);

  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills what has not been reaped

  void Say(const std::string& line);
  // The next line; ends this program if the child ended or said nothing for two minutes.
  std::string Hear();
  std::vector<int64_t> HearNumbers();
  // Ends its input, and waits for its end, which must be a success.
  void Reap();

 private:
  Child(pid_t pid, int input, int output);
  pid_t pid_;
  std::FILE* input_;  // of the child
  int output_;        // of the child
};

}  // namespace reproduce

#endif  // BENCH_REPRODUCE_CHILD_H_
