/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The large blocks that a front's thread allocated and has not freed, as far as the thread knows: a table by a hash of
 * the address, two places a hash.  A free of a block in the table keeps the block in the front.  The table may forget a
 * block where both places are taken; a free of a forgotten block goes through the pool.
 *
 * An entry may be out of date, because another thread may free the block.  The ticket tells: it differs from the
 * segment's then.
 */
#ifndef MAM_LIB_OWNED_H
#define MAM_LIB_OWNED_H

#include "pool/pool.h"

/* 8,192 places: 256 KiB of a front, of which the kernel gives only the pages that are touched. */
enum { OWNED_BITS = 13 };

/* No segment's ticket. */
#define OWNED_FREED UINT64_MAX

struct shelf;

struct owned {
  uintptr_t address;
  struct segment *segment;
  uint64_t ticket;     /* OWNED_FREED: by this thread; the segment has another one if another thread freed the block */
  struct shelf *shelf; /* where the block may go to when it is freed */
};

static inline unsigned address_hash(uint64_t value, unsigned bits) {
  return (unsigned)((value * 0x9e3779b97f4a7c15u) >> (64 - bits));
}

/* The pair of places for a block. */
static inline struct owned *owned_pair(struct owned *table, uintptr_t address) {
  return &table[2 * address_hash(address / POOL_ALIGNMENT_LEAST_BYTES, OWNED_BITS - 1)];
}

/* NULL if the thread does not know the block, or has freed it. */
static inline struct owned *owned_find(struct owned *pair, uintptr_t address) {
  for (struct owned *owned = pair; owned < pair + 2; owned++)
    if (owned->address == address && owned->ticket != OWNED_FREED)
      return owned;
  return NULL;
}

static inline void owned_write(struct owned *owned, uintptr_t address, struct segment *segment, uint64_t ticket,
                               struct shelf *shelf) {
  owned->address = address; /* each by itself: a copy of the whole would wait for its parts */
  owned->segment = segment;
  owned->ticket = ticket;
  owned->shelf = shelf;
}

/* Forgets all.  Places that were never used are read and not written: so their pages cost no memory. */
static inline void owned_clear(struct owned *table) {
  for (struct owned *owned = table; owned < table + (1 << OWNED_BITS); owned++)
    if (owned->address != 0)
      owned_write(owned, 0, NULL, 0, NULL);
}

/* Where both places are taken, the second one's block is forgotten, and will be freed through the pool. */
static inline void owned_remember(struct owned *pair, uintptr_t address, struct segment *segment, uint64_t ticket,
                                  struct shelf *shelf) {
  bool first = pair->address == 0 || pair->ticket == OWNED_FREED || pair->address == address;
  owned_write(first ? pair : pair + 1, address, segment, ticket, shelf);
}

/* The same for a block that was remembered before, mostly there and with nothing changed but the ticket. */
static inline void owned_again(struct owned *pair, uintptr_t address, struct segment *segment, uint64_t ticket,
                               struct shelf *shelf) {
  if (__builtin_expect(pair->address == address && pair->segment == segment && pair->shelf == shelf, true))
    pair->ticket = ticket;
  else
    owned_remember(pair, address, segment, ticket, shelf);
}

#endif
