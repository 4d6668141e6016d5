/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Traces, and what makers of traces have in common: slots, scaling to the memory there is, and the end.  A maker is a
 * made-up program that is drawn from a seed (bench_training.h, bench_network.h).
 *
 * Knows nothing of allocators or time.
 */
#ifndef MAM_BENCH_TRACE_MAKER_H
#define MAM_BENCH_TRACE_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_numbers.h"

enum { training_tag_count = 64, training_granularity_bytes = 512 };

/* bytes > 0: an allocation for the slot, which is empty, at one of so many places in the program.  0: the slot's block
 * is freed. */
struct training_step {
  uint32_t slot, tag;
  size_t bytes;
};

struct training {
  struct training_step *steps;
  size_t step_count;
  size_t slot_count;
  size_t *ends; /* for each iteration, the steps up to its end */
  size_t iterations;
  size_t peak_bytes; /* the most that is live at a time, each block rounded up to training_granularity_bytes */
};

void training_free(struct training *training);

/* A trace that is being made.  A made-up program has it as its first member and begins with all else zero. */
struct trace_maker {
  struct training *training;
  struct numbers_random draw;
  double scale;
  bool failed;        /* no host memory; what follows is thrown away */
  size_t *slot_bytes; /* 0: empty */
  uint32_t *empty;    /* slots, as a stack */
  size_t empty_count, slot_room, step_room, live_bytes;
};

/* Adds an allocation to the trace.  Its slot; 0 if the maker failed. */
uint32_t trace_allocate(struct trace_maker *maker, size_t bytes, unsigned place);
void trace_free(struct trace_maker *maker, uint32_t slot);

/* A made-up program: its size, what it does first, and what it does in each iteration. */
struct trace_program {
  size_t bytes;
  void (*begin)(void *program, uint64_t seed);
  void (*iterate)(void *program, size_t iteration);
};

/* Draws a trace whose peak is at most peak_most_bytes: sizes above 64 KiB are scaled down if they must.  At the end all
 * is freed.  False if there is no host memory for it, or peak_most_bytes is too small; training_free follows in any
 * case. */
bool trace_draw(struct training *training, const struct trace_program *program, uint64_t seed, size_t iterations,
                size_t peak_most_bytes);

#endif
