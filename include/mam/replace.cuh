/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/replace.cuh - kernels that call malloc, free, new and delete get them from a device heap, without a change of
 * their text.
 *
 *   #include <mam/replace.cuh>        // anywhere in the file
 *   __global__ void kernel() { int *row = (int *)malloc(100); ... free(row); node *n = new node(); ... delete n; }
 *
 *   mam_replace_create(128 << 20);    // on the host, before the first kernel
 *   kernel<<<blocks, threads>>>();
 *
 * In device code malloc, free, __nv_aligned_device_malloc and the operators are functions of this header, by name, by
 * address and by std::; in host code all of them are what they were.  Blocks of kernels are freed by kernels that have
 * the same heap (or by MAM_HeapFree), and kernels free no others.  A request without a heap gets NULL, and the first
 * one prints a message.  new returns NULL, as CUDA's own does, where there is no room; nothing is constructed then.
 *
 * The host names the heap for all files of the program at once: that of the current device.
 *
 *   -rdc=true     One file that includes this is enough: all that is linked with it has its malloc.
 *   without it    Each file that has kernels which allocate includes this.
 *   NVRTC         The heap is the module's global mam_replaced_heap, to which the host copies what MAM_HeapHandle
 *                 writes.
 *
 * A file that is loaded later (dlopen) has no heap until mam_replace_use is called again, nor has any after
 * cudaDeviceReset.
 *
 * With MAM_HEAP_RECORDED defined as 1 (mam/device.cuh), malloc is a macro as well, to know the calling line, and this
 * is included last.
 */
#ifndef MAM_REPLACE_CUH
#define MAM_REPLACE_CUH

#include <mam/device.cuh>
#ifndef __CUDACC_RTC__
#include <cuda_runtime_api.h>
#include <mam/heap.h>

/* From now on kernels of the current device use that heap, which is a heap of that device: those that are enqueued
 * after.  NULL: they have none.  Results: MAM_HeapHandle's, and the runtime's on the copies. */
static inline cudaError_t mam_replace_use(MAM_Heap heap);

/* Makes a heap of so many bytes (MAM_HeapCreate, in the default pool) for the current device, and uses it.  It is there
 * until mam_replace_destroy, cudaDeviceReset or the program's end.
 *
 * cudaErrorInvalidValue    there is one already, or bytes is less than 256 KiB
 * other                    MAM_HeapCreate's, and the runtime's */
static inline cudaError_t mam_replace_create(size_t bytes);

/* The heap that mam_replace_create made for the current device; NULL if there is none. */
static inline MAM_Heap mam_replace_heap(void);

/* Gives that heap back, which no kernel may be using any more; kernels have none then.  Success also if there is none.
 * Results: MAM_HeapDestroy's, and the runtime's. */
static inline cudaError_t mam_replace_destroy(void);
#endif

#include <mam/detail/replace.cuh>

#endif /* MAM_REPLACE_CUH */
