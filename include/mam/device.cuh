/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/device.cuh - malloc and free for kernels, from a heap that the host created (mam/heap.h).
 *
 *   __global__ void kernel(mam_heap heap) {
 *     float *row = (float *)mam_malloc(heap, 100 * sizeof(float));
 *     if (row != NULL) ...
 *     mam_free(heap, row);
 *   }
 *
 * For sm_75 and later, with and without -rdc=true, by nvcc, NVRTC and what stands on it; no other header is needed.
 * mam_heap is what MAM_HeapHandle gives: pass it to the kernel by value, as a parameter of its own.
 *
 * Every function may be called by any thread at any time: by lanes that diverged, by several kernels and streams at
 * once.  A block may be freed by any thread, in any later kernel, or by the host (MAM_HeapFree).  No function waits for
 * another thread for longer than a bounded time.
 *
 * Order: what a thread wrote to a block before it freed it comes before whatever the block's next owner does with it.
 * What another thread wrote comes before only if it happens before the free, as with any free.
 *
 * Defined before the header is included:
 *   MAM_HEAP_CHECKED   1 for frees that verify their argument: see mam_free.  It costs time.  Default 0.
 *   MAM_HEAP_RECORDED  1 for mam_malloc, mam_free and mam_malloc_size that record the calling line and the size asked
 *                      for, in heaps that have records: for all files whose kernels use the heap.  Default 0.
 */
#ifndef MAM_DEVICE_CUH
#define MAM_DEVICE_CUH

#include <mam/heap_types.h>
#ifndef MAM_HEAP_CHECKED
#define MAM_HEAP_CHECKED 0
#endif
#ifndef MAM_HEAP_RECORDED
#define MAM_HEAP_RECORDED 0
#endif

/* Allocates bytes: a multiple of 16 as its address, which belongs to the caller until mam_free.  The bytes are what
 * they are.  Up to 128 bytes it takes the next multiple of 16, above that at most a fourth more than bytes, above 32
 * KiB whole pages of 4 KiB; a full heap may serve a request from chunks up to twice as large. NULL if bytes is 0 or the
 * heap cannot serve it: mam_malloc_why says why. */
static __device__ void *mam_malloc(mam_heap heap, size_t bytes);

/* mam_malloc that writes to *why: MAM_HEAP_OK if it returns a block; else MAM_HEAP_FULL if there is no room,
 * MAM_HEAP_TOO_LARGE if there could not be any in the heap as large as it is, MAM_HEAP_ZERO if bytes is 0,
 * MAM_HEAP_BAD if heap is not the handle of a heap. */
static __device__ void *mam_malloc_why(mam_heap heap, size_t bytes, mam_heap_status *why);

/* mam_malloc that records where it was called and for how many bytes, if the host created the heap to have records
 * (MAM_HeapOptions); file is a string of the kernel's module.  A block with a record ends with it: mam_malloc_size does
 * not count it in a file with MAM_HEAP_RECORDED. */
static __device__ void *mam_malloc_at(mam_heap heap, size_t bytes, const char *file, unsigned line);

/* mam_malloc of a block whose address is a multiple of alignment: a power of two up to 4096, else NULL.  It takes what
 * mam_malloc takes for the next multiple of alignment; a full heap may serve it from chunks up to twice as large, or
 * from whole pages. */
static __device__ void *mam_malloc_aligned(mam_heap heap, size_t alignment, size_t bytes);

/* Allocates an object of a type that the host registered (MAM_HeapRegisterType): as mam_malloc of the type's size, but
 * defragmentation (MAM_HeapCompact) may move it.  NULL if type is no type, or the heap is full. */
static __device__ void *mam_malloc_typed(mam_heap heap, mam_type type);

/* Frees a block.  NULL is nothing.  What is not in the heap at all, or was freed before and not handed out since, is
 * left alone and counted (MAM_HeapInfo, refused_free_count).  With MAM_HEAP_CHECKED so is everything else that is not
 * the start of a live block. */
static __device__ void mam_free(mam_heap heap, void *block);

/* Between MAM_HeapCompactBegin and MAM_HeapCompactEnd: rewrites a pointer to an object that was moved, or into one.
 * Any other pointer stays as it is. */
template <typename Type> static __device__ void mam_forward(mam_heap heap, Type **pointer);

/* How many bytes of a live block may be used: at least what was asked for.  0 for what is not the start of a live
 * block, as far as can be seen. */
static __device__ size_t mam_malloc_size(mam_heap heap, const void *block);

#include <mam/detail/device_aligned.cuh>
#include <mam/detail/device_free.cuh>
#include <mam/detail/device_malloc.cuh>
#include <mam/detail/device_record.cuh>

#endif /* MAM_DEVICE_CUH */
