#include "cli/address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "krcore/base/os.h"

namespace cli {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

}  // namespace

std::string Address::ToString() const { return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port); }

Result<Address> ParseAddress(const std::string& text, const std::string& flag) {
  const auto mistake = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, flag + "=" + text + ": " + what);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return mistake("expected HOST:PORT, for example 127.0.0.1:9464");
  Address address;
  address.host = text.substr(0, colon);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || stop != end || colon + 1 == text.size()) {
    return mistake("the port must be 0 to 65535 (0: any free port)");
  }
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
    address.v6 = true;
  }
  in6_addr bytes{};
  if (inet_pton(address.v6 ? AF_INET6 : AF_INET, address.host.c_str(), &bytes) != 1) {
    return mistake("the host must be localhost or an IP address of this machine, with brackets around an IPv6 address");
  }
  return address;
}

Status ListenFailed(int errnum, const std::string& name) {
  if (errnum == EADDRINUSE) return {StatusCode::kExists, name + ": the address is in use by another program"};
  return {StatusCode::kUnavailable, std::string(Status::FromErrno(errnum, name + ": cannot listen").message())};
}

Result<int> ListenAt(Address* address, const std::string& flag) {
  SocketAddress at{};
  socklen_t length = address->v6 ? sizeof(at.v6) : sizeof(at.v4);
  if (address->v6) {
    at.v6.sin6_family = AF_INET6;
    at.v6.sin6_port = htons(address->port);
    inet_pton(AF_INET6, address->host.c_str(), &at.v6.sin6_addr);
  } else {
    at.v4.sin_family = AF_INET;
    at.v4.sin_port = htons(address->port);
    inet_pton(AF_INET, address->host.c_str(), &at.v4.sin_addr);
  }
  const int fd = krcore::AboveStandard(socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      (address->v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) != 0) ||
      bind(fd, &at.any, length) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, &at.any, &length) != 0) {
    const int errnum = errno;
    if (fd >= 0) close(fd);
    return ListenFailed(errnum, flag + "=" + address->ToString());
  }
  address->port = ntohs(address->v6 ? at.v6.sin6_port : at.v4.sin_port);
  return fd;
}

}  // namespace cli
