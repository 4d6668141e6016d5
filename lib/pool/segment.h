/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Segments and their two trees (the paper, section III): every segment of a pool stands in the pointer tree, ordered by
 * address; every free one also in the size tree, ordered by size, then address.
 *
 *   a chunk:      | used | free |  waiting  | used |  free  | unmapped            |
 *   pointer tree:    all of them, by address
 *   size tree:              ^                           ^      by size, then address
 *
 * A chunk may be a range of addresses that has memory only in places: where it has none, there is an unmapped segment.
 * A segment on its way between free and unmapped is a moving one: only the thread that moves it touches it.
 *
 * This floor knows addresses and sizes.  It never touches the memory they stand for, and knows neither chunk sources,
 * nor locks, nor when a segment may be reused: its caller holds the pool's lock and decides.
 *
 * Invariants, checked by segment_set_check:
 *   - segments do not overlap, and within a chunk each begins where the one before it ends;
 *   - no two neighbours in one chunk are both free, nor both unmapped, nor both waiting for the same stream, with the
 *     same epoch if for none;
 *   - the size tree holds exactly the free segments, each in the branch of its size;
 *   - the unmapped list holds exactly the unmapped segments;
 *   - the set's waiting list holds exactly the segments that wait for no stream, oldest epoch first;
 *   - bytes[s] and count[s] are the sums over the segments in state s.
 */
#ifndef MAM_LIB_SEGMENT_H
#define MAM_LIB_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>

enum segment_state {
  SEGMENT_FREE,     /* may be handed out */
  SEGMENT_USED,     /* belongs to the caller of malloc */
  SEGMENT_WAITING,  /* freed, but the GPU may still use it: reusable when its epoch has passed */
  SEGMENT_UNMAPPED, /* addresses without memory */
  SEGMENT_MOVING,   /* memory is being put there or taken away */
  SEGMENT_STATES
};

struct waiting_stream;

struct segment {
  /* What a used segment is.  Odd: a live block, and no two blocks ever have the same ticket.  Even: the front that
   * freed the block keeps it (front.h), or it never was a block.  A free claims the block by changing the ticket
   * (claim.h); the block's own front does so without the pool's lock.  Of two frees of one block, one finds another
   * ticket.  0 if the segment is not used: the caller that gives it back sets that.  This floor neither reads nor
   * writes it. */
  _Atomic uint64_t ticket;
  uintptr_t base;
  enum segment_state state : 4;
  bool heads_chunk : 1; /* the first of its chunk: never merges with the one before it */
  size_t bytes : 59;    /* above the others: then a shift reads it */
  RB_ENTRY(segment) by_address;
  union {
    RB_ENTRY(segment) by_size; /* free */
    struct {
      size_t requested_bytes; /* what the caller asked for, at most bytes */
      const void *site;       /* where in the program it asked */
      const void *tag;        /* front.h's; NULL: none */
    } used;
    struct {
      TAILQ_ENTRY(segment) link;
      struct waiting_stream *stream; /* on which it was freed and may be reused at once; NULL: in the set's list */
      uint64_t epoch;
    } waiting;
    LIST_ENTRY(segment) unmapped;
    SLIST_ENTRY(segment) spare; /* not a segment at present */
  } as;
};

TAILQ_HEAD(waiting_list, segment);

/* A live block of the pool costs one of these. */
_Static_assert(sizeof(struct segment) <= 88, "mam(7) promises what a segment takes of the host's memory");

RB_HEAD(pointer_tree, segment);
RB_HEAD(size_tree, segment);
LIST_HEAD(unmapped_list, segment);

/* The size tree is cut into branches by size, 64 for each power of two, so that a branch holds few segments: a search
 * in one tree of 600 holes was half of the cost of an allocation. */
enum { SIZE_STEP_BITS = 6, SIZE_STEPS = 1 << SIZE_STEP_BITS, SIZE_BRANCHES = 64 * SIZE_STEPS };

/* The bits that say which branches are not empty take so many words; a further word has a bit for each of them. */
enum { SIZE_WORDS = 64 };
_Static_assert(SIZE_BRANCHES == 64 * SIZE_WORDS, "a bit for each branch, and for each word");

/* What was freed on one stream and waits is listed by size: eight lists for each power of two. */
enum { STREAM_BINS = 64 * 8, STREAM_WORDS = STREAM_BINS / 64 };

/* Neighbours coalesce whatever their epochs, and the latest epoch counts.  So a list is not in the order of epochs. */
struct waiting_stream {
  uint64_t words[STREAM_WORDS]; /* a bit for each list that is not empty */
  struct waiting_list bins[STREAM_BINS];
};

struct size_forest {
  uint64_t branched;          /* a bit for each word that is not 0 */
  uint64_t words[SIZE_WORDS]; /* a bit for each branch that is not empty */
  struct size_tree branches[SIZE_BRANCHES];
};
SLIST_HEAD(spare_list, segment);

struct segment_nodes; /* host memory for many segments */

struct segment_set {
  struct pointer_tree by_address;
  struct size_forest by_size;
  struct waiting_list waiting;
  struct unmapped_list unmapped; /* in no order */
  size_t bytes[SEGMENT_STATES];
  size_t count[SEGMENT_STATES];
  struct spare_list spares;
  struct segment_nodes *nodes;
  size_t nodes_bytes; /* host memory in all of them */
  /* Unless this is 0, a hole of more than this serves no block smaller than half of it, and none that would leave more
   * than rest_most_bytes, so that a block does not keep a much larger chunk from going back. */
  size_t spared_bytes, rest_most_bytes;
  /* Blocks may take so many bytes more from holes of more than twice their size; SIZE_MAX: any number.
   * Written by the pool. */
  size_t cuts_bytes;
};

void segment_set_init(struct segment_set *set);

/* Forgets every segment and gives the host memory back. */
void segment_set_clear(struct segment_set *set);

/* Adds a chunk as one segment that is free, or unmapped.  base and bytes are the caller's concern (aligned, overlapping
 * nothing).  False if the host has no memory, then nothing changed. */
bool segment_add_chunk(struct segment_set *set, uintptr_t base, size_t bytes, enum segment_state state);

/* Takes a free segment out of the set: one that is a whole chunk, or whose bytes belong to a neighbour from now on. */
void segment_remove(struct segment_set *set, struct segment *segment);

/* Best fit: makes the smallest free segment of at least bytes (of those, the lowest) used, splitting the rest off as
 * a free one.  bytes > 0.  The caller fills in as.used.  NULL if no segment is large enough, if the block would cut one
 * up and cuts_bytes is less than the block, or if the host has no memory for the split (*no_host_memory then true);
 * no segment changed then.  close: only if at most a third of the block is left over. */
struct segment *segment_take(struct segment_set *set, size_t bytes, bool close, bool *no_host_memory);

/* Whether there is a hole for so many bytes, which is spared. */
bool segment_is_spared(struct segment_set *set, size_t bytes);

/* segment_take at a multiple of alignment, a power of two.  The smallest 16 holes are tried, then one that is large
 * enough wherever it begins. */
struct segment *segment_take_aligned(struct segment_set *set, size_t bytes, size_t alignment, bool *no_host_memory);

/* The segment that starts at base, NULL if none does. */
struct segment *segment_find(struct segment_set *set, uintptr_t base);

/* The segment that address lies in, NULL if none does. */
struct segment *segment_at(struct segment_set *set, uintptr_t address);

/* Makes the bytes from base on, which lie inside a free or an unmapped segment, a moving one; what is left on either
 * side stays as it was.  NULL if the host has no memory, then nothing changed. */
struct segment *segment_move(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes);

/* Ends a move: the segment becomes free, or unmapped.  Needs no host memory.  Afterwards the pointer is no longer
 * valid.
 */
void segment_moved(struct segment_set *set, struct segment *moving, enum segment_state state);

/* Makes a used segment free and coalesces it with free neighbours.  Afterwards the pointer is no longer valid. */
void segment_free(struct segment_set *set, struct segment *segment);

/* Makes a used segment wait for epoch, which is at least that of every segment waiting; coalesces it with neighbours
 * that wait for the same.  stream: on which it was freed; NULL: on none.  Afterwards the pointer is no longer valid. */
void segment_wait_on(struct segment_set *set, struct waiting_stream *stream, struct segment *segment, uint64_t epoch);

void waiting_stream_init(struct waiting_stream *stream);
bool waiting_stream_empty(const struct waiting_stream *stream);

/* Makes the first bytes of the best fit among what waits for a stream used again, before its epoch has passed.  The
 * rest goes on waiting.  In a list, only the 16 freed last are looked at.  NULL where segment_take has it, and if a
 * free segment fits better: else large blocks would be cut up while small ones lie free. */
struct segment *segment_retake(struct segment_set *set, struct waiting_stream *stream, size_t bytes, bool close,
                               bool *no_host_memory);

/* Whether segment_retake has a segment that is large enough, if cuts are allowed.  If there is none, but what waits for
 * the stream and what is free beside it are enough together, they become one segment that waits for the stream. */
bool segment_may_retake(struct segment_set *set, struct waiting_stream *stream, size_t bytes);

/* Makes at most so many segments free that wait for epoch or an earlier one: segment_pass_some in the set's list,
 * segment_pass_stream for the stream.  Returns whether all such are free. */
bool segment_pass_some(struct segment_set *set, uint64_t epoch, unsigned most);
bool segment_pass_stream(struct segment_set *set, struct waiting_stream *stream, uint64_t epoch, unsigned most);

/* The latest epoch that a segment waits for without a stream, 0 if none does. */
uint64_t segment_waiting_epoch(const struct segment_set *set);

/* The largest free segment's size, 0 if none is free. */
size_t segment_largest_free(struct segment_set *set);

/* The segments in the order of addresses: NULL at the end. */
struct segment *segment_first(struct segment_set *set);
struct segment *segment_next(struct segment *segment);

/* NULL if every invariant above holds, else which one does not: pool_check.c.  Walks everything. */
const char *segment_set_check(struct segment_set *set);

/* For checkers: keeps the first fault, *fault being NULL before.  Returns whether the condition holds. */
static inline bool fault_unless(const char **fault, bool holds, const char *what) {
  if (!holds && *fault == NULL)
    *fault = what;
  return holds;
}

#endif
