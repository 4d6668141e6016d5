/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap as heap.c, heap_look.c, heap_inside.c and heap_grow.c know it.  Other files know heap_inside.h.
 *
 * Lock order: a heap's lock, then its superblocks_lock, then whatever mam.h's functions take.  What is done under
 * superblocks_lock alone waits for no kernel, so that a heap can grow while another thread waits under the first one.
 */
#ifndef MAM_LIB_HEAP_HOST_H
#define MAM_LIB_HEAP_HOST_H

#include <pthread.h>
#include <sys/types.h>

#include "heap/heap_bell.h"
#include "heap/heap_gpu.h"
#include "heap/heap_inside.h"
#include "heap/heap_records.h"
#include "heap/heap_service.h"
#include "mam/detail/heap_grow.h"
#include "mam/heap.h"

/* The least superblock: the table of superblocks is short, and smaller ones would use it up. */
enum { HEAP_LEAST_BYTES = 256 << 10 };

struct mam_heap_host {
  struct mam_heap_host *next; /* protected by heaps_lock of heap_inside.c, as the next two */
  unsigned visitors;          /* calls that found the heap in the list: it is not destroyed before they end */
  bool ends;                  /* waits for them to be destroyed; it gets no more */

  /* Constant. */
  MAM_Pool pool;
  uint64_t generation; /* of the pool: a struct mam_pool may be another pool's later */
  struct heap_gpu gpu;
  mam_device_heap handle;
  size_t limit_bytes, grow_bytes;
  pid_t process;                /* whose heap it is */
  struct heap_gpu growing;      /* a stream of its own, for what is done under superblocks_lock */
  bool can_grow;                /* growing is open */
  struct heap_bell *bell;       /* NULL: no growth under kernels */
  struct heap_service *service; /* if there is a bell */

  pthread_mutex_t lock;         /* protects the order of work on gpu's stream, and what follows */
  bool is_compacting;           /* a compaction has begun and not ended */
  struct heap_compact *compact; /* of heap_compact.c */
  struct heap_records *records; /* NULL: there are none */

  pthread_mutex_t superblocks_lock; /* protects what follows; only growth changes it without the other lock */
  mam__u32 count;                   /* of superblocks */
  void *memory[MAM_HEAP_SUPERBLOCKS];
  size_t bytes[MAM_HEAP_SUPERBLOCKS];
  struct mam__area areas[MAM_HEAP_SUPERBLOCKS];
  size_t reserved_bytes; /* sum of bytes */
  uint64_t growth_count;
  mam__u32 round; /* of growth: the last one that was replied */
};

/* ---- heap_inside.c ---- */

/* Before the first heap: keeps the list whole in a forked child. */
void heap_list_set_up(void);
/* Takes a number that no other heap has, and no handle of none, for mam_device_heap; gives it back. */
cudaError_t heap_number_take(unsigned short *number);
void heap_number_give(unsigned short number);
void heap_list_add(struct mam_heap_host *heap);
/* The heap must be in the list, where it stays as long as it is visited. */
void heap_list_remove(struct mam_heap_host *heap);
/* Begins to visit the heap of a pool that comes after this one in the list, or the first one if heap is NULL, and ends
 * the visit of this one; NULL after the last.  A heap that is visited is not destroyed. */
struct mam_heap_host *heap_visit_next(struct mam_heap_host *heap, MAM_Pool pool);
void heap_visit_end(struct mam_heap_host *heap);

/* Whether a handle from outside is a heap's, and this process's: in a forked child its locks may be held by threads
 * that are not there, and its memory is not the child's. */
cudaError_t heap_check(MAM_Heap heap);

/* Whether the heap's memory is still a block of its pool.  It is not after the end of the context or of the pool: then
 * another pool may have given the same addresses to another caller, so nothing may be freed by address, and the struct
 * of the pool may be another pool's. */
bool heap_has_memory(const struct mam_heap_host *heap);
/* The same as an error. */
cudaError_t heap_check_memory(const struct mam_heap_host *heap);

/* heap_check and heap_check_memory, and takes the heap's lock.  Refuses while a compaction is under way. */
cudaError_t heap_enter(MAM_Heap heap);
/* Leaves the lock and returns error. */
cudaError_t heap_leave(MAM_Heap heap, cudaError_t error);

/* ---- heap_grow.c ---- */

/* Takes memory of the pool for one more superblock, which kernels do not know yet.  at_once: without waiting for the
 * GPU. */
cudaError_t heap_memory_take(struct mam_heap_host *heap, size_t bytes, bool at_once);
/* Gives the last one's back, which kernels do not know any more. */
cudaError_t heap_memory_give(struct mam_heap_host *heap);

/* Adds a superblock that running kernels see. */
cudaError_t heap_grow_locked(struct mam_heap_host *heap, size_t bytes, bool at_once);
/* Makes kernels know only the first ones.  No kernel may use the heap. */
cudaError_t heap_shrink_locked(struct mam_heap_host *heap, mam__u32 count);
/* Ends the refusals: the memory may be there by now, and kernels may ask again. */
cudaError_t heap_growth_reopen_locked(struct mam_heap_host *heap);

/* Begins to listen to kernels that run out of memory; its control block is ready.  Undone by heap_growth_end. */
cudaError_t heap_growth_begin(struct mam_heap_host *heap);
void heap_growth_end(struct mam_heap_host *heap);

#endif
