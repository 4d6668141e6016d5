/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that call malloc, free, new and delete, compiled with mam/replace.cuh, behind host functions.  Each enqueues
 * one grid on the legacy stream.  Knows nothing of Check.
 */
#ifndef MAM_TESTS_GPU_REPLACE_KERNELS_H
#define MAM_TESTS_GPU_REPLACE_KERNELS_H

#include <cuda_runtime_api.h>

#include "mam/heap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels of mam/replace.cuh. */
cudaError_t gpu_replace_use(MAM_Heap heap);
cudaError_t gpu_replace_create(size_t bytes);
cudaError_t gpu_replace_destroy(void);
MAM_Heap gpu_replace_heap(void);

/* Each thread makes a list of length nodes with the numbers 0 to length - 1, writes their sum and frees the list. */
cudaError_t gpu_replace_list(int *sums, int length, unsigned threads);

/* Each thread takes a block by each of the calls that allocate, and frees it by the call that belongs to it. */
enum { GPU_REPLACE_DOORS = 10 };
cudaError_t gpu_replace_take(void **blocks, unsigned threads);
cudaError_t gpu_replace_give(void **blocks, unsigned threads);

/* The same calls in host code of that file.  Returns 1. */
int gpu_replace_host(void);

/* Other files of the program.  second: compiled like that file.  linked and other: with -rdc=true, and linked with each
 * other.  debug: with -rdc=true, for debuggers.  plain and beside: linked with linked, or with debug, and without
 * mam/replace.cuh.  empty: without kernels.  Each thread leaves a block in each of four places, or frees what is there.
 * keep: threads of blocks of 1,024 keep GPU_REPLACE_KEPT of the values, from their number on, while they allocate and
 * free, and count in *wrong how many have changed. */
enum { GPU_REPLACE_PART_BLOCKS = 4, GPU_REPLACE_KEPT = 24 };
#define GPU_REPLACE_PART(part)                                                                                         \
  cudaError_t gpu_replace_##part##_leave(void **blocks, unsigned threads);                                             \
  cudaError_t gpu_replace_##part##_free(void **blocks, unsigned threads);                                              \
  cudaError_t gpu_replace_##part##_keep(const unsigned *values, unsigned rounds, unsigned *wrong, unsigned blocks);
GPU_REPLACE_PART(second)
GPU_REPLACE_PART(linked)
GPU_REPLACE_PART(other)
GPU_REPLACE_PART(plain)
GPU_REPLACE_PART(debug)
GPU_REPLACE_PART(beside)
int gpu_replace_empty_kernels(void);

/* Takes count aligned blocks, NULL for a refused one, and frees every step-th. */
cudaError_t gpu_aligned_take(mam_device_heap heap, void **blocks, unsigned count, size_t alignment, size_t bytes);
cudaError_t gpu_aligned_give(mam_device_heap heap, void **blocks, unsigned count, unsigned step);

#ifdef __cplusplus
}
#endif

#endif
