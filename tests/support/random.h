/* SPDX-License-Identifier: BSD-2-Clause */
/* Random numbers that are the same in every run (xorshift; G. Marsaglia, 2003). */
#ifndef MAM_TESTS_RANDOM_H
#define MAM_TESTS_RANDOM_H

#include <stdint.h>

static uint64_t random_state = 88172645463325252u;

static inline uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32) % bound;
}

#endif /* MAM_TESTS_RANDOM_H */
