/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The source's memory in a pool, as opening, growing, trimming and closing all need it.
 *
 * A pool is of one of two kinds.  One takes whole chunks from its source, and gives whole chunks back.  An elastic one
 * has a single chunk, a range of reserved addresses, and maps memory under parts of it (pieces) as needed.  A mapping
 * can only be taken away as a whole, so the chunk remembers where each piece begins.
 */
#include <string.h>

#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

void pool_growing_end_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->growing = false;
  pool_peak_reserved_locked(pool);
  /* relaxed: a hint, written under the lock */
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed);
  atomic_store_explicit(&pool->growths, growths + 1, memory_order_relaxed);
}

/* ---- Giving every chunk back ---- */

/* Unmaps every piece of a reserved chunk and gives its addresses back. */
static cudaError_t reserved_give(const struct source *source, struct pool_chunk *chunk) {
  cudaError_t error = cudaSuccess;
  for (uintptr_t at = chunk->base; at < chunk->base + chunk->bytes;) {
    uint32_t piece = *pool_piece_at(chunk, at);
    if (piece != 0) {
      cudaError_t given = source->operations->unmap(source, at, pool_piece_bytes(piece));
      error = error == cudaSuccess ? given : error;
    }
    at += pool_piece_bytes(piece != 0 ? piece : 1);
  }
  cudaError_t given = source->operations->unreserve(source, chunk->base, chunk->bytes);
  return error == cudaSuccess ? given : error;
}

/* unmap does not wait for the GPU, so a wait comes first, unless the memory is the host's.  A stream capture forbids
 * the wait: then the memory stays mapped for good, since memory that the GPU still uses must not be taken away. */
static cudaError_t elastic_close(struct mam_pool *pool, struct pool_chunk *chunk) {
  const struct source *source = &pool->source;
  cudaError_t waited = cudaSuccess;
  if (pool->held_bytes > 0 && source->operations != &source_host && source->operations->lives(source))
    waited = reuse_synchronize(pool->reuse);
  if (waited == cudaErrorStreamCaptureUnsupported)
    return waited;
  cudaError_t error = reserved_give(source, chunk);
  return waited == cudaSuccess ? error : waited;
}

/* In two rounds: all chunks leave the map first, since from chunk_give on another pool may get the same addresses. */
cudaError_t pool_chunks_give(struct mam_pool *pool) {
  struct pool_chunk *chunk;
  cudaError_t error = cudaSuccess;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    chunk_map_remove(chunk->base);
    if (record_on())
      record_gone(chunk->base, chunk->bytes);
  }
  if (record_on())
    record_taken(pool_record_context(pool), pool->device, -(int64_t)pool->held_bytes);
  while ((chunk = SLIST_FIRST(&pool->chunks)) != NULL) {
    SLIST_REMOVE_HEAD(&pool->chunks, link);
    cudaError_t given = chunk->reserved ? elastic_close(pool, chunk)
                                        : pool->source.operations->chunk_give(&pool->source, chunk->base, chunk->bytes);
    error = error == cudaSuccess ? given : error;
    free(chunk);
  }
  return error;
}

/* ---- Fork ---- */

/* However far the thread had got, mapping the range again makes it usable: only pools of host memory go on in a child.
 */
void pool_settle_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct segment *segment = segment_first(&pool->segments);
  while (pool->segments.count[SEGMENT_MOVING] > 0) {
    if (segment->state != SEGMENT_MOVING) {
      segment = segment_next(segment);
      continue;
    }
    memset(pool_piece_at(SLIST_FIRST(&pool->chunks), segment->base), 0,
           segment->bytes / SOURCE_GRANULARITY_BYTES * sizeof(uint32_t));
    segment_moved(&pool->segments, segment, SEGMENT_UNMAPPED); /* the next may have become a part of it */
    segment = segment_first(&pool->segments);
  }
}
