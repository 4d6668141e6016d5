/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Warp heaps that were never ended: MAM_WarpList finds them, MAM_WarpEnd ends one.  Nothing lists warp heaps while they
 * live, so kernels pay nothing for it.  The host takes the addresses of all live blocks that are large enough to be a
 * header.  A kernel looks at each of them and describes those that are headers.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/library_call.h"
#include "heap/heap_inside.h"
#include "mam/warp.h"

/* A smaller block is no header of a warp heap. */
enum { LEAST_HEADER_BYTES = 192 };

/* A list being made.  memory is a block of the pool, where the GPU reads and writes: first the number of headers, then
 * the headers, then the addresses of blocks. */
struct survey {
  void *memory;
  uint64_t *blocks; /* on the host */
  size_t block_count;
  MAM_WarpHeader *headers; /* on the host */
  size_t capacity;
  uint64_t count;
};

static uint64_t headers_at(const struct survey *survey) { return (uint64_t)(uintptr_t)survey->memory + 64; }
static uint64_t blocks_at(const struct survey *survey) {
  return headers_at(survey) + survey->capacity * sizeof(MAM_WarpHeader);
}

/* Writes the addresses of live blocks that could be headers to survey->blocks, in host memory. */
static cudaError_t blocks_list(MAM_Heap heap, struct survey *survey) {
  size_t count = 0, room;
  MAM_HeapBlock *blocks = NULL;
  cudaError_t error = MAM_HeapList(heap, NULL, 0, &count);
  room = count;
  if (error == cudaSuccess && count != 0) {
    blocks = malloc(count * sizeof *blocks);
    survey->blocks = malloc(count * sizeof *survey->blocks);
    error = blocks == NULL || survey->blocks == NULL
                ? error_set(cudaErrorMemoryAllocation, "the host has no memory for a list of %zu blocks", count)
                : MAM_HeapList(heap, blocks, room, &count);
  }
  for (size_t i = 0; error == cudaSuccess && i < count && i < room; i++)
    if (blocks[i].bytes >= LEAST_HEADER_BYTES)
      survey->blocks[survey->block_count++] = (uint64_t)(uintptr_t)blocks[i].address;
  free(blocks);
  return error;
}

/* Lets the GPU look at the blocks.  survey->memory has been taken. */
static cudaError_t survey_run(const struct heap_inside *inside, struct survey *survey) {
  uint64_t control = (uint64_t)(uintptr_t)inside->handle->control, count_at = (uint64_t)(uintptr_t)survey->memory,
           headers = headers_at(survey), blocks = blocks_at(survey), block_count = survey->block_count,
           capacity = survey->capacity;
  void *arguments[] = {&control, &blocks, &block_count, &headers, &capacity, &count_at};
  cudaError_t error = heap_gpu_write(inside->gpu, count_at, &survey->count, sizeof survey->count);
  if (error == cudaSuccess)
    error = heap_gpu_write(inside->gpu, blocks, survey->blocks, survey->block_count * sizeof *survey->blocks);
  if (error == cudaSuccess)
    error = heap_gpu_run(inside->gpu, HEAP_KERNEL_WARP_LIST, survey->block_count, arguments);
  if (error == cudaSuccess)
    error = heap_gpu_read(inside->gpu, &survey->count, count_at, sizeof survey->count);
  size_t written = survey->count < survey->capacity ? (size_t)survey->count : survey->capacity;
  if (error == cudaSuccess && written != 0)
    error = heap_gpu_read(inside->gpu, survey->headers, headers, written * sizeof *survey->headers);
  return error;
}

/* Takes memory and fills in headers and count of the survey. */
static cudaError_t survey_blocks(MAM_Heap heap, struct survey *survey) {
  struct heap_inside inside;
  cudaError_t error = heap_inside_enter(heap, &inside);
  if (error != cudaSuccess)
    return error;
  size_t bytes = 64 + survey->capacity * sizeof *survey->headers + survey->block_count * sizeof *survey->blocks;
  error = MAM_PoolMalloc(inside.pool, &survey->memory, bytes);
  if (error == cudaSuccess) {
    error = survey_run(&inside, survey);
    (void)MAM_CudaFree(survey->memory);
  }
  return heap_inside_leave(heap, error);
}

static int by_address(const void *left, const void *right) {
  uintptr_t a = (uintptr_t)((const MAM_WarpHeader *)left)->address,
            b = (uintptr_t)((const MAM_WarpHeader *)right)->address;
  return (a > b) - (a < b);
}

cudaError_t MAM_WarpList(MAM_Heap heap, MAM_WarpHeader *headers, size_t capacity, size_t *count) {
  LIBRARY_CALL;
  struct survey survey = {0};
  if (count == NULL || (headers == NULL && capacity != 0))
    return error_set(cudaErrorInvalidValue, "count is NULL, or headers is NULL and capacity is not 0");
  cudaError_t error = blocks_list(heap, &survey);
  if (error == cudaSuccess && survey.block_count != 0) {
    survey.capacity = survey.block_count; /* room for all, because the caller gets the lowest addresses */
    survey.headers = malloc(survey.capacity * sizeof *survey.headers);
    error = survey.headers == NULL
                ? error_set(cudaErrorMemoryAllocation, "the host has no memory for a list of headers")
                : survey_blocks(heap, &survey);
  }
  if (error == cudaSuccess && survey.count != 0) {
    size_t written = (size_t)survey.count < capacity ? (size_t)survey.count : capacity;
    qsort(survey.headers, (size_t)survey.count, sizeof *survey.headers, by_address);
    if (written != 0)
      memcpy(headers, survey.headers, written * sizeof *headers);
  }
  if (error == cudaSuccess)
    *count = (size_t)survey.count;
  free(survey.headers);
  free(survey.blocks);
  return error;
}

static cudaError_t end_inside(const struct heap_inside *inside, void *header) {
  uint64_t control = (uint64_t)(uintptr_t)inside->handle->control, address = (uint64_t)(uintptr_t)header, ended = 0;
  uint64_t answer = (uint64_t)(uintptr_t)&inside->handle->control->answer;
  void *arguments[] = {&control, &address};
  if (*inside->is_compacting)
    return error_set(cudaErrorIllegalState, "a compaction of the heap has begun and not ended");
  cudaError_t error = heap_gpu_run(inside->gpu, HEAP_KERNEL_WARP_END, 1, arguments);
  if (error == cudaSuccess)
    error = heap_gpu_read(inside->gpu, &ended, answer, sizeof ended);
  if (error == cudaSuccess && ended == 0)
    error = error_set(cudaErrorInvalidValue, "no header of a warp heap begins at %p", header);
  return error;
}

cudaError_t MAM_WarpEnd(MAM_Heap heap, void *header) {
  LIBRARY_CALL;
  struct heap_inside inside;
  cudaError_t error = heap_inside_enter(heap, &inside);
  if (error != cudaSuccess)
    return error;
  return heap_inside_leave(heap, header == NULL ? cudaSuccess : end_inside(&inside, header));
}
