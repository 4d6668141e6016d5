/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device heap's algorithm under real threads, for ThreadSanitizer.  Each thread acts as warps do.  It writes to its
 * blocks without any synchronization and passes some to other threads.  If two threads have one block, or if the last
 * owner's writes are not ordered before the next owner's, that is a data race.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

/* A thread that waits lets others run: one that lost its processor may be refilling the slot for which a check waits.
 */
#define MAM__ATOMICS_PAUSE() ((void)sched_yield())

#include "support/heap_model.h"
#include "support/run_suite.h"

enum { THREADS = 6, BLOCKS = 64, BOX = 256, MIB = 1 << 20 };

struct held {
  unsigned char *address;
  size_t bytes;
  unsigned char mark;
};

static struct heap_model *model;
static unsigned largest_log2; /* the logarithm of the largest size that is asked for */
static unsigned rounds = 2000;

/* Blocks on their way from one thread to another. */
static pthread_mutex_t box_lock = PTHREAD_MUTEX_INITIALIZER;
static struct held box[BOX];
static size_t box_count;
static unsigned faults, failures;

static uint32_t random_below(uint64_t *state, uint32_t bound) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (uint32_t)(*state >> 32) % bound;
}

static void fault(void) { (void)__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED); }

static void mark(struct held *held) { memset(held->address, held->mark, held->bytes); }

static void verify_and_free(struct held *held) {
  for (size_t i = 0; i < held->bytes; i++)
    if (held->address[i] != held->mark) {
      fault();
      break;
    }
  if (!heap_model_free(model, held->address))
    fault();
  held->address = NULL;
}

static void exchange_with_others(struct held *held, uint64_t *state) {
  pthread_mutex_lock(&box_lock);
  if (box_count == BOX) {
    struct held *theirs = &box[random_below(state, BOX)], ours = *held;
    *held = *theirs;
    *theirs = ours;
  } else {
    box[box_count++] = *held;
    held->address = NULL;
  }
  pthread_mutex_unlock(&box_lock);
}

static void allocate_as_a_warp(struct held *held, unsigned count, uint64_t *state) {
  void *blocks[BLOCKS];
  size_t bytes = 1 + random_below(state, 1u << (4 + random_below(state, largest_log2 - 3)));
  unsigned got =
      heap_model_malloc_warp(model, bytes, random_below(state, model->control->heap.slot_count), count, blocks);
  if (got != count)
    (void)__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
  for (unsigned i = 0; i < got; i++) {
    held[i] = (struct held){(unsigned char *)blocks[i], bytes, (unsigned char)random_below(state, 256)};
    mark(&held[i]);
  }
}

static void *churn(void *argument) {
  uint64_t state = 88172645463325252u + (uintptr_t)argument * 7919;
  struct held held[BLOCKS] = {{0}};
  for (unsigned round = 0; round < rounds; round++) {
    unsigned first = random_below(&state, BLOCKS), count = 1 + random_below(&state, 32);
    count = first + count < BLOCKS ? count : BLOCKS - first;
    for (unsigned i = first; i < first + count; i++)
      if (held[i].address != NULL) {
        if (random_below(&state, 8) == 0)
          exchange_with_others(&held[i], &state);
        if (held[i].address != NULL)
          verify_and_free(&held[i]);
      }
    allocate_as_a_warp(&held[first], count, &state);
  }
  for (unsigned i = 0; i < BLOCKS; i++)
    if (held[i].address != NULL)
      verify_and_free(&held[i]);
  return NULL;
}

static void run_threads(size_t heap_bytes, unsigned log2, bool lazy) {
  pthread_t threads[THREADS];
  largest_log2 = log2;
  model = heap_model_create(heap_bytes, 2);
  if (lazy)
    heap_model_make_lazy(model);
  box_count = faults = failures = 0;
  mam__u32 all = heap_model_free_pages(model);
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  for (size_t i = 0; i < box_count; i++)
    verify_and_free(&box[i]);
  ck_assert_uint_eq(faults, 0);
  mam__u32 held = 0;
  for (mam__u32 size_class = 0; size_class < MAM__HEAP_CLASSES; size_class++)
    held += model->control->heap.slot_count * mam__span_pages(model->control->heap.tuning, size_class);
  (void)printf("%u requests failed; %u of %u pages are held\n", failures, all - heap_model_free_pages(model), all);
  if (!lazy)
    ck_assert_uint_le(all - heap_model_free_pages(model), held);
  heap_model_destroy(model);
}

START_TEST(threads_share_a_roomy_heap) {
  run_threads((size_t)8 * MIB, 10, _i != 0);
  ck_assert_uint_eq(failures, 0);
}
END_TEST

START_TEST(threads_share_a_heap_that_is_always_full) {
  run_threads((size_t)MIB / 2, 13, _i != 0);
  ck_assert_uint_gt(failures, 0);
}
END_TEST

START_TEST(threads_ask_for_runs_of_pages_too) { run_threads((size_t)16 * MIB, 17, _i != 0); }
END_TEST

/* Long runs, for which a heap keeps whole words of the page map. */
START_TEST(threads_ask_for_long_runs) {
  rounds = 40; /* fewer, because each writes many bytes */
  run_threads((size_t)64 * MIB, 20, true);
  rounds = 2000;
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap threads");
  TCase *tests = tcase_create("threads");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, threads_share_a_roomy_heap, 0, 2);
  tcase_add_loop_test(tests, threads_share_a_heap_that_is_always_full, 0, 2);
  tcase_add_loop_test(tests, threads_ask_for_runs_of_pages_too, 0, 2);
  tcase_add_test(tests, threads_ask_for_long_runs);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
