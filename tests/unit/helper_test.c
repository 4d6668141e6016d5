/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The library's threads keep no process alive.  Each case is a process of its own: this program with an argument.  A
 * case counts its threads, so that it fails if the library started none.
 */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mam.h"
#include "support/run_suite.h"

/* ---- The programs ---- */

enum { BAD = 2, THREAD_RAN_ON = 7, LARGE = 64 << 20 };

static long number_after(const char *field) {
  char line[256];
  long number = -1;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, field, strlen(field)) == 0)
      number = strtol(line + strlen(field), NULL, 10);
  if (file != NULL)
    (void)fclose(file);
  return number;
}

static bool main_is_over(void) {
  char text[256] = "";
  FILE *file = fopen("/proc/self/stat", "r");
  if (file != NULL) {
    (void)fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
  }
  return strstr(text, ") Z ") != NULL;
}

static void require(bool good) {
  if (!good)
    exit(BAD);
}

static void allocate_and_free(void) {
  void *block = NULL;
  require(MAM_CudaMalloc(&block, LARGE) == cudaSuccess && MAM_CudaFree(block) == cudaSuccess);
}

/* The reaper looks at a pool that has grown for a large block. */
static void start_reaper(void) {
  require(MAM_Create_auto() == cudaSuccess);
  allocate_and_free();
  require(number_after("Threads:") <= 2); /* on a busy machine the thread may have ended by now */
}

static void reaper(void) {
  start_reaper();
  pthread_exit(NULL);
}

/* With MAM_RECORD, and a pool that does not grow. */
static void writer(void) {
  void *block = NULL;
  require(MAM_Create(LARGE) == cudaSuccess && MAM_CudaMalloc(&block, 5000) == cudaSuccess);
  require(number_after("Threads:") == 2);
  pthread_exit(NULL);
}

static void *run_on(void *unused) {
  (void)unused;
  struct timespec time = {.tv_nsec = 1000000}, longer = {.tv_nsec = 300000000};
  while (!main_is_over())
    (void)nanosleep(&time, NULL);
  (void)nanosleep(&longer, NULL); /* in which the thread looks several times */
  allocate_and_free();
  _exit(THREAD_RAN_ON);
}

/* A thread of the program keeps the process alive. */
static void thread(void) {
  pthread_t thread;
  start_reaper();
  require(pthread_create(&thread, NULL, run_on, NULL) == 0);
  pthread_exit(NULL);
}

static void *start_late(void *unused) {
  (void)unused;
  struct timespec time = {.tv_nsec = 1000000};
  while (!main_is_over())
    (void)nanosleep(&time, NULL);
  require(MAM_Create_auto() == cudaSuccess);
  allocate_and_free();
  return NULL;
}

/* The library's thread begins after the main thread has ended. */
static void late(void) {
  pthread_t thread;
  require(pthread_create(&thread, NULL, start_late, NULL) == 0);
  pthread_exit(NULL);
}

static void *end_at_once(void *unused) { pthread_exit(unused); }

static void *fork_off(void *unused) {
  (void)unused;
  int status = -1;
  pid_t child = fork();
  if (child == 0)
    reaper();
  require(waitpid(child, &status, 0) == child && status == 0);
  exit(0);
}

/* The child's main thread is the one that forks, while the parent's main thread ends.  The first pthread_exit of a
 * process loads the C library's unwinder, and a fork in the middle of that load would leave the child half of it.  So
 * one thread ends before. */
static void forks(void) {
  pthread_t thread;
  require(pthread_create(&thread, NULL, end_at_once, NULL) == 0 && pthread_join(thread, NULL) == 0);
  require(pthread_create(&thread, NULL, fork_off, NULL) == 0);
  pthread_exit(NULL);
}

static const struct program {
  const char *name;
  void (*run)(void);
  int status;
} programs[] = {{"reaper", reaper, 0},
                {"writer", writer, 0},
                {"thread", thread, THREAD_RAN_ON},
                {"late", late, 0},
                {"forks", forks, 0}};

/* ---- The tests ---- */

START_TEST(a_process_ends_with_the_program_s_threads) {
  const struct program *program = &programs[_i];
  char record[64];
  int status = -1;
  (void)snprintf(record, sizeof record, "helper_test.%ld", (long)getpid());
  pid_t child = fork();
  if (child == 0) {
    (void)setenv("MAM_SOURCE", "host", 1);
    (void)unsetenv("MAM_RECORD");
    if (strcmp(program->name, "writer") == 0)
      (void)setenv("MAM_RECORD", record, 1);
    (void)execl("/proc/self/exe", "helper_test", program->name, (char *)NULL);
    _exit(99);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  (void)unlink(record);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == program->status, "the program \"%s\" has status %#x",
                program->name, (unsigned)status);
}
END_TEST

int main(int argc, char **argv) {
  enum { PROGRAMS = sizeof programs / sizeof programs[0] };
  for (int i = 0; i < PROGRAMS; i++)
    if (argc > 1 && strcmp(argv[1], programs[i].name) == 0)
      programs[i].run();
  Suite *suite = suite_create("helper");
  TCase *cases = tcase_create("ends");
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* the sanitizers have threads of their own */
  tcase_set_timeout(cases, 20);
  tcase_add_loop_test(cases, a_process_ends_with_the_program_s_threads, 0, PROGRAMS);
#else
  (void)a_process_ends_with_the_program_s_threads;
#endif
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
