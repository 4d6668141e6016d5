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

/* Frees a block that is not aligned and looks for one that is, in larger classes, up to twice as large, whose sizes are
 * multiples of the alignment.  Returns NULL if they have none.  bytes is a multiple of the alignment. */
MAM__OUTLINE void *mam__malloc_aligned_larger(MAM__TAG(1) struct mam__heap_control *control, mam__u32 mask,
                                              mam__u32 bytes, void *block) {
  mam__u32 home = mam__home_here(control->heap), larger = bytes;
  for (;;) {
    MAM__OUT_OF_SIGHT(mam__free_rest)(control, block);
    larger = (mam__class_bytes(mam__class_of(larger)) + 1 + mask) & ~mask;
    if (larger > 2 * bytes || larger > MAM__CHUNK_BYTES)
      return 0;
    struct mam__claim claim =
        MAM__OUT_OF_SIGHT(mam__claim_larger)(control, mam__class_of(larger) | home << MAM__REST_HOME);
    if (claim.mask == 0)
      return 0;
    block = (void *)mam__claim_chunk(claim, 0);
    if (((mam__u64)block & mask) == 0)
      return block;
  }
}

/* The bytes to ask mam_malloc for, a multiple of the alignment; 0 if there is no such alignment, or the sum is too
 * large for a number. */
MAM__INLINE size_t mam__aligned_bytes(size_t alignment, size_t bytes) {
  size_t mask = alignment - 1;
  return mask < MAM__PAGE_BYTES && (alignment & mask) == 0 ? (bytes + mask) & ~mask : 0;
}
/* Whether a chunk serves such a request; NULL does, too.  If it is not aligned, it is replaced by one that is.  If
 * there is none, whole pages are to serve the request; the heap may grow for them. */
MAM__INLINE int mam__chunk_is_aligned(struct mam__heap_control *control, size_t alignment, size_t bytes, void **chunk) {
  mam__u32 mask = (mam__u32)alignment - 1;
  if (((mam__u64)*chunk & mask) == 0)
    return 1;
  *chunk = MAM__OUT_OF_SIGHT(mam__malloc_aligned_larger)(control, mask, (mam__u32)bytes, *chunk);
  return *chunk != 0;
}

MAM__INLINE void *mam_malloc_aligned(mam_device_heap heap, size_t alignment, size_t bytes) {
  mam__u32 home = mam__home_here(heap);
  bytes = mam__aligned_bytes(alignment, bytes);
  if (mam__is_chunk(bytes)) {
    void *chunk = mam__malloc_chunk(heap, home, bytes);
    if (mam__chunk_is_aligned(heap.control, alignment, bytes, &chunk))
      return chunk;
  }
  return MAM__OUT_OF_SIGHT(mam__malloc_pages)(home, heap.control, bytes);
}

#endif /* MAM_DETAIL_DEVICE_ALIGNED_CUH */
