/* SPDX-License-Identifier: BSD-2-Clause */
/* The clock by which the library measures time. */
#ifndef MAM_LIB_CLOCK_H
#define MAM_LIB_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC, which every Linux has. */
static inline int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
