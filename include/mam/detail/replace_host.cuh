/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/replace_host.cuh - the heap that malloc in kernels uses (mam/replace.cuh): the device's variable, and how
 * the host writes it.
 *
 * Each file of the program has a copy of the handle on the device.  An object of the file announces it before main, so
 * that mam_replace_use can write all of them.  What the host knows is one struct for the program, under a mutex.
 */
#ifndef MAM_DETAIL_REPLACE_HOST_CUH
#define MAM_DETAIL_REPLACE_HOST_CUH

#include <mam/heap_types.h>
#ifndef __CUDACC_RTC__
#include <cuda_runtime_api.h>
#include <mam/heap.h>
#include <new>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#endif

/* The handle of the heap: all 0 until the host has named a heap.  Each file has its own, also where files are linked
 * together: a program may have several groups of such files, and then one name would stand for several variables.
 *
 * With -rdc=true it is no constant: nvlink 13.0.88 keeps the constants of the first file alone, and cudaMemcpyToSymbol
 * returns cudaErrorInvalidValue for those of the others. */
#if defined(__CUDACC_RTC__)
extern "C" {
__constant__ mam_device_heap mam_replaced_heap;
}
#elif defined(__CUDACC_RDC__)
static __device__ mam_device_heap mam_replaced_heap;
#else
static __constant__ mam_device_heap mam_replaced_heap;
#endif
static __device__ unsigned mam__replaced_told;

#ifndef __CUDACC_RTC__

/* A file of the program.  It is in the list from its construction to its destruction. */
struct mam__replace_file {
  const void *symbol;
  struct mam__replace_file *next;
  explicit mam__replace_file(const void *where);
  ~mam__replace_file();
  mam__replace_file(const mam__replace_file &) = delete;
  mam__replace_file &operator=(const mam__replace_file &) = delete;
};
struct mam__replace_made {
  int device;
  MAM_Heap heap;
  struct mam__replace_made *next;
};

/* All files and all heaps that mam_replace_create made; under the mutex. */
struct mam__replace_program {
  pthread_mutex_t mutex;
  struct mam__replace_file *files;
  struct mam__replace_made *made;
};
inline struct mam__replace_program *mam__replace_lock(void) {
  static struct mam__replace_program program = {PTHREAD_MUTEX_INITIALIZER, NULL, NULL};
  (void)pthread_mutex_lock(&program.mutex);
  return &program;
}
inline void mam__replace_unlock(struct mam__replace_program *program) { (void)pthread_mutex_unlock(&program->mutex); }

inline mam__replace_file::mam__replace_file(const void *where) : symbol(where) {
  struct mam__replace_program *program = mam__replace_lock();
  next = program->files;
  program->files = this;
  mam__replace_unlock(program);
}
inline mam__replace_file::~mam__replace_file() {
  struct mam__replace_program *program = mam__replace_lock();
  struct mam__replace_file **place = &program->files;
  while (*place != this)
    place = &(*place)->next;
  *place = next;
  mam__replace_unlock(program);
}
static struct mam__replace_file mam__replace_this_file(&mam_replaced_heap);

/* Copies the handle to all files.  In this and the other functions of that name the program is locked. */
inline cudaError_t mam__replace_use_locked(const struct mam__replace_program *program, MAM_Heap heap) {
  mam_device_heap handle = {};
  cudaError_t error = heap == NULL ? cudaSuccess : MAM_HeapHandle(heap, &handle);
  for (const struct mam__replace_file *file = program->files; file != NULL && error == cudaSuccess; file = file->next) {
    error = cudaMemcpyToSymbol(file->symbol, &handle, sizeof handle, 0, cudaMemcpyHostToDevice);
    if (error == cudaErrorInvalidSymbol) /* a file without device code; this clears the runtime's last error */
      error = cudaGetLastError() == error ? cudaSuccess : error;
  }
  return error;
}

/* The link to the current device's heap in the list of those that were made; the link at the end of the list, which is
 * NULL, if there is none.  NULL without a device. */
inline struct mam__replace_made **mam__replace_find_locked(struct mam__replace_program *program, int *device) {
  struct mam__replace_made **place = &program->made;
  if (cudaGetDevice(device) != cudaSuccess)
    return NULL;
  while (*place != NULL && (*place)->device != *device)
    place = &(*place)->next;
  return place;
}

inline void mam__replace_forget_locked(struct mam__replace_made **place) {
  struct mam__replace_made *made = *place;
  *place = made->next;
  free(made);
}

/* Makes a heap for the current device and adds it to the list. */
inline cudaError_t mam__replace_make_locked(struct mam__replace_program *program, const MAM_HeapOptions *options) {
  struct mam__replace_made *made = (struct mam__replace_made *)calloc(1, sizeof *made);
  struct mam__replace_made **place = made == NULL ? NULL : mam__replace_find_locked(program, &made->device);
  cudaError_t error = made == NULL ? cudaErrorMemoryAllocation : place == NULL ? cudaGetLastError() : cudaSuccess;
  mam_device_heap handle;
  if (error == cudaSuccess)
    error = cudaFree(NULL); /* makes the device's context current */
  if (error == cudaSuccess && *place != NULL && MAM_HeapHandle((*place)->heap, &handle) == cudaSuccess)
    error = cudaErrorInvalidValue;
  if (error == cudaSuccess)
    error = MAM_HeapCreate(&made->heap, NULL, options);
  if (error == cudaSuccess && (error = mam__replace_use_locked(program, made->heap)) != cudaSuccess)
    (void)MAM_HeapDestroy(made->heap);
  if (error != cudaSuccess) {
    free(made);
    return error;
  }
  if (*place != NULL) { /* the heap of a context that is gone */
    (void)MAM_HeapDestroy((*place)->heap);
    mam__replace_forget_locked(place);
  }
  made->next = program->made;
  program->made = made;
  return error;
}

static inline cudaError_t mam_replace_use(MAM_Heap heap) {
  struct mam__replace_program *program = mam__replace_lock();
  cudaError_t error = mam__replace_use_locked(program, heap);
  mam__replace_unlock(program);
  return error;
}

static inline cudaError_t mam_replace_create(size_t bytes) {
  struct mam__replace_program *program = mam__replace_lock();
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  options.records = MAM_HEAP_RECORDED;
  cudaError_t error = mam__replace_make_locked(program, &options);
  mam__replace_unlock(program);
  return error;
}

static inline MAM_Heap mam_replace_heap(void) {
  struct mam__replace_program *program = mam__replace_lock();
  int device;
  struct mam__replace_made **place = mam__replace_find_locked(program, &device);
  MAM_Heap heap = place != NULL && *place != NULL ? (*place)->heap : NULL;
  mam__replace_unlock(program);
  return heap;
}

static inline cudaError_t mam_replace_destroy(void) {
  struct mam__replace_program *program = mam__replace_lock();
  int device;
  struct mam__replace_made **place = mam__replace_find_locked(program, &device);
  cudaError_t error = place == NULL ? cudaGetLastError() : cudaSuccess, destroyed = cudaSuccess;
  if (place != NULL && *place != NULL) {
    error = mam__replace_use_locked(program, NULL);
    destroyed = MAM_HeapDestroy((*place)->heap);
    mam__replace_forget_locked(place);
  }
  mam__replace_unlock(program);
  return error != cudaSuccess ? error : destroyed;
}
#endif

#endif /* MAM_DETAIL_REPLACE_HOST_CUH */
