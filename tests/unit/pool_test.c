/* SPDX-License-Identifier: BSD-2-Clause */
/* The pool over an imaginary source: chunks, growth, when freed memory comes back, refusals, reports. */
#include <check.h>
#include <execinfo.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/imaginary_source.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

static const struct pool_config fixed_8_mib = {
    .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .chunk_bytes = 8 << 20};

static struct mam_pool *pool;

static void check_pool(void) {
  pthread_mutex_lock(&pool->lock);
  const char *fault = pool_check_locked(pool);
  pthread_mutex_unlock(&pool->lock);
  ck_assert_msg(fault == NULL, "%s", fault);
}

static void open_pool(const struct pool_config *config) {
  ck_assert_int_eq(pool_open(config, &imaginary_source, &pool), cudaSuccess);
}

static cudaError_t try_malloc(size_t size, void **address) {
  cudaError_t error = pool_malloc(pool, POOL_ANY_ID, size, NULL, address);
  check_pool();
  return error;
}

static void *must_malloc(size_t size) {
  void *address = NULL;
  ck_assert_int_eq(try_malloc(size, &address), cudaSuccess);
  return address;
}

static cudaError_t try_free(void *address) {
  struct pool_emptied emptied;
  cudaError_t error = pool_free(address, &emptied);
  check_pool();
  return error;
}

static MAM_PoolInfo info_now(void) {
  MAM_PoolInfo info;
  ck_assert_int_eq(pool_info(pool, POOL_ANY_ID, &info), cudaSuccess);
  return info;
}

static void set_up(void) {
  imaginary_reset();
  pool = NULL;
}

/* However a test ends its pool, the source has got everything back. */
static void tear_down(void) {
  if (pool != NULL)
    ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}

/* ---- Chunks ---- */

START_TEST(chunk_is_rounded_up_to_the_granularity) {
  struct pool_config config = fixed_8_mib;
  config.chunk_bytes = 3 * MIB;
  open_pool(&config);
  ck_assert_uint_eq(imaginary.taken_bytes, 4 * MIB);
  ck_assert_uint_eq(info_now().reserved_bytes, 4 * MIB);
}
END_TEST

START_TEST(largest_chunk_leaves_the_headroom) {
  struct pool_config config = fixed_8_mib;
  imaginary.capacity_bytes = 1000 * MIB;
  config.chunk_bytes = 0, config.headroom_bytes = 100 * MIB;
  open_pool(&config);
  ck_assert_uint_eq(imaginary.taken_bytes, 900 * MIB);
}
END_TEST

START_TEST(largest_chunk_keeps_to_the_limit) {
  struct pool_config config = fixed_8_mib;
  config.chunk_bytes = 0, config.limit_bytes = 20 * MIB;
  open_pool(&config);
  ck_assert_uint_eq(imaginary.taken_bytes, 20 * MIB);
}
END_TEST

/* The paper's own search underflows here. */
START_TEST(largest_chunk_is_found_when_little_is_left) {
  struct pool_config config = fixed_8_mib;
  imaginary.capacity_bytes = 5 * MIB;
  config.chunk_bytes = 0, config.headroom_bytes = 256 * MIB;
  open_pool(&config);
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
}
END_TEST

START_TEST(no_chunk_at_all_is_out_of_memory) {
  struct pool_config config = fixed_8_mib;
  struct mam_pool *untouched = NULL;
  imaginary.capacity_bytes = 1 * MIB;
  config.chunk_bytes = 0;
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &untouched), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(untouched);
}
END_TEST

START_TEST(chunk_size_past_the_end_of_the_numbers_is_out_of_memory) {
  struct pool_config config = fixed_8_mib;
  struct mam_pool *untouched = NULL;
  config.chunk_bytes = SIZE_MAX;
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &untouched), cudaErrorMemoryAllocation);
}
END_TEST

START_TEST(blocks_keep_every_alignment) {
  static const size_t alignments[] = {16, 512, 4096, 2 << 20};
  struct pool_config config = fixed_8_mib;
  imaginary.gap_bytes = 512; /* so that later chunks begin at odd places */
  config.limit_bytes = 64 * MIB;
  config.alignment = alignments[_i];
  for (int round = 0; round < 3; round++) {
    open_pool(&config);
    for (int i = 0; i < 10; i++)
      ck_assert_uint_eq((uintptr_t)must_malloc(1 + (size_t)i * 700) % config.alignment, 0);
    ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  }
  pool = NULL;
}
END_TEST

/* ---- Malloc and free ---- */

START_TEST(size_is_rounded_up_to_the_alignment) {
  open_pool(&fixed_8_mib);
  char *first = must_malloc(1000), *second = must_malloc(1);
  ck_assert_int_eq(second - first, 1024);
  MAM_PoolInfo info = info_now();
  ck_assert_uint_eq(info.used_bytes, 1536);
  ck_assert_uint_eq(info.requested_bytes, 1001);
  ck_assert_uint_eq(info.used_count, 2);
}
END_TEST

START_TEST(huge_size_is_out_of_memory) {
  static const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2 + 1};
  void *address = &address;
  open_pool(&fixed_8_mib);
  ck_assert_int_eq(try_malloc(sizes[_i], &address), cudaErrorMemoryAllocation);
  ck_assert_ptr_eq(address, &address);
}
END_TEST

START_TEST(refused_malloc_changes_nothing_but_the_count_of_failures) {
  void *address;
  open_pool(&fixed_8_mib);
  must_malloc(5 * MIB);
  MAM_PoolInfo before = info_now();
  ck_assert_int_eq(try_malloc(4 * MIB, &address), cudaErrorMemoryAllocation);
  MAM_PoolInfo after = info_now();
  ck_assert_uint_eq(after.failure_count, before.failure_count + 1);
  after.failure_count = before.failure_count;
  ck_assert_mem_eq(&before, &after, sizeof before);
  ck_assert_ptr_nonnull(strstr(error_last(), "4194304 bytes"));
  must_malloc(3 * MIB);
}
END_TEST

/* The pool of an order may end, and its struct become another pool's.  The order gets nothing of the new pool. */
START_TEST(orders_for_a_pool_that_ended_are_refused) {
  struct pool_order order = {.default_id = POOL_ANY_ID, .size = 512, .effort = POOL_TAKE_ANY};
  struct pool_block block;
  open_pool(&fixed_8_mib);
  struct mam_pool *ended = pool;
  order.generation = pool->generation;
  ck_assert_int_eq(pool_take(pool, &order, &block), cudaSuccess);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  ck_assert_int_eq(pool_take(ended, &order, &block), cudaErrorInvalidResourceHandle);
  open_pool(&fixed_8_mib);
  ck_assert_ptr_eq(pool, ended);
  ck_assert_int_eq(pool_take(pool, &order, &block), cudaErrorInvalidResourceHandle);
  order.stream = (struct context_stream){.id = 1};
  ck_assert_int_eq(pool_take(pool, &order, &block), cudaErrorInvalidResourceHandle);
  ck_assert_uint_eq(info_now().malloc_count, 0);
  order.generation = pool->generation;
  ck_assert_int_eq(pool_take(pool, &order, &block), cudaSuccess);
  check_pool();
}
END_TEST

START_TEST(wrong_frees_are_refused_and_harm_nothing) {
  open_pool(&fixed_8_mib);
  char *block = must_malloc(4096), *neighbour = must_malloc(4096);
  MAM_PoolInfo before = info_now();
  int on_stack;
  ck_assert_int_eq(try_free(block + 512), cudaErrorInvalidValue);
  ck_assert_int_eq(try_free(block + 1), cudaErrorInvalidValue);
  ck_assert_int_eq(try_free(neighbour + 4096), cudaErrorInvalidValue); /* the hole behind begins there */
  ck_assert_int_eq(try_free(&on_stack), cudaErrorInvalidValue);
  ck_assert_int_eq(try_free((void *)UINTPTR_MAX), cudaErrorInvalidValue);
  MAM_PoolInfo after = info_now();
  ck_assert_mem_eq(&before, &after, sizeof before);
  ck_assert_int_eq(try_free(block), cudaSuccess);
  ck_assert_int_eq(try_free(block), cudaErrorInvalidValue);
  ck_assert_ptr_nonnull(strstr(error_last(), "freed already"));
  ck_assert_int_eq(try_free(neighbour), cudaSuccess);
}
END_TEST

/* ---- When freed memory comes back ---- */

START_TEST(freed_memory_waits_and_fresh_memory_is_used_instead) {
  open_pool(&fixed_8_mib);
  char *first = must_malloc(MIB);
  ck_assert_int_eq(try_free(first), cudaSuccess);
  ck_assert_ptr_eq(must_malloc(MIB), first + MIB);
  ck_assert_uint_eq(info_now().waiting_bytes, MIB);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
}
END_TEST

START_TEST(malloc_synchronises_only_where_it_would_fail) {
  open_pool(&fixed_8_mib);
  char *first = must_malloc(3 * MIB), *rest = must_malloc(5 * MIB);
  ck_assert_int_eq(try_free(first), cudaSuccess);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
  ck_assert_ptr_eq(must_malloc(2 * MIB), first);
  ck_assert_uint_eq(imaginary.synchronizes, 1);
  ck_assert_uint_eq(info_now().synchronize_count, 1);
  ck_assert_int_eq(try_free(rest), cudaSuccess);
}
END_TEST

START_TEST(malloc_of_more_than_a_wait_can_free_is_refused_without_one) {
  void *address;
  open_pool(&fixed_8_mib);
  must_malloc(6 * MIB);
  ck_assert_int_eq(try_free(must_malloc(MIB)), cudaSuccess);
  ck_assert_int_eq(try_malloc(3 * MIB, &address), cudaErrorMemoryAllocation);
  ck_assert_int_eq(try_malloc((size_t)1 << 50, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
}
END_TEST

/* While other threads free blocks again and again, an allocation that cannot be served gives up. */
static unsigned frees_left;
static void free_another_in_the_middle(void) {
  struct pool_emptied emptied;
  void *address;
  if (frees_left-- == 0)
    ck_abort_msg("the allocation waits again and again");
  if (pool_malloc(pool, POOL_ANY_ID, 512, NULL, &address) == cudaSuccess)
    ck_assert_int_eq(pool_free(address, &emptied), cudaSuccess);
}

START_TEST(malloc_that_cannot_be_served_gives_up_while_others_free) {
  void *address;
  open_pool(&fixed_8_mib);
  char *holes[3] = {must_malloc(MIB), must_malloc(MIB), must_malloc(MIB)};
  must_malloc(4 * MIB);
  ck_assert_int_eq(try_free(holes[0]), cudaSuccess);
  ck_assert_int_eq(try_free(holes[2]), cudaSuccess);
  frees_left = 20;
  imaginary.on_synchronize = free_another_in_the_middle;
  ck_assert_int_eq(try_malloc(2 * MIB, &address), cudaErrorMemoryAllocation); /* the holes do not touch */
  ck_assert_uint_le(imaginary.synchronizes, 20);
  imaginary.on_synchronize = NULL;
}
END_TEST

START_TEST(free_synchronises_when_more_than_half_waits) {
  open_pool(&fixed_8_mib);
  char *first = must_malloc(4 * MIB), *second = must_malloc(512);
  ck_assert_int_eq(try_free(first), cudaSuccess);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
  ck_assert_int_eq(try_free(second), cudaSuccess);
  ck_assert_uint_eq(imaginary.synchronizes, 1);
  ck_assert_uint_eq(info_now().waiting_bytes, 0);
  ck_assert_uint_eq(info_now().largest_free_bytes, 8 * MIB);
}
END_TEST

START_TEST(waiting_limit_can_be_chosen) {
  struct pool_config config = fixed_8_mib;
  config.waiting_limit_bytes = 1024;
  open_pool(&config);
  char *blocks[3] = {must_malloc(512), must_malloc(512), must_malloc(512)};
  ck_assert_int_eq(try_free(blocks[0]), cudaSuccess);
  ck_assert_int_eq(try_free(blocks[1]), cudaSuccess);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
  ck_assert_int_eq(try_free(blocks[2]), cudaSuccess);
  ck_assert_uint_eq(imaginary.synchronizes, 1);
}
END_TEST

START_TEST(immediate_reuse_never_waits) {
  struct pool_config config = fixed_8_mib;
  config.reuse = MAM_REUSE_IMMEDIATE;
  open_pool(&config);
  char *block = must_malloc(8 * MIB);
  for (int i = 0; i < 100; i++) {
    ck_assert_int_eq(try_free(block), cudaSuccess);
    ck_assert_ptr_eq(must_malloc(8 * MIB), block);
  }
  ck_assert_uint_eq(imaginary.synchronizes, 0);
}
END_TEST

START_TEST(error_met_while_waiting_comes_through_and_nothing_is_lost) {
  void *address;
  open_pool(&fixed_8_mib);
  char *block = must_malloc(8 * MIB);
  imaginary.synchronize_error = (cudaError_t)700;
  ck_assert_int_eq(try_free(block), 700); /* the block is freed; then the wait fails */
  ck_assert_int_eq(try_free(block), cudaErrorInvalidValue);
  ck_assert_int_eq(try_malloc(MIB, &address), 700);
  ck_assert_uint_eq(info_now().waiting_bytes, 8 * MIB);
  imaginary.synchronize_error = cudaSuccess;
  ck_assert_ptr_eq(must_malloc(8 * MIB), block);
}
END_TEST

/* A wait covers the work that was submitted before it began.  What is freed during the wait needs another one. */
static char *freed_meanwhile;
static void free_in_the_middle(void) {
  struct pool_emptied emptied;
  imaginary.on_synchronize = NULL;
  ck_assert_int_eq(pool_free(freed_meanwhile, &emptied), cudaSuccess);
}

START_TEST(block_freed_during_a_wait_needs_the_next_one) {
  open_pool(&fixed_8_mib);
  char *early = must_malloc(MIB);
  freed_meanwhile = must_malloc(MIB);
  must_malloc(6 * MIB);
  ck_assert_int_eq(try_free(early), cudaSuccess);
  imaginary.on_synchronize = free_in_the_middle;
  ck_assert_ptr_eq(must_malloc(MIB), early);
  ck_assert_uint_eq(imaginary.synchronizes, 1);
  ck_assert_uint_eq(info_now().waiting_bytes, MIB);
  ck_assert_ptr_eq(must_malloc(MIB), freed_meanwhile);
  ck_assert_uint_eq(imaginary.synchronizes, 2);
}
END_TEST

/* ---- Growth ---- */

static const struct pool_config growing = {
    .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .chunk_bytes = 4 << 20, .limit_bytes = 16 << 20};

START_TEST(pool_grows_by_chunks_up_to_its_limit) {
  void *address;
  open_pool(&growing);
  for (size_t chunks = 1; chunks <= 4; chunks++) {
    must_malloc(4 * MIB);
    ck_assert_uint_eq(info_now().chunk_count, chunks);
  }
  ck_assert_int_eq(try_malloc(512, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(imaginary.taken_bytes, 16 * MIB);
}
END_TEST

START_TEST(large_request_gets_a_chunk_of_its_size) {
  open_pool(&growing);
  must_malloc(9 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 14 * MIB);
}
END_TEST

START_TEST(growth_takes_what_it_needs_where_the_source_has_no_more) {
  imaginary.capacity_bytes = 7 * MIB;
  open_pool(&growing);
  must_malloc(4 * MIB);
  must_malloc(MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 6 * MIB);
}
END_TEST

/* The first chunk is as it was asked for. */
static const struct {
  size_t block_bytes, blocks, taken_bytes;
} fillings[] = {{33 * MIB, 8, (64 + 7 * 34) * MIB},
                {22 * MIB, 8, (64 + 3 * 44) * MIB},
                {16 * MIB, 8, 2 * 64 * MIB},
                {MIB / 2, 256, 2 * 64 * MIB}};

START_TEST(growth_leaves_no_rest_beside_blocks_of_one_size) {
  struct pool_config config = growing;
  config.chunk_bytes = 64 * MIB, config.limit_bytes = 1024 * MIB;
  open_pool(&config);
  for (size_t block = 0; block < fillings[_i].blocks; block++)
    must_malloc(fillings[_i].block_bytes);
  ck_assert_uint_eq(imaginary.taken_bytes, fillings[_i].taken_bytes);
}
END_TEST

/* A chunk is a little larger than the block that it was taken for, and is not spared from it. */
static const struct {
  size_t limit_bytes, chunk_bytes, block_bytes;
} spared[] = {{24 * MIB, 8 * MIB, 14 * MIB + MIB / 5},
              {40 * MIB, 10 * MIB, 20 * MIB + MIB / 2},
              {48 * MIB, 8 * MIB, 20 * MIB + MIB / 2},
              {62 * MIB, 8 * MIB, 40 * MIB + MIB / 50},
              {1024 * MIB, 64 * MIB, 500 * MIB + MIB / 2}};

START_TEST(chunk_serves_the_block_that_it_was_taken_for) {
  struct pool_config config = growing;
  config.guarded = config.gives_all = true;
  config.limit_bytes = spared[_i].limit_bytes, config.chunk_bytes = spared[_i].chunk_bytes;
  open_pool(&config);
  ck_assert_int_eq(try_free(must_malloc(spared[_i].block_bytes)), cudaSuccess);
  must_malloc(spared[_i].block_bytes);
  ck_assert_uint_le(imaginary.taken_bytes, config.chunk_bytes + spared[_i].block_bytes + 4 * MIB);
}
END_TEST

/* Four chunks of 4 MiB. */
static void open_full_pool(bool keeps, char *blocks[4]) {
  struct pool_config config = growing;
  config.keeps = keeps;
  open_pool(&config);
  for (int i = 0; i < 4; i++)
    blocks[i] = must_malloc(4 * MIB);
}

START_TEST(free_chunks_give_way_to_a_larger_one) {
  char *blocks[4];
  open_full_pool(false, blocks);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(try_free(blocks[i]), cudaSuccess);
  must_malloc(12 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 16 * MIB);
  ck_assert_uint_eq(info_now().chunk_count, 2); /* the first one stays */
}
END_TEST

START_TEST(chunks_that_would_not_be_enough_stay) {
  void *address;
  char *blocks[4];
  open_full_pool(false, blocks);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(try_free(blocks[i]), cudaSuccess);
  ck_assert_int_eq(try_malloc(13 * MIB, &address), cudaErrorMemoryAllocation);
  must_malloc(4 * MIB);
  ck_assert_int_eq(try_malloc(12 * MIB + 1, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(info_now().chunk_count, 4);
}
END_TEST

START_TEST(chunks_of_a_pool_that_keeps_its_memory_stay) {
  void *address;
  char *blocks[4];
  open_full_pool(true, blocks);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(try_free(blocks[i]), cudaSuccess);
  ck_assert_int_eq(try_malloc(8 * MIB, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(info_now().chunk_count, 4);
}
END_TEST

START_TEST(growth_goes_before_waiting_and_waiting_before_refusal) {
  open_pool(&growing);
  char *block = must_malloc(MIB);
  must_malloc(3 * MIB);
  ck_assert_int_eq(try_free(block), cudaSuccess);
  must_malloc(MIB);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
  ck_assert_uint_eq(info_now().chunk_count, 2);
  imaginary.take_error = cudaErrorMemoryAllocation;
  must_malloc(3 * MIB);
  ck_assert_ptr_eq(must_malloc(MIB), block);
  ck_assert_uint_eq(imaginary.synchronizes, 1);
}
END_TEST

START_TEST(source_that_refused_is_not_asked_again_for_each_shortage) {
  open_pool(&growing);
  char *block = must_malloc(4 * MIB);
  imaginary.take_error = cudaErrorMemoryAllocation;
  unsigned before = imaginary.take_calls;
  for (int i = 0; i < 100; i++) {
    ck_assert_int_eq(try_free(block), cudaSuccess);
    ck_assert_ptr_eq(must_malloc(4 * MIB), block);
  }
  ck_assert_uint_le(imaginary.take_calls, before + 1);
  imaginary.take_error = cudaSuccess; /* the source has some again, and is asked before the pool refuses */
  must_malloc(4 * MIB);
  ck_assert_uint_eq(info_now().chunk_count, 2);
}
END_TEST

START_TEST(growth_that_fails_otherwise_says_so) {
  void *address;
  open_pool(&growing);
  must_malloc(4 * MIB);
  imaginary.take_error = (cudaError_t)700;
  ck_assert_int_eq(try_malloc(512, &address), 700);
  imaginary.take_error = cudaSuccess;
  must_malloc(512);
}
END_TEST

START_TEST(no_block_spans_chunks) {
  void *address;
  open_pool(&growing);
  for (int i = 0; i < 4; i++)
    must_malloc(3 * MIB);
  ck_assert_uint_eq(info_now().free_bytes, 4 * MIB);
  ck_assert_int_eq(try_malloc(2 * MIB, &address), cudaErrorMemoryAllocation);
}
END_TEST

/* ---- Pools that come and go ---- */

START_TEST(closed_pool_refuses_everything) {
  void *address;
  struct pool_emptied emptied;
  MAM_PoolInfo info;
  open_pool(&fixed_8_mib);
  void *block = must_malloc(512);
  struct mam_pool *closed = pool;
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  pool = NULL;
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
  ck_assert_int_eq(pool_close(closed, 0), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_malloc(closed, POOL_ANY_ID, 512, NULL, &address), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_info(closed, POOL_ANY_ID, &info), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_free(block, &emptied), cudaErrorInvalidValue);
  ck_assert(pool_is_known(closed));
}
END_TEST

START_TEST(pool_that_is_meant_otherwise_is_left_alone) {
  void *address;
  open_pool(&fixed_8_mib);
  ck_assert_int_eq(pool_close(pool, 7), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_malloc(pool, 7, 512, NULL, &address), cudaErrorInvalidResourceHandle);
  ck_assert_ptr_null(pool_find_default(7));
  must_malloc(512);
}
END_TEST

/* A default pool that was found may end before it is asked, and its struct become another pool's. */
START_TEST(questions_about_another_pool_are_refused) {
  MAM_PoolInfo info;
  char *text = NULL;
  open_pool(&fixed_8_mib);
  ck_assert_int_eq(pool_info(pool, 7, &info), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_report(pool, 7, &text), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_explain(pool, 7, 512, &text), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(pool_trim(pool, 7, 0, false), cudaErrorInvalidResourceHandle);
  ck_assert_ptr_null(text);
}
END_TEST

/* A thread that freed the last block may be held up until the pool has ended and its struct is another pool's. */
START_TEST(emptying_of_a_pool_is_not_reported_of_the_next) {
  struct pool_emptied emptied = {0};
  struct pool_config lazy = fixed_8_mib;
  lazy.lazy = true;
  lazy.default_id = 7;
  open_pool(&lazy);
  struct mam_pool *first = pool;
  uint64_t generation = pool->generation;
  ck_assert_int_eq(pool_close(pool, 7), cudaSuccess);
  pool = NULL;
  open_pool(&lazy);
  ck_assert_ptr_eq(pool, first);
  ck_assert(!pool_is_open(pool, generation));
  pool_report_emptied(pool, generation, &emptied);
  ck_assert_ptr_null(emptied.pool);
  pool_report_emptied(pool, pool->generation, &emptied);
  ck_assert_ptr_eq(emptied.pool, pool);
  ck_assert_int_eq(pool_close(pool, 7), cudaSuccess);
  pool = NULL;
}
END_TEST

/* A context that is destroyed takes its memory with it, and the next one may get the same addresses. */
START_TEST(pool_whose_addresses_are_somebody_elses_is_gone) {
  struct mam_pool *old;
  struct pool_emptied emptied;
  open_pool(&fixed_8_mib);
  old = pool;
  char *block = must_malloc(MIB);
  imaginary.next_base = (uintptr_t)1 << 40; /* the driver starts over */
  open_pool(&fixed_8_mib);
  ck_assert_ptr_ne(pool, old);
  MAM_PoolInfo info;
  void *address;
  ck_assert_int_eq(pool_info(old, POOL_ANY_ID, &info), cudaErrorContextIsDestroyed);
  ck_assert_int_eq(pool_malloc(old, POOL_ANY_ID, 512, NULL, &address), cudaErrorContextIsDestroyed);
  ck_assert_int_eq(pool_free(block, &emptied), cudaErrorInvalidValue);
  ck_assert_ptr_eq(must_malloc(MIB), block);
  ck_assert_int_eq(try_free(block), cudaSuccess);
  ck_assert_int_eq(pool_close(old, 0), cudaSuccess); /* the struct of the lost pool was not used again */
  ck_assert_int_eq(pool_close(old, 0), cudaErrorInvalidResourceHandle);
}
END_TEST

START_TEST(lazy_pool_reports_its_emptying_once_until_looked_at) {
  struct pool_config config = fixed_8_mib;
  struct pool_emptied emptied;
  uint64_t count;
  config.default_id = 7, config.lazy = true;
  open_pool(&config);
  ck_assert_ptr_eq(pool_find_default(7), pool);
  void *first = must_malloc(512), *second = must_malloc(512);
  ck_assert_int_eq(pool_free(first, &emptied), cudaSuccess);
  ck_assert_ptr_null(emptied.pool);
  ck_assert_int_eq(pool_free(second, &emptied), cudaSuccess);
  ck_assert_ptr_eq(emptied.pool, pool);
  ck_assert_uint_eq(emptied.default_id, 7);
  ck_assert_int_eq(pool_free(must_malloc(512), &emptied), cudaSuccess);
  ck_assert_ptr_null(emptied.pool); /* watched */
  void *live = must_malloc(512);
  ck_assert_int_eq(pool_look(pool, 7, &count), POOL_BUSY);
  ck_assert_uint_eq(count, 4);
  ck_assert(!pool_retire(pool, 7, true)); /* the pool is not empty */
  ck_assert_int_eq(pool_free(live, &emptied), cudaSuccess);
  ck_assert_ptr_eq(emptied.pool, pool);
  ck_assert_int_eq(pool_look(pool, 7, &count), POOL_EMPTY);
  ck_assert(pool_retire(pool, 7, true));
  ck_assert_int_eq(pool_finish(pool), cudaSuccess);
  ck_assert_int_eq(pool_look(pool, 7, &count), POOL_GONE);
  ck_assert_ptr_null(pool_find_default(7));
  pool = NULL;
}
END_TEST

START_TEST(pool_has_room_for_many_chunks) {
  enum { CHUNKS = 5000, CHUNK_MIB = 2 };
  struct pool_config config = growing;
  void *address;
  config.chunk_bytes = CHUNK_MIB * MIB, config.limit_bytes = (CHUNKS + 8) * CHUNK_MIB * MIB;
  open_pool(&config);
  for (int i = 0; i < CHUNKS; i++)
    ck_assert_int_eq(pool_malloc(pool, POOL_ANY_ID, CHUNK_MIB * MIB, NULL, &address), cudaSuccess);
  ck_assert_int_eq(try_malloc(512, &address), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, (CHUNKS + 1) * CHUNK_MIB * MIB);
}
END_TEST

/* ---- Reports ---- */

/* Formula 2 of ScatterAlloc: 1 - largest / sum.  Here the holes are 1 and 3 MiB. */
START_TEST(external_fragmentation_is_one_less_the_largest_holes_share) {
  struct pool_config config = fixed_8_mib;
  config.reuse = MAM_REUSE_IMMEDIATE;
  open_pool(&config);
  ck_assert_double_eq(info_now().external_fragmentation, 0.0);
  void *block = must_malloc(MIB);
  must_malloc(4 * MIB);
  ck_assert_int_eq(try_free(block), cudaSuccess);
  ck_assert_double_eq_tol(info_now().external_fragmentation, 0.25, 1e-12);
  must_malloc(MIB), must_malloc(3 * MIB);
  ck_assert_double_eq(info_now().external_fragmentation, 0.0);
}
END_TEST

static size_t json_size(const json_t *object, const char *key) {
  json_t *value = json_object_get(object, key);
  ck_assert_msg(json_is_integer(value), "%s is no integer", key);
  return (size_t)json_integer_value(value);
}

static uintptr_t json_address(const json_t *object, const char *key) {
  return (uintptr_t)strtoull(json_string_value(json_object_get(object, key)), NULL, 16);
}

/* The bytes of a chunk's segments by state; they tile the chunk. */
static void count_segments(const json_t *chunk, size_t *used, size_t *waiting, size_t *free_bytes) {
  uintptr_t at = json_address(chunk, "base");
  size_t index;
  json_t *segment;
  json_array_foreach(json_object_get(chunk, "segments"), index, segment) {
    const char *state = json_string_value(json_object_get(segment, "state"));
    size_t bytes = json_size(segment, "bytes");
    ck_assert_uint_eq(json_address(segment, "base"), at);
    ck_assert((json_object_get(segment, "site") != NULL) == (strcmp(state, "used") == 0));
    at += bytes;
    *(strcmp(state, "used") == 0 ? used : strcmp(state, "waiting") == 0 ? waiting : free_bytes) += bytes;
  }
  ck_assert_uint_eq(at, json_address(chunk, "base") + json_size(chunk, "bytes"));
}

/* What the report takes for the name of each site. */
static const char *site_name = "program(function+0x12)";
char **backtrace_symbols(void *const *addresses, int count) {
  (void)addresses;
  char **names = malloc(sizeof *names + strlen(site_name) + 1);
  if (count != 1 || names == NULL)
    return NULL;
  names[0] = strcpy((char *)(names + 1), site_name);
  return names;
}

START_TEST(report_is_json_whatever_a_program_is_called) {
  static const char *const names[][2] = {{"a\"b\\c\x01 \xc3\xa9", "a\"b\\c\x01 \xc3\xa9"},
                                         {"\xff(main+1)", "\xef\xbf\xbd(main+1)"},
                                         {"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"}};
  char *text;
  json_error_t fault;
  open_pool(&growing);
  must_malloc(3 * MIB);
  site_name = names[_i][0];
  ck_assert_int_eq(pool_report(pool, POOL_ANY_ID, &text), cudaSuccess);
  json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
  ck_assert_msg(report != NULL, "%s at line %d", fault.text, fault.line);
  json_t *chunk = json_array_get(json_object_get(report, "chunks"), 0);
  json_t *segment = json_array_get(json_object_get(chunk, "segments"), 0);
  ck_assert_str_eq(json_string_value(json_object_get(segment, "site")), names[_i][1]);
  json_decref(report);
  free(text);
}
END_TEST

START_TEST(report_is_json_that_adds_up) {
  char *text;
  json_error_t fault;
  open_pool(&growing);
  void *block = must_malloc(1000);
  must_malloc(3 * MIB), must_malloc(4 * MIB);
  ck_assert_int_eq(try_free(block), cudaSuccess);
  ck_assert_int_eq(pool_report(pool, POOL_ANY_ID, &text), cudaSuccess);
  json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
  ck_assert_msg(report != NULL, "%s at line %d", fault.text, fault.line);
  json_t *chunks = json_object_get(report, "chunks"), *chunk;
  size_t index, used = 0, waiting = 0, free_bytes = 0;
  ck_assert_uint_eq(json_array_size(chunks), 2);
  json_array_foreach(chunks, index, chunk) { count_segments(chunk, &used, &waiting, &free_bytes); }
  ck_assert_uint_eq(used, 7 * MIB);
  ck_assert_uint_eq(waiting, 1024);
  ck_assert_uint_eq(json_size(report, "used_bytes"), used);
  ck_assert_uint_eq(json_size(report, "waiting_bytes"), waiting);
  ck_assert_uint_eq(json_size(report, "free_bytes"), free_bytes);
  ck_assert_uint_eq(json_size(report, "reserved_bytes"), used + waiting + free_bytes);
  ck_assert_uint_eq(json_size(report, "limit_bytes"), 16 * MIB);
  ck_assert_str_eq(json_string_value(json_object_get(report, "reuse")), "fenced");
  json_decref(report);
  free(text);
}
END_TEST

static void explains(size_t size, const char *what) {
  char *text;
  ck_assert_int_eq(pool_explain(pool, POOL_ANY_ID, size, &text), cudaSuccess);
  ck_assert_msg(strstr(text, what) != NULL, "for %zu bytes, \"%s\" is not in:\n%s", size, what, text);
  free(text);
}

START_TEST(explanation_names_the_reason) {
  open_pool(&fixed_8_mib);
  char *blocks[8];
  explains(8 * MIB, "the largest hole serves it");
  explains(9 * MIB, "more than the pool may ever hold");
  explains(SIZE_MAX, "no memory has that many bytes");
  for (int i = 0; i < 8; i++)
    blocks[i] = must_malloc(MIB);
  explains(MIB, "too much is in use");
  explains(MIB, "8388608 bytes in 8 blocks, allocated at");
  for (int i = 0; i < 8; i += 2)
    ck_assert_int_eq(try_free(blocks[i]), cudaSuccess);
  explains(2 * MIB, "memory that waits for the GPU may make one");
  must_malloc(MIB);
  explains(2 * MIB, "the pool is fragmented");
  explains(2 * MIB, "free: 3145728 bytes in 3 holes, the largest hole 1048576 bytes");
}
END_TEST

START_TEST(explanation_quotes_the_source) {
  void *address;
  open_pool(&growing);
  explains(8 * MIB, "the limit allows a further chunk");
  imaginary.take_error = cudaErrorMemoryAllocation;
  ck_assert_int_eq(try_malloc(8 * MIB, &address), cudaErrorMemoryAllocation);
  explains(8 * MIB, "the imaginary source refuses");
  ck_assert_ptr_nonnull(strstr(error_last(), "the imaginary source refuses"));
}
END_TEST

/* ---- Elastic pools ---- */

/* At most one byte may wait, so each free waits for the GPU.  Then its memory is free and known to be unused. */
static const struct pool_config elastic_64_mib = {
    .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .limit_bytes = 64 << 20, .waiting_limit_bytes = 1};

static void open_elastic(const struct pool_config *config) {
  imaginary.capacity_bytes = 1024 * MIB;
  ck_assert_int_eq(pool_open(config, &imaginary_elastic, &pool), cudaSuccess);
}

static cudaError_t total_of_64_mib(const struct source *source, size_t *bytes) {
  (void)source;
  *bytes = 64 * MIB;
  return cudaSuccess;
}

static void must_free(void *address) { ck_assert_int_eq(try_free(address), cudaSuccess); }

static void trim(size_t keep_bytes) {
  ck_assert_int_eq(pool_trim(pool, POOL_ANY_ID, keep_bytes, false), cudaSuccess);
  check_pool();
}

/* Takes blocks of so many bytes, each behind the one before, and returns the first. */
static char *malloc_row(unsigned count, size_t bytes) {
  char *first = must_malloc(bytes);
  for (unsigned i = 1; i < count; i++)
    ck_assert_ptr_eq(must_malloc(bytes), first + i * bytes);
  return first;
}

/* A pool of four pieces of 2 MiB, of which the first, which is returned, and the third are free. */
static char *open_with_scattered_pieces(size_t limit_bytes) {
  struct pool_config config = elastic_64_mib;
  config.limit_bytes = limit_bytes;
  open_elastic(&config);
  char *row = malloc_row(4, 2 * MIB);
  must_free(row), must_free(row + 4 * MIB);
  return row;
}

START_TEST(elastic_pool_takes_memory_when_it_is_needed) {
  open_elastic(&elastic_64_mib);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
  must_malloc(1);
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
  ck_assert_uint_eq(info_now().reserved_bytes, 2 * MIB);
  ck_assert_uint_eq(info_now().chunk_count, 1);
}
END_TEST

START_TEST(elastic_pool_begins_and_grows_by_its_step) {
  struct pool_config config = elastic_64_mib;
  config.chunk_bytes = 7 * MIB;
  open_elastic(&config);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  must_malloc(8 * MIB);
  must_malloc(1);
  ck_assert_uint_eq(imaginary.taken_bytes, 16 * MIB);
}
END_TEST

START_TEST(elastic_pool_without_a_limit_leaves_the_headroom) {
  struct pool_config config = elastic_64_mib;
  void *address;
  config.limit_bytes = 0, config.headroom_bytes = 24 * MIB;
  open_elastic(&config);
  ck_assert_uint_eq(info_now().limit_bytes, 1000 * MIB);
  ck_assert_int_eq(try_malloc(1001 * MIB, &address), cudaErrorMemoryAllocation);
  must_malloc(1000 * MIB);
}
END_TEST

/* A source may lend more memory than it has, and that needs addresses, too.  A limit of SIZE_MAX takes fewer. */
START_TEST(elastic_pool_has_addresses_for_a_limit_beyond_the_source) {
  static struct source_operations operations;
  const struct source overcommitting = {.operations = &operations};
  struct pool_config config = elastic_64_mib;
  operations = imaginary_elastic_operations, operations.overcommits = true, operations.total = total_of_64_mib;
  config.limit_bytes = 256 * MIB;
  ck_assert_int_eq(pool_open(&config, &overcommitting, &pool), cudaSuccess);
  ck_assert_uint_eq(imaginary.next_base - IMAGINARY_FIRST_BASE, 512 * MIB);
  must_malloc(256 * MIB);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  config.limit_bytes = SIZE_MAX; /* no limit */
  ck_assert_int_eq(pool_open(&config, &overcommitting, &pool), cudaSuccess);
  must_malloc(256 * MIB);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  operations.overcommits = false;
  imaginary_reset();
  ck_assert_int_eq(pool_open(&config, &overcommitting, &pool), cudaSuccess);
  ck_assert_uint_eq(imaginary.next_base - IMAGINARY_FIRST_BASE, 128 * MIB);
}
END_TEST

START_TEST(elastic_pool_keeps_to_its_limit) {
  struct pool_config config = elastic_64_mib;
  void *address;
  config.limit_bytes = 8 * MIB;
  open_elastic(&config);
  must_malloc(8 * MIB);
  unsigned before = imaginary.map_calls;
  ck_assert_int_eq(try_malloc(512, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(imaginary.map_calls, before);
}
END_TEST

START_TEST(first_mapping_that_is_refused_opens_no_pool) {
  struct pool_config config = elastic_64_mib;
  struct mam_pool *untouched = NULL;
  config.chunk_bytes = 16 * MIB;
  imaginary.capacity_bytes = 8 * MIB;
  ck_assert_int_eq(pool_open(&config, &imaginary_elastic, &untouched), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(untouched);
  ck_assert(imaginary_all(IMAGINARY_FIRST_BASE, 16 * MIB, IMAGINARY_NOTHING)); /* the addresses came back, too */
}
END_TEST

START_TEST(growth_maps_only_what_is_missing_behind_a_hole) {
  open_elastic(&elastic_64_mib);
  char *block = must_malloc(MIB);
  ck_assert_ptr_eq(must_malloc(3 * MIB), block + MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 4 * MIB);
}
END_TEST

START_TEST(growth_maps_only_what_is_missing_before_a_hole) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(4, 2 * MIB);
  must_free(row + 2 * MIB), trim(0);
  must_free(row + 4 * MIB);
  ck_assert_ptr_eq(must_malloc(4 * MIB), row + 2 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
}
END_TEST

START_TEST(growth_maps_only_what_is_missing_between_holes) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(4, 2 * MIB);
  must_free(row + 2 * MIB), trim(0);
  must_free(row), must_free(row + 4 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 6 * MIB);
  ck_assert_ptr_eq(must_malloc(6 * MIB), row);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
}
END_TEST

START_TEST(growth_that_needs_as_much_anywhere_goes_to_the_lowest_address) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(5, 2 * MIB);
  must_free(row + 6 * MIB), must_free(row + 2 * MIB), trim(0);
  ck_assert_ptr_eq(must_malloc(2 * MIB), row + 2 * MIB);
  ck_assert_ptr_eq(must_malloc(2 * MIB), row + 6 * MIB);
  ck_assert_ptr_eq(must_malloc(2 * MIB), row + 10 * MIB);
}
END_TEST

START_TEST(elastic_growth_takes_what_it_needs_where_the_source_has_no_more) {
  struct pool_config config = elastic_64_mib;
  config.chunk_bytes = 8 * MIB;
  open_elastic(&config);
  imaginary.capacity_bytes = 12 * MIB;
  must_malloc(8 * MIB), must_malloc(1);
  ck_assert_uint_eq(imaginary.taken_bytes, 10 * MIB);
}
END_TEST

/* 1.5 GiB are mapped in three pieces.  Whichever mapping is refused, the pieces before it are unmapped again. */
START_TEST(refused_mapping_changes_nothing) {
  void *address;
  struct pool_config config = elastic_64_mib;
  config.limit_bytes = 2048 * MIB;
  open_elastic(&config);
  imaginary.capacity_bytes = 2048 * MIB;
  char *block = must_malloc(2 * MIB);
  MAM_PoolInfo before = info_now();
  imaginary.map_fails_after = (unsigned)_i;
  imaginary.map_error = cudaErrorMemoryAllocation;
  ck_assert_int_eq(try_malloc(1536 * MIB, &address), cudaErrorMemoryAllocation);
  ck_assert_ptr_nonnull(strstr(error_last(), "the imaginary source refuses"));
  MAM_PoolInfo after = info_now();
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
  ck_assert_uint_eq(after.failure_count, before.failure_count + 1);
  after.failure_count = before.failure_count;
  ck_assert_mem_eq(&before, &after, sizeof before);
  imaginary.map_error = cudaSuccess;
  ck_assert_ptr_eq(must_malloc(1536 * MIB), block + 2 * MIB);
}
END_TEST

START_TEST(mapping_that_fails_otherwise_says_so) {
  void *address;
  open_elastic(&elastic_64_mib);
  imaginary.map_error = (cudaError_t)700;
  ck_assert_int_eq(try_malloc(512, &address), 700);
  imaginary.map_error = cudaSuccess;
  must_malloc(512);
}
END_TEST

/* While a mapping is made, other threads allocate and free. */
static void *freed_in_the_middle;
static void use_the_pool_in_the_middle(void) {
  struct pool_emptied emptied;
  void *address;
  imaginary.on_map = imaginary.on_unmap = NULL;
  ck_assert_int_eq(pool_malloc(pool, POOL_ANY_ID, MIB / 2, NULL, &address), cudaSuccess);
  ck_assert_int_eq(pool_free(freed_in_the_middle, &emptied), cudaSuccess);
  check_pool();
}

START_TEST(pool_is_in_use_while_it_grows) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(3, MIB); /* one MiB more is free */
  freed_in_the_middle = row + MIB;
  imaginary.on_map = use_the_pool_in_the_middle;
  must_malloc(2 * MIB);
  ck_assert_ptr_null((void *)imaginary.on_map);
}
END_TEST

/* While a piece is on its way, other threads allocate and free. */
START_TEST(pool_is_in_use_while_pieces_move) {
  struct pool_config config = elastic_64_mib;
  config.limit_bytes = 10 * MIB;
  open_elastic(&config);
  char *row = malloc_row(10, MIB);
  freed_in_the_middle = row + 9 * MIB;
  must_free(row), must_free(row + MIB);
  must_free(row + 4 * MIB), must_free(row + 5 * MIB), must_free(row + 8 * MIB);
  if (_i == 0)
    imaginary.on_map = use_the_pool_in_the_middle;
  else
    imaginary.on_unmap = use_the_pool_in_the_middle;
  must_malloc(4 * MIB);
  ck_assert_ptr_null((void *)imaginary.on_map);
  ck_assert_ptr_null((void *)imaginary.on_unmap);
  ck_assert_uint_le(imaginary.taken_bytes, 10 * MIB);
}
END_TEST

/* _i 0: a piece stays where it is.  1: it can be mapped nowhere, and its memory goes back. */
START_TEST(move_that_fails_loses_no_block) {
  void *address;
  char *row = open_with_scattered_pieces(8 * MIB);
  cudaError_t refused = _i == 0 ? cudaErrorUnknown : cudaErrorMemoryAllocation;
  *(_i == 0 ? &imaginary.unmap_error : &imaginary.map_error) = refused;
  ck_assert_int_eq(try_malloc(4 * MIB, &address), refused);
  check_pool();
  ck_assert_uint_eq(info_now().used_bytes, 4 * MIB);
  ck_assert_uint_eq(info_now().reserved_bytes, imaginary.taken_bytes);
  ck_assert_uint_eq(imaginary.taken_bytes, _i == 0 ? 8 * MIB : 6 * MIB);
  imaginary.unmap_error = imaginary.map_error = cudaSuccess;
  must_malloc(4 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  must_free(row + 2 * MIB), must_free(row + 6 * MIB);
}
END_TEST

/* Pieces move, with their memory, to where a block fits.  So the pool takes no more than before. */
START_TEST(pool_with_holes_holds_no_more_than_was_used) {
  struct pool_config config = elastic_64_mib;
  config.limit_bytes = 512 * MIB;
  open_elastic(&config);
  char *row = malloc_row(4, 32 * MIB);
  must_free(row), must_free(row + 64 * MIB);
  must_malloc(40 * MIB);
  ck_assert_uint_le(imaginary.taken_bytes, 128 * MIB);
  ck_assert_uint_eq(info_now().used_bytes, 104 * MIB);
  must_malloc(64 * MIB); /* more than is free */
  ck_assert_uint_le(imaginary.taken_bytes, 192 * MIB);
}
END_TEST

enum { WAITERS = 4 };
static pthread_t waiters[WAITERS];
static unsigned map_calls;

static void count_map(void) { map_calls++; }

static void *malloc_8_mib(void *unused) {
  void *address;
  (void)unused;
  return pool_malloc(pool, POOL_ANY_ID, 8 * MIB, NULL, &address) == cudaSuccess ? address : NULL;
}

/* Returns when all of them wait for the growth that calls this function. */
static void let_others_wait(void) {
  size_t wanted_bytes = 0;
  imaginary.on_map = count_map;
  for (int i = 0; i < WAITERS; i++)
    ck_assert_int_eq(pthread_create(&waiters[i], NULL, malloc_8_mib, NULL), 0);
  while (wanted_bytes < WAITERS * 8 * MIB) {
    pthread_mutex_lock(&pool->lock);
    wanted_bytes = pool->wanted_bytes;
    pthread_mutex_unlock(&pool->lock);
  }
}

START_TEST(threads_that_wait_for_a_growth_share_the_next) {
  void *address;
  open_elastic(&elastic_64_mib);
  imaginary.on_map = let_others_wait;
  must_malloc(8 * MIB);
  for (int i = 0; i < WAITERS; i++) {
    ck_assert_int_eq(pthread_join(waiters[i], &address), 0);
    ck_assert_ptr_nonnull(address);
  }
  ck_assert_uint_eq(map_calls, 1); /* one for the first thread, then one for all others */
  ck_assert_uint_eq(imaginary.taken_bytes, (1 + WAITERS) * 8 * MIB);
}
END_TEST

START_TEST(pool_is_in_use_while_it_is_trimmed) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(5, MIB); /* one MiB more is free */
  freed_in_the_middle = row;
  must_free(row + 2 * MIB), must_free(row + 3 * MIB);
  imaginary.on_unmap = use_the_pool_in_the_middle;
  trim(0);
  ck_assert_ptr_null((void *)imaginary.on_unmap);
  ck_assert_uint_eq(imaginary.taken_bytes, 4 * MIB);
}
END_TEST

START_TEST(trim_gives_back_the_tail_and_what_is_between) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(5, 4 * MIB);
  must_free(row + 4 * MIB), must_free(row + 16 * MIB);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 12 * MIB);
  ck_assert_uint_eq(info_now().reserved_bytes, 12 * MIB);
  must_free(row), must_free(row + 8 * MIB), must_free(row + 12 * MIB);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
  ck_assert_ptr_eq(must_malloc(4 * MIB), row);
}
END_TEST

START_TEST(trim_keeps_what_it_is_told_from_the_lowest_address_on) {
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(3, 4 * MIB);
  for (int i = 0; i < 3; i++)
    must_free(row + i * 4 * MIB);
  trim(12 * MIB);
  ck_assert_uint_eq(imaginary.unmap_calls, 0);
  trim(8 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  unsigned before = imaginary.map_calls;
  ck_assert_ptr_eq(must_malloc(8 * MIB), row);
  ck_assert_uint_eq(imaginary.map_calls, before);
}
END_TEST

START_TEST(piece_with_a_live_block_stays) {
  open_elastic(&elastic_64_mib);
  char *block = must_malloc(2 * MIB - 512);
  void *small = must_malloc(512);
  must_free(block), trim(0);
  ck_assert_uint_eq(imaginary.unmap_calls, 0);
  must_free(small), trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}
END_TEST

START_TEST(memory_that_waits_for_the_gpu_is_not_given_back) {
  struct pool_config config = elastic_64_mib;
  config.waiting_limit_bytes = 0; /* half */
  open_elastic(&config);
  char *row = malloc_row(3, 2 * MIB);
  must_free(row), trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 6 * MIB);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
}
END_TEST

/* By the immediate rule a program says that memory may be handed out again, not that no kernel uses it. */
START_TEST(memory_that_was_free_at_once_is_given_back_after_a_wait) {
  struct pool_config config = elastic_64_mib;
  config.reuse = MAM_REUSE_IMMEDIATE;
  open_elastic(&config);
  must_free(must_malloc(2 * MIB)), trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
  ck_assert_int_eq(reuse_synchronize(pool->reuse), cudaSuccess);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}
END_TEST

START_TEST(memory_that_the_source_keeps_stays_usable) {
  open_elastic(&elastic_64_mib);
  char *block = must_malloc(4 * MIB);
  must_free(block);
  imaginary.unmap_error = (cudaError_t)700;
  ck_assert_int_eq(pool_trim(pool, POOL_ANY_ID, 0, false), 700);
  check_pool();
  ck_assert_uint_eq(info_now().free_bytes, 4 * MIB);
  ck_assert_ptr_eq(must_malloc(4 * MIB), block);
  imaginary.unmap_error = cudaSuccess;
  must_free(block), trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}
END_TEST

/* The limit is reached, and the free memory lies in pieces.  It is mapped anew where the block has room. */
START_TEST(scattered_free_pieces_become_a_block_elsewhere) {
  char *row = open_with_scattered_pieces(_i == 0 ? 8 * MIB : 64 * MIB);
  imaginary.capacity_bytes = 8 * MIB; /* if it is not the limit, the source has no more */
  unsigned waits = imaginary.synchronizes;
  ck_assert_ptr_eq(must_malloc(4 * MIB), row + 8 * MIB);
  ck_assert_uint_eq(imaginary.synchronizes, waits);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  must_free(row + 2 * MIB), must_free(row + 6 * MIB);
}
END_TEST

START_TEST(scattered_free_pieces_stay_where_they_would_not_do) {
  void *address;
  (void)open_with_scattered_pieces(8 * MIB);
  ck_assert_int_eq(try_malloc(6 * MIB, &address), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(imaginary.unmap_calls, 0);
}
END_TEST

START_TEST(other_pools_give_back_what_is_free_when_the_source_refuses) {
  struct mam_pool *idle;
  open_elastic(&elastic_64_mib);
  idle = pool;
  imaginary.capacity_bytes = 16 * MIB;
  char *row = malloc_row(3, 4 * MIB);
  must_free(row + 4 * MIB), must_free(row + 8 * MIB);
  ck_assert_int_eq(
      pool_open(_i == 0 ? &elastic_64_mib : &fixed_8_mib, _i == 0 ? &imaginary_elastic : &imaginary_source, &pool),
      cudaSuccess);
  must_malloc(_i == 0 ? 12 * MIB : 8 * MIB);
  ck_assert_uint_eq(imaginary.taken_bytes, _i == 0 ? 16 * MIB : 12 * MIB);
  ck_assert_int_eq(pool_close(idle, 0), cudaSuccess);
}
END_TEST

START_TEST(trim_gives_back_whole_chunks_but_the_last) {
  struct pool_config config = growing;
  config.waiting_limit_bytes = 1;
  open_pool(&config);
  char *blocks[4];
  for (int i = 0; i < 4; i++)
    blocks[i] = must_malloc(4 * MIB);
  must_free(blocks[0]), must_free(blocks[2]);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  ck_assert_uint_eq(info_now().chunk_count, 2);
  ck_assert_int_eq(try_free(blocks[0]), cudaErrorInvalidValue); /* no pool has this address */
  must_free(blocks[1]), must_free(blocks[3]);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 4 * MIB);
  for (int i = 0; i < 4; i++)
    must_malloc(4 * MIB);
}
END_TEST

/* A front that keeps nothing and counts how often it was frozen. */
static unsigned stills;
static bool still_open(struct mam_pool *of) { return of != NULL; }
static bool still_collect(struct mam_pool *of, bool all) { return of != NULL && all; }
static void still_close(struct mam_pool *of) { (void)of; }
static void still_freeze(struct mam_pool *of) { stills += of != NULL; }
static void still_thaw(struct mam_pool *of) { (void)of; }
static void still_sum(struct mam_pool *of, struct pool_front_sum *sum) {
  *sum = (struct pool_front_sum){.in_use = of == NULL};
}
static const struct pool_front still_front = {.open = still_open,
                                              .collect = still_collect,
                                              .close = still_close,
                                              .freeze = still_freeze,
                                              .thaw = still_thaw,
                                              .sum = still_sum};

/* A thread that frees may have found a page and not made its claim yet.  No other pool may get the page before that. */
START_TEST(no_thread_is_in_a_front_when_a_chunk_goes) {
  struct pool_config config = fixed_8_mib;
  config.front = &still_front;
  config.limit_bytes = 16 * MIB;
  open_pool(&config);
  void *first = must_malloc(8 * MIB), *second = must_malloc(8 * MIB);
  ck_assert_int_eq(pool_free(second, NULL), cudaSuccess);
  (void)reuse_synchronize(pool->reuse);
  stills = 0;
  ck_assert_int_eq(pool_trim(pool, POOL_ANY_ID, 0, false), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, 8 * MIB);
  ck_assert_uint_ge(stills, 1);
  ck_assert_int_eq(pool_free(first, NULL), cudaSuccess);
}
END_TEST

START_TEST(trim_gives_back_the_last_chunk_where_asked_to) {
  struct pool_config config = growing;
  config.waiting_limit_bytes = 1;
  config.gives_all = true;
  open_pool(&config);
  char *block = must_malloc(12 * MIB);
  must_free(block);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
  ck_assert_uint_eq(info_now().chunk_count, 0);
  ck_assert_int_eq(try_free(block), cudaErrorInvalidValue);
  must_free(must_malloc(1000));
  trim(0);
  must_malloc(16 * MIB); /* as much as the limit allows */
}
END_TEST

START_TEST(closing_an_elastic_pool_waits_for_the_gpu_first) {
  open_elastic(&elastic_64_mib);
  must_malloc(5 * MIB);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  pool = NULL;
  ck_assert_uint_eq(imaginary.synchronizes, 1);
  ck_assert(imaginary_all(IMAGINARY_FIRST_BASE, 2048 * MIB, IMAGINARY_NOTHING));
}
END_TEST

START_TEST(closing_an_elastic_pool_in_a_capture_leaves_its_memory_mapped) {
  open_elastic(&elastic_64_mib);
  struct reuse *reuse = pool->reuse;
  must_malloc(2 * MIB);
  reuse_capture_begin(reuse, false);
  ck_assert_int_eq(pool_close(pool, 0), 900);
  pool = NULL;
  ck_assert(reuse_capture_end(reuse, false));
  ck_assert_uint_eq(imaginary.synchronizes, 0);
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
  imaginary.taken_bytes = 0;
}
END_TEST

START_TEST(spans_of_an_elastic_pool_are_aligned_and_never_wait) {
  struct pool_config config = elastic_64_mib;
  uintptr_t spans[8];
  config.waiting_limit_bytes = 0;
  open_elastic(&config);
  must_malloc(512);
  for (int i = 0; i < 8; i++) {
    ck_assert_int_eq(pool_slab_take(pool, &spans[i]), cudaSuccess);
    ck_assert_uint_eq(spans[i] % POOL_SLAB_BYTES, 0);
    check_pool();
  }
  for (int i = 0; i < 8; i++)
    pool_slab_give(pool, spans[i]);
  trim(0);
  ck_assert_uint_eq(imaginary.taken_bytes, 2 * MIB);
  ck_assert_uint_eq(imaginary.synchronizes, 0);
}
END_TEST

START_TEST(report_shows_what_is_unmapped) {
  char *text;
  json_error_t fault;
  size_t index, unmapped = 0, mapped = 0;
  open_elastic(&elastic_64_mib);
  char *row = malloc_row(3, 2 * MIB);
  must_free(row + 2 * MIB), trim(0);
  ck_assert_int_eq(pool_report(pool, POOL_ANY_ID, &text), cudaSuccess);
  json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, &fault), *segment;
  json_t *chunk = json_array_get(json_object_get(report, "chunks"), 0);
  json_array_foreach(json_object_get(chunk, "segments"), index, segment) {
    bool is_unmapped = strcmp(json_string_value(json_object_get(segment, "state")), "unmapped") == 0;
    *(is_unmapped ? &unmapped : &mapped) += json_size(segment, "bytes");
  }
  ck_assert_uint_eq(mapped, 4 * MIB);
  ck_assert_uint_eq(mapped, json_size(report, "reserved_bytes"));
  ck_assert_uint_eq(mapped + unmapped, json_size(chunk, "bytes"));
  json_decref(report);
  free(text);
}
END_TEST

/* On plain host memory a block keeps what was written to it, and the system gets back what a trim gives. */
static size_t resident_bytes(void) {
  unsigned long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_eq(fscanf(file, "%lu %lu", &pages, &resident), 2);
  ck_assert_int_eq(fclose(file), 0);
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

START_TEST(trimmed_host_memory_is_the_systems_again) {
  struct source source;
  struct pool_config config = elastic_64_mib;
  config.elastic = true;
  ck_assert_int_eq(source_open(MAM_SOURCE_HOST, NULL, -1, &source), cudaSuccess);
  ck_assert_int_eq(pool_open(&config, &source, &pool), cudaSuccess);
  char *kept = must_malloc(MIB), *block = must_malloc(48 * MIB);
  memset(kept, 1, MIB), memset(block, 2, 48 * MIB);
  size_t before = resident_bytes();
  must_free(block), trim(0);
  ck_assert_uint_le(resident_bytes() + 40 * MIB, before);
  ck_assert_uint_le(info_now().reserved_bytes, 8 * MIB);
  for (size_t i = 0; i < MIB; i++)
    ck_assert_int_eq(kept[i], 1);
  ck_assert_ptr_eq(must_malloc(48 * MIB), block);
  memset(block, 3, 48 * MIB);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pool");
  TCase *tests = tcase_create("pool");
  tcase_add_checked_fixture(tests, set_up, tear_down);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, chunk_is_rounded_up_to_the_granularity);
  tcase_add_test(tests, largest_chunk_leaves_the_headroom);
  tcase_add_test(tests, largest_chunk_keeps_to_the_limit);
  tcase_add_test(tests, largest_chunk_is_found_when_little_is_left);
  tcase_add_test(tests, no_chunk_at_all_is_out_of_memory);
  tcase_add_test(tests, chunk_size_past_the_end_of_the_numbers_is_out_of_memory);
  tcase_add_loop_test(tests, blocks_keep_every_alignment, 0, 4);
  tcase_add_test(tests, size_is_rounded_up_to_the_alignment);
  tcase_add_loop_test(tests, huge_size_is_out_of_memory, 0, 4);
  tcase_add_test(tests, refused_malloc_changes_nothing_but_the_count_of_failures);
  tcase_add_test(tests, orders_for_a_pool_that_ended_are_refused);
  tcase_add_test(tests, wrong_frees_are_refused_and_harm_nothing);
  tcase_add_test(tests, freed_memory_waits_and_fresh_memory_is_used_instead);
  tcase_add_test(tests, malloc_synchronises_only_where_it_would_fail);
  tcase_add_test(tests, malloc_of_more_than_a_wait_can_free_is_refused_without_one);
  tcase_add_test(tests, malloc_that_cannot_be_served_gives_up_while_others_free);
  tcase_add_test(tests, free_synchronises_when_more_than_half_waits);
  tcase_add_test(tests, waiting_limit_can_be_chosen);
  tcase_add_test(tests, immediate_reuse_never_waits);
  tcase_add_test(tests, error_met_while_waiting_comes_through_and_nothing_is_lost);
  tcase_add_test(tests, block_freed_during_a_wait_needs_the_next_one);
  tcase_add_test(tests, pool_grows_by_chunks_up_to_its_limit);
  tcase_add_test(tests, large_request_gets_a_chunk_of_its_size);
  tcase_add_test(tests, growth_takes_what_it_needs_where_the_source_has_no_more);
  tcase_add_loop_test(tests, growth_leaves_no_rest_beside_blocks_of_one_size, 0, sizeof fillings / sizeof fillings[0]);
  tcase_add_loop_test(tests, chunk_serves_the_block_that_it_was_taken_for, 0, sizeof spared / sizeof spared[0]);
  tcase_add_test(tests, free_chunks_give_way_to_a_larger_one);
  tcase_add_test(tests, chunks_that_would_not_be_enough_stay);
  tcase_add_test(tests, chunks_of_a_pool_that_keeps_its_memory_stay);
  tcase_add_test(tests, growth_goes_before_waiting_and_waiting_before_refusal);
  tcase_add_test(tests, source_that_refused_is_not_asked_again_for_each_shortage);
  tcase_add_test(tests, growth_that_fails_otherwise_says_so);
  tcase_add_test(tests, no_block_spans_chunks);
  tcase_add_test(tests, closed_pool_refuses_everything);
  tcase_add_test(tests, pool_that_is_meant_otherwise_is_left_alone);
  tcase_add_test(tests, questions_about_another_pool_are_refused);
  tcase_add_test(tests, emptying_of_a_pool_is_not_reported_of_the_next);
  tcase_add_test(tests, pool_whose_addresses_are_somebody_elses_is_gone);
  tcase_add_test(tests, lazy_pool_reports_its_emptying_once_until_looked_at);
  tcase_add_test(tests, pool_has_room_for_many_chunks);
  tcase_add_test(tests, external_fragmentation_is_one_less_the_largest_holes_share);
  tcase_add_test(tests, report_is_json_that_adds_up);
  tcase_add_loop_test(tests, report_is_json_whatever_a_program_is_called, 0, 3);
  tcase_add_test(tests, explanation_names_the_reason);
  tcase_add_test(tests, explanation_quotes_the_source);
  tcase_add_test(tests, elastic_pool_takes_memory_when_it_is_needed);
  tcase_add_test(tests, elastic_pool_begins_and_grows_by_its_step);
  tcase_add_test(tests, elastic_pool_without_a_limit_leaves_the_headroom);
  tcase_add_test(tests, elastic_pool_keeps_to_its_limit);
  tcase_add_test(tests, elastic_pool_has_addresses_for_a_limit_beyond_the_source);
  tcase_add_test(tests, first_mapping_that_is_refused_opens_no_pool);
  tcase_add_test(tests, growth_maps_only_what_is_missing_behind_a_hole);
  tcase_add_test(tests, growth_maps_only_what_is_missing_before_a_hole);
  tcase_add_test(tests, growth_maps_only_what_is_missing_between_holes);
  tcase_add_test(tests, growth_that_needs_as_much_anywhere_goes_to_the_lowest_address);
  tcase_add_test(tests, elastic_growth_takes_what_it_needs_where_the_source_has_no_more);
  tcase_add_loop_test(tests, refused_mapping_changes_nothing, 0, 3);
  tcase_add_test(tests, mapping_that_fails_otherwise_says_so);
  tcase_add_test(tests, pool_is_in_use_while_it_grows);
  tcase_add_loop_test(tests, pool_is_in_use_while_pieces_move, 0, 2);
  tcase_add_loop_test(tests, move_that_fails_loses_no_block, 0, 2);
  tcase_add_test(tests, pool_with_holes_holds_no_more_than_was_used);
  tcase_add_test(tests, threads_that_wait_for_a_growth_share_the_next);
  tcase_add_test(tests, pool_is_in_use_while_it_is_trimmed);
  tcase_add_test(tests, trim_gives_back_the_tail_and_what_is_between);
  tcase_add_test(tests, trim_keeps_what_it_is_told_from_the_lowest_address_on);
  tcase_add_test(tests, piece_with_a_live_block_stays);
  tcase_add_test(tests, memory_that_waits_for_the_gpu_is_not_given_back);
  tcase_add_test(tests, memory_that_was_free_at_once_is_given_back_after_a_wait);
  tcase_add_test(tests, memory_that_the_source_keeps_stays_usable);
  tcase_add_loop_test(tests, scattered_free_pieces_become_a_block_elsewhere, 0, 2);
  tcase_add_test(tests, scattered_free_pieces_stay_where_they_would_not_do);
  tcase_add_loop_test(tests, other_pools_give_back_what_is_free_when_the_source_refuses, 0, 2);
  tcase_add_test(tests, trim_gives_back_whole_chunks_but_the_last);
  tcase_add_test(tests, no_thread_is_in_a_front_when_a_chunk_goes);
  tcase_add_test(tests, trim_gives_back_the_last_chunk_where_asked_to);
  tcase_add_test(tests, closing_an_elastic_pool_waits_for_the_gpu_first);
  tcase_add_test(tests, closing_an_elastic_pool_in_a_capture_leaves_its_memory_mapped);
  tcase_add_test(tests, spans_of_an_elastic_pool_are_aligned_and_never_wait);
  tcase_add_test(tests, report_shows_what_is_unmapped);
  tcase_add_test(tests, trimmed_host_memory_is_the_systems_again);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
