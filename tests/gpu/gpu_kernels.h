/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of the GPU test programs, behind host functions.
 *
 * A pattern is a sequence of bytes that depends on a seed and on the byte's index: two blocks with different seeds
 * differ in every whole word, so a byte of one that lands in the other is seen.  It is defined here once, for the GPU
 * and for the host.  This file knows nothing of pools or of Check.
 *
 * Each function enqueues on the stream given, waits for nothing, and returns cudaGetLastError() after the launch: an
 * error that was pending before comes out here too.  Addresses of blocks are multiples of 4; sizes are in bytes and may
 * be anything, 0 included.
 */
#ifndef MAM_TESTS_GPU_KERNELS_H
#define MAM_TESTS_GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __CUDACC__
#define GPU_PATTERN_FUNCTION static __host__ __device__ inline
#else
#define GPU_PATTERN_FUNCTION static inline
#endif

/* The index-th 4-byte word of the pattern.  Both steps are one-to-one, so for a given index different seeds give
 * different words. */
GPU_PATTERN_FUNCTION uint32_t gpu_pattern_word(uint32_t seed, uint64_t index) {
  uint32_t word = seed * 0x632BE5ABu + (uint32_t)(index + (index >> 32)) * 0x9E3779B1u;
  return word ^ (word >> 15);
}

/* The index-th byte of the pattern. */
GPU_PATTERN_FUNCTION uint8_t gpu_pattern_byte(uint32_t seed, uint64_t index) {
  return (uint8_t)(gpu_pattern_word(seed, index / 4) >> (8 * (index % 4)));
}

#ifdef __cplusplus
extern "C" {
#endif

/* Loads every kernel of this file into the current context now.  Otherwise the first launch of each does, which may
 * wait for kernels that run and takes memory. */
cudaError_t gpu_kernels_load(void);

/* Writes the pattern of seed over the whole block. */
cudaError_t gpu_fill(void *block, size_t bytes, uint32_t seed, cudaStream_t stream);

/* Adds the number of bytes that differ from the pattern of seed to *mismatches: device memory, or host memory that is
 * mapped. */
cudaError_t gpu_check(const void *block, size_t bytes, uint32_t seed, uint64_t *mismatches, cudaStream_t stream);

/* Copies bytes from one block to another that does not overlap it. */
cudaError_t gpu_copy(void *to, const void *from, size_t bytes, cudaStream_t stream);

/* Runs until *stop, a word of mapped host memory, is not 0, at most limit_ms milliseconds, and only then writes the
 * pattern of seed over the block.  One kernel of one thread block: it leaves room for others beside it.  block may be
 * NULL if bytes is 0. */
cudaError_t gpu_spin_then_fill(const uint32_t *stop, unsigned limit_ms, void *block, size_t bytes, uint32_t seed,
                               cudaStream_t stream);

/* What gpu_hold kernels report, in mapped host memory.  The host may read it while they run, without a CUDA call. */
struct gpu_tally {
  uint64_t faults;   /* bytes that were not the holder's when it looked again */
  uint64_t finished; /* kernels that are done with their blocks; goes up after their faults */
};

/* Writes the pattern of seed over the block, keeps it for hold_us microseconds, or until *stop is not 0, and then looks
 * whether the pattern is still there.  One kernel of one thread block. */
cudaError_t gpu_hold(const uint32_t *stop, unsigned hold_us, void *block, size_t bytes, uint32_t seed,
                     struct gpu_tally *tally, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
