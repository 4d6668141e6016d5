/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/device.cuh - malloc and free for kernels, from a device heap that the host created (mam/heap.h).
 *
 *   __global__ void kernel(mam_device_heap heap) {
 *     float *row = (float *)mam_malloc(heap, 100 * sizeof(float));
 *     if (row != NULL) ...
 *     mam_free(heap, row);
 *   }
 *
 * The header works for sm_75 and later, with and without -rdc=true, with nvcc, NVRTC and tools that use NVRTC.  It
 * needs no header outside of include/mam.  The host gets the handle from MAM_HeapHandle and passes it to the kernel by
 * value; mam-heap(7) names other places for it, and explains the terms.  The kernel runs on the heap's own device.
 *
 * Any thread of a kernel may call any function at any time: lanes that diverged, and several kernels and streams at
 * once.  Any thread of the same or of another kernel may free a block, and so may the host (MAM_HeapFree).  No function
 * waits for another thread for longer than a bounded time.
 *
 * Memory order: what a thread wrote to a block before it freed the block comes before everything that the block's next
 * owner does with it.  What another thread wrote comes before that only if it happens before the free, as with any
 * free.
 *
 * Units: sizes and alignments are in bytes.
 *
 * The program may define before it includes the header:
 *   MAM_HEAP_CHECKED   1: frees verify their argument, see mam_free.  This costs time.  Default 0.
 *   MAM_HEAP_RECORDED  1: mam_malloc, mam_malloc_aligned, mam_free and mam_malloc_size keep records of the calling line
 *                      and the requested size, in heaps that have records.  Define it in all files whose kernels use
 *                      the heap.  Default 0.
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

/* Allocates at least bytes bytes and returns their address, which is a multiple of 16.  The memory is not initialised.
 * The block belongs to the caller until a free.  The block has bytes rounded up to a multiple of 16 if that is at most
 * 128.  Above that it has at most a fourth more than bytes, and above 32 KiB whole pages of 4 KiB.  A full heap may
 * serve a request from chunks of spans that are up to twice as large.
 *
 * Returns NULL if bytes is 0 or the heap cannot serve the request; mam_malloc_why says why.  If the heap grows under
 * kernels (MAM_HeapOptions, grow_bytes), the call waits for more memory before it fails, up to wait_ms. */
static __device__ void *mam_malloc(mam_device_heap heap, size_t bytes);

/* Allocates as mam_malloc does and writes the reason to *why, which must not be NULL: MAM_HEAP_OK if it returns a
 * block; MAM_HEAP_FULL if there is no room; MAM_HEAP_TOO_LARGE if the heap could not serve it even if it were empty;
 * MAM_HEAP_ZERO if bytes is 0; MAM_HEAP_BAD if heap belongs to no heap: all its bytes are 0. */
static __device__ void *mam_malloc_why(mam_device_heap heap, size_t bytes, mam_heap_status *why);

/* Allocates as mam_malloc does and records bytes, file and line for the block, if the host created the heap with
 * records (MAM_HeapOptions).  file is a string of the kernel's module.  The record takes the last 16 bytes of the
 * block.  mam_malloc_size does not count them in a file with MAM_HEAP_RECORDED. */
static __device__ void *mam_malloc_at(mam_device_heap heap, size_t bytes, const char *file, unsigned line);

/* Allocates as mam_malloc does, at an address that is a multiple of alignment.  alignment is a power of two up to 4096;
 * otherwise the call returns NULL.  The block is as large as one of mam_malloc for bytes rounded up to a multiple of
 * alignment.  A full heap may serve the request from chunks of spans that are up to twice as large, or from whole
 * pages. */
static __device__ void *mam_malloc_aligned(mam_device_heap heap, size_t alignment, size_t bytes);

/* Allocates an object of a type that the host registered (MAM_HeapRegisterType).  The object has the type's size.  A
 * compaction (MAM_HeapCompact) may move it.  Returns NULL if type is no type of the heap, or the heap is full. */
static __device__ void *mam_malloc_typed(mam_device_heap heap, mam_type type);

/* Frees a block of the heap.  block may be NULL, which does nothing.  The call refuses an address outside of the heap,
 * and one of a chunk that is free: it changes nothing and counts the call (MAM_HeapInfo, refused_free_count).  Any
 * other wrong free, such as a second one of a chunk that the heap has set aside to hand out next, may free a chunk that
 * is not the caller's.  With MAM_HEAP_CHECKED the call refuses every address at which no live block starts. */
static __device__ void mam_free(mam_device_heap heap, void *block);

/* Rewrites *pointer if it points into an object that a compaction moved, so that it points to the same byte of the
 * moved object.  Any other pointer stays as it is.  The call has an effect only between MAM_HeapCompactBegin and
 * MAM_HeapCompactEnd. */
template <typename Type> static __device__ void mam_forward(mam_device_heap heap, Type **pointer);

/* Returns how many bytes of a live block the program may use: at least what it requested.  Returns 0 for NULL, and for
 * an address at which no live block starts, as far as the call can tell. */
static __device__ size_t mam_malloc_size(mam_device_heap heap, const void *block);

/* Returns whether the address lies in the heap: in a page of its superblocks, from which blocks come, whether a block
 * is live there or not.  Any address may be asked about, also one of host memory.  The host calls MAM_HeapContains. */
static __device__ bool mam_heap_contains(mam_device_heap heap, const void *address);

#include <mam/detail/device_aligned.cuh>
#include <mam/detail/device_free.cuh>
#include <mam/detail/device_malloc.cuh>
#include <mam/detail/device_record.cuh>

#endif /* MAM_DEVICE_CUH */
