/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Plain best fit, the yardstick: a freed block is free at once and joins its neighbours, nothing is kept, and a request
 * gets the smallest hole that is large enough, the lowest if there are several.  It hands out offsets, and needs no
 * memory behind them.  It knows nothing of where requests come from.
 */
#ifndef MAM_BENCH_BEST_FIT_H
#define MAM_BENCH_BEST_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct best_fit_part;

struct best_fit {
  size_t slot_count;
  struct best_fit_part *parts; /* one for each block and for each hole beside it */
  uint32_t *spare, *slots;     /* slots: the part that each slot has */
  size_t spare_count;
  struct best_fit_part *holes; /* the root of a tree by size, then offset */
  size_t extent_bytes;         /* the end of the highest block so far */
};

/* False if the host has no memory; call best_fit_free in any case. */
bool best_fit_make(struct best_fit *fit, size_t slot_count);
void best_fit_free(struct best_fit *fit);

/* An empty pool of so many bytes. */
void best_fit_begin(struct best_fit *fit, size_t pool_bytes);

/* For an empty slot.  False if no hole is large enough. */
bool best_fit_allocate(struct best_fit *fit, uint32_t slot, size_t bytes);
void best_fit_release(struct best_fit *fit, uint32_t slot);

#endif
