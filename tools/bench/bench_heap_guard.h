/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Cells that may never end run in a process that can be ended: this program once more, which sends its results through
 * a pipe.  A kernel that does not return can only be stopped together with its process.
 */
#ifndef MAM_BENCH_HEAP_GUARD_H
#define MAM_BENCH_HEAP_GUARD_H

#include <stdio.h>
#include <sys/types.h>

#include "bench_heap.h"

struct guard {
  unsigned limit_s; /* a cell that takes longer counts as hung */
  pid_t child;      /* 0: none */
  int pipe;         /* for its results */
  char text[4096];  /* read and not yet used */
  size_t length;
  bool fresh; /* it has not answered yet, and may still be starting */
};

/* Starts the process, which runs this program with argv and begins with that cell. */
bool guard_start(struct guard *guard, char **argv, size_t first_cell);
bool guard_running(const struct guard *guard);

/* Waits for the next cell's result.  If none comes in time, it ends the process and returns heap_hung. */
enum heap_status guard_result_receive(struct guard *guard, struct heap_result *result);
void guard_end(struct guard *guard);

/* In the process: says that a cell begins, so that its time counts from here; sends its result. */
void guard_begin_send(void);
void guard_result_send(const struct heap_result *result);

#endif
