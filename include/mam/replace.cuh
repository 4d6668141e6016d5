/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/replace.cuh - a device heap behind malloc, free, new and delete of kernels, without a change of the kernels'
 * text.
 *
 *   #include <mam/replace.cuh>        // anywhere in the file, which nvcc compiles
 *   __global__ void kernel() { int *row = (int *)malloc(100); ... free(row); node *n = new node(); ... delete n; }
 *
 *   mam_replace_create(128 << 20);    // on the host, before the first kernel
 *   kernel<<<blocks, threads>>>();
 *
 * In device code malloc, free, __nv_aligned_device_malloc and the operators are functions of this header: by name, by
 * address and by std::.  In host code they are unchanged.  A kernel may free only blocks of the heap that it uses.  The
 * host frees such blocks by MAM_HeapFree.  A request in a kernel without a heap returns NULL, and the first such
 * request prints a message.  If there is no room, new returns NULL, and the constructor writes to address 0, as with
 * CUDA's own new.  new (std::nothrow_t{}) constructs nothing then.
 *
 * The host names the heap for all files of the program at once.  It is the heap of the current device: a program on two
 * devices calls mam_replace_create with each device current.  Link with -lmam.
 *
 *   -rdc=true     One file that includes this header is enough: all files that are linked with it use its malloc.  This
 *                 needs a compiler that knows __local_maxnreg__, as nvcc 13.0 does.
 *   otherwise     Each file that has kernels which allocate includes this header.
 *   NVRTC         The heap is the module's global mam_replaced_heap.  The host copies to it what MAM_HeapHandle writes.
 *
 * A file that is loaded later (dlopen) has no heap until the host calls mam_replace_use again.  The files of a shared
 * library that has a CUDA runtime of its own (nvcc's default) are not reached by the program's call: the library makes
 * the call itself, with the heap that it was given.  After cudaDeviceReset no file has a heap.
 *
 * With MAM_HEAP_RECORDED defined as 1 (mam/device.cuh), malloc is a macro as well, which knows the calling line.  Then
 * include this header last.
 */
#ifndef MAM_REPLACE_CUH
#define MAM_REPLACE_CUH

#include <mam/device.cuh>
#ifndef __CUDACC_RTC__
#include <cuda_runtime_api.h>
#include <mam/heap.h>

/* Has kernels of the current device use heap, which must be a heap of that device; the call does not check this.  It
 * concerns kernels that are enqueued after the call.  NULL: they have no heap.  The heap stays the caller's.  Any
 * thread may call this at any time.
 *
 * cudaSuccess              kernels have the heap
 * other                    what MAM_HeapHandle or the CUDA runtime returned.  After an error of the runtime some files
 *                          may have the heap and others not */
static inline cudaError_t mam_replace_use(MAM_Heap heap);

/* Makes a heap of bytes bytes (MAM_HeapCreate, in the default pool) for the current device, and has kernels use it.
 * The heap lives until mam_replace_destroy, cudaDeviceReset or the end of the program.  Any thread may call this at any
 * time.
 *
 * cudaSuccess              kernels have the heap
 * cudaErrorInvalidValue    the current device has such a heap already, or bytes is less than 256 KiB
 * other                    what MAM_HeapCreate or the CUDA runtime returned
 *
 * On failure there is no new heap. */
static inline cudaError_t mam_replace_create(size_t bytes);

/* Returns the heap that mam_replace_create made for the current device; NULL if there is none.  The heap is not the
 * caller's to destroy. */
static inline MAM_Heap mam_replace_heap(void);

/* Destroys the heap that mam_replace_create made for the current device, if there is one.  Kernels have no heap then.
 * No kernel may be using the heap.
 *
 * cudaSuccess              the heap is gone; also if there was none
 * other                    what MAM_HeapDestroy or the CUDA runtime returned; the heap is gone all the same */
static inline cudaError_t mam_replace_destroy(void);
#endif

#include <mam/detail/replace.cuh>

#endif /* MAM_REPLACE_CUH */
