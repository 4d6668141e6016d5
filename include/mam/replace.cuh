/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/replace.cuh - a device heap behind malloc, free, new and delete of kernels, without a change of the kernels'
 * text.
 *
 *   #include <mam/replace.cuh>        // anywhere in the file
 *   __global__ void kernel() { int *row = (int *)malloc(100); ... free(row); node *n = new node(); ... delete n; }
 *
 *   mam_replace_create(128 << 20);    // on the host, before the first kernel
 *   kernel<<<blocks, threads>>>();
 *
 * In device code malloc, free, __nv_aligned_device_malloc and the operators are functions of this header: by name, by
 * address and by std::.  In host code they are unchanged.  A kernel may free only blocks of the heap that it uses.  The
 * host frees such blocks by MAM_HeapFree.  A request in a kernel without a heap returns NULL, and the first such
 * request prints a message.  If there is no room, new returns NULL and constructs nothing, as CUDA's own new does.
 *
 * The host names the heap for all files of the program at once.  It is the heap of the current device.
 *
 *   -rdc=true     One file that includes this header is enough: all files that are linked with it use its malloc.
 *   without it    Each file that has kernels which allocate includes this header.
 *   NVRTC         The heap is the module's global mam_replaced_heap.  The host copies to it what MAM_HeapHandle writes.
 *
 * A file that is loaded later (dlopen) has no heap until the host calls mam_replace_use again.  After cudaDeviceReset
 * no file has a heap.
 *
 * With MAM_HEAP_RECORDED defined as 1 (mam/device.cuh), malloc is a macro as well, which knows the calling line.  Then
 * include this header last.
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

/* The heap's handle: all 0 until the host has named a heap.  With -rdc it is a template, because the linkers keep one
 * instance of a template for all files. */
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

/* A file of the program; and a heap that mam_replace_create made. */
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

/* All files and all heaps.  The mutex protects both lists. */
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

/* In functions whose names end in _locked, the caller holds the program's mutex. */
inline cudaError_t mam_replace_use_locked(const struct mam_replace_program *program, MAM_Heap heap) {
  mam_heap handle = {};
  cudaError_t error = heap == NULL ? cudaSuccess : MAM_HeapHandle(heap, &handle);
  for (const struct mam_replace_file *file = program->files; file != NULL && error == cudaSuccess; file = file->next) {
    error = cudaMemcpyToSymbol(file->symbol, &handle, sizeof handle, 0, cudaMemcpyHostToDevice);
    if (error == cudaErrorInvalidSymbol) /* a file without device code; the call below clears the error */
      error = cudaGetLastError() == error ? cudaSuccess : error;
  }
  return error;
}

/* Returns the place in the list of the current device's heap.  It holds NULL if the device has no heap.  Returns NULL
 * if there is no current device. */
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

/* Makes a heap for the current device and adds it to the list. */
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
  if (*place != NULL) { /* its context was destroyed */
    (void)MAM_HeapDestroy((*place)->heap);
    mam_replace_forget_locked(place);
  }
  made->next = program->made;
  program->made = made;
  return error;
}

/* Has kernels of the current device use heap, which must be a heap of that device.  It concerns kernels that are
 * enqueued after the call.  NULL: they have no heap.  The heap stays the caller's.  Any thread may call this at any
 * time.
 *
 * cudaSuccess              kernels have the heap
 * other                    what MAM_HeapHandle or the CUDA runtime returned.  After an error of the runtime some files
 *                          may have the heap and others not */
static inline cudaError_t mam_replace_use(MAM_Heap heap) {
  struct mam_replace_program *program = mam_replace_lock();
  cudaError_t error = mam_replace_use_locked(program, heap);
  mam_replace_unlock(program);
  return error;
}

/* Makes a heap of bytes bytes (MAM_HeapCreate, in the default pool) for the current device, and has kernels use it.
 * The heap lives until mam_replace_destroy, cudaDeviceReset or the end of the program.  Any thread may call this at any
 * time.
 *
 * cudaSuccess              kernels have the heap
 * cudaErrorInvalidValue    the current device has such a heap already, or bytes is less than 256 KiB
 * other                    what MAM_HeapCreate or the CUDA runtime returned
 *
 * On failure there is no new heap. */
static inline cudaError_t mam_replace_create(size_t bytes) {
  struct mam_replace_program *program = mam_replace_lock();
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  options.records = MAM_HEAP_RECORDED;
  cudaError_t error = mam_replace_make_locked(program, &options);
  mam_replace_unlock(program);
  return error;
}

/* Returns the heap that mam_replace_create made for the current device; NULL if there is none.  The heap is not the
 * caller's to destroy. */
static inline MAM_Heap mam_replace_heap(void) {
  struct mam_replace_program *program = mam_replace_lock();
  int device;
  struct mam_replace_made **place = mam_replace_find_locked(program, &device);
  MAM_Heap heap = place != NULL && *place != NULL ? (*place)->heap : NULL;
  mam_replace_unlock(program);
  return heap;
}

/* Destroys the heap that mam_replace_create made for the current device, if there is one.  Kernels have no heap then.
 * No kernel may be using the heap.
 *
 * cudaSuccess              the heap is gone; also if there was none
 * other                    what MAM_HeapDestroy or the CUDA runtime returned; the heap is gone all the same */
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

/* Prints once for a file, or for all files that are linked together. */
MAM_OUTLINE void mam_replaced_forgotten(void) {
  if (atomicExch(&mam_replaced_told, 1) == 0)
    printf("libmam: a kernel asks for memory, but the host has named no heap: see mam_replace_create(3)\n");
}

/* Out of line, so that the program has one copy and not one for each call. */
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

/* For new: a request of 0 bytes gets a block too. */
MAM_INLINE size_t mam_replaced_size(size_t bytes) { return bytes + (bytes == 0); }

/* The exception specifications of the earlier declarations. */
#ifdef __CUDACC_RTC__
#define MAM_REPLACED_C
#define MAM_REPLACED_ALIGNED noexcept
#else
#define MAM_REPLACED_C noexcept
#define MAM_REPLACED_ALIGNED
#endif
/* With -rdc each file that includes this header has the functions, called or not, and the linker keeps one of each.  So
 * calls in all other files find either all of them or none. */
#ifdef __CUDACC_RDC__
#define MAM_REPLACED __host__ __device__ __forceinline__ __attribute__((used))
#else
#define MAM_REPLACED __host__ __device__ __forceinline__
#endif

extern "C" {
MAM_REPLACED void *malloc(size_t bytes) MAM_REPLACED_C { return MAM_OUT_OF_SIGHT(mam_replaced_malloc)(bytes); }
MAM_REPLACED void free(void *block) MAM_REPLACED_C { MAM_OUT_OF_SIGHT(mam_replaced_free)(block); }
/* __nv_aligned_device_malloc and new of an over-aligned type call this; in files without this header, the next one. */
__device__ __forceinline__ void *__nv_aligned_device_malloc_impl(size_t bytes, size_t alignment) {
  return MAM_OUT_OF_SIGHT(mam_replaced_malloc_aligned)(bytes, alignment);
}
#ifdef __CUDACC_RDC__
MAM_REPLACED void *__cuda_syscall_aligned_malloc(size_t bytes, size_t alignment) {
  return MAM_OUT_OF_SIGHT(mam_replaced_malloc_aligned)(bytes, alignment);
}
#endif
}

/* The standard forbids inline replacements, since a program has one of each.  Here all files have the same. */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 2620
#pragma nv_diag_suppress 20040 /* CUDA declares the operators with nothrow for the host alone */
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
 * A function does not know the line of its caller.  The macro keeps the name malloc and gives it an argument that holds
 * the line.  Host code, std:: and members convert the argument to the number of bytes. */
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
