// Runs the real programs of build/bin as child processes, for tests of several processes.
#ifndef TESTS_SUPPORT_PROGRAM_H_
#define TESTS_SUPPORT_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace testing_support {

// Absolute paths with a slash at the end: the folder of the programs, and the repository's (for data files).
std::string ProgramsDir();
std::string SourceDir();

// A child process whose stdout and stderr are caught. If it still runs, it is killed when this object or the test ends.
class Program {
 public:
  // `name` in build/bin, or a path with a slash.
  Program(const std::string& name, const std::vector<std::string>& args);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }

  // Reads until a whole line of stdout holds `text`, and returns that line. Returns "" if the program ended or
  // kPatienceMs passed before. Failing that wait is always a failure: the time is no part of what is tested.
  std::string WaitForLine(const std::string& text);
  // The same on stderr (the log).
  std::string WaitForLogLine(const std::string& text);

  void Signal(int number);
  // Waits for the end. Returns the exit status, 128 + signal if a signal ended it, or -1 if it did not end within
  // kPatienceMs (it is killed then).
  int Wait();
  // Sends kill -9, and waits.
  void Kill();
  // Sends SIGTERM, and waits.
  int Stop();

  // What has been read so far; complete after Wait().
  const std::string& out() const { return streams_[0].text; }
  const std::string& err() const { return streams_[1].text; }
  // Both, for messages of failed expectations.
  std::string Output() const;

  static constexpr int kPatienceMs = 60'000;

 private:
  struct Stream {
    int fd = -1;
    std::string text;
    size_t searched = 0;  // WaitForLine has looked at the whole lines before this
  };

  std::string WaitForLine(Stream& stream, const std::string& text);
  // Reads what there is, waiting up to `timeout_ms` for something. Returns false when both streams have ended.
  bool ReadSome(int timeout_ms);
  bool Reap(bool block);

  pid_t pid_ = -1;
  bool running_ = false;
  int status_ = -1;
  Stream streams_[2];
};

// Runs a program to its end and returns the exit status, as Program::Wait() does.
struct Finished {
  int status = -1;
  std::string out, err;
};
Finished RunProgram(const std::string& name, const std::vector<std::string>& args);

// A fabric name of this test's own. At the end of the test nothing of the fabric may be left in /dev/shm, or the test
// fails; what is left is removed.
class TestFabric {
 public:
  TestFabric();
  ~TestFabric();
  TestFabric(const TestFabric&) = delete;
  TestFabric& operator=(const TestFabric&) = delete;

  const std::string& name() const { return name_; }
  std::string flag() const { return "--fabric=" + name_; }
  // Files of the fabric in /dev/shm.
  std::vector<std::string> Files() const;

 private:
  std::string name_;
};

}  // namespace testing_support

#endif  // TESTS_SUPPORT_PROGRAM_H_
