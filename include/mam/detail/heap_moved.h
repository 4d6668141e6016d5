/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_moved.h - where an object went that a compaction moved.
 *
 * Between the begin and the end of a compaction a span whose objects were moved begins with a table, in its own memory:
 *
 *   | to of chunk 0 | to of chunk 1 | ...      the object's new address; 0 if the chunk had none
 *
 * The map of moved pages has a 1 for each page of such a span, and the pages' entries say MAM__ENTRY_MOVED.  The new
 * place may have been moved as well, so the tables are followed until they end.
 */
#ifndef MAM_DETAIL_HEAP_MOVED_H
#define MAM_DETAIL_HEAP_MOVED_H

#include <mam/detail/heap_layout.h>

/* The superblock of an address; page_count 0 if there is none.  The number of superblocks does not change meanwhile. */
MAM__INLINE struct mam__area mam__forward_area(const mam_device_heap *heap, mam__u64 address) {
  struct mam__area area = mam__heap_area(heap);
  MAM__LOOP
  for (mam__u32 i = 1; (address - area.base) >> MAM__PAGE_SHIFT >= area.page_count; i++) {
    if (i >= heap->control->superblock_count) {
      area.page_count = 0;
      break;
    }
    area = heap->control->superblocks[i];
  }
  return area;
}

/* The number of the chunk in which an address lies, in a span of a kind that begins at page. */
MAM__INLINE mam__u32 mam__span_chunk_at(struct mam__area area, mam__u32 page, mam__u32 kind, mam__u64 address) {
  mam__u32 sixteenths = (mam__u32)(address - mam__area_address(area, page)) >> 4, shift = mam__class_shift(kind);
  return mam__chunk_index(sixteenths, shift, mam__class_multiple(kind, shift));
}

/* Where the object is that an address leads to, or into.  Any other address is returned as it is.  For use after the
 * kernels that move. */
MAM__INLINE mam__u64 mam__forwarded(const mam_device_heap *heap, mam__u64 address) {
  MAM__LOOP
  while (address != 0) {
    struct mam__area area = mam__forward_area(heap, address);
    mam__u32 page = (mam__u32)((address - area.base) >> MAM__PAGE_SHIFT);
    if (area.page_count == 0 || (mam__area_moved(area)[page >> 6] >> (page & 63) & 1) == 0)
      break;
    mam__u32 entry = *mam__page_entry(area.words, page);
    page -= mam__entry_back(entry);
    mam__u32 kind = mam__word_class(area.words[(mam__u64)page * MAM__PAGE_WORDS]);
    mam__u32 chunk = mam__span_chunk_at(area, page, kind, address);
    mam__u64 span = mam__area_address(area, page), to = ((const mam__u64 *)span)[chunk];
    if ((entry & 63) != MAM__ENTRY_MOVED || to == 0)
      break;
    address += to - (span + (mam__u64)chunk * mam__class_bytes(kind));
  }
  return address;
}

#endif /* MAM_DETAIL_HEAP_MOVED_H */
