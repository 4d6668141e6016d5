/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation of a heap in host memory (heap_model.h).  The algorithm is compact_core.h, and each function here
 * does by a team of one thread what the kernel of compact_kernels.cuh does by many.  So nothing here tests how threads
 * work together.
 */
#ifndef MAM_TESTS_COMPACT_MODEL_H
#define MAM_TESTS_COMPACT_MODEL_H

#include <stdbool.h>

#include "heap_model.h"

#include "heap/compact_types.h"

struct mam_team {
  mam__u32 rank, count;
};

static inline void mam_team_sync(struct mam_team team) { (void)team; }
static inline mam__u64 mam_team_sum(struct mam_team team, mam__u64 value) { return (void)team, value; }
static inline mam__u32 mam_team_scan(struct mam_team team, mam__u32 value, mam__u32 *total) {
  (void)team;
  *total = value;
  return 0;
}

static inline mam__u32 mam_read_if_u16(int wanted, const mam__u16 *place) { return wanted ? *place : 0; }
static inline mam__u64 mam_read_once_if_u64(int wanted, const mam__u64 *place) { return wanted ? *place : 0; }
static inline mam__u64 mam_read_pointer_if(int wanted, const mam__u64 *place) { return wanted ? *place : 0; }
static inline struct mam_unit mam_read_unit_once(const struct mam_unit *place) { return *place; }
static inline void mam_write_unit(struct mam_unit *place, struct mam_unit unit, int keep) {
  (void)keep;
  *place = unit;
}

#include "heap/compact_core.h"

static const struct mam_team compact_model_team = {0, 1};

/* Registers a type, as MAM_HeapRegisterType does.  number: from 1 on.  pointers: offsets in units of 8 bytes. */
static inline mam_type compact_model_type(struct heap_model *model, mam__u32 number, mam__u32 bytes,
                                          mam__u32 pointer_count, const mam__u16 *pointers) {
  struct mam__type_info *info = &model->control->types[number - 1];
  info->pointer_count = pointer_count;
  if (pointer_count != 0)
    memcpy(info->pointers, pointers, pointer_count * sizeof *pointers);
  return heap_model_type(model, number, bytes);
}

/* Begins a compaction: takes memory to work in and empties the slots of all types. */
static inline struct mam_compact *compact_model_open(struct heap_model *model, mam__u32 types, mam__u32 n) {
  struct mam_compact *compact = (struct mam_compact *)calloc(1, sizeof *compact);
  compact->control = model->control;
  compact->superblocks = model->control->superblock_count;
  compact->types = types;
  compact->n_first = compact->n_last = n;
  compact->heap = model->control->heap;
  for (mam__u32 i = 0; i < types; i++) {
    mam__u32 pointers = model->control->types[i].pointer_count;
    compact->kinds[i] = model->control->types[i].kind;
    compact->types_with_pointers |= (mam__u32)(pointers != 0) << i;
    if (compact->pointers_most < pointers)
      compact->pointers_most = pointers;
  }
  for (mam__u32 i = 0; i < compact->superblocks; i++) {
    compact->tiles += (model->control->superblocks[i].page_count + MAM_COMPACT_TILE - 1) / MAM_COMPACT_TILE;
    compact->first[i + 1] = compact->tiles * MAM_COMPACT_TILE;
  }
  size_t pages = (size_t)compact->tiles * MAM_COMPACT_TILE;
  compact->state = (struct mam_compact_state *)calloc(1, sizeof *compact->state);
  compact->candidates = (mam__u16 *)calloc(pages / MAM_COMPACT_GROUP, sizeof *compact->candidates);
  compact->with_pointers = (mam__u8 *)calloc(pages / MAM_COMPACT_GROUP, sizeof *compact->with_pointers);
  compact->sums = (mam__u32 *)calloc((size_t)types * compact->tiles, sizeof *compact->sums);
  compact->found = (struct mam_tile_found *)calloc(compact->tiles, sizeof *compact->found);
  compact->order = (mam__u32 *)calloc(pages, sizeof *compact->order);
  compact->spans = (mam__u32 *)calloc(pages, sizeof *compact->spans);
  for (mam__u32 type = 0; type < types; type++)
    for (mam__u32 i = 0; i < compact->control->heap.slot_count; i++) {
      struct mam_slot_emptied emptied = mam_compact_slot_empty(compact, type, i);
      mam_slot_emptied_end(&emptied);
    }
  return compact;
}

/* Finds and counts the candidates.  with_spans: also the spans with pointers, and empty spans are marked. */
static inline void compact_model_look(struct mam_compact *compact, mam__u32 n, bool with_spans) {
  for (mam__u32 tile = 0; tile < compact->tiles; tile++)
    mam_tile_look(compact_model_team, compact, n, tile, with_spans);
  mam_compact_sum(compact_model_team, compact);
  mam_compact_found_sum(compact_model_team, compact);
}

/* One pass.  Returns how many sources were merged. */
static inline mam__u64 compact_model_pass(struct mam_compact *compact, mam__u32 n, bool with_spans) {
  static struct mam_merge_room room;
  struct mam_compact_done *done = &compact->state->done;
  mam__u64 before = done->merges;
  compact_model_look(compact, n, with_spans);
  for (mam__u32 tile = 0; tile < compact->tiles; tile++)
    mam_tile_order(compact_model_team, compact, tile);
  for (mam__u32 number = 0; mam_compact_merge(compact_model_team, compact, &room, n, number, done); number++)
    continue;
  return done->merges - before;
}

/* All passes, with n from n_first up to n_last.  Returns how many passes merged something. */
static inline unsigned compact_model_passes(struct mam_compact *compact) {
  unsigned passes = 0;
  mam__u32 n = compact->n_first;
  for (bool first = true; n != 0; first = false) {
    mam__u64 merges = compact_model_pass(compact, n, first);
    passes += merges != 0;
    n = mam_next_n(n, compact->n_last, merges, compact->state->found.spans);
  }
  return passes;
}

/* Rewrites the pointers in all spans that were not moved. */
static inline void compact_model_rewrite(const struct mam_compact *compact) {
  struct mam_shape shapes[MAM_HEAP_TYPES + 1] = {{0, 0, 0}};
  struct mam_rewriting rewriting = mam_rewriting_of(compact, shapes, 2);
  for (mam__u32 type = 0; type < compact->types; type++)
    shapes[type + 1] = mam_shape_of(compact->control->types[type].kind);
  compact->state->left_count = 0;
  for (mam__u32 tile = 0; tile < compact->tiles; tile++)
    mam_tile_left(compact_model_team, compact, tile);
  for (mam__u32 span = 0; span < compact->state->left_count; span++) {
    struct mam_span_left left = mam_span_left_at(compact, compact->control->types, span);
    for (mam__u32 i = 0; i < 32 * mam_span_parts(compact); i++) {
      struct mam_pointers pointers;
      mam_pointers_read(&pointers, &left, i / 32, i % 32);
      mam_pointers_rewrite(&pointers, &rewriting);
    }
  }
}

/* Lists the objects of a type, room of them at most.  Returns how many there are. */
static inline mam__u32 compact_model_list(struct mam_compact *compact, mam__u32 type, mam__u64 *objects,
                                          mam__u64 room) {
  compact->object_type = type;
  compact->objects = objects;
  compact->object_room = room;
  for (mam__u32 tile = 0; tile < compact->tiles; tile++)
    mam_tile_list(compact_model_team, compact, tile);
  for (mam__u32 span = 0; span < compact->state->span_count; span++)
    mam_span_list(compact_model_team, compact, span);
  return compact->state->object_count;
}

/* Ends a compaction: gives the pages of moved spans back, and the memory that it worked in. */
static inline void compact_model_close(struct mam_compact *compact) {
  for (mam__u32 i = 0; i < compact->superblocks; i++)
    for (mam__u32 j = 0; j < mam__area_map_words(compact->control->superblocks[i]); j++)
      mam_moved_release(compact->control->superblocks[i], j, mam__lanes_alone());
  free(compact->state);
  free(compact->candidates);
  free(compact->with_pointers);
  free(compact->found);
  free(compact->sums);
  free(compact->order);
  free(compact->spans);
  free(compact);
}

#endif
