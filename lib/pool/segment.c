/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool/segment.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- The trees ---- */

static int compare_addresses(const struct segment *a, const struct segment *b) {
  return (a->base > b->base) - (a->base < b->base);
}

static int compare_sizes(const struct segment *a, const struct segment *b) {
  return a->bytes != b->bytes ? (a->bytes > b->bytes) - (a->bytes < b->bytes) : compare_addresses(a, b);
}

/* RB_GENERATE_STATIC, spelled out: libbsd's leaves the attribute that it uses undefined on Linux. */
#define TREE_FUNCTION static __attribute__((unused))
RB_GENERATE_INTERNAL(pointer_tree, segment, by_address, compare_addresses, TREE_FUNCTION)
RB_GENERATE_INTERNAL(size_tree, segment, as.by_size, compare_sizes, TREE_FUNCTION)

/* ---- The branches of the size tree ---- */

static unsigned branch_of(size_t bytes) {
  if (bytes < SIZE_STEPS)
    return 0;
  unsigned log = 63 - (unsigned)__builtin_clzl(bytes);
  return log * SIZE_STEPS + (unsigned)(bytes >> (log - SIZE_STEP_BITS)) % SIZE_STEPS;
}

static void size_insert(struct size_forest *forest, struct segment *segment) {
  unsigned branch = branch_of(segment->bytes);
  struct size_tree *tree = &forest->branches[branch];
  if (!RB_EMPTY(tree)) {
    RB_INSERT(size_tree, tree, segment);
    return;
  }
  RB_SET(segment, NULL, as.by_size); /* mostly; RB_INSERT takes longer to see it */
  RB_COLOR(segment, as.by_size) = RB_BLACK;
  RB_ROOT(tree) = segment;
  forest->words[branch / 64] |= (uint64_t)1 << branch % 64;
  forest->branched |= (uint64_t)1 << branch / 64;
}

/* Whether a segment of the tree is its only one. */
static bool size_alone(const struct size_tree *tree, const struct segment *segment) {
  return RB_ROOT(tree) == segment && RB_LEFT(segment, as.by_size) == NULL && RB_RIGHT(segment, as.by_size) == NULL;
}

static void size_remove(struct size_forest *forest, struct segment *segment) {
  unsigned branch = branch_of(segment->bytes);
  struct size_tree *tree = &forest->branches[branch];
  if (!size_alone(tree, segment)) {
    RB_REMOVE(size_tree, tree, segment);
    return;
  }
  RB_ROOT(tree) = NULL;
  forest->words[branch / 64] &= ~((uint64_t)1 << branch % 64);
  if (forest->words[branch / 64] == 0)
    forest->branched &= ~((uint64_t)1 << branch / 64);
}

/* The first branch from one on that is not empty; SIZE_BRANCHES if there is none. */
static unsigned branch_from(const struct size_forest *forest, unsigned branch) {
  if (branch >= SIZE_BRANCHES)
    return SIZE_BRANCHES;
  unsigned word = branch / 64;
  uint64_t bits = forest->words[word] & ~(uint64_t)0 << branch % 64;
  if (bits == 0) {
    uint64_t words = word + 1 < SIZE_WORDS ? forest->branched & ~(uint64_t)0 << (word + 1) : 0;
    if (words == 0)
      return SIZE_BRANCHES;
    word = (unsigned)__builtin_ctzl(words);
    bits = forest->words[word];
  }
  return word * 64 + (unsigned)__builtin_ctzl(bits);
}

/* The smallest of the segments in the branches from one on, NULL if there is none. */
static struct segment *size_least(struct size_forest *forest, unsigned branch) {
  branch = branch_from(forest, branch);
  return branch < SIZE_BRANCHES ? RB_MIN(size_tree, &forest->branches[branch]) : NULL;
}

/* The next larger one. */
static struct segment *size_next(struct size_forest *forest, struct segment *segment) {
  struct segment *next = RB_NEXT(size_tree, , segment);
  return next != NULL ? next : size_least(forest, branch_of(segment->bytes) + 1);
}

/* ---- Host memory for segments: arrays of nodes, spare ones in a list ---- */

struct segment_nodes {
  struct segment_nodes *next;
  struct segment segments[];
};

/* A new array is a sixteenth of the nodes that there are, so that spare nodes stay few beside them. */
enum { NODES_SHARE = 16 };

/* It has at least so many, for small pools, and at most so many: the calloc happens under the pool's lock. */
enum { NODES_LEAST = 64, NODES_MOST = 512 };

static bool nodes_add(struct segment_set *set) {
  size_t count = set->nodes_bytes / sizeof(struct segment) / NODES_SHARE;
  count = count < NODES_LEAST ? NODES_LEAST : count > NODES_MOST ? NODES_MOST : count;
  size_t bytes = sizeof(struct segment_nodes) + count * sizeof(struct segment);
  struct segment_nodes *nodes = calloc(1, bytes); /* no tickets */
  if (nodes == NULL)
    return false;
  nodes->next = set->nodes;
  set->nodes = nodes;
  set->nodes_bytes += bytes;
  for (size_t i = count; i-- > 0;) /* so that they are taken in the order of addresses */
    SLIST_INSERT_HEAD(&set->spares, &nodes->segments[i], as.spare);
  return true;
}

static struct segment *spare_take(struct segment_set *set) {
  if (SLIST_EMPTY(&set->spares) && !nodes_add(set))
    return NULL;
  struct segment *segment = SLIST_FIRST(&set->spares);
  SLIST_REMOVE_HEAD(&set->spares, as.spare);
  return segment;
}

static void spare_put(struct segment_set *set, struct segment *segment) {
  SLIST_INSERT_HEAD(&set->spares, segment, as.spare);
}

/* Describes a spare anew, in no state yet.  Its ticket is 0 and stays: somebody may still compare it with an old one.
 */
static void segment_make(struct segment *segment, uintptr_t base, size_t bytes, bool heads_chunk) {
  segment->base = base;
  segment->bytes = bytes;
  segment->state = SEGMENT_FREE;
  segment->heads_chunk = heads_chunk;
}

void segment_set_init(struct segment_set *set) {
  memset(set, 0, sizeof *set); /* an empty tree is NULL */
  RB_INIT(&set->by_address);
  TAILQ_INIT(&set->waiting);
  LIST_INIT(&set->unmapped);
  SLIST_INIT(&set->spares);
}

void segment_set_clear(struct segment_set *set) {
  for (struct segment_nodes *nodes = set->nodes, *next; nodes != NULL; nodes = next) {
    next = nodes->next;
    free(nodes);
  }
  segment_set_init(set);
}

/* ---- Neighbours ---- */

struct segment *segment_first(struct segment_set *set) {
  return RB_MIN(pointer_tree, &set->by_address);
}

struct segment *segment_next(struct segment *segment) {
  return RB_NEXT(pointer_tree, , segment);
}

struct segment *segment_neighbour_before(struct segment *segment) {
  return segment->heads_chunk ? NULL : RB_PREV(pointer_tree, , segment);
}

struct segment *segment_neighbour_after(struct segment *segment) {
  struct segment *next = RB_NEXT(pointer_tree, , segment);
  return next == NULL || next->heads_chunk ? NULL : next;
}

static void count_add(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] += bytes;
  set->count[state]++;
}

static void count_remove(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] -= bytes;
  set->count[state]--;
}

/* ---- Free segments ---- */

/* Whether a segment with new bounds keeps its place in its branch. */
static bool size_stays(const struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  const struct segment key = {.base = base, .bytes = bytes}, *smaller, *larger;
  if (size_alone(&set->by_size.branches[branch_of(bytes)], segment))
    return true;
  return ((smaller = RB_PREV(size_tree, , segment)) == NULL || compare_sizes(smaller, &key) < 0) &&
         ((larger = RB_NEXT(size_tree, , segment)) == NULL || compare_sizes(&key, larger) < 0);
}

/* Gives a free segment new bounds, which stay between its neighbours' so that the pointer tree does not change.  The
 * size tree only changes if the segment would pass another one: the usual large hole keeps its place. */
static void free_resize(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  bool stays = branch_of(bytes) == branch_of(segment->bytes) && size_stays(set, segment, base, bytes);
  set->bytes[SEGMENT_FREE] += bytes - segment->bytes;
  if (!stays)
    size_remove(&set->by_size, segment);
  segment->base = base;
  segment->bytes = bytes;
  if (!stays)
    size_insert(&set->by_size, segment);
}

/* Takes a segment that is in no state any more out of the pointer tree: its bytes belong to a neighbour now. */
static void segment_absorbed(struct segment_set *set, struct segment *segment) {
  RB_REMOVE(pointer_tree, &set->by_address, segment);
  spare_put(set, segment);
}

/* Makes a segment that was just taken out of its former state free. */
static void segment_become_free(struct segment_set *set, struct segment *segment) {
  struct segment *before = segment_neighbour_before(segment), *after = segment_neighbour_after(segment);
  bool merge_before = before != NULL && before->state == SEGMENT_FREE;
  bool merge_after = after != NULL && after->state == SEGMENT_FREE;
  if (merge_before && merge_after) {
    size_t bytes = before->bytes + segment->bytes + after->bytes;
    size_remove(&set->by_size, after);
    count_remove(set, SEGMENT_FREE, after->bytes);
    segment_absorbed(set, after);
    segment_absorbed(set, segment);
    free_resize(set, before, before->base, bytes);
  } else if (merge_before) {
    size_t bytes = before->bytes + segment->bytes;
    segment_absorbed(set, segment);
    free_resize(set, before, before->base, bytes);
  } else if (merge_after) {
    uintptr_t base = segment->base;
    size_t bytes = segment->bytes + after->bytes;
    after->heads_chunk = segment->heads_chunk;
    segment_absorbed(set, segment);
    free_resize(set, after, base, bytes);
  } else {
    segment->state = SEGMENT_FREE;
    count_add(set, SEGMENT_FREE, segment->bytes);
    size_insert(&set->by_size, segment);
  }
}

/* A chunk that is one segment, in no state yet. */
static struct segment *chunk_add(struct segment_set *set, uintptr_t base, size_t bytes) {
  struct segment *segment = spare_take(set);
  if (segment == NULL)
    return NULL;
  segment_make(segment, base, bytes, true);
  RB_INSERT(pointer_tree, &set->by_address, segment);
  return segment;
}

bool segment_add_chunk(struct segment_set *set, uintptr_t base, size_t bytes) {
  struct segment *segment = chunk_add(set, base, bytes);
  if (segment != NULL)
    segment_become_free(set, segment);
  return segment != NULL;
}

void segment_remove_chunk(struct segment_set *set, struct segment *segment) {
  size_remove(&set->by_size, segment);
  count_remove(set, SEGMENT_FREE, segment->bytes);
  segment_absorbed(set, segment);
}

size_t segment_largest_free(struct segment_set *set) {
  const struct size_forest *forest = &set->by_size;
  if (forest->branched == 0)
    return 0;
  unsigned word = 63 - (unsigned)__builtin_clzl(forest->branched);
  unsigned branch = word * 64 + 63 - (unsigned)__builtin_clzl(forest->words[word]);
  return RB_MAX(size_tree, &set->by_size.branches[branch])->bytes;
}

/* ---- Take (the paper, algorithm 1) ---- */

/* Inserts a segment whose place is known, just before another, without a search from the root. */
static void pointer_tree_insert_before(struct pointer_tree *tree, struct segment *segment, struct segment *next) {
  struct segment *parent = RB_LEFT(next, by_address);
  if (parent == NULL) {
    RB_SET(segment, next, by_address);
    RB_LEFT(next, by_address) = segment;
  } else {
    while (RB_RIGHT(parent, by_address) != NULL)
      parent = RB_RIGHT(parent, by_address);
    RB_SET(segment, parent, by_address);
    RB_RIGHT(parent, by_address) = segment;
  }
  pointer_tree_RB_INSERT_COLOR(tree, segment);
}

static struct segment *best_fit(struct segment_set *set, size_t bytes) {
  struct segment key = {.base = 0, .bytes = bytes};
  if (key.bytes != bytes) /* more than fits into the field: more than there is */
    return NULL;
  unsigned branch = branch_of(bytes);
  struct segment *fit = RB_NFIND(size_tree, &set->by_size.branches[branch], &key);
  return fit != NULL ? fit : size_least(&set->by_size, branch + 1);
}

/* Cuts the first bytes off a larger free segment as a new segment.  The rest keeps its place in the pointer tree, as
 * the new one goes just before it. */
static struct segment *split_front(struct segment_set *set, struct segment *hole, size_t bytes) {
  struct segment *front = spare_take(set);
  if (front == NULL)
    return NULL;
  segment_make(front, hole->base, bytes, hole->heads_chunk);
  hole->heads_chunk = false;
  free_resize(set, hole, hole->base + bytes, hole->bytes - bytes);
  pointer_tree_insert_before(&set->by_address, front, hole);
  return front;
}

static bool spares(const struct segment_set *set, const struct segment *hole, size_t bytes) {
  return set->spared_bytes > 0 && hole->bytes > set->spared_bytes && bytes < hole->bytes / 2;
}

bool segment_is_spared(struct segment_set *set, size_t bytes) {
  const struct segment *hole = set->spared_bytes > 0 ? best_fit(set, bytes) : NULL;
  return hole != NULL && spares(set, hole, bytes);
}

struct segment *segment_take(struct segment_set *set, size_t bytes, bool *no_host_memory) {
  *no_host_memory = false;
  struct segment *segment = best_fit(set, bytes);
  if (segment == NULL || spares(set, segment, bytes)) /* the best fit is the smallest: then all others are too */
    return NULL;
  if (segment->bytes > bytes) {
    segment = split_front(set, segment, bytes);
    if (segment == NULL) {
      *no_host_memory = true;
      return NULL;
    }
  } else {
    size_remove(&set->by_size, segment);
    count_remove(set, SEGMENT_FREE, bytes);
  }
  segment->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, bytes);
  return segment;
}

/* segment_take_aligned tries so many holes, the smallest first: a search through all of them has no bound. */
enum { ALIGNED_TRIES = 16 };

/* Whether an aligned block fits into a hole; *skip bytes go before it. */
static bool aligned_fits(const struct segment *hole, size_t bytes, size_t alignment, size_t *skip) {
  *skip = -hole->base & (alignment - 1);
  return hole->bytes >= bytes && hole->bytes - bytes >= *skip;
}

static struct segment *best_aligned_fit(struct segment_set *set, size_t bytes, size_t alignment, size_t *skip) {
  struct segment *hole = best_fit(set, bytes);
  for (unsigned tries = 0; hole != NULL && tries < ALIGNED_TRIES; tries++, hole = size_next(&set->by_size, hole))
    if (aligned_fits(hole, bytes, alignment, skip))
      return spares(set, hole, bytes) ? NULL : hole;
  hole = hole != NULL ? best_fit(set, bytes + alignment) : NULL;
  return hole != NULL && aligned_fits(hole, bytes, alignment, skip) ? hole : NULL;
}

struct segment *segment_take_aligned(struct segment_set *set, size_t bytes, size_t alignment, bool *no_host_memory) {
  size_t skip;
  *no_host_memory = false;
  struct segment *hole = best_aligned_fit(set, bytes, alignment, &skip), *front = NULL;
  if (hole == NULL)
    return NULL;
  struct segment *block = hole;
  if (hole->bytes - skip > bytes) { /* the rest keeps the node, as in segment_take */
    block = skip > 0 || hole->bytes > bytes ? split_front(set, hole, skip + bytes) : hole;
    *no_host_memory = block == NULL;
    if (block == NULL)
      return NULL;
  } else {
    size_remove(&set->by_size, hole);
    count_remove(set, SEGMENT_FREE, hole->bytes);
  }
  block->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, block->bytes);
  if (skip == 0)
    return block;
  front = spare_take(set);
  if (front == NULL) { /* as it was */
    segment_free(set, block);
    *no_host_memory = true;
    return NULL;
  }
  segment_make(front, block->base, skip, block->heads_chunk);
  count_remove(set, SEGMENT_USED, block->bytes);
  block->base += skip;
  block->bytes -= skip;
  block->heads_chunk = false;
  count_add(set, SEGMENT_USED, block->bytes);
  pointer_tree_insert_before(&set->by_address, front, block);
  segment_become_free(set, front);
  return block;
}

/* ---- Memory that comes and goes under the addresses ---- */

/* Takes an unmapped segment whose bytes go to a neighbour out of the list. */
static void unmapped_absorbed(struct segment_set *set, struct segment *segment) {
  LIST_REMOVE(segment, as.unmapped);
  set->count[SEGMENT_UNMAPPED]--;
  segment_absorbed(set, segment);
}

/* Makes a segment that was just taken out of its former state unmapped. */
static void segment_become_unmapped(struct segment_set *set, struct segment *segment) {
  struct segment *before = segment_neighbour_before(segment), *after = segment_neighbour_after(segment);
  count_add(set, SEGMENT_UNMAPPED, segment->bytes);
  segment->state = SEGMENT_UNMAPPED;
  LIST_INSERT_HEAD(&set->unmapped, segment, as.unmapped);
  if (after != NULL && after->state == SEGMENT_UNMAPPED) {
    segment->bytes += after->bytes;
    unmapped_absorbed(set, after);
  }
  if (before != NULL && before->state == SEGMENT_UNMAPPED) {
    before->bytes += segment->bytes;
    unmapped_absorbed(set, segment);
  }
}

bool segment_add_reserved(struct segment_set *set, uintptr_t base, size_t bytes) {
  struct segment *segment = chunk_add(set, base, bytes);
  if (segment != NULL)
    segment_become_unmapped(set, segment);
  return segment != NULL;
}

/* A part of a segment that was cut off it goes back to its state, as a segment of its own.  It has no neighbour of that
 * state. */
static void part_put_back(struct segment_set *set, struct segment *part, enum segment_state state) {
  if (state == SEGMENT_FREE)
    segment_become_free(set, part);
  else
    segment_become_unmapped(set, part);
}

struct segment *segment_move(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  enum segment_state state = segment->state;
  size_t front_bytes = base - segment->base, rest_bytes = segment->bytes - front_bytes - bytes;
  struct segment *front = front_bytes > 0 ? spare_take(set) : NULL, *rest = rest_bytes > 0 ? spare_take(set) : NULL;
  if ((front_bytes > 0 && front == NULL) || (rest_bytes > 0 && rest == NULL)) {
    if (front != NULL)
      spare_put(set, front);
    return NULL;
  }
  if (state == SEGMENT_FREE)
    size_remove(&set->by_size, segment);
  else
    LIST_REMOVE(segment, as.unmapped);
  count_remove(set, state, segment->bytes);
  segment->base = base;
  segment->bytes = bytes;
  segment->state = SEGMENT_MOVING;
  count_add(set, SEGMENT_MOVING, bytes);
  if (front != NULL) {
    segment_make(front, base - front_bytes, front_bytes, segment->heads_chunk);
    segment->heads_chunk = false;
    pointer_tree_insert_before(&set->by_address, front, segment);
    part_put_back(set, front, state);
  }
  if (rest != NULL) {
    segment_make(rest, base + bytes, rest_bytes, false);
    RB_INSERT(pointer_tree, &set->by_address, rest);
    part_put_back(set, rest, state);
  }
  return segment;
}

void segment_moved_to_free(struct segment_set *set, struct segment *moving) {
  count_remove(set, SEGMENT_MOVING, moving->bytes);
  segment_become_free(set, moving);
}

void segment_moved_to_unmapped(struct segment_set *set, struct segment *moving) {
  count_remove(set, SEGMENT_MOVING, moving->bytes);
  segment_become_unmapped(set, moving);
}

/* ---- Free (the paper, algorithm 2), at once or after an epoch ---- */

struct segment *segment_find(struct segment_set *set, uintptr_t base) {
  struct segment key = {.base = base};
  return RB_FIND(pointer_tree, &set->by_address, &key);
}

struct segment *segment_at(struct segment_set *set, uintptr_t address) {
  struct segment *at = RB_ROOT(&set->by_address), *below = NULL;
  while (at != NULL) {
    if (at->base <= address) {
      below = at;
      at = RB_RIGHT(at, by_address);
    } else {
      at = RB_LEFT(at, by_address);
    }
  }
  return below != NULL && address - below->base < below->bytes ? below : NULL;
}

void segment_free(struct segment_set *set, struct segment *segment) {
  count_remove(set, SEGMENT_USED, segment->bytes);
  segment_become_free(set, segment);
}

/* ---- What waits ---- */

void waiting_stream_init(struct waiting_stream *stream) {
  memset(stream->words, 0, sizeof stream->words);
  for (unsigned i = 0; i < STREAM_BINS; i++)
    TAILQ_INIT(&stream->bins[i]);
}

bool waiting_stream_empty(const struct waiting_stream *stream) {
  for (unsigned i = 0; i < STREAM_WORDS; i++)
    if (stream->words[i] != 0)
      return false;
  return true;
}

static unsigned bin_of(size_t bytes) { return branch_of(bytes) / (SIZE_BRANCHES / STREAM_BINS); }

/* Puts a waiting segment into its list, last. */
static void waiting_insert(struct segment_set *set, struct segment *segment) {
  struct waiting_stream *stream = segment->as.waiting.stream;
  if (stream == NULL) {
    TAILQ_INSERT_TAIL(&set->waiting, segment, as.waiting.link);
    return;
  }
  unsigned bin = bin_of(segment->bytes);
  TAILQ_INSERT_TAIL(&stream->bins[bin], segment, as.waiting.link);
  stream->words[bin / 64] |= (uint64_t)1 << bin % 64;
}

/* Takes it out, before its size changes. */
static void waiting_remove(struct segment_set *set, struct segment *segment) {
  struct waiting_stream *stream = segment->as.waiting.stream;
  if (stream == NULL) {
    TAILQ_REMOVE(&set->waiting, segment, as.waiting.link);
    return;
  }
  unsigned bin = bin_of(segment->bytes);
  TAILQ_REMOVE(&stream->bins[bin], segment, as.waiting.link);
  if (TAILQ_EMPTY(&stream->bins[bin]))
    stream->words[bin / 64] &= ~((uint64_t)1 << bin % 64);
}

/* Whether two neighbours are one: for a stream in any case, else if they wait for the same epoch. */
static bool waits_with(const struct segment *segment, const struct waiting_stream *stream, uint64_t epoch) {
  return segment != NULL && segment->state == SEGMENT_WAITING && segment->as.waiting.stream == stream &&
         (stream != NULL || segment->as.waiting.epoch == epoch);
}

void segment_wait_on(struct segment_set *set, struct waiting_stream *stream, struct segment *segment, uint64_t epoch) {
  struct segment *before = segment_neighbour_before(segment), *after = segment_neighbour_after(segment);
  count_remove(set, SEGMENT_USED, segment->bytes);
  count_add(set, SEGMENT_WAITING, segment->bytes);
  segment->state = SEGMENT_WAITING;
  if (waits_with(after, stream, epoch)) {
    waiting_remove(set, after);
    segment->bytes += after->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorbed(set, after);
  }
  if (waits_with(before, stream, epoch)) { /* it keeps its node, at the end of its list */
    waiting_remove(set, before);
    before->bytes += segment->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorbed(set, segment);
    segment = before;
  }
  segment->as.waiting.stream = stream;
  segment->as.waiting.epoch = epoch;
  waiting_insert(set, segment);
}

void segment_wait(struct segment_set *set, struct segment *segment, uint64_t epoch) {
  segment_wait_on(set, NULL, segment, epoch);
}

/* segment_retake looks at so many segments of a list, the last freed first: a search through all has no bound. */
enum { BIN_TRIES = 16 };

/* The smallest of the last few of a list that is large enough. */
static struct segment *bin_fit(const struct waiting_list *bin, size_t bytes) {
  struct segment *segment, *best = NULL;
  unsigned tries = 0;
  TAILQ_FOREACH_REVERSE(segment, bin, waiting_list, as.waiting.link) {
    if (segment->bytes >= bytes && (best == NULL || segment->bytes < best->bytes))
      best = segment;
    if (++tries == BIN_TRIES || (best != NULL && best->bytes == bytes))
      break;
  }
  return best;
}

static struct segment *stream_fit(const struct waiting_stream *stream, size_t bytes) {
  unsigned first = bin_of(bytes);
  uint64_t mask = ~(uint64_t)0 << first % 64;
  for (unsigned word = first / 64; word < STREAM_WORDS; word++, mask = ~(uint64_t)0)
    for (uint64_t bits = stream->words[word] & mask; bits != 0; bits &= bits - 1) {
      struct segment *fit = bin_fit(&stream->bins[word * 64 + (unsigned)__builtin_ctzl(bits)], bytes);
      if (fit != NULL)
        return fit;
    }
  return NULL;
}

struct segment *segment_retake(struct segment_set *set, struct waiting_stream *stream, size_t bytes) {
  struct segment *segment = stream_fit(stream, bytes), *front = segment;
  const struct segment *hole = segment != NULL && segment->bytes > bytes ? best_fit(set, bytes) : NULL;
  if (segment == NULL || (hole != NULL && hole->bytes < segment->bytes))
    return NULL;
  if (segment->bytes > bytes) {
    front = spare_take(set);
    if (front == NULL)
      return NULL;
    waiting_remove(set, segment);
    segment_make(front, segment->base, bytes, segment->heads_chunk);
    segment->base += bytes;
    segment->bytes -= bytes;
    segment->heads_chunk = false;
    set->bytes[SEGMENT_WAITING] -= bytes;
    pointer_tree_insert_before(&set->by_address, front, segment);
    waiting_insert(set, segment);
  } else {
    waiting_remove(set, segment);
    count_remove(set, SEGMENT_WAITING, bytes);
  }
  front->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, bytes);
  return front;
}

/* Makes segments of a list free whose epochs have passed, as far as those come first, and at most *most of them. */
static void list_pass(struct segment_set *set, struct waiting_list *list, uint64_t epoch, unsigned *most) {
  struct segment *segment;
  while ((segment = TAILQ_FIRST(list)) != NULL && segment->as.waiting.epoch <= epoch && *most > 0) {
    --*most;
    waiting_remove(set, segment);
    count_remove(set, SEGMENT_WAITING, segment->bytes);
    segment_become_free(set, segment);
  }
}

bool segment_pass_some(struct segment_set *set, uint64_t epoch, unsigned most) {
  list_pass(set, &set->waiting, epoch, &most);
  return most > 0;
}

bool segment_pass_stream(struct segment_set *set, struct waiting_stream *stream, uint64_t epoch, unsigned most) {
  for (unsigned word = 0; word < STREAM_WORDS && most > 0; word++)
    for (uint64_t bits = stream->words[word]; bits != 0 && most > 0; bits &= bits - 1)
      list_pass(set, &stream->bins[word * 64 + (unsigned)__builtin_ctzl(bits)], epoch, &most);
  return most > 0;
}

void segment_pass_epoch(struct segment_set *set, uint64_t epoch) {
  while (!segment_pass_some(set, epoch, UINT_MAX))
    continue;
}

uint64_t segment_waiting_epoch(const struct segment_set *set) {
  const struct segment *last = TAILQ_LAST(&set->waiting, waiting_list);
  return last != NULL ? last->as.waiting.epoch : 0;
}

/* ---- Check ---- */

static const char *check_neighbours(const struct segment *before, const struct segment *segment) {
  if (segment->bytes == 0)
    return "a segment is empty";
  if (before == NULL)
    return segment->heads_chunk ? NULL : "the first segment heads no chunk";
  if (segment->base < before->base + before->bytes)
    return "two segments overlap";
  if (segment->heads_chunk)
    return NULL;
  if (segment->base != before->base + before->bytes)
    return "there is a gap inside a chunk";
  if (segment->state == SEGMENT_FREE && before->state == SEGMENT_FREE)
    return "two neighbours are free";
  if (segment->state == SEGMENT_UNMAPPED && before->state == SEGMENT_UNMAPPED)
    return "two neighbours are unmapped";
  if (before->state == SEGMENT_WAITING && waits_with(segment, before->as.waiting.stream, before->as.waiting.epoch))
    return "two neighbours wait for the same";
  return NULL;
}

static const char *check_pointer_tree(struct segment_set *set) {
  size_t bytes[SEGMENT_STATES] = {0}, count[SEGMENT_STATES] = {0};
  const struct segment *before = NULL;
  for (struct segment *segment = segment_first(set); segment != NULL; segment = segment_next(segment)) {
    const char *fault = check_neighbours(before, segment);
    if (fault != NULL)
      return fault;
    bytes[segment->state] += segment->bytes;
    count[segment->state]++;
    before = segment;
  }
  for (int state = 0; state < SEGMENT_STATES; state++)
    if (bytes[state] != set->bytes[state] || count[state] != set->count[state])
      return "the sums do not agree with the segments";
  return NULL;
}

static const char *check_size_tree(struct segment_set *set) {
  size_t count = 0;
  const struct segment *before = NULL;
  struct segment *segment;
  for (segment = size_least(&set->by_size, 0); segment != NULL; segment = size_next(&set->by_size, segment)) {
    if (segment->state != SEGMENT_FREE)
      return "the size tree holds a segment that is not free";
    if (segment_find(set, segment->base) != segment)
      return "the size tree holds a segment that the pointer tree has not";
    if (before != NULL && compare_sizes(before, segment) >= 0)
      return "the size tree is out of order";
    before = segment;
    count++;
  }
  return count == set->count[SEGMENT_FREE] ? NULL : "the size tree lacks a free segment";
}

static const char *check_waiting_list(struct segment_set *set) {
  size_t count = 0, expected = 0;
  uint64_t epoch = 0;
  struct segment *segment;
  TAILQ_FOREACH(segment, &set->waiting, as.waiting.link) {
    if (segment->state != SEGMENT_WAITING || segment->as.waiting.stream != NULL)
      return "the waiting list holds a segment that does not wait in it";
    if (segment->as.waiting.epoch < epoch)
      return "the waiting list is out of order";
    epoch = segment->as.waiting.epoch;
    count++;
  }
  for (segment = segment_first(set); segment != NULL; segment = segment_next(segment))
    expected += segment->state == SEGMENT_WAITING && segment->as.waiting.stream == NULL;
  return count == expected ? NULL : "the waiting list lacks a waiting segment";
}

static const char *check_unmapped_list(struct segment_set *set) {
  size_t count = 0;
  struct segment *segment;
  LIST_FOREACH(segment, &set->unmapped, as.unmapped) {
    if (segment->state != SEGMENT_UNMAPPED)
      return "the unmapped list holds a segment that is not unmapped";
    count++;
  }
  return count == set->count[SEGMENT_UNMAPPED] ? NULL : "the unmapped list lacks an unmapped segment";
}

const char *segment_set_check(struct segment_set *set) {
  const char *fault = check_pointer_tree(set);
  if (fault == NULL)
    fault = check_size_tree(set);
  if (fault == NULL)
    fault = check_waiting_list(set);
  if (fault == NULL)
    fault = check_unmapped_list(set);
  return fault;
}
