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

#include "bench_trace_maker.h"

/* As trace_draw. */
bool training_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes);

#endif
