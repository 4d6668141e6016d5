/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Segments and their two trees (the paper, section III): every segment of a pool stands in the pointer tree, ordered by
 * address; every free one also in the size tree, ordered by size, then address.
 *
 * This floor knows addresses and sizes.  It never touches the memory they stand for, and knows neither chunk sources,
 * nor locks, nor when a segment may be reused: its caller holds the pool's lock and decides.
 *
 * Invariants, checked by segment_set_check:
 *   - segments do not overlap, and within a chunk each begins where the one before it ends;
 *   - no two neighbours in one chunk are both free, nor both waiting with the same epoch;
 *   - the size tree holds exactly the free segments;
 *   - the waiting list holds exactly the waiting segments, oldest epoch first;
 *   - bytes[s] and count[s] are the sums over the segments in state s.
 */
#ifndef MAM_LIB_SEGMENT_H
#define MAM_LIB_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>

enum segment_state {
  SEGMENT_FREE,    /* may be handed out */
  SEGMENT_USED,    /* belongs to the caller of malloc */
  SEGMENT_WAITING, /* freed, but the GPU may still use it: reusable when its epoch has passed */
  SEGMENT_STATES
};

struct segment {
  uintptr_t base;
  size_t bytes;
  RB_ENTRY(segment) by_address;
  union {
    RB_ENTRY(segment) by_size; /* free */
    struct {
      size_t requested_bytes; /* what the caller asked for, at most bytes */
      const void *site;       /* where in the program it asked */
    } used;
    struct {
      TAILQ_ENTRY(segment) link;
      uint64_t epoch;
    } waiting;
    SLIST_ENTRY(segment) spare; /* not a segment at present */
  } as;
  enum segment_state state : 8;
  bool heads_chunk; /* the first of its chunk: never merges with the one before it */
};

/* A live block of the pool costs one of these.  Promised to users in BENCHMARKS.md. */
_Static_assert(sizeof(struct segment) <= 96, "a segment's host memory is promised to be at most 96 bytes");

RB_HEAD(pointer_tree, segment);
RB_HEAD(size_tree, segment);
TAILQ_HEAD(waiting_list, segment);
SLIST_HEAD(spare_list, segment);

struct segment_slab; /* host memory for many segments */

struct segment_set {
  struct pointer_tree by_address;
  struct size_tree by_size;
  struct waiting_list waiting;
  size_t bytes[SEGMENT_STATES];
  size_t count[SEGMENT_STATES];
  struct spare_list spares;
  struct segment_slab *slabs;
  size_t slab_bytes; /* host memory in all slabs */
};

void segment_set_init(struct segment_set *set);

/* Forgets every segment and gives the host memory back. */
void segment_set_clear(struct segment_set *set);

/* Adds a chunk as one free segment.  base and bytes are the caller's concern (aligned, overlapping nothing).  False if
 * the host has no memory, then nothing changed. */
bool segment_add_chunk(struct segment_set *set, uintptr_t base, size_t bytes);

/* Best fit: makes the smallest free segment of at least bytes (of those, the lowest) used, splitting the rest off as
 * a free one.  bytes > 0.  The caller fills in as.used.  NULL if no segment is large enough, or if the host has no
 * memory for the split (*no_host_memory then true); nothing changed then. */
struct segment *segment_take(struct segment_set *set, size_t bytes, bool *no_host_memory);

/* The segment that starts at base, NULL if none does. */
struct segment *segment_find(struct segment_set *set, uintptr_t base);

/* Makes a used segment free and coalesces it with free neighbours.  Afterwards the pointer is no longer valid. */
void segment_free(struct segment_set *set, struct segment *segment);

/* Makes a used segment wait for epoch, which is at least that of every segment waiting; coalesces it with neighbours
 * of the same epoch.  Afterwards the pointer is no longer valid. */
void segment_wait(struct segment_set *set, struct segment *segment, uint64_t epoch);

/* Makes every segment free that waits for epoch or an earlier one. */
void segment_pass_epoch(struct segment_set *set, uint64_t epoch);

/* The largest free segment's size, 0 if none is free. */
size_t segment_largest_free(struct segment_set *set);

/* The segments in the order of addresses: NULL at the end. */
struct segment *segment_first(struct segment_set *set);
struct segment *segment_next(struct segment *segment);

/* NULL if every invariant above holds, else which one does not.  Walks everything. */
const char *segment_set_check(struct segment_set *set);

#endif
