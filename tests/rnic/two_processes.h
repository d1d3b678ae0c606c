// What two processes of a test tell each other over a socket.
#ifndef TESTS_RNIC_TWO_PROCESSES_H_
#define TESTS_RNIC_TWO_PROCESSES_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>

#include "krcore/rnic.h"

namespace krcore::rnic::testing {

// Who a process is, and what the other one may reach of it.
struct Introduction {
  DeviceAddress device;
  uint32_t qpn = 0;
  uint32_t rkey = 0;
  uint64_t word = 0;
};

template <typename T>
T Hear(int fd) {
  T value{};
  EXPECT_EQ(recv(fd, &value, sizeof(value), MSG_WAITALL), static_cast<ssize_t>(sizeof(value)));
  return value;
}

template <typename T>
void Tell(int fd, const T& value) {
  EXPECT_EQ(send(fd, &value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
}

}  // namespace krcore::rnic::testing

#endif  // TESTS_RNIC_TWO_PROCESSES_H_
