/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of check_bridge.sh expect: else they say in which line it is not so, and end. */
#ifndef MAM_TESTS_EXPECT_H
#define MAM_TESTS_EXPECT_H

#include <cstdio>
#include <cstdlib>

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      std::printf("line %d: not so: %s\n", __LINE__, #condition);                                                      \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

#endif
