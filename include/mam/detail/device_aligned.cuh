/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_aligned.cuh - mam_malloc_aligned (mam/device.cuh).
 *
 * A span begins on a page, so its chunks are aligned as their size is, up to a page.  The sizes that a class serves are
 * a row of even steps, and the row is at most a fourth of the largest of them.  Take a size that is a multiple of the
 * alignment.  Either its class has larger steps, which are multiples of the alignment too, or the class has exactly
 * that size.  So a request for the next multiple of the alignment gets an aligned chunk, and above MAM__CHUNK_BYTES
 * whole pages.  Only a full heap serves a request from chunks of another class, which need not be aligned.
 */
#ifndef MAM_DETAIL_DEVICE_ALIGNED_CUH
#define MAM_DETAIL_DEVICE_ALIGNED_CUH

#include <mam/detail/device_free.cuh>
#include <mam/detail/device_malloc.cuh>

/* One chunk of a larger class, by passes over the heap. */
MAM__OUTLINE struct mam__claim mam__claim_larger(struct mam__heap_control *control, mam__u32 wanted) {
  struct mam__request request = {control, wanted, 0, 1, 0, 0, 0, 0};
  return mam__claim_chunks(&request, MAM__STEP_BEGIN);
}

/* Replaces a block that is not aligned by one that is.  It tries larger classes, up to twice as large, whose sizes are
 * multiples of the alignment; then whole pages, for which the heap may grow.  bytes is a multiple of the alignment. */
MAM__OUTLINE void *mam__malloc_aligned_rest(MAM__TAG(1) struct mam__heap_control *control, mam__u32 mask,
                                            mam__u32 bytes, void *block) {
  mam__u32 home = mam__home_here(control->heap), larger = bytes;
  for (;;) {
    MAM__OUT_OF_SIGHT(mam__free_rest)(control, block);
    larger = (mam__class_bytes(mam__class_of(larger)) + 1 + mask) & ~mask;
    if (larger > 2 * bytes || larger > MAM__CHUNK_BYTES)
      break;
    struct mam__claim claim =
        MAM__OUT_OF_SIGHT(mam__claim_larger)(control, mam__class_of(larger) | home << MAM__REST_HOME);
    if (claim.mask == 0)
      break;
    block = (void *)mam__claim_chunk(claim, 0);
    if (((mam__u64)block & mask) == 0)
      return block;
  }
  return MAM__OUT_OF_SIGHT(mam__malloc_pages)(home, control, bytes);
}

/* The bytes to ask mam_malloc for, a multiple of the alignment; 0 if there is no such alignment, or the sum is too
 * large for a number. */
MAM__INLINE size_t mam__aligned_bytes(size_t alignment, size_t bytes) {
  size_t mask = alignment - 1;
  return mask < MAM__PAGE_BYTES && (alignment & mask) == 0 ? (bytes + mask) & ~mask : 0;
}
/* The block for such a request, given the one that mam_malloc returned for these bytes. */
MAM__INLINE void *mam__aligned_block(struct mam__heap_control *control, size_t alignment, size_t bytes, void *block) {
  mam__u32 mask = (mam__u32)alignment - 1;
  if (((mam__u64)block & mask) == 0)
    return block;
  return MAM__OUT_OF_SIGHT(mam__malloc_aligned_rest)(control, mask, (mam__u32)bytes, block);
}

MAM__INLINE void *mam_malloc_aligned(mam_device_heap heap, size_t alignment, size_t bytes) {
  bytes = mam__aligned_bytes(alignment, bytes);
  return mam__aligned_block(heap.control, alignment, bytes, mam_malloc(heap, bytes));
}

#endif /* MAM_DETAIL_DEVICE_ALIGNED_CUH */
