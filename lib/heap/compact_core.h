/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation of a device heap: the algorithm, for the GPU and for a test on the host.  After M. Springer,
 * "CompactGpu: Massively Parallel Memory Defragmentation on GPUs" ("the paper"); its blocks are spans here, and its
 * allocation sizes are types.
 *
 * A candidate is a span of a type that is not empty and at most n/(n+1) full.  A pass orders the candidates of each
 * type, from the last page of the heap to the first, and merges: of r candidates, the first B = r/(n+1) are sources,
 * and the i-th source's objects go to free chunks of the targets i + B, i + 2B .. i + nB, of which the last is filled
 * first, so that what is left of the heap is at its beginning.  They always fit: n targets have n/(n+1) of a span free.
 * A compaction's n may grow from pass to pass: as long as many candidates are nearly empty, one into one takes most
 * away. Of at most n candidates (the paper leaves them) those that are not needed to hold all objects become sources,
 * and all others their targets.
 *
 * A source's objects leave their new addresses at its beginning, in a table with a place for each chunk.  It keeps its
 * usage words until the end of the compaction, so that an address in it tells what became of it; the bits of its pages
 * in the map of moved pages are 1 meanwhile, and its entries' size class is MAM_ENTRY_MOVED, so that no free and no
 * request takes it for a span.
 *
 * The heap is not used meanwhile.  So no access needs a memory order: the steps of a pass are kernels one after
 * another.
 *
 * A team is threads that do a piece of work together, with what they share.  The file that includes this one defines
 * before it:
 *
 *   struct mam_team              with rank and count
 *   mam_team_sync(team)          the team's threads wait for each other
 *   mam_team_sum(team, value)    the sum of all threads' 64-bit values, for each of them
 *   mam_team_scan(team, value, total)   the sum of the 32-bit values of the threads before; the whole sum in *total
 *   mam_read_if_u16(wanted, place)   what is there, 0 if it is not wanted: without a branch, so that many reads are
 *       under way together
 *   mam_read_once_if_u64(wanted, place)   the same of what is not read again soon
 *   mam_read_pointer_if(wanted, place)   the same of a pointer, whose line need not stay in the cache any longer
 *   mam_read_unit_once(place)   a unit that is not read again at all
 *   mam_write_unit(place, unit, keep)   keep: its line is to stay in the cache until its pointers are read
 */
#ifndef MAM_LIB_COMPACT_CORE_H
#define MAM_LIB_COMPACT_CORE_H

#include "heap/compact_types.h"

/* ---- Pages ---- */

MAM_INLINE struct mam_place mam_compact_place(const struct mam_compact *compact, mam_u32 number) {
  mam_u32 superblock = 0;
  MAM_LOOP
  while (number >= compact->first[superblock + 1])
    superblock++;
  struct mam_place place = {{compact->heap.base, compact->heap.words, compact->heap.page_count, 0},
                            number - compact->first[superblock]};
  if (superblock != 0)
    place.area = compact->control->superblocks[superblock];
  return place;
}

MAM_INLINE int mam_map_bit(const mam_u64 *map, mam_u32 page) { return (int)(map[page >> 6] >> (page & 63) & 1); }

MAM_INLINE mam_u64 *mam_span_words_at(struct mam_area area, mam_u32 page) { return area.words + page * MAM_PAGE_WORDS; }

/* The kind of the typed span that begins at a page with that entry and was not moved; 0 if none does. */
MAM_INLINE mam_u32 mam_typed_span_at(struct mam_area area, mam_u32 page, mam_u32 entry) {
  mam_u32 type = entry >> MAM_ENTRY_TYPE_SHIFT;
  mam_u32 kind = mam_kind_of((entry & 63) - 1, type);
  if (type == 0 || mam_entry_back(entry) != 0 || (entry & 63) - 1 >= MAM_HEAP_CLASSES)
    return 0;
  return mam_word_class(*mam_span_words_at(area, page)) == kind ? kind : 0;
}

MAM_INLINE int mam_kind_has_pointers(const struct mam_compact *compact, mam_u32 kind) {
  return (int)(compact->types_with_pointers >> (mam_kind_type(kind) - 1) & 1);
}

/* Live objects and chunks of a span. */
struct mam_fill {
  mam_u32 live, chunks;
};

/* All words of the page, those behind the span's too, which are 0: so that the loads are under way together. */
MAM_INLINE struct mam_fill mam_span_fill(const mam_u64 *words) {
  struct mam_fill fill = {0, 0};
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    mam_u64 word = words[i];
    fill.live += mam_ones_u32((mam_u32)word);
    fill.chunks += mam_word_chunks(word);
  }
  return fill;
}

/* The paper, "Design of CompactGpu". */
MAM_INLINE int mam_fill_is_candidate(struct mam_fill fill, mam_u32 n) {
  return fill.live != 0 && fill.live * (n + 1) <= fill.chunks * n;
}

/* Says of a span that its objects were moved, or that it has none: what is its entries' size class. */
MAM_INLINE void mam_span_moved(struct mam_team team, struct mam_area area, mam_u32 page, mam_u32 pages, mam_u32 kind,
                               mam_u32 what) {
  mam_u16 *entries = mam_area_entries(area) + page;
  MAM_LOOP
  for (mam_u32 i = team.rank; i < pages; i += team.count)
    entries[i] = (mam_u16)((mam_entry_of(kind, i) & ~63u) | what);
  MAM_LOOP
  for (mam_u32 done = 0; team.rank == 0 && done < pages;) {
    mam_u32 from = (page + done) & 63, here = 64 - from < pages - done ? 64 - from : pages - done;
    /* relaxed: a later kernel reads it. */
    (void)mam_or_relaxed_u64(&mam_area_moved(area)[(page + done) >> 6], mam_run_bits(here, from));
    done += here;
  }
}

/* ---- Slots ----
 *
 * What a slot holds counts as used, and would be taken for objects: it is given back before. */

/* A slot of a type, less 1: types' slots are behind those of size classes. */
MAM_INLINE mam_u64 *mam_compact_slot(const struct mam_compact *compact, mam_u32 type, mam_u32 number) {
  return compact->heap.slots + (mam_u64)(MAM_HEAP_CLASSES + type) * compact->heap.slot_count + number;
}

/* The span of a slot that was emptied. */
struct mam_slot_emptied {
  struct mam_area area;
  mam_u32 page, pages, kind, used; /* pages 0: there is none; used: its chunks that are taken */
};

/* Frees the chunks of a typed slot without a ticket.  What follows from that is left to mam_slot_emptied_end. */
MAM_INLINE struct mam_slot_emptied mam_compact_slot_empty(const struct mam_compact *compact, mam_u32 type,
                                                          mam_u32 number) {
  struct mam_slot_emptied emptied = {{0, 0, 0, 0}, 0, 0, 0, 0};
  const mam_heap *heap = &compact->heap;
  mam_u32 kind = compact->kinds[type], limit = mam_slot_limit(heap, kind);
  mam_u64 *place = mam_compact_slot(compact, type, number), slot = *place;
  mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS);
  *place = (slot & ~MAM_SLOT_TICKETS) | limit; /* used up; the address leads to spans that it had */
  if (ticket >= limit)
    return emptied;
  emptied.area = mam_forward_area(heap, mam_slot_address(slot));
  emptied.page = (mam_u32)((mam_slot_address(slot) - emptied.area.base) >> MAM_PAGE_SHIFT);
  emptied.kind = kind;
  mam_u64 *words = mam_span_words_at(emptied.area, emptied.page);
  mam_u32 count = mam_word_span_words(words[0]);
  emptied.pages = mam_word_span_pages(words[0]);
  MAM_UNROLL /* so that the loads are under way together */
      for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) if (i < count) {
    mam_u32 handed_out = ticket <= 32 * i ? 0 : ticket - 32 * i >= 32 ? 32 : ticket - 32 * i;
    mam_u64 word = words[i] & (~0xffffffffull | ((1ull << handed_out) - 1));
    emptied.used |= (mam_u32)word;
    words[i] = word;
  }
  MAM_LOOP
  for (mam_u32 i = 0; i < count && emptied.used == 0; i++)
    words[i] = 0;
  return emptied;
}

/* Has requests find the chunks or the pages. */
MAM_INLINE void mam_slot_emptied_end(const struct mam_slot_emptied *emptied) {
  if (emptied->pages != 0 && emptied->used != 0)
    mam_span_hint(emptied->area, emptied->page, emptied->kind);
  else if (emptied->pages != 0)
    MAM_OUT_OF_SIGHT(mam_pages_release)(emptied->area, emptied->page, emptied->pages);
}

/* Whether no thread made a request of an emptied slot. */
MAM_INLINE int mam_compact_slot_is_untouched(const struct mam_compact *compact, mam_u32 type, mam_u32 number) {
  mam_u32 limit = mam_slot_limit(&compact->heap, compact->kinds[type]);
  return (*mam_compact_slot(compact, type, number) & MAM_SLOT_TICKETS) == limit;
}

/* ---- Candidates ---- */

/* What a thread saw: numbers for each type, in four bits each, of up to MAM_COMPACT_GROUP. */
struct mam_seen {
  mam_u64 by_type;
  struct mam_tile_found found;
  mam_u16 candidates;   /* the types of those that begin in the pages, in four bits each; 0: none does */
  mam_u8 with_pointers; /* bits of pages that such a span begins in */
};

/* Looks at a group of pages.  at_first: an empty span that nobody has given back goes with those whose objects were
 * moved. */
MAM_INLINE struct mam_seen mam_group_look(const struct mam_compact *compact, mam_u32 n, mam_u32 number, int at_first) {
  const struct mam_team alone = {0, 1};
  struct mam_seen seen = {0, {0, 0}, 0, 0};
  struct mam_place place = mam_compact_place(compact, number);
  if (place.page >= place.area.page_count)
    return seen;
  mam_u32 taken = (mam_u32)(mam_area_pages(place.area)[place.page >> 6] >> (place.page & 63));
  mam_u32 begins = 0; /* pages that a typed span begins in, by their entries */
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++)
    if (place.page + i < place.area.page_count) {
      mam_u32 entry = mam_area_entries(place.area)[place.page + i];
      begins |= (mam_u32)(entry >> MAM_ENTRY_TYPE_SHIFT != 0 && mam_entry_back(entry) == 0) << i;
    }
  begins &= taken; /* of the group: taken has more */
  MAM_LOOP
  for (; begins != 0; begins &= begins - 1) {
    mam_u32 i = mam_lowest_u32(begins), page = place.page + i;
    const mam_u64 *words = mam_span_words_at(place.area, page);
    struct mam_fill fill = mam_span_fill(words);
    mam_u32 kind = mam_typed_span_at(place.area, page, mam_area_entries(place.area)[page]);
    if (kind == 0)
      continue;
    if (fill.live == 0) {
      if (at_first)
        mam_span_moved(alone, place.area, page, mam_word_span_pages(words[0]), kind, MAM_ENTRY_EMPTY);
      continue;
    }
    mam_u64 is_candidate = (mam_u64)mam_fill_is_candidate(fill, n);
    seen.by_type += is_candidate << (4 * (mam_kind_type(kind) - 1));
    seen.candidates |= (mam_u16)((mam_u32)is_candidate * mam_kind_type(kind) << (4 * i));
    seen.found.numbers += 1 | is_candidate << 16 | (mam_u64)fill.live << 32;
    seen.found.sizes += ((fill.chunks - fill.live) << 16) / fill.chunks;
    seen.found.sizes += (mam_u64)mam_word_span_pages(words[0]) << 32;
    if (mam_kind_has_pointers(compact, kind))
      seen.with_pointers |= (mam_u8)(1u << i);
  }
  return seen;
}

/* Where the number of a type's candidates in a tile is: the last tile comes first. */
MAM_INLINE mam_u32 *mam_compact_sum_at(const struct mam_compact *compact, mam_u32 type, mam_u32 tile) {
  return &compact->sums[(mam_u64)type * compact->tiles + (compact->tiles - 1 - tile)];
}

/* Finds and counts the candidates of a tile; at_first: notes spans with pointers too, and sees to empty ones. */
MAM_INLINE void mam_tile_look(struct mam_team team, const struct mam_compact *compact, mam_u32 n, mam_u32 tile,
                              int at_first) {
  struct mam_tile_found sum = {0, 0};
  MAM_LOOP
  for (mam_u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam_u32 at = tile * MAM_COMPACT_GROUPS + group;
    struct mam_seen seen = mam_group_look(compact, n, at * MAM_COMPACT_GROUP, at_first);
    compact->candidates[at] = seen.candidates;
    if (at_first)
      compact->with_pointers[at] = seen.with_pointers;
    mam_u64 numbers = mam_team_sum(team, seen.found.numbers);
    sum.numbers += numbers;
    sum.sizes += numbers == 0 ? 0 : mam_team_sum(team, seen.found.sizes);
    MAM_LOOP
    for (mam_u32 type = 0; type < compact->types; type++) {
      mam_u64 count = numbers == 0 ? 0 : mam_team_sum(team, seen.by_type >> (4 * type) & 15);
      if (team.rank == 0)
        *mam_compact_sum_at(compact, type, tile) =
            (mam_u32)count + (group == 0 ? 0 : *mam_compact_sum_at(compact, type, tile));
    }
  }
  if (team.rank == 0)
    compact->found[tile] = sum;
}

/* Makes counts sums, and writes where each type begins.  One team for all. */
MAM_INLINE void mam_compact_sum(struct mam_team team, const struct mam_compact *compact) {
  mam_u32 count = compact->types * compact->tiles, each = (count + team.count - 1) / team.count, sum = 0, total;
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++)
    sum += compact->sums[i];
  sum = mam_team_scan(team, sum, &total);
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++) {
    mam_u32 here = compact->sums[i];
    if (i % compact->tiles == 0)
      compact->state->starts[i / compact->tiles] = sum;
    compact->sums[i] = sum;
    sum += here;
  }
  if (team.rank == 0)
    compact->state->starts[compact->types] = total;
}

/* Says what was found in all tiles.  One team for all. */
MAM_INLINE void mam_compact_found_sum(struct mam_team team, const struct mam_compact *compact) {
  struct mam_compact_found found = {0, 0, 0, 0, 0};
  MAM_LOOP
  for (mam_u32 tile = team.rank; tile < compact->tiles; tile += team.count) {
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

/* Writes a tile's candidates to their places: the last page first. */
MAM_INLINE void mam_tile_order(struct mam_team team, const struct mam_compact *compact, mam_u32 tile) {
  MAM_LOOP
  for (mam_u32 turn = team.rank; turn < MAM_COMPACT_GROUPS; turn += team.count) {
    mam_u32 number = tile * MAM_COMPACT_TILE + (MAM_COMPACT_GROUPS - 1 - turn) * MAM_COMPACT_GROUP;
    mam_u32 candidates = compact->candidates[number / MAM_COMPACT_GROUP];
    MAM_LOOP
    for (mam_u32 type = 0; type < compact->types; type++) {
      mam_u32 count = 0, total;
      mam_u32 *sum = mam_compact_sum_at(compact, type, tile);
      MAM_UNROLL
      for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++)
        count += (candidates >> (4 * i) & 15) == type + 1;
      mam_u32 at = *sum + mam_team_scan(team, count, &total);
      MAM_LOOP
      for (mam_u32 i = MAM_COMPACT_GROUP; count != 0 && i-- != 0;)
        if ((candidates >> (4 * i) & 15) == type + 1)
          compact->order[at++] = number + i;
      mam_team_sync(team);
      if (team.rank == 0)
        *sum += total;
    }
  }
}

/* ---- Merging ---- */

/* Sources and targets, by their places among a type's candidates: sources from source on; targets from target down, in
 * steps of stride. */
struct mam_merge {
  mam_u32 source, sources, target, stride, targets;
};

/* How many merges there are of so many candidates. */
MAM_INLINE mam_u32 mam_merge_count(mam_u32 candidates, mam_u32 n) {
  return candidates > n ? candidates / (n + 1) : candidates > 1;
}

/* The merge of that number of more than n candidates. */
MAM_INLINE struct mam_merge mam_merge_of(mam_u32 candidates, mam_u32 n, mam_u32 number) {
  mam_u32 sources = candidates / (n + 1);
  struct mam_merge merge = {number, 1, number + n * sources, sources, n};
  return merge;
}

/* The merge of up to n candidates with so many objects in all, in spans of so many chunks. */
MAM_INLINE struct mam_merge mam_merge_rest(mam_u32 candidates, mam_u32 live, mam_u32 chunks) {
  mam_u32 needed = (live + chunks - 1) / chunks;
  mam_u32 sources = needed < candidates ? candidates - needed : 0;
  struct mam_merge merge = {0, sources, candidates - 1, 1, candidates - sources};
  return merge;
}

/* What a team shares while it merges: the targets' free chunks, in the order in which they are filled, and where the
 * objects of a source are, chunk by chunk, and where they go. */
struct mam_merge_room {
  mam_u64 *words[MAM_COMPACT_TARGETS];
  mam_u64 address[MAM_COMPACT_TARGETS];
  mam_u32 free[MAM_COMPACT_TARGETS * MAM_PAGE_WORDS];
  mam_u16 before[MAM_COMPACT_TARGETS * MAM_PAGE_WORDS]; /* free chunks of the words before */
  mam_u64 to[MAM_SPAN_CHUNKS];
  mam_u8 from[MAM_SPAN_CHUNKS];
};

/* A source. */
struct mam_source {
  struct mam_area area;
  mam_u32 page, pages, kind, live;
  mam_u32 used[MAM_PAGE_WORDS]; /* bits of its chunks */
};

/* All loads at once. */
MAM_INLINE struct mam_source mam_source_at(const struct mam_compact *compact, mam_u32 number) {
  struct mam_place place = mam_compact_place(compact, number);
  const mam_u64 *words = mam_span_words_at(place.area, place.page);
  struct mam_source source = {place.area, place.page, mam_word_span_pages(words[0]), mam_word_class(words[0]), 0, {0}};
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    source.used[i] = (mam_u32)words[i];
    source.live += mam_ones_u32(source.used[i]);
  }
  return source;
}

/* The free chunks of a usage word, 0 if there is none. */
MAM_INLINE mam_u32 mam_word_holes(mam_u64 word) { return word == 0 ? 0 : ~(mam_u32)word & mam_word_full(word); }

/* Reads the targets; returns how many chunks are free in them. */
MAM_INLINE mam_u32 mam_merge_begin(struct mam_team team, const struct mam_compact *compact, struct mam_merge_room *room,
                                   const mam_u32 *order, struct mam_merge merge) {
  mam_u32 words = merge.targets * MAM_PAGE_WORDS, each = (words + team.count - 1) / team.count;
  mam_u32 sum = 0, total;
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < words; i++) {
    mam_u32 target = i / MAM_PAGE_WORDS;
    struct mam_place place = mam_compact_place(compact, order[merge.target - target * merge.stride]);
    mam_u64 *first = mam_span_words_at(place.area, place.page);
    room->words[target] = first;
    room->address[target] = mam_area_address(place.area, place.page);
    room->free[i] = mam_word_holes(first[i % MAM_PAGE_WORDS]);
    sum += mam_ones_u32(room->free[i]);
  }
  sum = mam_team_scan(team, sum, &total);
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < words; i++) {
    room->before[i] = (mam_u16)sum;
    sum += mam_ones_u32(room->free[i]);
  }
  mam_team_sync(team);
  return total;
}

/* Pairs the objects of a source with free chunks from the one of rank first on; words: how many the targets have. */
MAM_INLINE void mam_merge_pair(struct mam_team team, struct mam_merge_room *room, const struct mam_source *source,
                               mam_u32 words, mam_u32 first) {
  mam_u32 before = 0, bytes = mam_class_bytes(source->kind);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    mam_u32 bits = source->used[i], bit = team.rank;
    do
      if ((bits >> bit & 1) != 0)
        room->from[before + mam_ones_u32(bits & ((1u << bit) - 1))] = (mam_u8)(32 * i + bit);
    while ((bit += team.count) < 32);
    before += mam_ones_u32(bits);
  }
  MAM_LOOP
  for (mam_u32 i = 0; i < words; i++) {
    mam_u32 bits = room->free[i], bit = team.rank;
    mam_u64 address = room->address[i / MAM_PAGE_WORDS];
    before = room->before[i] - first; /* wraps where it is less */
    do {
      mam_u32 object = before + mam_ones_u32(bits & ((1u << bit) - 1));
      if ((bits >> bit & 1) != 0 && object < source->live)
        room->to[object] = address + (mam_u64)((i % MAM_PAGE_WORDS * 32 + bit) * bytes);
    } while ((bit += team.count) < 32);
  }
  mam_team_sync(team);
}

/* The place of a unit among those of a source's objects. */
struct mam_unit_place {
  mam_u32 object, in_object;
};

/* By a multiplication, which is exact: there are fewer than 2^15 units, of fewer than 2^12 in an object. */
MAM_INLINE struct mam_unit_place mam_unit_place(mam_u32 at, mam_u32 units, mam_u32 inverse) {
  struct mam_unit_place place = {units == 1 ? at : (mam_u32)((mam_u64)at * inverse >> 32), 0};
  place.in_object = (at - place.object * units) * MAM_UNIT_BYTES;
  return place;
}

/* Copies the paired objects of a source at address; keep: as for mam_write_unit.  A thread reads the last unit where it
 * has none: without a branch, so that its reads are under way together. */
MAM_INLINE void mam_merge_copy(struct mam_team team, const struct mam_merge_room *room, mam_u64 address, mam_u32 bytes,
                               mam_u32 objects, int keep) {
  mam_u32 units = bytes / MAM_UNIT_BYTES, count = objects * units, inverse = 0xffffffffu / units + 1;
  MAM_LOOP
  for (mam_u32 first = team.rank; first < count; first += MAM_UNIT_BATCH * team.count) {
    struct mam_unit held[MAM_UNIT_BATCH];
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_UNIT_BATCH; i++) {
      mam_u32 at = first + i * team.count;
      struct mam_unit_place place = mam_unit_place(at < count ? at : count - 1, units, inverse);
      held[i] =
          mam_read_unit_once((const struct mam_unit *)(address + (room->from[place.object] * bytes + place.in_object)));
    }
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_UNIT_BATCH; i++) {
      mam_u32 at = first + i * team.count;
      struct mam_unit_place place = mam_unit_place(at, units, inverse);
      if (at < count)
        mam_write_unit((struct mam_unit *)(room->to[place.object] + place.in_object), held[i], keep);
    }
  }
}

/* Leaves the new addresses of a source's objects, all of which were copied, in the source at address. */
MAM_INLINE void mam_merge_leave(struct mam_team team, const struct mam_merge_room *room,
                                const struct mam_source *source, mam_u64 address) {
  mam_u64 *table = (mam_u64 *)address;
  mam_u32 before = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    mam_u32 bits = source->used[i], bit = team.rank;
    do {
      mam_u32 object = before + mam_ones_u32(bits & ((1u << bit) - 1));
      table[32 * i + bit] = (bits >> bit & 1) != 0 ? room->to[object] : 0;
    } while ((bit += team.count) < 32);
    before += mam_ones_u32(bits);
  }
}

/* Whether each line that objects of a kind are written to is read again for their pointers: so that what is to stay in
 * the cache until then does not stay there for longer. */
MAM_INLINE int mam_lines_are_read(const struct mam_compact *compact, mam_u32 kind) {
  return MAM_LINE_BYTES % mam_class_bytes(kind) == 0 && mam_kind_has_pointers(compact, kind);
}

/* Moves a source's objects to free chunks from the one of rank first on; words: how many the targets have.  Returns how
 * many there were: of more than there is room for, none. */
MAM_INLINE mam_u32 mam_merge_source(struct mam_team team, const struct mam_compact *compact,
                                    struct mam_merge_room *room, const struct mam_source *source, mam_u32 words,
                                    mam_u32 first, mam_u32 room_for) {
  mam_u64 address = mam_area_address(source->area, source->page);
  mam_u32 bytes = mam_class_bytes(source->kind);
  if (source->live > room_for - first)
    return 0;
  mam_merge_pair(team, room, source, words, first);
  mam_merge_copy(team, room, address, bytes, source->live, mam_lines_are_read(compact, source->kind));
  mam_team_sync(team);
  mam_merge_leave(team, room, source, address);
  mam_span_moved(team, source->area, source->page, source->pages, source->kind, MAM_ENTRY_MOVED);
  mam_team_sync(team);
  return source->live;
}

/* Has the first count free chunks of the targets used. */
MAM_INLINE void mam_merge_end(struct mam_team team, const struct mam_merge_room *room, mam_u32 words, mam_u32 count) {
  MAM_LOOP
  for (mam_u32 i = team.rank; i < words; i += team.count)
    if (count > room->before[i])
      /* relaxed: no other thread looks at it; atomic so that the thread does not wait for the old value. */
      (void)mam_or_relaxed_u64(&room->words[i / MAM_PAGE_WORDS][i % MAM_PAGE_WORDS],
                               mam_lowest_ones(room->free[i], count - room->before[i]));
}

/* The merge of few candidates. */
MAM_INLINE struct mam_merge mam_merge_few(struct mam_team team, const struct mam_compact *compact, const mam_u32 *order,
                                          mam_u32 candidates) {
  mam_u64 live = 0;
  mam_u32 chunks = 1;
  MAM_LOOP
  for (mam_u32 i = team.rank; i < candidates; i += team.count) {
    struct mam_place place = mam_compact_place(compact, order[i]);
    const mam_u64 *words = mam_span_words_at(place.area, place.page);
    live += mam_span_fill(words).live;
  }
  struct mam_place place = mam_compact_place(compact, order[0]);
  chunks = mam_slot_limit(&compact->heap, mam_word_class(*mam_span_words_at(place.area, place.page)));
  return mam_merge_rest(candidates, (mam_u32)mam_team_sum(team, live), chunks);
}

/* One of the merges of a pass, by its number among those of all types, and adds what it did to *sum; 0 if there are
 * fewer. */
MAM_INLINE int mam_compact_merge(struct mam_team team, const struct mam_compact *compact, struct mam_merge_room *room,
                                 mam_u32 n, mam_u32 number, struct mam_compact_done *sum) {
  mam_u32 type = 0, candidates = 0;
  MAM_LOOP
  for (; type < compact->types; type++) {
    candidates = compact->state->starts[type + 1] - compact->state->starts[type];
    mam_u32 count = mam_merge_count(candidates, n);
    if (number < count)
      break;
    number -= count;
  }
  if (type == compact->types)
    return 0;
  const mam_u32 *order = compact->order + compact->state->starts[type];
  struct mam_merge merge =
      candidates > n ? mam_merge_of(candidates, n, number) : mam_merge_few(team, compact, order, candidates);
  mam_u32 done = 0, merged = 0, pages = 0, words = merge.targets * MAM_PAGE_WORDS, room_for = 0, bytes = 0;
  MAM_LOOP
  for (mam_u32 i = 0; i < merge.sources; i++) {
    struct mam_source source = mam_source_at(compact, order[merge.source + i]);
    if (i == 0)
      room_for = mam_merge_begin(team, compact, room, order, merge);
    mam_u32 moved = mam_merge_source(team, compact, room, &source, words, done, room_for);
    done += moved;
    merged += moved != 0;
    pages += moved != 0 ? source.pages : 0;
    bytes = mam_class_bytes(source.kind);
  }
  if (done != 0)
    mam_merge_end(team, room, words, done);
  sum->merges += merged;
  sum->moved += done;
  sum->moved_bytes += (mam_u64)done * bytes;
  sum->pages += pages;
  mam_team_sync(team); /* the room is free for the next */
  return 1;
}

/* The n of the next pass after one with n that took merges of so many spans away; 0 if there is to be none. */
MAM_INLINE mam_u32 mam_next_n(mam_u32 n, mam_u32 n_last, mam_u64 merges, mam_u64 spans) {
  if (n == n_last)
    return merges != 0 ? n : 0;
  return merges * MAM_COMPACT_LITTLE > spans ? n : n + 1;
}

/* ---- Pointers ---- */

/* What it takes to know an object from an address into its span. */
struct mam_shape {
  mam_u32 bytes;         /* of a chunk */
  mam_u16 multiple_part; /* 2^15 through the class's multiple, rounded up: see mam_chunk_index */
  mam_u16 shift;
};

MAM_INLINE struct mam_shape mam_shape_of(mam_u32 kind) {
  mam_u32 shift = mam_class_shift(kind), multiple = mam_class_multiple(kind, shift);
  struct mam_shape shape = {multiple << (shift + 4), (mam_u16)((32768 + multiple - 1) / multiple), (mam_u16)shift};
  return shape;
}

/* How pointers are rewritten: what all threads of a team know. */
struct mam_rewriting {
  const mam_heap *heap;
  mam_u64 base;               /* of the first superblock, its pages and their entries */
  mam_u32 page_count, chains; /* chains: what moved may have moved on */
  const mam_u16 *entries;
  const struct mam_shape *shapes; /* of the types, from 1 on */
};

MAM_INLINE struct mam_rewriting mam_rewriting_of(const struct mam_compact *compact, const struct mam_shape *shapes,
                                                 mam_u32 passes) {
  const mam_heap *heap = &compact->heap;
  struct mam_rewriting rewriting = {&compact->control->heap, heap->base, heap->page_count, passes > 1,
                                    heap->entries,           shapes};
  return rewriting;
}

/* What becomes of addresses that a thread looks at together, so that its loads are under way together. */
struct mam_addresses {
  mam_u64 old[MAM_COMPACT_BATCH], now[MAM_COMPACT_BATCH];
};

/* One step: of those whose page was moved, now is where their objects went.  Returns the bits of these; *left: of those
 * that are not in the first superblock. */
MAM_INLINE mam_u32 mam_addresses_step(const struct mam_rewriting *rewriting, struct mam_addresses *addresses,
                                      mam_u32 *left) {
  mam_u32 entries[MAM_COMPACT_BATCH], in_object[MAM_COMPACT_BATCH], moved = 0;
  *left = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    mam_u64 page = (addresses->old[i] - rewriting->base) >> MAM_PAGE_SHIFT;
    int inside = page < rewriting->page_count;
    entries[i] = mam_read_if_u16(inside, &rewriting->entries[page]);
    *left |= (mam_u32)(!inside && addresses->old[i] != 0) << i;
  }
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    int was_moved = (entries[i] & 63) == MAM_ENTRY_MOVED;
    struct mam_shape shape = rewriting->shapes[entries[i] >> MAM_ENTRY_TYPE_SHIFT];
    mam_u32 in_page = (mam_u32)(addresses->old[i] - rewriting->base) & (MAM_PAGE_BYTES - 1);
    mam_u32 in_span = in_page + (mam_entry_back(entries[i]) << MAM_PAGE_SHIFT);
    mam_u32 chunk = ((in_span >> (shape.shift + 4)) * shape.multiple_part) >> 15;
    addresses->now[i] = mam_read_once_if_u64(was_moved, (const mam_u64 *)(addresses->old[i] - in_span + 8 * chunk));
    in_object[i] = in_span - chunk * shape.bytes;
  }
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    moved |= (mam_u32)(addresses->now[i] != 0) << i;
    addresses->now[i] = addresses->now[i] != 0 ? addresses->now[i] + in_object[i] : addresses->old[i];
  }
  return moved;
}

/* The slow way, for few. */
MAM_OUTLINE mam_u64 mam_address_forward(const mam_heap *heap, mam_u64 address) { return mam_forwarded(heap, address); }

/* Where the old addresses' objects are now.  Of those that moved, a few moved on. */
MAM_INLINE void mam_addresses_forward(const struct mam_rewriting *rewriting, struct mam_addresses *addresses) {
  mam_u32 slow, again = mam_addresses_step(rewriting, addresses, &slow);
  if (rewriting->chains) {
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
      if ((again >> i & 1) != 0) {
        mam_u64 page = (addresses->now[i] - rewriting->base) >> MAM_PAGE_SHIFT;
        slow |= (mam_u32)(page >= rewriting->page_count || (rewriting->entries[page] & 63) == MAM_ENTRY_MOVED) << i;
      }
  }
  if (slow != 0) {
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
      if ((slow >> i & 1) != 0)
        addresses->now[i] = MAM_OUT_OF_SIGHT(mam_address_forward)(rewriting->heap, addresses->now[i]);
  }
}

/* Lists those spans with pointers of a tile that were not moved: half of them may have been, so that who rewrites would
 * have much more to do than others. */
MAM_INLINE void mam_tile_left(struct mam_team team, const struct mam_compact *compact, mam_u32 tile) {
  MAM_LOOP
  for (mam_u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam_u32 at = tile * MAM_COMPACT_GROUPS + group, number = at * MAM_COMPACT_GROUP, left = 0, total;
    mam_u32 with_pointers = compact->with_pointers[at];
    struct mam_place place = mam_compact_place(compact, number);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++)
      if (place.page + i < place.area.page_count)
        left |= (mam_u32)((mam_area_entries(place.area)[place.page + i] & 63) - 1 < MAM_HEAP_CLASSES) << i;
    left &= with_pointers;
    mam_u32 to = mam_team_scan(team, mam_ones_u32(left), &total);
    mam_u64 base = team.rank == 0 && total != 0 ? mam_add_relaxed_u32(&compact->state->left_count, total) : 0;
    to += (mam_u32)mam_team_sum(team, base);
    MAM_LOOP
    for (; left != 0; left &= left - 1)
      compact->order[to++] = number + mam_lowest_u32(left);
  }
}

/* A span with pointers whose objects are to have them rewritten. */
struct mam_span_left {
  mam_u64 address;
  const mam_u16 *pointers;      /* where they are in an object, in units of 8 bytes */
  mam_u32 pointer_count, bytes; /* of an object */
  mam_u32 words;
  mam_u32 used[MAM_PAGE_WORDS]; /* bits of its chunks */
};

/* The span at that place in the list of those that were not moved; types: as the heap knows them. */
MAM_INLINE struct mam_span_left mam_span_left_at(const struct mam_compact *compact, const struct mam_type_info *types,
                                                 mam_u32 span) {
  struct mam_place place = mam_compact_place(compact, compact->order[span]);
  const mam_u64 *words = mam_span_words_at(place.area, place.page);
  mam_u32 entry = mam_area_entries(place.area)[place.page];
  const struct mam_type_info *type = &types[(entry >> MAM_ENTRY_TYPE_SHIFT) - 1];
  struct mam_span_left left = {
      mam_area_address(place.area, place.page), type->pointers, type->pointer_count, 0, 0, {0}};
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    left.used[i] = (mam_u32)words[i];
  left.bytes = mam_class_bytes(mam_word_class(words[0]));
  left.words = mam_word_span_words(words[0]);
  return left;
}

/* In how many parts a span's pointers are rewritten, at most. */
MAM_INLINE mam_u32 mam_span_parts(const struct mam_compact *compact) {
  return (compact->pointers_most * MAM_PAGE_WORDS + MAM_COMPACT_BATCH - 1) / MAM_COMPACT_BATCH;
}

/* Pointers of a thread that are rewritten together: where they are from the span's address on, and what they are. */
struct mam_pointers {
  mam_u64 address;
  mam_u32 at[MAM_COMPACT_BATCH];
  struct mam_addresses addresses;
};

/* Reads a thread's share of a part of a span's pointers.  The pointers of an object are lanes' that follow each other,
 * so that their reads and writes are one.  A pointer's chunk is found by a multiplication, which is exact: there are no
 * more than 2^14 of them, of 2^6 in an object. */
MAM_INLINE void mam_pointers_read(struct mam_pointers *pointers, const struct mam_span_left *left, mam_u32 part,
                                  mam_u32 lane) {
  mam_u32 count = left->pointer_count, inverse = ((1u << 20) + count - 1) / count, wanted = 0;
  pointers->address = left->address;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    mam_u32 number = (part * MAM_COMPACT_BATCH + i) * 32 + lane, is_there = number < 32 * left->words * count;
    number = is_there ? number : 0;
    mam_u32 chunk = (number * inverse) >> 20;
    wanted |= (is_there & left->used[chunk / 32] >> chunk % 32) << i;
    pointers->at[i] = chunk * left->bytes + left->pointers[number - chunk * count] * 8;
  }
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    pointers->addresses.old[i] =
        mam_read_pointer_if(wanted >> i & 1, (const mam_u64 *)(pointers->address + pointers->at[i]));
}

MAM_INLINE void mam_pointers_rewrite(struct mam_pointers *pointers, const struct mam_rewriting *rewriting) {
  struct mam_addresses *addresses = &pointers->addresses;
  mam_addresses_forward(rewriting, addresses);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    if (addresses->now[i] != addresses->old[i])
      *(mam_u64 *)(pointers->address + pointers->at[i]) = addresses->now[i];
}

/* Rewrites every count-th pointer of an array from first on, up to MAM_COMPACT_BATCH. */
MAM_INLINE void mam_roots_rewrite(const struct mam_rewriting *rewriting, mam_u64 *roots, mam_u64 roots_count,
                                  mam_u64 first, mam_u64 count) {
  struct mam_addresses addresses;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    addresses.old[i] = first + i * count < roots_count ? roots[first + i * count] : 0;
  mam_addresses_forward(rewriting, &addresses);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    if (addresses.now[i] != addresses.old[i])
      roots[first + i * count] = addresses.now[i];
}

/* ---- Lists of objects ----
 *
 * The spans of a type in spans, tile by tile as they come; and in order, for each, how many objects come before. */

MAM_INLINE void mam_tile_list(struct mam_team team, const struct mam_compact *compact, mam_u32 tile) {
  MAM_LOOP
  for (mam_u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam_u32 number = tile * MAM_COMPACT_TILE + group * MAM_COMPACT_GROUP, begins = 0, live = 0, spans, objects;
    struct mam_place place = mam_compact_place(compact, number);
    mam_u32 fills[MAM_COMPACT_GROUP];
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++) {
      mam_u32 page = place.page + i, entry = 0;
      if (page < place.area.page_count)
        entry = mam_area_entries(place.area)[page];
      fills[i] = 0;
      if (entry >> MAM_ENTRY_TYPE_SHIFT == compact->object_type && mam_typed_span_at(place.area, page, entry) != 0)
        fills[i] = mam_span_fill(mam_span_words_at(place.area, page)).live;
      begins |= (mam_u32)(fills[i] != 0) << i;
      live += fills[i];
    }
    mam_u32 at = mam_team_scan(team, mam_ones_u32(begins), &spans), before = mam_team_scan(team, live, &objects);
    mam_u64 base = 0;
    if (team.rank == 0 && spans != 0) {
      base = mam_add_relaxed_u32(&compact->state->span_count, spans);
      base |= (mam_u64)mam_add_relaxed_u32(&compact->state->object_count, objects) << 32;
    }
    base = mam_team_sum(team, base);
    at += (mam_u32)base;
    before += (mam_u32)(base >> 32);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++)
      if (fills[i] != 0) {
        compact->spans[at] = number + i;
        compact->order[at++] = before;
        before += fills[i];
      }
  }
}

/* Writes the addresses of the objects of the span at that place in the list. */
MAM_INLINE void mam_span_list(struct mam_team team, const struct mam_compact *compact, mam_u32 span) {
  struct mam_place place = mam_compact_place(compact, compact->spans[span]);
  const mam_u64 *words = mam_span_words_at(place.area, place.page);
  mam_u64 address = mam_area_address(place.area, place.page), bytes = mam_class_bytes(mam_word_class(words[0]));
  mam_u64 before = compact->order[span];
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    mam_u32 bits = (mam_u32)words[i];
    MAM_LOOP
    for (mam_u32 bit = team.rank; bit < 32; bit += team.count) {
      mam_u64 at = before + mam_ones_u32(bits & ((1u << bit) - 1));
      if ((bits >> bit & 1) != 0 && at < compact->object_room)
        compact->objects[at] = address + (32 * i + bit) * bytes;
    }
    before += mam_ones_u32(bits);
  }
}

/* ---- The end ---- */

/* Gives back the pages of a word of a superblock's map that were moved. */
MAM_INLINE void mam_moved_release(struct mam_area area, mam_u32 index, struct mam_lanes lanes) {
  mam_u64 moved = mam_area_moved(area)[index];
  if (moved == 0)
    return;
  MAM_LOOP
  for (mam_u32 i = lanes.rank; i < 64; i += lanes.count)
    if ((moved >> i & 1) != 0) {
      mam_u16 *entry = &mam_area_entries(area)[index * 64 + i];
      mam_u64 *words = mam_span_words_at(area, index * 64 + i);
      MAM_LOOP
      for (mam_u32 word = 0; mam_entry_back(*entry) == 0 && word < MAM_PAGE_WORDS; word++)
        words[word] = 0;
      *entry = 0;
    }
  mam_lanes_sync(lanes);
  if (lanes.rank != 0)
    return;
  mam_area_moved(area)[index] = 0;
  mam_pages_clear(area, index, moved);
}

#endif
