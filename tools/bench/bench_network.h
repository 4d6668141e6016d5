/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Another training-like trace, for the test chunk: three kinds of network, drawn from a seed.  bench_training.h draws
 * layers of fixed widths; here each network has its own depth and widths, and what a step keeps differs:
 *
 * - attention layers whose outputs pass a vocabulary; convolutions whose maps shrink as channels grow; the same with
 *   the way back up, where each map of the way down stays until its counterpart;
 * - each iteration has its own batch and length (or picture), and each fifth is followed by an evaluation: a forward
 *   pass of another batch that keeps nothing for a backward one;
 * - the next iteration's input comes in the middle of this one, so blocks of two iterations lie side by side;
 * - workspaces live for one operation, gradients until the optimizer, which needs two temporary blocks of each
 *   parameter's size; averages of the parameters are replaced every few iterations.
 *
 * Knows nothing of allocators or time.
 */
#ifndef MAM_BENCH_NETWORK_H
#define MAM_BENCH_NETWORK_H

#include "bench_trace_maker.h"

/* As trace_draw. */
bool network_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes);

#endif
