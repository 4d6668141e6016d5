/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Random traffic over slots: a step frees its slot's block if there is one, and allocates one otherwise.  The steps are
 * drawn in advance, so that drawing is not timed.  One thread uses it.  It knows nothing of time or other threads.
 */
#ifndef MAM_BENCH_TRAFFIC_H
#define MAM_BENCH_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_blocks.h"

enum { traffic_slot_count = 4096 };

static const size_t traffic_size_least_bytes = 256;
static const size_t traffic_size_most_bytes = (size_t)64 << 20;

struct traffic_step {
  uint32_t slot, bytes;
};

struct traffic {
  const struct allocator *allocator;
  struct block slots[traffic_slot_count];
  struct traffic_step *steps;
  size_t next;
};

/* The largest block size for so many slots.  Half of the slots are live and should take a quarter of the capacity, so
 * that the rest can wait for reuse. */
size_t traffic_size_fit(size_t capacity_bytes, size_t slot_count);

/* Draws the steps, and takes enough of them that the slots are as full as later.  False after a complaint; call
 * traffic_end in any case. */
bool traffic_begin(struct traffic *traffic, const struct allocator *allocator, uint64_t seed, size_t size_most_bytes);

/* Takes count more steps. */
bool traffic_run(struct traffic *traffic, size_t count);

/* Frees all live blocks. */
bool traffic_end(struct traffic *traffic);

#endif
