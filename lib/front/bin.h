/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bins: shelves by ranges of sizes.  A bin serves a size that no shelf has, from a block that is a little too large.  A
 * thread in a crowd, which would else meet the others at the pool's lock, uses bins for all sizes; a calm thread uses
 * them for sizes that are nothing beside the pool.
 *
 * Each bin is a range of an eighth of a doubling.  A block serves the bin's sizes and those of the bin before, so it is
 * less than a quarter too large.
 */
#ifndef MAM_LIB_BIN_H
#define MAM_LIB_BIN_H

#include "front/shelf.h"

/* Bins are for blocks from 4 KiB to 128 MiB, in eight steps a doubling. */
enum { BIN_LEAST_BITS = 12, BIN_DOUBLINGS = 15, BIN_STEP_BITS = 3, BINS = BIN_DOUBLINGS << BIN_STEP_BITS };

/* In a crowd a bin holds so many blocks at most, of SHELF_ENOUGH_BYTES unless it is one block. */
enum { BIN_BLOCKS = 64 };

/* Without a crowd, bins are for blocks of at most so many bytes and of so small a part of the pool's limit: a quarter
 * of such a block is nothing beside the pool.  A bin then holds so many of them. */
enum { BIN_CALM_BYTES = 64 << 20, BIN_CALM_SHARE = 1024, BIN_CALM_BLOCKS = 32 };

/* An allocation that met another thread at the pool's lock weighs as much as so many that met none.  A thread whose
 * balance comes to enough is in a crowd, until the balance is 0 again.  The balance stops at most, so that a crowd that
 * ended is forgotten after as many allocations. */
enum { CROWD_STEP = 8, CROWD_ENOUGH = 64, CROWD_MOST = 256 };

struct bins {
  struct shelf *ranges; /* BINS shelves, constant */
  size_t calm_bytes;    /* without a crowd, bins are for blocks of at most so many bytes */
  bool crowded;         /* bins are for all blocks */
  unsigned crowd;       /* the balance of allocations that met others at the pool's lock */
};

/* The bin whose range has the size; BINS or more if none has. */
static inline unsigned bin_index(size_t bytes) {
  if (bytes >> BIN_LEAST_BITS == 0)
    return BINS;
  unsigned log = 63 - (unsigned)__builtin_clzl(bytes);
  unsigned step = (unsigned)(bytes >> (log - BIN_STEP_BITS)) & ((1 << BIN_STEP_BITS) - 1);
  return (log - BIN_LEAST_BITS) << BIN_STEP_BITS | step;
}

/* The same, BINS or more also if the thread has no use for bins of that size. */
static inline unsigned bin_index_used(const struct bins *bins, size_t bytes) {
  bool used = bins->crowded || bytes <= bins->calm_bytes;
  return used ? bin_index(bytes) : BINS;
}

/* Whether its oldest block is large enough, or its newest is and was freed in the lane (0: none). */
static inline bool bin_serves(const struct shelf *bin, size_t bytes, uint64_t lane) {
  if (shelf_is_empty(bin))
    return false;
  const struct freed_block *newest = ring_before(bin, bin->next);
  return bin->oldest->segment->bytes >= bytes ||
         (lane != 0 && block_lane(newest) == lane && newest->segment->bytes >= bytes);
}

/* The bin that serves with a block less than a quarter too large; NULL if there is none. */
static inline struct shelf *bin_serving(struct bins *bins, size_t bytes, uint64_t lane) {
  unsigned index = bin_index_used(bins, bytes);
  struct shelf *bin = index < BINS ? &bins->ranges[index] : NULL;
  if (bin == NULL || bin_serves(bin, bytes, lane))
    return bin;
  return index + 1 < BINS && bin_serves(bin + 1, bytes, lane) ? bin + 1 : NULL;
}

/* The bin for a block that is freed; NULL if there is none with room. */
static inline struct shelf *bin_with_room(struct bins *bins, size_t bytes) {
  unsigned index = bin_index_used(bins, bytes);
  unsigned most = bins->crowded ? BIN_BLOCKS : BIN_CALM_BLOCKS;
  if (index >= BINS)
    return NULL;
  struct shelf *bin = &bins->ranges[index];
  unsigned count = shelf_count(bin);
  return !shelf_is_full(bin) && count < most && (count == 0 || (count + 1) * bytes <= SHELF_ENOUGH_BYTES) ? bin : NULL;
}

#endif
