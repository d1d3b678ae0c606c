// Requests written by hand, for what random ones rarely meet.
#ifndef TESTS_REDIS_EDGE_CASES_H_
#define TESTS_REDIS_EDGE_CASES_H_

#include <string>
#include <vector>

namespace redis_test {

// Lines of inline commands.
std::vector<std::string> EdgeCases();

// Bytes of whole connections that are no requests, or end early.
std::vector<std::string> WrongFramings();
// Bytes of whole connections to a server whose password is "secret".
std::vector<std::string> PasswordDialogues();

}  // namespace redis_test

#endif  // TESTS_REDIS_EDGE_CASES_H_
