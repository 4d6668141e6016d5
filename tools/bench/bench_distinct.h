/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A table of distinct items, which numbers them.  It does not know what they are.
 */
#ifndef MAM_BENCH_DISTINCT_H
#define MAM_BENCH_DISTINCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Items of one size, each once, in the order in which they came.  Their bytes are compared, so they have no padding. An
 * empty one has item_bytes alone; the owner frees items and slots. */
struct distinct {
  void *items;
  size_t item_bytes, count, room;
  uint32_t *slots; /* 1 + an index of items; 0: empty */
  size_t slot_count;
};

/* The index of an item, which is added if it is new.  False if the host has no memory. */
bool distinct_find(struct distinct *table, const void *item, uint32_t *index);

#endif
