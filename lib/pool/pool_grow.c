/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The source's memory in a pool: its chunks, growth, and giving back.
 *
 * A pool is of one of two kinds.  One takes whole chunks from its source, and gives whole chunks back.  An elastic one
 * has a single chunk, a range of reserved addresses, and maps memory under parts of it (pieces) as needed.  A mapping
 * can only be taken away as a whole, so the chunk remembers where each piece begins.
 */
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* ---- Numbers that change ---- */

static void held_change_locked(struct mam_pool *pool, size_t change) {
  lock_held(&pool->lock);
  pool->held_bytes += change;
}

cudaError_t pool_await_change_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->users++;
  pthread_cond_wait(&pool->changed, &pool->lock);
  if (--pool->users == 0) /* only pool_finish may wait for that; waiters that woke each other would never rest */
    pthread_cond_broadcast(&pool->changed);
  return cudaSuccess;
}

/* What changes what is held is over. */
static void growing_end_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->growing = false;
  pool_peak_reserved_locked(pool);
  /* relaxed: a hint, written under the lock */
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed);
  atomic_store_explicit(&pool->growths, growths + 1, memory_order_relaxed);
}

/* ---- Chunks ---- */

static void chunk_free(struct pool_chunk *chunk) {
  free(chunk->pieces);
  free(chunk);
}

/* A chunk's description; of a reserved one with room for its pieces.  NULL if the host has no memory. */
static struct pool_chunk *chunk_new(uintptr_t base, size_t bytes, bool reserved) {
  struct pool_chunk *chunk = malloc(sizeof *chunk);
  if (chunk == NULL)
    return NULL;
  *chunk = (struct pool_chunk){.base = base, .bytes = bytes};
  if (reserved && (chunk->pieces = calloc(bytes / SOURCE_GRANULARITY_BYTES, sizeof *chunk->pieces)) == NULL) {
    free(chunk);
    return NULL;
  }
  return chunk;
}

/* What is left free at the beginning of a chunk of so many bytes.  One of a single large block has a whole granule, so
 * that the block is aligned as the chunk is. */
static size_t guard_bytes(const struct mam_pool *pool, size_t bytes) {
  if (!pool->config.guarded)
    return 0;
  bool large = whole_units(bytes) > whole_units(pool->config.chunk_bytes);
  return large ? SOURCE_GRANULARITY_BYTES : pool->config.alignment;
}

/* Puts a chunk's usable part into the trees.  The lock is held. */
static bool chunk_enter_locked(struct mam_pool *pool, struct pool_chunk *chunk) {
  lock_held(&pool->lock);
  size_t alignment = pool->config.alignment;
  uintptr_t first = round_up(chunk->base + guard_bytes(pool, chunk->bytes), alignment);
  uintptr_t end = (chunk->base + chunk->bytes) & ~(uintptr_t)(alignment - 1);
  chunk->first = first;
  chunk->usable_bytes = end > first ? end - first : 0;
  if (chunk->usable_bytes == 0)
    return false;
  if (!(chunk->pieces != NULL ? segment_add_reserved : segment_add_chunk)(&pool->segments, first, chunk->usable_bytes))
    return false;
  SLIST_INSERT_HEAD(&pool->chunks, chunk, link);
  held_change_locked(pool, chunk->pieces != NULL ? 0 : chunk->bytes);
  return true;
}

/* Makes a chunk that the source gave the pool's own.  The lock is not held.  On failure the chunk is still loose. */
static cudaError_t chunk_attach(struct mam_pool *pool, uintptr_t base, size_t bytes, bool reserved) {
  struct mam_pool *other;
  struct pool_chunk *chunk = chunk_new(base, bytes, reserved);
  if (chunk == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a chunk");
  enum chunk_map_result result;
  while ((result = chunk_map_add(base, bytes, pool, &other)) == CHUNK_MAP_OVERLAP && other != pool)
    pool_abandon(other);
  if (result != CHUNK_MAP_OK) {
    chunk_free(chunk);
    if (result == CHUNK_MAP_NO_MEMORY)
      return error_set(cudaErrorMemoryAllocation, "no host memory for a chunk");
    return error_set(cudaErrorUnknown, "the source gave the memory at %p twice", (void *)base);
  }
  pool_lock(pool);
  bool entered = chunk_enter_locked(pool, chunk);
  pool_unlock(pool);
  if (entered)
    return cudaSuccess;
  chunk_map_remove(base);
  chunk_free(chunk);
  return error_set(cudaErrorMemoryAllocation, "a chunk of %zu bytes at %p does not hold a segment", bytes,
                   (void *)base);
}

/* The same; on failure the source has its chunk back. */
static cudaError_t chunk_adopt(struct mam_pool *pool, uintptr_t base, size_t bytes) {
  cudaError_t error = chunk_attach(pool, base, bytes, false);
  if (error != cudaSuccess)
    (void)pool->source.operations->chunk_give(&pool->source, base, bytes);
  return error;
}

/* Takes a chunk of at least need bytes, of want if the source has that much.  The lock is not held. */
static cudaError_t chunk_take(struct mam_pool *pool, size_t want, size_t need) {
  const struct source *source = &pool->source;
  uintptr_t base;
  size_t bytes = want;
  cudaError_t error = source->operations->chunk_take(source, bytes, &base);
  if (error == cudaErrorMemoryAllocation && need < want) {
    bytes = need;
    error = source->operations->chunk_take(source, bytes, &base);
  }
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes) : error;
}

static cudaError_t first_chunk(struct mam_pool *pool) {
  const struct source *source = &pool->source;
  size_t bytes = pool->config.chunk_bytes;
  uintptr_t base;
  if (pool->config.in_chunks)
    return cudaSuccess;
  if (pool->config.user_limit_bytes > 0 && bytes > pool->config.user_limit_bytes) /* a client's */
    bytes = pool->config.user_limit_bytes;
  if (bytes > 0)
    return chunk_take(pool, bytes, bytes);
  size_t limit_bytes = pool->config.limit_bytes > 0 ? pool->config.limit_bytes : SIZE_MAX;
  if (pool->config.user_limit_bytes > 0 && pool->config.user_limit_bytes < limit_bytes)
    limit_bytes = pool->config.user_limit_bytes;
  cudaError_t error = source_take_largest(source, pool->config.headroom_bytes, limit_bytes, &base, &bytes);
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes) : error;
}

/* A pool that grows by chunks takes at least this part of what it holds: places in the chunk map are few. */
enum { CHUNK_SHARE = 32 };

/* How much to ask the source for, for a block of bytes: *need at least, *want if it can be.  False if the limit leaves
 * no room. */
static bool growth_plan(const struct mam_pool *pool, size_t bytes, size_t *want, size_t *need) {
  size_t room = (pool->limit_bytes - pool->held_bytes) & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
  /* Sources align to 512 at least; beyond that, the chunk's ends may be lost. */
  size_t slack = pool->config.alignment > POOL_ALIGNMENT_BYTES ? pool->config.alignment : 0;
  slack += guard_bytes(pool, bytes + pool->config.alignment);
  if (room < slack || bytes > room - slack)
    return false;
  *need = round_up(bytes + slack, SOURCE_GRANULARITY_BYTES);
  *want = pool->config.chunk_bytes;
  if (pool->config.in_chunks && *want < pool->held_bytes / CHUNK_SHARE)
    *want = whole_units(pool->held_bytes / CHUNK_SHARE);
  if (*want < *need)
    *want = *need;
  if (*want > room)
    *want = room;
  return true;
}

/* Takes a further chunk.  *asked: whether the source was. */
static cudaError_t chunk_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  size_t want, need;
  if (!growth_plan(pool, bytes, &want, &need))
    return cudaErrorMemoryAllocation;
  *asked = true;
  pool_step_out(pool);
  cudaError_t error = chunk_take(pool, want, need);
  pool_step_in(pool);
  return error;
}

/* ---- Pieces: the mapped parts of a reserved chunk ---- */

/* A growth maps several pieces rather than one, so that what is free later lies in some of them as a whole and can be
 * given back.  But not many: each costs the driver a few KiB of host memory (H200), which small blocks notice, and some
 * 40 us, 70 beside a running kernel, however large it is.  A training-like trace took 1.017 of its peak with these, as
 * with twice as many of half the size, and 1.03 with a quarter.  So one it is while the GPU lags behind: then the pool
 * grows because what was freed cannot be used yet, and other threads wait for it. */
enum { PIECES_FEW = 2, PIECES_MOST = 32, PIECES_FEW_BYTES = 32 << 20, PIECE_LEAST_BYTES = 8 << 20 };

static size_t piece_bytes_for(const struct mam_pool *pool, size_t bytes) {
  bool large = bytes > PIECES_FEW_BYTES;
  size_t most = reuse_lags(pool->reuse) ? 1 : large ? PIECES_MOST : PIECES_FEW;
  size_t piece = large ? PIECE_LEAST_BYTES : SOURCE_GRANULARITY_BYTES;
  while (piece < bytes / most + (bytes % most != 0))
    piece *= 2;
  return piece;
}

static uint32_t *piece_at(const struct pool_chunk *chunk, uintptr_t address) {
  return &chunk->pieces[(address - chunk->base) / SOURCE_GRANULARITY_BYTES];
}

static size_t piece_bytes(uint32_t piece) { return (size_t)piece * SOURCE_GRANULARITY_BYTES; }

/* Maps a range in pieces.  On failure nothing changed.  The lock is not held. */
static cudaError_t pieces_map(const struct source *source, uintptr_t base, size_t bytes, size_t piece) {
  size_t done = 0;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && done < bytes) {
    size_t next = bytes - done < piece ? bytes - done : piece;
    error = source->operations->map(source, base + done, next);
    if (error == cudaSuccess)
      done += next;
  }
  if (error == cudaSuccess && source->operations->access != NULL)
    error = source->operations->access(source, base, bytes);
  for (size_t at = 0; error != cudaSuccess && at < done; at += piece)
    (void)source->operations->unmap(source, base + at, done - at < piece ? done - at : piece);
  return error;
}

/* Remembers the pieces of a range that was mapped. */
static void pieces_note_locked(const struct mam_pool *pool, const struct pool_chunk *chunk, uintptr_t base,
                               size_t bytes, size_t piece) {
  lock_held(&pool->lock);
  for (size_t at = 0; at < bytes; at += piece)
    *piece_at(chunk, base + at) = (uint32_t)((bytes - at < piece ? bytes - at : piece) / SOURCE_GRANULARITY_BYTES);
}

/* Where to look for pieces from, downwards: the end of what has memory. */
static uintptr_t pieces_end_locked(struct mam_pool *pool, const struct pool_chunk *chunk) {
  lock_held(&pool->lock);
  const struct segment *last = segment_at(&pool->segments, chunk->base + chunk->bytes - 1);
  return last != NULL && last->state == SEGMENT_UNMAPPED ? last->base : chunk->base + chunk->bytes;
}

/* The next piece below *end that lies wholly in a free segment, which is returned; *end becomes the piece's base.  NULL
 * if there is none. */
static struct segment *free_piece_below_locked(struct mam_pool *pool, const struct pool_chunk *chunk, uintptr_t *end) {
  lock_held(&pool->lock);
  for (uintptr_t base = *end; base > chunk->base;) {
    base -= SOURCE_GRANULARITY_BYTES;
    uint32_t piece = *piece_at(chunk, base);
    struct segment *segment = piece != 0 ? segment_at(&pool->segments, base) : NULL;
    if (segment != NULL && segment->state == SEGMENT_FREE &&
        base + piece_bytes(piece) <= segment->base + segment->bytes) {
      *end = base;
      return segment;
    }
  }
  return NULL;
}

/* ---- Giving back ---- */

/* Whether the GPU is known to be done with all free memory.  Under the immediate rule memory is free while a kernel
 * still may use it: to hand it out again is the program's word, to take it away would be a fault of the GPU. */
static bool free_is_passed_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  return pool->unfenced_epoch <= reuse_passed(pool->reuse);
}

/* The same, after asking for a fence if need be. */
static bool free_may_be_unmapped_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (free_is_passed_locked(pool))
    return true;
  uint64_t epoch = pool->unfenced_epoch;
  pool_step_out(pool);
  (void)reuse_reach(pool->reuse, epoch);
  pool_step_in(pool);
  return free_is_passed_locked(pool);
}

/* Unmaps the free piece at base.  What it covers is in no tree while the lock is left. */
static cudaError_t piece_give_locked(struct mam_pool *pool, const struct pool_chunk *chunk, struct segment *segment,
                                     uintptr_t base) {
  lock_held(&pool->lock);
  uint32_t piece = *piece_at(chunk, base);
  size_t bytes = piece_bytes(piece);
  struct segment *moving = segment_move(&pool->segments, segment, base, bytes);
  if (moving == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a segment");
  *piece_at(chunk, base) = 0;
  held_change_locked(pool, -bytes);
  pool_step_out(pool);
  cudaError_t error = pool->source.operations->unmap(&pool->source, base, bytes);
  pool_step_in(pool);
  if (error == cudaSuccess) {
    segment_moved_to_unmapped(&pool->segments, moving);
    return cudaSuccess;
  }
  *piece_at(chunk, base) = piece;
  held_change_locked(pool, bytes);
  segment_moved_to_free(&pool->segments, moving);
  return error;
}

static cudaError_t pieces_trim_locked(struct mam_pool *pool, size_t keep_bytes) {
  lock_held(&pool->lock);
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  struct segment *segment;
  cudaError_t error = cudaSuccess;
  uintptr_t end = pieces_end_locked(pool, chunk);
  if (pool->held_bytes <= keep_bytes || !free_may_be_unmapped_locked(pool))
    return cudaSuccess;
  while (error == cudaSuccess && pool->state == POOL_OPEN && pool->held_bytes > keep_bytes &&
         free_is_passed_locked(pool) && (segment = free_piece_below_locked(pool, chunk, &end)) != NULL)
    error = piece_give_locked(pool, chunk, segment, end);
  return error;
}

/* How much a trim could give back. */
static size_t trimmable_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  uintptr_t end = pieces_end_locked(pool, chunk);
  size_t bytes = 0;
  if (free_may_be_unmapped_locked(pool))
    while (free_piece_below_locked(pool, chunk, &end) != NULL)
      bytes += piece_bytes(*piece_at(chunk, end));
  return bytes;
}

/* A chunk that is free as a whole, and not the last one where that stays; NULL if there is none. */
static struct pool_chunk *free_chunk_locked(struct mam_pool *pool, struct segment **segment) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  if (chunk == NULL || (SLIST_NEXT(chunk, link) == NULL && !pool->config.gives_all))
    return NULL;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    *segment = segment_find(&pool->segments, chunk->first);
    if ((*segment)->state == SEGMENT_FREE && (*segment)->bytes == chunk->usable_bytes)
      break;
  }
  return chunk;
}

/* A free that is held up in a front may have taken a page for the pool's: none is after this, see slab.h. */
static void fronts_step_out(struct mam_pool *pool) {
  const struct pool_front *front = pool->config.front;
  if (front == NULL)
    return;
  front->freeze(pool);
  front->thaw(pool);
}

/* Out of the map before the source has it: from then on another pool may be given the same addresses. */
static cudaError_t chunk_give_locked(struct mam_pool *pool, struct pool_chunk *chunk, struct segment *segment) {
  lock_held(&pool->lock);
  segment_remove_chunk(&pool->segments, segment);
  SLIST_REMOVE(&pool->chunks, chunk, pool_chunk, link);
  held_change_locked(pool, -chunk->bytes);
  chunk_map_remove(chunk->base);
  pool_step_out(pool);
  fronts_step_out(pool);
  cudaError_t error = pool->source.operations->chunk_give(&pool->source, chunk->base, chunk->bytes);
  pool_step_in(pool);
  chunk_free(chunk);
  return error;
}

static cudaError_t chunks_trim_locked(struct mam_pool *pool, size_t keep_bytes) {
  lock_held(&pool->lock);
  struct segment *segment;
  struct pool_chunk *chunk;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && pool->state == POOL_OPEN && pool->held_bytes > keep_bytes &&
         (chunk = free_chunk_locked(pool, &segment)) != NULL)
    error = chunk_give_locked(pool, chunk, segment);
  return error;
}

/* Nobody grows or trims the pool at the moment. */
static cudaError_t trim_locked(struct mam_pool *pool, size_t keep_bytes) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  pool->growing = true;
  cudaError_t error = (pool->config.elastic ? pieces_trim_locked : chunks_trim_locked)(pool, keep_bytes);
  growing_end_locked(pool);
  if (pool->held_bytes < held_bytes)
    pool->refused_bytes = 0; /* the source has more than before */
  return error;
}

cudaError_t pool_trim(struct mam_pool *pool, uint64_t default_id, size_t keep_bytes) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess && pool->held_bytes > keep_bytes) {
    pool_collect_locked(pool);
    while (pool->growing)
      (void)pool_await_change_locked(pool);
    error = pool_expect_locked(pool, default_id);
    if (error == cudaSuccess)
      error = trim_locked(pool, keep_bytes);
  }
  pool_unlock(pool);
  return error;
}

/* Whether a chunk can go without a wait: the source waits for all that the GPU has to do. */
static bool gpu_is_idle(struct mam_pool *pool) {
  return pool->config.elastic || reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
}

cudaError_t pool_trim_calm(struct mam_pool *pool, uint64_t generation, size_t keep_bytes) {
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && pool->generation != generation)
    error = cudaErrorInvalidResourceHandle;
  if (error == cudaSuccess) {
    pool_step_out(pool);
    if (!gpu_is_idle(pool))
      error = (cudaError_t)CUDA_ERROR_NOT_READY;
    else
      error = pool_trim(pool, POOL_ANY_ID, keep_bytes);
    pool_step_in(pool);
  }
  pool_unlock(pool);
  return error;
}

bool pool_give_one_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  return !pool->growing && held_bytes > 0 && trim_locked(pool, held_bytes - 1) == cudaSuccess &&
         pool->held_bytes < held_bytes;
}

/* Has the other pools that draw on the same memory give back what is free in them.  Whether one did.  One that grows is
 * left alone: it may be waiting for this one.  No lock is held. */
static bool others_give_back(const struct mam_pool *pool) {
  bool given = false;
  for (struct mam_pool *other = pool_first(); other != NULL; other = other->next) {
    if (other == pool)
      continue;
    pool_lock(other);
    if (other->state == POOL_OPEN && !other->growing && other->source.context.driver == pool->source.context.driver) {
      pool_collect_locked(other);
      size_t held_bytes = other->held_bytes;
      if (other->state == POOL_OPEN && !other->growing)
        (void)trim_locked(other, 0);
      given = given || other->held_bytes < held_bytes;
    }
    pool_unlock(other);
  }
  return given;
}

/* ---- Growth of an elastic pool ---- */

/* An elastic pool reserves so many times the memory that there is.  With twice as much, however the mapped half is
 * scattered, as much again is left for a large block beside it; and addresses cost nothing: 2 us for 64 TiB. */
enum { RESERVE_TIMES = 2 };

/* A part of an unmapped segment. */
struct place {
  struct segment *unmapped;
  uintptr_t base;
  size_t bytes;
};

/* What is missing for a block of bytes beside a neighbour that may be free. */
static size_t missing_beside(const struct segment *neighbour, size_t bytes) {
  size_t there = neighbour != NULL && neighbour->state == SEGMENT_FREE ? neighbour->bytes : 0;
  return bytes > there ? round_up(bytes - there, SOURCE_GRANULARITY_BYTES) : SOURCE_GRANULARITY_BYTES;
}

/* The least part of an unmapped segment that makes room for a block of bytes, with what is free beside it.  False if
 * there is none. */
static bool place_within(struct segment *unmapped, size_t bytes, struct place *place) {
  const struct segment *before = segment_neighbour_before(unmapped), *after = segment_neighbour_after(unmapped);
  size_t above = missing_beside(before, bytes), below = missing_beside(after, bytes), room = unmapped->bytes;
  *place = (struct place){unmapped, unmapped->base, above};
  if (below < above && below <= room)
    *place = (struct place){unmapped, unmapped->base + room - below, below};
  else if (above > room && before != NULL && before->state == SEGMENT_FREE &&
           missing_beside(after, bytes - before->bytes) <= room)
    place->bytes = room; /* all of it, between the two */
  return place->bytes <= room;
}

/* The place that needs the least new memory; of those, the lowest. */
static bool place_find_locked(struct mam_pool *pool, size_t bytes, struct place *best) {
  lock_held(&pool->lock);
  struct segment *unmapped;
  struct place place;
  bool found = false;
  LIST_FOREACH(unmapped, &pool->segments.unmapped, as.unmapped) {
    if (!place_within(unmapped, bytes, &place))
      continue;
    if (!found || place.bytes < best->bytes || (place.bytes == best->bytes && place.base < best->base))
      *best = place;
    found = true;
  }
  return found;
}

/* Growth is by at least a 128th of what is held, for the sake of its costs; so that much may be held for nothing.  But
 * not by more than 32 MiB beyond what is needed: memory that the driver has not given out since it began costs it up to
 * 4 ms a GiB (H200). */
enum { GROWTH_SHARE = 128, GROWTH_MOST_BYTES = 32 << 20 };

/* Makes a place larger, as far as the limit and the unmapped segment allow. */
static void place_extend(const struct mam_pool *pool, struct place *place) {
  size_t want = whole_units(pool->held_bytes / GROWTH_SHARE), room = pool->limit_bytes - pool->held_bytes;
  uintptr_t end = place->base + place->bytes, unmapped_end = place->unmapped->base + place->unmapped->bytes;
  bool up = place->base == place->unmapped->base;
  want = want > GROWTH_MOST_BYTES ? GROWTH_MOST_BYTES : want;
  want = want < pool->config.chunk_bytes ? pool->config.chunk_bytes : want;
  want = want < place->bytes + pool->wanted_bytes ? place->bytes + whole_units(pool->wanted_bytes) : want;
  want = want > room ? room & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1) : want;
  size_t most = up ? unmapped_end - place->base : end - place->unmapped->base;
  want = want > most ? most : want;
  if (want <= place->bytes)
    return;
  place->bytes = want;
  if (!up)
    place->base = end - want;
}

/* Maps memory there, with the lock left. */
static cudaError_t place_fill_locked(struct mam_pool *pool, const struct place *place) {
  lock_held(&pool->lock);
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  struct segment *moving = segment_move(&pool->segments, place->unmapped, place->base, place->bytes);
  if (moving == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a segment");
  size_t piece = piece_bytes_for(pool, place->bytes);
  pool_step_out(pool);
  cudaError_t error = pieces_map(&pool->source, place->base, place->bytes, piece);
  pool_step_in(pool);
  if (error != cudaSuccess) {
    segment_moved_to_unmapped(&pool->segments, moving);
    return error;
  }
  pieces_note_locked(pool, chunk, place->base, place->bytes, piece);
  held_change_locked(pool, place->bytes);
  segment_moved_to_free(&pool->segments, moving);
  return cudaSuccess;
}

/* Maps what a block of bytes needs, or more (generous).  cudaErrorMemoryAllocation without *asked: the limit, or no
 * addresses. */
static cudaError_t elastic_try_locked(struct mam_pool *pool, size_t bytes, bool generous, bool *asked) {
  lock_held(&pool->lock);
  struct place place = {0};
  if (segment_largest_free(&pool->segments) >= bytes) /* the lock was left: somebody freed */
    return cudaSuccess;
  if (!place_find_locked(pool, bytes, &place) || place.bytes > pool->limit_bytes - pool->held_bytes)
    return cudaErrorMemoryAllocation;
  size_t need = place.bytes;
  if (generous)
    place_extend(pool, &place);
  *asked = true;
  cudaError_t error = place_fill_locked(pool, &place);
  if (error == cudaErrorMemoryAllocation && place.bytes > need)
    error = elastic_try_locked(pool, bytes, false, asked);
  return error;
}

/* Frees memory of the pool's own for a block of bytes elsewhere in its addresses: what is free in pieces that are too
 * small for the block.  False if that is not enough; then nothing changed. */
static bool own_pieces_give_locked(struct mam_pool *pool, size_t bytes, bool by_limit) {
  lock_held(&pool->lock);
  size_t need = round_up(bytes, SOURCE_GRANULARITY_BYTES);
  size_t aim = by_limit ? pool->limit_bytes : pool->held_bytes; /* what may be held in the end */
  if (need > aim || pool->held_bytes <= aim - need)
    return false;
  size_t keep_bytes = aim - need, excess = pool->held_bytes - keep_bytes;
  if (excess > pool->segments.bytes[SEGMENT_FREE] || excess > trimmable_bytes_locked(pool))
    return false;
  return pieces_trim_locked(pool, keep_bytes) == cudaSuccess && pool->held_bytes <= keep_bytes;
}

/* A pool that holds more than was ever used, by this part of that, moves what is free before it grows.  But in all not
 * more than a part of what it holds, and a small move counts as a larger one: it costs more than growth does, and where
 * sizes never fit what is free, it would go on for ever. */
enum { EXCESS_SHARE = 128, MOVED_SHARE = 2, MOVED_LEAST_BYTES = 16 << 20 };

/* Gives as much of what is free in pieces back as the place for a block needs, so that the pool does not hold more than
 * before.  Whether it did.  Not while the GPU lags behind: there is time for it later. */
static bool excess_give_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  struct place place;
  size_t most = pool->segments.bytes[SEGMENT_USED] + bytes;
  if (most < pool->peak_used_bytes)
    most = pool->peak_used_bytes;
  if (reuse_lags(pool->reuse) || !place_find_locked(pool, bytes, &place) ||
      pool->segments.bytes[SEGMENT_FREE] < place.bytes || pool->held_bytes + place.bytes <= most + most / EXCESS_SHARE)
    return false;
  size_t charge = place.bytes > MOVED_LEAST_BYTES ? place.bytes : MOVED_LEAST_BYTES;
  if (pool->moved_bytes + charge > pool->held_bytes / MOVED_SHARE || trimmable_bytes_locked(pool) < place.bytes)
    return false;
  pool->moved_bytes += charge;
  return pieces_trim_locked(pool, pool->held_bytes - place.bytes) == cudaSuccess;
}

static cudaError_t elastic_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  if (bytes > pool->limit_bytes)
    return cudaErrorMemoryAllocation;
  bool generous = !excess_give_locked(pool, bytes);
  cudaError_t error = elastic_try_locked(pool, bytes, generous, asked);
  if (error == cudaErrorMemoryAllocation && own_pieces_give_locked(pool, bytes, !*asked))
    error = elastic_try_locked(pool, bytes, false, asked);
  return error;
}

/* ---- Growth of either kind ---- */

/* A hint that is asked by every allocation on the slow path: relaxed, as the pool's own, since nothing goes by it. */
static _Atomic bool some_grown;

bool pools_grown(void) {
  return atomic_load_explicit(&some_grown, memory_order_relaxed) &&
         atomic_exchange_explicit(&some_grown, false, memory_order_relaxed);
}

bool pool_has_grown(struct mam_pool *pool) {
  return atomic_load_explicit(&pool->grown, memory_order_relaxed) &&
         atomic_exchange_explicit(&pool->grown, false, memory_order_relaxed);
}

static void grown_tell(struct mam_pool *pool) {
  if (!pool->config.elastic && !pool->config.gives_all)
    return;
  atomic_store_explicit(&pool->grown, true, memory_order_relaxed);
  atomic_store_explicit(&some_grown, true, memory_order_relaxed);
}

/* What is in chunks that are free as a whole. */
static size_t free_chunks_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk;
  size_t bytes = 0;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    const struct segment *segment = segment_find(&pool->segments, chunk->first);
    bytes += segment->state == SEGMENT_FREE && segment->bytes == chunk->usable_bytes ? chunk->bytes : 0;
  }
  return bytes;
}

/* Free chunks that are too small, each by itself, give way to one that is large enough.  The source waits for the GPU
 * when it takes one back: this is for what would otherwise fail. */
static cudaError_t chunks_exchange_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  cudaError_t error = cudaErrorMemoryAllocation;
  struct pool_chunk *chunk;
  struct segment *segment;
  if (bytes > pool->limit_bytes - (pool->held_bytes - free_chunks_bytes_locked(pool)))
    return error;
  while (error == cudaErrorMemoryAllocation && pool->state == POOL_OPEN &&
         segment_largest_free(&pool->segments) < bytes && (chunk = free_chunk_locked(pool, &segment)) != NULL) {
    error = chunk_give_locked(pool, chunk, segment);
    if (error == cudaSuccess)
      error = chunk_grow_locked(pool, bytes, asked);
  }
  return error;
}

static cudaError_t grow_alone_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  cudaError_t (*grow)(struct mam_pool *, size_t, bool *) =
      pool->config.elastic ? elastic_grow_locked : chunk_grow_locked;
  bool asked = false;
  if (pool->config.elastic && !reuse_lags(pool->reuse)) { /* to know whether it does; if so, it is known already */
    pool_step_out(pool);
    (void)reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
    pool_step_in(pool);
  }
  cudaError_t error = grow(pool, bytes, &asked);
  if (error == cudaErrorMemoryAllocation && pool->config.gives_all && !at_once && !reuse_capturing(pool->reuse))
    error = chunks_exchange_locked(pool, bytes, &asked);
  if (error == cudaErrorMemoryAllocation && asked && !at_once) {
    pool_step_out(pool);
    bool given = others_give_back(pool);
    pool_step_in(pool);
    if (given)
      error = grow(pool, bytes, &asked);
  }
  if (error == cudaSuccess) {
    pool->refused_bytes = 0;
    grown_tell(pool);
  }
  if (error != cudaErrorMemoryAllocation || !asked)
    return error;
  if (pool->refused_bytes == 0 || bytes < pool->refused_bytes)
    pool->refused_bytes = bytes;
  (void)snprintf(pool->source_said, sizeof pool->source_said, "%s", error_last());
  return error;
}

/* How long a thread looks out for the end of another's growth before it sleeps.  Beside a running kernel a growth takes
 * 100 to 600 us, and threads that sleep are woken one after the other, 30 to 200 us each (H200's host): 8 threads that
 * slept took up to 2 ms. */
enum { GROWTH_LOOK_NS = 1000000 };

/* Waits for the end of another thread's growth. */
static cudaError_t growth_await_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  /* relaxed, both: a hint, what it stands for is looked at under the lock */
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed);
  int64_t end_ns = now_ns() + GROWTH_LOOK_NS;
  pool_step_out(pool);
  while (atomic_load_explicit(&pool->growths, memory_order_relaxed) == growths && now_ns() < end_ns)
    (void)sched_yield();
  pool_step_in(pool);
  bool ended = atomic_load_explicit(&pool->growths, memory_order_relaxed) != growths;
  return ended ? cudaSuccess : pool_await_change_locked(pool);
}

cudaError_t pool_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  if (pool->growing) { /* another thread's memory may do; else one of those that wait grows for all of them at once */
    size_t room = pool->limit_bytes - pool->held_bytes;
    size_t wanted =
        bytes <= room && pool->wanted_bytes <= room - bytes ? bytes : 0; /* nobody grows for what cannot be */
    pool->wanted_bytes += wanted;
    cudaError_t awaited = growth_await_locked(pool);
    pool->wanted_bytes -= wanted;
    return awaited;
  }
  pool->growing = true;
  cudaError_t error = grow_alone_locked(pool, bytes, at_once);
  growing_end_locked(pool);
  return error;
}

/* ---- Opening and closing ---- */

/* Reserves the addresses of an elastic pool: fewer, where a limit of the process forbids as many. */
static cudaError_t addresses_take(struct mam_pool *pool, size_t total_bytes) {
  const struct source *source = &pool->source;
  size_t bytes = whole_units(total_bytes) * RESERVE_TIMES;
  uintptr_t base;
  cudaError_t error = source->operations->reserve(source, bytes, &base);
  while (error == cudaErrorMemoryAllocation && bytes > SOURCE_GRANULARITY_BYTES) {
    bytes = bytes / 2 & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
    error = source->operations->reserve(source, bytes, &base);
  }
  if (error != cudaSuccess)
    return error;
  error = chunk_attach(pool, base, bytes, true);
  if (error != cudaSuccess)
    (void)source->operations->unreserve(source, base, bytes);
  return error;
}

static cudaError_t first_piece(struct mam_pool *pool) {
  size_t bytes = pool->config.chunk_bytes;
  bool asked = false;
  pool_lock(pool);
  cudaError_t error = elastic_try_locked(pool, bytes, false, &asked);
  pool_unlock(pool);
  if (error == cudaErrorMemoryAllocation && !asked)
    return error_set(error, "the %s source has no addresses for %zu bytes", pool->source.operations->name, bytes);
  return error;
}

static cudaError_t elastic_open(struct mam_pool *pool) {
  size_t total_bytes = 0, headroom_bytes = pool->config.headroom_bytes;
  cudaError_t error = pool->source.operations->total(&pool->source, &total_bytes);
  if (error != cudaSuccess)
    return error;
  if (headroom_bytes > total_bytes / 2) /* as source_take_largest has it */
    headroom_bytes = total_bytes / 2;
  if (pool->config.limit_bytes == 0)
    pool->config.limit_bytes = (total_bytes - headroom_bytes) & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
  if (pool->config.limit_bytes == 0)
    return error_set(cudaErrorMemoryAllocation, "the %s source has no memory", pool->source.operations->name);
  error = addresses_take(pool, total_bytes);
  if (error == cudaSuccess && pool->config.chunk_bytes > 0) {
    error = first_piece(pool);
    if (error != cudaSuccess) {
      (void)pool_chunks_give(pool);
      segment_set_clear(&pool->segments); /* nobody has the pool yet */
    }
  }
  return error;
}

cudaError_t pool_first_chunk(struct mam_pool *pool) {
  const struct source_operations *operations = pool->source.operations;
  pool->config.elastic = operations->reserve != NULL && (pool->config.elastic || operations->chunk_take == NULL);
  cudaError_t error = pool->config.elastic ? elastic_open(pool) : first_chunk(pool);
  if (error == cudaSuccess && pool->config.yields) /* the first chunk, too */
    grown_tell(pool);
  return error;
}

/* Unmaps every piece of a reserved chunk and gives its addresses back. */
static cudaError_t reserved_give(const struct source *source, const struct pool_chunk *chunk) {
  cudaError_t error = cudaSuccess;
  for (uintptr_t at = chunk->base; at < chunk->base + chunk->bytes;) {
    uint32_t piece = *piece_at(chunk, at);
    if (piece != 0) {
      cudaError_t given = source->operations->unmap(source, at, piece_bytes(piece));
      error = error == cudaSuccess ? given : error;
    }
    at += piece_bytes(piece != 0 ? piece : 1);
  }
  cudaError_t given = source->operations->unreserve(source, chunk->base, chunk->bytes);
  return error == cudaSuccess ? given : error;
}

/* Memory is unmapped without a wait, so one goes before.  A stream capture forbids it: then nobody knows when the GPU
 * is done, and the memory stays mapped for good, which is better than a fault of the GPU. */
static cudaError_t elastic_close(struct mam_pool *pool, const struct pool_chunk *chunk) {
  const struct source *source = &pool->source;
  cudaError_t waited = cudaSuccess;
  if (pool->held_bytes > 0 && source->operations->lives(source))
    waited = reuse_synchronize(pool->reuse);
  if (waited == (cudaError_t)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    return waited;
  cudaError_t error = reserved_give(source, chunk);
  return waited == cudaSuccess ? error : waited;
}

/* In two rounds: out of the map first, since from chunk_give on another pool may be given the same addresses. */
cudaError_t pool_chunks_give(struct mam_pool *pool) {
  struct pool_chunk *chunk;
  cudaError_t error = cudaSuccess;
  SLIST_FOREACH(chunk, &pool->chunks, link) { chunk_map_remove(chunk->base); }
  while ((chunk = SLIST_FIRST(&pool->chunks)) != NULL) {
    SLIST_REMOVE_HEAD(&pool->chunks, link);
    cudaError_t given = chunk->pieces != NULL
                            ? elastic_close(pool, chunk)
                            : pool->source.operations->chunk_give(&pool->source, chunk->base, chunk->bytes);
    error = error == cudaSuccess ? given : error;
    chunk_free(chunk);
  }
  return error;
}

/* ---- Fork ---- */

/* Whatever the thread had done, mapping the range again makes it usable: only pools of host memory go on in a child. */
void pool_settle_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct segment *segment = segment_first(&pool->segments);
  while (segment != NULL && pool->segments.count[SEGMENT_MOVING] > 0) {
    struct segment *next = segment_next(segment);
    if (segment->state == SEGMENT_MOVING) {
      segment_moved_to_unmapped(&pool->segments, segment); /* the next may have become a part of it */
      next = segment_first(&pool->segments);
    }
    segment = next;
  }
}
