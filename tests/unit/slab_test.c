/* SPDX-License-Identifier: BSD-2-Clause */
/* Size classes, slabs, depots and the page map, in a pool at imaginary addresses. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "front/claim.h"
#include "front/lane.h"
#include "front/slab.h"
#include "support/imaginary_source.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

enum { POOL_MIB = 64, CELLS = POOL_MIB * 2048, CELL_BYTES = 512, BATCHES = 4096 };

/* ---- Classes ---- */

START_TEST(classes_fit_and_lose_little) {
  unsigned last = 0;
  for (size_t bytes = 1; bytes <= 32768; bytes++) {
    unsigned class = slab_class(bytes);
    size_t block = slab_class_bytes(class), lost = block - bytes;
    ck_assert_uint_lt(class, SLAB_CLASSES);
    ck_assert_uint_ge(block, bytes);
    ck_assert(lost <= 511 || lost * 8 <= block);
    ck_assert_uint_eq(block % 512, 0);
    ck_assert_uint_ge(class, last);
    last = class;
    if (class > 0) /* no smaller class is large enough */
      ck_assert_uint_lt(slab_class_bytes(class - 1), bytes);
  }
  ck_assert_uint_eq(last, SLAB_CLASSES - 1);
  ck_assert_uint_eq(slab_class_bytes(last), 32768);
}
END_TEST

START_TEST(codes_tell_what_was_asked_for_within_a_128th) {
  for (size_t bytes = 1; bytes <= 32768; bytes++) {
    unsigned class = slab_class(bytes);
    size_t block = slab_class_bytes(class), spacing = block - (class > 0 ? slab_class_bytes(class - 1) : 0);
    uint8_t code = slab_code(bytes, class);
    size_t told = block - ((size_t)(code - 1) << slab_code_shift(class));
    ck_assert_uint_ge(code, 1);
    ck_assert_uint_le(code, 128); /* the code did not overflow */
    ck_assert_uint_ge(told, bytes);
    ck_assert_uint_lt((told - bytes) * 128, spacing);
  }
}
END_TEST

/* ---- A pool with nothing in front ---- */

static struct mam_pool *pool;
static struct depot depot;
static pthread_mutex_t depot_lock = PTHREAD_MUTEX_INITIALIZER;
static struct batch *batches[BATCHES];
static unsigned char taken[CELLS];

static void set_up_with(MAM_Reuse reuse) {
  const struct pool_config config = {
      .reuse = reuse, .alignment = POOL_ALIGNMENT_BYTES, .chunk_bytes = POOL_MIB * MIB, .front = NULL};
  imaginary_reset();
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &pool), cudaSuccess);
  depot_init(&depot, &depot_lock);
  memset(taken, 0, sizeof taken);
}

static void set_up(void) { set_up_with(MAM_REUSE_FENCED); }

static void tear_down(void) {
  slab_forget(&depot);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}

static size_t reclaim(void) {
  unsigned most = UINT_MAX;
  return slab_reclaim(pool, &depot, &most);
}

static MAM_PoolInfo info_now(void) {
  MAM_PoolInfo info;
  ck_assert_int_eq(pool_info(pool, POOL_ANY_ID, &info), cudaSuccess);
  return info;
}

/* Marks a block's memory as taken or as given back.  It must have been the other before. */
static void mark(uintptr_t address, size_t bytes, unsigned char as) {
  size_t first = (address - IMAGINARY_FIRST_BASE) / CELL_BYTES;
  if (address % 512 != 0 || first + bytes / CELL_BYTES > CELLS ||
      address / SLAB_BYTES != (address + bytes - 1) / SLAB_BYTES)
    ck_abort_msg("a block at %#zx is not aligned, or not in one span of the pool", (size_t)address);
  for (size_t i = first; i < first + bytes / CELL_BYTES; i++) {
    if (taken[i] == as)
      ck_abort_msg("the memory at %#zx has two owners", (size_t)address);
    taken[i] = as;
  }
}

static void mark_batch(const struct batch *batch, size_t bytes, unsigned char as) {
  ck_assert_uint_gt(batch->count, 0);
  ck_assert_uint_le(batch->count, SLAB_BATCH);
  for (unsigned i = 0; i < batch->count; i++)
    mark(batch->blocks[i].address, bytes, as);
}

/* Takes batches until that many blocks are out, or there are no more.  Returns the number of batches. */
static unsigned take_blocks(unsigned class, size_t most, size_t *blocks) {
  unsigned count = 0;
  struct batch *batch;
  for (*blocks = 0; *blocks < most && (batch = slab_refill(pool, &depot, class)) != NULL; count++) {
    ck_assert_uint_lt(count, BATCHES);
    batches[count] = batch;
    mark_batch(batch, slab_class_bytes(class), 1);
    *blocks += batch->count;
  }
  return count;
}

static void rest_batches(unsigned class, unsigned first, unsigned count, bool at_once) {
  for (unsigned i = first; i < first + count; i++) {
    mark_batch(batches[i], slab_class_bytes(class), 0);
    batches[i]->epoch = at_once ? 0 : reuse_epoch(pool->reuse);
    slab_rest(pool, &depot, batches[i], no_stream);
  }
}

START_TEST(indices_agree_with_division) {
  size_t block = slab_class_bytes((unsigned)_i), blocks;
  (void)take_blocks((unsigned)_i, 1, &blocks);
  struct slab *slab = page_map_find(batches[0]->blocks[0].address);
  ck_assert_ptr_nonnull(slab);
  for (size_t offset = 0; offset < SLAB_BYTES; offset += 512) {
    bool is_block = offset % block == 0 && offset + block <= SLAB_BYTES;
    ck_assert_uint_eq(slab_index(slab, slab->base + offset), is_block ? offset / block : UINT32_MAX);
    ck_assert_uint_eq(slab_index(slab, slab->base + offset + 1), UINT32_MAX);
    ck_assert_uint_eq(slab_index(slab, slab->base + offset + 511), UINT32_MAX);
  }
  rest_batches((unsigned)_i, 0, 1, false);
}
END_TEST

START_TEST(the_whole_pool_is_handed_out_once_and_comes_back) {
  unsigned class = (unsigned)_i;
  size_t blocks;
  for (int round = 0; round < 2; round++) {
    unsigned count = take_blocks(class, SIZE_MAX, &blocks);
    ck_assert_uint_eq(blocks, POOL_MIB * MIB / SLAB_BYTES * (SLAB_BYTES / slab_class_bytes(class)));
    rest_batches(class, 0, count, false);
    while (reclaim() > 0)
      ;
    (void)reuse_synchronize(pool->reuse); /* after this, all batches that still rest may go */
    (void)reclaim();
    ck_assert_uint_eq(atomic_load(&depot.slab_count), 0);
    ck_assert_uint_eq(info_now().used_bytes, 0);
  }
  void *all;
  ck_assert_int_eq(pool_malloc(pool, POOL_ANY_ID, POOL_MIB * MIB, NULL, &all), cudaSuccess);
  ck_assert_int_eq(pool_free(all, NULL), cudaSuccess);
}
END_TEST

/* A thread frees a block that is free already.  It is held up between its look at the slab and its claim, while the
 * page is carved for every other class. */
START_TEST(late_claim_takes_no_block_of_another_class) {
  unsigned first = slab_class(1); /* the smallest blocks: no other class has more live bytes */
  struct batch *batch = slab_refill(pool, &depot, first);
  ck_assert_ptr_nonnull(batch);
  uintptr_t address = batch->blocks[7].address;
  const struct slab *looked_at = page_map_find(address);
  uint32_t index = slab_index(looked_at, address);
  _Atomic uint8_t *live = slab_live(looked_at, index);
  batch->epoch = 0;
  slab_rest(pool, &depot, batch, no_stream);
  ck_assert_uint_eq(reclaim(), SLAB_BYTES);
  for (unsigned class = 0; class < SLAB_CLASSES; class ++) {
    unsigned count = 0;
    while (class != first && count * SLAB_BATCH < SLAB_BYTES / slab_class_bytes(class)) {
      batches[count] = slab_refill(pool, &depot, class);
      for (unsigned i = 0; i < batches[count]->count; i++)
        atomic_store_explicit(batches[count]->blocks[i].live, 1, memory_order_relaxed);
      count++;
    }
    ck_assert(class == first || page_map_find(address)->base == looked_at->base);
    ck_assert_uint_eq(claim_live(false, live), 0);
    for (unsigned i = 0; i < count; i++) {
      for (unsigned j = 0; j < batches[i]->count; j++)
        ck_assert_uint_eq(claim_live(false, batches[i]->blocks[j].live), 1);
      batches[i]->epoch = 0;
      slab_rest(pool, &depot, batches[i], no_stream);
    }
    (void)reclaim();
    ck_assert_uint_eq(info_now().used_bytes, 0);
  }
  /* For the same class again, the page gets the same slab, and the address the same live byte. */
  batch = slab_refill(pool, &depot, first);
  ck_assert_ptr_eq(page_map_find(address), looked_at);
  ck_assert_uint_eq(slab_index(looked_at, address), index);
  slab_rest(pool, &depot, batch, no_stream);
}
END_TEST

START_TEST(a_span_stays_while_one_block_is_out) {
  size_t blocks;
  unsigned count = take_blocks(3, SIZE_MAX, &blocks);
  rest_batches(3, 1, count - 1, false);
  (void)reuse_synchronize(pool->reuse);
  (void)reclaim();
  ck_assert_uint_eq(atomic_load(&depot.slab_count), 1);
  rest_batches(3, 0, 1, false);
  (void)reuse_synchronize(pool->reuse);
  (void)reclaim();
  ck_assert_uint_eq(atomic_load(&depot.slab_count), 0);
}
END_TEST

START_TEST(what_rests_for_immediate_use_comes_first) {
  size_t blocks;
  unsigned count = take_blocks(0, 256, &blocks);
  ck_assert_uint_ge(count, 3);
  rest_batches(0, 0, 1, false);
  uintptr_t first = batches[1]->blocks[0].address;
  rest_batches(0, 1, 1, true);
  struct batch *batch = slab_refill(pool, &depot, 0);
  ck_assert_uint_eq(batch->blocks[0].address, first);
  batches[1] = batch;
  mark_batch(batch, 512, 1);
  rest_batches(0, 1, count - 1, true);
}
END_TEST

/* Another thread leaves blocks that any thread may take, while this thread maps memory for more. */
static void rest_in_the_middle(void) {
  imaginary.on_map = NULL;
  rest_batches(0, 0, 1, true);
}

START_TEST(a_span_that_nobody_needed_after_all_goes_back) {
  const struct pool_config config = {
      .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .limit_bytes = POOL_MIB * MIB, .front = NULL};
  size_t blocks;
  tear_down();
  imaginary_reset();
  imaginary.capacity_bytes = 1024 * MIB;
  ck_assert_int_eq(pool_open(&config, &imaginary_elastic, &pool), cudaSuccess);
  ck_assert_ptr_nonnull(batches[0] = slab_refill(pool, &depot, 0)); /* maps more than one span */
  mark_batch(batches[0], 512, 1);
  rest_batches(0, 0, 1, true);
  unsigned spans = (unsigned)(imaginary.taken_bytes / SLAB_BYTES);
  unsigned count = take_blocks(0, imaginary.taken_bytes / 512, &blocks);
  ck_assert_uint_eq(atomic_load(&depot.slab_count), spans);
  imaginary.on_map = rest_in_the_middle;
  ck_assert_ptr_nonnull(batches[0] = slab_refill(pool, &depot, 0));
  ck_assert_uint_eq(atomic_load(&depot.slab_count), spans + 1);
  mark_batch(batches[0], 512, 1);
  rest_batches(0, 0, count, true);
  (void)reclaim();
  ck_assert_uint_eq(atomic_load(&depot.slab_count), 0);
  ck_assert_uint_eq(info_now().used_bytes, 0);
}
END_TEST

START_TEST(random_traffic_never_overlaps) {
  uint64_t state = 88172645463325252u;
  unsigned count = 0;
  for (int i = 0; i < 20000; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    if (state % 16 == 0) {
      (void)reuse_synchronize(pool->reuse);
      (void)reclaim();
    } else if (count < 512 && state % 2 == 1) {
      if ((batches[count] = slab_refill(pool, &depot, 9)) != NULL)
        mark_batch(batches[count++], 5120, 1);
    } else if (count > 0) {
      unsigned which = (unsigned)(state >> 32) % count;
      rest_batches(9, which, 1, state % 4 == 0);
      batches[which] = batches[--count];
    }
  }
  rest_batches(9, 0, count, false);
  (void)reuse_synchronize(pool->reuse);
  (void)reclaim();
  ck_assert_uint_eq(info_now().used_bytes, 0);
}
END_TEST

/* ---- The map of pages ---- */

START_TEST(pages_are_found_at_the_edges_and_nowhere_else) {
  static struct slab slab;
  const uintptr_t page = (uintptr_t)1 << 19, leaf = page << 13, end = (uintptr_t)1 << 48;
  const uintptr_t bases[] = {0, page, leaf - page, leaf, 5 * leaf - page, end - page};
  for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
    ck_assert_ptr_null(page_map_find(bases[i]));
    ck_assert(page_map_set(bases[i], &slab));
    ck_assert_ptr_eq(page_map_find(bases[i]), &slab);
    ck_assert_ptr_eq(page_map_find(bases[i] + page - 1), &slab);
    ck_assert_ptr_null(page_map_find(bases[i] + page));
    ck_assert_ptr_null(page_map_find(bases[i] - 1));
    ck_assert(page_map_set(bases[i], NULL));
    ck_assert_ptr_null(page_map_find(bases[i]));
  }
  ck_assert(!page_map_set(end, &slab));
  ck_assert(!page_map_set(UINTPTR_MAX - page + 1, &slab));
  ck_assert_ptr_null(page_map_find(end));
  ck_assert_ptr_null(page_map_find(UINTPTR_MAX));
}
END_TEST

/* ---- Lanes ---- */

/* Each place of a lane has no batch, an empty one or a full one. */
static void lane_fill(struct lane *lane, struct batch two[2], int state) {
  for (int i = 0; i < 2; i++, state /= 3) {
    two[i].count = state % 3 == 2 ? SLAB_BATCH : 0;
    lane->batches.of_class[0][i] = state % 3 == 0 ? NULL : &two[i];
  }
}

START_TEST(a_lane_makes_room_and_keeps_what_fits) {
  static struct lane lane;
  static struct batch two[2], empty;
  lane_fill(&lane, two, _i);
  size_t before = lane_blocks(&lane, 0), most = SLAB_BATCH;
  if (lane_filling(&lane, 0)->count < SLAB_BATCH)
    return;
  struct batch *surplus = lane_load(&lane, 0, &empty);
  ck_assert_uint_lt(lane_filling(&lane, 0)->count, SLAB_BATCH);
  ck_assert_uint_eq(lane_blocks(&lane, 0), before < most ? before : most); /* a batch beside the empty one */
  ck_assert_uint_eq(surplus != NULL ? surplus->count : 0, before - lane_blocks(&lane, 0));
}
END_TEST

START_TEST(a_lane_without_blocks_takes_some) {
  static struct lane lane;
  static struct batch two[2], full = {.count = SLAB_BATCH};
  lane_fill(&lane, two, _i);
  if (lane_loaded(&lane, 0)->count > 0)
    return;
  struct batch *surplus = lane_load(&lane, 0, &full);
  ck_assert_ptr_eq(lane_loaded(&lane, 0), &full);
  ck_assert_uint_eq(surplus != NULL ? surplus->count : 0, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("slabs");
  TCase *numbers = tcase_create("numbers"), *slabs = tcase_create("slabs");
  tcase_add_test(numbers, classes_fit_and_lose_little);
  tcase_add_test(numbers, codes_tell_what_was_asked_for_within_a_128th);
  tcase_add_test(numbers, pages_are_found_at_the_edges_and_nowhere_else);
  tcase_add_loop_test(numbers, a_lane_makes_room_and_keeps_what_fits, 0, 9);
  tcase_add_loop_test(numbers, a_lane_without_blocks_takes_some, 0, 9);
  suite_add_tcase(suite, numbers);
  tcase_add_checked_fixture(slabs, set_up, tear_down);
  tcase_add_loop_test(slabs, indices_agree_with_division, 0, SLAB_CLASSES);
  tcase_add_loop_test(slabs, the_whole_pool_is_handed_out_once_and_comes_back, 0, SLAB_CLASSES);
  tcase_add_test(slabs, late_claim_takes_no_block_of_another_class);
  tcase_add_test(slabs, a_span_stays_while_one_block_is_out);
  tcase_add_test(slabs, what_rests_for_immediate_use_comes_first);
  tcase_add_test(slabs, a_span_that_nobody_needed_after_all_goes_back);
  tcase_add_test(slabs, random_traffic_never_overlaps);
  suite_add_tcase(suite, slabs);
  return run_suite(suite);
}
