/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Traces, and what their makers share: slots, scaling to the machine's memory, and the end.  A maker is an imaginary
 * program that is drawn from a seed (bench_training.h, bench_network.h).
 *
 * It knows nothing of allocators or time.
 */
#ifndef MAM_BENCH_TRACE_MAKER_H
#define MAM_BENCH_TRACE_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_numbers.h"

enum { training_tag_count = 64, training_granularity_bytes = 512 };

/* bytes > 0: an allocation for an empty slot, at a place of the program.  0: the slot's block is freed. */
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
  size_t peak_bytes; /* the most live bytes, each block rounded up to training_granularity_bytes */
};

void training_free(struct training *training);

/* A trace that is being made.  An imaginary program has it as its first member, and is zero otherwise at the
 * beginning. */
struct trace_maker {
  struct training *training;
  struct numbers_random draw;
  double scale;
  bool failed;        /* the host has no memory, and the trace is not used */
  size_t *slot_bytes; /* 0: empty */
  uint32_t *empty;    /* a stack of slots */
  size_t empty_count, slot_room, step_room, live_bytes;
};

/* Adds an allocation to the trace.  Returns its slot; 0 if the maker failed. */
uint32_t trace_allocate(struct trace_maker *maker, size_t bytes, unsigned place);
void trace_free(struct trace_maker *maker, uint32_t slot);

/* An imaginary program: its size, what it does first, and what it does in each iteration. */
struct trace_program {
  size_t bytes;
  void (*begin)(void *program, uint64_t seed);
  void (*iterate)(void *program, size_t iteration);
};

/* Draws a trace whose peak is at most peak_most_bytes.  If need be, sizes above 64 KiB are scaled down.  At the end all
 * is freed.  False if the host has no memory for it, or if peak_most_bytes is too small; call training_free in any
 * case. */
bool trace_draw(struct training *training, const struct trace_program *program, uint64_t seed, size_t iterations,
                size_t peak_most_bytes);

#endif
