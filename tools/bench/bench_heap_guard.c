/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_heap_guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_clock.h"

extern char **environ;

enum { arguments_most = 64, start_s = 30 };

/* ---- The process ------------------------------------------------------------------------------------------------- */

/* argv with one option more, the first cell; false if there is no room. */
static bool arguments_extend(char **argv, char *first_option, char *extended[arguments_most]) {
  size_t count = 0;
  static char command[] = "heap", program[] = "mam-bench";
  extended[count++] = program;
  extended[count++] = command;
  for (size_t i = 1; argv[i] != NULL; i++) {
    if (count + 2 >= arguments_most)
      return false;
    extended[count++] = argv[i];
  }
  extended[count++] = first_option;
  extended[count] = NULL;
  return true;
}

bool guard_start(struct guard *guard, char **argv, size_t first_cell) {
  char option[48], *arguments[arguments_most];
  int ends[2];
  posix_spawn_file_actions_t actions;
  (void)snprintf(option, sizeof option, "--guarded=%zu", first_cell);
  if (!arguments_extend(argv, option, arguments) || pipe(ends) != 0 || posix_spawn_file_actions_init(&actions) != 0) {
    (void)fprintf(stderr, "mam-bench: heap: cannot start another process: %s\n", strerror(errno));
    return false;
  }
  int error = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (error == 0)
    error = posix_spawn_file_actions_addclose(&actions, ends[0]);
  if (error == 0)
    error = posix_spawn(&guard->child, "/proc/self/exe", &actions, NULL, arguments, environ);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(ends[1]);
  guard->pipe = ends[0];
  guard->length = 0;
  guard->fresh = true;
  if (error == 0)
    return true;
  (void)close(ends[0]);
  guard->child = 0;
  (void)fprintf(stderr, "mam-bench: heap: cannot start another process: %s\n", strerror(error));
  return false;
}

bool guard_running(const struct guard *guard) { return guard->child != 0; }

/* Kills the process in any case: if it has sent everything, nothing is lost. */
void guard_end(struct guard *guard) {
  int status;
  if (guard->child == 0)
    return;
  (void)kill(guard->child, SIGKILL);
  while (waitpid(guard->child, &status, 0) < 0 && errno == EINTR)
    continue;
  (void)close(guard->pipe);
  guard->child = 0;
}

/* ---- Results through the pipe ------------------------------------------------------------------------------------ */

/* Takes the next whole line.  False if none comes until the deadline, or the other end is closed. */
static bool line_receive(struct guard *guard, uint64_t deadline_ns, char *line, size_t line_size) {
  for (;;) {
    char *end = memchr(guard->text, '\n', guard->length);
    if (end != NULL) {
      size_t length = (size_t)(end - guard->text);
      (void)snprintf(line, line_size, "%.*s", (int)length, guard->text);
      guard->length -= length + 1;
      memmove(guard->text, end + 1, guard->length);
      return true;
    }
    uint64_t now_ns = clock_now_ns();
    struct pollfd poll_pipe = {.fd = guard->pipe, .events = POLLIN};
    if (now_ns >= deadline_ns || guard->length == sizeof guard->text ||
        poll(&poll_pipe, 1, (int)((deadline_ns - now_ns) / 1000000 + 1)) <= 0)
      return false;
    ssize_t count = read(guard->pipe, guard->text + guard->length, sizeof guard->text - guard->length);
    if (count <= 0)
      return false;
    guard->length += (size_t)count;
  }
}

static bool row_parse(const char *line, struct heap_result *result) {
  double step, values[heap_metrics_most];
  char *end;
  step = strtod(line, &end);
  for (size_t i = 0; i < heap_metrics_most; i++)
    values[i] = strtod(end, &end);
  return heap_result_add(result, step, values, heap_metrics_most);
}

enum heap_status guard_result_receive(struct guard *guard, struct heap_result *result) {
  char line[1024];
  uint64_t patience_s = guard->limit_s + (guard->fresh ? start_s : 0);
  uint64_t deadline_ns = clock_now_ns() + patience_s * 1000000000;
  guard->fresh = false;
  while (line_receive(guard, deadline_ns, line, sizeof line)) {
    if (strcmp(line, "begin") == 0)
      deadline_ns = clock_now_ns() + (uint64_t)guard->limit_s * 1000000000;
    if (strncmp(line, "row ", 4) == 0 && !row_parse(line + 4, result))
      break;
    if (strncmp(line, "end ", 4) == 0)
      return (enum heap_status)atoi(line + 4);
  }
  guard_end(guard);
  return heap_hung;
}

void guard_begin_send(void) {
  (void)puts("begin");
  (void)fflush(stdout);
}

void guard_result_send(const struct heap_result *result) {
  for (size_t i = 0; i < result->row_count; i++) {
    (void)printf("row %a", result->rows[i].step);
    for (size_t m = 0; m < heap_metrics_most; m++)
      (void)printf(" %a", result->rows[i].values[m]);
    (void)putchar('\n');
  }
  (void)printf("end %d\n", (int)result->status);
  (void)fflush(stdout);
}
