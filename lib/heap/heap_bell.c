/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_bell.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"

/* The word has a page of its own, so that what follows it is aligned to pages. */
enum { WORD_BYTES = 4096 };
enum { MEMORY_BYTES = WORD_BYTES + HEAP_BELL_ZERO_BYTES + HEAP_BELL_STAGING_BYTES };

static pthread_mutex_t bells_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heap_bell *bells; /* protected by bells_lock */

/* Writes the address that kernels have for registered memory. */
static cudaError_t register_memory(const struct context *context, void *memory, uint64_t *on_device) {
  const struct driver *driver = context->driver;
  struct context_visit visit;
  CUdeviceptr address = 0;
  if (driver->cuMemHostRegister == NULL || driver->cuMemHostGetDevicePointer == NULL)
    return error_set(cudaErrorNotSupported,
                     "heaps cannot grow under kernels: the CUDA driver cannot register host memory");
  cudaError_t error = context_enter(context, &visit);
  if (error != cudaSuccess)
    return error;
  CUresult result =
      driver->cuMemHostRegister(memory, MEMORY_BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS)
    error = driver_error(driver, result, "cuMemHostRegister");
  else if ((result = driver->cuMemHostGetDevicePointer(&address, memory, 0)) != CUDA_SUCCESS) {
    error = driver_error(driver, result, "cuMemHostGetDevicePointer");
    if (driver->cuMemHostUnregister != NULL)
      (void)driver->cuMemHostUnregister(memory);
  }
  context_leave(context, &visit);
  *on_device = address;
  return error;
}

static cudaError_t bell_make(const struct context *context, struct heap_bell **made) {
  struct heap_bell *bell = calloc(1, sizeof *bell);
  void *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  cudaError_t error = cudaSuccess;
  if (bell == NULL || memory == MAP_FAILED) {
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's bell");
    goto undo;
  }
  /* A fork must not make the parent write to a copy of what the GPU sees. */
  (void)madvise(memory, MEMORY_BYTES, MADV_DONTFORK);
  error = register_memory(context, memory, &bell->word_on_device);
  if (error != cudaSuccess)
    goto undo;
  bell->context_id = context->id;
  bell->word = memory;
  bell->zeros = (char *)memory + WORD_BYTES;
  bell->staging = (char *)memory + WORD_BYTES + HEAP_BELL_ZERO_BYTES;
  *made = bell;
  return cudaSuccess;

undo:
  if (memory != MAP_FAILED)
    (void)munmap(memory, MEMORY_BYTES);
  free(bell);
  return error;
}

cudaError_t heap_bell_take(const struct context *context, struct heap_bell **bell) {
  pthread_mutex_lock(&bells_lock);
  struct heap_bell **link = &bells;
  while (*link != NULL && (*link)->context_id != context->id)
    link = &(*link)->next;
  struct heap_bell *found = *link;
  if (found != NULL)
    *link = found->next;
  pthread_mutex_unlock(&bells_lock);
  if (found == NULL)
    return bell_make(context, bell);
  /* 0, so that the next heap's first ring differs from the former heap's last one.  relaxed: the thread that listens
   * begins after this. */
  __atomic_store_n(found->word, 0, __ATOMIC_RELAXED);
  *bell = found;
  return cudaSuccess;
}

void heap_bell_give(struct heap_bell *bell) {
  pthread_mutex_lock(&bells_lock);
  bell->next = bells;
  bells = bell;
  pthread_mutex_unlock(&bells_lock);
}
