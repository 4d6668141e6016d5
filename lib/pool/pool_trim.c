/* SPDX-License-Identifier: BSD-2-Clause */
/* Giving free memory back to the source: pieces of an elastic pool, whole chunks of another. */
#include "base/error.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* ---- Pieces ---- */

/* Where to look for pieces from, downwards: the end of what has memory. */
static uintptr_t pieces_end_locked(struct mam_pool *pool, struct pool_chunk *chunk) {
  lock_held(&pool->lock);
  const struct segment *last = segment_at(&pool->segments, chunk->base + chunk->bytes - 1);
  return last != NULL && last->state == SEGMENT_UNMAPPED ? last->base : chunk->base + chunk->bytes;
}

/* The next piece below *end that lies wholly in a free segment, which is returned, but not one beside the place; *end
 * becomes the piece's base.  NULL if there is none. */
static struct segment *free_piece_below_locked(struct mam_pool *pool, struct pool_chunk *chunk, struct pool_place place,
                                               uintptr_t *end) {
  lock_held(&pool->lock);
  for (uintptr_t base = *end; base > chunk->base;) {
    base -= SOURCE_GRANULARITY_BYTES;
    uint32_t piece = *pool_piece_at(chunk, base);
    struct segment *segment = piece != 0 ? segment_at(&pool->segments, base) : NULL;
    if (segment != NULL && segment->state == SEGMENT_FREE && !pool_is_beside(segment, place) &&
        base + pool_piece_bytes(piece) <= segment->base + segment->bytes) {
      *end = base;
      return segment;
    }
  }
  return NULL;
}

/* Whether the GPU is known to be done with all free memory.  Under the immediate rule memory is free while a kernel
 * still may use it: to hand it out again is the program's word, to take it away would be a fault of the GPU. */
static bool free_is_passed_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  return pool->unfenced_epoch <= reuse_passed(pool->reuse);
}

bool pool_free_may_be_unmapped_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->config.keeps)
    return false;
  if (free_is_passed_locked(pool))
    return true;
  uint64_t epoch = pool->unfenced_epoch;
  pool_step_out(pool);
  (void)reuse_reach(pool->reuse, epoch);
  pool_step_in(pool);
  return free_is_passed_locked(pool);
}

struct segment *pool_move_out_locked(struct mam_pool *pool, struct segment *segment, uintptr_t base, size_t bytes) {
  lock_held(&pool->lock);
  struct segment *moving = segment_move(&pool->segments, segment, base, bytes);
  if (moving == NULL)
    (void)error_set(cudaErrorMemoryAllocation, "the host has no memory for a segment");
  return moving;
}

/* Unmaps the free piece at base.  What it covers is in no tree while the lock is left. */
static cudaError_t piece_give_locked(struct mam_pool *pool, struct pool_chunk *chunk, struct segment *segment,
                                     uintptr_t base) {
  lock_held(&pool->lock);
  uint32_t piece = *pool_piece_at(chunk, base);
  size_t bytes = pool_piece_bytes(piece);
  struct segment *moving = pool_move_out_locked(pool, segment, base, bytes);
  if (moving == NULL)
    return cudaErrorMemoryAllocation;
  *pool_piece_at(chunk, base) = 0;
  pool_held_change_locked(pool, -bytes);
  pool_step_out(pool);
  cudaError_t error = pool->source.operations->unmap(&pool->source, base, bytes);
  pool_step_in(pool);
  if (error != cudaSuccess) {
    *pool_piece_at(chunk, base) = piece;
    pool_held_change_locked(pool, bytes);
  }
  segment_moved(&pool->segments, moving, error == cudaSuccess ? SEGMENT_UNMAPPED : SEGMENT_FREE);
  return error;
}

cudaError_t pool_pieces_trim_locked(struct mam_pool *pool, size_t keep_bytes, struct pool_place place) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  struct segment *segment;
  cudaError_t error = cudaSuccess;
  uintptr_t end = pieces_end_locked(pool, chunk);
  if (pool->held_bytes <= keep_bytes || !pool_free_may_be_unmapped_locked(pool))
    return cudaSuccess;
  while (error == cudaSuccess && pool->state == POOL_OPEN && pool->held_bytes > keep_bytes &&
         free_is_passed_locked(pool) && (segment = free_piece_below_locked(pool, chunk, place, &end)) != NULL)
    error = piece_give_locked(pool, chunk, segment, end);
  return error;
}

size_t pool_piece_within_locked(const struct mam_pool *pool, const struct segment *segment, uintptr_t *base) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  uintptr_t end = segment->base + segment->bytes;
  for (*base = round_up(*base, SOURCE_GRANULARITY_BYTES); *base < end; *base += SOURCE_GRANULARITY_BYTES) {
    size_t bytes = pool_piece_bytes(*pool_piece_at(chunk, *base));
    if (bytes > 0)
      return *base + bytes <= end ? bytes : 0;
  }
  return 0;
}

/* The bytes of all of them. */
static size_t pieces_within_locked(const struct mam_pool *pool, const struct segment *segment) {
  lock_held(&pool->lock);
  size_t all = 0, bytes;
  for (uintptr_t base = segment->base; (bytes = pool_piece_within_locked(pool, segment, &base)) > 0; base += bytes)
    all += bytes;
  return all;
}

size_t pool_free_pieces_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct segment *segment = size_best_fit(&pool->segments.by_size, SOURCE_GRANULARITY_BYTES);
  size_t bytes = 0;
  for (; segment != NULL; segment = size_next(&pool->segments.by_size, segment))
    bytes += pieces_within_locked(pool, segment);
  return bytes;
}

size_t pool_pieces_beside_locked(struct mam_pool *pool, struct pool_place place) {
  lock_held(&pool->lock);
  size_t bytes = 0;
  if (place.unmapped == NULL)
    return 0;
  struct segment *neighbours[] = {neighbour_before(place.unmapped), neighbour_after(place.unmapped)};
  for (int i = 0; i < 2; i++)
    if (neighbours[i] != NULL && neighbours[i]->state == SEGMENT_FREE && pool_is_beside(neighbours[i], place))
      bytes += pieces_within_locked(pool, neighbours[i]);
  return bytes;
}

/* ---- Chunks ---- */

/* A chunk that is free as a whole, and not the last one where that stays; NULL if there is none.  Keeps the lock. */
static struct pool_chunk *find_free_chunk_locked(struct mam_pool *pool, struct segment **segment) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  if (chunk == NULL || pool->config.keeps || (SLIST_NEXT(chunk, link) == NULL && !pool->config.gives_all))
    return NULL;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    *segment = segment_find(&pool->segments, chunk->first);
    if ((*segment)->state == SEGMENT_FREE && (*segment)->bytes == chunk->usable_bytes)
      break;
  }
  return chunk;
}

/* A free that is held up in a front may have found a page to be the pool's.  After this, none has; see slab.h. */
static void fronts_step_out(struct mam_pool *pool) {
  const struct pool_front *front = pool->config.front;
  if (front == NULL)
    return;
  front->freeze(pool);
  front->thaw(pool);
}

bool pool_chunk_give_locked(struct mam_pool *pool, size_t enough, cudaError_t *error) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk;
  struct segment *segment;
  if (pool->state != POOL_OPEN || segment_largest_free(&pool->segments) >= enough ||
      (chunk = find_free_chunk_locked(pool, &segment)) == NULL)
    return false;
  segment_remove(&pool->segments, segment);
  SLIST_REMOVE(&pool->chunks, chunk, pool_chunk, link);
  pool_held_change_locked(pool, -chunk->bytes);
  chunk_map_remove(chunk->base);
  pool_step_out(pool);
  fronts_step_out(pool);
  *error = pool->source.operations->chunk_give(&pool->source, chunk->base, chunk->bytes);
  pool_step_in(pool);
  free(chunk);
  return *error == cudaSuccess;
}

/* ---- Either kind ---- */

cudaError_t pool_trim_locked(struct mam_pool *pool, size_t keep_bytes) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  cudaError_t error = cudaSuccess;
  pool->growing = true;
  if (pool->config.elastic)
    error = pool_pieces_trim_locked(pool, keep_bytes, (struct pool_place){.unmapped = NULL});
  while (!pool->config.elastic && pool->held_bytes > keep_bytes && pool_chunk_give_locked(pool, SIZE_MAX, &error))
    continue;
  pool_growing_end_locked(pool);
  if (pool->held_bytes < held_bytes)
    pool->refused_bytes = pool->speed_bytes = 0; /* the source has more than before */
  return error;
}

bool pool_give_one_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  return !pool->growing && held_bytes > 0 && pool_trim_locked(pool, held_bytes - 1) == cudaSuccess &&
         pool->held_bytes < held_bytes;
}

/* Brings back what the fronts keep.  Where only a wait tells that the GPU has finished with what was freed, waits, if
 * the caller may. */
static cudaError_t collect_for_trim_locked(struct mam_pool *pool, bool waits) {
  lock_held(&pool->lock);
  pool_collect_locked(pool, SIZE_MAX, true);
  if (!waits || reuse_passes_by_itself(pool->reuse) || reuse_capturing(pool->reuse) ||
      (pool_waiting_bytes_locked(pool) == 0 && free_is_passed_locked(pool)))
    return cudaSuccess;
  cudaError_t error = pool_synchronize_locked(pool, SIZE_MAX, cudaSuccess);
  pool_collect_locked(pool, SIZE_MAX, true);
  return error;
}

cudaError_t pool_trim(struct mam_pool *pool, uint64_t default_id, size_t keep_bytes, bool waits) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id), waited = cudaSuccess;
  if (error == cudaSuccess && pool->held_bytes > keep_bytes) {
    waited = collect_for_trim_locked(pool, waits);
    while (pool->growing)
      (void)pool_await_change_locked(pool);
    error = pool_expect_locked(pool, default_id);
    if (error == cudaSuccess)
      error = pool_trim_locked(pool, keep_bytes);
  }
  pool_unlock(pool);
  return error == cudaSuccess ? waited : error;
}

cudaError_t pool_trim_calm(struct mam_pool *pool, uint64_t generation, size_t keep_bytes) {
  pool_lock(pool);
  cudaError_t error = pool_expect_generation_locked(pool, generation);
  if (error == cudaSuccess) {
    pool_step_out(pool);
    /* a chunk can go without a wait if the GPU is idle: the source waits for all that it has to do */
    bool idle = pool->config.elastic || reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
    error = idle ? pool_trim(pool, POOL_ANY_ID, keep_bytes, false) : (cudaError_t)CUDA_ERROR_NOT_READY;
    pool_step_in(pool);
  }
  pool_unlock(pool);
  return error;
}
