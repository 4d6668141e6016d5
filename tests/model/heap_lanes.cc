/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam_malloc and mam_free of mam/device.cuh by the lanes of a few warps on the host, for heap_lanes_test.sh.
 *
 * Each lane is a coroutine.  Which one goes on is drawn after each atomic operation.  At an __activemask() a lane waits
 * until some of those that are there, drawn as well, are let go as the lanes that are together.  A collective ends when
 * all lanes of its mask have come to it.  So lanes part and meet in ways that a GPU may choose.  It is a fault if a
 * lane waits for one that does not come, names itself in no mask, or reads a lane outside of it.
 *
 * Each lane allocates and frees blocks in heaps that it draws for each call; a heap may be none, a handle whose bytes
 * are 0.  Some blocks are objects of a type, which may be one of another heap: then there is none.  Every block has to
 * lie in its heap and in nobody else's block.  In the end nothing may be left, and no slot may wait for a refill.
 *
 * usage: heap_lanes RUNS [SEED]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void lane_step();
static void lane_rest();
static uint32_t draw(uint32_t bound);
static uint32_t lane_gather(int site);
static const uint64_t *lane_meet(int site, uint32_t mask, uint64_t value);
static void lane_sync(int site, const char *function, uint32_t mask);
static uint32_t lane_match(int site, uint32_t mask, uint64_t value);
static uint64_t lane_shuffle(int site, uint32_t mask, uint64_t value, unsigned from);
static uint32_t lane_ballot(int site, uint32_t mask, bool value);

#define MAM__ATOMICS_STEP() lane_step()
#define MAM__ATOMICS_SEEN(value) (value)
#define MAM__ATOMICS_PAUSE() lane_rest()
#define MAM__ATOMICS_SALT() draw(1u << 24)
#define MAM__ATOMICS_LANES
static uint32_t mam__lane_number();
static uint32_t mam__lane_self();
static uint32_t mam__lane_below();
static int mam__is_first(uint32_t group);
static uint32_t mam__multiprocessor();
static uint32_t mam__warp_number();

#define __activemask() lane_gather(__LINE__)
#define __syncwarp(mask) lane_sync(__LINE__, __func__, mask)
#define __match_any_sync(mask, value) lane_match(__LINE__, mask, (uint64_t)(value))
#define __shfl_sync(mask, value, from) lane_shuffle(__LINE__, mask, (uint64_t)(value), (unsigned)(from))
#define __ballot_sync(mask, value) lane_ballot(__LINE__, mask, value)
#define __all_sync(mask, value) (lane_ballot(__LINE__, mask, value) == (mask))
#define __device__
#define __forceinline__ inline

#define MAM_HEAP_CHECKED 0
#define COROUTINES 64
#define COROUTINE_STACK_BYTES (64 * 1024)
#include "mam/detail/device_free.cuh"
#include "mam/detail/device_malloc.cuh"
#include "support/coroutine.h"
#include "support/heap_model.h"

/* ---- Lanes and warps --------------------------------------------------------------------------------------------- */

enum { WARPS = 3, LANES = 6, COUNT = WARPS * LANES, MULTIPROCESSORS = 2 };

enum lane_state { GOES_ON, IS_AT_A_GATHERING, IS_AT_A_COLLECTIVE };

struct lane {
  lane_state state;
  bool alone;    /* it makes the collectives of an exchange without the other lanes, until the vote */
  int site;      /* the line at which it waits */
  uint32_t mask; /* of its collective, or of the lanes that it gathered with */
  uint64_t value, values[LANES];
};

static lane lanes[COUNT];
static uint64_t state;
static const char *what;
static unsigned run;

static uint32_t draw(uint32_t bound) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)((state >> 32) * bound >> 32);
}

[[noreturn]] static void fault(const char *text) {
  printf("%s, run %u: %s\n", what, run, text);
  for (int i = 0; i < COUNT; i++)
    if (coroutine_lives[i])
      printf("  warp %d, lane %d: state %d, line %d, mask %#x\n", i / LANES, i % LANES, (int)lanes[i].state,
             lanes[i].site, lanes[i].mask);
  (void)fflush(stdout);
  _Exit(EXIT_FAILURE);
}

static bool is_a_lane() { return coroutine_running >= 0; }
static int warp_first() { return coroutine_running / LANES * LANES; }
static uint32_t mam__lane_number() { return (uint32_t)(coroutine_running % LANES); }
static uint32_t mam__lane_self() { return is_a_lane() ? 1u << mam__lane_number() : 1; }
static uint32_t mam__lane_below() { return mam__lane_self() - 1; }
static int mam__is_first(uint32_t group) { return (group & mam__lane_below()) == 0; }
static uint32_t mam__multiprocessor() { return (uint32_t)(coroutine_running / LANES % MULTIPROCESSORS); }
static uint32_t mam__warp_number() { return (uint32_t)(coroutine_running / LANES); }

static void lane_rest() {
  if (is_a_lane())
    coroutine_yield();
}
static void lane_step() {
  if (is_a_lane() && draw(2) == 0)
    coroutine_yield();
}

static void lane_wait(lane_state for_what) {
  lane &self = lanes[coroutine_running];
  self.state = for_what;
  while (lanes[coroutine_running].state != GOES_ON)
    coroutine_yield();
}

static uint32_t lane_gather(int site) {
  lanes[coroutine_running].site = site;
  lane_wait(IS_AT_A_GATHERING);
  return lanes[coroutine_running].mask;
}

/* Whether all lanes of a mask are at the same collective. */
static bool all_met(int site, uint32_t mask) {
  for (int i = 0; i < LANES; i++) {
    const lane &other = lanes[warp_first() + i];
    if ((mask >> i & 1) != 0 && (other.state != IS_AT_A_COLLECTIVE || other.site != site || other.mask != mask))
      return false;
  }
  return true;
}

static const uint64_t *lane_meet(int site, uint32_t mask, uint64_t value) {
  lane &self = lanes[coroutine_running];
  if ((mask & mam__lane_self()) == 0 || mask >> LANES != 0)
    fault("a collective without the lane that makes it, or with lanes that there are not");
  self.site = site;
  self.mask = mask;
  self.value = value;
  self.state = IS_AT_A_COLLECTIVE;
  if (all_met(site, mask)) {
    uint64_t values[LANES];
    for (int i = 0; i < LANES; i++)
      values[i] = lanes[warp_first() + i].value;
    for (int i = 0; i < LANES; i++)
      if ((mask >> i & 1) != 0) {
        memcpy(lanes[warp_first() + i].values, values, sizeof values);
        lanes[warp_first() + i].state = GOES_ON;
      }
  } else
    lane_wait(IS_AT_A_COLLECTIVE);
  return lanes[coroutine_running].values;
}

/* In mam__mask_one_u64 a lane may make the collectives although others of its mask are missing, as it may on a GPU
 * beside lanes of another set (atomics.h).  Then the shuffle brings nothing, and the vote says that it is alone. */
static void lane_sync(int site, const char *function, uint32_t mask) {
  lane &self = lanes[coroutine_running];
  self.alone = strcmp(function, "mam__mask_one_u64") == 0 && mask != mam__lane_self() && draw(4) == 0;
  if (!self.alone)
    (void)lane_meet(site, mask, 0);
}

static uint32_t lane_match(int site, uint32_t mask, uint64_t value) {
  const uint64_t *values = lane_meet(site, mask, value);
  uint32_t alike = 0;
  for (int i = 0; i < LANES; i++)
    alike |= (uint32_t)((mask >> i & 1) != 0 && values[i] == value) << i;
  return alike;
}

static uint64_t lane_shuffle(int site, uint32_t mask, uint64_t value, unsigned from) {
  if (from >= LANES || (mask >> from & 1) == 0)
    fault("a shuffle from a lane that is not in its mask");
  if (lanes[coroutine_running].alone)
    return draw(2) == 0 ? 0 : UINT64_C(0x0123456789ABCDEF);
  return lane_meet(site, mask, value)[from];
}

static uint32_t lane_ballot(int site, uint32_t mask, bool value) {
  if (lanes[coroutine_running].alone) {
    lanes[coroutine_running].alone = false;
    return mam__lane_self();
  }
  const uint64_t *values = lane_meet(site, mask, value);
  uint32_t set = 0;
  for (int i = 0; i < LANES; i++)
    set |= (uint32_t)((mask >> i & 1) != 0 && values[i] != 0) << i;
  return set;
}

/* Lets a lane go that waits at a gathering, with some of its warp that are at the same place.  Whether there was one.
 */
static bool gathering_end() {
  int first = (int)draw(COUNT), chosen = -1;
  for (int i = 0; i < COUNT && chosen < 0; i++)
    if (coroutine_lives[(first + i) % COUNT] && lanes[(first + i) % COUNT].state == IS_AT_A_GATHERING)
      chosen = (first + i) % COUNT;
  if (chosen < 0)
    return false;
  int begin = chosen / LANES * LANES;
  uint32_t mask = 0;
  for (int i = begin; i < begin + LANES; i++)
    if (coroutine_lives[i] && lanes[i].state == IS_AT_A_GATHERING && lanes[i].site == lanes[chosen].site &&
        (i == chosen || draw(4) != 0))
      mask |= 1u << (i - begin);
  for (int i = begin; i < begin + LANES; i++)
    if ((mask >> (i - begin) & 1) != 0) {
      lanes[i].mask = mask;
      lanes[i].state = GOES_ON;
    }
  return true;
}

/* Runs all lanes to their ends. */
static void lanes_run() {
  for (;;) {
    int first = (int)draw(COUNT), chosen = -1, alive = 0;
    for (int i = 0; i < COUNT; i++) {
      int which = (first + i) % COUNT;
      alive += coroutine_lives[which];
      if (chosen < 0 && coroutine_lives[which] && lanes[which].state == GOES_ON)
        chosen = which;
    }
    if (alive == 0)
      return;
    if ((chosen < 0 || draw(4) == 0) && gathering_end())
      continue;
    if (chosen < 0)
      fault("lanes wait for others that do not come");
    coroutine_resume(chosen);
  }
}

/* ---- What the lanes do ------------------------------------------------------------------------------------------- */

/* A kind of run.  none: some calls are with the handle of no heap. */
struct kind_of_run {
  const char *name;
  size_t bytes;
  bool lazy, none;
  unsigned heaps;
  uint32_t low, high;
};
static const kind_of_run kinds[] = {
    {"one size", 1 << 20, false, false, 1, 64, 64},
    {"one size in a lazy heap", 1 << 20, true, false, 1, 64, 64},
    {"sizes", 1 << 20, false, false, 1, 16, 400},
    {"sizes and no heap", 1 << 20, false, true, 1, 16, 200},
    {"two heaps", 1 << 20, false, false, 2, 16, 100},
    {"two lazy heaps and none", 1 << 20, true, true, 2, 16, 100},
    {"large chunks", 1 << 20, false, false, 1, 2000, 9000},
    {"large chunks in two heaps", 1 << 20, false, true, 2, 3000, 6000},
    {"a small heap", 1 << 18, false, false, 1, 16, 8000},
    {"two small heaps", 1 << 18, false, true, 2, 16, 8000},
    {"two small heaps, few sizes", 1 << 18, false, false, 2, 1500, 2000},
};

enum { HEAPS = 2, ROUNDS = 30, HELD = 8 };

static const kind_of_run *kind;
static heap_model *models[HEAPS];
static mam_device_heap handles[HEAPS];
static unsigned char *owned[HEAPS]; /* a byte for each 16 bytes of the heap's pages */
static unsigned long served, refused;

/* A heap's first type has this size. */
static const mam__u32 type_bytes[HEAPS] = {48, 240};
static mam_type types[HEAPS];

struct held_block {
  void *block;
  uint32_t bytes;
  unsigned heap;
};

/* Marks a block as owned, or as free. */
static void block_mark(const held_block &held, unsigned char as) {
  uint64_t offset = (uint64_t)(uintptr_t)held.block - handles[held.heap].base;
  uint64_t all = (uint64_t)handles[held.heap].page_count * MAM__PAGE_BYTES;
  if (offset % 16 != 0 || offset >= all || held.bytes > all - offset)
    fault("a pointer that is not in its heap");
  for (uint64_t i = offset / 16; i < (offset + held.bytes + 15) / 16; i++) {
    if (owned[held.heap][i] == as)
      fault("a block of two owners, or of none");
    owned[held.heap][i] = as;
  }
}

static void block_free(const held_block &held) {
  block_mark(held, 0);
  mam_free(handles[held.heap], held.block);
}

static void lane_body(int) {
  held_block held[HELD];
  unsigned count = 0;
  for (unsigned round = 0; round < ROUNDS; round++) {
    if (draw(5) == 0)
      continue;
    bool none = kind->none && draw(6) == 0;
    held_block fresh = {nullptr, kind->low + draw(kind->high - kind->low + 1), draw(kind->heaps)};
    const mam_device_heap handle = none ? mam_device_heap() : handles[fresh.heap];
    unsigned type = draw(kind->heaps);
    if (draw(4) == 0) {
      unsigned wrong = draw(4) == 0 ? 1 + draw(0xffff) : 0; /* changes size, number or unused bits of the type */
      fresh.bytes = type_bytes[type];
      fresh.block = mam_malloc_typed(handle, types[type] ^ wrong);
      none |= type != fresh.heap || wrong != 0;
    } else
      fresh.block = mam_malloc(handle, fresh.bytes);
    if (none && fresh.block != nullptr)
      fault("the handle of no heap, or what is no type of the heap, gets a block");
    if (!none)
      (fresh.block != nullptr ? served : refused)++;
    if (fresh.block != nullptr) {
      block_mark(fresh, 1);
      held[count++] = fresh;
    }
    while (count == HELD || (count != 0 && draw(3) == 0)) {
      unsigned which = draw(count);
      block_free(held[which]);
      held[which] = held[--count];
    }
    if (draw(60) == 0)
      break;
  }
  while (count != 0)
    block_free(held[--count]);
}

/* A heap that all lanes have left: each slot has its chunks, and nothing is used. */
static void heap_end(unsigned heap, mam__u32 pages_before) {
  mam__heap_control *control = models[heap]->control;
  for (mam__u32 i = 0; i < control->heap.slot_count * MAM__HEAP_KINDS; i++) {
    mam__u32 number = mam__kind_numbered(control, i / control->heap.slot_count);
    if (number != MAM__NO_KIND &&
        (*mam__slot_at(control, i) & MAM__SLOT_TICKETS) > mam__slot_limit(&control->heap, number))
      fault("a slot whose refill no lane has made");
  }
  mam__slots_drain(control, 0, 1);
  const mam__area &area = control->superblocks[0];
  for (mam__u32 page = 0; page < area.page_count; page++) {
    const mam__u64 *words = &area.words[page * MAM__PAGE_WORDS];
    for (mam__u32 i = 0; i < mam__word_span_words(words[0]); i++)
      if (!mam__word_is_run(words[0]) && mam__word_used(words[i]) != 0)
        fault("a chunk that no lane has");
  }
  if (!kind->lazy && heap_model_free_pages(models[heap]) != pages_before)
    fault("pages that did not come back");
  if (control->refused_free != 0)
    fault("a free that was refused");
}

static void once() {
  mam__u32 pages[HEAPS];
  for (unsigned i = 0; i < kind->heaps; i++) {
    models[i] = heap_model_create(kind->bytes, MULTIPROCESSORS);
    if (kind->lazy)
      heap_model_make_lazy(models[i]);
    models[i]->control->heap.number = (mam__u16)(i + 1);
    handles[i] = models[i]->control->heap;
    types[i] = mam__type_of(heap_model_type(models[i], 1, type_bytes[i]), handles[i].number);
    owned[i] = static_cast<unsigned char *>(calloc((size_t)handles[i].page_count * MAM__PAGE_BYTES / 16, 1));
    pages[i] = heap_model_free_pages(models[i]);
  }
  memset(lanes, 0, sizeof lanes);
  for (int i = 0; i < COUNT; i++)
    coroutine_create(i, lane_body);
  lanes_run();
  for (unsigned i = 0; i < kind->heaps; i++) {
    heap_end(i, pages[i]);
    free(owned[i]);
    heap_model_destroy(models[i]);
  }
}

int main(int count, char **arguments) {
  unsigned runs = count > 1 ? (unsigned)atoi(arguments[1]) : 100;
  uint64_t seed = count > 2 ? (uint64_t)atoll(arguments[2]) : 1;
  if (!COROUTINES_WORK)
    return 77;
  for (const kind_of_run &each : kinds) {
    kind = &each;
    what = each.name;
    served = refused = 0;
    for (run = 0; run < runs; run++) {
      state = seed * 0x9e3779b97f4a7c15ull + run;
      (void)draw(1);
      once();
    }
    printf("%s: %lu blocks, %lu refusals\n", each.name, served, refused);
    if (served == 0)
      fault("no lane has got a block");
  }
  return 0;
}
