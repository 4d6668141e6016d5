/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_records.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Records are gathered so many at a time. */
enum { GATHERED_MOST = 1 << 16 };

cudaError_t heap_records_begin(const struct heap_gpu *gpu, MAM_Pool pool, struct heap_records **records) {
  size_t bytes = MAM__SITES * sizeof(struct mam__site);
  struct heap_records *begun = calloc(1, sizeof *begun);
  void *zeros = calloc(1, bytes), *sites = NULL;
  cudaError_t error = cudaSuccess;
  if (begun == NULL || zeros == NULL)
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's records");
  if (error == cudaSuccess)
    error = MAM_PoolMalloc(pool, &sites, bytes);
  if (error == cudaSuccess)
    error = heap_gpu_write(gpu, (uint64_t)(uintptr_t)sites, zeros, bytes);
  free(zeros);
  if (error != cudaSuccess) {
    (void)MAM_CudaFree(sites);
    free(begun);
    return error;
  }
  begun->sites = sites;
  *records = begun;
  return cudaSuccess;
}

void heap_records_end(struct heap_records *records, bool gives) {
  if (records == NULL)
    return;
  if (gives)
    (void)MAM_CudaFree(records->sites);
  for (int i = 0; i < MAM__SITES; i++)
    free(records->names[i]);
  free(records);
}

/* Learns the sites that are new. */
static cudaError_t names_read(struct heap_records *records, const struct heap_gpu *gpu) {
  size_t bytes = MAM__SITES * sizeof(struct mam__site);
  struct mam__site *sites = malloc(bytes);
  if (sites == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's sites");
  cudaError_t error = heap_gpu_read(gpu, sites, (uint64_t)(uintptr_t)records->sites, bytes);
  for (int i = 0; i < MAM__SITES && error == cudaSuccess; i++)
    if (sites[i].key != 0 && records->names[i] == NULL) {
      sites[i].file[MAM__SITE_TEXT_BYTES - 1] = '\0';
      records->names[i] = strdup(sites[i].file);
      records->lines[i] = sites[i].line;
    }
  free(sites);
  return error;
}

static void note(const struct heap_records *records, const struct mam__record *record, MAM_HeapBlock *block) {
  bool holds = mam__record_holds(record, (uint64_t)(uintptr_t)block->address) &&
               record->requested <= block->bytes - sizeof *record;
  bool sited = holds && record->site != 0 && record->site <= MAM__SITES;
  block->requested_bytes = holds ? (size_t)record->requested : 0;
  block->file = sited ? records->names[record->site - 1] : NULL;
  block->line = sited ? records->lines[record->site - 1] : 0;
}

/* What a piece of the blocks needs on the host and on the GPU. */
struct gathering {
  uint64_t *places;
  struct mam__record *records;
  void *memory; /* of the pool: places, then records */
};

static cudaError_t gather(const struct heap_gpu *gpu, const struct gathering *gathering, const MAM_HeapBlock *blocks,
                          size_t count) {
  uint64_t places = (uint64_t)(uintptr_t)gathering->memory, records = places + count * sizeof *gathering->places;
  uint64_t number = count;
  void *arguments[] = {&places, &records, &number};
  for (size_t i = 0; i < count; i++)
    gathering->places[i] =
        (uint64_t)(uintptr_t)mam__record_place((uint64_t)(uintptr_t)blocks[i].address, blocks[i].bytes);
  cudaError_t error = heap_gpu_write(gpu, places, gathering->places, count * sizeof *gathering->places);
  if (error == cudaSuccess)
    error = heap_gpu_run(gpu, HEAP_KERNEL_RECORDS, count, arguments);
  return error == cudaSuccess ? heap_gpu_read(gpu, gathering->records, records, count * sizeof *gathering->records)
                              : error;
}

cudaError_t heap_records_read(struct heap_records *records, const struct heap_gpu *gpu, MAM_Pool pool,
                              MAM_HeapBlock *blocks, size_t count) {
  size_t most = count < GATHERED_MOST ? count : GATHERED_MOST;
  size_t each = sizeof(uint64_t) + sizeof(struct mam__record);
  struct gathering gathering = {malloc(most * sizeof(uint64_t)), malloc(most * sizeof(struct mam__record)), NULL};
  cudaError_t error = names_read(records, gpu);
  if (error == cudaSuccess && count != 0 && (gathering.places == NULL || gathering.records == NULL))
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's records");
  if (error == cudaSuccess && count != 0)
    error = MAM_PoolMalloc(pool, &gathering.memory, most * each);
  for (size_t done = 0; done < count && error == cudaSuccess; done += most) {
    size_t here = count - done < most ? count - done : most;
    error = gather(gpu, &gathering, &blocks[done], here);
    for (size_t i = 0; i < here && error == cudaSuccess; i++)
      note(records, &gathering.records[i], &blocks[done + i]);
  }
  if (gathering.memory != NULL)
    (void)MAM_CudaFree(gathering.memory);
  free(gathering.places);
  free(gathering.records);
  return error;
}
