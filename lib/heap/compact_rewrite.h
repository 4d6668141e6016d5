/* SPDX-License-Identifier: BSD-2-Clause */
/* Defragmentation (compact_core.h): pointers to moved objects are rewritten, and the lists of objects that are left. */
#ifndef MAM_LIB_COMPACT_REWRITE_H
#define MAM_LIB_COMPACT_REWRITE_H

#include "heap/compact_find.h"

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
  /* base, page_count and words are those of the first superblock. */
  mam__u64 base;
  /* chains: an object that moved may have moved again, because there were several passes. */
  mam__u32 page_count, chains;
  mam__u64 *words;
  const struct mam_shape *shapes; /* by type, from 1 on */
};

MAM__INLINE struct mam_rewriting mam_rewriting_of(const struct mam_compact *compact, const struct mam_shape *shapes,
                                                  mam__u32 passes) {
  const mam_device_heap *heap = &compact->heap;
  struct mam_rewriting rewriting = {&compact->control->heap, heap->base, heap->page_count, passes > 1,
                                    mam__heap_words(heap),   shapes};
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
    entries[i] = mam_read_if_u16(inside, mam__page_entry(rewriting->words, (mam__u32)page));
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
        slow |= (mam__u32)(page >= rewriting->page_count ||
                           (*mam__page_entry(rewriting->words, (mam__u32)page) & 63) == MAM__ENTRY_MOVED)
                << i;
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
        left |= (mam__u32)((*mam__page_entry(place.area.words, place.page + i) & 63) - 1 < MAM__HEAP_CLASSES) << i;
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
  mam__u32 entry = *mam__page_entry(place.area.words, place.page);
  const struct mam__type_info *type = &types[(entry >> MAM__ENTRY_TYPE_SHIFT) - 1];
  struct mam_span_left left = {
      mam__area_address(place.area, place.page), type->pointers, type->pointer_count, 0, 0, {0}};
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    left.used[i] = mam__word_used(words[i]);
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
        entry = *mam__page_entry(place.area.words, page);
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
    mam__u32 bits = mam__word_used(words[i]);
    MAM__LOOP
    for (mam__u32 bit = team.rank; bit < 32; bit += team.count) {
      mam__u64 at = before + mam__ones_u32(bits & ((1u << bit) - 1));
      if ((bits >> bit & 1) != 0 && at < compact->object_room)
        compact->objects[at] = address + (32 * i + bit) * bytes;
    }
    before += mam__ones_u32(bits);
  }
}

#endif
