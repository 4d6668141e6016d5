/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that call malloc, free, new and delete, compiled with mam/replace.cuh, behind host functions.  Each enqueues
 * one block of threads on the legacy stream.  Knows nothing of Check.
 */
#ifndef MAM_TESTS_GPU_REPLACE_KERNELS_H
#define MAM_TESTS_GPU_REPLACE_KERNELS_H

#include <cuda_runtime_api.h>

#include "mam/heap.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t gpu_replace_use(MAM_Heap heap);

/* Each thread makes a list of length nodes, adds up 0 to length - 1 in it, writes the sum and frees all. */
cudaError_t gpu_replace_list(int *sums, int length, unsigned threads);

/* Each thread makes an object and a block of 40 bytes and leaves them in two places of blocks; frees what is there. */
cudaError_t gpu_replace_leave(void **blocks, unsigned threads);
cudaError_t gpu_replace_free(void **blocks, unsigned threads);

/* The same calls in host code of that file: 1. */
int gpu_replace_host(void);

#ifdef __cplusplus
}
#endif

#endif
