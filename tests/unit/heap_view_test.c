/* SPDX-License-Identifier: BSD-2-Clause */
/* What the host sees of a device heap, on heaps in host memory; and what its functions refuse without a GPU. */
#include <check.h>
#include <jansson.h>
#include <stdbool.h>

#include "heap/heap_view.h"
#include "mam/warp.h"
#include "support/heap_model.h"
#include "support/run_suite.h"

enum { MIB = 1 << 20, BLOCKS = 3000 };

static struct heap_model *model;
static struct heap_view view;
static void *blocks[BLOCKS];
static size_t sizes[BLOCKS];

/* Copies a heap's metadata as lib/heap/heap_look.c does from a GPU. */
static void look(void) {
  size_t bytes = (size_t)mam__control_bytes(&model->control->heap);
  memset(&view, 0, sizeof view);
  view.control = (struct mam__heap_control *)malloc(bytes);
  memcpy(view.control, model->control, bytes);
  for (; view.count < model->control->superblock_count; view.count++) {
    struct mam__area area = model->control->superblocks[view.count];
    size_t metadata_bytes = (size_t)mam__area_metadata_bytes(area.page_count);
    mam__u64 *copy = (mam__u64 *)malloc(metadata_bytes);
    memcpy(copy, mam__area_metadata(area), metadata_bytes);
    view.areas[view.count] = mam__area_copied(area, copy);
  }
  heap_view_settle(&view);
}

static void look_away(void) {
  for (mam__u32 i = 0; i < view.count; i++)
    free(mam__area_metadata(view.areas[i]));
  free(view.control);
}

/* Blocks of many sizes in two superblocks; every third one is freed again. */
static void set_up(void) {
  model = heap_model_create(4 * MIB, 8);
  heap_model_grow(model, 32 * MIB);
  for (unsigned i = 0; i < BLOCKS; i++) {
    sizes[i] = 16 + i * 7 % 5000 + (i % 100 == 0 ? 60000 : 0);
    blocks[i] = heap_model_malloc(model, sizes[i], i % model->control->heap.slot_count);
    ck_assert_ptr_nonnull(blocks[i]);
  }
  for (unsigned i = 0; i < BLOCKS; i += 3) {
    ck_assert(heap_model_free(model, blocks[i]));
    blocks[i] = NULL;
  }
  look();
}

static void tear_down(void) {
  look_away();
  heap_model_destroy(model);
}

struct listed {

  size_t count, bytes;
};

static bool count_block(void *closure, uint64_t address, uint64_t bytes) {
  struct listed *listed = closure;

  (void)address;
  listed->count++;
  listed->bytes += bytes;
  return true;
}

struct search {
  uint64_t address, bytes;
};

static bool find_block(void *closure, uint64_t address, uint64_t bytes) {
  struct search *search = closure;
  if (address != search->address)
    return true;
  search->bytes = bytes;
  return false;
}

START_TEST(every_live_block_is_listed_and_no_other) {
  struct listed listed = {0, 0};
  size_t live = 0;
  heap_view_walk(&view, count_block, &listed);
  for (unsigned i = 0; i < BLOCKS; i++) {
    struct search search = {(uint64_t)(uintptr_t)blocks[i], 0};
    if (blocks[i] == NULL)
      continue;
    live++;
    heap_view_walk(&view, find_block, &search);
    ck_assert_uint_ge(search.bytes, sizes[i]);
  }
  ck_assert_uint_eq(listed.count, live);
}
END_TEST

START_TEST(numbers_add_up) {
  MAM_HeapInfo info;
  struct listed listed = {0, 0};
  heap_view_info(&view, &info);
  heap_view_walk(&view, count_block, &listed);
  ck_assert_uint_eq(info.live_count, listed.count);
  ck_assert_uint_eq(info.used_bytes, listed.bytes);
  ck_assert_uint_eq(info.superblock_count, 2);
  ck_assert_uint_eq(info.free_page_count, heap_model_free_pages(model));
  ck_assert_uint_gt(info.held_count, 0);
  ck_assert_uint_le(info.used_bytes + info.free_bytes, info.page_count * info.page_bytes);
  ck_assert_uint_ge(info.used_bytes + info.free_bytes + view.held_bytes, info.page_count * info.page_bytes * 98 / 100);
  ck_assert_double_eq(info.external_fragmentation, 1 - (double)info.largest_free_bytes / (double)info.free_bytes);
}
END_TEST

START_TEST(the_report_is_json_with_the_same_numbers) {
  MAM_HeapInfo info;
  memset(&info, 0, sizeof info);
  heap_view_info(&view, &info);
  char *text = heap_view_report(&view, &info, NULL);
  ck_assert_ptr_nonnull(text);
  json_error_t error;
  json_t *report = json_loads(text, 0, &error);
  ck_assert_msg(report != NULL, "line %d: %s", error.line, error.text);
  size_t live = 0, i;
  json_t *item;
  json_array_foreach(json_object_get(report, "classes"), i, item) live +=
      (size_t)json_integer_value(json_object_get(item, "live"));
  live += (size_t)json_integer_value(json_object_get(json_object_get(report, "runs"), "live"));
  ck_assert_uint_eq(live, info.live_count);
  ck_assert_int_eq(json_integer_value(json_object_get(report, "live")), (json_int_t)info.live_count);
  ck_assert_uint_eq(json_array_size(json_object_get(report, "superblocks")), 2);
  json_decref(report);
  free(text);
}
END_TEST

START_TEST(drained_slots_hold_nothing) {
  MAM_HeapInfo info;
  mam__slots_drain(model->control, 0, 1);
  look_away();
  look();
  heap_view_info(&view, &info);
  ck_assert_uint_eq(info.held_count, 0);
  for (unsigned i = 0; i < BLOCKS; i++)
    if (blocks[i] != NULL)
      ck_assert(heap_model_free(model, blocks[i]));
  ck_assert_uint_eq(heap_model_free_pages(model), info.page_count);
}
END_TEST

/* In parks wait headers of warp heaps that were ended, and a superblock, which may be a chunk or a run of pages. */
START_TEST(what_waits_for_its_next_user_is_held_and_is_drained) {
  const mam__u32 bytes = _i == 0 ? 32 << 10 : 100 << 10;
  MAM_HeapInfo before, info;
  heap_view_info(&view, &before);
  ck_assert_uint_gt(mam__park_count(&model->control->heap), 0);
  mam__u64 *park = mam__parks(model->control);
  park[0] = (mam__u64)(uintptr_t)heap_model_malloc(model, 10 << 10, 0);
  park[1] = (mam__u64)(uintptr_t)heap_model_malloc(model, bytes, 0) << 16 | bytes / 16;
  ck_assert_uint_eq(mam__park_address(park[1]) & 4095, 0);
  ck_assert_uint_eq(mam__park_number(park[1]), bytes / 16);
  park[3] = 77; /* what waited in this park is in use */
  model->control->parked = bytes / 16 + 77;
  look_away();
  look();
  heap_view_info(&view, &info);
  ck_assert_uint_eq(info.live_count, before.live_count);
  ck_assert_uint_eq(info.used_bytes, before.used_bytes);
  ck_assert_uint_ge(info.held_count, before.held_count + 1);
  ck_assert_uint_lt(info.free_bytes, before.free_bytes - bytes);
  mam__slots_drain(model->control, 0, 1);
  for (unsigned i = 0; i < 4; i++)
    ck_assert_uint_eq(park[i], 0);
  ck_assert_uint_eq(model->control->parked, 0);
  look_away();
  look();
  heap_view_info(&view, &info);
  ck_assert_uint_eq(info.live_count, before.live_count);
  ck_assert_uint_eq(info.held_count, 0);
  park[0] = park[1] = model->control->parked = 1;
  mam__slots_clear(model->control, 0, 1);
  ck_assert_uint_eq(park[0] | park[1] | model->control->parked, 0);
}
END_TEST

START_TEST(warp_heaps_without_a_heap_are_refused) {
  size_t count = 5;
  MAM_WarpHeader header;
  ck_assert_int_eq(MAM_WarpList(NULL, &header, 1, &count), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_WarpList(NULL, NULL, 1, &count), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_WarpList(NULL, &header, 1, NULL), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_WarpEnd(NULL, &header), cudaErrorInvalidResourceHandle);
  ck_assert_uint_eq(count, 5);
}
END_TEST

START_TEST(what_cannot_be_is_refused) {
  MAM_Heap heap = NULL;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  mam_device_heap handle;
  options.bytes = 1000;
  ck_assert_int_eq(MAM_HeapCreate(&heap, NULL, &options), cudaErrorInvalidValue);
  options.bytes = MIB;
  options.limit_bytes = MIB / 2;
  ck_assert_int_eq(MAM_HeapCreate(&heap, NULL, &options), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_HeapCreate(NULL, NULL, NULL), cudaErrorInvalidValue);
  ck_assert_ptr_null(heap);
  ck_assert_int_eq(MAM_HeapHandle(NULL, &handle), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapReset((MAM_Heap)(void *)&handle), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapDestroy(NULL), cudaSuccess);
  MAM_HeapTypeOptions type_options = MAM_HEAP_TYPE_OPTIONS_INIT;
  MAM_HeapCompactOptions compact_options = MAM_HEAP_COMPACT_OPTIONS_INIT;
  mam_type type = 0;
  ck_assert_int_eq(MAM_HeapRegisterType(NULL, &type_options, &type), cudaErrorInvalidValue); /* of no bytes */
  type_options.bytes = 64;
  ck_assert_int_eq(MAM_HeapRegisterType(NULL, &type_options, &type), cudaErrorInvalidResourceHandle);
  ck_assert_uint_eq(type, 0);
  ck_assert_int_eq(MAM_HeapRegisterRoots(NULL, &handle, 1), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapRegisterRoots(NULL, &handle, SIZE_MAX / 8), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_HeapForgetRoots(NULL, &handle), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapCompact(NULL, NULL, NULL), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapCompactBegin(NULL, NULL, NULL), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(MAM_HeapCompactEnd(NULL), cudaErrorInvalidResourceHandle);
  compact_options.targets = 17;
  ck_assert_int_eq(MAM_HeapCompact(NULL, &compact_options, NULL), cudaErrorInvalidValue);
}
END_TEST

START_TEST(a_pool_of_host_memory_has_no_heaps) {
  MAM_Pool pool;
  MAM_PoolOptions pool_options = MAM_POOL_OPTIONS_INIT;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_Heap heap = NULL;
  pool_options.source = MAM_SOURCE_HOST;
  pool_options.chunk_bytes = (size_t)128 * MIB;
  ck_assert_int_eq(MAM_PoolCreate(&pool, &pool_options), cudaSuccess);
  ck_assert_int_eq(MAM_HeapCreate(&heap, pool, NULL), cudaErrorNotSupported);
  ck_assert_str_ne(MAM_LastError(), "");
  ck_assert_int_eq(MAM_PoolGetInfo(pool, &info), cudaSuccess);
  ck_assert_uint_eq(info.used_count, 0);
  ck_assert_int_eq(MAM_PoolDestroy(pool), cudaSuccess);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap view");
  TCase *views = tcase_create("views"), *refusals = tcase_create("refusals");
  tcase_add_checked_fixture(views, set_up, tear_down);
  tcase_add_test(views, every_live_block_is_listed_and_no_other);
  tcase_add_test(views, numbers_add_up);
  tcase_add_test(views, the_report_is_json_with_the_same_numbers);
  tcase_add_test(views, drained_slots_hold_nothing);
  tcase_add_loop_test(views, what_waits_for_its_next_user_is_held_and_is_drained, 0, 2);
  tcase_add_test(views, warp_heaps_without_a_heap_are_refused);
  suite_add_tcase(suite, views);
  tcase_add_test(refusals, what_cannot_be_is_refused);
  tcase_add_test(refusals, a_pool_of_host_memory_has_no_heaps);
  suite_add_tcase(suite, refusals);
  return run_suite(suite);
}
