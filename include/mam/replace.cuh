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
#include <new>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#endif

/* The heap: all 0 until the host has named one.  Where one is linked for all files it is a template, of which the
 * linkers keep one. */
#if defined(__CUDACC_RTC__)
extern "C" {
__constant__ mam_heap mam_replaced_heap;
}
static __device__ unsigned mam_replaced_told;
#elif defined(__CUDACC_RDC__)
template <int> __constant__ mam_heap mam_replaced_heap_of;
template <int> __device__ unsigned mam_replaced_told_of;
#define mam_replaced_heap mam_replaced_heap_of<0>
#define mam_replaced_told mam_replaced_told_of<0>
#else
static __constant__ mam_heap mam_replaced_heap;
static __device__ unsigned mam_replaced_told;
#endif

#ifndef __CUDACC_RTC__

/* ---- The host ---- */

/* A file of the program, and a heap that mam_replace_create made. */
struct mam_replace_file {
  const void *symbol;
  struct mam_replace_file *next;
  explicit mam_replace_file(const void *where);
  ~mam_replace_file();
  mam_replace_file(const mam_replace_file &) = delete;
  mam_replace_file &operator=(const mam_replace_file &) = delete;
};
struct mam_replace_made {
  int device;
  MAM_Heap heap;
  struct mam_replace_made *next;
};

/* What there is of both; under the mutex. */
struct mam_replace_program {
  pthread_mutex_t mutex;
  struct mam_replace_file *files;
  struct mam_replace_made *made;
};
inline struct mam_replace_program *mam_replace_lock(void) {
  static struct mam_replace_program program = {PTHREAD_MUTEX_INITIALIZER, NULL, NULL};
  (void)pthread_mutex_lock(&program.mutex);
  return &program;
}
inline void mam_replace_unlock(struct mam_replace_program *program) { (void)pthread_mutex_unlock(&program->mutex); }

inline mam_replace_file::mam_replace_file(const void *where) : symbol(where) {
  struct mam_replace_program *program = mam_replace_lock();
  next = program->files;
  program->files = this;
  mam_replace_unlock(program);
}
inline mam_replace_file::~mam_replace_file() {
  struct mam_replace_program *program = mam_replace_lock();
  struct mam_replace_file **place = &program->files;
  while (*place != this)
    place = &(*place)->next;
  *place = next;
  mam_replace_unlock(program);
}
static struct mam_replace_file mam_replace_this_file(&mam_replaced_heap);

/* The program is locked, here and in what follows of that name. */
inline cudaError_t mam_replace_use_locked(const struct mam_replace_program *program, MAM_Heap heap) {
  mam_heap handle = {};
  cudaError_t error = heap == NULL ? cudaSuccess : MAM_HeapHandle(heap, &handle);
  for (const struct mam_replace_file *file = program->files; file != NULL && error == cudaSuccess; file = file->next) {
    error = cudaMemcpyToSymbol(file->symbol, &handle, sizeof handle, 0, cudaMemcpyHostToDevice);
    if (error == cudaErrorInvalidSymbol) /* a file without device code; the runtime forgets it again */
      error = cudaGetLastError() == error ? cudaSuccess : error;
  }
  return error;
}

/* The place of the current device's heap among those that were made: of NULL, if there is none.  NULL without a
 * device. */
inline struct mam_replace_made **mam_replace_find_locked(struct mam_replace_program *program, int *device) {
  struct mam_replace_made **place = &program->made;
  if (cudaGetDevice(device) != cudaSuccess)
    return NULL;
  while (*place != NULL && (*place)->device != *device)
    place = &(*place)->next;
  return place;
}

inline void mam_replace_forget_locked(struct mam_replace_made **place) {
  struct mam_replace_made *made = *place;
  *place = made->next;
  free(made);
}

/* Makes a heap for the current device and writes it down. */
inline cudaError_t mam_replace_make_locked(struct mam_replace_program *program, const MAM_HeapOptions *options) {
  struct mam_replace_made *made = (struct mam_replace_made *)calloc(1, sizeof *made);
  struct mam_replace_made **place = made == NULL ? NULL : mam_replace_find_locked(program, &made->device);
  cudaError_t error = made == NULL ? cudaErrorMemoryAllocation : place == NULL ? cudaGetLastError() : cudaSuccess;
  mam_heap handle;
  if (error == cudaSuccess)
    error = cudaFree(NULL); /* makes the device's context current */
  if (error == cudaSuccess && *place != NULL && MAM_HeapHandle((*place)->heap, &handle) == cudaSuccess)
    error = cudaErrorInvalidValue;
  if (error == cudaSuccess)
    error = MAM_HeapCreate(&made->heap, NULL, options);
  if (error == cudaSuccess && (error = mam_replace_use_locked(program, made->heap)) != cudaSuccess)
    (void)MAM_HeapDestroy(made->heap);
  if (error != cudaSuccess) {
    free(made);
    return error;
  }
  if (*place != NULL) { /* of a context that is gone */
    (void)MAM_HeapDestroy((*place)->heap);
    mam_replace_forget_locked(place);
  }
  made->next = program->made;
  program->made = made;
  return error;
}

/* From now on kernels of the current device use that heap, which is a heap of that device: those that are enqueued
 * after.  NULL: they have none.  Results: MAM_HeapHandle's, and the runtime's on the copies. */
static inline cudaError_t mam_replace_use(MAM_Heap heap) {
  struct mam_replace_program *program = mam_replace_lock();
  cudaError_t error = mam_replace_use_locked(program, heap);
  mam_replace_unlock(program);
  return error;
}

/* Makes a heap of so many bytes (MAM_HeapCreate, in the default pool) for the current device, and uses it.  It is there
 * until mam_replace_destroy, cudaDeviceReset or the program's end.
 *
 * cudaErrorInvalidValue    there is one already, or bytes is less than 256 KiB
 * other                    MAM_HeapCreate's, and the runtime's */
static inline cudaError_t mam_replace_create(size_t bytes) {
  struct mam_replace_program *program = mam_replace_lock();
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  options.records = MAM_HEAP_RECORDED;
  cudaError_t error = mam_replace_make_locked(program, &options);
  mam_replace_unlock(program);
  return error;
}

/* The heap that mam_replace_create made for the current device; NULL if there is none. */
static inline MAM_Heap mam_replace_heap(void) {
  struct mam_replace_program *program = mam_replace_lock();
  int device;
  struct mam_replace_made **place = mam_replace_find_locked(program, &device);
  MAM_Heap heap = place != NULL && *place != NULL ? (*place)->heap : NULL;
  mam_replace_unlock(program);
  return heap;
}

/* Gives that heap back, which no kernel may be using any more; kernels have none then.  Success also if there is none.
 * Results: MAM_HeapDestroy's, and the runtime's. */
static inline cudaError_t mam_replace_destroy(void) {
  struct mam_replace_program *program = mam_replace_lock();
  int device;
  struct mam_replace_made **place = mam_replace_find_locked(program, &device);
  cudaError_t error = place == NULL ? cudaGetLastError() : cudaSuccess, destroyed = cudaSuccess;
  if (place != NULL && *place != NULL) {
    error = mam_replace_use_locked(program, NULL);
    destroyed = MAM_HeapDestroy((*place)->heap);
    mam_replace_forget_locked(place);
  }
  mam_replace_unlock(program);
  return error != cudaSuccess ? error : destroyed;
}
#endif

/* ---- Kernels ---- */

#if MAM_ON_DEVICE

/* Once for all requests of a file, or of all that are linked together. */
MAM_OUTLINE void mam_replaced_forgotten(void) {
  if (atomicExch(&mam_replaced_told, 1) == 0)
    printf("libmam: a kernel asks for memory, but the host has named no heap: see mam_replace_create(3)\n");
}

/* One copy of the quick way, not one for each call in the program. */
MAM_OUTLINE void *mam_replaced_malloc(size_t bytes) {
  void *block = mam_malloc(mam_replaced_heap, bytes);
  if (block == 0 && mam_replaced_heap.control == 0)
    MAM_OUT_OF_SIGHT(mam_replaced_forgotten)();
  return block;
}
MAM_OUTLINE void *mam_replaced_malloc_aligned(size_t bytes, size_t alignment) {
  void *block = mam_malloc_aligned(mam_replaced_heap, alignment, bytes);
  if (block == 0 && mam_replaced_heap.control == 0)
    MAM_OUT_OF_SIGHT(mam_replaced_forgotten)();
  return block;
}
MAM_OUTLINE void mam_replaced_free(MAM_TAG(3) void *block) { mam_free(mam_replaced_heap, block); }

/* Of new: never NULL for want of a size. */
MAM_INLINE size_t mam_replaced_size(size_t bytes) { return bytes + (bytes == 0); }

/* What they throw, as they are declared already. */
#ifdef __CUDACC_RTC__
#define MAM_REPLACED_C
#define MAM_REPLACED_ALIGNED noexcept
#else
#define MAM_REPLACED_C noexcept
#define MAM_REPLACED_ALIGNED
#endif
/* With -rdc each file that includes this has the functions, called or not, and the linker keeps one of each: calls in
 * all other files are to find all of them or none. */
#ifdef __CUDACC_RDC__
#define MAM_REPLACED __host__ __device__ __forceinline__ __attribute__((used))
#else
#define MAM_REPLACED __host__ __device__ __forceinline__
#endif

extern "C" {
MAM_REPLACED void *malloc(size_t bytes) MAM_REPLACED_C { return MAM_OUT_OF_SIGHT(mam_replaced_malloc)(bytes); }
MAM_REPLACED void free(void *block) MAM_REPLACED_C { MAM_OUT_OF_SIGHT(mam_replaced_free)(block); }
/* What __nv_aligned_device_malloc and new of an over-aligned type call; and the same in files without this header. */
__device__ __forceinline__ void *__nv_aligned_device_malloc_impl(size_t bytes, size_t alignment) {
  return MAM_OUT_OF_SIGHT(mam_replaced_malloc_aligned)(bytes, alignment);
}
#ifdef __CUDACC_RDC__
MAM_REPLACED void *__cuda_syscall_aligned_malloc(size_t bytes, size_t alignment) {
  return MAM_OUT_OF_SIGHT(mam_replaced_malloc_aligned)(bytes, alignment);
}
#endif
}

/* That they are inline is what the standard forbids: a program has one of each.  Here each file has the same. */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 2620
#pragma nv_diag_suppress 20040 /* and that CUDA has those with nothrow for the host alone */
MAM_REPLACED void *operator new(size_t bytes) { return malloc(mam_replaced_size(bytes)); }
MAM_REPLACED void *operator new[](size_t bytes) { return malloc(mam_replaced_size(bytes)); }
MAM_REPLACED void operator delete(void *block) noexcept { free(block); }
MAM_REPLACED void operator delete[](void *block) noexcept { free(block); }
MAM_REPLACED void operator delete(void *block, size_t) noexcept { free(block); }
MAM_REPLACED void operator delete[](void *block, size_t) noexcept { free(block); }
#ifdef __cpp_aligned_new
MAM_REPLACED void *operator new(size_t bytes, std::align_val_t alignment) MAM_REPLACED_ALIGNED {
  return __nv_aligned_device_malloc_impl(mam_replaced_size(bytes), (size_t)alignment);
}
MAM_REPLACED void *operator new[](size_t bytes, std::align_val_t alignment) MAM_REPLACED_ALIGNED {
  return __nv_aligned_device_malloc_impl(mam_replaced_size(bytes), (size_t)alignment);
}
MAM_REPLACED void operator delete(void *block, std::align_val_t) noexcept { free(block); }
MAM_REPLACED void operator delete[](void *block, std::align_val_t) noexcept { free(block); }
MAM_REPLACED void operator delete(void *block, size_t, std::align_val_t) noexcept { free(block); }
MAM_REPLACED void operator delete[](void *block, size_t, std::align_val_t) noexcept { free(block); }
#endif
#ifndef __CUDACC_RTC__
MAM_REPLACED void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return operator new(bytes); }
MAM_REPLACED void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return operator new[](bytes); }
MAM_REPLACED void operator delete(void *block, const std::nothrow_t &) noexcept { free(block); }
MAM_REPLACED void operator delete[](void *block, const std::nothrow_t &) noexcept { free(block); }
#endif
#pragma nv_diagnostic pop
#endif

/* ---- Records ----
 *
 * Functions cannot know their callers' lines.  The macro leaves the name as it is and makes its argument one that knows
 * them: host code, std:: and members take it for the number that it was. */

#if MAM_HEAP_RECORDED
struct mam_replaced_bytes {
  size_t bytes;
  const char *file;
  unsigned line;
  __host__ __device__ operator size_t() const { return bytes; }
};
static __host__ __device__ __forceinline__ void *malloc(struct mam_replaced_bytes here) {
#if MAM_ON_DEVICE
  void *block = mam_malloc_at(mam_replaced_heap, here.bytes, here.file, here.line);
  if (block == 0 && mam_replaced_heap.control == 0)
    MAM_OUT_OF_SIGHT(mam_replaced_forgotten)();
  return block;
#else
  return malloc(here.bytes);
#endif
}
#define malloc(bytes) malloc(mam_replaced_bytes{(size_t)(bytes), __FILE__, __LINE__})
#endif

#endif /* MAM_REPLACE_CUH */
