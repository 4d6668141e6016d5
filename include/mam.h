/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam.h - GPU memory from one large chunk, for the price of a host malloc.
 *
 * A pool takes a chunk of memory from its source (by default device memory of a CUDA context) and serves
 * allocations from it without calling the driver.  Published as: C. Aknesil and D. Unat, "MAM: A Memory
 * Allocation Manager for GPUs"; "the paper" and its section numbers below mean that text.
 *
 * Units: every size is in bytes.  Addresses are those of the source: device addresses for MAM_SOURCE_DEVICE.
 *
 * Results: functions return cudaError_t, with the meaning that the CUDA runtime gives each value.  They talk to
 * the driver directly, so the runtime's own last error (cudaGetLastError) and the calling thread's current context
 * stay as they are; the one exception is a thread without a context, see MAM_CudaMalloc.  After a failure,
 * MAM_LastError() holds a sentence about it, with the driver's own name for the error where the driver was asked.
 *
 * Results that are not repeated below: every function that may create a pool returns cudaErrorInvalidValue if an
 * environment variable is not understood (mam(7)) and cudaErrorNotSupported if the driver is older than CUDA 11.3.  In
 * a forked child, the parent's pools and their blocks give cudaErrorInitializationError, except on plain host memory.
 * A pool whose context was destroyed or reset gives cudaErrorContextIsDestroyed from when the library notices (mam(7))
 * until it is destroyed itself.  Any other value is what the driver answered, or cudaErrorUnknown where the operating
 * system refused.
 *
 * Threads: every function may be called by any thread at any time, unless it says otherwise.
 *
 * Streams: no function here enqueues GPU work.  Those that may wait for the GPU say so.
 *
 * The header is complete in itself: with the CUDA headers in the include path it uses their cudaError_t, without
 * them it declares the values that these functions return.  Define MAM_NO_CUDA_HEADERS to choose the latter.
 */
#ifndef MAM_H
#define MAM_H

#include <stddef.h>
#include <stdint.h>

#if !defined(MAM_NO_CUDA_HEADERS) && defined(__has_include)
#if __has_include(<driver_types.h>)
#include <driver_types.h>
#define MAM_HAVE_CUDA_HEADERS 1
#endif
#endif

#if !defined(MAM_HAVE_CUDA_HEADERS) && !defined(__DRIVER_TYPES_H__)
/* The values of cudaError_t that these functions decide themselves.  What the driver answers is passed on as it is,
 * so any other value of CUDA's cudaError_t can come back too. */
typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorAlreadyAcquired = 210,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
} cudaError_t;
#endif

#if !defined(MAM_HAVE_CUDA_HEADERS) && !defined(__DRIVER_TYPES_H__) && !defined(__DRIVER_TYPES_FWD_H__)
typedef struct CUstream_st *cudaStream_t;
#endif

#if defined(__GNUC__)
#define MAM_API __attribute__((visibility("default")))
#else
#define MAM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The paper's five (section II) ----
 *
 * They work on the environment of the calling thread's current CUDA context: one pool for each context, the default
 * pool.  It comes about in three ways: MAM_Create with a size, MAM_Create_auto with all there is, or by itself at
 * the first MAM_CudaMalloc (lazily).
 *
 * MAM_SOURCE=host in the environment puts the default pool on plain host memory, one for the process; see mam(7).
 */

/* Creates the environment with a chunk of maxSize bytes, rounded up to the 2 MiB granularity of the driver.  The
 * environment never takes more than that, and lives until MAM_Destroy.
 *
 * cudaSuccess                 the environment exists
 * cudaErrorInvalidValue       maxSize is 0
 * cudaErrorAlreadyAcquired    this context has an environment already; it stays as it was.  (One that came by itself
 *                             and holds no block gives way: it is destroyed first.)
 * cudaErrorMemoryAllocation   the source has no maxSize bytes in one piece
 * cudaErrorNoDevice           there is no CUDA driver or no device
 *
 * On failure nothing changed, except that an environment which gave way is gone.  May take milliseconds (one
 * cuMemAlloc).  Waits for the GPU only where an environment gives way. */
MAM_API cudaError_t MAM_Create(size_t maxSize);

/* Creates the environment with all the memory there is, less a headroom which the driver needs for code, stacks and
 * events of the program (MAM_HEADROOM in mam(7)): mapped as it is needed where the driver can, else, and with
 * MAM_SOURCE=device, as the largest chunk that it gives.  Otherwise as MAM_Create. */
MAM_API cudaError_t MAM_Create_auto(void);

/* Destroys the environment and hands its memory back to the source.  Every block in it is gone, freed or not.
 * Waits for running kernels, as cudaFree does.  Calls of other threads on this environment end first.
 *
 * cudaSuccess                 also when there was none, as with a NULL that is freed
 * other                       what the driver said when it took the memory back; the environment is gone all the same
 */
MAM_API cudaError_t MAM_Destroy(void);

/* Allocates size bytes and writes their address to *ptr.  The block belongs to the caller until MAM_CudaFree,
 * from any thread, or the end of the environment.  Answers as cudaMalloc does: the address is a multiple of 512,
 * and size 0 is a success that writes NULL.
 *
 * Without an environment one is created lazily, as by MAM_Create_auto, and destroys itself when its last block is
 * freed.  If it is missed again later, it comes back and from then on outlives its last block by a while
 * (MAM_LINGER_MS in mam(7)), so that a loop which frees all it has does not pay for a chunk each time.
 *
 * A thread without a current context gets the primary context of the first device, as from the CUDA runtime.  So it
 * does from every function that may create a pool in the current context.  A current context that was destroyed, or
 * reset on another device than the first, gives cudaErrorContextIsDestroyed.
 *
 * cudaSuccess                 *ptr is the block
 * cudaErrorInvalidValue       ptr is NULL
 * cudaErrorMemoryAllocation   no hole is large enough and none can be made, or the host has no memory.  Nothing
 *                             changed.  MAM_PoolExplain says why, unless the environment was created by this call:
 *                             then it ends as with its last block
 * cudaErrorNoDevice           there is no CUDA driver or no device
 * other                       an error the GPU met earlier, found while waiting for it
 *
 * On every failure *ptr is NULL.
 *
 * Waits for the GPU only where it would otherwise fail: then freed blocks whose readers may still run are the only
 * memory left (MAM_REUSE_FENCED below). */
MAM_API cudaError_t MAM_CudaMalloc(void **ptr, size_t size);

/* Frees a block of any pool: default or not, whatever context is current.  Returns at once, without waiting for
 * kernels that still use the block; under MAM_REUSE_FENCED its memory is handed out again only after they ended.
 *
 * cudaSuccess                 freed; also for NULL
 * cudaErrorInvalidValue       not the start of a live block: freed already, inside one, or not of this library;
 *                             nothing changed.  For blocks whose context was destroyed or reset see mam(7)
 * other                       an error the GPU met earlier, found while waiting; the block is freed
 *
 * Waits for the GPU where the driver has no fences (before CUDA 12.5) and the bytes that wait for reuse pass the pool's
 * waiting limit, and when the block was the
 * last one of a lazily created environment that destroys itself. */
MAM_API cudaError_t MAM_CudaFree(void *ptr);

/* ---- On a stream ----
 *
 * The same blocks as those of MAM_CudaMalloc: either free takes blocks of either allocation.
 */

/* MAM_CudaMalloc for work on a stream of the current context: takes memory at once that was freed on the same stream
 * (MAM_CudaFreeAsync), other memory as MAM_CudaMalloc does.  The block may be used at once by any stream, unless its
 * memory was freed on this one: then by work that comes after this call on the stream.  Enqueues nothing.  The streams
 * 0, cudaStreamLegacy and cudaStreamPerThread are meant as they are by cudaMallocAsync: those of the current context,
 * and 0 is the calling thread's own one in a file that is compiled with nvcc --default-stream per-thread, or with
 * CUDA_API_PER_THREAD_DEFAULT_STREAM defined before this header.
 * Errors: those of MAM_CudaMalloc, and what the driver says about a stream that is none. */
MAM_API cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream);

/* Frees a block whose last use comes before this call in the order of the stream: by work on it, or on others that it
 * was made to wait for.  Its memory goes at once to allocations on that stream, elsewhere only when the GPU is done
 * with all work submitted before this call, to the pool's context and to the stream's.
 * Errors: those of MAM_CudaFree, and what the driver says about a stream that is none; then the block is not freed. */
MAM_API cudaError_t MAM_CudaFreeAsync(void *ptr, cudaStream_t stream);

/* ---- With a tag (Futhark) ---- */

/* MAM_CudaMalloc for a place in the program that allocates again and again.  A block that was allocated with the tag is
 * remembered under it when it is freed, and taken back by an allocation of the same thread with that tag if it is at
 * least as large and at most twice as large as asked for.  tag: any address, compared and never read; NULL is as
 * MAM_CudaMalloc, which takes back blocks of exactly the same size.
 * Errors: those of MAM_CudaMalloc. */
MAM_API cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag);

/* ---- Stream captures ----
 *
 * A program that captures a stream into a CUDA graph says so: MAM_CaptureBegin before cudaStreamBeginCapture,
 * MAM_CaptureEnd after cudaStreamEndCapture.  In between, the library calls nothing in the current context that would
 * invalidate the capture: allocations and frees work, freed memory waits until the end of the capture unless it is
 * reused on its own stream, and an allocation that could only be served by waiting for the GPU fails.  Brackets of
 * several threads may overlap.
 *
 * cudaSuccess
 * cudaErrorInvalidValue       MAM_CaptureEnd: no capture has begun
 * cudaErrorMemoryAllocation   the host has no memory
 * and what the driver says where there is no current context */
MAM_API cudaError_t MAM_CaptureBegin(void);
MAM_API cudaError_t MAM_CaptureEnd(void);

/* ---- Giving back ---- */

/* Gives memory that no block needs back to the source, as long as the default pool of the current context holds more
 * than keep_bytes: caches of all threads, whole chunks, and of MAM_SOURCE_VMM and MAM_SOURCE_HOST pools the free pieces
 * of 2 MiB or more in between.  Blocks never move.  Does not wait for kernels: memory that still waits for them stays.
 *
 * cudaSuccess                 also if nothing could be given back, or there is no pool
 * other                       what the driver said */
MAM_API cudaError_t MAM_Trim(size_t keep_bytes);

/* ---- Pools as objects ---- */

/* A pool.  Owned by whoever created it; a handle is good until MAM_PoolDestroy, and may then be a later pool's. */
typedef struct mam_pool *MAM_Pool;

/* Where chunks come from (the paper, section VI: any contiguous space will do). */
typedef enum MAM_Source {
  MAM_SOURCE_DEVICE = 0,  /* device memory: cuMemAlloc */
  MAM_SOURCE_PINNED = 1,  /* page-locked host memory, mapped into every context: cuMemHostAlloc */
  MAM_SOURCE_MANAGED = 2, /* managed memory, attached globally: cuMemAllocManaged */
  MAM_SOURCE_HOST = 3,    /* plain host memory: mmap; needs no GPU and no driver */
  MAM_SOURCE_VMM = 4      /* device memory that is mapped as it is needed and unmapped by trimming, into addresses
                             reserved once: cuMemAddressReserve, cuMemCreate, cuMemMap.  Open to all devices that can
                             reach it.  No legacy IPC, and cuMemGetAddressRange may give less than a block */
} MAM_Source;

/* When the memory of a freed block may be handed out again. */
typedef enum MAM_Reuse {
  /* When all GPU work has finished that was submitted before the free to the pool's context, to contexts on whose
   * streams its blocks were freed, and to primary contexts of devices that can use them by peer access.  Safe for any
   * program whose blocks are used there.  The default. */
  MAM_REUSE_FENCED = 0,
  /* At once, the paper's rule.  For programs that use one stream, or synchronise before they free. */
  MAM_REUSE_IMMEDIATE = 1,
  /* At once to an allocation on the stream on which the block was freed, to others as if fenced.  Safe for blocks whose
   * last use comes before the free in the order of that stream.  As a pool's rule it is that of the calls with a
   * stream; the plain ones name none, and are as if fenced. */
  MAM_REUSE_STREAM = 2
} MAM_Reuse;

/* What MAM_PoolCreate needs to know.  Start from MAM_POOL_OPTIONS_INIT, which asks for: device memory of the current
 * context, fenced reuse, the largest chunk there is, no growth, blocks aligned to 512.  chunk_bytes and limit_bytes are
 * rounded up to 2 MiB, the granularity of the driver. */
typedef struct MAM_PoolOptions {
  size_t struct_size; /* sizeof(MAM_PoolOptions) */
  MAM_Source source;  /* where chunks come from */
  MAM_Reuse reuse;    /* when freed memory is handed out again */
  void *context;      /* the CUcontext, which must outlive the pool; NULL: see device */
  int device;         /* if context is NULL: a device's primary context by ordinal, -1 for the current context */
  size_t chunk_bytes; /* size of the first chunk and step of growth; 0 for the largest that the source gives, and
                         growth by what is needed */
  size_t limit_bytes; /* never hold more than this of the source; 0 for the first chunk and no growth */
  size_t alignment;   /* of addresses and sizes: a power of two from 16 to 2 MiB; 0 for 512 */
  size_t waiting_limit_bytes; /* a free that leaves more than this waiting asks for a fence, or waits where the driver
                                 has none; 0 for half of what is held */
} MAM_PoolOptions;

/* clang-format off */
#define MAM_POOL_OPTIONS_INIT { sizeof(MAM_PoolOptions), MAM_SOURCE_DEVICE, MAM_REUSE_FENCED, NULL, -1, 0, 0, 0, 0 }
/* clang-format on */

/* Creates a pool and writes its handle to *pool.  options may be NULL, which is the same as MAM_POOL_OPTIONS_INIT.
 * The first chunk is taken now.  The caller ends the pool with MAM_PoolDestroy.
 *
 * cudaSuccess                 *pool is the new pool
 * cudaErrorInvalidValue       pool is NULL, an option is out of its range, or the context does not live
 *                             (MAM_LastError says which)
 * cudaErrorInvalidDevice      there is no device of that ordinal
 * cudaErrorMemoryAllocation   the source has no such chunk, or the host no memory
 * cudaErrorNoDevice           there is no CUDA driver or no device
 *
 * On failure nothing changed and *pool is left alone. */
MAM_API cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *options);

/* Destroys a pool made by MAM_PoolCreate.  Every block in it is gone, freed or not, and its memory is the source's
 * again.  Waits for running kernels, as cudaFree does.
 *
 * cudaSuccess                    the pool is gone; also for NULL
 * cudaErrorInvalidResourceHandle destroyed before and its handle not yet a later pool's, or a default pool: that is
 *                                MAM_Destroy's
 * other                          what the driver said when it took the memory back; the pool is gone all the same */
MAM_API cudaError_t MAM_PoolDestroy(MAM_Pool pool);

/* Writes the default pool of the current context to *pool, creating it as MAM_CudaMalloc would.  The handle is good
 * until that environment ends: by MAM_Destroy or, if it was created lazily, with its last block or by giving way to
 * MAM_Create.  One created here lives on without a block until one was allocated and freed.
 * Errors: those of MAM_Create_auto but for cudaErrorAlreadyAcquired; cudaErrorInvalidValue if pool is NULL. */
MAM_API cudaError_t MAM_PoolDefault(MAM_Pool *pool);

/* MAM_CudaMalloc from a pool of choice; MAM_CudaFree frees.
 * Errors: those of MAM_CudaMalloc; cudaErrorInvalidResourceHandle if pool is NULL or destroyed. */
MAM_API cudaError_t MAM_PoolMalloc(MAM_Pool pool, void **ptr, size_t size);

/* MAM_CudaFree under a rule for this one block.  MAM_REUSE_STREAM means the default stream (0).
 * Errors: those of MAM_CudaFree; cudaErrorInvalidValue if reuse is none of MAM_Reuse. */
MAM_API cudaError_t MAM_CudaFreeReuse(void *ptr, MAM_Reuse reuse);

/* The same from a pool of choice. */
MAM_API cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream);
MAM_API cudaError_t MAM_PoolMallocTagged(MAM_Pool pool, void **ptr, size_t size, const void *tag);
MAM_API cudaError_t MAM_PoolTrim(MAM_Pool pool, size_t keep_bytes);

/* ---- Seeing in ---- */

/* What a pool holds at one moment.  used + waiting + free == reserved. */
typedef struct MAM_PoolInfo {
  size_t struct_size;        /* in: sizeof(MAM_PoolInfo); only that much is written */
  size_t reserved_bytes;     /* taken from the source */
  size_t used_bytes;         /* in live blocks, rounded up to the alignment */
  size_t requested_bytes;    /* in live blocks, as asked for */
  size_t waiting_bytes;      /* freed, not yet known to be unused by the GPU */
  size_t free_bytes;         /* in holes, ready to be handed out */
  size_t largest_free_bytes; /* the largest hole */
  size_t peak_used_bytes;    /* the most that blocks ever took of the pool, small ones as whole slabs, and with what
                                threads kept: used_bytes was never more */
  size_t limit_bytes;        /* reserved_bytes never passes this */
  size_t chunk_count;
  size_t segment_count; /* == used_count + waiting_count + free_count */
  size_t used_count;    /* live blocks */
  size_t waiting_count;
  size_t free_count;             /* holes */
  size_t metadata_bytes;         /* host memory held for segments, slabs and threads */
  uint64_t malloc_count;         /* successful allocations of at least one byte, since the pool began */
  uint64_t free_call_count;      /* successful frees */
  uint64_t failure_count;        /* allocations refused for want of memory */
  uint64_t synchronize_count;    /* times the pool waited for the GPU; on plain host memory such a wait is for nothing
                                    and costs nothing, but counts */
  double external_fragmentation; /* 1 - largest_free_bytes / free_bytes; 0 if nothing is free.  (ScatterAlloc,
                                    section 3.3, formula 2) */
  size_t cached_bytes;           /* of waiting_bytes and free_bytes: kept for small blocks and by threads for their next
                                    allocations; not in largest_free_bytes, but collected before an allocation fails */
  size_t slab_count;             /* spans of 2 MiB that small blocks are carved from */
  size_t thread_count;           /* threads that have used the pool and live */
  uint64_t magazine_hit_count;   /* of malloc_count: served by the calling thread itself, small blocks, */
  uint64_t size_hit_count;       /* larger ones, with one of that size, or a little more, that it freed, */
  uint64_t tag_hit_count;        /* with the same tag, */
  uint64_t stream_hit_count;     /* and with memory freed on the same stream */
  uint64_t fence_count;          /* events recorded in the pool's context, shared by all its pools */
  size_t peak_reserved_bytes;    /* the most that reserved_bytes ever was */
} MAM_PoolInfo;

/* Fills *info.  pool NULL means the default pool of the current context, which is not created for it.
 *
 * cudaErrorInvalidValue           info is NULL or its struct_size too small to hold anything
 * cudaErrorInvalidResourceHandle  no such pool */
MAM_API cudaError_t MAM_PoolGetInfo(MAM_Pool pool, MAM_PoolInfo *info);

/* Lets peak_used_bytes and peak_reserved_bytes begin anew, from what the pool holds now.  pool NULL and errors: as for
 * MAM_PoolGetInfo. */
MAM_API cudaError_t MAM_PoolResetPeaks(MAM_Pool pool);

/* Writes a report of the pool with every chunk and segment to *json: a string that the caller releases with free(3).
 * The format is described in mam(7).  pool NULL: as for MAM_PoolGetInfo.
 *
 * cudaErrorInvalidValue           json is NULL
 * cudaErrorInvalidResourceHandle  no such pool
 * cudaErrorMemoryAllocation       the host has no memory for the text */
MAM_API cudaError_t MAM_PoolReport(MAM_Pool pool, char **json);

/* Writes to *text a report in words that says whether, and if not why not, the pool can serve size bytes now: what
 * was asked, what is free, the largest hole, what waits, the limit, what the source said last, and which call sites
 * hold the most.  The caller releases it with free(3).  Errors: as MAM_PoolReport. */
MAM_API cudaError_t MAM_PoolExplain(MAM_Pool pool, size_t size, char **text);

/* A sentence about the last failure that the library met in the calling thread, "" if it met none: after a call that
 * failed, why it did.  (A call that succeeded may have met one too and found another way.)  The string belongs to the
 * thread and is good until its next call.  Never NULL. */
MAM_API const char *MAM_LastError(void);

/* A program that is compiled with --default-stream per-thread means its own thread's stream by 0. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
#if defined(__GNUC__)
#define MAM_PTDS_INLINE static inline __attribute__((always_inline, unused)) /* the call site is the caller's */
#else
#define MAM_PTDS_INLINE static inline
#endif
MAM_PTDS_INLINE cudaStream_t MAM_Stream_ptds(cudaStream_t stream) {
  return stream != (cudaStream_t)0 ? stream : (cudaStream_t)2; /* cudaStreamPerThread */
}
MAM_PTDS_INLINE cudaError_t MAM_CudaMallocAsync_ptds(void **ptr, size_t size, cudaStream_t stream) {
  return MAM_CudaMallocAsync(ptr, size, MAM_Stream_ptds(stream));
}
MAM_PTDS_INLINE cudaError_t MAM_CudaFreeAsync_ptds(void *ptr, cudaStream_t stream) {
  return MAM_CudaFreeAsync(ptr, MAM_Stream_ptds(stream));
}
MAM_PTDS_INLINE cudaError_t MAM_CudaFreeReuse_ptds(void *ptr, MAM_Reuse reuse) {
  return reuse == MAM_REUSE_STREAM ? MAM_CudaFreeAsync_ptds(ptr, (cudaStream_t)0) : MAM_CudaFreeReuse(ptr, reuse);
}
MAM_PTDS_INLINE cudaError_t MAM_PoolMallocAsync_ptds(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream) {
  return MAM_PoolMallocAsync(pool, ptr, size, MAM_Stream_ptds(stream));
}
#define MAM_CudaMallocAsync MAM_CudaMallocAsync_ptds
#define MAM_CudaFreeAsync MAM_CudaFreeAsync_ptds
#define MAM_CudaFreeReuse MAM_CudaFreeReuse_ptds
#define MAM_PoolMallocAsync MAM_PoolMallocAsync_ptds
#endif

#ifdef __cplusplus
} /* extern "C" */

/* cudaMalloc's convenience in C++: any object pointer. */
template <typename T> static inline cudaError_t MAM_CudaMalloc(T **ptr, size_t size) {
  return ::MAM_CudaMalloc(static_cast<void **>(static_cast<void *>(ptr)), size);
}
template <typename T> static inline cudaError_t MAM_PoolMalloc(MAM_Pool pool, T **ptr, size_t size) {
  return ::MAM_PoolMalloc(pool, static_cast<void **>(static_cast<void *>(ptr)), size);
}
#endif

#endif /* MAM_H */
