/* SPDX-License-Identifier: BSD-2-Clause */
/* Random operations on a pool, compared with the naive model of pool_model.h after each operation; and on two pools
 * with their fronts, beside the model of front_model.h. */
#include <check.h>

#include "support/front_model.h"
#include "support/pool_model.h"
#include "support/run_suite.h"

enum { OPERATIONS = 4000, SEEDS = 32 };

/* xorshift64*: the numbers are the same on every machine. */
static uint64_t random_next(uint64_t *state) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static uint8_t data[1 + 4 * OPERATIONS];

/* The operations of a seed.  Seeds 0 to 31 use every pool that the models know. */
static void data_begin(int seed) {
  uint64_t state = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(seed + 1);
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (uint8_t)(random_next(&state) >> 56);
  data[0] = (uint8_t)((seed & 3) | (seed & 4) << 1 | (seed >> 3) << 4);
}

/* kind: 0 for whole chunks, 4 for an elastic pool. */
static void run_seed(int seed, int kind) {
  data_begin(seed);
  data[0] |= (uint8_t)kind;
  pool_model_run(data, sizeof data);
}

START_TEST(pool_does_what_the_model_does) { run_seed(_i, 0); }
END_TEST

START_TEST(elastic_pool_does_what_the_model_does) { run_seed(_i, 4); }
END_TEST

START_TEST(fronts_lose_nothing_and_give_nothing_twice) {
  data_begin(_i);
  front_model_run(data, sizeof data);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pool model");
  TCase *tests = tcase_create("random operations");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, pool_does_what_the_model_does, 0, SEEDS);
  tcase_add_loop_test(tests, elastic_pool_does_what_the_model_does, 0, SEEDS);
  tcase_add_loop_test(tests, fronts_lose_nothing_and_give_nothing_twice, 0, SEEDS);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
