/* Expectations of tests that are written in C. Before it is included, STRERROR and LAST_ERROR are those of the
 * interface that is tested. `failures` counts what was not so, and each is printed. */
#ifndef TESTS_SUPPORT_C_EXPECT_H_
#define TESTS_SUPPORT_C_EXPECT_H_

#include <stdio.h>

static int failures = 0;

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)
#define EXPECT_CODE(call, code)                                                                           \
  do {                                                                                                    \
    const int error_ = (call);                                                                            \
    if (error_ != (code)) {                                                                               \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, STRERROR(error_), LAST_ERROR()); \
      ++failures;                                                                                         \
    }                                                                                                     \
  } while (0)
#define EXPECT_OK(call) EXPECT_CODE(call, 0)

#endif /* TESTS_SUPPORT_C_EXPECT_H_ */
