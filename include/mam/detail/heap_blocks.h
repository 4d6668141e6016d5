/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_blocks.h - what begins at an address: a chunk, or a run of whole pages; and frees with all checks.
 *
 *   address -> superblock -> page's entry -> span's usage word -> owner and slot
 *              mam__area_find  mam__block_at                        mam__chunk_is_live
 *
 * A chunk is live if its bit is 0 and it is not set aside for a slot.  The span's owner says to which slot it was given
 * when it was made.  Later, when it was empty, another slot of the same home may have taken it, but none elsewhere
 * (mam__slot_again).
 *
 *   the span is in one of these slots    chunks below the next ticket are live
 *   one of these slots is being refilled perhaps with this span: the check waits until the refill is over
 *   else                                 all chunks of the span were handed out
 *
 * A slot that is dry gets no span before its word says that it is being refilled (mam__slot_fill_alone), so a check
 * does not wait for it, however many tickets are asked for in vain.
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
MAM__INLINE mam__u32 mam__run_pages_at(const struct mam__area *area, mam__u32 page) {
  const mam__u64 *words = &area->words[page * MAM__PAGE_WORDS];
  mam__u64 word = mam__load_relaxed_u64(words);
  return mam__word_is_run(word) ? mam__run_pages(word, mam__load_relaxed_u64(&words[1])) : 0;
}

/* Gives back a long run of the first superblock.  The whole words of the page map in it are kept. */
MAM__INLINE void mam__run_keep(struct mam__heap_control *control, struct mam__area area, mam__u32 page,
                               mam__u32 count) {
  area.base = 0;
  mam__u32 first = (page + 63) >> 6, last = (page + count) >> 6;
  mam__pages_release(area, page, (first << 6) - page);
  MAM__OUT_OF_SIGHT(mam__kept_give)(area, first, last - first);
  mam__pages_release(area, last << 6, page + count - (last << 6));
  MAM__OUT_OF_SIGHT(mam__kept_settle)(&control->kept_end, area, first, last - first);
}

/* Frees the run that begins at page.  Returns 0 if none does. */
MAM__INLINE int mam__run_free(struct mam__heap_control *control, struct mam__area area, mam__u32 page) {
  mam__u64 *place = &area.words[page * MAM__PAGE_WORDS], word = mam__load_relaxed_u64(place);
  /* acq_rel: of two frees one ends the run; what its user did comes before. */
  if (!mam__word_is_run(word) || mam__cas_acq_rel_u64(place, word, 0) != word)
    return 0;
  mam__u64 more = mam__load_relaxed_u64(&place[1]);
  mam__u32 count = mam__run_pages(word, more);
  if (count >> 16 != 0)
    mam__store_relaxed_u64(&place[1], 0);
  if (count >= 2 * MAM__SPAN_PAGES && mam__load_relaxed_u32(&control->kept_end) < MAM__KEPT_OFF &&
      area.words == control->superblocks[0].words)
    mam__run_keep(control, area, page, count);
  else
    mam__pages_release(area, page, count);
  return 1;
}

/* ---- Any block ---- */

/* What begins at an address. */
struct mam__block {
  const struct mam__area *area;
  mam__u32 page;
  mam__u32 pages;      /* of a live run; 0: none begins there */
  mam__u32 size_class; /* of a live chunk, plus 1; 0: none begins there */
  struct mam__bit bit; /* the chunk's */
};

/* A check waits so many times mam__pause, half a second to a second, for a slot that is being refilled. */
enum { MAM__CHECK_ROUNDS = 5000000 };

/* Whether a chunk whose bit is 0 is live, and not set aside for a slot: see above. */
MAM__INLINE int mam__chunk_is_live(struct mam__heap_control *control, mam__u32 kind, mam__u64 address, mam__u32 chunk) {
  mam__u64 first = address - (mam__u64)chunk * mam__class_bytes(kind);
  const struct mam__area *area = mam__area_find(control, address);
  mam__u16 *place = &mam__area_owners(*area)[(first - area->base) >> MAM__PAGE_SHIFT];
  MAM__LOOP
  for (mam__u32 i = 0; i < MAM__CHECK_ROUNDS; i++) {
    mam__u32 owner = mam__load_relaxed_u16(place), bits = mam__tuned_warp_bits(control->heap.tuning), waits = 0;
    if (owner == 0 || owner == MAM__OWNER_NONE)
      return owner != 0;
    mam__u32 number = mam__kind_number(kind) * control->heap.slot_count + ((owner - 1) >> bits << bits);
    MAM__LOOP
    for (mam__u32 at = 0; at < 1u << bits; at++) {
      mam__u64 slot = mam__load_acquire_u64(mam__slot_at(control, number + at));
      mam__u32 ticket = (mam__u32)(slot & MAM__SLOT_TICKETS);
      if (mam__slot_address(slot) == first)
        return chunk < ticket;
      waits |= ticket > mam__slot_limit(&control->heap, kind) && !mam__slot_is_dry(slot);
    }
    if (waits == 0)
      return 1;
    mam__pause();
  }
  return 0;
}

/* Finds out what begins at an address. */
MAM__OUTLINE struct mam__block mam__block_at(struct mam__heap_control *control, mam__u64 address) {
  struct mam__block block = {mam__area_find(control, address), 0, 0, 0, {0, 0}};
  if (block.area == 0)
    return block;
  mam__u64 offset = address - block.area->base;
  block.page = (mam__u32)(offset >> MAM__PAGE_SHIFT);
  mam__u32 entry = mam__load_relaxed_u16(mam__page_entry(block.area->words, block.page));
  if (entry == MAM__ENTRY_RUN) {
    if ((offset & (MAM__PAGE_BYTES - 1)) == 0)
      block.pages = mam__run_pages_at(block.area, block.page);
    return block;
  }
  mam__u32 size_class = (entry & 63) - 1, back = mam__entry_back(entry);
  if (size_class >= MAM__HEAP_CLASSES || back > block.page)
    return block;
  block.bit = mam__bit_of(offset, entry);
  /* acquire: if a refill wrote the word, mam__chunk_is_live sees that the slot is being refilled, or what came later */
  mam__u64 word = mam__load_acquire_u64(&block.area->words[block.bit.word]);
  mam__u32 chunk = (block.bit.word & (MAM__PAGE_WORDS - 1)) * 32 + block.bit.bit;
  if (word >> 56 == size_class + 1 && (mam__word_used(word) >> block.bit.bit & 1) != 0 &&
      back < mam__word_span_pages(word) &&
      offset == ((mam__u64)(block.page - back) << MAM__PAGE_SHIFT) + (mam__u64)chunk * mam__class_bytes(size_class) &&
      mam__chunk_is_live(control, mam__word_class(word), address, chunk))
    block.size_class = size_class + 1;
  return block;
}

/* The bytes of the live block that begins at address; 0 if none does. */
MAM__OUTLINE mam__u64 mam__block_bytes(struct mam__heap_control *control, mam__u64 address) {
  struct mam__block block = MAM__OUT_OF_SIGHT(mam__block_at)(control, address);
  return block.size_class != 0 ? mam__class_bytes(block.size_class - 1) : (mam__u64)block.pages << MAM__PAGE_SHIFT;
}

/* Frees the block that begins at address, with all checks.  Returns 0 if none does, and counts that. */
MAM__OUTLINE int mam__block_free(struct mam__heap_control *control, mam__u64 address) {
  struct mam__block block = MAM__OUT_OF_SIGHT(mam__block_at)(control, address);
  int freed = 0;
  if (block.pages != 0)
    freed = mam__run_free(control, *block.area, block.page);
  else if (block.size_class != 0)
    freed = mam__chunks_free(*block.area, block.bit.word, 1u << block.bit.bit) == 0;
  if (!freed)
    (void)mam__add_relaxed_u64(&control->refused_free, 1);
  return freed;
}

#endif /* MAM_DETAIL_HEAP_BLOCKS_H */
