/* SPDX-License-Identifier: BSD-2-Clause */
/* Defragmentation (compact_core.h): a heap's pages and slots, and its spans that are candidates. */
#ifndef MAM_LIB_COMPACT_FIND_H
#define MAM_LIB_COMPACT_FIND_H

#include "heap/compact_types.h"

/* ---- Pages ---- */

/* The superblock and the page in it of a page number.  Numbers go over all superblocks, see struct mam_compact. */
MAM__INLINE struct mam__place mam_compact_place(const struct mam_compact *compact, mam__u32 number) {
  mam__u32 superblock = 0;
  MAM__LOOP
  while (number >= compact->first[superblock + 1])
    superblock++;
  struct mam__place place = {mam__heap_area(&compact->heap), number - compact->first[superblock]};
  if (superblock != 0)
    place.area = compact->control->superblocks[superblock];
  return place;
}

MAM__INLINE int mam_map_bit(const mam__u64 *map, mam__u32 page) { return (int)(map[page >> 6] >> (page & 63) & 1); }

/* The usage words of the span that begins at a page. */
MAM__INLINE mam__u64 *mam_span_words_at(struct mam__area area, mam__u32 page) {
  return area.words + page * MAM__PAGE_WORDS;
}

/* The kind of the typed span that begins at a page and was not moved.  0 if none does.  entry: of that page. */
MAM__INLINE mam__u32 mam_typed_span_at(struct mam__area area, mam__u32 page, mam__u32 entry) {
  mam__u32 type = entry >> MAM__ENTRY_TYPE_SHIFT;
  mam__u32 kind = mam__kind_of((entry & 63) - 1, type);
  if (type == 0 || mam__entry_back(entry) != 0 || (entry & 63) - 1 >= MAM__HEAP_CLASSES)
    return 0;
  return mam__word_class(*mam_span_words_at(area, page)) == kind ? kind : 0;
}

MAM__INLINE int mam_kind_has_pointers(const struct mam_compact *compact, mam__u32 kind) {
  return (int)(compact->types_with_pointers >> (mam__kind_type(kind) - 1) & 1);
}

/* How many objects are live in a span, and how many chunks it has. */
struct mam_fill {
  mam__u32 live, chunks;
};

/* Reads all words of the page.  Those behind the span's are 0.  So no read depends on another, and all are under way
 * together. */
MAM__INLINE struct mam_fill mam_span_fill(const mam__u64 *words) {
  struct mam_fill fill = {0, 0};
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    mam__u64 word = words[i];
    fill.live += mam__ones_u32(mam__word_used(word));
    fill.chunks += mam__word_chunks(word);
  }
  return fill;
}

/* Whether a span is a candidate.  The paper, "Design of CompactGpu". */
MAM__INLINE int mam_fill_is_candidate(struct mam_fill fill, mam__u32 n) {
  return fill.live != 0 && fill.live * (n + 1) <= fill.chunks * n;
}

/* Marks a span whose objects were moved, or that has none.  what: its entries' new size class, MAM__ENTRY_MOVED or
 * MAM__ENTRY_EMPTY. */
MAM__INLINE void mam_span_moved(struct mam_team team, struct mam__area area, mam__u32 page, mam__u32 pages,
                                mam__u32 kind, mam__u32 what) {
  MAM__LOOP
  for (mam__u32 i = team.rank; i < pages; i += team.count)
    *mam__page_entry(area.words, page + i) = (mam__u16)((mam__entry_of(kind, i) & ~63u) | what);
  MAM__LOOP
  for (mam__u32 done = 0; team.rank == 0 && done < pages;) {
    mam__u32 from = (page + done) & 63, here = 64 - from < pages - done ? 64 - from : pages - done;
    /* Relaxed: threads that read it have waited for this one before. */
    (void)mam__or_relaxed_u64(&mam__area_moved(area)[(page + done) >> 6], mam__run_bits(here, from));
    done += here;
  }
}

/* ---- Slots ----
 *
 * What a slot holds counts as used, so a pass would take it for objects.  So a compaction first gives it back. */

/* A slot of a type.  type: its number less 1.  Slots of types stand behind those of size classes. */
MAM__INLINE mam__u64 *mam_compact_slot(const struct mam_compact *compact, mam__u32 type, mam__u32 number) {
  return mam__slot_at(compact->heap.control, (MAM__HEAP_CLASSES + type) * compact->heap.slot_count + number);
}

/* The span of a slot that was emptied.  pages is 0 if there was none.  used is not 0 if a chunk of the span is taken.
 */
struct mam_slot_emptied {
  struct mam__area area;
  mam__u32 page, pages, kind, used;
};

/* Frees those chunks of a typed slot that have no ticket yet.  The caller calls mam_slot_emptied_end afterwards, which
 * does what follows from that. */
MAM__INLINE struct mam_slot_emptied mam_compact_slot_empty(const struct mam_compact *compact, mam__u32 type,
                                                           mam__u32 number) {
  struct mam_slot_emptied emptied = {{0, 0, 0, 0}, 0, 0, 0, 0};
  const mam_device_heap *heap = &compact->heap;
  mam__u32 kind = compact->kinds[type], limit = mam__slot_limit(heap, kind);
  mam__u64 *place = mam_compact_slot(compact, type, number), slot = *place;
  mam__u32 ticket = (mam__u32)(slot & MAM__SLOT_TICKETS);
  *place = (slot & ~MAM__SLOT_TICKETS) | limit; /* no tickets left; the address leads to its earlier spans */
  if (ticket >= limit)
    return emptied;
  emptied.area = mam__forward_area(heap, mam__slot_address(slot));
  emptied.page = (mam__u32)((mam__slot_address(slot) - emptied.area.base) >> MAM__PAGE_SHIFT);
  emptied.kind = kind;
  mam__u64 *words = mam_span_words_at(emptied.area, emptied.page);
  mam__u32 count = mam__word_span_words(words[0]);
  emptied.pages = mam__word_span_pages(words[0]);
  MAM__UNROLL /* the loads are under way together */
      for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) if (i < count) {
    mam__u32 handed_out = ticket <= 32 * i ? 0 : ticket - 32 * i >= 32 ? 32 : ticket - 32 * i;
    mam__u64 word = words[i] | (mam__word_whole(words[i]) & ~mam__first_ones_u32(handed_out));
    emptied.used |= mam__word_used(word);
    words[i] = word;
  }
  MAM__LOOP
  for (mam__u32 i = 0; i < count && emptied.used == 0; i++)
    words[i] = 0;
  return emptied;
}

/* Lets requests find the free chunks of the span, or its pages if it is empty. */
MAM__INLINE void mam_slot_emptied_end(const struct mam_slot_emptied *emptied) {
  if (emptied->pages != 0 && emptied->used != 0)
    mam__span_hint(emptied->area, emptied->page, emptied->kind);
  else if (emptied->pages != 0)
    MAM__OUT_OF_SIGHT(mam__pages_release)(emptied->area, emptied->page, emptied->pages);
}

/* Whether no thread has taken a ticket of an emptied slot. */
MAM__INLINE int mam_compact_slot_is_untouched(const struct mam_compact *compact, mam__u32 type, mam__u32 number) {
  mam__u32 limit = mam__slot_limit(&compact->heap, compact->kinds[type]);
  return (*mam_compact_slot(compact, type, number) & MAM__SLOT_TICKETS) == limit;
}

/* ---- Candidates ---- */

/* What a thread saw in a group of pages.  by_type has the number of candidates of each type in four bits, at most
 * MAM_COMPACT_GROUP. */
struct mam_seen {
  mam__u64 by_type;
  struct mam_tile_found found;
  /* The types of the candidates that begin in the pages, in four bits each.  0: none begins there. */
  mam__u16 candidates;
  /* A bit for each page in which a span with pointers begins. */
  mam__u8 with_pointers;
};

/* Looks at a group of pages.  at_first: marks empty spans that no thread has given back, so that they end with the
 * moved ones. */
MAM__INLINE struct mam_seen mam_group_look(const struct mam_compact *compact, mam__u32 n, mam__u32 number,
                                           int at_first) {
  const struct mam_team alone = {0, 1};
  struct mam_seen seen = {0, {0, 0}, 0, 0};
  struct mam__place place = mam_compact_place(compact, number);
  if (place.page >= place.area.page_count)
    return seen;
  mam__u32 taken = (mam__u32)(mam__area_pages(place.area)[place.page >> 6] >> (place.page & 63));
  /* A bit for each page in which a typed span begins, by its entry. */
  mam__u32 begins = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_GROUP; i++)
    if (place.page + i < place.area.page_count) {
      mam__u32 entry = *mam__page_entry(place.area.words, place.page + i);
      begins |= (mam__u32)(entry >> MAM__ENTRY_TYPE_SHIFT != 0 && mam__entry_back(entry) == 0) << i;
    }
  begins &= taken; /* only those of the group: taken has bits of later pages too */
  MAM__LOOP
  for (; begins != 0; begins &= begins - 1) {
    mam__u32 i = mam__lowest_u32(begins), page = place.page + i;
    const mam__u64 *words = mam_span_words_at(place.area, page);
    struct mam_fill fill = mam_span_fill(words);
    mam__u32 kind = mam_typed_span_at(place.area, page, *mam__page_entry(place.area.words, page));
    if (kind == 0)
      continue;
    if (fill.live == 0) {
      if (at_first)
        mam_span_moved(alone, place.area, page, mam__word_span_pages(words[0]), kind, MAM__ENTRY_EMPTY);
      continue;
    }
    mam__u64 is_candidate = (mam__u64)mam_fill_is_candidate(fill, n);
    seen.by_type += is_candidate << (4 * (mam__kind_type(kind) - 1));
    seen.candidates |= (mam__u16)((mam__u32)is_candidate * mam__kind_type(kind) << (4 * i));
    seen.found.numbers += 1 | is_candidate << 16 | (mam__u64)fill.live << 32;
    seen.found.sizes += ((fill.chunks - fill.live) << 16) / fill.chunks;
    seen.found.sizes += (mam__u64)mam__word_span_pages(words[0]) << 32;
    if (mam_kind_has_pointers(compact, kind))
      seen.with_pointers |= (mam__u8)(1u << i);
  }
  return seen;
}

/* Where the number of a type's candidates in a tile stands.  The last tile comes first. */
MAM__INLINE mam__u32 *mam_compact_sum_at(const struct mam_compact *compact, mam__u32 type, mam__u32 tile) {
  return &compact->sums[(mam__u64)type * compact->tiles + (compact->tiles - 1 - tile)];
}

/* Finds and counts the candidates of a tile.  at_first: also notes the spans with pointers and marks empty ones. */
MAM__INLINE void mam_tile_look(struct mam_team team, const struct mam_compact *compact, mam__u32 n, mam__u32 tile,
                               int at_first) {
  struct mam_tile_found sum = {0, 0};
  MAM__LOOP
  for (mam__u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam__u32 at = tile * MAM_COMPACT_GROUPS + group;
    struct mam_seen seen = mam_group_look(compact, n, at * MAM_COMPACT_GROUP, at_first);
    compact->candidates[at] = seen.candidates;
    if (at_first)
      compact->with_pointers[at] = seen.with_pointers;
    mam__u64 numbers = mam_team_sum(team, seen.found.numbers);
    sum.numbers += numbers;
    sum.sizes += numbers == 0 ? 0 : mam_team_sum(team, seen.found.sizes);
    MAM__LOOP
    for (mam__u32 type = 0; type < compact->types; type++) {
      mam__u64 count = numbers == 0 ? 0 : mam_team_sum(team, seen.by_type >> (4 * type) & 15);
      if (team.rank == 0)
        *mam_compact_sum_at(compact, type, tile) =
            (mam__u32)count + (group == 0 ? 0 : *mam_compact_sum_at(compact, type, tile));
    }
  }
  if (team.rank == 0)
    compact->found[tile] = sum;
}

/* Replaces the counts by their sums, and writes where each type begins in order.  One team does all of it. */
MAM__INLINE void mam_compact_sum(struct mam_team team, const struct mam_compact *compact) {
  mam__u32 count = compact->types * compact->tiles, each = (count + team.count - 1) / team.count, sum = 0, total;
  MAM__LOOP
  for (mam__u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++)
    sum += compact->sums[i];
  sum = mam_team_scan(team, sum, &total);
  MAM__LOOP
  for (mam__u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++) {
    mam__u32 here = compact->sums[i];
    if (i % compact->tiles == 0)
      compact->state->starts[i / compact->tiles] = sum;
    compact->sums[i] = sum;
    sum += here;
  }
  if (team.rank == 0)
    compact->state->starts[compact->types] = total;
}

/* Adds up what was found in all tiles.  One team does all of it. */
MAM__INLINE void mam_compact_found_sum(struct mam_team team, const struct mam_compact *compact) {
  struct mam_compact_found found = {0, 0, 0, 0, 0};
  MAM__LOOP
  for (mam__u32 tile = team.rank; tile < compact->tiles; tile += team.count) {
    struct mam_tile_found here = compact->found[tile];
    found.spans += here.numbers & 0xffff;
    found.candidates += here.numbers >> 16 & 0xffff;
    found.live += here.numbers >> 32;
    found.free_level += here.sizes & 0xffffffff;
    found.pages += here.sizes >> 32;
  }
  found.spans = mam_team_sum(team, found.spans);
  found.candidates = mam_team_sum(team, found.candidates);
  found.live = mam_team_sum(team, found.live);
  found.free_level = mam_team_sum(team, found.free_level);
  found.pages = mam_team_sum(team, found.pages);
  if (team.rank != 0)
    return;
  compact->state->found = found;
  if (compact->state->looks++ == 0)
    compact->state->found_first = found;
}

/* Writes a tile's candidates to their places in order, the last page first. */
MAM__INLINE void mam_tile_order(struct mam_team team, const struct mam_compact *compact, mam__u32 tile) {
  MAM__LOOP
  for (mam__u32 turn = team.rank; turn < MAM_COMPACT_GROUPS; turn += team.count) {
    mam__u32 number = tile * MAM_COMPACT_TILE + (MAM_COMPACT_GROUPS - 1 - turn) * MAM_COMPACT_GROUP;
    mam__u32 candidates = compact->candidates[number / MAM_COMPACT_GROUP];
    MAM__LOOP
    for (mam__u32 type = 0; type < compact->types; type++) {
      mam__u32 count = 0, total;
      mam__u32 *sum = mam_compact_sum_at(compact, type, tile);
      MAM__UNROLL
      for (mam__u32 i = 0; i < MAM_COMPACT_GROUP; i++)
        count += (candidates >> (4 * i) & 15) == type + 1;
      mam__u32 at = *sum + mam_team_scan(team, count, &total);
      MAM__LOOP
      for (mam__u32 i = MAM_COMPACT_GROUP; count != 0 && i-- != 0;)
        if ((candidates >> (4 * i) & 15) == type + 1)
          compact->order[at++] = number + i;
      mam_team_sync(team);
      if (team.rank == 0)
        *sum += total;
    }
  }
}

#endif
