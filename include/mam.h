/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam.h - GPU memory from one large chunk, for the price of a host malloc.
 *
 * A pool takes chunks of memory from its source (by default device memory of a CUDA context).  It serves allocations
 * from its chunks without calling the driver.  A block is what an allocation gives to the program.  The method is
 * published as: C. Aknesil and D. Unat, "MAM: A Memory Allocation Manager for GPUs".  "The paper" and its section
 * numbers below mean that text.  mam(7) explains the terms.
 *
 * Link with -lmam (pkg-config mam).  The library opens the CUDA driver when it first needs it.
 *
 * Units: every size is in bytes.  Addresses are those of the source: device addresses for MAM_SOURCE_DEVICE.
 *
 * Results: the functions return cudaError_t.  Each value has the meaning that the CUDA runtime gives it.  The functions
 * call the driver directly.  They leave the runtime's last error (cudaGetLastError) and the calling thread's current
 * context as they are, with one exception: a thread without a context gets one, see MAM_CudaMalloc.  After a failure,
 * MAM_LastError() holds a sentence about it.  Where the driver failed, the sentence has the driver's name for the
 * error.
 *
 * Results that are not repeated below:
 *
 * cudaErrorInvalidValue         from a function that may create a pool: an environment variable is not understood, see
 *                               mam(7)
 * cudaErrorNotSupported         from a function that may create a pool: the driver is older than CUDA 11.3
 * cudaErrorInitializationError  in a forked child: the pool or the block is the parent's and not in plain host memory
 * cudaErrorContextIsDestroyed   the pool's context was destroyed or reset, and the library has noticed it, see mam(7).
 *                               The pool gives this error until it is destroyed itself
 * cudaErrorUnknown              the operating system refused, or the driver answered with a value that means something
 *                               else here, such as cudaErrorInvalidResourceHandle
 * any other value               what the driver returned
 *
 * Threads: any thread may call any function at any time, unless the function's comment says otherwise.  No function may
 * be called from a signal handler, or from a host function that runs in a stream (cudaLaunchHostFunc).
 *
 * Streams: no function enqueues GPU work.  A function that may wait for the GPU says so.
 *
 * The header needs no other header.  If the CUDA headers are in the include path, it uses their cudaError_t.  Otherwise
 * it declares the values that these functions return.  Define MAM_NO_CUDA_HEADERS to choose the latter.
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
/* The values of cudaError_t that the library sets itself.  A function returns an error of the driver unchanged, so it
 * can return any other value of CUDA's cudaError_t too. */
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
  cudaErrorStreamCaptureUnsupported = 900,
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

/* ---- The paper's five functions (section II) ----
 *
 * They work on the environment of the calling thread's current CUDA context.  Each context has one environment: its
 * default pool.  There are three ways to create it: MAM_Create with a size, MAM_Create_auto with all memory that the
 * source has, and the first MAM_CudaMalloc, which creates it lazily.
 *
 * With MAM_SOURCE=host in the program's environment variables, the default pool is in plain host memory.  Then there is
 * one for the process; see mam(7).
 */
/* Creates the environment with one chunk of maxSize bytes, rounded up to 2 MiB, the granularity of the driver.  The
 * environment never takes more.  It lives until MAM_Destroy.  With MAM_SOURCE=vmm in the environment variables, maxSize
 * is a limit, and memory is mapped as it is needed.
 *
 * cudaSuccess                 the environment exists
 * cudaErrorInvalidValue       maxSize is 0
 * cudaErrorAlreadyAcquired    the context has an environment already; that one is unchanged
 * cudaErrorMemoryAllocation   the source has no maxSize bytes in one piece, MAM_LIMIT (mam(7)) does not allow them, or
 *                             the host has no memory
 * cudaErrorNoDevice           there is no CUDA driver or no device
 *
 * A lazily created environment without a live block gives way: the call destroys it first and then succeeds or fails
 * without it.  Apart from that, a failure changes nothing.  The call may take milliseconds (one cuMemAlloc).  It waits
 * for the GPU only to destroy an environment that gives way. */
MAM_API cudaError_t MAM_Create(size_t maxSize);

/* Creates the environment with all memory that the source has, less a headroom.  The driver needs the headroom for
 * code, stacks and events of the program; its size is MAM_HEADROOM in mam(7).  If the driver can map memory piece by
 * piece, the environment takes memory as it needs it.  Otherwise, or with MAM_SOURCE=device, it takes the largest chunk
 * that the source gives, at once.  In all other respects this is MAM_Create. */
MAM_API cudaError_t MAM_Create_auto(void);

/* Creates the environment as MAM_Create(maxSize) does, or as MAM_Create_auto if maxSize is 0, with a source and a limit
 * in place of the environment variables MAM_SOURCE and MAM_LIMIT.  source and limit have the values of these variables
 * (mam(7)): "vmm", "chunks", "device", ...; "40G", "50%".  NULL or "" keeps what holds.  After a success they hold for
 * all default pools that are created later in the process.  On failure they do not, and nothing else has changed.
 *
 * The first call of the process that allocates, or that creates, looks at, trims or ends a pool of any kind, settles
 * whether default pools are in plain host memory ("host") or not.  If it is this one and source and limit are
 * understood, it settles it even if it fails.  A later call cannot change that.
 *
 * Errors: those of MAM_Create_auto; cudaErrorInvalidValue if source or limit is not understood; cudaErrorNotSupported
 * if source would change from plain host memory to another source or back. */
MAM_API cudaError_t MAM_CreateWith(size_t maxSize, const char *source, const char *limit);

/* Destroys the environment and gives its memory back to the source.  All its blocks end, freed or not.  The call waits
 * for calls of other threads on this environment and for running kernels, as cudaFree does.
 *
 * cudaSuccess                 the environment is gone; also if there was none
 * other                       what the driver returned when it took the memory back; the environment is gone all the
 *                             same
 */
MAM_API cudaError_t MAM_Destroy(void);

/* Allocates size bytes from the environment and writes their address to *ptr.  The block belongs to the caller until
 * any thread frees it (MAM_CudaFree) or the environment ends.  As with cudaMalloc, the address is a multiple of 512,
 * and size 0 is a success that writes NULL.
 *
 * If there is no environment, the call creates one lazily, as MAM_Create_auto does.  That environment destroys itself
 * when its last block is freed, or soon after that if several threads use it.  If a later call creates it again, it
 * lives on for MAM_LINGER_MS (mam(7)) after its last block, so that a loop which frees all its blocks does not take a
 * chunk in each round.
 *
 * A thread without a current context gets the primary context of the first device, as from the CUDA runtime.  This
 * holds for every function that may create a pool in the current context.  If the thread's current context was
 * destroyed, or was reset on another device than the first, the result is cudaErrorContextIsDestroyed.
 *
 * cudaSuccess                 *ptr is the block
 * cudaErrorInvalidValue       ptr is NULL
 * cudaErrorMemoryAllocation   the pool has no free memory of that size and can get none, or the host has no memory.
 *                             Nothing changed.  MAM_PoolExplain says why.  If this call created the environment, the
 *                             environment ends as if its last block had been freed
 * cudaErrorNoDevice           there is no CUDA driver or no device
 * other                       an error that the GPU met earlier; the call found it while it waited
 *
 * On every failure *ptr is NULL.
 *
 * The call waits for the GPU only if it would otherwise fail: when the only memory left is that of freed blocks which
 * running kernels may still use (MAM_REUSE_FENCED below).  Where the driver has no fences (MAM_CudaFree below), an
 * allocation of up to 32 KiB also waits if more bytes wait for reuse than the pool's waiting_limit_bytes. */
MAM_API cudaError_t MAM_CudaMalloc(void **ptr, size_t size);

/* Frees a block of any pool, default or not, whatever context is current.  ptr may be NULL.  Blocks must not be passed
 * to cudaFree, which knows chunks alone.  The call returns at once, without waiting for kernels that still use the
 * block.  Under MAM_REUSE_FENCED the pool hands the memory out again only after these kernels have ended.
 *
 * cudaSuccess                 the block is freed; also for NULL
 * cudaErrorInvalidValue       ptr is not the start of a live block: it was freed before, points inside a block, or is
 *                             not of this library.  Nothing changed.  mam(7) has the case of a block whose context was
 *                             destroyed or reset
 * cudaErrorMemoryAllocation   the host has no memory to note that the block is free.  Nothing changed: the block is
 *                             live, and the call may be repeated
 * other                       an error that the GPU met earlier; the call found it while it waited.  The block is freed
 *
 * The call waits for the GPU in two cases.  The block was the last one of a lazily created environment that destroys
 * itself.  Or the driver has no fences (CUDA events for a whole context, from CUDA 12.5 on), and the bytes that wait
 * for reuse pass the pool's waiting_limit_bytes. */
MAM_API cudaError_t MAM_CudaFree(void *ptr);

/* ---- On a stream ----
 *
 * The blocks are those of MAM_CudaMalloc: either free takes blocks of either allocation.
 */
/* Allocates as MAM_CudaMalloc does, for work on a stream of the current context.  It can reuse memory at once that
 * MAM_CudaFreeAsync freed on the same stream.
 *
 * If the block's memory was freed on this stream, only work that comes after this call in the order of the stream may
 * use it.  Otherwise any stream may use it at once.  The caller cannot tell which is the case, so use the block on this
 * stream first, or after an event of this stream.
 *
 * The streams 0, cudaStreamLegacy and cudaStreamPerThread mean what they mean to cudaMallocAsync: streams of the
 * current context.  0 means the calling thread's own stream in a file that nvcc compiles with --default-stream
 * per-thread, or that defines CUDA_API_PER_THREAD_DEFAULT_STREAM before it includes this header.
 *
 * Errors: those of MAM_CudaMalloc; cudaErrorUnknown if the driver says that the handle is no stream.  On every failure
 * *ptr is NULL.  With size 0 the call does not look at the stream. */
MAM_API cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream);

/* Frees a block whose last use comes before this call in the order of the stream: by work on this stream, or by work on
 * other streams that this one was made to wait for.  ptr may be NULL.  Allocations on the same stream can reuse the
 * memory at once.  Others get it when the GPU has finished all work that was submitted before this call to the pool's
 * context and to the stream's context.
 *
 * Errors: those of MAM_CudaFree; cudaErrorUnknown if the driver says that the handle is no stream, then the block is
 * not freed.  With ptr NULL the call does not look at the stream. */
MAM_API cudaError_t MAM_CudaFreeAsync(void *ptr, cudaStream_t stream);

/* ---- With a tag ---- */

/* Allocates as MAM_CudaMalloc does, for a place in the program that allocates again and again.  If a thread frees a
 * block that it allocated with a tag, the thread keeps the block under that tag.  A later allocation of the same thread
 * with the same tag takes the block back if it is at least as large as size and at most twice as large.  Blocks of up
 * to 32 KiB are kept by their size instead, where the pool carves them from slabs (mam(7)).
 *
 * tag is any address.  The library compares it and never reads from it.  NULL means no tag: the call is MAM_CudaMalloc.
 *
 * Errors: those of MAM_CudaMalloc. */
MAM_API cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag);

/* ---- Stream captures ----
 *
 * A program that captures a stream into a CUDA graph tells the library: it calls MAM_CaptureBegin before
 * cudaStreamBeginCapture and MAM_CaptureEnd after cudaStreamEndCapture, with the same context current.  Between the
 * two, the library makes no call in that context that would invalidate the capture.  Allocations and frees work.  Freed
 * memory waits until the end of the capture, unless it is reused on its own stream.  An allocation that would have to
 * wait for the GPU fails.  Pairs of these calls may overlap, in one thread or in several: the library takes the capture
 * for ended when each pair has ended.
 *
 * MAM_CaptureBegin returns when no other thread is waiting for the GPU in this context in a call of the library.
 *
 * cudaSuccess                 the capture has begun, or ended
 * cudaErrorInvalidValue       MAM_CaptureEnd: no capture has begun in this context
 * cudaErrorMemoryAllocation   the host has no memory
 * cudaErrorNoDevice           there is no CUDA driver or no device
 *
 * On failure nothing changed. */
MAM_API cudaError_t MAM_CaptureBegin(void);
MAM_API cudaError_t MAM_CaptureEnd(void);

/* ---- Giving back ---- */

/* Gives free memory back to the source, as long as the default pool of the current context holds more than keep_bytes.
 * If it holds more, it first collects what threads keep for their next allocations.  A pool of MAM_SOURCE_VMM, and one
 * of MAM_SOURCE_HOST without a chunk size, gives back free pieces of 2 MiB or more, also between live blocks.  Other
 * pools give back free chunks.  Blocks never move.  Memory that waits for the GPU stays.  The call does not wait for
 * kernels, except where the driver does so to take a chunk back (cuMemFree), or has no fences and so tells only by a
 * wait that work has finished (MAM_CudaFree above).  During a capture that the library knows of, it does not wait for
 * that.
 *
 * cudaSuccess                 also if nothing could be given back, or there is no pool
 * other                       what the driver returned.  What was given back before stays given back */
MAM_API cudaError_t MAM_Trim(size_t keep_bytes);

/* ---- Pools as objects ---- */

/* A pool.  The caller of MAM_PoolCreate owns it.  Its handle is valid until MAM_PoolDestroy.  After that, a later pool
 * may get the same handle. */
typedef struct mam_pool *MAM_Pool;

/* Where chunks come from.  (The paper, section VI: any contiguous space serves.) */
typedef enum MAM_Source {
  MAM_SOURCE_DEVICE = 0,  /* device memory: cuMemAlloc */
  MAM_SOURCE_PINNED = 1,  /* page-locked host memory, mapped into every context: cuMemHostAlloc */
  MAM_SOURCE_MANAGED = 2, /* managed memory, attached globally: cuMemAllocManaged */
  MAM_SOURCE_HOST = 3,    /* plain host memory: mmap; needs no GPU and no driver */
  MAM_SOURCE_VMM = 4      /* device memory that the pool maps as it needs it, into addresses reserved once, and that a
                             trim unmaps: cuMemAddressReserve, cuMemCreate, cuMemMap.  Every device that can reach the
                             memory can use it.  It has no legacy IPC, and cuMemGetAddressRange may give less than a
                             block */
} MAM_Source;

/* When a pool may hand out the memory of a freed block again. */
typedef enum MAM_Reuse {
  /* When all GPU work has finished that was submitted before the free to: the pool's context, contexts on whose streams
   * blocks of the pool were freed, and primary contexts of devices that can use the blocks by peer access.  It is safe
   * for a program whose blocks are used there only.  This is the default. */
  MAM_REUSE_FENCED = 0,
  /* At once.  This is the paper's rule.  It is for programs that use one stream, or that synchronise before they free.
   */
  MAM_REUSE_IMMEDIATE = 1,
  /* To an allocation on the stream on which the block was freed: at once.  To others: as if fenced.  It is safe for
   * blocks whose last use comes before the free in the order of that stream.  Calls that name no stream work as if
   * fenced, and MAM_CudaFreeAsync works in this way in every pool.  So as a pool's rule it has the effect of
   * MAM_REUSE_FENCED. */
  MAM_REUSE_STREAM = 2
} MAM_Reuse;

/* What MAM_PoolCreate needs to know.  Start from MAM_POOL_OPTIONS_INIT.  It asks for device memory of the current
 * context, fenced reuse, the largest chunk that the source gives (almost all free memory of the device), no growth, and
 * blocks aligned to 512.  chunk_bytes and limit_bytes are rounded up to 2 MiB, the granularity of the driver. */
typedef struct MAM_PoolOptions {
  size_t struct_size; /* sizeof(MAM_PoolOptions) */
  MAM_Source source;  /* where chunks come from */
  MAM_Reuse reuse;    /* when freed memory is handed out again */
  void *context;      /* the CUcontext, which must outlive the pool; NULL: device decides */
  int device;         /* if context is NULL: the ordinal of a device, for its primary context, or -1 for the current
                         context */
  size_t chunk_bytes; /* the size of the first chunk and the step of growth.  0: the largest chunk that the source
                         gives, less the headroom, and growth by what is needed.  For MAM_SOURCE_VMM: what is mapped at
                         first, and the least that is mapped at a time; 0: nothing at first.  MAM_SOURCE_HOST with 0
                         also takes memory as it is needed */
  size_t limit_bytes; /* the pool never holds more than this of the source.  0: the first chunk and no growth; where
                         memory is mapped as it is needed: all there is, less the headroom.  Else not less than
                         chunk_bytes */
  size_t alignment;   /* of addresses and sizes: a power of two from 16 to 2 MiB; 0 for 512 */
  size_t waiting_limit_bytes; /* a free that leaves more than this waiting asks for a fence; where the driver has no
                                 fences, it waits for the GPU.  0 for half of what the pool holds */
  int keeps_memory; /* not 0: the pool gives no memory back before it is destroyed, and unmaps none.  For memory that
                       a CUDA graph goes on using after the program freed it */
} MAM_PoolOptions;

/* clang-format off */
#define MAM_POOL_OPTIONS_INIT { sizeof(MAM_PoolOptions), MAM_SOURCE_DEVICE, MAM_REUSE_FENCED, NULL, -1, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Creates a pool and writes its handle to *pool.  options may be NULL, which means MAM_POOL_OPTIONS_INIT.  The call
 * takes the first chunk; of MAM_SOURCE_VMM it reserves addresses.  The caller ends the pool with MAM_PoolDestroy.
 *
 * cudaSuccess                 *pool is the new pool
 * cudaErrorInvalidValue       pool is NULL, an option is out of its range, or the context was destroyed.  MAM_LastError
 *                             says which
 * cudaErrorInvalidDevice      no device has that ordinal
 * cudaErrorMemoryAllocation   the source has no such chunk, or the host has no memory
 * cudaErrorNoDevice           there is no CUDA driver or no device
 * cudaErrorNotSupported       MAM_SOURCE_VMM: the driver or the device cannot map memory piece by piece
 *
 * On failure nothing changed and *pool is not written. */
MAM_API cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *options);

/* Destroys a pool that MAM_PoolCreate made and gives its memory back to the source.  All its blocks end, freed or not.
 * pool may be NULL.  The call waits for calls of other threads on the pool and for running kernels, as cudaFree does.
 *
 * cudaSuccess                    the pool is gone; also for NULL
 * cudaErrorInvalidResourceHandle the pool was destroyed before and no later pool has its handle, or it is a default
 *                                pool, which MAM_Destroy ends.  Nothing changed
 * other                          what the driver returned when it took the memory back; the pool is gone all the same
 */
MAM_API cudaError_t MAM_PoolDestroy(MAM_Pool pool);

/* Writes the handle of the current context's default pool to *pool.  If there is none, the call creates it lazily, as
 * MAM_CudaMalloc does.  The handle is valid until that environment ends: by MAM_Destroy or, if it was created lazily,
 * with its last block or by giving way to MAM_Create.  An environment that this call creates lives without a block
 * until a first block was allocated and freed.
 *
 * Errors: those of MAM_Create_auto except cudaErrorAlreadyAcquired; cudaErrorInvalidValue if pool is NULL.  On failure
 * *pool is not written. */
MAM_API cudaError_t MAM_PoolDefault(MAM_Pool *pool);

/* Allocates as MAM_CudaMalloc does, from the given pool.  MAM_CudaFree frees the block.  The address is a multiple of
 * the pool's alignment.
 *
 * Errors: those of MAM_CudaMalloc; cudaErrorInvalidResourceHandle if pool is NULL or destroyed. */
MAM_API cudaError_t MAM_PoolMalloc(MAM_Pool pool, void **ptr, size_t size);

/* Frees as MAM_CudaFree does, with a rule of reuse for this block alone, whatever the rule of its pool is.
 * MAM_REUSE_STREAM means MAM_CudaFreeAsync on the default stream (0).
 *
 * Errors: those of MAM_CudaFree; cudaErrorInvalidValue if reuse is none of MAM_Reuse.  Then the block is not freed. */
MAM_API cudaError_t MAM_CudaFreeReuse(void *ptr, MAM_Reuse reuse);

/* MAM_CudaMallocAsync, MAM_CudaMallocTagged and MAM_Trim for the given pool.  The stream is one of the current context,
 * which should be the pool's.
 *
 * Errors: those of the named functions; cudaErrorInvalidResourceHandle if pool is NULL or destroyed. */
MAM_API cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream);
MAM_API cudaError_t MAM_PoolMallocTagged(MAM_Pool pool, void **ptr, size_t size, const void *tag);
MAM_API cudaError_t MAM_PoolTrim(MAM_Pool pool, size_t keep_bytes);

/* ---- Looking into pools ---- */

/* What a pool holds at one moment.  used_bytes + waiting_bytes + free_bytes == reserved_bytes.  Threads keep freed
 * blocks for their next allocations; such a block counts as free, or as waiting while its fence has not passed.  Start
 * from MAM_POOL_INFO_INIT. */
typedef struct MAM_PoolInfo {
  size_t struct_size;        /* in: sizeof(MAM_PoolInfo); the call writes no more than this */
  size_t reserved_bytes;     /* taken from the source; of mapped memory, what is mapped */
  size_t used_bytes;         /* in live blocks: requests rounded up, or larger kept blocks that threads took back */
  size_t requested_bytes;    /* in live blocks, as requested; of each of up to 32 KiB, as many as 15 bytes more */
  size_t waiting_bytes;      /* freed, but the GPU may still use them */
  size_t free_bytes;         /* ready to be handed out */
  size_t largest_free_bytes; /* in the largest free segment */
  size_t peak_used_bytes;    /* the most that used_bytes ever was.  It is exact for a pool that one thread uses, else to
                                within the most that each thread has allocated or freed in a few microseconds, or 1 MiB or
                                a thousandth */
  size_t limit_bytes;        /* reserved_bytes never passes this */
  size_t chunk_count;
  size_t segment_count;          /* == used_count + waiting_count + free_count */
  size_t used_count;             /* live blocks */
  size_t waiting_count;          /* waiting segments, and large blocks that threads keep and that wait */
  size_t free_count;             /* free segments, and large blocks that threads keep and that do not wait */
  size_t metadata_bytes;         /* host memory for segments, slabs and the caches of threads */
  uint64_t malloc_count;         /* successful allocations of at least one byte, since the pool began */
  uint64_t free_call_count;      /* successful frees */
  uint64_t failure_count;        /* allocations, or attempts (MAM_SetOutOfMemoryCallback), that had no memory */
  uint64_t synchronize_count;    /* times the pool waited for the GPU.  On plain host memory such a wait costs nothing,
                                    but it is counted */
  double external_fragmentation; /* 1 - largest_free_bytes / bytes of all free segments; 0 if there is none.  Cached
                                    bytes are not counted.  (ScatterAlloc, section 3.3, formula 2) */
  size_t cached_bytes;           /* of waiting_bytes and free_bytes: free in slabs, or kept by threads.  They are not in
                                    largest_free_bytes, but the pool collects them before an allocation fails, save what
                                    is free in slabs with live blocks */
  size_t slab_count;             /* slabs: pieces of 512 KiB that small blocks are carved from */
  size_t thread_count;           /* living threads that have used the pool */
  uint64_t magazine_hit_count;   /* of malloc_count: small blocks that the calling thread had in its magazines, */
  uint64_t size_hit_count;       /* large blocks that it had freed and kept, by size, */
  uint64_t tag_hit_count;        /* the same, by tag, */
  uint64_t stream_hit_count;     /* and blocks in memory that was freed on the same stream */
  uint64_t fence_count;          /* fences (CUDA events) recorded in the pool's context, for all its pools together */
  size_t peak_reserved_bytes;    /* the most that reserved_bytes was */
  uint64_t source_call_count;    /* times that the pool took memory from its source or gave some back */
} MAM_PoolInfo;

/* clang-format off */
#define MAM_POOL_INFO_INIT \
  { sizeof(MAM_PoolInfo), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Fills *info.  pool NULL means the default pool of the current context; the call does not create it.  The call stops
 * the allocations of other threads from the pool for a moment, so that all numbers are of one moment.
 *
 * cudaErrorInvalidValue           info is NULL, or its struct_size is less than that of the first two members
 * cudaErrorInvalidResourceHandle  there is no such pool
 *
 * On failure *info is not written. */
MAM_API cudaError_t MAM_PoolGetInfo(MAM_Pool pool, MAM_PoolInfo *info);

/* Sets peak_used_bytes and peak_reserved_bytes to used_bytes and reserved_bytes.  pool NULL means the default pool,
 * as for MAM_PoolGetInfo.
 *
 * cudaErrorInvalidResourceHandle  there is no such pool */
MAM_API cudaError_t MAM_PoolResetPeaks(MAM_Pool pool);

/* Writes a report of the pool with every chunk and segment to *json: a string that the caller releases with free(3).
 * mam(7) describes the format.  pool NULL means the default pool, as for MAM_PoolGetInfo.
 *
 * cudaErrorInvalidValue           json is NULL
 * cudaErrorInvalidResourceHandle  there is no such pool
 * cudaErrorMemoryAllocation       the host has no memory for the text
 *
 * On failure *json is not written. */
MAM_API cudaError_t MAM_PoolReport(MAM_Pool pool, char **json);

/* Writes a report in words to *text: whether the pool can serve size bytes at the moment, and if it cannot, why.  The
 * report has the size, the free bytes, the largest free segment, the bytes that wait, the limit, the last error of the
 * source, and the call sites that hold the most.  The caller releases the text with free(3).
 *
 * pool and errors: as for MAM_PoolReport. */
MAM_API cudaError_t MAM_PoolExplain(MAM_Pool pool, size_t size, char **text);

/* ---- Records ---- */

/* Begins a record of all allocations and frees of the process (mam-record(5)), and ends it.  The record also has the
 * blocks that are live when it begins.  path is the file; "%p" in it is the number of the process.  An earlier record
 * there is written over.  When MAM_RecordEnd returns, the file is complete.  Then another record may begin, to the same
 * file or another one.  A record that is not ended goes on to the end of the process.  A forked child has no record.
 *
 * cudaSuccess                the record has begun, or ended
 * cudaErrorInvalidValue      path is NULL, empty or too long; MAM_RecordEnd: MAM_RecordBegin began no record
 * cudaErrorAlreadyAcquired   a record is made already: one that MAM_RecordBegin began, or the one of MAM_RECORD
 * cudaErrorMemoryAllocation  the host has no memory
 * cudaErrorUnknown           the file cannot be written, another process writes it, or it is no record; MAM_LastError
 *                            says which.  From MAM_RecordEnd: the disk was full, or such; the file is cut there
 *
 * If MAM_RecordBegin fails, no record has begun. */
MAM_API cudaError_t MAM_RecordBegin(const char *path);
MAM_API cudaError_t MAM_RecordEnd(void);

/* Writes a mark with this text into the record of the process, if one is made (mam-record(5)): where a phase of the
 * program begins, such as "epoch 3".  Without a record it does nothing.  The text is copied; what is
 * beyond its first 4096 bytes is left out.
 *
 * cudaSuccess             also without a record
 * cudaErrorInvalidValue   text is NULL */
MAM_API cudaError_t MAM_Mark(const char *text);

/* ---- Out of memory ---- */

/* What the library asks before an allocation of size bytes fails with cudaErrorMemoryAllocation.  An answer other than
 * 0 means "again": the library allocates once more.  0 means that the allocation is to fail.  pool is the pool that the
 * program named, NULL for the default pool of the current context.  attempt is 1 at first and counts the questions
 * about this allocation.  data is what MAM_SetOutOfMemoryCallback was given.
 *
 * The function runs in the thread that allocates, also in several threads at once.  It may call any function of the
 * library, and MAM_LastError says why the allocation would fail.  What it allocates itself fails without a question. It
 * has to return: no C++ exception and no longjmp may leave it.  The thread is not cancelled (pthread_cancel) in it. */
typedef int (*MAM_OutOfMemoryCallback)(MAM_Pool pool, size_t size, unsigned attempt, void *data);

/* Sets the function that the library asks from now on, in place of the one that was set before.  callback NULL: nothing
 * is asked, as at the start.  It holds for the whole process.
 *
 * These functions ask it: MAM_CudaMalloc, MAM_CudaMallocAsync, MAM_CudaMallocTagged, MAM_PoolMalloc,
 * MAM_PoolMallocAsync and MAM_PoolMallocTagged; about one allocation at most 16 times.  They hold no lock then.
 *
 * The call waits until other threads have returned from the former callback, so that its data may be freed afterwards.
 * So the caller must not hold a lock that the former callback takes.  A call from inside a callback does not wait.
 *
 * cudaSuccess                 always */
MAM_API cudaError_t MAM_SetOutOfMemoryCallback(MAM_OutOfMemoryCallback callback, void *data);

/* Returns a sentence about the last failure that the library met in the calling thread, or "" if it met none.  Read it
 * after a call that failed.  A call that succeeded may have met a failure too and found another way.  The result is
 * never NULL.  The string belongs to the thread and is valid until the thread's next call of the library. */
MAM_API const char *MAM_LastError(void);

/* In a program that is compiled with --default-stream per-thread, 0 means the calling thread's own stream. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
#if defined(__GNUC__)
#define MAM_PTDS_INLINE static inline __attribute__((always_inline, unused)) /* the call site is the caller's */
#else
#define MAM_PTDS_INLINE static inline
#endif
#ifdef __cplusplus
#define MAM_PTDS_STREAM reinterpret_cast<cudaStream_t>(2) /* cudaStreamPerThread */
#else
#define MAM_PTDS_STREAM ((cudaStream_t)2)
#endif
MAM_PTDS_INLINE cudaStream_t MAM_Stream_ptds(cudaStream_t stream) { return stream ? stream : MAM_PTDS_STREAM; }
MAM_PTDS_INLINE cudaError_t MAM_CudaMallocAsync_ptds(void **ptr, size_t size, cudaStream_t stream) {
  return MAM_CudaMallocAsync(ptr, size, MAM_Stream_ptds(stream));
}
MAM_PTDS_INLINE cudaError_t MAM_CudaFreeAsync_ptds(void *ptr, cudaStream_t stream) {
  return MAM_CudaFreeAsync(ptr, MAM_Stream_ptds(stream));
}
MAM_PTDS_INLINE cudaError_t MAM_CudaFreeReuse_ptds(void *ptr, MAM_Reuse reuse) {
  return reuse == MAM_REUSE_STREAM ? MAM_CudaFreeAsync(ptr, MAM_PTDS_STREAM) : MAM_CudaFreeReuse(ptr, reuse);
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

/* As cudaMalloc and cudaMallocAsync in C++: ptr may point to a pointer to any object type.  Per-thread default streams
 * give those of a stream other names, above. */
template <typename T> static inline cudaError_t MAM_CudaMalloc(T **ptr, size_t size) {
  return ::MAM_CudaMalloc(static_cast<void **>(static_cast<void *>(ptr)), size);
}
template <typename T> static inline cudaError_t MAM_PoolMalloc(MAM_Pool pool, T **ptr, size_t size) {
  return ::MAM_PoolMalloc(pool, static_cast<void **>(static_cast<void *>(ptr)), size);
}
template <typename T> static inline cudaError_t MAM_CudaMallocAsync(T **ptr, size_t size, cudaStream_t stream) {
  return ::MAM_CudaMallocAsync(static_cast<void **>(static_cast<void *>(ptr)), size, stream);
}
template <typename T>
static inline cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, T **ptr, size_t size, cudaStream_t stream) {
  return ::MAM_PoolMallocAsync(pool, static_cast<void **>(static_cast<void *>(ptr)), size, stream);
}
template <typename T> static inline cudaError_t MAM_CudaMallocTagged(T **ptr, size_t size, const void *tag) {
  return ::MAM_CudaMallocTagged(static_cast<void **>(static_cast<void *>(ptr)), size, tag);
}
template <typename T>
static inline cudaError_t MAM_PoolMallocTagged(MAM_Pool pool, T **ptr, size_t size, const void *tag) {
  return ::MAM_PoolMallocTagged(pool, static_cast<void **>(static_cast<void *>(ptr)), size, tag);
}
#endif

#endif /* MAM_H */
