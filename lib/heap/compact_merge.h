/* SPDX-License-Identifier: BSD-2-Clause */
/* Defragmentation (compact_core.h): the objects of sources go to their targets. */
#ifndef MAM_LIB_COMPACT_MERGE_H
#define MAM_LIB_COMPACT_MERGE_H

#include "heap/compact_find.h"

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
    source.used[i] = mam__word_used(words[i]);
    source.live += mam__ones_u32(source.used[i]);
  }
  return source;
}

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
    room->free[i] = mam__word_free(first[i % MAM__PAGE_WORDS]) & mam__word_whole(first[i % MAM__PAGE_WORDS]);
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
      (void)mam__and_relaxed_u64(&room->words[i / MAM__PAGE_WORDS][i % MAM__PAGE_WORDS],
                                 ~(mam__u64)mam__lowest_ones(room->free[i], count - room->before[i]));
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

#endif
