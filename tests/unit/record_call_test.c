/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records that a call begins and ends, on plain host memory: blocks that are live before, threads that allocate
 * meanwhile, one record after the other, what is refused.  Each case is a process of its own: this program with an
 * argument.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_record.h"
#include "mam.h"
#include "support/run_suite.h"

/* For a process of a case, which has no test runner. */
#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      (void)fprintf(stderr, "%s:%d: not so: %s; the library says: %s\n", __FILE__, __LINE__, #condition,               \
                    MAM_LastError());                                                                                  \
      exit(2);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static char path[64], other_path[64];
static struct record record;

static void *block_of(size_t bytes) {
  void *block = NULL;
  EXPECT(MAM_CudaMalloc(&block, bytes) == cudaSuccess);
  return block;
}

static void free_it(void *block) { EXPECT(MAM_CudaFree(block) == cudaSuccess); }

static void begin(void) { EXPECT(MAM_RecordBegin(path) == cudaSuccess); }

/* The record is complete when the call returns. */
static void end_and_read(void) {
  EXPECT(MAM_RecordEnd() == cudaSuccess);
  record_free(&record);
  EXPECT(record_read(&record, path, RECORD_EVENTS_MOST));
  EXPECT(!record.cut && record.lost_count == 0);
}

static size_t count_of(uint32_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < record.event_count; i++)
    count += record.events[i].kind == kind;
  return count;
}

/* The allocation of a block that the record has once. */
static const struct record_event *allocation_of(const void *block) {
  const struct record_event *found = NULL;
  for (size_t i = 0; i < record.event_count; i++)
    if (record.events[i].kind == RECORD_ALLOCATE && record.events[i].address == (uintptr_t)block) {
      EXPECT(found == NULL);
      found = &record.events[i];
    }
  EXPECT(found != NULL);
  return found;
}

static size_t unknown_frees(void) {
  size_t count = 0;
  for (size_t i = 0; i < record.event_count; i++)
    count += record.events[i].kind == RECORD_FREE && record.events[i].serial == RECORD_NO_SERIAL;
  return count;
}

/* ---- The programs ---- */

static void live_blocks(void) {
  static const char tag;
  void *small = block_of(1000), *large = block_of(5 << 20), *tagged = NULL, *gone = block_of(3 << 20);
  EXPECT(MAM_CudaMallocTagged(&tagged, 2 << 20, &tag) == cudaSuccess);
  free_it(gone);
  free_it(block_of(1000));
  begin();
  void *later = block_of(700);
  free_it(small);
  free_it(tagged);
  end_and_read();
  EXPECT(count_of(RECORD_ALLOCATE) == 4 && count_of(RECORD_FREE) == 2 && unknown_frees() == 0);
  EXPECT(record.live_before == 3);
  EXPECT(allocation_of(small)->before && allocation_of(small)->size >= 1000 && allocation_of(small)->size < 1016);
  EXPECT(allocation_of(large)->before && allocation_of(large)->size == 5 << 20);
  EXPECT(strstr(record.sites[allocation_of(large)->site].module, "record_call_test") != NULL);
  EXPECT(allocation_of(tagged)->before && allocation_of(tagged)->tag != 0);
  EXPECT(!allocation_of(later)->before && allocation_of(later)->size == 700);
  EXPECT(strcmp(record.threads[allocation_of(small)->thread], "before the record") == 0);
  EXPECT(record.events[0].kind == RECORD_TAKEN && record.events[0].size >= 10 << 20);
  for (size_t i = 0; i < record.event_count; i++)
    EXPECT(record.events[i].kind != RECORD_ALLOCATE || record.events[i].address != (uintptr_t)gone);
}

/* The quick paths record from the first call on.  After the end they are quick again, and the file has no later
 * call. */
static void again(void) {
  void *kept = block_of(4096);
  for (int i = 0; i < 5; i++) {
    free_it(block_of(4096));
    begin();
    for (int j = 0; j < 1000; j++)
      free_it(block_of(4096));
    MAM_Mark("in");
    end_and_read();
    EXPECT(count_of(RECORD_ALLOCATE) == 1001 && count_of(RECORD_FREE) == 1000 && unknown_frees() == 0);
    EXPECT(count_of(RECORD_MARK) == 1 && allocation_of(kept)->before);
    for (int j = 0; j < 100; j++)
      free_it(block_of(4096));
    MAM_Mark("between");
  }
  record_free(&record);
  EXPECT(record_read(&record, path, RECORD_EVENTS_MOST) && count_of(RECORD_ALLOCATE) == 1001);
  free_it(kept);
}

static void two_files(void) {
  void *first = block_of(100 << 10), *second;
  begin();
  second = block_of(200 << 10);
  EXPECT(MAM_RecordEnd() == cudaSuccess);
  EXPECT(MAM_RecordBegin(other_path) == cudaSuccess);
  free_it(second);
  EXPECT(MAM_RecordEnd() == cudaSuccess);
  EXPECT(record_read(&record, path, RECORD_EVENTS_MOST) && count_of(RECORD_ALLOCATE) == 2 &&
         count_of(RECORD_FREE) == 0);
  EXPECT(allocation_of(first)->before && !allocation_of(second)->before);
  record_free(&record);
  EXPECT(record_read(&record, other_path, RECORD_EVENTS_MOST) && count_of(RECORD_ALLOCATE) == 2 &&
         count_of(RECORD_FREE) == 1);
  EXPECT(allocation_of(first)->before && allocation_of(second)->before && unknown_frees() == 0);
  EXPECT(record.sites[allocation_of(second)->site].offset != 0);
}

static bool says(const char *text) { return strstr(MAM_LastError(), text) != NULL; }

static void refusals(void) {
  void *block = block_of(1000);
  EXPECT(MAM_RecordEnd() == cudaErrorInvalidValue && says("no record"));
  EXPECT(MAM_RecordBegin(NULL) == cudaErrorInvalidValue && MAM_RecordBegin("") == cudaErrorInvalidValue);
  EXPECT(MAM_RecordBegin("/nowhere/at/all") == cudaErrorUnknown && says("/nowhere/at/all: No such file"));
  EXPECT(MAM_RecordBegin("/dev/full") == cudaErrorUnknown && says("/dev/full is no record"));
  EXPECT(mkfifo(other_path, 0666) == 0 && MAM_RecordBegin(other_path) == cudaErrorUnknown && says("is no record"));
  EXPECT(unlink(other_path) == 0);
  EXPECT(MAM_RecordEnd() == cudaErrorInvalidValue);
  struct rlimit limit, none;
  EXPECT(getrlimit(RLIMIT_FSIZE, &limit) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
  none = (struct rlimit){0, limit.rlim_max};
  EXPECT(setrlimit(RLIMIT_FSIZE, &none) == 0);
  EXPECT(MAM_RecordBegin(path) == cudaErrorUnknown && says(": File too large"));
  EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  FILE *file = fopen(other_path, "w");
  EXPECT(file != NULL && fputs("import torch\n", file) >= 0 && fclose(file) == 0);
  EXPECT(MAM_RecordBegin(other_path) == cudaErrorUnknown && says("is no record"));
  struct stat status;
  EXPECT(stat(other_path, &status) == 0 && status.st_size == 13);
  begin();
  EXPECT(MAM_RecordBegin(other_path) == cudaErrorAlreadyAcquired && says(path));
  free_it(block);
  end_and_read();
  EXPECT(count_of(RECORD_ALLOCATE) == 1 && count_of(RECORD_FREE) == 1 && unknown_frees() == 0);
}

/* Another file of the program then has the record's descriptor number.  The library does not write to it or close
 * it. */
static void closes_the_file(void) {
  void *block = block_of(1000);
  struct stat before, after;
  int free_fd = open("/dev/null", O_RDONLY);
  EXPECT(free_fd >= 0 && close(free_fd) == 0);
  begin();
  EXPECT(close(free_fd) == 0);
  int fd = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0666);
  EXPECT(fd == free_fd && fstat(fd, &before) == 0);
  free_it(block);
  EXPECT(MAM_RecordEnd() == cudaErrorUnknown && says("the program has closed the record"));
  EXPECT(fstat(fd, &after) == 0 && after.st_ino == before.st_ino && after.st_size == 0);
  begin(); /* the old number is taken */
  end_and_read();
  EXPECT(close(fd) == 0);
}

/* A program that never ends its record learns by standard error that it lost it. */
static void loses_the_file(void) {
  int ends[2], free_fd = open("/dev/null", O_RDONLY);
  char said[256] = "";
  EXPECT(free_fd >= 0 && close(free_fd) == 0);
  begin();
  EXPECT(close(free_fd) == 0);
  EXPECT(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  struct pollfd out = {.fd = ends[0], .events = POLLIN};
  for (int i = 0; i < 1000 && poll(&out, 1, 10) == 0; i++)
    free_it(block_of(1000));
  EXPECT((out.revents & POLLIN) != 0 && read(ends[0], said, sizeof said - 1) > 0);
  EXPECT(strncmp(said, "mam: the program has closed the record ", 39) == 0 && strstr(said, "; no more is recorded\n"));
  EXPECT(MAM_RecordEnd() == cudaErrorUnknown && says("the program has closed the record"));
}

/* MAM_RECORD is set, and its record goes on. */
static void beside_the_variable(void) {
  free_it(block_of(1000));
  EXPECT(MAM_RecordBegin(other_path) == cudaErrorAlreadyAcquired && says(path));
  EXPECT(MAM_RecordEnd() == cudaErrorInvalidValue && says("not one that MAM_RecordBegin"));
  free_it(block_of(1000));
}

/* When the record begins, the thread has the front of a pool that has ended.  The next pool takes over that front. */
static void pools(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool;
  void *block = NULL;
  options.source = MAM_SOURCE_HOST;
  for (int i = 0; i < 2; i++) {
    EXPECT(MAM_PoolCreate(&pool, &options) == cudaSuccess && MAM_PoolMalloc(pool, &block, 3 << 20) == cudaSuccess);
    free_it(block);
    MAM_Mark("freed");
    if (i == 1)
      break;
    EXPECT(MAM_PoolDestroy(pool) == cudaSuccess);
    begin();
  }
  EXPECT(MAM_PoolMalloc(pool, &block, 4 << 20) == cudaSuccess && MAM_PoolDestroy(pool) == cudaSuccess);
  end_and_read();
  static const uint32_t kinds[] = {RECORD_ALLOCATE, RECORD_FREE, RECORD_MARK, RECORD_ALLOCATE, RECORD_FREE};
  size_t seen = 0;
  for (size_t i = 0; i < record.event_count; i++)
    if (record.events[i].kind != RECORD_TAKEN) {
      EXPECT(seen < 5 && record.events[i].kind == kinds[seen]);
      seen++;
    }
  EXPECT(seen == 5 && unknown_frees() == 0);
  const struct record_event *last = &record.events[record.event_count - 1];
  EXPECT(last->kind == RECORD_TAKEN && last->size == 0);
}

static void ends_with_the_process(void) {
  begin();
  (void)block_of(1000);
}

/* The child has no record, and the parent's goes on. */
static void forks(void) {
  int status = -1;
  void *before = block_of(1000);
  begin();
  pid_t child = fork();
  if (child == 0) {
    EXPECT(MAM_RecordEnd() == cudaErrorInvalidValue);
    free_it(before);
    EXPECT(MAM_RecordBegin(other_path) == cudaSuccess);
    free_it(block_of(2000));
    EXPECT(MAM_RecordEnd() == cudaSuccess);
    exit(0);
  }
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  free_it(before);
  end_and_read();
  EXPECT(count_of(RECORD_ALLOCATE) == 1 && count_of(RECORD_FREE) == 1 && unknown_frees() == 0);
  record_free(&record);
  EXPECT(record_read(&record, other_path, RECORD_EVENTS_MOST) && count_of(RECORD_ALLOCATE) == 1 &&
         count_of(RECORD_FREE) == 1);
}

/* A child that runs no handler, as one that is about to call exec, has all descriptors. */
static void beside_a_child(void) {
  begin();
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (child == 0)
    for (;;)
      (void)syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
  EXPECT(child > 0);
  free_it(block_of(1000));
  end_and_read();
  begin();
  end_and_read();
  EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* ---- Threads ---- */

enum { THREADS = 4, ROUNDS = 40, KEPT = 16, SLEEPER_BYTES = 6000, SHORT_BYTES = 40 << 20 };

static _Atomic bool stops;
static _Atomic unsigned long calls;

/* Frees and allocates its own blocks by all ways, until it is told to stop. */
static void *work(void *seed_at) {
  static const char tag;
  int stream = 0;
  unsigned seed = (unsigned)(uintptr_t)seed_at;
  void *kept[KEPT] = {NULL};
  while (!atomic_load_explicit(&stops, memory_order_relaxed)) { /* relaxed: nothing is published */
    unsigned at = (unsigned)rand_r(&seed) % KEPT, way = (unsigned)rand_r(&seed) % 8;
    size_t bytes = way == 0 ? (size_t)rand_r(&seed) % (1 << 20) + 1 : (size_t)rand_r(&seed) % 5000 + 1;
    if (way == 1)
      EXPECT(MAM_CudaFreeAsync(kept[at], (cudaStream_t)&stream) == cudaSuccess);
    else
      free_it(kept[at]);
    kept[at] = NULL;
    if (way == 2)
      EXPECT(MAM_CudaMallocTagged(&kept[at], bytes, &tag) == cudaSuccess);
    else if (way == 3)
      EXPECT(MAM_CudaMallocAsync(&kept[at], bytes, (cudaStream_t)&stream) == cudaSuccess);
    else
      kept[at] = block_of(bytes);
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); /* relaxed: a count */
  }
  for (unsigned i = 0; i < KEPT; i++)
    free_it(kept[i]);
  return NULL;
}

/* Some threads end while the record is made, and others begin.  The first thing that such a one records may be that the
 * pool grew, so it makes its ring with the pool's lock. */
static void *work_shortly(void *unused) {
  (void)unused;
  while (!atomic_load_explicit(&stops, memory_order_relaxed)) {
    pthread_t thread;
    void *block = block_of(900);
    EXPECT(pthread_create(&thread, NULL, (void *(*)(void *))(void (*)(void))block_of, (void *)SHORT_BYTES) == 0);
    void *its;
    EXPECT(pthread_join(thread, &its) == 0);
    free_it(its);
    free_it(block);
    EXPECT(MAM_Trim(0) == cudaSuccess);
  }
  return NULL;
}

/* Allocates once before all records, and sleeps until they are over. */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(void *) sleeper_block;
static void *sleep_through(void *unused) {
  (void)unused;
  void *block = block_of(SLEEPER_BYTES);
  atomic_store_explicit(&sleeper_block, block, memory_order_release); /* pairs with the acquire in threads */
  pthread_mutex_lock(&sleep_lock);
  pthread_mutex_unlock(&sleep_lock);
  free_it(block);
  return NULL;
}

/* No address is live twice, and no free is of a block that the record does not know.  Each call is in the record as a
 * whole, or in the list of live blocks, or in neither. */
static void check_round(void) {
  size_t live = 0;
  uint64_t *ends = calloc(record.allocation_count + 1, sizeof *ends);
  for (size_t i = 0; i < record.event_count; i++) {
    const struct record_event *event = &record.events[i];
    live += event->kind == RECORD_ALLOCATE;
    if (event->kind == RECORD_FREE && event->serial != RECORD_NO_SERIAL)
      live--, ends[event->serial]++;
  }
  for (size_t i = 0; i < record.allocation_count; i++)
    EXPECT(ends[i] <= 1);
  free(ends);
  EXPECT(unknown_frees() <= THREADS + 1); /* each thread that frees may be inside one call */
  EXPECT(live <= (size_t)THREADS * (KEPT + 1) + 4);
}

static void threads(void) {
  pthread_t workers[THREADS], others[2];
  pthread_mutex_lock(&sleep_lock);
  for (uintptr_t i = 0; i < THREADS; i++)
    EXPECT(pthread_create(&workers[i], NULL, work, (void *)(i + 1)) == 0);
  EXPECT(pthread_create(&others[0], NULL, work_shortly, NULL) == 0);
  EXPECT(pthread_create(&others[1], NULL, sleep_through, NULL) == 0);
  while (atomic_load_explicit(&sleeper_block, memory_order_acquire) == NULL) /* pairs with the release */
    (void)sched_yield();
  for (int i = 0; i < ROUNDS; i++) {
    begin();
    /* relaxed: a count; here and below */
    unsigned long enough = atomic_load_explicit(&calls, memory_order_relaxed) + 2000;
    while (atomic_load_explicit(&calls, memory_order_relaxed) < enough)
      (void)sched_yield();
    end_and_read();
    check_round();
    EXPECT(count_of(RECORD_ALLOCATE) > 500);
    const struct record_event *slept = allocation_of(atomic_load_explicit(&sleeper_block, memory_order_relaxed));
    EXPECT(slept->before && slept->size >= SLEEPER_BYTES && slept->size < SLEEPER_BYTES + 16);
  }
  begin();
  atomic_store_explicit(&stops, true, memory_order_relaxed);
  pthread_mutex_unlock(&sleep_lock);
  for (int i = 0; i < THREADS; i++)
    EXPECT(pthread_join(workers[i], NULL) == 0);
  EXPECT(pthread_join(others[0], NULL) == 0 && pthread_join(others[1], NULL) == 0);
  end_and_read();
  /* All blocks have ended, those that were live before and the later ones: the record missed none. */
  EXPECT(count_of(RECORD_ALLOCATE) == count_of(RECORD_FREE) - unknown_frees());
}

static const struct program {
  const char *name;
  void (*run)(void);
} programs[] = {{"live blocks", live_blocks},
                {"again", again},
                {"two files", two_files},
                {"refusals", refusals},
                {"closes the file", closes_the_file},
                {"loses the file", loses_the_file},
                {"beside the variable", beside_the_variable},
                {"pools", pools},
                {"ends with the process", ends_with_the_process},
                {"forks", forks},
                {"beside a child", beside_a_child},
                {"threads", threads}};

/* ---- The tests ---- */

static void paths_name(long process) {
  (void)snprintf(path, sizeof path, "record_call_test.%ld", process);
  (void)snprintf(other_path, sizeof other_path, "record_call_test.%ld.other", process);
}

static void run(const char *name, bool with_variable) {
  char number[32];
  int status = -1;
  paths_name((long)getpid());
  (void)snprintf(number, sizeof number, "%ld", (long)getpid());
  pid_t child = fork();
  if (child == 0) {
    (void)setenv("MAM_SOURCE", "host", 1);
    (void)unsetenv("MAM_RECORD");
    if (with_variable)
      (void)setenv("MAM_RECORD", path, 1);
    (void)execl("/proc/self/exe", "record_call_test", name, number, (char *)NULL);
    _exit(99);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(status == 0, "the program \"%s\" has status %#x", name, (unsigned)status);
  if (with_variable || strcmp(name, "ends with the process") == 0) {
    ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
    ck_assert(!record.cut);
    ck_assert_uint_eq(count_of(RECORD_ALLOCATE), with_variable ? 2 : 1);
    record_free(&record);
  }
  (void)unlink(path);
  (void)unlink(other_path);
}

START_TEST(a_record_begins_with_what_is_live) { run("live blocks", false); }
END_TEST
START_TEST(a_record_may_follow_another_one_to_the_same_file) { run("again", false); }
END_TEST
START_TEST(a_record_may_follow_another_one_to_another_file) { run("two files", false); }
END_TEST
START_TEST(what_cannot_begin_changes_nothing) { run("refusals", false); }
END_TEST
START_TEST(a_program_may_close_the_file) { run("closes the file", false); }
END_TEST
START_TEST(a_program_learns_that_it_lost_the_file) { run("loses the file", false); }
END_TEST
START_TEST(the_record_of_the_variable_stays) { run("beside the variable", true); }
END_TEST
START_TEST(a_pool_that_comes_later_is_recorded) { run("pools", false); }
END_TEST
START_TEST(a_record_without_an_end_ends_with_the_process) { run("ends with the process", false); }
END_TEST
START_TEST(a_child_hinders_no_further_record) { run("beside a child", false); }
END_TEST
START_TEST(threads_meet_records_in_any_call) { run("threads", false); }
END_TEST
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
START_TEST(a_forked_child_has_no_record) { run("forks", false); }
END_TEST
#endif

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
    if (argc > 2 && strcmp(argv[1], programs[i].name) == 0) {
      paths_name(strtol(argv[2], NULL, 10));
      programs[i].run();
      record_free(&record);
      return 0;
    }
  Suite *suite = suite_create("record_call");
  TCase *cases = tcase_create("calls");
  tcase_set_timeout(cases, 120); /* under a sanitizer */
  tcase_add_test(cases, a_record_begins_with_what_is_live);
  tcase_add_test(cases, a_record_may_follow_another_one_to_the_same_file);
  tcase_add_test(cases, a_record_may_follow_another_one_to_another_file);
  tcase_add_test(cases, what_cannot_begin_changes_nothing);
  tcase_add_test(cases, a_program_may_close_the_file);
  tcase_add_test(cases, a_program_learns_that_it_lost_the_file);
  tcase_add_test(cases, the_record_of_the_variable_stays);
  tcase_add_test(cases, a_pool_that_comes_later_is_recorded);
  tcase_add_test(cases, a_record_without_an_end_ends_with_the_process);
  tcase_add_test(cases, a_child_hinders_no_further_record);
  tcase_add_test(cases, threads_meet_records_in_any_call);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* a child would start a thread */
  tcase_add_test(cases, a_forked_child_has_no_record);
#endif
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
