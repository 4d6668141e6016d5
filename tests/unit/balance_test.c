/* SPDX-License-Identifier: BSD-2-Clause */
/* The balances of threads and the most of their sum, beside plain numbers. */
#include <stdlib.h>

#include "front/balance.h"
#include "support/run_suite.h"

enum { THREADS = 16, STEPS = 200000 };

/* What the threads do, one step at a time, so that the true most is known. */
struct model {
  struct balance_sum sum;
  struct balance threads[THREADS];
  int64_t bytes, most;
};

static int64_t largest_slack;

static void step(struct model *model, struct balance *thread, size_t bytes, bool frees) {
  model->bytes += frees ? -(int64_t)bytes : (int64_t)bytes;
  model->most = model->bytes > model->most ? model->bytes : model->most;
  if (frees ? balance_subtract(thread, bytes) : balance_add(thread, bytes))
    balance_share(thread, &model->sum);
  largest_slack = thread->slack > largest_slack ? thread->slack : largest_slack;
}

/* The sum of the balances is exact at any moment. */
static void check_sum(const struct model *model) {
  int64_t bytes = atomic_load(&model->sum.bytes);
  for (unsigned i = 0; i < THREADS; i++)
    bytes += model->threads[i].bytes - model->threads[i].published;
  ck_assert_int_eq(bytes, model->bytes);
}

static int64_t told(struct model *model) {
  int64_t bytes = atomic_load(&model->sum.bytes);
  for (unsigned i = 0; i < THREADS; i++)
    bytes += model->threads[i].most - model->threads[i].published;
  return balance_note(&model->sum, bytes);
}

START_TEST(thread_alone_knows_its_most_exactly) {
  struct model model = {.threads = {BALANCE_INIT}};
  unsigned seed = (unsigned)_i;
  struct balance *thread = &model.threads[0];
  for (unsigned i = 0; i < STEPS; i++) {
    size_t bytes = 1 + (size_t)rand_r(&seed) % 100000;
    step(&model, thread, bytes, rand_r(&seed) % 2 == 0 && (int64_t)bytes <= model.bytes);
    ck_assert_int_eq(told(&model), model.most);
  }
  ck_assert_int_eq(thread->slack, 0);
}
END_TEST

/* Some threads mostly allocate, others mostly free what those allocated. */
START_TEST(most_of_several_threads_is_known_to_within_their_slacks) {
  struct model model = {.bytes = 0};
  unsigned seed = (unsigned)_i, count = 2 + (unsigned)_i % (THREADS - 1);
  largest_slack = 0;
  for (unsigned i = 0; i < THREADS; i++)
    model.threads[i] = (struct balance)BALANCE_INIT;
  for (unsigned i = 0; i < count; i++)
    balance_share(&model.threads[i], &model.sum);
  for (unsigned i = 0; i < STEPS; i++) {
    unsigned number = (unsigned)rand_r(&seed) % count;
    size_t bytes = (size_t)1 << rand_r(&seed) % 24;
    bool frees = rand_r(&seed) % 10 < (number % 2 == 0 ? 3 : 7) && (int64_t)bytes <= model.bytes;
    step(&model, &model.threads[number], bytes, frees);
    if (i % 1000 == 0)
      check_sum(&model);
  }
  int64_t apart = told(&model) - model.most;
  ck_assert_int_le(labs(apart), count * largest_slack);
  check_sum(&model);
}
END_TEST

/* A thread that goes up and down by the same block publishes it a few times, and then no more. */
START_TEST(loop_of_pairs_does_not_publish_for_ever) {
  struct model model = {.threads = {BALANCE_INIT}};
  struct balance *thread = &model.threads[0];
  size_t bytes = (size_t)1 << (20 + _i);
  unsigned published = 0;
  balance_share(thread, &model.sum);
  for (unsigned i = 0; i < 2 * STEPS; i++) {
    int64_t before = thread->published;
    step(&model, thread, bytes, i % 2 != 0);
    published += thread->published != before;
  }
  ck_assert_uint_lt(published, STEPS / 100);
  ck_assert_int_eq(told(&model), (int64_t)bytes);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("balance");
  TCase *balances = tcase_create("balances");
  tcase_add_loop_test(balances, thread_alone_knows_its_most_exactly, 0, 4);
  tcase_add_loop_test(balances, most_of_several_threads_is_known_to_within_their_slacks, 0, 2 * THREADS);
  tcase_add_loop_test(balances, loop_of_pairs_does_not_publish_for_ever, 0, 16);
  suite_add_tcase(suite, balances);
  return run_suite(suite);
}
