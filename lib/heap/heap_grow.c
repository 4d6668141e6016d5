/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a device heap gets more memory, between kernels and under them.
 *
 * A kernel that fills the GPU may wait for the memory, so nothing here may need the GPU's multiprocessors: what is new
 * is written by copies from host memory, which the copy engines do, on a stream of its own.  The metadata is written
 * first, then the superblock's place in the table, then the count that says it is there.
 */
#include "heap/heap_host.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/last_word.h"
#include "base/locked.h"
#include "front/front.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static cudaError_t memory_check(const struct mam_heap_host *heap, size_t bytes) {
  if (bytes < HEAP_LEAST_BYTES)
    return error_set(cudaErrorInvalidValue, "a superblock of %zu bytes is too small: the least size is %d bytes", bytes,
                     HEAP_LEAST_BYTES);
  if (heap->count == MAM_HEAP_SUPERBLOCKS)
    return error_set(cudaErrorMemoryAllocation, "the heap has %d superblocks already", MAM_HEAP_SUPERBLOCKS);
  if (bytes > heap->limit_bytes - heap->reserved_bytes)
    return error_set(cudaErrorMemoryAllocation,
                     "%zu more bytes would pass the heap's limit of %zu bytes: it holds %zu bytes", bytes,
                     heap->limit_bytes, heap->reserved_bytes);
  return cudaSuccess;
}

cudaError_t heap_memory_take(struct mam_heap_host *heap, size_t bytes, bool at_once) {
  struct front_request request = {.pool = heap->pool,
                                  .default_id = POOL_ANY_ID,
                                  .size = bytes,
                                  .site = __builtin_return_address(0),
                                  .at_once = at_once};
  uintptr_t address = 0;
  NO_LAST_WORD; /* the heap's lock is held */
  cudaError_t error =
      heap->count != 0 ? heap_check_memory(heap) : cudaSuccess; /* the first superblock: there is a pool */
  if (error == cudaSuccess)
    error = memory_check(heap, bytes);
  if (error == cudaSuccess)
    error = at_once ? front_malloc(&request, &address) : MAM_PoolMalloc(heap->pool, &heap->memory[heap->count], bytes);
  if (error != cudaSuccess)
    return error;
  if (at_once)
    heap->memory[heap->count] = (void *)address;
  heap->bytes[heap->count++] = bytes;
  heap->reserved_bytes += bytes;
  return cudaSuccess;
}

cudaError_t heap_memory_give(struct mam_heap_host *heap) {
  heap->count--;
  heap->reserved_bytes -= heap->bytes[heap->count];
  return MAM_CudaFree(heap->memory[heap->count]);
}

/* ---- Writing beside kernels -------------------------------------------------------------------------------------- */

static bool is_zero(const char *bytes, size_t count) {
  return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* The next piece of what is to be written, as it is to be given to the driver, and its bytes: by way of the bell's
 * memory if there is one, since from other memory the driver copies as it likes. */
static const void *next_piece(const struct mam_heap_host *heap, const char *from, size_t *bytes) {
  size_t zeros = *bytes < HEAP_BELL_ZERO_BYTES ? *bytes : HEAP_BELL_ZERO_BYTES;
  if (heap->bell == NULL)
    return from;
  if (is_zero(from, zeros)) { /* most of an empty superblock's metadata is */
    *bytes = zeros;
    return heap->bell->zeros;
  }
  *bytes = *bytes < HEAP_BELL_STAGING_BYTES ? *bytes : HEAP_BELL_STAGING_BYTES;
  return memcpy(heap->bell->staging, from, *bytes);
}

static cudaError_t write_beside(struct mam_heap_host *heap, mam__u64 to, const void *from, size_t bytes) {
  const char *rest = from;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && bytes != 0) {
    size_t piece_bytes = bytes;
    const void *piece = next_piece(heap, rest, &piece_bytes);
    error = heap_gpu_write(&heap->growing, to, piece, piece_bytes);
    to += piece_bytes;
    rest += piece_bytes;
    bytes -= piece_bytes;
  }
  return error;
}

/* Writes an empty superblock's metadata. */
static cudaError_t write_area(struct mam_heap_host *heap, struct mam__area area) {
  size_t bytes = (size_t)mam__area_metadata_bytes(area.page_count);
  mam__u64 *image = calloc(1, bytes);
  if (image == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for the metadata of a superblock");
  struct mam__area in_image = mam__area_copied(area, image);
  mam__area_clear(in_image, 0, 1);
  /* What was found missing with the sum of the stamps as it was is not to be taken for missing now, nor if that sum
   * came again: so no superblock begins with the stamp of one that was there before. */
  *mam__area_stamp(in_image) = (mam__u32)(heap->growth_count + 1) * 0x9e3779b2u;
  cudaError_t error = write_beside(heap, (mam__u64)(uintptr_t)mam__area_metadata(area), image, bytes);
  free(image);
  return error;
}

static mam__u64 control_address(const struct mam_heap_host *heap, size_t offset) {
  return (mam__u64)(uintptr_t)heap->handle.control + offset;
}

/* ---- Superblocks ------------------------------------------------------------------------------------------------- */

/* Copies on one stream take effect one after another, so the count is there after what it counts; pairs with the
 * acquiring loads of it, and of the reply that is written after it. */
static cudaError_t publish(struct mam_heap_host *heap, mam__u32 index) {
  mam__u32 count = index + 1;
  mam__u64 place =
      control_address(heap, offsetof(struct mam__heap_control, superblocks) + index * sizeof heap->areas[0]);
  cudaError_t error = write_area(heap, heap->areas[index]);
  if (error == cudaSuccess)
    error = write_beside(heap, place, &heap->areas[index], sizeof heap->areas[0]);
  if (error != cudaSuccess)
    return error;
  return write_beside(heap, control_address(heap, offsetof(struct mam__heap_control, superblock_count)), &count,
                      sizeof count);
}

cudaError_t heap_grow_locked(struct mam_heap_host *heap, size_t bytes, bool at_once) {
  lock_held(&heap->superblocks_lock);
  cudaError_t error = heap_memory_take(heap, bytes, at_once);
  if (error != cudaSuccess)
    return error;
  mam__u32 last = heap->count - 1;
  heap->areas[last] = mam__area_place((mam__u64)(uintptr_t)heap->memory[last], bytes);
  error = publish(heap, last);
  if (error != cudaSuccess)
    (void)heap_memory_give(heap);
  else
    heap->growth_count++;
  return error;
}

cudaError_t heap_shrink_locked(struct mam_heap_host *heap, mam__u32 count) {
  lock_held(&heap->superblocks_lock);
  static const mam__u32 nothing_missing[MAM__HEAP_KINDS];
  const mam__u32 first[2] = {count, 0}; /* and the active superblock */
  cudaError_t error = write_beside(heap, control_address(heap, offsetof(struct mam__heap_control, missing)),
                                   nothing_missing, sizeof nothing_missing);
  return error == cudaSuccess
             ? write_beside(heap, control_address(heap, offsetof(struct mam__heap_control, superblock_count)), first,
                            sizeof first)
             : error;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* Begins the next round, with a refusal if pages is not 0. */
static cudaError_t reply_locked(struct mam_heap_host *heap, mam__u32 pages) {
  lock_held(&heap->superblocks_lock);
  mam__u64 reply = mam__round_of(heap->round + 1, pages);
  cudaError_t error = write_beside(
      heap, control_address(heap, offsetof(struct mam__heap_control, growth) + offsetof(struct mam__growth, reply)),
      &reply, sizeof reply);
  heap->round += error == cudaSuccess;
  return error;
}

cudaError_t heap_growth_reopen_locked(struct mam_heap_host *heap) {
  lock_held(&heap->superblocks_lock);
  return heap->bell != NULL ? reply_locked(heap, 0) : cudaSuccess;
}

/* A superblock with so many pages in a row, wherever it lies. */
static size_t bytes_for(mam__u32 pages) {
  size_t bytes = (size_t)mam__area_metadata_bytes(pages) + ((size_t)pages << MAM__PAGE_SHIFT) + 2 * MAM__PAGE_BYTES;
  return bytes > HEAP_LEAST_BYTES ? bytes : HEAP_LEAST_BYTES;
}

/* Grows by what was asked for, or as much as there is: at least grow_bytes and a fourth of what the heap has, so that
 * the table of superblocks does not run out and growing is seldom; less, down to what is needed, where the pool has no
 * such piece.  *refused_pages: what there is not, else 0; *for_good: as long as the heap does not change. */
static cudaError_t grow_for_locked(struct mam_heap_host *heap, mam__u32 pages, mam__u32 *refused_pages,
                                   bool *for_good) {
  lock_held(&heap->superblocks_lock);
  size_t need = bytes_for(pages), left = heap->limit_bytes - heap->reserved_bytes, fourth = heap->reserved_bytes / 4;
  size_t bytes = heap->grow_bytes > fourth ? heap->grow_bytes : fourth;
  bool none = heap->count == MAM_HEAP_SUPERBLOCKS || left < HEAP_LEAST_BYTES;
  *refused_pages = none ? 1 : pages;
  *for_good = none || need > left;
  if (*for_good)
    return cudaErrorMemoryAllocation;
  bytes = bytes < left ? bytes : left;
  cudaError_t error = heap_grow_locked(heap, bytes > need ? bytes : need, true);
  while (error == cudaErrorMemoryAllocation && bytes > need) {
    bytes /= 2;
    error = heap_grow_locked(heap, bytes > need ? bytes : need, true);
  }
  if (error == cudaSuccess)
    *refused_pages = 0;
  return error;
}

static enum heap_answer answer_locked(struct mam_heap_host *heap, mam__u64 ring) {
  lock_held(&heap->superblocks_lock);
  mam__u32 refused_pages = 0;
  bool for_good = false;
  cudaError_t error = cudaSuccess;
  /* A ring for another round was late, or is another heap's.  It may have overwritten a ring for this round, and the
   * kernel that rang it rings again in the next. */
  if (mam__round_number(ring) == heap->round && mam__round_pages(ring) != 0)
    error = grow_for_locked(heap, mam__round_pages(ring), &refused_pages, &for_good);
  if (error != cudaSuccess && error != cudaErrorMemoryAllocation)
    refused_pages = 1; /* the GPU has failed; kernels are told not to wait, if that is still possible */
  bool told = reply_locked(heap, refused_pages) == cudaSuccess;
  if (!told || (error != cudaSuccess && error != cudaErrorMemoryAllocation))
    return HEAP_ANSWER_END;
  return refused_pages != 0 && !for_good ? HEAP_ANSWER_LATER : HEAP_ANSWER_DONE;
}

/* ---- The service ------------------------------------------------------------------------------------------------- */

static enum heap_answer service_answer(void *closure, uint64_t ring) {
  struct mam_heap_host *heap = closure;
  pthread_mutex_lock(&heap->superblocks_lock);
  enum heap_answer answer = answer_locked(heap, ring);
  pthread_mutex_unlock(&heap->superblocks_lock);
  return answer;
}

/* The pool may have by now what it did not have. */
static enum heap_answer service_retry(void *closure) {
  struct mam_heap_host *heap = closure;
  pthread_mutex_lock(&heap->superblocks_lock);
  cudaError_t error = heap_growth_reopen_locked(heap);
  pthread_mutex_unlock(&heap->superblocks_lock);
  return error == cudaSuccess ? HEAP_ANSWER_DONE : HEAP_ANSWER_END;
}

static bool service_lives(void *closure) {
  const struct mam_heap_host *heap = closure;
  return context_lives(&heap->gpu.context);
}

cudaError_t heap_growth_begin(struct mam_heap_host *heap) {
  static const struct heap_service_work work = {service_answer, service_retry, service_lives};
  heap->service = heap_service_start(heap->bell->word, &work, heap);
  if (heap->service == NULL)
    return error_set(cudaErrorMemoryAllocation, "the system has no thread for the growth of a heap");
  return cudaSuccess;
}

void heap_growth_end(struct mam_heap_host *heap) {
  if (heap->service != NULL)
    heap_service_stop(heap->service);
  heap->service = NULL;
}
