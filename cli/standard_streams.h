// What a program owes to stdin, stdout and stderr.
#ifndef CLI_STANDARD_STREAMS_H_
#define CLI_STANDARD_STREAMS_H_

namespace cli {

// Call it before anything is opened; ParseFlags does.
//
// Those of descriptors 0 to 2 that are closed lead to /dev/null from now on, so that nothing that the program opens
// gets one of these numbers, and what it prints.
//
// When the program ends, by main or by exit(), and something that it printed on stdout (by stdio, or by std::cout)
// could not be written, it says so on stderr and its exit status is kExitFailure. If the reader of a pipe has left, as
// head does, it says nothing, and its exit status is kExitClosedPipe.
void UseStandardStreams();

}  // namespace cli

#endif  // CLI_STANDARD_STREAMS_H_
