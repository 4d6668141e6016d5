/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_free.cuh - mam_free, mam_malloc_size, mam_heap_contains and mam_forward (mam/device.cuh).
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

/* The or of the bits of all lanes of the calling lane's group.  All lanes that are here come, and each reduction is
 * made by all of them, for one group after the other.  firsts: the groups' first lanes. */
MAM__INLINE mam__u32 mam__lanes_or(mam__u32 here, mam__u32 firsts, mam__u32 group, mam__u32 bits) {
  mam__u32 all = 0;
#if __CUDA_ARCH__ >= 800
  for (; firsts != 0; firsts &= firsts - 1) {
    mam__u32 first = mam__lowest_u32(firsts), is_mine = group >> first & 1;
    mam__u32 sum = __reduce_or_sync(here, is_mine != 0 ? bits : 0);
    all = is_mine != 0 ? sum : all;
  }
#else
  (void)firsts;
  for (mam__u32 rest = here; rest != 0; rest &= rest - 1) {
    mam__u32 lane = mam__lowest_u32(rest), other = __shfl_sync(here, bits, (int)lane);
    all |= (group >> lane & 1) != 0 ? other : 0;
  }
#endif
  return all;
}

/* Lanes of more groups than this free their chunks each by itself. */
enum { MAM__FREE_GROUPS = 4 };

/* The handle stays where it is, as in mam__malloc. */
MAM__INLINE void mam__free(const mam_device_heap &heap, void *block) {
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
   * From the match to the reductions the lanes that are here do not part: what decides is the same for all of them. */
  mam__u32 firsts = __ballot_sync(here, (group & mam__lane_below()) == 0);
  __syncwarp(here); /* what the lanes wrote to their blocks comes before the first lane's release */
  if (mam__ones_u32(firsts) <= MAM__FREE_GROUPS) {
    bits = mam__lanes_or(here, firsts, group, bits);
    if ((group & mam__lane_below()) != 0)
      return;
  }
  mam__u64 old = mam__or_release_u64(word, bits); /* release: as in mam__chunks_free */
  if (mam__word_wrong(old, bits) != 0)
    MAM__OUT_OF_SIGHT(mam__free_wrong)(heap.control, mam__heap_words(&heap), heap.page_count, bit.word, old, bits);
  else if (mam__word_wants_more(old, bits))
    MAM__OUT_OF_SIGHT(mam__word_follow)(bit.word, bits, old, mam__heap_area(&heap));
}

MAM__INLINE void mam_free(mam_device_heap heap, void *block) { mam__free(heap, block); }

MAM__INLINE size_t mam_malloc_size(mam_device_heap heap, const void *block) {
  return heap.control != 0 && block != 0 ? MAM__OUT_OF_SIGHT(mam__block_bytes)(heap.control, (mam__u64)block) : 0;
}

MAM__INLINE bool mam_heap_contains(mam_device_heap heap, const void *address) {
  return heap.control != 0 && mam__area_find(heap.control, (mam__u64)address) != 0;
}

template <typename Type> static __device__ void mam_forward(mam_device_heap heap, Type **pointer) {
  mam__u64 old = (mam__u64)*pointer, now = heap.control != 0 ? mam__forwarded(&heap, old) : old;
  if (now != old)
    *pointer = (Type *)now;
}

#endif /* MAM_DETAIL_DEVICE_FREE_CUH */
