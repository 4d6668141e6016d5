/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * usage: gpu_preload_test [CASE]...      all cases but those of the end, or these
 * The cases of the end, "exit" and "late-thread", are about the end of the process and are run alone.
 * Exits with 0 if all was asked, whatever the answers; 77 without a GPU.
 */
#include <signal.h>
#include <unistd.h>

#include "gpu_preload.h"

enum { WATCHDOG_S = 100 };

static const char *case_name = "";

void tell(const char *what, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("%s.%s = ", case_name, what);
  (void)vprintf(format, arguments);
  (void)putchar('\n');
  va_end(arguments);
  (void)fflush(stdout); /* so that the answer is out if the next question crashes */
}

bool block_holds(const void *block, int byte, size_t bytes) {
  unsigned char *copy = malloc(bytes);
  bool holds = copy != NULL && door_read(copy, block, bytes) == 0;
  for (size_t i = 0; holds && i < bytes; i++)
    holds = copy[i] == (unsigned char)byte;
  free(copy);
  return holds;
}

int block_range(const void *pointer, const void **base, size_t *bytes) {
  static int (*range)(unsigned long long *, size_t *, unsigned long long);
  unsigned long long start = 0;
  if (range == NULL)
    *(void **)&range = door_function("cuMemGetAddressRange_v2", 3020);
  if (range == NULL)
    return -1;
  int error = range(&start, bytes, (unsigned long long)(uintptr_t)pointer);
  *base = (const void *)(uintptr_t)start;
  return error;
}

static void watchdog_bark(int signal_number) {
  static const char text[] = "FAIL: the watchdog ended this program: it ran for too long\n";
  (void)signal_number;
  ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
  _exit(written < 0 ? 2 : 1);
}

static void case_run(const struct preload_case *one) {
  case_name = one->name;
  one->run();
}

static bool is_of_the_end(const char *name) { return strcmp(name, "exit") == 0 || strcmp(name, "late-thread") == 0; }

static const struct preload_case *case_find(const struct preload_case *cases, const char *name) {
  while (cases->name != NULL && strcmp(cases->name, name) != 0)
    cases++;
  return cases->name != NULL ? cases : NULL;
}

static int cases_run(const char *const names[], int count) {
  for (int i = 0; i < count; i++) {
    const struct preload_case *one = case_find(memory_cases, names[i]);
    if (one == NULL)
      one = case_find(work_cases, names[i]);
    if (one == NULL) {
      fprintf(stderr, "gpu_preload_test: there is no case %s\n", names[i]);
      return 2;
    }
    case_run(one);
  }
  return 0;
}

int main(int argc, char *argv[]) {
  (void)signal(SIGALRM, watchdog_bark);
  (void)alarm(WATCHDOG_S);
  int opened = door_open();
  if (opened == DOOR_SKIP)
    return (printf("SKIP: no CUDA device (%s)\n", door_name), DOOR_SKIP);
  NEED(opened);
  if (argc > 1)
    return cases_run((const char *const *)argv + 1, argc - 1);
  for (const struct preload_case *one = memory_cases; one->name != NULL; one++)
    case_run(one);
  for (const struct preload_case *one = work_cases; one->name != NULL; one++)
    if (!is_of_the_end(one->name))
      case_run(one);
  return 0;
}
