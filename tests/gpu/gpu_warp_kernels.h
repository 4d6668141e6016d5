/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of the tests of warp heaps, behind host functions: lanes start headers together, allocate, write a
 * pattern to every byte, check it, tidy up, end, hand over.
 *
 * Each function enqueues on the default stream and returns cudaGetLastError() after the launch.  The bytes of a request
 * depend only on the thread, the request and the traffic.  Kernels add to tally and never clear it.  This file knows
 * nothing of Check.
 *
 * The functions exist twice: as gpu_warp_NAME, and as gpu_warp_checked_NAME by kernels that notice misuse.
 */
#ifndef MAM_TESTS_GPU_WARP_KERNELS_H
#define MAM_TESTS_GPU_WARP_KERNELS_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#include "gpu_kernels.h"
#include "mam/heap.h"
#include "mam/warp_types.h"

/* How lanes come to their calls. */
enum gpu_warp_lanes {
  GPU_WARP_TOGETHER,
  GPU_WARP_SOME,       /* the lanes of a mask that differs from warp to warp; the others have returned */
  GPU_WARP_FULL_MASK,  /* the same, but they start with a mask of all lanes */
  GPU_WARP_PASSERS_BY, /* as SOME, but the others stay and never ask */
  GPU_WARP_ONE_BY_ONE, /* each in a branch of its own */
  GPU_WARP_HALVES,     /* odd lanes, then even ones */
  GPU_WARP_TIDY_LESS,  /* together, but in each round some do not tidy up */
  GPU_WARP_END_EARLY,  /* together, but lanes end after different rounds */
  GPU_WARP_TILES,      /* + base-2 logarithm of the size: a header for each tile of a cooperative group */
};

struct gpu_warp_traffic {
  unsigned threads;
  unsigned requests, rounds; /* of each thread in each round; it tidies up between rounds */
  unsigned low, high;        /* bytes; 0 may be requested, too */
  unsigned seed;
  unsigned lanes; /* enum gpu_warp_lanes */
  mam_warp_options options;
};

struct gpu_warp_tally {
  unsigned long long served, refused[5];    /* requests, by what mam_warp_malloc_why said */
  unsigned long long started, not_started;  /* threads */
  unsigned long long misaligned, unordered; /* blocks; unordered: not side by side in the order of lanes */
  unsigned long long contradictions;        /* a block although the status is not MAM_HEAP_OK, or the reverse */
  unsigned long long changed_bytes;
  unsigned long long adopted;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds of requests, each with its pattern, which is looked at when the round is over; then the header is ended, or,
 * if keeps, handed over: its address is left in headers (a place for each thread, 0: none), the blocks of the last
 * round in blocks (requests places for each thread). */
#define GPU_WARP_FUNCTIONS(prefix)                                                                                     \
  cudaError_t prefix##_run(mam_device_heap heap, struct gpu_warp_traffic traffic, int keeps, uint64_t *headers,        \
                           uint64_t *blocks, struct gpu_warp_tally *tally);                                            \
  /* Checks the blocks of the last round. */                                                                           \
  cudaError_t prefix##_check(struct gpu_warp_traffic traffic, const uint64_t *headers, const uint64_t *blocks,         \
                             struct gpu_warp_tally *tally);                                                            \
  /* Adopts the headers, makes another request in each, and ends them. */                                              \
  cudaError_t prefix##_finish(struct gpu_warp_traffic traffic, const uint64_t *headers, struct gpu_warp_tally *tally); \
  /* The misuse that the paper's listing 2 shows, by one block of threads: some lanes start, all allocate, one ends.   \
   */                                                                                                                  \
  cudaError_t prefix##_misuse(mam_device_heap heap, unsigned threads, uint64_t *headers,                               \
                              struct gpu_warp_tally *tally);                                                           \
  /* A warp allocates from each of those headers, whosever they are, and ends them. */                                 \
  cudaError_t prefix##_intrude(const uint64_t *headers, unsigned count, struct gpu_warp_tally *tally);

GPU_WARP_FUNCTIONS(gpu_warp)
GPU_WARP_FUNCTIONS(gpu_warp_checked)

#ifdef __cplusplus
}
#endif

#endif
