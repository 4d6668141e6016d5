/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap for the tests of warp_core.h.  It knows every block that it has given out, and a test can tell it to
 * give none.  A call of a function here does what a lane does on a GPU.
 */
#ifndef MAM_TESTS_WARP_MODEL_H
#define MAM_TESTS_WARP_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mam/detail/warp_core.h>

enum { WARP_MODEL_BLOCKS = 1 << 14, WARP_MODEL_FREED = 0xDD };

struct warp_model_block {
  mam__u64 address, bytes; /* address 0: the place is not in use */
};

static struct {
  pthread_mutex_t lock;
  struct warp_model_block blocks[WARP_MODEL_BLOCKS];
  size_t count;       /* places that were ever in use */
  size_t live;        /* live blocks */
  size_t wrong_frees; /* frees of addresses that are no live block */
  size_t refuse_from; /* requests from this one on get nothing; 0: all get something */
  size_t requests;
  size_t tries;                /* requests that can do with less */
  bool refuse_tries;           /* these get nothing */
  void *(*take)(size_t bytes); /* where memory comes from and goes to */
  void (*give)(void *address, size_t bytes);
} warp_model = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void *warp_model_take(size_t bytes) {
  void *memory = bytes > (size_t)1 << 30 ? NULL : aligned_alloc(16, (bytes + 15) & ~(size_t)15);
  return memory == NULL ? NULL : memset(memory, 0xA5, bytes);
}

static inline void warp_model_give(void *address, size_t bytes) {
  memset(address, WARP_MODEL_FREED, bytes);
  free(address);
}

/* Begins anew: frees everything and forgets all requests. */
static inline void warp_model_begin(void) {
  for (size_t i = 0; i < warp_model.count; i++)
    if (warp_model.blocks[i].address != 0)
      free((void *)(uintptr_t)warp_model.blocks[i].address);
  memset(warp_model.blocks, 0, warp_model.count * sizeof warp_model.blocks[0]);
  warp_model.count = warp_model.live = warp_model.wrong_frees = warp_model.refuse_from = warp_model.requests = 0;
  warp_model.tries = 0;
  warp_model.refuse_tries = false;
  warp_model.take = warp_model_take;
  warp_model.give = warp_model_give;
}

static inline mam__u64 mam__warp_heap_malloc(struct mam__heap_control *control, mam__u64 bytes) {
  (void)control;
  mam__u64 address = 0;
  pthread_mutex_lock(&warp_model.lock);
  size_t place = 0;
  while (place < warp_model.count && warp_model.blocks[place].address != 0)
    place++;
  if (place == WARP_MODEL_BLOCKS)
    abort();
  warp_model.requests++;
  if (warp_model.refuse_from == 0 || warp_model.requests < warp_model.refuse_from)
    address = (mam__u64)(uintptr_t)warp_model.take((size_t)bytes);
  if (address != 0) {
    warp_model.blocks[place] = (struct warp_model_block){address, bytes};
    warp_model.count += place == warp_model.count;
    warp_model.live++;
  }
  pthread_mutex_unlock(&warp_model.lock);
  return address;
}

static inline mam__u64 mam__warp_heap_try(struct mam__heap_control *control, mam__u64 bytes) {
  pthread_mutex_lock(&warp_model.lock);
  warp_model.tries++;
  bool refuses = warp_model.refuse_tries;
  pthread_mutex_unlock(&warp_model.lock);
  return refuses ? 0 : mam__warp_heap_malloc(control, bytes);
}

static inline void mam__warp_heap_free(struct mam__heap_control *control, mam__u64 address) {
  (void)control;
  size_t place = 0;
  pthread_mutex_lock(&warp_model.lock);
  while (place < warp_model.count && warp_model.blocks[place].address != address)
    place++;
  if (address == 0 || place == warp_model.count)
    warp_model.wrong_frees++;
  else {
    warp_model.give((void *)(uintptr_t)address, (size_t)warp_model.blocks[place].bytes);
    warp_model.blocks[place].address = 0;
    warp_model.live--;
  }
  pthread_mutex_unlock(&warp_model.lock);
}

/* The live block in which all of these bytes lie.  NULL if there is none. */
static inline const struct warp_model_block *warp_model_around(mam__u64 address, mam__u64 bytes) {
  for (size_t i = 0; i < warp_model.count; i++) {
    const struct warp_model_block *block = &warp_model.blocks[i];
    if (block->address != 0 && address >= block->address && address + bytes <= block->address + block->bytes)
      return block;
  }
  return NULL;
}

/* Creates a header for these lanes.  NULL if the heap has no memory. */
static inline struct mam_warp *warp_model_start(mam_warp_options options, mam__u32 lanes) {
  mam_warp_options sound = mam__warp_options_sound(options);
  mam__u64 block = mam__warp_heap_malloc(NULL, sound.first_bytes);
  return block == 0 ? NULL : mam__warp_begin(NULL, block, sound, lanes, 0, 0);
}

/* Allocates as a lane that asks for itself.  NULL if it gets nothing. */
static inline void *warp_model_malloc(struct mam_warp *warp, unsigned lane, size_t bytes) {
  mam__u64 *list = mam__warp_list_of(warp, mam__load_relaxed_u64(&warp->lanes), 1u << lane);
  if (list == NULL || bytes == 0)
    return NULL;
  return (void *)(uintptr_t)mam__warp_serve(0, warp, list, mam__warp_blocks(warp, bytes));
}

/* Tidies up or ends, as a lane by itself. */
static inline void warp_model_leave(struct mam_warp *warp, unsigned lane, enum mam__warp_leaving how) {
  if (mam__warp_leave(warp, 1u << lane, how) == MAM__WARP_ROUND)
    mam__warp_round(warp, mam__lanes_alone());
}

static inline void warp_model_hand_over(struct mam_warp *warp, unsigned lane) {
  mam__store_relaxed_u32(&warp->handed_over, 1);
  warp_model_leave(warp, lane, MAM__WARP_ENDS);
}

#endif
