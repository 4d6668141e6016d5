/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shelves: rings of freed large blocks, oldest first, of one exact size or of one tag; a bin (bin.h) is a shelf for a
 * range of sizes.  A shelf serves the next allocation that fits once the epoch of its oldest block's free has passed.
 *
 * A block on a shelf is a used segment for the pool; its ticket is even, which says that no program has it
 * (segment.h).  Invariant: the ring has one place more than blocks; next is the free place, so oldest == next if and
 * only if the shelf is empty.
 *
 * Knows no front and takes no lock: the shelves' owner is inside its front, or no thread is.
 */
#ifndef MAM_LIB_SHELF_H
#define MAM_LIB_SHELF_H

#include "cuda/reuse.h"
#include "front/owned.h"

/* A front has 32 shelves: a pair for each of 16 hashes of a size or tag. */
enum { SHELF_BITS = 5, SHELVES = 1 << SHELF_BITS };

/* The blocks that one shelf holds at most.  So many frees share a fence at most. */
enum { SHELF_BLOCKS = 256 };

/* A shelf goes to another size or tag when it was in the way of that so many times in a row. */
enum { SHELF_PATIENCE = 8 };

/* A shelf has enough blocks if it holds this many, and this many bytes with one more.  The pool then does not grow for
 * speed alone, and an allocation asks for a fence first; of a bin, if it holds this many.  A pool that grows for speed
 * leaves a thread with at most so many blocks of a size, or so many bytes, whichever is more. */
enum { SHELF_ENOUGH_BLOCKS = 4, SHELF_ENOUGH_BYTES = 256 << 20 };

/* A large block that the thread freed. */
struct freed_block {
  struct segment *segment;
  uintptr_t address;    /* the segment's base, so that a hand-out need not wait for the segment to be read */
  uint64_t epoch;       /* of its free */
  struct owned *places; /* for the address, in the front's table of what it owns */
};

struct shelf {
  size_t bytes;                      /* of each block; 0 if it goes by the tag, or is a bin */
  const void *tag;                   /* NULL if it goes by the size */
  struct freed_block *oldest, *next; /* in the ring: the same if there is none; and where the next one goes */
  struct freed_block *ring, *end;    /* one place more than blocks; a ring of one place was never used */
  const struct freed_block *stood;   /* the oldest when the shelf was in the way of another size or tag, */
  unsigned in_the_way;               /* so many times in a row */
};

/* The mark of the lane of the stream on which a block was freed (lane.h), 0 if on none.  The segment has it where a
 * block has its call site, which no block that was freed needs. */
static inline uint64_t block_lane(const struct freed_block *block) { return (uintptr_t)block->segment->as.used.site; }

static inline void ring_empty(struct shelf *shelf) { shelf->oldest = shelf->next = shelf->ring; }

static inline void ring_set(struct shelf *shelf, struct freed_block *ring, unsigned places) {
  shelf->ring = ring;
  shelf->end = ring + places;
  ring_empty(shelf);
}

static inline bool ring_is_none(const struct shelf *shelf) { return shelf->end - shelf->ring == 1; }

static inline struct freed_block *ring_after(const struct shelf *shelf, struct freed_block *block) {
  return block + 1 == shelf->end ? shelf->ring : block + 1;
}

static inline struct freed_block *ring_before(const struct shelf *shelf, struct freed_block *block) {
  return (block == shelf->ring ? shelf->end : block) - 1;
}

static inline bool shelf_is_empty(const struct shelf *shelf) { return shelf->oldest == shelf->next; }

static inline bool shelf_is_full(const struct shelf *shelf) { return ring_after(shelf, shelf->next) == shelf->oldest; }

static inline unsigned shelf_count(const struct shelf *shelf) {
  ptrdiff_t count = shelf->next - shelf->oldest;
  return (unsigned)(count >= 0 ? count : count + (shelf->end - shelf->ring));
}

static inline bool shelf_is_for(const struct shelf *shelf, size_t bytes, const void *tag) {
  return shelf->tag == tag && (tag != NULL || shelf->bytes == bytes);
}

/* Of the pair of shelves for a size or a tag the one that is its own; else the one that may become so. */
static inline __attribute__((always_inline)) struct shelf *shelf_for(struct shelf *shelves, size_t bytes,
                                                                     const void *tag) {
  uint64_t key = tag != NULL ? (uintptr_t)tag : bytes / POOL_ALIGNMENT_LEAST_BYTES;
  struct shelf *pair = &shelves[2 * address_hash(key, SHELF_BITS - 1)];
  if (__builtin_expect(shelf_is_for(&pair[0], bytes, tag), true))
    return &pair[0];
  return shelf_is_for(&pair[1], bytes, tag) || !shelf_is_empty(&pair[0]) ? &pair[1] : &pair[0];
}

/* Seed 002: by tag, a block serves if it is neither too small nor more than twice as large.  By size it fits exactly,
 * and in a bin it may be a little too large. */
static inline bool block_fits(const struct shelf *shelf, const struct freed_block *block, size_t bytes) {
  if (shelf->bytes == bytes)
    return true;
  return block->segment->bytes >= bytes && (shelf->tag == NULL || block->segment->bytes / 2 <= bytes);
}

/* What of a ring's oldest block the next hand-out will write: many blocks share a fence, so it was last used long ago.
 */
static inline void block_prefetch(const struct freed_block *next) {
  __builtin_prefetch(next->segment, 1);
  __builtin_prefetch(next->places, 1);
}

/* Whether a freed block that was on the shelf may go there again.  A block with a tag may also go to the shelf of its
 * size, if that is what the shelf became. */
static inline bool shelf_takes(const struct shelf *shelf, const struct segment *segment, size_t bytes) {
  return __builtin_expect(shelf->bytes == bytes, true) || shelf_is_for(shelf, bytes, segment->as.used.tag);
}

/* Whether the shelf has so many blocks of the size that the pool is not to grow for more: these share a fence. */
static inline bool shelf_has_enough(const struct shelf *shelf, size_t bytes) {
  size_t count = shelf_count(shelf);
  return count >= SHELF_ENOUGH_BLOCKS && (count + 1) * bytes > SHELF_ENOUGH_BYTES;
}

static inline void ring_write(struct freed_block *block, struct segment *segment, uintptr_t address, uint64_t epoch,
                              struct owned *places) {
  block->segment = segment; /* each by itself, as in owned_write */
  block->address = address;
  block->epoch = epoch;
  block->places = places;
}

/* What serves, now that so much has passed: a block that was freed in the same lane, if there is one at either end, the
 * newest first; or the oldest, if it has passed.  The shelf is not empty, and the caller asks whether it fits. */
static inline __attribute__((always_inline)) struct freed_block *shelf_ready(const struct shelf *shelf, uint64_t passed,
                                                                             uint64_t lane, size_t bytes) {
  struct freed_block *newest = ring_before(shelf, shelf->next), *oldest = shelf->oldest;
  if (lane != 0 && block_lane(newest) == lane && block_fits(shelf, newest, bytes))
    return newest;
  bool ready = oldest->epoch <= passed || (lane != 0 && block_lane(oldest) == lane);
  return ready && block_fits(shelf, oldest, bytes) ? oldest : NULL;
}

/* Takes up to most of the oldest blocks off a shelf that were freed in one lane, of those that were freed in the epoch
 * passed or earlier.  *epoch is the latest epoch of theirs, *lane their lane.  Returns how many. */
unsigned shelf_clear(struct shelf *shelf, uint64_t passed, struct segment **segments, uint64_t *epoch, uint64_t *lane,
                     unsigned most);

/* What lies on a shelf. */
size_t shelf_bytes(const struct shelf *shelf);

#endif
