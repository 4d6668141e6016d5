/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Limbo: a front's freed large blocks that belong on no shelf and in no bin, on their way back to the pool.  They wait
 * here until their epoch has passed, so that the pool's trees see each of them once, as free.
 *
 * Knows no front and takes no lock: as shelf.h.
 */
#ifndef MAM_LIB_LIMBO_H
#define MAM_LIB_LIMBO_H

#include "front/shelf.h"

/* The blocks in limbo at most.  A block for which there is no room goes to the pool at once. */
enum { LIMBO_BLOCKS = 512 };

/* So many blocks in limbo are worth a fence. */
enum { LIMBO_FENCED = 128 };

/* At most so many blocks go along with an allocation that goes to the pool: they make its hold of the lock longer. */
enum { LIMBO_DRAINED = 4 };

struct limbo {
  struct freed_block ring[LIMBO_BLOCKS]; /* oldest first, from first on */
  unsigned first, count;
};

static inline struct freed_block *limbo_at(struct limbo *limbo, unsigned index) {
  return &limbo->ring[(limbo->first + index) % LIMBO_BLOCKS];
}

/* The place for one more; there is room. */
static inline struct freed_block *limbo_end(struct limbo *limbo) { return limbo_at(limbo, limbo->count++); }

/* Takes up to most of the oldest blocks out of limbo, as shelf_clear. */
unsigned limbo_clear(struct limbo *limbo, uint64_t passed, struct segment **segments, uint64_t *epoch, unsigned most);

/* Takes up to LIMBO_DRAINED blocks that have passed out of limbo.  *fence: the epoch that is worth a fence, 0 if none
 * is. */
unsigned limbo_drain(struct limbo *limbo, uint64_t passed, struct segment **segments, uint64_t *fence);

/* The epoch of the latest free, 0 if limbo is empty. */
uint64_t limbo_last_epoch(struct limbo *limbo);

#endif
