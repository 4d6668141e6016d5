/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/front_check.h"

#include "base/locked.h"
#include "front/front_inside.h"
#include "pool/pool_inside.h"

/* What was found so far.  While the fronts, the depots and the pool are held still, the checker marks the blocks that
 * fronts and depots have, by what no other thread then looks at, unless it asks for the size of a freed block: a small
 * one by its live byte, the segment of a large one by its state (SEGMENT_STATES).  Later walks, through all slabs and
 * all segments, take the marks away. */
struct check {
  struct mam_pool *pool;
  bool still;
  const char *fault;                         /* the first; NULL: none */
  size_t live_count, live_bytes, slab_count; /* of slabs */
  int64_t codes;                             /* the sum of what the live bytes hold */
};

enum { MARK_CODE = UINT8_MAX };
_Static_assert(128 < MARK_CODE, "no block has that code (slab_code)");

static bool expect(struct check *check, bool holds, const char *fault) {
  return fault_unless(&check->fault, holds, fault);
}

/* ---- Small blocks ---- */

/* relaxed, here and below: the fronts and depots are frozen */
static uint8_t code_of(_Atomic uint8_t *live) { return atomic_load_explicit(live, memory_order_relaxed); }
static void code_set(_Atomic uint8_t *live, uint8_t code) { atomic_store_explicit(live, code, memory_order_relaxed); }

/* A slab's bits and live bytes, after all batches. */
static void check_slab(struct check *check, const struct slab *slab, unsigned class) {
  uint32_t inside_count = 0;
  expect(check, slab->class == class && atomic_load_explicit(&slab->pool, memory_order_relaxed) == check->pool,
         "a depot has a slab of another class or pool");
  expect(check, page_map_find(slab->base) == slab, "the page map does not know a slab");
  for (uint32_t i = 0; i < slab->block_count; i += 64)
    inside_count += (uint32_t)__builtin_popcountl(slab->inside[i / 64]);
  expect(check, inside_count == slab->inside_count, "a slab's count of blocks inside is wrong");
  for (uint32_t i = 0; i < slab->block_count; i++) {
    bool inside = (slab->inside[i / 64] >> i % 64 & 1) != 0;
    uint8_t code = code_of(slab_live(slab, i));
    expect(check, !check->still || inside || code != 0, "a block is in no place");
    if (code == MARK_CODE)
      code_set(slab_live(slab, i), 0);
    if (inside || code == MARK_CODE) {
      expect(check, code == 0 || code == MARK_CODE, "a live block is inside its slab");
      expect(check, !inside || code == 0, "a block is in two places");
    } else if (code != 0) {
      check->live_count++;
      check->live_bytes += slab_class_bytes(class);
      check->codes += code;
    }
  }
  check->slab_count++;
}

/* A block of a batch is in no other place. */
static void check_batch_block(struct check *check, const struct slab_block *block, unsigned class) {
  const struct slab *slab = page_map_find(block->address);
  bool ours = slab != NULL && atomic_load_explicit(&slab->pool, memory_order_relaxed) == check->pool;
  uint32_t index = ours ? slab_index(slab, block->address) : UINT32_MAX;
  if (!expect(check, index != UINT32_MAX, "a batch has what is no block of the pool's slabs") ||
      !expect(check, slab->class == class, "a batch has a block of another class") ||
      !expect(check, block->live == slab_live(slab, index), "a batch's block does not know its live byte"))
    return;
  uint8_t code = code_of(block->live);
  expect(check, code != MARK_CODE, "a block is in two places");
  if (expect(check, code == 0 || code == MARK_CODE, "a live block is in a batch"))
    code_set(block->live, MARK_CODE);
}

static void check_batch(struct check *check, const struct batch *batch, unsigned class) {
  if (batch != NULL && expect(check, batch->count <= SLAB_BATCH, "a batch has too many blocks"))
    for (unsigned i = 0; i < batch->count; i++)
      check_batch_block(check, &batch->blocks[i], class);
}

/* A list of resting batches, its count, and its end. */
static void check_resting(struct check *check, struct batch *const *link, struct batch *const *end, unsigned count,
                          unsigned class) {
  for (; *link != NULL && expect(check, count > 0, "more batches rest than were counted"); count--) {
    expect(check, (*link)->epoch <= reuse_epoch(check->pool->reuse), "a batch rests for an epoch to come");
    check_batch(check, *link, class);
    link = &(*link)->next;
  }
  expect(check, count == 0, "fewer batches rest than were counted");
  expect(check, link == end, "a list of resting batches does not end at its end");
}

static void check_magazine(struct check *check, const struct magazine *magazine, unsigned class) {
  expect(check, batch_real(magazine->loaded) || magazine->loaded == &magazine_nothing,
         "a magazine has nothing loaded, not even what stands in for it");
  expect(check, batch_real(magazine->filling) || magazine->filling == &magazine_no_room,
         "a magazine fills nothing, not even what stands in for it");
  for (const struct batch *shell = magazine->shells; shell != NULL; shell = shell->next)
    expect(check, shell->count == 0, "a magazine's shell is not empty");
  check_batch(check, magazine->loaded, class);
  check_batch(check, batch_real(magazine->filling) ? magazine->filling : NULL, class);
  check_resting(check, &magazine->resting, magazine->resting_end, magazine->resting_count, class);
}

static void check_lanes(struct check *check, const struct front *front, unsigned class) {
  for (const struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++) {
    struct batch *const *batches = lane->batches.of_class[class];
    expect(check, lane->mark != LANE_NONE || (batches[0] == NULL && batches[1] == NULL),
           "a lane without a stream has blocks");
    expect(check, lane->mark <= front->lane_marks, "a lane has a mark that was never given");
    for (const struct lane *other = front->lanes; other < lane && lane->mark != LANE_NONE; other++)
      expect(check, other->mark != lane->mark && !context_stream_same(other->stream, lane->stream),
             "two lanes have one stream");
    check_batch(check, batches[0], class);
    check_batch(check, batches[1], class);
  }
}

static void check_class(struct check *check, unsigned class) {
  const struct fronts *fronts = check->pool->fronts;
  const struct depot *depot = &fronts->depots[class];
  const struct slab *slab;
  unsigned count = 0;
  bool out = false;
  check_resting(check, &depot->first, depot->last, depot->batch_count, class);
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
    check_magazine(check, &front->magazines[class], class);
    check_lanes(check, front, class);
  }
  TAILQ_FOREACH(slab, &depot->slabs, link) {
    expect(check, !out || slab->inside_count == 0, "a slab with blocks comes after one without");
    out = slab->inside_count == 0;
    count++;
    check_slab(check, slab, class);
  }
  expect(check, count == atomic_load_explicit(&depot->slab_count, memory_order_relaxed),
         "a depot's count of slabs is wrong");
}

/* What the fronts have counted is what the live bytes say.  The codes of threads that ended are in no sum. */
static void check_small_sums(struct check *check) {
  const struct fronts *fronts = check->pool->fronts;
  const struct pool_front_sum *gone = &fronts->gone;
  size_t count = 0, bytes = 0;
  int64_t codes = 0;
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    int64_t live = fronts->gone_live[i];
    for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
      live += magazine_live(&front->magazines[i]);
      codes += front->magazines[i].codes;
    }
    count += (size_t)live;
    bytes += (size_t)live * slab_class_bytes(i);
  }
  expect(check, count == check->live_count, "the fronts' counts of small blocks do not add up to the live ones");
  expect(check, bytes == check->live_bytes, "the fronts' counts of small blocks are of other classes");
  expect(check, gone->hits[FRONT_HIT_MAGAZINE] != 0 || gone->frees != 0 || codes == check->codes,
         "the magazines' codes do not add up to the live bytes");
}

/* ---- Large blocks ---- */

static void check_fits(struct check *check, const struct front *front, const struct shelf *shelf,
                       const struct segment *segment) {
  if (shelf >= front->bins.ranges)
    expect(check, bin_index(segment->bytes) == (size_t)(shelf - front->bins.ranges), "a block is in another's bin");
  else if (shelf->tag != NULL)
    expect(check, segment->as.used.tag == shelf->tag, "a block is on the shelf of another tag");
  else
    expect(check, segment->bytes == shelf->bytes, "a block is on the shelf of another size");
}

static void check_freed_block(struct check *check, struct front *front, const struct freed_block *block) {
  struct segment *segment = block->segment;
  uint64_t ticket = atomic_load_explicit(&segment->ticket, memory_order_relaxed);
  if (!expect(check, segment->state != SEGMENT_STATES, "a freed block is in two places") ||
      !expect(check, segment->state == SEGMENT_USED && segment->base == block->address,
              "a freed block of a front is no block of the pool"))
    return;
  segment->state = SEGMENT_STATES;
  expect(check, ticket % 2 == 0, "a live block is on a shelf");
  expect(check, ticket != 0, "a front has a freed block that was never handed out");
  expect(check, block->places == owned_pair(front->owned, block->address), "a freed block has another block's places");
  expect(check, block_lane(block) <= front->lane_marks, "a freed block is of a lane that never was");
  expect(check, block->epoch <= reuse_epoch(front->reuse), "a freed block waits for an epoch to come");
}

static void check_shelf(struct check *check, struct front *front, const struct shelf *shelf) {
  uint64_t epoch = 0;
  if (!expect(check,
              shelf->oldest >= shelf->ring && shelf->oldest < shelf->end && shelf->next >= shelf->ring &&
                  shelf->next < shelf->end,
              "a shelf's ring is left"))
    return;
  for (struct freed_block *block = shelf->oldest; block != shelf->next; block = ring_after(shelf, block)) {
    check_freed_block(check, front, block);
    check_fits(check, front, shelf, block->segment);
    expect(check, block->epoch >= epoch, "a shelf is not oldest first");
    epoch = block->epoch;
  }
}

/* An entry with the ticket of its segment is about a block of the pool.  Others are out of date. */
static void check_owned(struct check *check, struct front *front, const struct owned *owned) {
  if (owned->address == 0) {
    expect(check, owned->segment == NULL, "an owned block has no address");
    return;
  }
  size_t pair = (size_t)(owned - front->owned) & ~(size_t)1;
  bool on_shelf = owned->shelf >= front->shelves && owned->shelf < front->shelves + FRONT_SHELVES;
  expect(check, owned_pair(front->owned, owned->address) == &front->owned[pair],
         "an owned block is in another's places");
  expect(check, on_shelf, "an owned block is for no shelf of its front");
  if (owned->ticket != OWNED_FREED &&
      atomic_load_explicit(&owned->segment->ticket, memory_order_relaxed) == owned->ticket)
    expect(check, owned->segment->state == SEGMENT_USED && owned->segment->base == owned->address,
           "an owned block is no block of the pool");
}

static void check_front_large(struct check *check, struct front *front) {
  for (const struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    check_shelf(check, front, shelf);
  for (size_t i = 0; i < sizeof front->owned / sizeof front->owned[0]; i++)
    check_owned(check, front, &front->owned[i]);
}

/* Used segments are live blocks, freed blocks of fronts, or slabs; others are on their way. */
static void check_used_segments(struct check *check) {
  size_t live_bytes = 0, others = 0;
  struct segment *segment = segment_first(&check->pool->segments);
  for (; segment != NULL; segment = segment_next(segment))
    if (segment->state == SEGMENT_STATES) {
      segment->state = SEGMENT_USED;
    } else if (segment->state == SEGMENT_USED) {
      bool odd = atomic_load_explicit(&segment->ticket, memory_order_relaxed) % 2 != 0;
      live_bytes += odd ? segment->bytes : 0;
      others += !odd;
    }
  expect(check, others >= check->slab_count, "slabs have more segments than the pool");
  if (!check->still)
    return;
  expect(check, others == check->slab_count, "a segment is neither live nor a front's nor a slab's");
  expect(check, fronts_live_bytes(check->pool->fronts) == (int64_t)(live_bytes + check->live_bytes),
         "the threads' balances do not add up to the live blocks");
}

/* ---- All ---- */

const char *front_check_locked(struct mam_pool *pool, bool still) {
  struct check check = {.pool = pool, .still = still};
  lock_held(&pool->lock);
  if (pool->state == POOL_OPEN) {
    for (unsigned i = 0; i < SLAB_CLASSES; i++)
      check_class(&check, i);
    check_small_sums(&check);
    for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
      check_front_large(&check, front);
    check_used_segments(&check);
  }
  return check.fault;
}

const char *front_check_frozen(struct mam_pool *pool, bool still) {
  pool_lock(pool); /* other threads may free blocks through the pool */
  const char *fault = front_check_locked(pool, still);
  pthread_mutex_unlock(&pool->lock); /* pool_unlock would check the pool as well */
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
