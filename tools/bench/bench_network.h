/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Another training-like trace, for the test chunk: one of three kinds of network, drawn from a seed.  bench_training.h
 * draws layers of fixed widths.  Here each network has its own depth and widths, and a step keeps other blocks:
 *
 * - The kinds are: attention layers whose outputs pass a vocabulary; convolutions whose maps shrink as channels grow;
 *   convolutions that go back up again, where each map of the way down stays until its counterpart has read it.
 * - Each iteration has its own batch, and its own length or picture size.  After each fifth comes an evaluation: a
 *   forward pass of another batch, of which no backward pass needs anything.
 * - The next iteration's input comes in the middle of this one, so blocks of two iterations lie side by side.
 * - Workspaces live for one operation, and gradients until the optimizer.  That needs two temporary blocks of each
 *   parameter's size.  Averages of the parameters are replaced every few iterations.
 *
 * It knows nothing of allocators or time.
 */
#ifndef MAM_BENCH_NETWORK_H
#define MAM_BENCH_NETWORK_H

#include "bench_trace_maker.h"

/* As trace_draw. */
bool network_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes);

#endif
