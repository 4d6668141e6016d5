/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/replace.cuh - kernels that call malloc, free, new and delete get them from a device heap, without a change of
 * their text.
 *
 *   #include <other headers>
 *   #include <mam/replace.cuh>        // last: from here on malloc(bytes) and free(block) are macros
 *   __global__ void kernel() { int *row = (int *)malloc(100); ... free(row); node *n = new node(); ... delete n; }
 *
 *   mam_replace_use(heap);            // on the host, before the first kernel: which heap (mam/heap.h)
 *   kernel<<<blocks, threads>>>();
 *
 * In host code all four are what they were.  Blocks of kernels are freed by kernels that have the same heap (or by
 * MAM_HeapFree), and kernels free no others.  Without a heap, requests get NULL; a constructor is not called on NULL.
 *
 * Compiled without -rdc=true, each file that includes this has a heap of its own, named in that file.  With it there is
 * one for all files: exactly one file says
 *
 *   #define MAM_REPLACE_HERE
 *
 * before the include, and any file names the heap.  By NVRTC the heap is the module's global mam_replaced_heap, to
 * which the host copies what MAM_HeapHandle writes.
 */
#ifndef MAM_REPLACE_CUH
#define MAM_REPLACE_CUH

#include <mam/device.cuh>
#ifndef __CUDACC_RTC__
#include <cuda_runtime_api.h>
#include <mam/heap.h>
#include <new>
#include <stdlib.h>
#endif

#if defined(__CUDACC_RTC__)
#define MAM_REPLACE_DEFINES 1
extern "C" {
__constant__ mam_heap mam_replaced_heap;
}
#elif !defined(__CUDACC_RDC__)
#define MAM_REPLACE_DEFINES 1
static __constant__ mam_heap mam_replaced_heap;
#elif defined(MAM_REPLACE_HERE)
#define MAM_REPLACE_DEFINES 1
__constant__ mam_heap mam_replaced_heap;
#else
#define MAM_REPLACE_DEFINES 0
extern __constant__ mam_heap mam_replaced_heap;
#endif

#ifndef __CUDACC_RTC__
/* Kernels of this file, or with -rdc=true of all files, use that heap from now on: those that are enqueued after.
 * Results: MAM_HeapHandle's, and the runtime's on the copy. */
static inline cudaError_t mam_replace_use(MAM_Heap heap) {
  mam_heap handle;
  cudaError_t error = MAM_HeapHandle(heap, &handle);
  return error == cudaSuccess ? cudaMemcpyToSymbol(mam_replaced_heap, &handle, sizeof handle) : error;
}
#endif

static __host__ __device__ __forceinline__ void *mam_replaced_malloc(size_t bytes, const char *file, unsigned line) {
#ifdef __CUDA_ARCH__
  return MAM_HEAP_RECORDED ? mam_malloc_at(mam_replaced_heap, bytes, file, line) : mam_malloc(mam_replaced_heap, bytes);
#else
  (void)file;
  (void)line;
  return (malloc)(bytes);
#endif
}

static __host__ __device__ __forceinline__ void mam_replaced_free(void *block) {
#ifdef __CUDA_ARCH__
  mam_free(mam_replaced_heap, block);
#else
  (free)(block);
#endif
}

#define malloc(bytes) mam_replaced_malloc(bytes, __FILE__, __LINE__)
#define free(block) mam_replaced_free(block)

/* The operators of device code.  Only there: host code keeps the program's own. */
#if MAM_REPLACE_DEFINES && defined(__CUDA_ARCH__)
__device__ void *operator new(size_t bytes) { return mam_malloc(mam_replaced_heap, bytes); }
__device__ void *operator new[](size_t bytes) { return mam_malloc(mam_replaced_heap, bytes); }
__device__ void operator delete(void *block) noexcept { mam_free(mam_replaced_heap, block); }
__device__ void operator delete[](void *block) noexcept { mam_free(mam_replaced_heap, block); }
__device__ void operator delete(void *block, size_t) noexcept { mam_free(mam_replaced_heap, block); }
__device__ void operator delete[](void *block, size_t) noexcept { mam_free(mam_replaced_heap, block); }
#endif

#endif /* MAM_REPLACE_CUH */
