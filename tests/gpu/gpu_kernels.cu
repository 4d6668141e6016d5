/* SPDX-License-Identifier: BSD-2-Clause */
#include "gpu_kernels.h"

static const unsigned threads_per_block = 256;
static const size_t blocks_at_most = 1024; /* loops stride over the grid, so more blocks only cost launch time */

/* How many thread blocks bytes need, with a word for each thread. */
static unsigned grid_for(size_t bytes) {
  size_t blocks = bytes / 4 / threads_per_block + 1;
  return (unsigned)(blocks < blocks_at_most ? blocks : blocks_at_most);
}

/* All threads write whole words; the first one writes the last one to three bytes. */
static __device__ void pattern_write(uint8_t *block, size_t bytes, uint32_t seed, size_t thread, size_t threads) {
  uint32_t *words = (uint32_t *)block;
  for (size_t i = thread; i < bytes / 4; i += threads)
    words[i] = gpu_pattern_word(seed, i);
  if (thread == 0)
    for (size_t i = bytes / 4 * 4; i < bytes; i++)
      block[i] = gpu_pattern_byte(seed, i);
}

static __global__ void fill_kernel(uint8_t *block, size_t bytes, uint32_t seed) {
  pattern_write(block, bytes, seed, blockIdx.x * (size_t)blockDim.x + threadIdx.x, gridDim.x * (size_t)blockDim.x);
}

/* How many of the four bytes of two words differ. */
static __device__ unsigned bytes_unlike(uint32_t left, uint32_t right) {
  unsigned count = 0;
  for (uint32_t difference = left ^ right; difference != 0; difference >>= 8)
    count += (difference & 0xFF) != 0;
  return count;
}

static __global__ void check_kernel(const uint8_t *block, size_t bytes, uint32_t seed, unsigned long long *mismatches) {
  const uint32_t *words = (const uint32_t *)block;
  size_t thread = blockIdx.x * (size_t)blockDim.x + threadIdx.x, threads = gridDim.x * (size_t)blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = thread; i < bytes / 4; i += threads)
    mine += bytes_unlike(words[i], gpu_pattern_word(seed, i));
  if (thread == 0)
    for (size_t i = bytes / 4 * 4; i < bytes; i++)
      mine += block[i] != gpu_pattern_byte(seed, i);
  if (mine != 0)
    atomicAdd(mismatches, mine);
}

static __global__ void copy_kernel(uint8_t *to, const uint8_t *from, size_t bytes) {
  size_t thread = blockIdx.x * (size_t)blockDim.x + threadIdx.x, threads = gridDim.x * (size_t)blockDim.x;
  for (size_t i = thread; i < bytes / 4; i += threads)
    ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
  if (thread == 0)
    for (size_t i = bytes / 4 * 4; i < bytes; i++)
      to[i] = from[i];
}

static __device__ uint64_t now_ns(void) {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/* Two clocks limit the wait, so that it ends even if one stands still: wall time, and 4000 cycles a microsecond, which
 * is more than any such GPU has. */
static __device__ void spin(const volatile uint32_t *stop, uint64_t limit_us) {
  uint64_t start_ns = now_ns(), limit_ns = limit_us * 1000;
  long long start_cycles = clock64(), limit_cycles = (long long)limit_us * 4000;
  while (*stop == 0 && now_ns() - start_ns < limit_ns && clock64() - start_cycles < limit_cycles)
    __nanosleep(1000);
}

static __global__ void spin_then_fill_kernel(const volatile uint32_t *stop, unsigned limit_ms, uint8_t *block,
                                             size_t bytes, uint32_t seed) {
  if (threadIdx.x == 0)
    spin(stop, limit_ms * (uint64_t)1000);
  __syncthreads();
  pattern_write(block, bytes, seed, threadIdx.x, blockDim.x);
}

/* How many of this thread's bytes differ from the pattern.  Volatile, so that memory is read: a register, or a cache of
 * this multiprocessor, does not show what others wrote. */
static __device__ unsigned pattern_faults(const uint8_t *block, size_t bytes, uint32_t seed) {
  const volatile uint32_t *words = (const volatile uint32_t *)block;
  unsigned faults = 0;
  for (size_t i = threadIdx.x; i < bytes / 4; i += blockDim.x)
    faults += bytes_unlike(words[i], gpu_pattern_word(seed, i));
  if (threadIdx.x == 0)
    for (size_t i = bytes / 4 * 4; i < bytes; i++)
      faults += ((const volatile uint8_t *)block)[i] != gpu_pattern_byte(seed, i);
  return faults;
}

static __global__ void hold_kernel(const volatile uint32_t *stop, unsigned hold_us, uint8_t *block, size_t bytes,
                                   uint32_t seed, struct gpu_tally *tally) {
  pattern_write(block, bytes, seed, threadIdx.x, blockDim.x);
  __threadfence(); /* the pattern is in memory before the wait, so that it does not overwrite a later writer's */
  __syncthreads();
  if (threadIdx.x == 0)
    spin(stop, hold_us);
  __syncthreads();
  unsigned faults = pattern_faults(block, bytes, seed);
  if (faults != 0)
    atomicAdd((unsigned long long *)&tally->faults, (unsigned long long)faults);
  __threadfence_system(); /* the host sees the faults before it sees the end */
  __syncthreads();
  if (threadIdx.x == 0)
    atomicAdd((unsigned long long *)&tally->finished, 1ull);
}

/* A question about a kernel's attributes loads it. */
static cudaError_t load(const void *kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

extern "C" cudaError_t gpu_kernels_load(void) {
  const void *kernels[] = {(const void *)fill_kernel, (const void *)check_kernel, (const void *)copy_kernel,
                           (const void *)spin_then_fill_kernel, (const void *)hold_kernel};
  for (const void *kernel : kernels) {
    cudaError_t error = load(kernel);
    if (error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

extern "C" cudaError_t gpu_fill(void *block, size_t bytes, uint32_t seed, cudaStream_t stream) {
  fill_kernel<<<grid_for(bytes), threads_per_block, 0, stream>>>((uint8_t *)block, bytes, seed);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_check(const void *block, size_t bytes, uint32_t seed, uint64_t *mismatches,
                                 cudaStream_t stream) {
  check_kernel<<<grid_for(bytes), threads_per_block, 0, stream>>>((const uint8_t *)block, bytes, seed,
                                                                  (unsigned long long *)mismatches);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_copy(void *to, const void *from, size_t bytes, cudaStream_t stream) {
  copy_kernel<<<grid_for(bytes), threads_per_block, 0, stream>>>((uint8_t *)to, (const uint8_t *)from, bytes);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_spin_then_fill(const uint32_t *stop, unsigned limit_ms, void *block, size_t bytes,
                                          uint32_t seed, cudaStream_t stream) {
  spin_then_fill_kernel<<<1, threads_per_block, 0, stream>>>(stop, limit_ms, (uint8_t *)block, bytes, seed);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_hold(const uint32_t *stop, unsigned hold_us, void *block, size_t bytes, uint32_t seed,
                                struct gpu_tally *tally, cudaStream_t stream) {
  unsigned threads = bytes > 65535 ? 1024 : 64;
  hold_kernel<<<1, threads, 0, stream>>>(stop, hold_us, (uint8_t *)block, bytes, seed, tally);
  return cudaGetLastError();
}
