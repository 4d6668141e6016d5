/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/heap.h - device heaps, from which kernels allocate: the calls of the host.
 *
 * A device heap is memory of a pool (mam.h) from which kernels allocate, by mam_malloc and mam_free (mam/device.cuh).
 * They run on the pool's device.  A heap consists of superblocks, which are blocks of the pool.  mam-heap(7) explains
 * the terms.  The library has to be built with CUDA.  The design goes back to M. Steinberger, M. Kenzel, B. Kainz and
 * D. Schmalstieg, "ScatterAlloc: Massively Parallel Dynamic Memory Allocation for the GPU".  "The paper" and its
 * section numbers below mean that text.
 *
 * Units, results and MAM_LastError: as in mam.h.  Results that are not repeated below:
 *
 * cudaErrorInvalidValue          a pointer that the function writes to is NULL
 * cudaErrorInvalidResourceHandle the heap is NULL or was destroyed
 * cudaErrorInitializationError   in a forked child: the heap is the parent's
 * cudaErrorIllegalState          a compaction of the heap has begun and not ended (MAM_HeapCompactBegin)
 * cudaErrorContextIsDestroyed    the heap's context was destroyed or reset
 * any other value                what the driver returned
 *
 * On failure nothing changed and no output is written, unless a function's comment says otherwise.
 *
 * Threads: any thread may call any function at any time.  But no thread may use a heap while another destroys it.
 *
 * Streams: the functions work on streams of the heap's own, which wait for no other stream.  They return when that work
 * is done.  A function that must not run while kernels use the heap says so; the others may.
 */
#ifndef MAM_HEAP_H
#define MAM_HEAP_H

#include <mam.h>
#include <mam/heap_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device heap.  The caller of MAM_HeapCreate owns it.  The handle is valid until MAM_HeapDestroy. */
typedef struct mam_heap_host *MAM_Heap;

/* What MAM_HeapCreate needs to know.  Start from MAM_HEAP_OPTIONS_INIT. */
typedef struct MAM_HeapOptions {
  size_t struct_size; /* sizeof(MAM_HeapOptions) */
  size_t bytes;       /* of the first superblock, with all metadata: at least 256 KiB */
  size_t limit_bytes; /* the most bytes of all superblocks together; not less than bytes.  0 for bytes: no growth */
  size_t grow_bytes;  /* 0, or at least 256 KiB: then the heap grows under running kernels, by this or by a fourth of
                         what it has, whichever is more.  limit_bytes must then be set, to more than bytes.  See
                         mam-heap(7) */
  unsigned wait_ms; /* with grow_bytes: how many milliseconds a request waits for memory in all before it fails; at most
                       an hour */
  unsigned records; /* 1: a block can have a record of the place that allocated it, if the kernel was compiled to make
                       one (mam/device.cuh, MAM_HEAP_RECORDED and mam_malloc_at); 16 bytes each.  Else 0 */
} MAM_HeapOptions;

/* clang-format off */
#define MAM_HEAP_OPTIONS_INIT { sizeof(MAM_HeapOptions), (size_t)64 << 20, 0, 0, 1000, 0 }
/* clang-format on */

/* Creates an empty heap in memory of the pool and writes its handle to *heap.  pool may be NULL, which means the
 * default pool of the current context; the call creates that pool as MAM_CudaMalloc does.  options may be NULL, which
 * means MAM_HEAP_OPTIONS_INIT.  Each superblock is a live block of the pool until MAM_HeapTrim or MAM_HeapDestroy frees
 * it.
 *
 * cudaSuccess                    *heap is the new heap
 * cudaErrorInvalidValue          heap is NULL, an option is out of its range (MAM_LastError says which), or bytes is
 *                                too little for a heap on this GPU, or more than 3 TiB
 * cudaErrorInvalidResourceHandle there is no such pool
 * cudaErrorMemoryAllocation      the pool has no such piece, or the host has no memory or, with grow_bytes, no thread;
 *                                or the process has 65,535 heaps
 * cudaErrorNotSupported          the library was built without CUDA; the pool is in host memory, plain or page-locked;
 *                                the driver cannot launch kernels; or, with grow_bytes, it cannot register host memory
 *
 * On failure nothing changed, except that a default pool which the call created may stay. */
MAM_API cudaError_t MAM_HeapCreate(MAM_Heap *heap, MAM_Pool pool, const MAM_HeapOptions *options);

/* Destroys the heap and frees its memory in the pool.  All its blocks end.  heap may be NULL.  Kernels that use the
 * heap must have ended.  If the pool's rule of reuse waits for them (mam.h, MAM_Reuse), it is enough that they were
 * submitted before.  A compaction that has begun ends too.  Destroy the heaps of a pool before the pool.
 *
 * cudaSuccess                    the heap is gone; also for NULL
 * cudaErrorInvalidResourceHandle the heap was destroyed before
 * cudaErrorInitializationError   in a forked child: the heap is the parent's.  Nothing changed
 * other                          what MAM_CudaFree returned for a superblock; the heap is gone all the same
 *
 * If the heap's context or its pool has ended, its memory has ended with it, and the call frees only what the host
 * has. */
MAM_API cudaError_t MAM_HeapDestroy(MAM_Heap heap);

/* Writes the heap's device handle to *handle.  The host passes it to kernels by value.  A heap has one device handle:
 * it stays valid when the heap grows, is trimmed or is reset.  The call does not use the GPU.  It works during a
 * compaction too.  cudaErrorContextIsDestroyed also if the heap's pool has ended. */
MAM_API cudaError_t MAM_HeapHandle(MAM_Heap heap, mam_device_heap *handle);

/* Writes to *contains 1 if the device address lies in the heap, else 0.  It lies in the heap if it is one of a page of
 * the heap's superblocks, from which blocks come, whether a block is live there or not.  The heap's metadata are not in
 * the heap.  The call does not use the GPU.  It works during a compaction too.  Kernels call mam_heap_contains.
 *
 * cudaErrorInvalidValue          contains is NULL
 * cudaErrorContextIsDestroyed    also if the heap's pool has ended */
MAM_API cudaError_t MAM_HeapContains(MAM_Heap heap, const void *address, int *contains);

/* Adds a superblock of bytes bytes, with its metadata, from the pool (the paper, section 5.1).  Running kernels can use
 * it.  The call may wait for the GPU if the pool has no other memory, as MAM_PoolMalloc does.
 *
 * cudaErrorInvalidValue          bytes is less than 256 KiB
 * cudaErrorMemoryAllocation      the heap would pass limit_bytes, it has MAM_HEAP_SUPERBLOCKS superblocks already, the
 *                                pool has no such piece, or the host has no memory */
MAM_API cudaError_t MAM_HeapGrow(MAM_Heap heap, size_t bytes);

/* Frees superblocks that hold no block, from the last one on, as long as the heap holds more than keep_bytes.  It ends
 * at the first superblock that holds a block, and never frees the heap's first one.  Before, it frees what is set aside
 * for multiprocessors.  No kernel may use the heap during the call.
 *
 * cudaSuccess                    also if nothing could be given back
 * cudaErrorMemoryAllocation      the host has no memory for a copy of a page map
 *
 * On failure, superblocks that were freed before stay freed. */
MAM_API cudaError_t MAM_HeapTrim(MAM_Heap heap, size_t keep_bytes);

/* Frees all blocks at once, those of registered types too.  Superblocks, types, roots and counts stay.  No kernel may
 * use the heap during the call.  After an error of the driver the heap may be reset in part: then destroy it. */
MAM_API cudaError_t MAM_HeapReset(MAM_Heap heap);

/* What a heap holds.  While kernels use the heap, the numbers are not of one moment.  Start from MAM_HEAP_INFO_INIT. */
typedef struct MAM_HeapInfo {
  size_t struct_size;        /* in: sizeof(MAM_HeapInfo); the call writes no more than this */
  size_t reserved_bytes;     /* of all superblocks, with their metadata */
  size_t metadata_bytes;     /* of reserved_bytes, what is not for blocks */
  size_t used_bytes;         /* in live blocks, rounded up to their size class */
  size_t free_bytes;         /* in free pages and in free chunks of spans, without what is set aside */
  size_t largest_free_bytes; /* in the longest run of free pages */
  size_t page_bytes;         /* the size of a page */
  size_t page_count, free_page_count;
  size_t superblock_count;
  size_t live_count;             /* live blocks */
  size_t held_count;             /* chunks of spans that are set aside for a multiprocessor, and blocks of ended warp
                                    heaps that wait for the next one: neither live nor free */
  uint64_t refused_free_count;   /* frees of addresses that were no live blocks, as far as the heap noticed */
  uint64_t failure_count;        /* requests that failed because the heap had no memory */
  uint64_t growth_count;         /* superblocks added since the heap was created */
  double external_fragmentation; /* 1 - largest_free_bytes / free_bytes; 0 if nothing is free (the paper, formula 2) */
  size_t recorded_count;         /* live blocks with a record */
  size_t requested_bytes;        /* what was requested for these */
  double internal_fragmentation; /* the mean over these of the share that is not used, from 0 to 1, the record not
                                    counted; 0 if there is no such block (the paper, formula 1) */
} MAM_HeapInfo;

/* clang-format off */
#define MAM_HEAP_INFO_INIT { sizeof(MAM_HeapInfo), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Fills *info.  The call copies the heap's metadata to host memory, 1.9 % of the heap.  If the heap has records, it
 * copies them by way of memory of the pool.
 *
 * cudaErrorInvalidValue          info is NULL or its struct_size is too small
 * cudaErrorMemoryAllocation      the host has no memory for the copy, or the pool has none for the records */
MAM_API cudaError_t MAM_HeapGetInfo(MAM_Heap heap, MAM_HeapInfo *info);

/* A live block. */
typedef struct MAM_HeapBlock {
  void *address;          /* a device address */
  size_t bytes;           /* of its size class; at least what was requested */
  size_t requested_bytes; /* what was requested, if the block has a record; else 0 */
  const char *file;       /* the file that requested it, if the record has a site; else NULL.  The string belongs to the
                             heap and is valid until MAM_HeapDestroy */
  unsigned line;          /* the line in that file; else 0 */
} MAM_HeapBlock;

/* Lists the live blocks, superblock by superblock, in the order of their addresses.  The call writes the first capacity
 * blocks to the array blocks, and the number of all live blocks to *count.  blocks may be NULL if capacity is 0.
 * Blocks that are set aside (held_count) are not listed.  No kernel may use the heap during the call.
 *
 * cudaErrorInvalidValue          count is NULL, or blocks is NULL and capacity is not 0
 * cudaErrorMemoryAllocation      as for MAM_HeapGetInfo */
MAM_API cudaError_t MAM_HeapList(MAM_Heap heap, MAM_HeapBlock *blocks, size_t capacity, size_t *count);

/* Writes a report of the heap with its superblocks and its blocks by size to *json: a string that the caller releases
 * with free(3).  mam-heap(7) describes the format.  No kernel may use the heap during the call.
 *
 * cudaErrorInvalidValue          json is NULL
 * cudaErrorMemoryAllocation      as for MAM_HeapGetInfo, or the host has no memory for the text */
MAM_API cudaError_t MAM_HeapReport(MAM_Heap heap, char **json);

/* Copies bytes bytes from the device address from, which is in a live block, to host memory at to.  The copy has what
 * kernels wrote that ended before the call.  No thread may free the block meanwhile.
 *
 * cudaErrorInvalidValue          to is NULL, or the bytes are not all in one live block
 * cudaErrorMemoryAllocation      as for MAM_HeapGetInfo
 *
 * On these failures nothing is copied. */
MAM_API cudaError_t MAM_HeapCopy(MAM_Heap heap, void *to, const void *from, size_t bytes);

/* Frees a block that a kernel allocated.  block is its device address and may be NULL.
 *
 * cudaSuccess                    the block is freed; also for NULL
 * cudaErrorInvalidValue          no live block of the heap begins at that address */
MAM_API cudaError_t MAM_HeapFree(MAM_Heap heap, void *block);

/* ---- Defragmentation ----
 *
 * The design is after M. Springer, "CompactGpu: Massively Parallel Memory Defragmentation on GPUs".  Kernels move
 * objects from pages that are not full into others.  Pages that become empty go back to the heap.  Only objects of
 * registered types move (mam_malloc_typed); other blocks stay.  A compaction rewrites pointers to the objects in two
 * places: in objects of types whose pointers are registered, and in registered roots.  Kernels of the program rewrite
 * all others, by mam_forward (mam/device.cuh) between MAM_HeapCompactBegin and MAM_HeapCompactEnd.  A pointer may point
 * to any byte of an object.  mam-heap(7) has more.
 *
 * No kernel may use the heap during MAM_HeapCompact, MAM_HeapCompactBegin and MAM_HeapCompactEnd.  Between the last
 * two, kernels may read and write blocks and call mam_forward, but not allocate or free.  Then every function that
 * works on the heap gives cudaErrorIllegalState, except MAM_HeapHandle, MAM_HeapContains, MAM_HeapDestroy and
 * MAM_HeapCompactEnd. */

/* What MAM_HeapRegisterType needs to know.  Start from MAM_HEAP_TYPE_OPTIONS_INIT. */
typedef struct MAM_HeapTypeOptions {
  size_t struct_size;            /* sizeof(MAM_HeapTypeOptions) */
  size_t bytes;                  /* the size of an object: 1 to 32 KiB */
  const size_t *pointer_offsets; /* the offset of each pointer in an object, in bytes: multiples of 8.  The call copies
                                    the array.  NULL if pointer_count is 0 */
  size_t pointer_count;          /* at most 64 */
} MAM_HeapTypeOptions;

/* clang-format off */
#define MAM_HEAP_TYPE_OPTIONS_INIT { sizeof(MAM_HeapTypeOptions), 0, NULL, 0 }
/* clang-format on */

/* Registers a type of objects, for mam_malloc_typed, and writes its number to *type, which is never 0.  The type is
 * one of this heap and of no other, and lasts until the heap is destroyed.  A registered pointer in an object is NULL
 * or points anywhere.  A compaction rewrites one that points into an object that moves.  No kernel may use the heap
 * during the call.
 *
 * cudaErrorInvalidValue          options or type is NULL, or an option is out of its range (MAM_LastError says which)
 * cudaErrorMemoryAllocation      the heap has MAM_HEAP_TYPES types already, or the host has no memory */
MAM_API cudaError_t MAM_HeapRegisterType(MAM_Heap heap, const MAM_HeapTypeOptions *options, mam_type *type);

/* Registers an array of count pointers at the address pointers as roots: each compaction rewrites those that point into
 * an object that moves.  The array is in device memory, or in other memory that the device can access.  It must not be
 * in an object that can move.  The caller keeps it until MAM_HeapForgetRoots or the end of the heap.  The call does not
 * use the GPU.
 *
 * cudaErrorInvalidValue          pointers is NULL or not a multiple of 8, or count is 0
 * cudaErrorAlreadyAcquired       an array that begins at the address is registered already
 * cudaErrorMemoryAllocation      the host has no memory */
MAM_API cudaError_t MAM_HeapRegisterRoots(MAM_Heap heap, void *pointers, size_t count);

/* Undoes MAM_HeapRegisterRoots for the array that begins at the address pointers.  The call does not use the GPU.
 *
 * cudaErrorInvalidValue          no array that begins at the address is registered
 * cudaErrorMemoryAllocation      the host has no memory */
MAM_API cudaError_t MAM_HeapForgetRoots(MAM_Heap heap, void *pointers);

/* Lists the objects of a type for kernels.  The call writes the addresses of up to capacity objects to the array
 * objects, in memory that the device can write to, and the number of all objects of the type to *count, on the host.
 * Objects that are neighbours in memory are neighbours in the array.  So a kernel with one thread for each object reads
 * memory in order.  Apart from that, the order may differ from call to call.  objects may be NULL if capacity is 0.  No
 * kernel may use the heap during the call.
 *
 * cudaErrorInvalidValue          the heap has no such type, count is NULL, or objects is NULL and capacity is not 0
 * cudaErrorIllegalState          a compaction has begun and not ended; or a kernel allocated objects during the call,
 *                                as far as the library noticed: then the array may be wrong
 * cudaErrorMemoryAllocation      as for MAM_HeapCompact */
MAM_API cudaError_t MAM_HeapObjects(MAM_Heap heap, mam_type type, void **objects, size_t capacity, size_t *count);

/* How a heap is compacted.  Start from MAM_HEAP_COMPACT_OPTIONS_INIT. */
typedef struct MAM_HeapCompactOptions {
  size_t struct_size;     /* sizeof(MAM_HeapCompactOptions) */
  unsigned targets;       /* n: spans that are at most n/(n+1) full are merged, one into n others; 1 to 16 */
  unsigned pass_limit;    /* the most passes; 0: passes until there is nothing to merge */
  unsigned targets_first; /* n of the first pass, 1 to targets.  After a pass that merges little, the next one has a
                             larger n by 1 */
} MAM_HeapCompactOptions;

/* clang-format off */
#define MAM_HEAP_COMPACT_OPTIONS_INIT { sizeof(MAM_HeapCompactOptions), 2, 0, 1 }
/* clang-format on */

/* What a compaction did.  Fragmentation is meant as in the paper on CompactGpu: the mean share that is free of the
 * spans that hold objects of types.  After a compaction without a pass_limit it is below 1/(n+1), except for one such
 * span of each type.  Start from MAM_HEAP_COMPACT_INFO_INIT. */
typedef struct MAM_HeapCompactInfo {
  size_t struct_size;  /* in: sizeof(MAM_HeapCompactInfo); the call writes no more than this */
  unsigned pass_count; /* passes that merged anything */
  size_t live_count;   /* objects of types */
  size_t moved_count;  /* objects that moved; one that moves in two passes counts twice */
  size_t moved_bytes;  /* the bytes of these, rounded up to their size class */
  size_t bytes_before; /* in pages that held objects of types before the compaction */
  size_t bytes_after;  /* and after it */
  double fragmentation_before;
  double fragmentation_after;
} MAM_HeapCompactInfo;

/* clang-format off */
#define MAM_HEAP_COMPACT_INFO_INIT { sizeof(MAM_HeapCompactInfo), 0, 0, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Moves objects together, rewrites the pointers in objects and roots, and gives the pages that became empty back to the
 * heap.  It empties the superblocks that came last first; MAM_HeapTrim then gives empty superblocks to the pool.
 * options may be NULL for MAM_HEAP_COMPACT_OPTIONS_INIT.  info may be NULL.  The call waits for the GPU once.  The
 * first one takes some 0.2 % of the heap's size from the pool for its work and keeps it until MAM_HeapDestroy.
 *
 * cudaErrorInvalidValue          an option is out of its range, or the struct_size of info is too small
 * cudaErrorIllegalState          a compaction has begun and not ended: nothing changed.  Or a kernel allocated objects
 *                                during the call, as far as the library noticed: then the heap may be damaged
 * cudaErrorMemoryAllocation      the pool or the host has no memory for the work: nothing changed
 * cudaErrorNotSupported          the driver cannot launch cooperative kernels: nothing changed */
MAM_API cudaError_t MAM_HeapCompact(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info);

/* The first part of MAM_HeapCompact: it moves the objects and rewrites the pointers that are registered.  Until
 * MAM_HeapCompactEnd, which must follow, the place where an object was holds its new address.  Arguments and errors: as
 * for MAM_HeapCompact.  After a failure no compaction has begun. */
MAM_API cudaError_t MAM_HeapCompactBegin(MAM_Heap heap, const MAM_HeapCompactOptions *options,
                                         MAM_HeapCompactInfo *info);

/* The last part: it gives the pages that became empty back to the heap.  Pointers to the old places of objects are
 * invalid from here on.
 *
 * cudaErrorIllegalState          no compaction has begun: nothing changed.  Or a kernel allocated objects meanwhile, as
 *                                far as the library noticed: the compaction has ended, and the heap may be damaged
 * other                          what the driver returned; the compaction has ended */
MAM_API cudaError_t MAM_HeapCompactEnd(MAM_Heap heap);

/* How the bytes of a pool are shared between the host and the pool's device heaps.  Start from MAM_HEAP_SHARE_INIT. */
typedef struct MAM_HeapShare {
  size_t struct_size;         /* in: sizeof(MAM_HeapShare); the call writes no more than this */
  size_t reserved_bytes;      /* of the pool == call_bytes + heap_bytes + waiting_bytes + free_bytes */
  size_t call_bytes;          /* in live blocks of MAM_CudaMalloc and its variants, and in the memory that compactions
                                 keep for their work */
  size_t heap_bytes;          /* in device heaps: their superblocks and the sites of their records */
  size_t waiting_bytes;       /* freed by the host, but the GPU may still use them */
  size_t free_bytes;          /* free for the host and for heaps */
  size_t heap_count;          /* device heaps */
  size_t heap_used_bytes;     /* of heap_bytes: in live blocks of kernels, */
  size_t heap_free_bytes;     /* free for kernels, */
  size_t heap_metadata_bytes; /* and neither: metadata, and what is set aside */
} MAM_HeapShare;

/* clang-format off */
#define MAM_HEAP_SHARE_INIT { sizeof(MAM_HeapShare), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Fills *share for a pool.  pool NULL means the default pool of the current context; the call does not create it.  No
 * thread may destroy a heap of the pool during the call.  While kernels or other threads allocate, the numbers are not
 * of one moment.
 *
 * cudaErrorInvalidValue          share is NULL or its struct_size is too small
 * cudaErrorInvalidResourceHandle there is no such pool
 * cudaErrorMemoryAllocation      as for MAM_HeapGetInfo */
MAM_API cudaError_t MAM_HeapGetShare(MAM_Pool pool, MAM_HeapShare *share);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MAM_HEAP_H */
