// Where a program listens: the addresses that flags like --metrics and --redis have.
//
// Thread safety: functions without state.
#ifndef CLI_ADDRESS_H_
#define CLI_ADDRESS_H_

#include <cstdint>
#include <string>

#include "krcore/status.h"

namespace cli {

// "HOST:PORT": an IPv4 address, an IPv6 one in brackets, or localhost; port 0: any free one.
struct Address {
  std::string host;  // as inet_pton reads it
  uint16_t port = 0;
  bool v6 = false;

  std::string ToString() const;
};

// `flag`: what the text was given as, "--metrics". kInvalidArgument: a message for the user.
krcore::Result<Address> ParseAddress(const std::string& text, const std::string& flag);

// Returns a descriptor that listens at *address, not blocking and closed on exec, which the caller owns; and sets the
// port that was chosen. kExists: the address is in use. kUnavailable: another failure, with its reason.
krcore::Result<int> ListenAt(Address* address, const std::string& flag);
// The Status for a failure to listen, as ListenAt has it. `name`: flag and value.
krcore::Status ListenFailed(int errnum, const std::string& name);

}  // namespace cli

#endif  // CLI_ADDRESS_H_
