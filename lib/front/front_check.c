/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/front_check.h"

#include <stdlib.h>

#include "base/locked.h"
#include "front/front_inside.h"
#include "pool/pool_inside.h"

/* Returns the fault from the calling function if there is one. */
#define CHECK(fault)                                                                                                   \
  do {                                                                                                                 \
    const char *check_fault = (fault);                                                                                 \
    if (check_fault != NULL)                                                                                           \
      return check_fault;                                                                                              \
  } while (false)

/* ---- Small blocks ---- */

/* A slab of the pool, and for each of its blocks whether a place for it was found. */
struct slab_places {
  const struct slab *slab;
  unsigned char *placed;
};

/* What is known of the pool's small blocks.  Without host memory nothing is checked. */
struct small_check {
  struct mam_pool *pool;
  struct slab_places *slabs; /* by address */
  size_t slab_count;
  size_t live_count, live_bytes;
  int64_t codes; /* the sum of what the live bytes hold */
};

static int slab_compare(const void *a, const void *b) {
  uintptr_t base_a = ((const struct slab_places *)a)->slab->base, base_b = ((const struct slab_places *)b)->slab->base;
  return (base_a > base_b) - (base_a < base_b);
}

static struct slab_places *slab_find(const struct small_check *check, uintptr_t address) {
  const struct slab page = {.base = address & ~(uintptr_t)(SLAB_BYTES - 1)};
  const struct slab_places key = {.slab = &page};
  return check->slab_count > 0 ? bsearch(&key, check->slabs, check->slab_count, sizeof key, slab_compare) : NULL;
}

/* relaxed, here and below: the fronts and depots are frozen */
static uint8_t block_code(const struct slab *slab, uint32_t index) {
  return atomic_load_explicit(slab_live(slab, index), memory_order_relaxed);
}

static bool block_is_live(const struct slab *slab, uint32_t index) { return block_code(slab, index) != 0; }

static bool block_is_inside(const struct slab *slab, uint32_t index) {
  return (slab->inside[index / 64] >> index % 64 & 1) != 0;
}

/* A slab's bits and live bytes.  Its blocks that are inside, or live, have a place. */
static const char *check_slab(struct small_check *check, const struct slab_places *places, unsigned class) {
  const struct slab *slab = places->slab;
  uint32_t inside = 0;
  if (slab->class != class || atomic_load_explicit(&slab->pool, memory_order_relaxed) != check->pool)
    return "a depot has a slab of another class or pool";
  if (page_map_find(slab->base) != slab)
    return "the page map does not know a slab";
  for (uint32_t i = 0; i < slab->block_count; i++) {
    bool live = block_is_live(slab, i), is_inside = block_is_inside(slab, i);
    if (live && is_inside)
      return "a live block is inside its slab";
    inside += is_inside;
    places->placed[i] = live || is_inside;
    check->live_count += live;
    check->codes += block_code(slab, i);
    check->live_bytes += live ? slab_block_bytes(slab) : 0;
  }
  return inside == slab->inside_count ? NULL : "a slab's count of blocks inside is wrong";
}

/* A block of a batch is in no other place. */
static const char *check_batch_block(const struct small_check *check, const struct slab_block *block, unsigned class) {
  struct slab_places *places = slab_find(check, block->address);
  uint32_t index = places != NULL ? slab_index(places->slab, block->address) : UINT32_MAX;
  if (index == UINT32_MAX)
    return "a batch has what is no block of the pool's slabs";
  if (places->slab->class != class)
    return "a batch has a block of another class";
  if (block->live != slab_live(places->slab, index))
    return "a batch's block does not know its live byte";
  if (block_is_live(places->slab, index))
    return "a live block is in a batch";
  if (places->placed[index])
    return "a block is in two places";
  places->placed[index] = 1;
  return NULL;
}

static const char *check_batch(const struct small_check *check, const struct batch *batch, unsigned class) {
  if (batch->count > SLAB_BATCH)
    return "a batch has too many blocks";
  for (unsigned i = 0; i < batch->count; i++)
    CHECK(check_batch_block(check, &batch->blocks[i], class));
  return NULL;
}

/* A list of resting batches, its count, and its end. */
static const char *check_resting(const struct small_check *check, const struct batch *const *first,
                                 struct batch *const *end, unsigned count, unsigned class) {
  const struct batch *const *link = first;
  unsigned found = 0;
  for (; *link != NULL; link = (const struct batch *const *)&(*link)->next, found++) {
    if (found >= count)
      return "more batches rest than were counted";
    if ((*link)->epoch > reuse_epoch(check->pool->reuse))
      return "a batch rests for an epoch to come";
    CHECK(check_batch(check, *link, class));
  }
  if (found < count)
    return "fewer batches rest than were counted";
  return link == (const struct batch *const *)end ? NULL : "a list of resting batches does not end at its end";
}

static const char *check_magazine(const struct small_check *check, const struct magazine *magazine, unsigned class) {
  if (!batch_real(magazine->loaded) && magazine->loaded != &magazine_nothing)
    return "a magazine has nothing loaded, not even what stands in for it";
  if (!batch_real(magazine->filling) && magazine->filling != &magazine_no_room)
    return "a magazine fills nothing, not even what stands in for it";
  for (const struct batch *shell = magazine->shells; shell != NULL; shell = shell->next)
    if (shell->count != 0)
      return "a magazine's shell is not empty";
  CHECK(check_batch(check, magazine->loaded, class));
  if (batch_real(magazine->filling))
    CHECK(check_batch(check, magazine->filling, class));
  return check_resting(check, (const struct batch *const *)&magazine->resting, magazine->resting_end,
                       magazine->resting_count, class);
}

static const char *check_lanes(const struct small_check *check, const struct front *front, unsigned class) {
  for (const struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++) {
    if (lane->mark == LANE_NONE && (lane->loaded[class] != NULL || lane->second[class] != NULL))
      return "a lane without a stream has blocks";
    if (lane->mark > front->lane_marks)
      return "a lane has a mark that was never given";
    for (const struct lane *other = front->lanes; other < lane; other++)
      if (lane->mark != LANE_NONE && (other->mark == lane->mark || context_stream_same(other->stream, lane->stream)))
        return "two lanes have one stream";
    if (lane->loaded[class] != NULL)
      CHECK(check_batch(check, lane->loaded[class], class));
    if (lane->second[class] != NULL)
      CHECK(check_batch(check, lane->second[class], class));
  }
  return NULL;
}

/* Those with blocks inside come first. */
static const char *check_depot_order(const struct depot *depot) {
  const struct slab *slab;
  unsigned count = 0;
  bool out = false;
  TAILQ_FOREACH(slab, &depot->slabs, link) {
    if (out && slab->inside_count > 0)
      return "a slab with blocks comes after one without";
    out = slab->inside_count == 0;
    count++;
  }
  return count == atomic_load_explicit(&depot->slab_count, memory_order_relaxed) ? NULL
                                                                                 : "a depot's count of slabs is wrong";
}

static const char *check_class(struct small_check *check, unsigned class) {
  const struct fronts *fronts = check->pool->fronts;
  const struct depot *depot = &fronts->depots[class];
  const struct slab *slab;
  CHECK(check_depot_order(depot));
  TAILQ_FOREACH(slab, &depot->slabs, link)
  CHECK(check_slab(check, slab_find(check, slab->base), class));
  CHECK(check_resting(check, (const struct batch *const *)&depot->first, depot->last, depot->batch_count, class));
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
    CHECK(check_magazine(check, &front->magazines[class], class));
    CHECK(check_lanes(check, front, class));
  }
  return NULL;
}

/* What the fronts have counted is what the live bytes say.  The codes of threads that ended are in no sum. */
static const char *check_small_sums(const struct small_check *check) {
  const struct pool_front_sum *gone = &check->pool->fronts->gone;
  size_t count = gone->live_small_count, bytes = gone->live_small_bytes;
  int64_t codes = 0;
  for (const struct front *front = check->pool->fronts->first; front != NULL; front = front->next_of_pool)
    for (unsigned i = 0; i < SLAB_CLASSES; i++) {
      size_t live = magazine_mallocs(&front->magazines[i]) - magazine_frees(&front->magazines[i]);
      count += live;
      bytes += live * slab_class_bytes(i);
      codes += front->magazines[i].codes;
    }
  if (count != check->live_count)
    return "the fronts' counts of small blocks do not add up to the live ones";
  if (bytes != check->live_bytes)
    return "the fronts' counts of small blocks are of other classes";
  bool all_there = gone->hits[FRONT_HIT_MAGAZINE] == 0 && gone->frees == 0;
  return !all_there || codes == check->codes ? NULL : "the magazines' codes do not add up to the live bytes";
}

static const char *check_all_placed(const struct small_check *check) {
  for (size_t i = 0; i < check->slab_count; i++)
    for (uint32_t j = 0; j < check->slabs[i].slab->block_count; j++)
      if (!check->slabs[i].placed[j])
        return "a block is in no place";
  return NULL;
}

/* Finds all slabs.  False if the host has no memory. */
static bool small_begin(struct small_check *check, struct mam_pool *pool) {
  const struct slab *slab;
  size_t count = 0;
  *check = (struct small_check){.pool = pool};
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    TAILQ_FOREACH(slab, &pool->fronts->depots[i].slabs, link) count++;
  check->slabs = calloc(count + 1, sizeof *check->slabs);
  if (check->slabs == NULL)
    return false;
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    TAILQ_FOREACH(slab, &pool->fronts->depots[i].slabs, link) {
      unsigned char *placed = calloc(SLAB_BLOCKS_MOST, 1);
      if (placed == NULL)
        return false;
      check->slabs[check->slab_count++] = (struct slab_places){.slab = slab, .placed = placed};
    }
  qsort(check->slabs, check->slab_count, sizeof *check->slabs, slab_compare);
  return true;
}

static void small_end(struct small_check *check) {
  for (size_t i = 0; i < check->slab_count; i++)
    free(check->slabs[i].placed);
  free(check->slabs);
}

static const char *check_small(struct small_check *check, bool still) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    CHECK(check_class(check, i));
  CHECK(check_small_sums(check));
  return still ? check_all_placed(check) : NULL;
}

/* ---- Large blocks ---- */

static const char *check_freed_block(struct front *front, const struct freed_block *block, uint64_t *epoch) {
  const struct segment *segment = block->segment;
  uint64_t ticket = atomic_load_explicit(&segment->ticket, memory_order_relaxed);
  if (segment->state != SEGMENT_USED || segment->base != block->address)
    return "a freed block of a front is no block of the pool";
  if (ticket % 2 != 0)
    return "a live block is on a shelf";
  if (ticket == 0)
    return "a front has a freed block that was never handed out";
  if (block->places != owned_pair(front->owned, block->address))
    return "a freed block has another block's places";
  if (block_lane(block) > front->lane_marks)
    return "a freed block is of a lane that never was";
  if (block->epoch < *epoch)
    return "a shelf is not oldest first";
  *epoch = block->epoch;
  return *epoch <= reuse_epoch(front->reuse) ? NULL : "a freed block waits for an epoch to come";
}

static const char *check_shelf_fits(const struct front *front, const struct shelf *shelf,
                                    const struct segment *segment) {
  bool is_bin = shelf >= front->bins.ranges;
  if (is_bin)
    return bin_index(segment->bytes) == (size_t)(shelf - front->bins.ranges) ? NULL : "a block is in another's bin";
  if (shelf->tag != NULL)
    return segment->as.used.tag == shelf->tag ? NULL : "a block is on the shelf of another tag";
  return segment->bytes == shelf->bytes ? NULL : "a block is on the shelf of another size";
}

static const char *check_shelf(struct front *front, const struct shelf *shelf, size_t *count) {
  uint64_t epoch = 0;
  if (shelf->oldest < shelf->ring || shelf->oldest >= shelf->end || shelf->next < shelf->ring ||
      shelf->next >= shelf->end)
    return "a shelf's ring is left";
  for (struct freed_block *block = shelf->oldest; block != shelf->next; block = ring_after(shelf, block)) {
    CHECK(check_freed_block(front, block, &epoch));
    CHECK(check_shelf_fits(front, shelf, block->segment));
    (*count)++;
  }
  return NULL;
}

static const char *check_limbo(struct front *front, size_t *count) {
  uint64_t epoch = 0;
  if (front->limbo.count > LIMBO_BLOCKS || front->limbo.first >= LIMBO_BLOCKS)
    return "limbo's ring is left";
  for (unsigned i = 0; i < front->limbo.count; i++)
    CHECK(check_freed_block(front, limbo_at(&front->limbo, i), &epoch));
  *count += front->limbo.count;
  return NULL;
}

/* An entry with the ticket of its segment is about a block of the pool.  Others are out of date. */
static const char *check_owned(struct front *front, const struct owned *owned) {
  if (owned->address == 0)
    return owned->segment == NULL ? NULL : "an owned block has no address";
  size_t pair = (size_t)(owned - front->owned) & ~(size_t)1;
  if (owned_pair(front->owned, owned->address) != &front->owned[pair])
    return "an owned block is in another's places";
  bool on_shelf = owned->shelf >= front->shelves && owned->shelf < front->shelves + SHELVES;
  if (!on_shelf && !(owned->shelf >= front->bins.ranges && owned->shelf < front->bins.ranges + BINS))
    return "an owned block is for no shelf of its front";
  if (owned->ticket == OWNED_FREED ||
      atomic_load_explicit(&owned->segment->ticket, memory_order_relaxed) != owned->ticket)
    return NULL;
  return owned->segment->state == SEGMENT_USED && owned->segment->base == owned->address
             ? NULL
             : "an owned block is no block of the pool";
}

/* One front's freed blocks are added to count. */
static const char *check_front_large(struct front *front, size_t *count) {
  const struct shelf *shelf;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    CHECK(check_shelf(front, shelf, count));
  CHECK(check_limbo(front, count));
  for (size_t i = 0; i < sizeof front->owned / sizeof front->owned[0]; i++)
    CHECK(check_owned(front, &front->owned[i]));
  return NULL;
}

static int segment_compare(const void *a, const void *b) {
  uintptr_t segment_a = (uintptr_t) * (struct segment *const *)a, segment_b = (uintptr_t) * (struct segment *const *)b;
  return (segment_a > segment_b) - (segment_a < segment_b);
}

/* Of all fronts, in a row.  How many there are. */
static size_t freed_segments(const struct fronts *fronts, const struct segment **segments) {
  const struct shelf *shelf;
  size_t count = 0;
  for (struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
    for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
      for (struct freed_block *block = shelf->oldest; block != shelf->next; block = ring_after(shelf, block))
        segments[count++] = block->segment;
    for (unsigned i = 0; i < front->limbo.count; i++)
      segments[count++] = limbo_at(&front->limbo, i)->segment;
  }
  return count;
}

/* No block is freed twice. */
static const char *check_freed_once(const struct fronts *fronts, size_t count) {
  const struct segment **segments = calloc(count + 1, sizeof *segments);
  const char *fault = NULL;
  if (segments == NULL)
    return NULL;
  qsort(segments, freed_segments(fronts, segments), sizeof *segments, segment_compare);
  for (size_t i = 1; i < count; i++)
    if (segments[i] == segments[i - 1])
      fault = "a freed block is in two places";
  free(segments);
  return fault;
}

/* Used segments are live blocks, freed blocks of fronts, or slabs; others are on their way. */
static const char *check_used_segments(struct mam_pool *pool, const struct small_check *small, size_t freed,
                                       bool still) {
  size_t live = 0, others = 0;
  struct segment *segment = segment_first(&pool->segments);
  for (; segment != NULL; segment = segment_next(segment))
    if (segment->state == SEGMENT_USED) {
      bool odd = atomic_load_explicit(&segment->ticket, memory_order_relaxed) % 2 != 0;
      live += odd;
      others += !odd;
    }
  if (others < freed + small->slab_count)
    return "fronts and slabs have more segments than the pool";
  if (still && others > freed + small->slab_count)
    return "a segment is neither live nor a front's nor a slab's";
  if (still && !pool->fronts->shared && fronts_live(pool->fronts) != (int64_t)(live + small->live_count))
    return "the fronts' counts do not add up to the live blocks";
  return NULL;
}

/* The pool's lock is held: other threads may free blocks through the pool. */
static const char *check_large_locked(struct mam_pool *pool, const struct small_check *small, bool still) {
  lock_held(&pool->lock);
  size_t freed = 0;
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    CHECK(check_front_large(front, &freed));
  CHECK(check_freed_once(pool->fronts, freed));
  return check_used_segments(pool, small, freed, still);
}

/* ---- All ---- */

const char *front_check_frozen(struct mam_pool *pool, bool still) {
  struct small_check small;
  const char *fault = NULL;
  if (small_begin(&small, pool)) {
    pool_lock(pool);
    if (pool->state == POOL_OPEN) {
      fault = check_small(&small, still);
      if (fault == NULL)
        fault = check_large_locked(pool, &small, still);
    }
    pthread_mutex_unlock(&pool->lock); /* pool_unlock would check the pool as well */
  }
  small_end(&small);
  return fault;
}

const char *front_check(struct mam_pool *pool, bool still) {
  if (pool->fronts == NULL)
    return NULL;
  fronts_freeze_all(pool);
  const char *fault = front_check_frozen(pool, still);
  fronts_thaw_all(pool);
  return fault;
}
