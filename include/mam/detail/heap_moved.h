/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_moved.h - where an object went that a compaction moved.
 *
 * Between the begin and the end of a compaction a span whose objects were moved begins with a table, in its own memory:
 *
 *   | to of chunk 0 | to of chunk 1 | ...      the object's new address; 0 if the chunk had none
 *
 * The map of moved pages has a 1 for each page of such a span, and the pages' entries say MAM_ENTRY_MOVED.  The new
 * place may have been moved as well, so the tables are followed until they end.
 */
#ifndef MAM_DETAIL_HEAP_MOVED_H
#define MAM_DETAIL_HEAP_MOVED_H

#include <mam/detail/heap_layout.h>

/* The superblock of an address; page_count 0 if there is none.  The number of superblocks does not change meanwhile. */
MAM_INLINE struct mam_area mam_forward_area(const mam_heap *heap, mam_u64 address) {
  struct mam_area area = {heap->base, heap->words, heap->page_count, 0};
  MAM_LOOP
  for (mam_u32 i = 1; (address - area.base) >> MAM_PAGE_SHIFT >= area.page_count; i++) {
    if (i >= heap->control->superblock_count) {
      area.page_count = 0;
      break;
    }
    area = heap->control->superblocks[i];
  }
  return area;
}

/* The number of the chunk in which an address lies, in a span of a kind that begins at page. */
MAM_INLINE mam_u32 mam_span_chunk_at(struct mam_area area, mam_u32 page, mam_u32 kind, mam_u64 address) {
  mam_u32 sixteenths = (mam_u32)(address - mam_area_address(area, page)) >> 4, shift = mam_class_shift(kind);
  return mam_chunk_index(sixteenths, shift, mam_class_multiple(kind, shift));
}

/* Where the object is that an address leads to, or into.  Any other address is returned as it is.  For use after the
 * kernels that move. */
MAM_INLINE mam_u64 mam_forwarded(const mam_heap *heap, mam_u64 address) {
  MAM_LOOP
  while (address != 0) {
    struct mam_area area = mam_forward_area(heap, address);
    mam_u32 page = (mam_u32)((address - area.base) >> MAM_PAGE_SHIFT);
    if (area.page_count == 0 || (mam_area_moved(area)[page >> 6] >> (page & 63) & 1) == 0)
      break;
    mam_u32 entry = mam_area_entries(area)[page];
    page -= mam_entry_back(entry);
    mam_u32 kind = mam_word_class(area.words[(mam_u64)page * MAM_PAGE_WORDS]);
    mam_u32 chunk = mam_span_chunk_at(area, page, kind, address);
    mam_u64 span = mam_area_address(area, page), to = ((const mam_u64 *)span)[chunk];
    if ((entry & 63) != MAM_ENTRY_MOVED || to == 0)
      break;
    address += to - (span + (mam_u64)chunk * mam_class_bytes(kind));
  }
  return address;
}

#endif /* MAM_DETAIL_HEAP_MOVED_H */
