/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/magazine.h"

struct batch magazine_nothing = {.count = 0}, magazine_no_room = {.count = SLAB_BATCH};

void magazine_init(struct magazine *magazine) {
  *magazine =
      (struct magazine){.loaded = &magazine_nothing, .filling = &magazine_no_room, .resting_end = &magazine->resting};
}

struct batch *magazine_load(struct magazine *magazine, struct batch *batch) {
  struct batch *surplus = NULL;
  if (magazine->shells != NULL && batch_real(magazine->loaded))
    surplus = magazine->loaded;
  else
    shell_keep(magazine, magazine->loaded);
  magazine->loaded = batch;
  magazine->loaded_blocks += batch->count;
  return surplus;
}

/* ---- Emptying ---- */

/* Sends a batch to its depot, a stand-in nowhere. */
static void batch_return(struct mam_pool *pool, struct depot *depot, struct batch *batch, uint64_t epoch) {
  if (!batch_real(batch))
    return;
  batch->epoch = epoch;
  slab_rest(pool, depot, batch, no_stream);
}

void magazine_empty_passed(struct magazine *magazine, struct mam_pool *pool, struct depot *depot, uint64_t passed) {
  magazine->loaded_blocks = magazine_mallocs(magazine); /* less what is about to leave */
  batch_return(pool, depot, magazine->loaded, 0);
  magazine->loaded = &magazine_nothing;
  while (magazine->resting != NULL && magazine->resting->epoch <= passed) {
    struct batch *batch = resting_pull(magazine);
    batch_return(pool, depot, batch, batch->epoch);
  }
}

void magazine_empty_all(struct magazine *magazine, struct mam_pool *pool, struct depot *depot, uint64_t epoch) {
  magazine_empty_passed(magazine, pool, depot, UINT64_MAX);
  magazine->filled_blocks = magazine_frees(magazine); /* with what is about to leave */
  batch_return(pool, depot, magazine->filling, epoch);
  slab_batches_free(magazine->shells);
  magazine->filling = &magazine_no_room;
  magazine->shells = NULL;
}

/* ---- The end of a pool ---- */

void magazine_drop(struct magazine *magazine) {
  shell_keep(magazine, magazine->loaded);
  shell_keep(magazine, magazine->filling);
  slab_batches_free(magazine->resting);
  slab_batches_free(magazine->shells);
  magazine_init(magazine);
}
