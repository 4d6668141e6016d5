/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_record.cuh - mam_malloc_at, and the macros of files that record (MAM_HEAP_RECORDED,
 * mam/device.cuh).
 *
 * A block with a record ends with it, so a request asks for the record's bytes as well (heap_record.h).
 */
#ifndef MAM_DETAIL_DEVICE_RECORD_CUH
#define MAM_DETAIL_DEVICE_RECORD_CUH

#include <mam/detail/device_aligned.cuh>
#include <mam/detail/heap_record.h>

MAM__INLINE void *mam_malloc_at(mam_device_heap heap, size_t bytes, const char *file, unsigned line) {
  if (heap.control == 0 || heap.control->sites == 0 || bytes - 1 >= ~(size_t)0 - sizeof(struct mam__record))
    return mam_malloc(heap, bytes);
  void *block = mam_malloc(heap, bytes + sizeof(struct mam__record));
  if (block != 0)
    MAM__OUT_OF_SIGHT(mam__record_write)(heap.control, (mam__u64)block, bytes, file, line);
  return block;
}

/* As mam_malloc_at.  The record is at the end of the block, so the bytes before it are aligned. */
MAM__INLINE void *mam__malloc_aligned_at(mam_device_heap heap, size_t alignment, size_t bytes, const char *file,
                                         unsigned line) {
  if (heap.control == 0 || heap.control->sites == 0 || bytes - 1 >= ~(size_t)0 - sizeof(struct mam__record))
    return mam_malloc_aligned(heap, alignment, bytes);
  void *block = mam_malloc_aligned(heap, alignment, bytes + sizeof(struct mam__record));
  if (block != 0)
    MAM__OUT_OF_SIGHT(mam__record_write)(heap.control, (mam__u64)block, bytes, file, line);
  return block;
}

#if MAM_HEAP_RECORDED
MAM__INLINE void mam__free_recorded(mam_device_heap heap, void *block) {
  if (heap.control != 0 && heap.control->sites != 0 && block != 0)
    MAM__OUT_OF_SIGHT(mam__record_end)(heap.control, (mam__u64)block);
  mam_free(heap, block);
}
MAM__INLINE size_t mam__malloc_size_recorded(mam_device_heap heap, const void *block) {
  return heap.control != 0 && block != 0 ? MAM__OUT_OF_SIGHT(mam__record_size)(heap.control, (mam__u64)block) : 0;
}
#define mam_malloc(heap, bytes) mam_malloc_at(heap, bytes, __FILE__, __LINE__)
#define mam_malloc_aligned(heap, alignment, bytes) mam__malloc_aligned_at(heap, alignment, bytes, __FILE__, __LINE__)
#define mam_free(heap, block) mam__free_recorded(heap, block)
#define mam_malloc_size(heap, block) mam__malloc_size_recorded(heap, block)
#endif

#endif /* MAM_DETAIL_DEVICE_RECORD_CUH */
