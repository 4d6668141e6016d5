/* SPDX-License-Identifier: BSD-2-Clause */
/* The mapped pieces of an elastic pool: mapping new ones, and moving free ones to where a block fits. */
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* A piece is moved if it has at least this part of a place, so at most so many are.  To give a smaller one back costs
 * no more than to move it, and then one new piece takes the place of them. */
enum { PIECE_SHARE = 32 };

/* ---- Places ---- */

/* Whether the place begins where its unmapped segment does, and grows upwards; else it ends where that ends. */
static bool place_is_low(struct pool_place place) { return place.base == place.unmapped->base; }

size_t pool_place_most_bytes(struct pool_place place) {
  uintptr_t end = place.base + place.bytes;
  return place_is_low(place) ? place.unmapped->base + place.unmapped->bytes - place.base : end - place.unmapped->base;
}

void pool_place_resize(struct pool_place *place, size_t bytes) {
  if (!place_is_low(*place))
    place->base -= bytes - place->bytes;
  place->bytes = bytes;
}

/* ---- Which pieces move ---- */

struct piece {
  uintptr_t base;
  size_t bytes;
  struct segment *moving; /* what it was */
  bool there;             /* its memory has not left it */
};

struct pieces {
  struct piece *all; /* NULL: none */
  size_t count, bytes;
};

/* Lists the free pieces of at least so many bytes, but those beside the place.  None if the host has no memory. */
static void pieces_list_locked(struct mam_pool *pool, struct pool_place place, size_t least_bytes,
                               struct pieces *pieces) {
  lock_held(&pool->lock);
  size_t most = pool->segments.bytes[SEGMENT_FREE] / least_bytes, bytes;
  struct segment *segment = size_best_fit(&pool->segments.by_size, least_bytes);
  if (most == 0 || (pieces->all = calloc(most, sizeof *pieces->all)) == NULL)
    return;
  for (; segment != NULL; segment = size_next(&pool->segments.by_size, segment)) {
    uintptr_t base = segment->base;
    for (; !pool_is_beside(segment, place) && (bytes = pool_piece_within_locked(pool, segment, &base)) > 0;
         base += bytes)
      if (bytes >= least_bytes)
        pieces->all[pieces->count++] = (struct piece){base, bytes, NULL, true};
  }
}

/* The piece that serves a place best which lacks so many bytes: the smallest that is enough, of at most most_bytes,
 * else the largest.  The lowest of equal ones.  Those before first are taken.  NULL if there is none. */
static struct piece *piece_best(const struct pieces *pieces, size_t first, size_t lacking, size_t most_bytes) {
  struct piece *best = NULL;
  for (struct piece *piece = pieces->all + first; piece < pieces->all + pieces->count; piece++) {
    size_t best_bytes = best != NULL ? best->bytes : 0;
    bool closer =
        best_bytes < lacking ? piece->bytes > best_bytes : piece->bytes >= lacking && piece->bytes < best_bytes;
    bool equal = best != NULL && piece->bytes == best_bytes && piece->base < best->base;
    if (piece->bytes <= most_bytes && (closer || equal))
      best = piece;
  }
  return best;
}

/* Keeps those pieces that are to move: until they are enough, and at most most_bytes. */
static void pieces_choose(struct pieces *pieces, size_t enough_bytes, size_t most_bytes) {
  size_t count = 0, bytes = 0;
  struct piece *best;
  while (bytes < enough_bytes && (best = piece_best(pieces, count, enough_bytes - bytes, most_bytes - bytes)) != NULL) {
    struct piece chosen = *best;
    *best = pieces->all[count];
    pieces->all[count++] = chosen;
    bytes += chosen.bytes;
  }
  pieces->count = count;
  pieces->bytes = bytes;
}

/* The pieces that are to move to a place.  The caller frees pieces.all. */
static struct pieces pieces_for_locked(struct mam_pool *pool, struct pool_place place) {
  lock_held(&pool->lock);
  struct pieces pieces = {0};
  size_t least = place.bytes / PIECE_SHARE;
  pieces_list_locked(pool, place, least < SOURCE_GRANULARITY_BYTES ? SOURCE_GRANULARITY_BYTES : least, &pieces);
  pieces_choose(&pieces, place.bytes, pool_place_most_bytes(place));
  return pieces;
}

/* Takes the pieces out of the trees, until pieces_end_locked.  False if the host has no memory. */
static bool pieces_take_locked(struct mam_pool *pool, const struct pieces *pieces) {
  lock_held(&pool->lock);
  for (size_t i = 0; i < pieces->count; i++) {
    struct piece *piece = &pieces->all[i];
    piece->moving = pool_move_out_locked(pool, segment_at(&pool->segments, piece->base), piece->base, piece->bytes);
    if (piece->moving == NULL)
      return false;
    *pool_piece_at(SLIST_FIRST(&pool->chunks), piece->base) = 0;
    pool->held_bytes -= piece->bytes;
  }
  return true;
}

/* Ends that.  What is not there any more is in the place, or was given back. */
static void pieces_end_locked(struct mam_pool *pool, const struct pieces *pieces, bool in_place) {
  lock_held(&pool->lock);
  for (size_t i = 0; i < pieces->count && pieces->all[i].moving != NULL; i++) {
    const struct piece *piece = &pieces->all[i];
    pool->held_bytes += piece->bytes;
    if (piece->there)
      *pool_piece_at(SLIST_FIRST(&pool->chunks), piece->base) = (uint32_t)(piece->bytes / SOURCE_GRANULARITY_BYTES);
    else if (!in_place)
      pool_held_change_locked(pool, -piece->bytes);
    segment_moved(&pool->segments, piece->moving, piece->there ? SEGMENT_FREE : SEGMENT_UNMAPPED);
  }
}

/* ---- Putting memory somewhere: the lock is not held ---- */

/* Notes a piece and returns its end.  Only the thread that grows the pool looks at pieces. */
static uintptr_t piece_note(struct pool_chunk *chunk, uintptr_t base, size_t bytes) {
  *pool_piece_at(chunk, base) = (uint32_t)(bytes / SOURCE_GRANULARITY_BYTES);
  return base + bytes;
}

/* Gives the pieces back that were put from base on, up to end. */
static void pieces_undo(const struct source *source, struct pool_chunk *chunk, uintptr_t base, uintptr_t end) {
  while (base < end) {
    size_t bytes = pool_piece_bytes(*pool_piece_at(chunk, base));
    (void)source->operations->unmap(source, base, bytes);
    (void)piece_note(chunk, base, 0);
    base += bytes;
  }
}

/* Puts memory under a range of the chunk: the pieces, and new ones behind them.  These come first, so that nothing has
 * moved if the source refuses.  On failure nothing is mapped there. */
static cudaError_t pieces_put(const struct source *source, struct pool_chunk *chunk, uintptr_t base, size_t bytes,
                              const struct pieces *pieces) {
  uintptr_t first = base + pieces->bytes, at = first, end = base + bytes, to = base;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && at < end) {
    size_t next = end - at < POOL_PIECE_MOST_BYTES ? end - at : POOL_PIECE_MOST_BYTES;
    error = source->operations->map(source, at, next);
    if (error == cudaSuccess)
      at = piece_note(chunk, at, next);
  }
  for (size_t i = 0; error == cudaSuccess && i < pieces->count; i++) {
    struct piece *piece = &pieces->all[i];
    error = source->operations->remap(source, piece->base, piece->bytes, to, &piece->there);
    piece->there = piece->there && error != cudaSuccess;
    if (error == cudaSuccess)
      to = piece_note(chunk, to, piece->bytes);
  }
  if (error == cudaSuccess && source->operations->access != NULL)
    error = source->operations->access(source, base, bytes);
  if (error != cudaSuccess) {
    pieces_undo(source, chunk, first, at);
    pieces_undo(source, chunk, base, to);
  }
  return error;
}

/* ---- Both ---- */

/* Puts memory at a place that is out of the trees.  Leaves the lock. */
static cudaError_t place_put_locked(struct mam_pool *pool, struct segment *moving, const struct pieces *pieces) {
  lock_held(&pool->lock);
  size_t new_bytes = moving->bytes - pieces->bytes;
  pool_step_out(pool);
  cudaError_t error = pieces_put(&pool->source, SLIST_FIRST(&pool->chunks), moving->base, moving->bytes, pieces);
  pool_step_in(pool);
  if (error == cudaSuccess)
    pool_held_change_locked(pool, new_bytes);
  segment_moved(&pool->segments, moving, error == cudaSuccess ? SEGMENT_FREE : SEGMENT_UNMAPPED);
  return error;
}

cudaError_t pool_place_fill_locked(struct mam_pool *pool, struct pool_place place) {
  lock_held(&pool->lock);
  const struct pieces none = {0};
  struct segment *moving = pool_move_out_locked(pool, place.unmapped, place.base, place.bytes);
  return moving != NULL ? place_put_locked(pool, moving, &none) : cudaErrorMemoryAllocation;
}

cudaError_t pool_place_move_locked(struct mam_pool *pool, struct pool_place *place, size_t most_bytes, bool *asked) {
  lock_held(&pool->lock);
  struct pieces pieces = pieces_for_locked(pool, *place);
  cudaError_t error = cudaErrorMemoryAllocation;
  if (pieces.bytes > place->bytes)
    pool_place_resize(place, pieces.bytes);
  struct segment *moving = pool_move_out_locked(pool, place->unmapped, place->base, place->bytes);
  if (moving != NULL && pieces_take_locked(pool, &pieces)) {
    size_t keep_bytes = most_bytes - place->bytes;
    error = pool_pieces_trim_locked(pool, keep_bytes, *place);
    if (error == cudaSuccess && pool->held_bytes > keep_bytes)
      error = cudaErrorMemoryAllocation;
    else if (error == cudaSuccess) {
      *asked = true;
      error = place_put_locked(pool, moving, &pieces);
      moving = NULL;
    }
  }
  if (moving != NULL)
    segment_moved(&pool->segments, moving, SEGMENT_UNMAPPED);
  pieces_end_locked(pool, &pieces, error == cudaSuccess);
  free(pieces.all);
  return error;
}
