/* SPDX-License-Identifier: BSD-2-Clause */
/* What both models of the pool use: the imaginary source, and MODEL_REQUIRE, an assertion that works under a fuzzer
 * too. */
#ifndef MAM_TESTS_MODEL_REQUIRE_H
#define MAM_TESTS_MODEL_REQUIRE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imaginary_source.h"

#define MODEL_REQUIRE(condition)                                                                                       \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      (void)fprintf(stderr, "%s:%d: the pool and the model differ: %s\n", __FILE__, __LINE__, #condition);             \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
