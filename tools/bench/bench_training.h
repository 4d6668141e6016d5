/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A training-like trace: the allocations and frees of a program that trains a network of attention layers and
 * convolutions, drawn from a seed.
 *
 * - Parameters are allocated before the first iteration and the optimizer's state at the end of it; both live for ever.
 * - Each iteration has its own sequence length and picture size, so no block but those has the size that it had before.
 * - Activations are freed in reverse order by the backward pass, one layer in eight of them in another order; every
 *   fourth layer keeps none and computes them anew (checkpointing).
 * - Workspaces and small descriptions, of log-normal sizes, live for one layer; some descriptions and some buffers live
 *   for several iterations.
 * - Gradients are freed in the order of the parameters when the optimizer is done.
 *
 * Knows nothing of allocators or time.
 */
#ifndef MAM_BENCH_TRAINING_H
#define MAM_BENCH_TRAINING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Draws a trace whose peak is at most peak_most_bytes: sizes above 64 KiB are scaled down if they must.  At the end all
 * is freed.  False if there is no host memory for it, or peak_most_bytes is too small; training_free follows in any
 * case. */
bool training_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes);

void training_free(struct training *training);

#endif
