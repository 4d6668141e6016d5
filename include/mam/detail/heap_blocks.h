/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_blocks.h - what begins at an address: a chunk, or a run of whole pages; and frees with all checks.
 *
 *   address -> superblock -> page's entry -> span's usage word -> owner and slot
 *              mam_area_find  mam_block_at                        mam_chunk_is_live
 *
 * A chunk is live if its bit is 1 and it is not set aside for a slot.  The span's owner says to which slot it was given
 * when it was made.  Later, when it was empty, another slot of the same home may have taken it, but none elsewhere
 * (mam_ring_take).
 *
 *   the span is in one of these slots    chunks below the next ticket are live
 *   one of these slots is being refilled perhaps with this span: the check waits until the refill is over
 *   else                                 all chunks of the span were handed out
 *
 * A thread that rightly frees a chunk got it after the owner and the slot's word were written, so it sees both.
 *
 * A run has its length in the first two usage words of its first page.  Of two frees the one that changes the first
 * word to 0 ends the run.
 */
#ifndef MAM_DETAIL_HEAP_BLOCKS_H
#define MAM_DETAIL_HEAP_BLOCKS_H

#include <mam/detail/heap_kept.h>
#include <mam/detail/heap_slots.h>

/* ---- Runs ---- */

/* The pages of the run that begins at page; 0 if none does. */
MAM_INLINE mam_u32 mam_run_pages_at(const struct mam_area *area, mam_u32 page) {
  const mam_u64 *words = &area->words[page * MAM_PAGE_WORDS];
  mam_u64 word = mam_load_relaxed_u64(words);
  return mam_word_is_run(word) ? mam_run_pages(word, mam_load_relaxed_u64(&words[1])) : 0;
}

/* Gives back a long run of the first superblock.  The whole words of the page map in it are kept. */
MAM_OUTLINE void mam_run_keep(struct mam_heap_control *control, struct mam_area area, mam_u32 page, mam_u32 count) {
  area.base = 0;
  mam_u32 first = (page + 63) >> 6, last = (page + count) >> 6;
  MAM_OUT_OF_SIGHT(mam_pages_release)(area, page, (first << 6) - page);
  MAM_OUT_OF_SIGHT(mam_kept_give)(area, first, last - first);
  MAM_OUT_OF_SIGHT(mam_pages_release)(area, last << 6, page + count - (last << 6));
  /* If a sweep begins at the same time, it sees the kept words, or this sees the mode. */
  if (mam_look_after_change_u32(&control->mode) != MAM_MODE_LAZY)
    MAM_OUT_OF_SIGHT(mam_kept_flush)(area);
}

/* Frees the run that begins at page.  Returns 0 if none does. */
MAM_OUTLINE int mam_run_free(MAM_TAG(1) struct mam_heap_control *control, struct mam_area area, mam_u32 page) {
  mam_u64 *place = &area.words[page * MAM_PAGE_WORDS], word = mam_load_relaxed_u64(place);
  /* acq_rel: of two frees one ends the run; what its user did comes before. */
  if (!mam_word_is_run(word) || mam_cas_acq_rel_u64(place, word, 0) != word)
    return 0;
  mam_u64 more = mam_load_relaxed_u64(&place[1]);
  mam_u32 count = mam_run_pages(word, more);
  if (more != 0)
    mam_store_relaxed_u64(&place[1], 0);
  if (count >= 2 * MAM_SPAN_PAGES && mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY &&
      area.words == control->superblocks[0].words)
    MAM_OUT_OF_SIGHT(mam_run_keep)(control, area, page, count);
  else
    MAM_OUT_OF_SIGHT(mam_pages_release)(area, page, count);
  return 1;
}

/* ---- Any block ---- */

/* What begins at an address. */
struct mam_block {
  const struct mam_area *area;
  mam_u32 page;
  mam_u32 pages;      /* of a live run; 0: none begins there */
  mam_u32 size_class; /* of a live chunk, plus 1; 0: none begins there */
  struct mam_bit bit; /* the chunk's */
};

/* A check waits so many times mam_pause, half a second to a second, for a slot that is being refilled. */
enum { MAM_CHECK_ROUNDS = 5000000 };

/* Whether a chunk whose bit is 1 is live, and not set aside for a slot: see above. */
MAM_OUTLINE int mam_chunk_is_live(struct mam_heap_control *control, mam_u32 kind, mam_u64 address, mam_u32 chunk) {
  mam_u64 first = address - (mam_u64)chunk * mam_class_bytes(kind);
  const struct mam_area *area = MAM_OUT_OF_SIGHT(mam_area_find)(control, address);
  mam_u16 *place = mam_page_owner(area->words, (mam_u32)((first - area->base) >> MAM_PAGE_SHIFT));
  MAM_LOOP
  for (mam_u32 i = 0; i < MAM_CHECK_ROUNDS; i++) {
    mam_u32 owner = mam_load_relaxed_u16(place), bits = control->heap.warp_bits, waits = 0;
    if (owner == 0 || owner == MAM_OWNER_NONE)
      return owner != 0;
    mam_u64 *slots =
        &control->heap.slots[mam_kind_number(kind) * control->heap.slot_count + ((owner - 1) >> bits << bits)];
    MAM_LOOP
    for (mam_u32 at = 0; at < 1u << bits; at++) {
      mam_u64 slot = mam_load_acquire_u64(&slots[at]);
      mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS);
      if (mam_slot_address(slot) == first)
        return chunk < ticket;
      waits |= ticket > mam_slot_limit(&control->heap, kind);
    }
    if (waits == 0)
      return 1;
    mam_pause();
  }
  return 0;
}

/* Finds out what begins at an address. */
MAM_OUTLINE struct mam_block mam_block_at(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = {MAM_OUT_OF_SIGHT(mam_area_find)(control, address), 0, 0, 0, {0, 0}};
  if (block.area == 0)
    return block;
  mam_u64 offset = address - block.area->base;
  block.page = (mam_u32)(offset >> MAM_PAGE_SHIFT);
  mam_u32 entry = mam_load_relaxed_u16(&mam_area_entries(*block.area)[block.page]);
  if (entry == MAM_ENTRY_RUN) {
    if ((offset & (MAM_PAGE_BYTES - 1)) == 0)
      block.pages = mam_run_pages_at(block.area, block.page);
    return block;
  }
  mam_u32 size_class = (entry & 63) - 1, back = mam_entry_back(entry);
  if (size_class >= MAM_HEAP_CLASSES || back > block.page)
    return block;
  block.bit = mam_bit_of(offset, entry);
  mam_u64 word = mam_load_relaxed_u64(&block.area->words[block.bit.word]);
  mam_u32 chunk = (block.bit.word & (MAM_PAGE_WORDS - 1)) * 32 + block.bit.bit;
  if (word >> 56 == size_class + 1 && (word >> block.bit.bit & 1) != 0 && back < mam_word_span_pages(word) &&
      offset == ((mam_u64)(block.page - back) << MAM_PAGE_SHIFT) + (mam_u64)chunk * mam_class_bytes(size_class) &&
      MAM_OUT_OF_SIGHT(mam_chunk_is_live)(control, mam_word_class(word), address, chunk))
    block.size_class = size_class + 1;
  return block;
}

/* The bytes of the live block that begins at address; 0 if none does. */
MAM_OUTLINE mam_u64 mam_block_bytes(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = MAM_OUT_OF_SIGHT(mam_block_at)(control, address);
  return block.size_class != 0 ? mam_class_bytes(block.size_class - 1) : (mam_u64)block.pages << MAM_PAGE_SHIFT;
}

/* Frees the block that begins at address, with all checks.  Returns 0 if none does, and counts that. */
MAM_OUTLINE int mam_block_free(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = MAM_OUT_OF_SIGHT(mam_block_at)(control, address);
  int freed = 0;
  if (block.pages != 0)
    freed = MAM_OUT_OF_SIGHT(mam_run_free)(control, *block.area, block.page);
  else if (block.size_class != 0)
    freed = mam_chunks_free(*block.area, block.bit.word, 1u << block.bit.bit) == 0;
  if (!freed)
    (void)mam_add_relaxed_u64(&control->refused_free, 1);
  return freed;
}

#endif /* MAM_DETAIL_HEAP_BLOCKS_H */
