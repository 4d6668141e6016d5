/* SPDX-License-Identifier: BSD-2-Clause */
/* What both models of the pool stand on: the imaginary source, and a requirement that also holds under a fuzzer. */
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
