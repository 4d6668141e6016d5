/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that record where they allocate, behind host functions.  Each enqueues threads, a multiple of 32, on the
 * legacy stream.  Knows nothing of Check.
 */
#ifndef MAM_TESTS_GPU_RECORD_KERNELS_H
#define MAM_TESTS_GPU_RECORD_KERNELS_H

#include <cuda_runtime_api.h>

#include "mam/heap.h"

#ifdef __CUDACC__
#define GPU_RECORD_FUNCTION static __host__ __device__ inline
#else
#define GPU_RECORD_FUNCTION static inline
#endif

/* What a thread asks for. */
GPU_RECORD_FUNCTION size_t gpu_record_bytes(unsigned thread) { return 1 + thread * 37u % 3000; }

#ifdef __cplusplus
extern "C" {
#endif

/* Even threads allocate in line 100 of first.cu, odd ones in line 200 of second.cu.  Each fills its block. */
cudaError_t gpu_record_allocate(mam_device_heap heap, void **blocks, unsigned threads);

/* Frees all but those of every third thread. */
cudaError_t gpu_record_free(mam_device_heap heap, void **blocks, unsigned threads);

#ifdef __cplusplus
}
#endif

#endif
