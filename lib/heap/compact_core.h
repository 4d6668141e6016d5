/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation of a device heap: the algorithm.  The GPU runs it, and a test runs it on the host.  It follows M.
 * Springer, "CompactGpu: Massively Parallel Memory Defragmentation on GPUs" ("the paper").  The paper's blocks are
 * spans here, and its allocation sizes are types.  lib/heap/README.md, "Defragmentation", has the reasons.
 *
 *             target                source
 *   before    | x |   | y |   |     | a |   |   | b |
 *   after     | x | a | y | b |     table: where a is, 0, 0, where b is
 *
 * A candidate is a span of one type that is not empty and at most n/(n+1) full.  A pass orders the candidates of each
 * type from the last page of the heap to the first.  Of r candidates, the first B = r/(n+1) are sources.  The objects
 * of source i go to free chunks of its targets i + B, i + 2B .. i + nB.  They fit, because n full-sized targets have
 * n/(n+1) of a span free.  The last target is filled first, so that what stays is at the beginning of the heap.  n may
 * grow from pass to pass.  While many candidates are nearly empty, n = 1 takes most spans away.
 *
 * The paper leaves candidates alone if there are at most n of them.  Here as many stay as are needed to hold all
 * objects, as targets, and the others become sources.
 *
 * A source has a table of new addresses at its beginning, with a place for each chunk, until the end of the compaction.
 * So an address in a source tells where its object is.  It keeps its usage words as long.  Meanwhile the map of moved
 * pages has a 1 for each of its pages, and its entries have the size class MAM__ENTRY_MOVED, so no free and no request
 * takes it for a span.
 *
 * The program does not use the heap meanwhile, and all threads wait for each other between the steps of a pass.  So no
 * access needs a memory order.
 *
 * A team is a set of threads that do one piece of work together.  The file that includes this one defines before it:
 *
 *   struct mam_team                       rank and count
 *   mam_team_sync(team)                   the team's threads wait for each other
 *   mam_team_sum(team, value)             the sum of all threads' 64-bit values, for each of them
 *   mam_team_scan(team, value, total)     the sum of the 32-bit values of the threads before; *total: of all threads
 *   mam_read_if_u16(wanted, place)        the value there, 0 if it is not wanted; without a branch, so reads overlap
 *   mam_read_once_if_u64(wanted, place)   the same for a value that is not read again soon
 *   mam_read_pointer_if(wanted, place)    the same for a pointer; the L2 cache need not keep its line any longer
 *   mam_read_unit_once(place)             a unit that is not read again
 *   mam_write_unit(place, unit, keep)     keep: the L2 cache is to keep the line until its pointers are read
 */
#ifndef MAM_LIB_COMPACT_CORE_H
#define MAM_LIB_COMPACT_CORE_H

#include "heap/compact_types.h"

/* ---- Pages ---- */

/* The superblock and the page in it of a page number.  Numbers go over all superblocks, see struct mam_compact. */
MAM__INLINE struct mam__place mam_compact_place(const struct mam_compact *compact, mam__u32 number) {
  mam__u32 superblock = 0;
  MAM__LOOP
  while (number >= compact->first[superblock + 1])
    superblock++;
  struct mam__place place = {{compact->heap.base, compact->heap.words, compact->heap.page_count, 0},
                             number - compact->first[superblock]};
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
    fill.live += mam__ones_u32((mam__u32)word);
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
  mam__u16 *entries = mam__area_entries(area) + page;
  MAM__LOOP
  for (mam__u32 i = team.rank; i < pages; i += team.count)
    entries[i] = (mam__u16)((mam__entry_of(kind, i) & ~63u) | what);
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
  return compact->heap.slots + (mam__u64)(MAM__HEAP_CLASSES + type) * compact->heap.slot_count + number;
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
    mam__u64 word = words[i] & (~0xffffffffull | ((1ull << handed_out) - 1));
    emptied.used |= (mam__u32)word;
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
      mam__u32 entry = mam__area_entries(place.area)[place.page + i];
      begins |= (mam__u32)(entry >> MAM__ENTRY_TYPE_SHIFT != 0 && mam__entry_back(entry) == 0) << i;
    }
  begins &= taken; /* only those of the group: taken has bits of later pages too */
  MAM__LOOP
  for (; begins != 0; begins &= begins - 1) {
    mam__u32 i = mam__lowest_u32(begins), page = place.page + i;
    const mam__u64 *words = mam_span_words_at(place.area, page);
    struct mam_fill fill = mam_span_fill(words);
    mam__u32 kind = mam_typed_span_at(place.area, page, mam__area_entries(place.area)[page]);
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

/* ---- Merging ---- */

/* Sources and targets, by their places among a type's candidates.  The sources are source and those after it.  The
 * targets are target and those before it, in steps of stride. */
struct mam_merge {
  mam__u32 source, sources, target, stride, targets;
};

/* How many merges a pass makes of so many candidates of a type. */
MAM__INLINE mam__u32 mam_merge_count(mam__u32 candidates, mam__u32 n) {
  return candidates > n ? candidates / (n + 1) : candidates > 1;
}

/* The merge with that number, where there are more than n candidates. */
MAM__INLINE struct mam_merge mam_merge_of(mam__u32 candidates, mam__u32 n, mam__u32 number) {
  mam__u32 sources = candidates / (n + 1);
  struct mam_merge merge = {number, 1, number + n * sources, sources, n};
  return merge;
}

/* The only merge of at most n candidates.  live: their objects in all.  chunks: of each of their spans. */
MAM__INLINE struct mam_merge mam_merge_rest(mam__u32 candidates, mam__u32 live, mam__u32 chunks) {
  mam__u32 needed = (live + chunks - 1) / chunks;
  mam__u32 sources = needed < candidates ? candidates - needed : 0;
  struct mam_merge merge = {0, sources, candidates - 1, 1, candidates - sources};
  return merge;
}

/* What a team shares while it merges: the free chunks of the targets in the order in which they are filled, and for
 * each object of a source its chunk and its new address. */
struct mam_merge_room {
  mam__u64 *words[MAM_COMPACT_TARGETS];
  mam__u64 address[MAM_COMPACT_TARGETS];
  mam__u32 free[MAM_COMPACT_TARGETS * MAM__PAGE_WORDS];
  /* How many chunks are free in the words before. */
  mam__u16 before[MAM_COMPACT_TARGETS * MAM__PAGE_WORDS];
  mam__u64 to[MAM_SPAN_CHUNKS];
  mam__u8 from[MAM_SPAN_CHUNKS];
};

/* A span whose objects are moved.  used has a bit for each of its chunks. */
struct mam_source {
  struct mam__area area;
  mam__u32 page, pages, kind, live;
  mam__u32 used[MAM__PAGE_WORDS]; /* bits of its chunks */
};

/* Reads a source.  All loads are under way together. */
MAM__INLINE struct mam_source mam_source_at(const struct mam_compact *compact, mam__u32 number) {
  struct mam__place place = mam_compact_place(compact, number);
  const mam__u64 *words = mam_span_words_at(place.area, place.page);
  struct mam_source source = {place.area, place.page, mam__word_span_pages(words[0]), mam__word_class(words[0]),
                              0,          {0}};
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    source.used[i] = (mam__u32)words[i];
    source.live += mam__ones_u32(source.used[i]);
  }
  return source;
}

/* The free chunks of a usage word, a bit each.  0 for a word that no span has. */
MAM__INLINE mam__u32 mam_word_holes(mam__u64 word) { return word == 0 ? 0 : ~(mam__u32)word & mam__word_full(word); }

/* Reads the targets.  Returns how many chunks are free in them. */
MAM__INLINE mam__u32 mam_merge_begin(struct mam_team team, const struct mam_compact *compact,
                                     struct mam_merge_room *room, const mam__u32 *order, struct mam_merge merge) {
  mam__u32 words = merge.targets * MAM__PAGE_WORDS, each = (words + team.count - 1) / team.count;
  mam__u32 sum = 0, total;
  MAM__LOOP
  for (mam__u32 i = team.rank * each; i < (team.rank + 1) * each && i < words; i++) {
    mam__u32 target = i / MAM__PAGE_WORDS;
    struct mam__place place = mam_compact_place(compact, order[merge.target - target * merge.stride]);
    mam__u64 *first = mam_span_words_at(place.area, place.page);
    room->words[target] = first;
    room->address[target] = mam__area_address(place.area, place.page);
    room->free[i] = mam_word_holes(first[i % MAM__PAGE_WORDS]);
    sum += mam__ones_u32(room->free[i]);
  }
  sum = mam_team_scan(team, sum, &total);
  MAM__LOOP
  for (mam__u32 i = team.rank * each; i < (team.rank + 1) * each && i < words; i++) {
    room->before[i] = (mam__u16)sum;
    sum += mam__ones_u32(room->free[i]);
  }
  mam_team_sync(team);
  return total;
}

/* Pairs the objects of a source with free chunks of the targets, from the free chunk of rank first on.  words: of all
 * targets. */
MAM__INLINE void mam_merge_pair(struct mam_team team, struct mam_merge_room *room, const struct mam_source *source,
                                mam__u32 words, mam__u32 first) {
  mam__u32 before = 0, bytes = mam__class_bytes(source->kind);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    mam__u32 bits = source->used[i], bit = team.rank;
    do
      if ((bits >> bit & 1) != 0)
        room->from[before + mam__ones_u32(bits & ((1u << bit) - 1))] = (mam__u8)(32 * i + bit);
    while ((bit += team.count) < 32);
    before += mam__ones_u32(bits);
  }
  MAM__LOOP
  for (mam__u32 i = 0; i < words; i++) {
    mam__u32 bits = room->free[i], bit = team.rank;
    mam__u64 address = room->address[i / MAM__PAGE_WORDS];
    before = room->before[i] - first; /* it wraps where before[i] is less than first */
    do {
      mam__u32 object = before + mam__ones_u32(bits & ((1u << bit) - 1));
      if ((bits >> bit & 1) != 0 && object < source->live)
        room->to[object] = address + (mam__u64)((i % MAM__PAGE_WORDS * 32 + bit) * bytes);
    } while ((bit += team.count) < 32);
  }
  mam_team_sync(team);
}

/* Where a unit is: the object's number in its source, and the bytes before the unit in the object. */
struct mam_unit_place {
  mam__u32 object, in_object;
};

/* Divides by a multiplication.  The result is exact: there are fewer than 2^15 units, fewer than 2^12 of them in an
 * object. */
MAM__INLINE struct mam_unit_place mam_unit_place(mam__u32 at, mam__u32 units, mam__u32 inverse) {
  struct mam_unit_place place = {units == 1 ? at : (mam__u32)((mam__u64)at * inverse >> 32), 0};
  place.in_object = (at - place.object * units) * MAM_UNIT_BYTES;
  return place;
}

/* Copies the paired objects of a source at address.  keep: as for mam_write_unit.  A thread that has no unit left reads
 * the last one.  So there is no branch, and its reads are under way together. */
MAM__INLINE void mam_merge_copy(struct mam_team team, const struct mam_merge_room *room, mam__u64 address,
                                mam__u32 bytes, mam__u32 objects, int keep) {
  mam__u32 units = bytes / MAM_UNIT_BYTES, count = objects * units, inverse = 0xffffffffu / units + 1;
  MAM__LOOP
  for (mam__u32 first = team.rank; first < count; first += MAM_UNIT_BATCH * team.count) {
    struct mam_unit held[MAM_UNIT_BATCH];
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_UNIT_BATCH; i++) {
      mam__u32 at = first + i * team.count;
      struct mam_unit_place place = mam_unit_place(at < count ? at : count - 1, units, inverse);
      held[i] =
          mam_read_unit_once((const struct mam_unit *)(address + (room->from[place.object] * bytes + place.in_object)));
    }
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_UNIT_BATCH; i++) {
      mam__u32 at = first + i * team.count;
      struct mam_unit_place place = mam_unit_place(at, units, inverse);
      if (at < count)
        mam_write_unit((struct mam_unit *)(room->to[place.object] + place.in_object), held[i], keep);
    }
  }
}

/* Writes the new addresses of a source's objects into the source at address.  All objects were copied before. */
MAM__INLINE void mam_merge_leave(struct mam_team team, const struct mam_merge_room *room,
                                 const struct mam_source *source, mam__u64 address) {
  mam__u64 *table = (mam__u64 *)address;
  mam__u32 before = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    mam__u32 bits = source->used[i], bit = team.rank;
    do {
      mam__u32 object = before + mam__ones_u32(bits & ((1u << bit) - 1));
      table[32 * i + bit] = (bits >> bit & 1) != 0 ? room->to[object] : 0;
    } while ((bit += team.count) < 32);
    before += mam__ones_u32(bits);
  }
}

/* Whether every line that objects of a kind are written to is read again for their pointers.  Only then a line may be
 * marked to stay in the cache: reading it takes the mark away. */
MAM__INLINE int mam_lines_are_read(const struct mam_compact *compact, mam__u32 kind) {
  return MAM_LINE_BYTES % mam__class_bytes(kind) == 0 && mam_kind_has_pointers(compact, kind);
}

/* Moves a source's objects to free chunks of the targets, from the one of rank first on.  words: of all targets.
 * room_for: their free chunks.  Returns how many objects moved.  If not all of them fit, none moves. */
MAM__INLINE mam__u32 mam_merge_source(struct mam_team team, const struct mam_compact *compact,
                                      struct mam_merge_room *room, const struct mam_source *source, mam__u32 words,
                                      mam__u32 first, mam__u32 room_for) {
  mam__u64 address = mam__area_address(source->area, source->page);
  mam__u32 bytes = mam__class_bytes(source->kind);
  if (source->live > room_for - first)
    return 0;
  mam_merge_pair(team, room, source, words, first);
  mam_merge_copy(team, room, address, bytes, source->live, mam_lines_are_read(compact, source->kind));
  mam_team_sync(team);
  mam_merge_leave(team, room, source, address);
  mam_span_moved(team, source->area, source->page, source->pages, source->kind, MAM__ENTRY_MOVED);
  mam_team_sync(team);
  return source->live;
}

/* Marks the first count free chunks of the targets as used. */
MAM__INLINE void mam_merge_end(struct mam_team team, const struct mam_merge_room *room, mam__u32 words,
                               mam__u32 count) {
  MAM__LOOP
  for (mam__u32 i = team.rank; i < words; i += team.count)
    if (count > room->before[i])
      /* Relaxed: no other thread looks at it.  Atomic, so that the thread does not wait for the old value. */
      (void)mam__or_relaxed_u64(&room->words[i / MAM__PAGE_WORDS][i % MAM__PAGE_WORDS],
                                mam__lowest_ones(room->free[i], count - room->before[i]));
}

/* The merge of at most n candidates of a type. */
MAM__INLINE struct mam_merge mam_merge_few(struct mam_team team, const struct mam_compact *compact,
                                           const mam__u32 *order, mam__u32 candidates) {
  mam__u64 live = 0;
  mam__u32 chunks = 1;
  MAM__LOOP
  for (mam__u32 i = team.rank; i < candidates; i += team.count) {
    struct mam__place place = mam_compact_place(compact, order[i]);
    const mam__u64 *words = mam_span_words_at(place.area, place.page);
    live += mam_span_fill(words).live;
  }
  struct mam__place place = mam_compact_place(compact, order[0]);
  chunks = mam__slot_limit(&compact->heap, mam__word_class(*mam_span_words_at(place.area, place.page)));
  return mam_merge_rest(candidates, (mam__u32)mam_team_sum(team, live), chunks);
}

/* Makes one merge of a pass, by its number among those of all types.  Adds what it did to *sum.  Returns 0 if there are
 * fewer merges. */
MAM__INLINE int mam_compact_merge(struct mam_team team, const struct mam_compact *compact, struct mam_merge_room *room,
                                  mam__u32 n, mam__u32 number, struct mam_compact_done *sum) {
  mam__u32 type = 0, candidates = 0;
  MAM__LOOP
  for (; type < compact->types; type++) {
    candidates = compact->state->starts[type + 1] - compact->state->starts[type];
    mam__u32 count = mam_merge_count(candidates, n);
    if (number < count)
      break;
    number -= count;
  }
  if (type == compact->types)
    return 0;
  const mam__u32 *order = compact->order + compact->state->starts[type];
  struct mam_merge merge =
      candidates > n ? mam_merge_of(candidates, n, number) : mam_merge_few(team, compact, order, candidates);
  mam__u32 done = 0, merged = 0, pages = 0, words = merge.targets * MAM__PAGE_WORDS, room_for = 0, bytes = 0;
  MAM__LOOP
  for (mam__u32 i = 0; i < merge.sources; i++) {
    struct mam_source source = mam_source_at(compact, order[merge.source + i]);
    if (i == 0)
      room_for = mam_merge_begin(team, compact, room, order, merge);
    mam__u32 moved = mam_merge_source(team, compact, room, &source, words, done, room_for);
    done += moved;
    merged += moved != 0;
    pages += moved != 0 ? source.pages : 0;
    bytes = mam__class_bytes(source.kind);
  }
  if (done != 0)
    mam_merge_end(team, room, words, done);
  sum->merges += merged;
  sum->moved += done;
  sum->moved_bytes += (mam__u64)done * bytes;
  sum->pages += pages;
  mam_team_sync(team); /* the next merge may use the room */
  return 1;
}

/* The n of the pass after one with n.  merges: how many spans that pass took away, of so many spans.  0: there is to be
 * no further pass. */
MAM__INLINE mam__u32 mam_next_n(mam__u32 n, mam__u32 n_last, mam__u64 merges, mam__u64 spans) {
  if (n == n_last)
    return merges != 0 ? n : 0;
  return merges * MAM_COMPACT_LITTLE > spans ? n : n + 1;
}

/* ---- Pointers ---- */

/* What finds the object of an address in a span of a type. */
struct mam_shape {
  mam__u32 bytes; /* bytes of a chunk */
  /* 2^15 divided by the class's multiple, rounded up: see mam__chunk_index. */
  mam__u16 multiple_part;
  mam__u16 shift;
};

MAM__INLINE struct mam_shape mam_shape_of(mam__u32 kind) {
  mam__u32 shift = mam__class_shift(kind), multiple = mam__class_multiple(kind, shift);
  struct mam_shape shape = {multiple << (shift + 4), (mam__u16)((32768 + multiple - 1) / multiple), (mam__u16)shift};
  return shape;
}

/* What all threads know while pointers are rewritten. */
struct mam_rewriting {
  const mam_device_heap *heap;
  /* base, page_count and entries are those of the first superblock. */
  mam__u64 base;
  /* chains: an object that moved may have moved again, because there were several passes. */
  mam__u32 page_count, chains;
  const mam__u16 *entries;
  const struct mam_shape *shapes; /* by type, from 1 on */
};

MAM__INLINE struct mam_rewriting mam_rewriting_of(const struct mam_compact *compact, const struct mam_shape *shapes,
                                                  mam__u32 passes) {
  const mam_device_heap *heap = &compact->heap;
  struct mam_rewriting rewriting = {&compact->control->heap, heap->base, heap->page_count, passes > 1,
                                    heap->entries,           shapes};
  return rewriting;
}

/* Addresses that a thread looks at together, so that its loads are under way together: as they were found, and where
 * the objects are. */
struct mam_addresses {
  mam__u64 old[MAM_COMPACT_BATCH], now[MAM_COMPACT_BATCH];
};

/* Follows the addresses by one move: where the page was moved, now becomes the object's new address.  Returns a bit for
 * each address that moved.  *left has a bit for each that is not in the first superblock. */
MAM__INLINE mam__u32 mam_addresses_step(const struct mam_rewriting *rewriting, struct mam_addresses *addresses,
                                        mam__u32 *left) {
  mam__u32 entries[MAM_COMPACT_BATCH], in_object[MAM_COMPACT_BATCH], moved = 0;
  *left = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    mam__u64 page = (addresses->old[i] - rewriting->base) >> MAM__PAGE_SHIFT;
    int inside = page < rewriting->page_count;
    entries[i] = mam_read_if_u16(inside, &rewriting->entries[page]);
    *left |= (mam__u32)(!inside && addresses->old[i] != 0) << i;
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    int was_moved = (entries[i] & 63) == MAM__ENTRY_MOVED;
    struct mam_shape shape = rewriting->shapes[entries[i] >> MAM__ENTRY_TYPE_SHIFT];
    mam__u32 in_page = (mam__u32)(addresses->old[i] - rewriting->base) & (MAM__PAGE_BYTES - 1);
    mam__u32 in_span = in_page + (mam__entry_back(entries[i]) << MAM__PAGE_SHIFT);
    mam__u32 chunk = ((in_span >> (shape.shift + 4)) * shape.multiple_part) >> 15;
    addresses->now[i] = mam_read_once_if_u64(was_moved, (const mam__u64 *)(addresses->old[i] - in_span + 8 * chunk));
    in_object[i] = in_span - chunk * shape.bytes;
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    moved |= (mam__u32)(addresses->now[i] != 0) << i;
    addresses->now[i] = addresses->now[i] != 0 ? addresses->now[i] + in_object[i] : addresses->old[i];
  }
  return moved;
}

/* The slow way, for the few addresses that need it. */
MAM__OUTLINE mam__u64 mam_address_forward(const mam_device_heap *heap, mam__u64 address) {
  return mam__forwarded(heap, address);
}

/* Finds where the objects of the old addresses are.  A few of those that moved have moved again. */
MAM__INLINE void mam_addresses_forward(const struct mam_rewriting *rewriting, struct mam_addresses *addresses) {
  mam__u32 slow, again = mam_addresses_step(rewriting, addresses, &slow);
  if (rewriting->chains) {
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
      if ((again >> i & 1) != 0) {
        mam__u64 page = (addresses->now[i] - rewriting->base) >> MAM__PAGE_SHIFT;
        slow |= (mam__u32)(page >= rewriting->page_count || (rewriting->entries[page] & 63) == MAM__ENTRY_MOVED) << i;
      }
  }
  if (slow != 0) {
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
      if ((slow >> i & 1) != 0)
        addresses->now[i] = MAM__OUT_OF_SIGHT(mam_address_forward)(rewriting->heap, addresses->now[i]);
  }
}

/* Lists the spans of a tile that have pointers and were not moved.  The list is then divided.  If spans were divided
 * with the moved ones, half of them perhaps, some threads would have much more to do than others. */
MAM__INLINE void mam_tile_left(struct mam_team team, const struct mam_compact *compact, mam__u32 tile) {
  MAM__LOOP
  for (mam__u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam__u32 at = tile * MAM_COMPACT_GROUPS + group, number = at * MAM_COMPACT_GROUP, left = 0, total;
    mam__u32 with_pointers = compact->with_pointers[at];
    struct mam__place place = mam_compact_place(compact, number);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_COMPACT_GROUP; i++)
      if (place.page + i < place.area.page_count)
        left |= (mam__u32)((mam__area_entries(place.area)[place.page + i] & 63) - 1 < MAM__HEAP_CLASSES) << i;
    left &= with_pointers;
    mam__u32 to = mam_team_scan(team, mam__ones_u32(left), &total);
    mam__u64 base = team.rank == 0 && total != 0 ? mam__add_relaxed_u32(&compact->state->left_count, total) : 0;
    to += (mam__u32)mam_team_sum(team, base);
    MAM__LOOP
    for (; left != 0; left &= left - 1)
      compact->order[to++] = number + mam__lowest_u32(left);
  }
}

/* A span whose objects' pointers are to be rewritten.  used has a bit for each of its chunks. */
struct mam_span_left {
  mam__u64 address;
  const mam__u16 *pointers;      /* where the pointers are in an object, in units of 8 bytes */
  mam__u32 pointer_count, bytes; /* bytes: of an object */
  mam__u32 words;
  mam__u32 used[MAM__PAGE_WORDS]; /* bits of its chunks */
};

/* The span at that place in the list.  types: as the heap knows them. */
MAM__INLINE struct mam_span_left mam_span_left_at(const struct mam_compact *compact, const struct mam__type_info *types,
                                                  mam__u32 span) {
  struct mam__place place = mam_compact_place(compact, compact->order[span]);
  const mam__u64 *words = mam_span_words_at(place.area, place.page);
  mam__u32 entry = mam__area_entries(place.area)[place.page];
  const struct mam__type_info *type = &types[(entry >> MAM__ENTRY_TYPE_SHIFT) - 1];
  struct mam_span_left left = {
      mam__area_address(place.area, place.page), type->pointers, type->pointer_count, 0, 0, {0}};
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    left.used[i] = (mam__u32)words[i];
  left.bytes = mam__class_bytes(mam__word_class(words[0]));
  left.words = mam__word_span_words(words[0]);
  return left;
}

/* In how many parts, at most, a span's pointers are rewritten. */
MAM__INLINE mam__u32 mam_span_parts(const struct mam_compact *compact) {
  return (compact->pointers_most * MAM__PAGE_WORDS + MAM_COMPACT_BATCH - 1) / MAM_COMPACT_BATCH;
}

/* Pointers that a thread rewrites together: at has their places in bytes from the span's address on. */
struct mam_pointers {
  mam__u64 address;
  mam__u32 at[MAM_COMPACT_BATCH];
  struct mam_addresses addresses;
};

/* Reads a thread's share of a part of a span's pointers.  Lanes that follow each other read the pointers of one object,
 * so that their reads and writes are combined.  A pointer's chunk is found by a multiplication.  The result is exact:
 * there are at most 2^14 pointers, 2^6 of them in an object. */
MAM__INLINE void mam_pointers_read(struct mam_pointers *pointers, const struct mam_span_left *left, mam__u32 part,
                                   mam__u32 lane) {
  mam__u32 count = left->pointer_count, inverse = ((1u << 20) + count - 1) / count, wanted = 0;
  pointers->address = left->address;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++) {
    mam__u32 number = (part * MAM_COMPACT_BATCH + i) * 32 + lane, is_there = number < 32 * left->words * count;
    number = is_there ? number : 0;
    mam__u32 chunk = (number * inverse) >> 20;
    wanted |= (is_there & left->used[chunk / 32] >> chunk % 32) << i;
    pointers->at[i] = chunk * left->bytes + left->pointers[number - chunk * count] * 8;
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    pointers->addresses.old[i] =
        mam_read_pointer_if(wanted >> i & 1, (const mam__u64 *)(pointers->address + pointers->at[i]));
}

/* Rewrites the pointers that were read and whose objects moved. */
MAM__INLINE void mam_pointers_rewrite(struct mam_pointers *pointers, const struct mam_rewriting *rewriting) {
  struct mam_addresses *addresses = &pointers->addresses;
  mam_addresses_forward(rewriting, addresses);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    if (addresses->now[i] != addresses->old[i])
      *(mam__u64 *)(pointers->address + pointers->at[i]) = addresses->now[i];
}

/* Rewrites up to MAM_COMPACT_BATCH pointers of an array: every count-th, from first on. */
MAM__INLINE void mam_roots_rewrite(const struct mam_rewriting *rewriting, mam__u64 *roots, mam__u64 roots_count,
                                   mam__u64 first, mam__u64 count) {
  struct mam_addresses addresses;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    addresses.old[i] = first + i * count < roots_count ? roots[first + i * count] : 0;
  mam_addresses_forward(rewriting, &addresses);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM_COMPACT_BATCH; i++)
    if (addresses.now[i] != addresses.old[i])
      roots[first + i * count] = addresses.now[i];
}

/* ---- Lists of objects ----
 *
 * spans has the spans of a type, in the order in which teams add them.  order has, for each of these spans, how many
 * objects come before. */

/* Adds the spans of a tile to the list. */
MAM__INLINE void mam_tile_list(struct mam_team team, const struct mam_compact *compact, mam__u32 tile) {
  MAM__LOOP
  for (mam__u32 group = team.rank; group < MAM_COMPACT_GROUPS; group += team.count) {
    mam__u32 number = tile * MAM_COMPACT_TILE + group * MAM_COMPACT_GROUP, begins = 0, live = 0, spans, objects;
    struct mam__place place = mam_compact_place(compact, number);
    mam__u32 fills[MAM_COMPACT_GROUP];
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_COMPACT_GROUP; i++) {
      mam__u32 page = place.page + i, entry = 0;
      if (page < place.area.page_count)
        entry = mam__area_entries(place.area)[page];
      fills[i] = 0;
      if (entry >> MAM__ENTRY_TYPE_SHIFT == compact->object_type && mam_typed_span_at(place.area, page, entry) != 0)
        fills[i] = mam_span_fill(mam_span_words_at(place.area, page)).live;
      begins |= (mam__u32)(fills[i] != 0) << i;
      live += fills[i];
    }
    mam__u32 at = mam_team_scan(team, mam__ones_u32(begins), &spans), before = mam_team_scan(team, live, &objects);
    mam__u64 base = 0;
    if (team.rank == 0 && spans != 0) {
      base = mam__add_relaxed_u32(&compact->state->span_count, spans);
      base |= (mam__u64)mam__add_relaxed_u32(&compact->state->object_count, objects) << 32;
    }
    base = mam_team_sum(team, base);
    at += (mam__u32)base;
    before += (mam__u32)(base >> 32);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM_COMPACT_GROUP; i++)
      if (fills[i] != 0) {
        compact->spans[at] = number + i;
        compact->order[at++] = before;
        before += fills[i];
      }
  }
}

/* Writes the addresses of the objects of the span at that place in the list. */
MAM__INLINE void mam_span_list(struct mam_team team, const struct mam_compact *compact, mam__u32 span) {
  struct mam__place place = mam_compact_place(compact, compact->spans[span]);
  const mam__u64 *words = mam_span_words_at(place.area, place.page);
  mam__u64 address = mam__area_address(place.area, place.page), bytes = mam__class_bytes(mam__word_class(words[0]));
  mam__u64 before = compact->order[span];
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    mam__u32 bits = (mam__u32)words[i];
    MAM__LOOP
    for (mam__u32 bit = team.rank; bit < 32; bit += team.count) {
      mam__u64 at = before + mam__ones_u32(bits & ((1u << bit) - 1));
      if ((bits >> bit & 1) != 0 && at < compact->object_room)
        compact->objects[at] = address + (32 * i + bit) * bytes;
    }
    before += mam__ones_u32(bits);
  }
}

/* ---- The end ---- */

/* Gives back those pages of a word of a superblock's page map that were moved. */
MAM__INLINE void mam_moved_release(struct mam__area area, mam__u32 index, struct mam__lanes lanes) {
  mam__u64 moved = mam__area_moved(area)[index];
  if (moved == 0)
    return;
  MAM__LOOP
  for (mam__u32 i = lanes.rank; i < 64; i += lanes.count)
    if ((moved >> i & 1) != 0) {
      mam__u16 *entry = &mam__area_entries(area)[index * 64 + i];
      mam__u64 *words = mam_span_words_at(area, index * 64 + i);
      MAM__LOOP
      for (mam__u32 word = 0; mam__entry_back(*entry) == 0 && word < MAM__PAGE_WORDS; word++)
        words[word] = 0;
      *entry = 0;
    }
  mam__lanes_sync(lanes);
  if (lanes.rank != 0)
    return;
  mam__area_moved(area)[index] = 0;
  mam__pages_clear(area, index, moved);
}

#endif
