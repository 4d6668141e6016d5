/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replays of a training-like trace by an allocator, and the smallest pool of fixed size in which a trace succeeds.
 *
 * It does not know where a trace comes from.
 */
#ifndef MAM_BENCH_REPLAY_H
#define MAM_BENCH_REPLAY_H

#include "bench.h"
#include "bench_blocks.h"
#include "bench_training.h"

/* A replay of a trace by an allocator.  If it is sampled, its blocks are checked. */
struct replay {
  const struct bench *bench;
  const struct allocator *allocator;
  const struct training *training;
  struct block *slots, *sorted; /* sorted is for the check */
  bool sampled;
  bool may_be_refused;
  bool refused;
  size_t reserved_most, free_least;
  uint64_t spent_ns;
};

/* Makes a replay; call replay_free in any case.  False, with a message on stderr: the host has no memory. */
bool replay_make(struct replay *replay, const struct bench *bench, const struct allocator *allocator,
                 const struct training *training);
void replay_free(struct replay *replay);

/* Runs the whole trace.  False if a call was refused or failed; then the live blocks are freed. */
bool replay_run(struct replay *replay);

/* A pool's size is a multiple of the driver's granularity. */
static const size_t replay_granularity_bytes = (size_t)2 << 20;

/* Whether a trace fits into a pool of so many bytes.  *good becomes false if anything else goes wrong. */
typedef bool replay_fits(void *what, size_t pool_bytes, bool *good);

/* The smallest pool that fits, to a thousandth of the trace's peak; NAN if it would need more than most_bytes. */
bool replay_search(replay_fits *fits, void *what, size_t peak_bytes, size_t most_bytes, double *smallest_bytes);

/* The same for the replay's allocator, which is closed before and after. */
bool replay_smallest(struct replay *replay, double *smallest_bytes);

#endif
