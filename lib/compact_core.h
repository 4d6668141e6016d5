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
 * Of at most n candidates (the paper leaves them) those that are not needed to hold all objects become sources, and all
 * others their targets.
 *
 * An object that was moved leaves its new address where it was.  Its old span keeps its usage words until the end of
 * the compaction, so that an address in it tells what became of it; the bits of its pages in the map of moved pages are
 * 1 meanwhile, and its entries' size class is MAM_ENTRY_MOVED, so that no free and no request takes it for a span.
 *
 * Nobody else uses the heap meanwhile.  So no step needs an order: those of a pass are kernels one after another.
 *
 * A team is threads that do a piece of work together, with what they share.  Who includes this file defines before it:
 *
 *   struct mam_team              with rank and count
 *   mam_team_sync(team)          the team's threads wait for each other
 *   mam_team_sum(team, value)    the sum of all threads' 64-bit values, for each of them
 *   mam_team_scan(team, value, total)   the sum of the 32-bit values of the threads before; the whole sum in *total
 */
#ifndef MAM_LIB_COMPACT_CORE_H
#define MAM_LIB_COMPACT_CORE_H

#include "compact_types.h"

/* ---- Pages ---- */

MAM_INLINE struct mam_place mam_compact_place(const struct mam_compact *compact, mam_u32 number) {
  mam_u32 superblock = 0;
  MAM_LOOP
  while (number >= compact->first[superblock + 1])
    superblock++;
  struct mam_place place = {compact->control->superblocks[superblock], number - compact->first[superblock]};
  return place;
}

MAM_INLINE int mam_map_bit(const mam_u64 *map, mam_u32 page) { return (int)(map[page >> 6] >> (page & 63) & 1); }

MAM_INLINE mam_u64 *mam_span_words_at(struct mam_area area, mam_u32 page) { return area.words + page * MAM_PAGE_WORDS; }

/* The kind of the typed span that begins at a page and was not moved; 0 if none does. */
MAM_INLINE mam_u32 mam_typed_span_at(struct mam_area area, mam_u32 page) {
  mam_u32 entry = mam_area_entries(area)[page], type = entry >> MAM_ENTRY_TYPE_SHIFT;
  mam_u32 kind = mam_kind_of((entry & 63) - 1, type);
  if (type == 0 || mam_entry_back(entry) != 0 || (entry & 63) - 1 >= MAM_HEAP_CLASSES)
    return 0;
  return mam_word_class(*mam_span_words_at(area, page)) == kind ? kind : 0;
}

/* Live objects and chunks of a span. */
struct mam_fill {
  mam_u32 live, chunks;
};

MAM_INLINE struct mam_fill mam_span_fill(const mam_u64 *words) {
  struct mam_fill fill = {0, 0};
  mam_u32 count = mam_word_span_words(words[0]);
  MAM_LOOP
  for (mam_u32 i = 0; i < count; i++) {
    fill.live += mam_ones_u32((mam_u32)words[i]);
    fill.chunks += mam_word_chunks(words[i]);
  }
  return fill;
}

/* The paper, "Design of CompactGpu". */
MAM_INLINE int mam_fill_is_candidate(struct mam_fill fill, mam_u32 n) {
  return fill.live != 0 && fill.live * (n + 1) <= fill.chunks * n;
}

/* ---- Slots ----
 *
 * What a slot holds counts as used, and would be taken for objects: it is given back before. */

/* Frees the chunks of a typed slot without a ticket. */
MAM_INLINE void mam_compact_slot_empty(struct mam_heap_control *control, mam_u32 index) {
  const mam_heap *heap = &control->heap;
  mam_u32 kind = mam_kind_numbered(control, index / heap->slot_count), limit = mam_slot_limit(heap, kind);
  mam_u64 slot = heap->slots[index], used = 0;
  mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS);
  heap->slots[index] = limit;
  if (ticket >= limit)
    return;
  struct mam_area area = mam_area_of(control, mam_slot_address(slot));
  mam_u32 page = (mam_u32)((mam_slot_address(slot) - area.base) >> MAM_PAGE_SHIFT);
  mam_u64 *words = mam_span_words_at(area, page);
  mam_u32 pages = mam_word_span_pages(words[0]), count = mam_word_span_words(words[0]);
  MAM_LOOP
  for (mam_u32 i = 0; i < count; i++) {
    mam_u32 handed_out = ticket <= 32 * i ? 0 : ticket - 32 * i >= 32 ? 32 : ticket - 32 * i;
    words[i] &= ~0xffffffffull | ((1ull << handed_out) - 1);
    used |= (mam_u32)words[i];
  }
  if (used != 0) {
    mam_span_hint(area, page, kind);
    return;
  }
  MAM_LOOP
  for (mam_u32 i = 0; i < count; i++)
    words[i] = 0;
  mam_pages_release(area, page, pages);
}

/* Whether nobody made a request of an emptied slot. */
MAM_INLINE int mam_compact_slot_is_untouched(const struct mam_heap_control *control, mam_u32 index) {
  const mam_heap *heap = &control->heap;
  return heap->slots[index] == mam_slot_limit(heap, mam_kind_numbered(control, index / heap->slot_count));
}

/* ---- Candidates ---- */

/* What a thread saw: numbers for each type, in four bits each, of up to MAM_COMPACT_GROUP. */
struct mam_seen {
  mam_u64 by_type;
  mam_u64 numbers; /* spans, from bit 16 on candidates, from bit 32 on live objects */
  mam_u64 sizes;   /* the free levels, from bit 32 on pages */
  mam_u8 candidates;
};

/* Looks at a group of pages; with_spans: lists spans with pointers. */
MAM_INLINE struct mam_seen mam_group_look(struct mam_compact *compact, mam_u32 number, int with_spans) {
  struct mam_seen seen = {0, 0, 0, 0};
  struct mam_place place = mam_compact_place(compact, number);
  if (place.page >= place.area.page_count)
    return seen;
  mam_u32 taken = (mam_u32)(mam_area_pages(place.area)[place.page >> 6] >> (place.page & 63)) & 255;
  MAM_LOOP
  for (mam_u32 i = 0; taken >> i != 0; i++) {
    mam_u32 page = place.page + i, kind;
    if ((taken >> i & 1) == 0 || page >= place.area.page_count || (kind = mam_typed_span_at(place.area, page)) == 0)
      continue;
    const mam_u64 *words = mam_span_words_at(place.area, page);
    struct mam_fill fill = mam_span_fill(words);
    if (fill.live == 0)
      continue;
    mam_u64 is_candidate = (mam_u64)mam_fill_is_candidate(fill, compact->n);
    seen.by_type += is_candidate << (4 * (mam_kind_type(kind) - 1));
    seen.candidates |= (mam_u8)(is_candidate << i);
    seen.numbers += 1 | is_candidate << 16 | (mam_u64)fill.live << 32;
    seen.sizes += ((mam_u64)(fill.chunks - fill.live) << 16) / fill.chunks;
    seen.sizes += (mam_u64)mam_word_span_pages(words[0]) << 32;
    if (with_spans && compact->control->types[mam_kind_type(kind) - 1].pointer_count != 0)
      compact->spans[mam_add_relaxed_u32(&compact->span_count, 1)] = number + i;
  }
  return seen;
}

/* Adds what a team saw to the counts. */
MAM_INLINE void mam_compact_count(struct mam_team team, struct mam_compact *compact, mam_u64 numbers, mam_u64 sizes) {
  struct mam_compact_found *counts = &compact->counts;
  numbers = mam_team_sum(team, numbers);
  sizes = mam_team_sum(team, sizes);
  if (team.rank != 0 || numbers == 0)
    return;
  (void)mam_add_relaxed_u64(&counts->spans, numbers & 0xffff);
  (void)mam_add_relaxed_u64(&counts->candidates, numbers >> 16 & 0xffff);
  (void)mam_add_relaxed_u64(&counts->live, numbers >> 32);
  (void)mam_add_relaxed_u64(&counts->free_level, sizes & 0xffffffff);
  (void)mam_add_relaxed_u64(&counts->pages, sizes >> 32);
}

/* Where the number of a type's candidates in a tile is: the last tile comes first. */
MAM_INLINE mam_u32 *mam_compact_sum_at(const struct mam_compact *compact, mam_u32 type, mam_u32 tile) {
  return &compact->sums[(mam_u64)type * compact->tiles + (compact->tiles - 1 - tile)];
}

/* Finds and counts the candidates of a tile. */
MAM_INLINE void mam_tile_look(struct mam_team team, struct mam_compact *compact, mam_u32 tile, int with_spans) {
  MAM_LOOP
  for (mam_u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam_u32 number = tile * MAM_COMPACT_TILE + group * MAM_COMPACT_GROUP;
    struct mam_seen seen = mam_group_look(compact, number, with_spans);
    compact->candidates[number / MAM_COMPACT_GROUP] = seen.candidates;
    mam_compact_count(team, compact, seen.numbers, seen.sizes);
    MAM_LOOP
    for (mam_u32 type = 0; type < compact->types; type++) {
      mam_u64 count = mam_team_sum(team, seen.by_type >> (4 * type) & 15);
      if (team.rank == 0)
        *mam_compact_sum_at(compact, type, tile) =
            (mam_u32)count + (group == 0 ? 0 : *mam_compact_sum_at(compact, type, tile));
    }
  }
}

/* Makes counts sums, writes where each type begins, and says what was found.  One team for all. */
MAM_INLINE void mam_compact_sum(struct mam_team team, struct mam_compact *compact) {
  mam_u32 count = compact->types * compact->tiles, each = (count + team.count - 1) / team.count, sum = 0, total;
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++)
    sum += compact->sums[i];
  sum = mam_team_scan(team, sum, &total);
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < count; i++) {
    mam_u32 here = compact->sums[i];
    if (i % compact->tiles == 0)
      compact->starts[i / compact->tiles] = sum;
    compact->sums[i] = sum;
    sum += here;
  }
  if (team.rank == 0) {
    const struct mam_compact_found none = {0, 0, 0, 0, 0};
    compact->starts[compact->types] = total;
    compact->found = compact->counts;
    compact->passes += compact->done.merges != compact->merges_before;
    compact->merges_before = compact->done.merges;
    if (compact->looks++ == 0)
      compact->found_first = compact->counts;
    compact->counts = none;
  }
}

/* Writes a tile's candidates to their places: the last page first. */
MAM_INLINE void mam_tile_order(struct mam_team team, const struct mam_compact *compact, mam_u32 tile) {
  MAM_LOOP
  for (mam_u32 turn = team.rank; turn < MAM_COMPACT_GROUPS; turn += team.count) {
    mam_u32 number = tile * MAM_COMPACT_TILE + (MAM_COMPACT_GROUPS - 1 - turn) * MAM_COMPACT_GROUP;
    mam_u32 candidates = compact->candidates[number / MAM_COMPACT_GROUP], types = 0;
    struct mam_place place = mam_compact_place(compact, number);
    MAM_LOOP
    for (mam_u32 i = 0; candidates >> i != 0; i++)
      if ((candidates >> i & 1) != 0)
        types |= (mam_u32)(mam_area_entries(place.area)[place.page + i] >> MAM_ENTRY_TYPE_SHIFT) << (4 * i);
    MAM_LOOP
    for (mam_u32 type = 0; type < compact->types; type++) {
      mam_u32 count = 0, total;
      MAM_LOOP
      for (mam_u32 i = 0; i < MAM_COMPACT_GROUP; i++)
        count += (types >> (4 * i) & 15) == type + 1;
      mam_u32 *sum = mam_compact_sum_at(compact, type, tile);
      mam_u32 at = *sum + mam_team_scan(team, count, &total);
      MAM_LOOP
      for (mam_u32 i = MAM_COMPACT_GROUP; count != 0 && i-- != 0;)
        if ((types >> (4 * i) & 15) == type + 1)
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
 * objects of a source go. */
struct mam_merge_room {
  mam_u64 *words[MAM_COMPACT_TARGETS];
  mam_u64 address[MAM_COMPACT_TARGETS];
  mam_u32 free[MAM_COMPACT_TARGETS * MAM_PAGE_WORDS];
  mam_u32 before[MAM_COMPACT_TARGETS * MAM_PAGE_WORDS]; /* free chunks of the words before */
  mam_u64 to[MAM_SPAN_CHUNKS];
  mam_u8 from[MAM_SPAN_CHUNKS];
};

/* The place of the 1 of that rank in bits. */
MAM_INLINE mam_u32 mam_bit_select(mam_u32 bits, mam_u32 rank) {
  mam_u32 place = 0;
  MAM_UNROLL
  for (mam_u32 width = 16; width != 0; width >>= 1) {
    mam_u32 ones = mam_ones_u32(bits >> place & ((1u << width) - 1));
    if (rank >= ones) {
      rank -= ones;
      place += width;
    }
  }
  return place;
}

/* The free chunks of a usage word, 0 if its span has no such word. */
MAM_INLINE mam_u32 mam_word_holes(const mam_u64 *words, mam_u32 index) {
  if (index >= mam_word_span_words(words[0]))
    return 0;
  return ~(mam_u32)words[index] & mam_word_full(words[index]);
}

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
    room->free[i] = mam_word_holes(first, i % MAM_PAGE_WORDS);
    sum += mam_ones_u32(room->free[i]);
  }
  sum = mam_team_scan(team, sum, &total);
  MAM_LOOP
  for (mam_u32 i = team.rank * each; i < (team.rank + 1) * each && i < words; i++) {
    room->before[i] = sum;
    sum += mam_ones_u32(room->free[i]);
  }
  mam_team_sync(team);
  return total;
}

/* Where the free chunk of that rank is, which there is. */
MAM_INLINE mam_u64 mam_merge_hole(const struct mam_merge_room *room, mam_u32 words, mam_u32 rank, mam_u32 bytes) {
  mam_u32 low = 0, high = words; /* the last word with no more than rank before it is from low on, before high */
  MAM_LOOP
  while (high - low > 1) {
    mam_u32 middle = (low + high) / 2;
    if (room->before[middle] <= rank)
      low = middle;
    else
      high = middle;
  }
  mam_u32 chunk = low % MAM_PAGE_WORDS * 32 + mam_bit_select(room->free[low], rank - room->before[low]);
  return room->address[low / MAM_PAGE_WORDS] + (mam_u64)chunk * bytes;
}

/* A unit of an object, to be copied at once. */
struct mam_unit {
  mam_u64 low, high;
} __attribute__((aligned(16)));

/* Says of a span that its objects were moved. */
MAM_INLINE void mam_span_moved(struct mam_team team, struct mam_area area, mam_u32 page, mam_u32 pages) {
  mam_u16 *entries = mam_area_entries(area) + page;
  MAM_LOOP
  for (mam_u32 i = team.rank; i < pages; i += team.count) {
    entries[i] = (mam_u16)((entries[i] & ~63) | MAM_ENTRY_MOVED);
    (void)mam_or_acquire_u64(&mam_area_moved(area)[(page + i) >> 6], 1ull << ((page + i) & 63));
  }
}

/* Moves the objects of the span that begins at place to free chunks from the one of rank first on; words: how many the
 * targets have.  Returns how many there were: of more than fit in all of room, none. */
MAM_INLINE mam_u32 mam_merge_source(struct mam_team team, struct mam_merge_room *room, struct mam_place place,
                                    mam_u32 words, mam_u32 first, mam_u32 room_for) {
  const mam_u64 *usage = mam_span_words_at(place.area, place.page);
  mam_u32 bytes = mam_class_bytes(mam_word_class(usage[0])), live = mam_span_fill(usage).live;
  mam_u32 chunks = 32 * mam_word_span_words(usage[0]), units = bytes / MAM_UNIT_BYTES;
  mam_u64 address = mam_area_address(place.area, place.page);
  if (live > room_for - first)
    return 0;
  MAM_LOOP
  for (mam_u32 chunk = team.rank; chunk < chunks; chunk += team.count) {
    mam_u32 bits = (mam_u32)usage[chunk / 32], rank = mam_ones_u32(bits & ((1u << chunk % 32) - 1));
    if ((bits >> chunk % 32 & 1) == 0)
      continue;
    MAM_LOOP
    for (mam_u32 i = 0; i < chunk / 32; i++)
      rank += mam_ones_u32((mam_u32)usage[i]);
    room->from[rank] = (mam_u8)chunk;
    room->to[rank] = mam_merge_hole(room, words, first + rank, bytes);
  }
  mam_team_sync(team);
  MAM_LOOP
  for (mam_u32 i = team.rank; i < live * units; i += team.count) {
    mam_u32 object = i / units, unit = i % units;
    struct mam_unit *from = (struct mam_unit *)(address + (mam_u64)room->from[object] * bytes) + unit;
    ((struct mam_unit *)room->to[object])[unit] = *from;
    if (unit == 0)
      from->low = room->to[object];
  }
  mam_span_moved(team, place.area, place.page, mam_word_span_pages(usage[0]));
  mam_team_sync(team);
  return live;
}

/* Has the first count free chunks of the targets used. */
MAM_INLINE void mam_merge_end(struct mam_team team, const struct mam_merge_room *room, mam_u32 words, mam_u32 count) {
  MAM_LOOP
  for (mam_u32 i = team.rank; i < words; i += team.count)
    if (count > room->before[i])
      room->words[i / MAM_PAGE_WORDS][i % MAM_PAGE_WORDS] |= mam_lowest_ones(room->free[i], count - room->before[i]);
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
  chunks = mam_slot_limit(&compact->control->heap, mam_word_class(*mam_span_words_at(place.area, place.page)));
  return mam_merge_rest(candidates, (mam_u32)mam_team_sum(team, live), chunks);
}

/* One of the merges of a pass, by its number among those of all types; 0 if there are fewer. */
MAM_INLINE int mam_compact_merge(struct mam_team team, struct mam_compact *compact, struct mam_merge_room *room,
                                 mam_u32 number) {
  mam_u32 type = 0, candidates = 0;
  MAM_LOOP
  for (; type < compact->types; type++) {
    candidates = compact->starts[type + 1] - compact->starts[type];
    mam_u32 count = mam_merge_count(candidates, compact->n);
    if (number < count)
      break;
    number -= count;
  }
  if (type == compact->types)
    return 0;
  const mam_u32 *order = compact->order + compact->starts[type];
  struct mam_merge merge = candidates > compact->n ? mam_merge_of(candidates, compact->n, number)
                                                   : mam_merge_few(team, compact, order, candidates);
  mam_u32 done = 0, merged = 0, pages = 0, words = merge.targets * MAM_PAGE_WORDS;
  mam_u32 room_for = merge.sources == 0 ? 0 : mam_merge_begin(team, compact, room, order, merge);
  MAM_LOOP
  for (mam_u32 i = 0; i < merge.sources; i++) {
    struct mam_place place = mam_compact_place(compact, order[merge.source + i]);
    mam_u32 moved = mam_merge_source(team, room, place, words, done, room_for);
    done += moved;
    merged += moved != 0;
    pages += moved != 0 ? mam_word_span_pages(*mam_span_words_at(place.area, place.page)) : 0;
  }
  if (done != 0)
    mam_merge_end(team, room, words, done);
  if (team.rank == 0 && done != 0) {
    (void)mam_add_relaxed_u64(&compact->done.merges, merged);
    (void)mam_add_relaxed_u64(&compact->done.moved, done);
    (void)mam_add_relaxed_u64(&compact->done.moved_bytes,
                              (mam_u64)done * mam_class_bytes(compact->control->types[type].kind));
    (void)mam_add_relaxed_u64(&compact->done.pages, pages);
  }
  mam_team_sync(team); /* the room is free for the next */
  return 1;
}

/* ---- Pointers ---- */

/* Rewrites a pointer if what it leads to was moved. */
MAM_INLINE void mam_pointer_rewrite(const mam_heap *heap, mam_u64 *pointer) {
  mam_u64 old = *pointer, now = mam_forwarded(heap, old);
  if (now != old)
    *pointer = now;
}

/* Rewrites the pointers in an object of the span at that place in the list, if there is one with that number and the
 * span was not moved itself. */
MAM_INLINE void mam_object_rewrite(const mam_heap *heap, const struct mam_compact *compact, mam_u32 span,
                                   mam_u32 chunk) {
  struct mam_place place = mam_compact_place(compact, compact->spans[span]);
  const mam_u64 *words = mam_span_words_at(place.area, place.page);
  if (chunk / 32 >= mam_word_span_words(words[0]) || (words[chunk / 32] >> chunk % 32 & 1) == 0 ||
      mam_map_bit(mam_area_moved(place.area), place.page))
    return;
  const struct mam_type_info *type = &compact->control->types[mam_kind_type(mam_word_class(words[0])) - 1];
  mam_u64 *object =
      (mam_u64 *)(mam_area_address(place.area, place.page) + (mam_u64)chunk * mam_class_bytes(type->kind));
  MAM_LOOP
  for (mam_u32 i = 0; i < type->pointer_count; i++)
    mam_pointer_rewrite(heap, &object[type->pointers[i]]);
}

/* ---- The end ---- */

/* Gives back the pages of a word of a superblock's map that were moved. */
MAM_INLINE void mam_moved_release(struct mam_area area, mam_u32 index, struct mam_lanes lanes) {
  mam_u64 moved = mam_area_moved(area)[index];
  if (moved == 0)
    return;
  MAM_LOOP
  for (mam_u32 i = lanes.rank; i < 64; i += lanes.count)
    if ((moved >> i & 1) != 0 && mam_entry_back(mam_area_entries(area)[index * 64 + i]) == 0) {
      mam_u64 *words = mam_span_words_at(area, index * 64 + i);
      MAM_LOOP
      for (mam_u32 word = 0; word < MAM_PAGE_WORDS; word++)
        words[word] = 0;
    }
  mam_lanes_sync(lanes);
  if (lanes.rank != 0)
    return;
  mam_area_moved(area)[index] = 0;
  mam_pages_clear(area, index, moved);
}

#endif
