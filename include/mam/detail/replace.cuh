/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/replace.cuh - malloc, free, new and delete of kernels (mam/replace.cuh): device code.
 */
#ifndef MAM_DETAIL_REPLACE_CUH
#define MAM_DETAIL_REPLACE_CUH

#include <mam/detail/replace_host.cuh>
#include <mam/device.cuh>

#if MAM__ON_DEVICE

/* Prints a message, once for all requests of a file, or of all files that are linked together. */
MAM__OUTLINE void mam__replaced_forgotten(void) {
  if (atomicExch(&mam__replaced_told, 1) == 0)
    printf("libmam: a kernel asks for memory, but the host has named no heap: see mam_replace_create(3)\n");
}

/* The program has one copy of the quick way, not one for each call.  It is for chunks alone: a request of whole pages
 * goes deepest, and would have this function's stack on top. */
MAM__OUTLINE void *mam__replaced_malloc_chunk(size_t bytes) {
  void *block = mam__malloc_chunk(mam_replaced_heap, mam__home_here(mam_replaced_heap), bytes);
  if (block == 0 && mam_replaced_heap.control == 0)
    MAM__OUT_OF_SIGHT(mam__replaced_forgotten)();
  return block;
}
MAM__OUTLINE void *mam__replaced_malloc_pages(MAM__TAG(4) size_t bytes) {
  if (mam_replaced_heap.control == 0)
    MAM__OUT_OF_SIGHT(mam__replaced_forgotten)();
  return MAM__OUT_OF_SIGHT(mam__malloc_pages)(mam__home_here(mam_replaced_heap), mam_replaced_heap.control, bytes);
}
MAM__INLINE void *mam__replaced_malloc(size_t bytes) {
  return mam__is_chunk(bytes) ? MAM__OUT_OF_SIGHT(mam__replaced_malloc_chunk)(bytes)
                              : MAM__OUT_OF_SIGHT(mam__replaced_malloc_pages)(bytes);
}
MAM__OUTLINE void *mam__replaced_malloc_aligned(size_t bytes, size_t alignment) {
  bytes = mam__aligned_bytes(alignment, bytes);
  if (mam__is_chunk(bytes)) {
    void *chunk = MAM__OUT_OF_SIGHT(mam__replaced_malloc_chunk)(bytes);
    if (mam__chunk_is_aligned(mam_replaced_heap.control, alignment, bytes, &chunk))
      return chunk;
  }
  return MAM__OUT_OF_SIGHT(mam__replaced_malloc_pages)(bytes);
}
MAM__OUTLINE void mam__replaced_free(MAM__TAG(3) void *block) { mam__free(mam_replaced_heap, block); }

/* What new asks for: at least a byte, since it never returns NULL because of a size of 0. */
MAM__INLINE size_t mam__replaced_size(size_t bytes) { return bytes + (bytes == 0); }

/* The exception specifications with which these functions are declared already. */
#ifdef __CUDACC_RTC__
#define MAM__REPLACED_C
#define MAM__REPLACED_ALIGNED noexcept
#else
#define MAM__REPLACED_C noexcept
#define MAM__REPLACED_ALIGNED
#endif
/* With -rdc=true each file that includes this has the functions, whether they are called or not, and the linker keeps
 * one of each.  So calls in all other files find all of them or none.  Such a file takes malloc and free for CUDA's
 * own, and keeps values in registers that another function may change by CUDA's conventions: R32 to R35, R40 to R43 and
 * so on.  Functions without these registers (MAM__NARROW) change none of them.  Where the compiler cannot make such
 * functions, other files find CUDA's own. */
#if defined(__CUDACC_RDC__) && defined(__local_maxnreg__)
#define MAM__FOR_ALL_FILES 1
#define MAM__REPLACED __host__ __device__ __forceinline__ __attribute__((used))
#else
#define MAM__FOR_ALL_FILES 0
#define MAM__REPLACED __host__ __device__ __forceinline__
#endif
/* CUDA's header declares __nv_aligned_device_malloc_impl inside of the function that calls it.  If it is called there
 * alone, the compiler leaves out an inline one.  With -rdc=true each file has it, so it has to be inline, and that call
 * comes to __cuda_syscall_aligned_malloc, or to CUDA's own heap if the compiler is too old for MAM__FOR_ALL_FILES. */
#ifdef __CUDACC_RDC__
#define MAM__REPLACED_INNER __device__ __forceinline__
#else
#define MAM__REPLACED_INNER __device__
#endif

extern "C" {
MAM__REPLACED void *malloc(size_t bytes) MAM__REPLACED_C { return mam__replaced_malloc(bytes); }
MAM__REPLACED void free(void *block) MAM__REPLACED_C { MAM__OUT_OF_SIGHT(mam__replaced_free)(block); }
/* __nv_aligned_device_malloc and new of an over-aligned type call the first one; the same in files without this header
 * call the second. */
MAM__REPLACED_INNER void *__nv_aligned_device_malloc_impl(size_t bytes, size_t alignment) {
  return MAM__OUT_OF_SIGHT(mam__replaced_malloc_aligned)(bytes, alignment);
}
#if MAM__FOR_ALL_FILES
MAM__REPLACED void *__cuda_syscall_aligned_malloc(size_t bytes, size_t alignment) {
  return MAM__OUT_OF_SIGHT(mam__replaced_malloc_aligned)(bytes, alignment);
}
#endif
}

/* The standard says that a program has one of each of these operators, and forbids inline ones.  Here each file has the
 * same. */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 2620
#pragma nv_diag_suppress 20040 /* CUDA declares the nothrow operators for the host alone */
MAM__REPLACED void *operator new(size_t bytes) { return malloc(mam__replaced_size(bytes)); }
MAM__REPLACED void *operator new[](size_t bytes) { return malloc(mam__replaced_size(bytes)); }
MAM__REPLACED void operator delete(void *block) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block) noexcept { free(block); }
MAM__REPLACED void operator delete(void *block, size_t) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block, size_t) noexcept { free(block); }
#ifdef __cpp_aligned_new
MAM__REPLACED void *operator new(size_t bytes, std::align_val_t alignment) MAM__REPLACED_ALIGNED {
  return __nv_aligned_device_malloc_impl(mam__replaced_size(bytes), (size_t)alignment);
}
MAM__REPLACED void *operator new[](size_t bytes, std::align_val_t alignment) MAM__REPLACED_ALIGNED {
  return __nv_aligned_device_malloc_impl(mam__replaced_size(bytes), (size_t)alignment);
}
MAM__REPLACED void operator delete(void *block, std::align_val_t) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block, std::align_val_t) noexcept { free(block); }
MAM__REPLACED void operator delete(void *block, size_t, std::align_val_t) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block, size_t, std::align_val_t) noexcept { free(block); }
#endif
#ifndef __CUDACC_RTC__
MAM__REPLACED void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return operator new(bytes); }
MAM__REPLACED void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return operator new[](bytes); }
MAM__REPLACED void operator delete(void *block, const std::nothrow_t &) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block, const std::nothrow_t &) noexcept { free(block); }
#ifdef __cpp_aligned_new
MAM__REPLACED void *operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t &) noexcept {
  return operator new(bytes, alignment);
}
MAM__REPLACED void *operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t &) noexcept {
  return operator new[](bytes, alignment);
}
MAM__REPLACED void operator delete(void *block, std::align_val_t, const std::nothrow_t &) noexcept { free(block); }
MAM__REPLACED void operator delete[](void *block, std::align_val_t, const std::nothrow_t &) noexcept { free(block); }
#endif
#endif
#pragma nv_diagnostic pop
#endif

/* ---- Records ----
 *
 * A function does not know its caller's line.  So malloc becomes a macro, which keeps the name and gives the function
 * an argument that knows the line.  Host code, std::malloc and members of that name take the argument as the number. */

#if MAM_HEAP_RECORDED
struct mam__replaced_bytes {
  size_t bytes;
  const char *file;
  unsigned line;
  __host__ __device__ operator size_t() const { return bytes; }
};
static __host__ __device__ __forceinline__ void *malloc(struct mam__replaced_bytes here) {
#if MAM__ON_DEVICE
  void *block = mam_malloc_at(mam_replaced_heap, here.bytes, here.file, here.line);
  if (block == 0 && mam_replaced_heap.control == 0)
    MAM__OUT_OF_SIGHT(mam__replaced_forgotten)();
  return block;
#else
  return malloc(here.bytes);
#endif
}
#define malloc(bytes) malloc(mam__replaced_bytes{(size_t)(bytes), __FILE__, __LINE__})
#endif

#endif /* MAM_DETAIL_REPLACE_CUH */
