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
  unsigned records; /* 1: blocks have records of who allocated them, by kernels that were compiled to make some
                       (mam/device.cuh, MAM_HEAP_RECORDED and mam_malloc_at); 16 bytes each */
} MAM_HeapOptions;

/* clang-format off */
#define MAM_HEAP_OPTIONS_INIT { sizeof(MAM_HeapOptions), (size_t)64 << 20, 0, 0, 1000, 0 }
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
  size_t recorded_count;         /* live blocks with a record, */
  size_t requested_bytes;        /* what was asked for in these, */
  double internal_fragmentation; /* and the mean of what is unused of each, from 0 to 1, the record not counted; 0 if
                                    there is none (the paper, formula 1) */
} MAM_HeapInfo;

MAM_API cudaError_t MAM_HeapGetInfo(MAM_Heap heap, MAM_HeapInfo *info);

/* A live block.  What is set aside for a multiprocessor is not listed. */
typedef struct MAM_HeapBlock {
  void *address;          /* a device address */
  size_t bytes;           /* of its size class, at least what was asked for */
  size_t requested_bytes; /* what was asked for, if that was recorded; else 0 */
  const char *file;       /* where, if that was recorded: good as long as the heap is; else NULL */
  unsigned line;
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

/* ---- Defragmentation ----
 *
 * After M. Springer, "CompactGpu: Massively Parallel Memory Defragmentation on GPUs": objects of pages that are not
 * full move together, and pages that become empty go back to the heap.  Only objects of registered types move
 * (mam_malloc_typed); other blocks never do.  Pointers to them are found in three places: in objects of types whose
 * pointers are registered, in registered roots, and wherever kernels of the program call mam_forward (mam/device.cuh)
 * between MAM_HeapCompactBegin and MAM_HeapCompactEnd.  A pointer may lead into an object.  mam-heap(7) has more.
 *
 * No kernel may use the heap during MAM_HeapCompact, MAM_HeapCompactBegin and MAM_HeapCompactEnd.  Between the last two
 * kernels may read and write blocks and call mam_forward, but not allocate or free; and every other function that works
 * on the heap gives cudaErrorIllegalState, except MAM_HeapHandle and MAM_HeapDestroy. */

/* What MAM_HeapRegisterType needs to know.  Start from MAM_HEAP_TYPE_OPTIONS_INIT. */
typedef struct MAM_HeapTypeOptions {
  size_t struct_size;            /* sizeof(MAM_HeapTypeOptions) */
  size_t bytes;                  /* of an object: 1 to 32 KiB */
  const size_t *pointer_offsets; /* of each pointer in an object, in bytes: multiples of 8.  Copied */
  size_t pointer_count;          /* at most 64 */
} MAM_HeapTypeOptions;

/* clang-format off */
#define MAM_HEAP_TYPE_OPTIONS_INIT { sizeof(MAM_HeapTypeOptions), 0, NULL, 0 }
/* clang-format on */

/* Makes a type of objects known, for mam_malloc_typed.  It is the heap's until that is destroyed.  A pointer in an
 * object is NULL, or leads to anything; one that leads to an object that moves is rewritten.
 *
 * cudaErrorInvalidValue          an option is out of its range (MAM_LastError says which)
 * cudaErrorMemoryAllocation      the heap has MAM_HEAP_TYPES types already */
MAM_API cudaError_t MAM_HeapRegisterType(MAM_Heap heap, const MAM_HeapTypeOptions *options, mam_type *type);

/* Has count pointers from *pointers on rewritten by each compaction: device memory, or what the device can access,
 * that stays until MAM_HeapForgetRoots, and is not in an object that moves.
 *
 * cudaErrorInvalidValue          pointers is NULL or no multiple of 8, or count is 0
 * cudaErrorAlreadyAcquired       roots that begin there are registered
 * cudaErrorMemoryAllocation      the host has no memory */
MAM_API cudaError_t MAM_HeapRegisterRoots(MAM_Heap heap, void *pointers, size_t count);

/* cudaErrorInvalidValue          no roots that begin there are registered */
MAM_API cudaError_t MAM_HeapForgetRoots(MAM_Heap heap, void *pointers);

/* Writes the addresses of up to capacity objects of the type to objects, an array that the device can write to, and how
 * many there are in all to *count: objects that lie side by side are side by side in the array, so a kernel that has a
 * thread for each of them reads memory in order.  The order may differ from call to call.  No kernel may use the heap
 * meanwhile.  objects may be NULL if capacity is 0.
 *
 * cudaErrorInvalidValue          the heap has no such type
 * cudaErrorIllegalState          a compaction has begun and not ended; or as for MAM_HeapCompact
 * cudaErrorMemoryAllocation      as for MAM_HeapCompact */
MAM_API cudaError_t MAM_HeapObjects(MAM_Heap heap, mam_type type, void **objects, size_t capacity, size_t *count);

/* How a heap is compacted.  Start from MAM_HEAP_COMPACT_OPTIONS_INIT. */
typedef struct MAM_HeapCompactOptions {
  size_t struct_size;     /* sizeof(MAM_HeapCompactOptions) */
  unsigned targets;       /* n: pages at most n/(n+1) full are merged, one into n others; 1 to 16 */
  unsigned pass_limit;    /* at most so many passes; 0: until there is nothing to merge */
  unsigned targets_first; /* of the first pass; where one merges little, the next has one more.  1 to targets */
} MAM_HeapCompactOptions;

/* clang-format off */
#define MAM_HEAP_COMPACT_OPTIONS_INIT { sizeof(MAM_HeapCompactOptions), 2, 0, 1 }
/* clang-format on */

/* What a compaction did.  Fragmentation is the paper's: the mean free share of the runs of pages that hold objects of
 * types.  Without a pass_limit it is below 1/(n+1) after, but for one such run of each type. */
typedef struct MAM_HeapCompactInfo {
  size_t struct_size; /* in: sizeof(MAM_HeapCompactInfo); only that much is written */
  unsigned pass_count;
  size_t live_count;   /* objects of types */
  size_t moved_count;  /* of these, moved; one that moves in two passes counts twice */
  size_t moved_bytes;  /* of these, rounded up to their size class */
  size_t bytes_before; /* in pages that hold such objects */
  size_t bytes_after;
  double fragmentation_before;
  double fragmentation_after;
} MAM_HeapCompactInfo;

/* Moves objects together, rewrites the pointers in objects and roots, and gives the pages that became empty back to the
 * heap; MAM_HeapTrim then gives superblocks that became empty to the pool: those that came last are emptied first.
 * options may be NULL for the defaults, info may be NULL.  It waits for the GPU once.  Between compactions a heap with
 * types keeps some 0.2 % of its size of the pool for their work.
 *
 * cudaErrorInvalidValue          an option is out of its range
 * cudaErrorIllegalState          a compaction has begun and not ended (nothing changed); or a kernel allocated objects
 *                                meanwhile, as far as that was noticed: then the heap may be damaged
 * cudaErrorMemoryAllocation      the pool has no memory for the work, or the host none */
MAM_API cudaError_t MAM_HeapCompact(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info);

/* The first part of MAM_HeapCompact: objects have moved and what is registered is rewritten.  What was moved leaves its
 * new address where it was until MAM_HeapCompactEnd, which follows. */
MAM_API cudaError_t MAM_HeapCompactBegin(MAM_Heap heap, const MAM_HeapCompactOptions *options,
                                         MAM_HeapCompactInfo *info);

/* The last part: gives the pages back.  Pointers to where an object was lead nowhere from now on.
 *
 * cudaErrorIllegalState          no compaction has begun; or as for MAM_HeapCompact */
MAM_API cudaError_t MAM_HeapCompactEnd(MAM_Heap heap);

/* How the bytes of a pool are shared between calls of the host and its device heaps. */
typedef struct MAM_HeapShare {
  size_t struct_size;         /* in: sizeof(MAM_HeapShare); only that much is written */
  size_t reserved_bytes;      /* of the pool == call_bytes + heap_bytes + waiting_bytes + free_bytes */
  size_t call_bytes;          /* in live blocks of MAM_CudaMalloc and its like */
  size_t heap_bytes;          /* in heaps: their superblocks, and what else they need */
  size_t waiting_bytes;       /* freed by the host, not yet known to be unused by the GPU */
  size_t free_bytes;          /* ready for either */
  size_t heap_count;          /* heaps */
  size_t heap_used_bytes;     /* of heap_bytes: in live blocks of kernels, */
  size_t heap_free_bytes;     /* free for kernels, */
  size_t heap_metadata_bytes; /* and neither */
} MAM_HeapShare;

/* Fills *share for a pool (NULL: the default pool of the current context, which is not created for it).  No heap of it
 * may be destroyed meanwhile; beside kernels and other threads the numbers are not of one moment.
 *
 * cudaErrorInvalidValue          share is NULL or its struct_size too small
 * cudaErrorInvalidResourceHandle no such pool */
MAM_API cudaError_t MAM_HeapGetShare(MAM_Pool pool, MAM_HeapShare *share);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MAM_HEAP_H */
