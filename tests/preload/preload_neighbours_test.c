/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Processes under libmam_preload that share a device: what one has freed is there for another, as with the driver
 * alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "preload_util.h"

/* A number that this process and those that it forks from now on share. */
static _Atomic unsigned *shared_number(void) {
  _Atomic unsigned *number = mmap(NULL, sizeof *number, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne((void *)number, MAP_FAILED);
  return number;
}

/* From now on processes ask each other.  What is free stays in pools until they are asked. */
static void neighbours_begin(void) {
  (void)setenv("MAM_PRELOAD_NEIGHBOURS", "on", 1);
  (void)setenv("MAM_LINGER_MS", "1000000", 1);
  fake_share_memory();
}

/* ---- One asks ---- */

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int ask_alloc(size_t bytes) {
  address_t address;
  return cuMemAlloc_v2(&address, bytes);
}

static int ask_async(size_t bytes) {
  address_t address;
  return cuMemAllocAsync(&address, bytes, NULL);
}

/* Starts a process whose first allocation, once *turn is not 0, asks for so many bytes. */
static pid_t process_asks(_Atomic unsigned *turn, int (*ask)(size_t), size_t bytes) {
  pid_t child = fork();
  ck_assert_int_ne(child, -1);
  if (child != 0)
    return child;
  while (*turn == 0)
    (void)usleep(100);
  begin();
  _exit(ask(bytes));
}

/* What its allocation answers. */
static int process_heard(pid_t child) {
  int status = 1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* By whatever function it asks first. */
START_TEST(a_process_that_finds_no_memory_has_what_others_freed) {
  neighbours_begin();
  _Atomic unsigned *turn = shared_number(), *later = shared_number();
  int (*ask)(size_t) = _i == 0 ? ask_alloc : ask_async;
  pid_t one = process_asks(turn, ask, 2 * GIB), other = process_asks(later, ask, 4 * GIB);
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  (void)allocate(MIB);
  *turn = 1;
  OK(process_heard(one));
  ck_assert_uint_le(fake_live_bytes(), CHUNK_BYTES);
  *later = 1;
  ck_assert_int_eq(process_heard(other), OUT_OF_MEMORY); /* there is not so much */
}
END_TEST

START_TEST(a_process_may_keep_to_itself) {
  neighbours_begin();
  (void)setenv("MAM_PRELOAD_NEIGHBOURS", "off", 1);
  _Atomic unsigned *turn = shared_number();
  pid_t child = process_asks(turn, ask_alloc, 2 * GIB);
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  *turn = 1;
  ck_assert_int_eq(process_heard(child), OUT_OF_MEMORY);
  ck_assert_uint_gt(fake_live_bytes(), 3 * GIB);
}
END_TEST

/* It has more to give than goes back in the 100 ms for which a process waits that hears nothing.  One waits, or two. */
START_TEST(a_process_that_is_slow_to_give_is_waited_for) {
  neighbours_begin();
  _Atomic unsigned *turn = shared_number();
  pid_t children[2];
  for (int i = 0; i <= _i; i++)
    children[i] = process_asks(turn, ask_alloc, GIB + GIB / 2);
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  fake_hold("cuMemFree");
  *turn = 1;
  while (!fake_is_held())
    (void)usleep(1000);
  (void)usleep(500000);
  fake_let_go();
  for (int i = 0; i <= _i; i++)
    OK(process_heard(children[i]));
}
END_TEST

/* How long an allocation takes for which there is no memory. */
static int64_t refusal_ns(void) {
  struct timespec start, end;
  address_t address;
  (void)clock_gettime(CLOCK_MONOTONIC, &start);
  FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&address, (size_t)1 << 50));
  (void)clock_gettime(CLOCK_MONOTONIC, &end);
  return (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec;
}

/* The same at best: processes of other tests may be asked as well. */
static int64_t least_refusal_ns(void) {
  int64_t least_ns = refusal_ns();
  for (int i = 0; i < 7 && least_ns >= 100000000; i++) {
    int64_t ns = refusal_ns();
    least_ns = ns < least_ns ? ns : least_ns;
  }
  return least_ns;
}

/* Frees a block in a thread that does not capture. */
static void *block_free(void *block) {
  OK(cuMemFree_v2(*(address_t *)block));
  return NULL;
}

START_TEST(in_a_capture_a_process_that_finds_no_memory_does_not_wait_for_its_own) {
  void *graph;
  neighbours_begin();
  _Atomic unsigned *turn = shared_number(), *held = shared_number();
  pid_t child = fork();
  if (child == 0) {
    begin();
    *held = allocate(MIB) != 0;
    while (*turn == 0)
      (void)usleep(1000);
    _exit(0);
  }
  while (*held == 0)
    (void)usleep(100);
  begin();
  address_t block = allocate(GIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuMemFree_v2(block));
  ck_assert_int_lt(least_refusal_ns(), 100000000);
  OK(cuStreamEndCapture(stream, &graph));
  *turn = 1;
  OK(process_heard(child));
}
END_TEST

/* Beside a capture no fence can tell that nothing uses the memory any more. */
START_TEST(a_process_that_captures_gives_to_others) {
  void *graph;
  neighbours_begin();
  _Atomic unsigned *turn = shared_number();
  pid_t other = process_asks(turn, ask_alloc, 2 * GIB);
  begin();
  address_t block = allocate(3 * GIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 1));
  pthread_t thread;
  OK(pthread_create(&thread, NULL, block_free, &block));
  OK(pthread_join(thread, NULL));
  *turn = 1;
  OK(process_heard(other));
  OK(cuStreamEndCapture(stream, &graph));
}
END_TEST

/* Starts a process that is served and becomes one that is not.  Then the pipe, of which *end is this end, is closed. */
static pid_t other_process_leaves(int *end) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  pid_t child = fork();
  if (child == 0) {
    if (dup2(ends[1], 50) == 50)
      (void)execl("tests/preload/preload_program", "preload_program", "leave", (char *)NULL);
    _exit(99);
  }
  OK(close(ends[1]));
  *end = ends[0];
  return child;
}

/* The graph of a relaxed capture may use it.  The GPU is idle, or busy when the other process asks. */
START_TEST(what_is_only_held_softly_for_graphs_is_for_others) {
  neighbours_begin();
  _Atomic unsigned *turn = shared_number();
  pid_t child = process_asks(turn, ask_alloc, 2 * GIB);
  void *graph;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  address_t block = allocate(3 * GIB);
  OK(cuStreamEndCapture(stream, &graph));
  if (_i == 1)
    fake_launch(NULL, &(struct fake_range){(void *)(uintptr_t)block, 3 * GIB}, 1);
  OK(cuMemFree_v2(block));
  *turn = 1;
  (void)usleep(100000);
  fake_finish(fake_current());
  OK(process_heard(child));
  OK(cuGraphDestroy(graph));
}
END_TEST

/* One process has memory to give.  Another, this one, is in the middle of giving some, and does not end. */
START_TEST(a_process_that_has_memory_given_does_not_wait_for_the_others) {
  enum { ENOUGH_MS = 700 }; /* a process that is giving is waited for 1,000 ms */
  neighbours_begin();
  _Atomic unsigned *turn = shared_number(), *held = shared_number();
  pid_t asks = process_asks(turn, ask_alloc, GIB), gives = fork();
  if (gives == 0) {
    begin();
    OK(cuMemFree_v2(allocate(GIB + GIB / 2)));
    for (*held = 1; *held == 1;)
      (void)usleep(1000);
    _exit(0);
  }
  while (*held == 0)
    (void)usleep(100);
  begin();
  OK(cuMemFree_v2(allocate(2 * GIB)));
  fake_hold("cuMemFree");
  int64_t start_ms = now_ms();
  *turn = 1;
  OK(process_heard(asks));
  int64_t ms = now_ms() - start_ms;
  fake_let_go();
  *held = 2;
  OK(process_heard(gives));
  ck_assert_int_lt(ms, ENOUGH_MS);
}
END_TEST

/* A ring waits 100 ms for an answer that does not come. */
START_TEST(nobody_waits_for_a_process_that_became_another) {
  char byte;
  int end;
  (void)setenv("MAM_PRELOAD_NEIGHBOURS", "on", 1);
  begin();
  (void)allocate(MIB);
  pid_t child = other_process_leaves(&end);
  ck_assert_int_eq(read(end, &byte, 1), 0); /* closed by its exec */
  int64_t ns = least_refusal_ns();
  ck_assert_int_eq(kill(child, 0), 0); /* it is there */
  OK(kill(child, SIGKILL));
  ck_assert_int_lt(ns, 100000000);
}
END_TEST

static int count_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 1000; fd++)
    count += fcntl(fd, F_GETFD) != -1;
  return count;
}

/* As a daemon does, which then opens files of its own under the numbers that have become free. */
START_TEST(a_program_may_close_every_descriptor) {
  neighbours_begin();
  _Atomic unsigned *turn = shared_number();
  pid_t child = process_asks(turn, ask_alloc, 2 * GIB);
  begin();
  int before = count_descriptors(), status = 1;
  OK(cuMemFree_v2(allocate(3 * GIB)));
  ck_assert_int_eq(count_descriptors(), before);
  for (int fd = 3; fd < 1000; fd++)
    (void)close(fd);
  for (int fd = 3; fd < 300; fd++)
    ck_assert_int_eq(dup(0), fd);
  pid_t heir = fork(); /* whose handlers close nothing of the program's */
  if (heir == 0)
    _exit(count_descriptors() == 300 ? 0 : 1);
  ck_assert_int_eq(waitpid(heir, &status, 0), heir);
  ck_assert_int_eq(status, 0);
  *turn = 1;
  OK(process_heard(child));
}
END_TEST

/* ---- Several ask ---- */

enum { TURN_PROCESSES = 4, TURNS = 40, TURN_BLOCKS = 400 };

/* Fills most of the device with blocks of random sizes, and frees them.  If lags, a kernel uses the memory meanwhile,
 * and ends 30 ms after the free.  What the first allocation answers that fails. */
static int fill_and_empty(void *context, unsigned seed, bool lags) {
  static address_t blocks[TURN_BLOCKS];
  static struct fake_range ranges[TURN_BLOCKS];
  size_t left = 7 * GIB / 2;
  int count = 0, error = 0;
  while (left > 0 && count < TURN_BLOCKS && error == 0) {
    seed = seed * 1664525 + 1013904223;
    size_t bytes = ((seed >> 12) % 400 + 1) * MIB;
    bytes = bytes < left ? bytes : left;
    error = cuMemAlloc_v2(&blocks[count], bytes);
    ranges[count] = (struct fake_range){(const void *)(uintptr_t)blocks[count], bytes};
    left -= bytes;
    count += error == 0;
  }
  if (lags && error == 0)
    ck_assert(fake_launch(NULL, ranges, (size_t)count));
  while (count > 0)
    OK(cuMemFree_v2(blocks[--count]));
  (void)context;
  return error;
}

static void take_turns(unsigned number, bool lags, _Atomic unsigned *turn) {
  void *context = begin();
  while (*turn < TURNS) {
    if (*turn % TURN_PROCESSES != number) {
      (void)usleep(100);
      continue;
    }
    int error = fill_and_empty(context, *turn, lags);
    if (error != 0)
      _exit(error);
    (*turn)++;
    if (lags) {
      (void)usleep(30000);
      fake_finish(context);
    }
  }
  _exit(0);
}

/* With the driver alone no allocation of a turn fails, as all others hold nothing. */
START_TEST(processes_fill_and_empty_the_device_in_turns) {
  neighbours_begin();
  _Atomic unsigned *turn = shared_number();
  for (unsigned i = 0; i < TURN_PROCESSES; i++)
    if (fork() == 0)
      take_turns(i, _i == 1, turn);
  for (unsigned i = 0; i < TURN_PROCESSES; i++) {
    int status = 1;
    ck_assert_int_ne(wait(&status), -1);
    ck_assert_msg(status == 0, "status %d in turn %u", status, *turn);
  }
}
END_TEST

enum { CROWD = 6, CROWD_BLOCKS = 30, CROWD_MS = 2000, BLOCK_MIB = 100, COST_MIB = BLOCK_MIB + 2, SHARE_MIB = 3600 };

/* Reserves the place for a block, with the pool's guard, in what all processes may hold together. */
static bool share_take(_Atomic unsigned *held) {
  if ((*held += COST_MIB) <= SHARE_MIB)
    return true;
  *held -= COST_MIB;
  return false;
}

/* Fills its part of the device and empties it, again and again.  What the first allocation answers that fails.  The
 * processes end together, since the fake's memory of one that ends by _exit is lost. */
static int crowd_member(unsigned number, _Atomic unsigned *held, _Atomic unsigned *done) {
  address_t blocks[CROWD_BLOCKS];
  int64_t end_ms = now_ms() + CROWD_MS;
  int error = 0;
  begin();
  while (error == 0 && now_ms() < end_ms) {
    int count = 0;
    while (error == 0 && count < CROWD_BLOCKS && share_take(held)) {
      error = cuMemAlloc_v2(&blocks[count], BLOCK_MIB * MIB);
      count += error == 0;
    }
    for (; count > 0; *held -= COST_MIB)
      OK(cuMemFree_v2(blocks[--count]));
    (void)usleep(number * 1000);
  }
  for (++*done; *done < CROWD;)
    (void)usleep(1000);
  return error;
}

/* All at once, and several find no memory at once.  With the driver alone no allocation fails. */
START_TEST(processes_share_a_device_that_is_nearly_full) {
  neighbours_begin();
  _Atomic unsigned *held = shared_number(), *done = shared_number();
  for (unsigned i = 0; i < CROWD; i++)
    if (fork() == 0)
      _exit(crowd_member(i, held, done));
  for (unsigned i = 0; i < CROWD; i++) {
    int status = 1;
    ck_assert_int_ne(wait(&status), -1);
    ck_assert_int_eq(status, 0);
  }
}
END_TEST

static Suite *suite(void) {
  Suite *suite = suite_create("preload, neighbours");
  TCase *tests = tcase_create("neighbours");
  tcase_add_loop_test(tests, a_process_that_finds_no_memory_has_what_others_freed, 0, 2);
  tcase_add_test(tests, a_process_may_keep_to_itself);
  tcase_add_loop_test(tests, a_process_that_is_slow_to_give_is_waited_for, 0, 2);
  tcase_add_loop_test(tests, what_is_only_held_softly_for_graphs_is_for_others, 0, 2);
  tcase_add_test(tests, a_process_that_has_memory_given_does_not_wait_for_the_others);
  tcase_add_test(tests, in_a_capture_a_process_that_finds_no_memory_does_not_wait_for_its_own);
  tcase_add_test(tests, a_process_that_captures_gives_to_others);
  tcase_add_test(tests, nobody_waits_for_a_process_that_became_another);
  tcase_add_test(tests, a_program_may_close_every_descriptor);
  tcase_add_loop_test(tests, processes_fill_and_empty_the_device_in_turns, 0, 2);
  tcase_add_test(tests, processes_share_a_device_that_is_nearly_full);
  tcase_set_timeout(tests, 30);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  return preload_run_suite(arguments, suite);
}
