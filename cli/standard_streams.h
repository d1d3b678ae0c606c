// What a program owes to stdin, stdout and stderr.
#ifndef CLI_STANDARD_STREAMS_H_
#define CLI_STANDARD_STREAMS_H_

namespace cli {

// Call it before anything is opened; ParseFlags does. Those of descriptors 0 to 2 that are closed lead to /dev/null
// from now on, so that nothing that the program opens gets one of these numbers, and what it prints.
void UseStandardStreams();

}  // namespace cli

#endif  // CLI_STANDARD_STREAMS_H_
