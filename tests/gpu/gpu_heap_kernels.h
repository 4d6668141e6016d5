/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of the tests of device heaps, behind host functions: they allocate, write a pattern to every byte, check
 * it, free.
 *
 * Each function enqueues on the stream given and returns cudaGetLastError() after the launch.  slots has a place for
 * each request: the block's address, 0 for none.  The bytes of a request depend only on the request and the traffic, so
 * that any thread that checks or frees a block knows them.  Kernels add to tally and never clear it.  This file knows
 * nothing of Check.
 */
#ifndef MAM_TESTS_GPU_HEAP_KERNELS_H
#define MAM_TESTS_GPU_HEAP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "gpu_kernels.h"
#include "mam/heap.h"

enum { GPU_HEAP_STATUSES = 5 };

/* What kernels counted. */
struct gpu_heap_tally {
  unsigned long long served, refused[GPU_HEAP_STATUSES]; /* requests, by what mam_malloc_why said */
  unsigned long long misaligned, too_small;              /* blocks whose address, or whose mam_malloc_size, is wrong */
  unsigned long long outside;                            /* first or last bytes that do not lie in the heap */
  unsigned long long contradictions; /* a block although the status is not MAM_HEAP_OK, or the reverse */
  unsigned long long changed_bytes;  /* that differ from the pattern */
  unsigned long long freed;
};

/* How the lanes of a warp come to their call. */
enum gpu_heap_lanes {
  GPU_HEAP_TOGETHER,   /* as they are */
  GPU_HEAP_ONE_BY_ONE, /* each in a branch of its own */
  GPU_HEAP_IN_TILES,   /* one of each eight, by cooperative groups, for all eight: the others have no block */
  GPU_HEAP_SOME,       /* those of a mask that differs from warp to warp; the others have no block */
};

/* Sizes from low to high, both included. */
struct gpu_heap_traffic {
  unsigned count; /* of requests: one for each thread */
  unsigned low, high;
  unsigned seed;
  enum gpu_heap_lanes lanes;
};

#ifdef __CUDACC__
#define GPU_HEAP_FUNCTION static __host__ __device__ inline
#else
#define GPU_HEAP_FUNCTION static inline
#endif

/* The bytes of a request.  Where there are as many requests as sizes, they are low + i for request i. */
GPU_HEAP_FUNCTION unsigned gpu_heap_bytes(const struct gpu_heap_traffic *traffic, unsigned request) {
  unsigned range = traffic->high - traffic->low + 1;
  if (range >= traffic->count)
    return traffic->low + (unsigned)((unsigned long long)(request % traffic->count) * range / traffic->count);
  return traffic->low + (request * 0x9E3779B1u + traffic->seed * 0x85EBCA6Bu) / 64 % range;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates a block for each request whose slot is 0, and writes its pattern. */
cudaError_t gpu_heap_allocate(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                              struct gpu_heap_tally *tally, cudaStream_t stream);

/* Looks whether every block has its pattern. */
cudaError_t gpu_heap_check(struct gpu_heap_traffic traffic, const unsigned long long *slots,
                           struct gpu_heap_tally *tally, cudaStream_t stream);

/* Frees blocks and clears their slots.  A thread frees the block shift places after its own.  Only every step-th place
 * takes part, from first on. */
cudaError_t gpu_heap_release(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned shift, unsigned first,
                             unsigned step, unsigned long long *slots, struct gpu_heap_tally *tally,
                             cudaStream_t stream);

/* Each thread allocates, checks and frees blocks of its own, rounds times, and has none at the end. */
cudaError_t gpu_heap_churn(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                           struct gpu_heap_tally *tally, cudaStream_t stream);

/* Each thread leaves its block in a slot, from which threads of all warps take blocks, check and free them, rounds
 * times. Blocks have at least 16 bytes.  gpu_heap_drain frees what stays in the slots. */
cudaError_t gpu_heap_exchange(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                              unsigned long long *slots, struct gpu_heap_tally *tally, cudaStream_t stream);
cudaError_t gpu_heap_drain(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                           struct gpu_heap_tally *tally, cudaStream_t stream);

/* One thread frees that address, whatever it is. */
cudaError_t gpu_heap_free_address(mam_device_heap heap, unsigned long long address, cudaStream_t stream);

/* A thread for each of count addresses, at most 1,024: whether mam_heap_contains says that it lies in the heap. */
cudaError_t gpu_heap_contains(mam_device_heap heap, const unsigned long long *addresses, unsigned count, int *answers,
                              cudaStream_t stream);

/* One thread makes a request of so many bytes.  The answer goes to the tally, and the block, if there is one, to
 * *slot. */
cudaError_t gpu_heap_ask(mam_device_heap heap, unsigned long long bytes, unsigned long long *slot,
                         struct gpu_heap_tally *tally, cudaStream_t stream);

/* Each thread of so many blocks of 128 grows a tree of so many levels by recursion, as far as the heap has room, and
 * fells it, so many times. */
cudaError_t gpu_heap_trees(mam_device_heap heap, unsigned blocks, unsigned levels, unsigned rounds,
                           struct gpu_heap_tally *tally, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
