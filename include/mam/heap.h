/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/heap.h - heaps that kernels allocate from: what the host does with them.
 *
 * A heap is memory of a pool (mam.h) in which kernels call mam_malloc and mam_free (mam/device.cuh).  It goes back to
 * M. Steinberger, M. Kenzel, B. Kainz and D. Schmalstieg, "ScatterAlloc: Massively Parallel Dynamic Memory Allocation
 * for the GPU"; "the paper" and its section numbers below mean that text.
 *
 * Units, results and MAM_LastError: as in mam.h.  Results that are not repeated below: every function returns
 * cudaErrorInvalidValue where a pointer that it writes to is NULL, cudaErrorInvalidResourceHandle if the heap is NULL
 * or destroyed, cudaErrorContextIsDestroyed if its context is, and otherwise what the driver answered.  On failure
 * nothing changed and no output is written, unless it says otherwise.
 *
 * Threads: every function may be called by any thread at any time, but nobody may use a heap that is being destroyed.
 *
 * Streams: the functions work on a stream of the heap's own, which waits for no other, and return when that work is
 * done.  Those that must not run beside kernels that use the heap say so; the others may.
 */
#ifndef MAM_HEAP_H
#define MAM_HEAP_H

#include <mam.h>
#include <mam/heap_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A heap.  Owned by whoever created it; good until MAM_HeapDestroy. */
typedef struct mam_heap_host *MAM_Heap;

/* What MAM_HeapCreate needs to know.  Start from MAM_HEAP_OPTIONS_INIT. */
typedef struct MAM_HeapOptions {
  size_t struct_size; /* sizeof(MAM_HeapOptions) */
  size_t bytes;       /* of the first superblock, metadata included: at least 256 KiB */
  size_t limit_bytes; /* all superblocks together never pass this; 0 for bytes, no growth */
  size_t grow_bytes;  /* 0, or growth under running kernels: by this much at least (256 KiB or more), and by a fourth of
                         what the heap has; see mam-heap(7) */
  unsigned wait_ms; /* with grow_bytes: how long a request waits for memory in all, before it fails; at most an hour */
} MAM_HeapOptions;

/* clang-format off */
#define MAM_HEAP_OPTIONS_INIT { sizeof(MAM_HeapOptions), (size_t)64 << 20, 0, 0, 1000 }
/* clang-format on */

/* Creates a heap in memory of the pool (NULL: the default pool of the current context, created as by MAM_CudaMalloc)
 * and writes it to *heap.  The memory counts as a live block of the pool until MAM_HeapDestroy.
 *
 * cudaSuccess                    *heap is the new heap, and empty
 * cudaErrorInvalidValue          an option is out of its range (MAM_LastError says which)
 * cudaErrorInvalidResourceHandle no such pool
 * cudaErrorMemoryAllocation      the pool has no such piece, or the host no memory
 * cudaErrorNotSupported          the library was built without CUDA, or the pool is on plain host memory */
MAM_API cudaError_t MAM_HeapCreate(MAM_Heap *heap, MAM_Pool pool, const MAM_HeapOptions *options);

/* Gives the heap's memory back to its pool.  Every block in it is gone.  Kernels that use it must have ended, or have
 * been submitted before, under a pool's rule that heeds that (mam.h, MAM_Reuse).
 *
 * cudaSuccess                    the heap is gone; also for NULL */
MAM_API cudaError_t MAM_HeapDestroy(MAM_Heap heap);

/* Writes what kernels are given, by value, to *handle.  The same heap always gives the same handle: it stays good when
 * the heap grows, shrinks or is reset. */
MAM_API cudaError_t MAM_HeapHandle(MAM_Heap heap, mam_heap *handle);

/* Adds a superblock of bytes, metadata included, from the pool (the paper, section 5.1).  Kernels that run see it.
 *
 * cudaErrorInvalidValue          less than 256 KiB
 * cudaErrorMemoryAllocation      it would pass limit_bytes, the heap has MAM_HEAP_SUPERBLOCKS already, or the pool has
 *                                no such piece */
MAM_API cudaError_t MAM_HeapGrow(MAM_Heap heap, size_t bytes);

/* Gives superblocks in which nothing is allocated back to the pool, the last one first, as long as the heap holds more
 * than keep_bytes; never the first one.  No kernel may use the heap meanwhile. */
MAM_API cudaError_t MAM_HeapTrim(MAM_Heap heap, size_t keep_bytes);

/* Frees everything at once.  Superblocks stay.  No kernel may use the heap meanwhile. */
MAM_API cudaError_t MAM_HeapReset(MAM_Heap heap);

/* What a heap holds at one moment.  Beside kernels that use the heap the numbers are not of one moment. */
typedef struct MAM_HeapInfo {
  size_t struct_size;        /* in: sizeof(MAM_HeapInfo); only that much is written */
  size_t reserved_bytes;     /* of all superblocks, metadata included */
  size_t metadata_bytes;     /* of these, not for blocks */
  size_t used_bytes;         /* in live blocks, rounded up to their size class */
  size_t free_bytes;         /* in free pages and in free chunks of split ones */
  size_t largest_free_bytes; /* the largest run of free pages */
  size_t page_bytes;         /* what the heap is divided in */
  size_t page_count, free_page_count;
  size_t superblock_count;
  size_t live_count;             /* live blocks */
  size_t held_count;             /* chunks that are set aside for a multiprocessor: neither live nor free */
  uint64_t refused_free_count;   /* frees of what was no live block, as far as they were noticed */
  uint64_t failure_count;        /* requests that failed for want of memory */
  uint64_t growth_count;         /* superblocks added */
  double external_fragmentation; /* 1 - largest_free_bytes / free_bytes; 0 if nothing is free (the paper, formula 2) */
} MAM_HeapInfo;

MAM_API cudaError_t MAM_HeapGetInfo(MAM_Heap heap, MAM_HeapInfo *info);

/* A live block.  What is set aside for a multiprocessor is not listed. */
typedef struct MAM_HeapBlock {
  void *address; /* a device address */
  size_t bytes;  /* of its size class, at least what was asked for */
} MAM_HeapBlock;

/* Writes up to capacity live blocks, in the order of their addresses within each superblock, to blocks and how many
 * there are in all to *count.  No kernel may use the heap meanwhile.  blocks may be NULL if capacity is 0. */
MAM_API cudaError_t MAM_HeapList(MAM_Heap heap, MAM_HeapBlock *blocks, size_t capacity, size_t *count);

/* Writes a report of the heap with its superblocks and its blocks by size to *json: a string that the caller releases
 * with free(3).  The format is described in mam-heap(7).  No kernel may use the heap meanwhile. */
MAM_API cudaError_t MAM_HeapReport(MAM_Heap heap, char **json);

/* Copies bytes from a live block, or from inside one, to host memory.  Sees what kernels wrote that ended before.
 *
 * cudaErrorInvalidValue          from is not in a live block, or that block ends earlier; nothing is copied */
MAM_API cudaError_t MAM_HeapCopy(MAM_Heap heap, void *to, const void *from, size_t bytes);

/* Frees a block that a kernel allocated.  May run beside kernels that use the heap.
 *
 * cudaSuccess                    freed; also for NULL
 * cudaErrorInvalidValue          no live block of the heap begins there */
MAM_API cudaError_t MAM_HeapFree(MAM_Heap heap, void *block);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MAM_HEAP_H */
