/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The list of heaps, and a heap's lock: the way in for every call that is given a heap.
 *
 * Of the GPU it asks only whether the heap's context lives.  heaps_lock is never held with another lock.
 */
#include <limits.h>
#include <unistd.h>

#include "base/error.h"
#include "base/forking.h"
#include "base/locked.h"
#include "heap/heap_host.h"
#include "pool/pool.h"

/* ---- The list ---- */

static pthread_mutex_t heaps_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t heaps_left = PTHREAD_COND_INITIALIZER; /* a heap has lost its last visitor */
static struct mam_heap_host *heaps;                          /* protected by heaps_lock */

static void hold(void) { pthread_mutex_lock(&heaps_lock); }

/* The parent's heaps are never removed in the child, so no thread waits for visitors that do not exist. */
static void let_go(bool in_child) {
  if (in_child)
    (void)pthread_cond_init(&heaps_left, NULL);
  pthread_mutex_unlock(&heaps_lock);
}

void heap_list_set_up(void) {
  static const struct fork_functions functions = {hold, let_go};
  fork_join(FORK_HEAPS, &functions);
}

/* A bit for each number: 1 if a heap has it.  0 is the number of a handle of no heap.  Protected by heaps_lock. */
static uint64_t numbers[(USHRT_MAX + 1) / 64] = {1};

cudaError_t heap_number_take(unsigned short *number) {
  enum { WORDS = sizeof numbers / sizeof numbers[0] };
  pthread_mutex_lock(&heaps_lock);
  unsigned word = 0;
  while (word < WORDS && numbers[word] == UINT64_MAX)
    word++;
  if (word < WORDS) {
    unsigned bit = (unsigned)__builtin_ctzll(~numbers[word]);
    numbers[word] |= UINT64_C(1) << bit;
    *number = (unsigned short)(64 * word + bit);
  }
  pthread_mutex_unlock(&heaps_lock);
  return word < WORDS ? cudaSuccess : error_set(cudaErrorMemoryAllocation, "there are %d heaps already", USHRT_MAX);
}

void heap_number_give(unsigned short number) {
  pthread_mutex_lock(&heaps_lock);
  numbers[number / 64] &= ~(UINT64_C(1) << number % 64);
  pthread_mutex_unlock(&heaps_lock);
}

void heap_list_add(struct mam_heap_host *heap) {
  pthread_mutex_lock(&heaps_lock);
  heap->next = heaps;
  heaps = heap;
  pthread_mutex_unlock(&heaps_lock);
}

void heap_list_remove(struct mam_heap_host *heap) {
  pthread_mutex_lock(&heaps_lock);
  heap->ends = true;
  while (heap->visitors > 0)
    pthread_cond_wait(&heaps_left, &heaps_lock);
  struct mam_heap_host **link = &heaps;
  while (*link != heap)
    link = &(*link)->next;
  *link = heap->next;
  pthread_mutex_unlock(&heaps_lock);
}

static void visit_end_locked(struct mam_heap_host *heap) {
  lock_held(&heaps_lock);
  if (--heap->visitors == 0)
    (void)pthread_cond_broadcast(&heaps_left);
}

struct mam_heap_host *heap_visit_next(struct mam_heap_host *heap, MAM_Pool pool) {
  pthread_mutex_lock(&heaps_lock);
  struct mam_heap_host *next = heap == NULL ? heaps : heap->next;
  while (next != NULL && (next->pool != pool || next->ends))
    next = next->next;
  if (next != NULL)
    next->visitors++;
  if (heap != NULL)
    visit_end_locked(heap);
  pthread_mutex_unlock(&heaps_lock);
  return next;
}

void heap_visit_end(struct mam_heap_host *heap) {
  pthread_mutex_lock(&heaps_lock);
  visit_end_locked(heap);
  pthread_mutex_unlock(&heaps_lock);
}

cudaError_t heap_check(MAM_Heap heap) {
  pthread_mutex_lock(&heaps_lock);
  const struct mam_heap_host *known = heaps;
  while (known != NULL && known != heap)
    known = known->next;
  pthread_mutex_unlock(&heaps_lock);
  if (known == NULL)
    return error_set(cudaErrorInvalidResourceHandle, "%p is not a device heap", (void *)heap);
  if (known->process != getpid())
    return error_set(cudaErrorInitializationError, "the heap belongs to the parent of this forked process");
  return cudaSuccess;
}

/* ---- The lock ---- */

cudaError_t heap_leave(MAM_Heap heap, cudaError_t error) {
  lock_held(&heap->lock);
  pthread_mutex_unlock(&heap->lock);
  return error;
}

bool heap_has_memory(const struct mam_heap_host *heap) {
  return context_lives(&heap->gpu.context) && pool_is_open(heap->pool, heap->generation);
}

cudaError_t heap_check_memory(const struct mam_heap_host *heap) {
  if (heap_has_memory(heap))
    return cudaSuccess;
  return error_set(cudaErrorContextIsDestroyed,
                   "the heap's CUDA context or its pool has ended, and its memory with it");
}

cudaError_t heap_enter(MAM_Heap heap) {
  cudaError_t error = heap_check(heap);
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&heap->lock);
  error = heap_check_memory(heap);
  if (error != cudaSuccess)
    return heap_leave(heap, error);
  if (heap->is_compacting)
    return heap_leave(
        heap, error_set(cudaErrorIllegalState, "a compaction of heap %p has begun and not ended", (void *)heap));
  return cudaSuccess;
}

cudaError_t heap_inside_enter(MAM_Heap heap, struct heap_inside *inside) {
  cudaError_t error = heap_check(heap);
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&heap->lock);
  error = heap_check_memory(heap);
  if (error != cudaSuccess)
    return heap_leave(heap, error);
  pthread_mutex_lock(&heap->superblocks_lock); /* what is added later comes after these */
  *inside = (struct heap_inside){.gpu = &heap->gpu,
                                 .pool = heap->pool,
                                 .handle = &heap->handle,
                                 .areas = heap->areas,
                                 .count = heap->count,
                                 .is_compacting = &heap->is_compacting,
                                 .compact = &heap->compact};
  pthread_mutex_unlock(&heap->superblocks_lock);
  return cudaSuccess;
}

cudaError_t heap_inside_leave(MAM_Heap heap, cudaError_t error) { return heap_leave(heap, error); }
