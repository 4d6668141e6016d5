/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_free.cuh - mam_free, mam_malloc_size and mam_forward (mam/device.cuh).
 *
 * A free reads its page's entry, which says where the chunk's bit is (heap_words.h).  Lanes that free chunks of the
 * same usage word form a group, and one of them sets the bits of all, by one atomic operation.  Many small groups
 * would take turns, so then each lane sets its own.  In a word that is watched, what follows is done out of line
 * (mam__word_follow).
 *
 * What is not a chunk of the first superblock, or is to be checked, goes to mam__block_free (heap_blocks.h).
 */
#ifndef MAM_DETAIL_DEVICE_FREE_CUH
#define MAM_DETAIL_DEVICE_FREE_CUH

#include <mam/detail/heap_core.h>

/* Frees a block that is not a chunk of the first superblock, or is to be checked. */
MAM__OUTLINE void mam__free_rest(struct mam__heap_control *control, void *block) {
  if (control != 0 && block != 0)
    (void)MAM__OUT_OF_SIGHT(mam__block_free)(control, (mam__u64)block);
}

/* Counts chunks of the first superblock that were freed and not used, and does what follows from freeing the others. */
MAM__OUTLINE void mam__free_wrong(struct mam__heap_control *control, mam__u64 *words, mam__u32 page_count,
                                  mam__u32 word, mam__u64 old, mam__u32 bits) {
  struct mam__area area = {0, words, page_count, 0};
  mam__u32 wrong = mam__word_wrong(old, bits);
  (void)mam__add_relaxed_u64(&control->refused_free, mam__ones_u32(wrong));
  mam__wrong_undo(area, word, old, wrong);
  if (wrong != bits)
    MAM__OUT_OF_SIGHT(mam__word_follow)(word, bits & ~wrong, old, area);
}

/* The or of the bits of all lanes of a group. */
MAM__INLINE mam__u32 mam__lanes_or(mam__u32 group, mam__u32 bits) {
#if __CUDA_ARCH__ >= 800
  return __reduce_or_sync(group, bits);
#else
  mam__u32 all = 0;
  for (mam__u32 rest = group; rest != 0; rest &= rest - 1)
    all |= __shfl_sync(group, bits, (int)mam__lowest_u32(rest));
  return all;
#endif
}

/* Lanes of more groups than this free their chunks each by itself. */
enum { MAM__FREE_GROUPS = 4 };

static __device__ __forceinline__ void mam_free(mam_device_heap heap, void *block) {
  mam__u64 offset = (mam__u64)block - heap.base;
  mam__u32 entry = 0;
  if (!MAM_HEAP_CHECKED && (offset >> MAM__PAGE_SHIFT) < heap.page_count)
    entry = mam__load_relaxed_u16(mam__page_entry(mam__heap_words(&heap), (mam__u32)(offset >> MAM__PAGE_SHIFT)));
  if ((entry & 63) - 1 >= MAM__HEAP_CLASSES) {
    MAM__OUT_OF_SIGHT(mam__free_rest)(heap.control, block);
    return;
  }
  struct mam__bit bit = mam__bit_of(offset, entry);
  mam__u64 *word = &mam__heap_words(&heap)[bit.word]; /* its address: lanes may free in several heaps */
  mam__u32 here = __activemask(), group = __match_any_sync(here, (mam__u64)word), bits = 1u << bit.bit;
  /* Groups take turns where one lane of each acts alone.  So if there are many small groups, each lane acts for itself.
   * Between the match and this vote, and between the vote and the barrier, lies nothing but arithmetic, so the same
   * lanes come to all three, and the vote's number is the same for all of them. */
  int groups = (int)mam__ones_u32(__ballot_sync(here, (group & mam__lane_below()) == 0));
  __syncwarp(here); /* what the lanes wrote to their blocks comes before the first lane's release */
  if (groups <= MAM__FREE_GROUPS) {
    bits = mam__lanes_or(mam__mask_of(group), bits);
    if ((group & mam__lane_below()) != 0)
      return;
  }
  mam__u64 old = mam__or_release_u64(word, bits); /* release: as in mam__chunks_free */
  if (mam__word_wrong(old, bits) != 0)
    MAM__OUT_OF_SIGHT(mam__free_wrong)(heap.control, mam__heap_words(&heap), heap.page_count, bit.word, old, bits);
  else if (mam__word_wants_more(old, bits))
    MAM__OUT_OF_SIGHT(mam__word_follow)(bit.word, bits, old, mam__heap_area(&heap));
}

static __device__ __forceinline__ size_t mam_malloc_size(mam_device_heap heap, const void *block) {
  return heap.control != 0 && block != 0 ? MAM__OUT_OF_SIGHT(mam__block_bytes)(heap.control, (mam__u64)block) : 0;
}

template <typename Type> static __device__ void mam_forward(mam_device_heap heap, Type **pointer) {
  mam__u64 old = (mam__u64)*pointer, now = heap.control != 0 ? mam__forwarded(&heap, old) : old;
  if (now != old)
    *pointer = (Type *)now;
}

#endif /* MAM_DETAIL_DEVICE_FREE_CUH */
