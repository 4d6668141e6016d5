/* SPDX-License-Identifier: BSD-2-Clause */
/* What a pool holds, in numbers, with its fronts held still. */
#include "pool/pool_inside.h"

void pool_info_locked(struct mam_pool *pool, const struct pool_front *frozen, MAM_PoolInfo *info) {
  lock_held(&pool->lock);
  struct pool_front_sum sum = {0};
  if (frozen != NULL)
    frozen->sum(pool, &sum);
  const struct segment_set *segments = &pool->segments;
  const struct pool_chunk *chunk;
  /* With those on their way: no block is in them.  Without the fronts nobody knows what is. */
  size_t chunk_count = 0, slab_count = frozen != NULL ? pool->span_count : 0;
  SLIST_FOREACH(chunk, &pool->chunks, link) { chunk_count++; }
  size_t free_bytes = segments->bytes[SEGMENT_FREE], largest = segment_largest_free(&pool->segments);
  size_t cached_bytes = sum.large_bytes + slab_count * POOL_SLAB_BYTES - sum.live_small_bytes;
  size_t cached_waiting_bytes = sum.large_waiting_bytes + sum.small_waiting_bytes;
  bool closer = frozen != NULL && sum.peak_bytes < pool->peak_taken_bytes; /* both are bounds */
  *info = (MAM_PoolInfo){
      .struct_size = sizeof *info,
      .used_bytes = segments->bytes[SEGMENT_USED] - cached_bytes,
      .requested_bytes = pool->requested_bytes + sum.requested_bytes,
      .waiting_bytes = segments->bytes[SEGMENT_WAITING] + cached_waiting_bytes,
      .free_bytes = free_bytes + cached_bytes - cached_waiting_bytes,
      .largest_free_bytes = largest,
      .peak_used_bytes = closer ? sum.peak_bytes : pool->peak_taken_bytes,
      .limit_bytes = pool->limit_bytes,
      .peak_reserved_bytes = pool->peak_reserved_bytes,
      .source_call_count = pool->source_call_count,
      .chunk_count = chunk_count,
      .used_count = segments->count[SEGMENT_USED] - slab_count - sum.large_count + sum.live_small_count,
      .waiting_count = segments->count[SEGMENT_WAITING] + sum.large_waiting_count,
      .free_count = segments->count[SEGMENT_FREE] + sum.large_count - sum.large_waiting_count,
      .metadata_bytes = segments->nodes_bytes + sum.metadata_bytes,
      .malloc_count = pool->malloc_count,
      .free_call_count = pool->free_call_count + sum.frees,
      .failure_count = pool->failure_count,
      .synchronize_count = pool->synchronize_count,
      .external_fragmentation = free_bytes > 0 ? 1.0 - (double)largest / (double)free_bytes : 0.0,
      .cached_bytes = cached_bytes,
      .slab_count = slab_count,
      .thread_count = sum.thread_count,
      .magazine_hit_count = sum.hits[FRONT_HIT_MAGAZINE],
      .size_hit_count = sum.hits[FRONT_HIT_SIZE],
      .tag_hit_count = sum.hits[FRONT_HIT_TAG],
      .stream_hit_count = pool->stream_hit_count + sum.hits[FRONT_HIT_STREAM],
  };
  for (unsigned i = 0; i < FRONT_HIT_KINDS; i++)
    info->malloc_count += sum.hits[i];
  reuse_counts(pool->reuse, &info->fence_count);
  info->reserved_bytes = info->used_bytes + info->waiting_bytes + info->free_bytes;
  info->segment_count = info->used_count + info->waiting_count + info->free_count;
}

const struct pool_front *pool_freeze(struct mam_pool *pool) {
  /* acquire: the fronts; pairs with the release in pool_open */
  const struct pool_front *front = atomic_load_explicit(&pool->in_front, memory_order_acquire);
  if (front != NULL)
    front->freeze(pool);
  pool_lock(pool);
  return front;
}

void pool_thaw(struct mam_pool *pool, const struct pool_front *frozen) {
  pool_unlock(pool);
  if (frozen != NULL)
    frozen->thaw(pool);
}

cudaError_t pool_info(struct mam_pool *pool, uint64_t default_id, MAM_PoolInfo *info) {
  const struct pool_front *frozen = pool_freeze(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess)
    pool_info_locked(pool, frozen, info);
  pool_thaw(pool, frozen);
  return error;
}

cudaError_t pool_reset_peaks(struct mam_pool *pool, uint64_t default_id) {
  const struct pool_front *frozen = pool_freeze(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess) {
    pool->peak_taken_bytes = pool->segments.bytes[SEGMENT_USED];
    pool->peak_reserved_bytes = pool_reserved_locked(pool);
    if (frozen != NULL)
      frozen->reset_peak(pool);
  }
  pool_thaw(pool, frozen);
  return error;
}
