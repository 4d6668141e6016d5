/* SPDX-License-Identifier: BSD-2-Clause */
/* Defragmentation of device heaps: linked objects stay the same, memory becomes free, misuse is refused. */
#include "gpu_compact_kernels.h"
#include "gpu_heap_util.h"

enum shape { LIST, TREE, GRAPH, SHAPES };

static const char *const shape_names[SHAPES] = {"list", "tree", "graph"};

static const size_t link_offsets[] = {offsetof(struct gpu_object, links[0]), offsetof(struct gpu_object, links[1]),
                                      offsetof(struct gpu_object, links[2])};

static mam_type type_new(const struct gpu_heap *heap, size_t bytes) {
  MAM_HeapTypeOptions options = MAM_HEAP_TYPE_OPTIONS_INIT;
  mam_type type = 0;
  options.bytes = bytes;
  options.pointer_offsets = link_offsets;
  options.pointer_count = GPU_COMPACT_LINKS;
  MAM_OK(MAM_HeapRegisterType(heap->heap, &options, &type));
  ck_assert_uint_ne(type, 0);
  return type;
}

static unsigned scaled(unsigned count) { return gpu_small() ? count / 16 : count; }

static struct gpu_objects objects_new(const struct gpu_heap *heap, unsigned count, unsigned bytes,
                                      struct gpu_compact_tally *tally) {
  struct gpu_objects objects = {.count = count, .bytes = bytes, .type = type_new(heap, bytes)};
  objects.table = gpu_heap_array(count * sizeof *objects.table);
  objects.links = gpu_heap_array(count * GPU_COMPACT_LINKS * sizeof *objects.links);
  GPU_OK(gpu_compact_create(heap->handle, objects, tally));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(tally->refused, 0);
  return objects;
}

/* Leaves so many of a hundred objects, at random, and always the first. */
static void objects_thin(const struct gpu_heap *heap, struct gpu_objects objects, unsigned percent, uint64_t seed) {
  unsigned char *keep = NULL;
  GPU_OK(cudaMallocManaged((void **)&keep, objects.count, cudaMemAttachGlobal));
  for (unsigned i = 0; i < objects.count; i++)
    keep[i] = i == 0 || gpu_random(&seed) % 100 < percent;
  GPU_OK(gpu_compact_thin(heap->handle, objects, keep));
  GPU_OK(cudaDeviceSynchronize());
  GPU_OK(cudaFree(keep));
}

/* Puts the numbers of the objects that are left into random order; returns how many. */
static unsigned objects_left(struct gpu_objects objects, unsigned *numbers, uint64_t seed) {
  unsigned left = 0;
  for (unsigned i = 0; i < objects.count; i++)
    if (objects.table[i] != NULL)
      numbers[left++] = i;
  for (unsigned i = left; i-- > 2;) { /* the first stays in front */
    unsigned j = 1 + gpu_random(&seed) % i, other = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = other;
  }
  return left;
}

/* Links the objects that are left: a list through all, a tree of three, or pointers from any to any, also to itself and
 * in circles. */
static void objects_link(struct gpu_objects objects, enum shape shape, uint64_t seed) {
  unsigned *numbers = malloc(objects.count * sizeof *numbers), left = objects_left(objects, numbers, seed);
  for (size_t i = 0; i < (size_t)objects.count * GPU_COMPACT_LINKS; i++)
    objects.links[i] = GPU_COMPACT_NONE;
  for (unsigned i = 0; i < left; i++)
    for (unsigned j = 0; j < GPU_COMPACT_LINKS; j++) {
      unsigned *link = &objects.links[numbers[i] * GPU_COMPACT_LINKS + j];
      unsigned to = shape == LIST ? (j == 0 ? i + 1 : left) : GPU_COMPACT_LINKS * i + 1 + j;
      if (shape == GRAPH)
        to = gpu_random(&seed) % (left + left / 8); /* an eighth of them lead nowhere */
      if (to < left)
        *link = numbers[to];
    }
  free(numbers);
  GPU_OK(gpu_compact_link(objects));
  GPU_OK(cudaDeviceSynchronize());
}

static void objects_sound(struct gpu_objects objects, struct gpu_compact_tally *tally) {
  memset(tally, 0, sizeof *tally);
  GPU_OK(gpu_compact_check(objects, tally));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(tally->wrong_objects, 0);
  ck_assert_uint_eq(tally->wrong_links, 0);
  ck_assert_uint_eq(tally->wrong_bytes, 0);
  unsigned live = 0;
  for (unsigned i = 0; i < objects.count; i++)
    live += objects.table[i] != NULL;
  ck_assert_uint_eq(tally->live, live);
}

static MAM_HeapCompactInfo compact(const struct gpu_heap *heap, unsigned targets, unsigned pass_limit) {
  MAM_HeapCompactOptions options = MAM_HEAP_COMPACT_OPTIONS_INIT;
  MAM_HeapCompactInfo info = {.struct_size = sizeof info};
  options.targets = targets;
  options.pass_limit = pass_limit;
  MAM_OK(MAM_HeapCompact(heap->heap, &options, &info));
  return info;
}

/* Fails unless each span of the heap but one is as full as n asks for, and the numbers agree with those of
 * MAM_HeapGetInfo, which are counted in another way. */
static void is_compact(const struct gpu_heap *heap, const MAM_HeapCompactInfo *info, unsigned n, size_t live,
                       size_t bytes) {
  double spans = info->bytes_after / (double)(bytes * 256); /* at least */
  ck_assert_uint_eq(info->live_count, live);
  ck_assert_uint_eq(gpu_heap_info(heap).live_count, live);
  ck_assert_uint_le(info->bytes_after, info->bytes_before);
  if (spans >= 2)
    ck_assert_double_lt(info->fragmentation_after, 1.0 / (n + 1) + 1 / (spans - 1));
  ck_assert_double_ge(info->bytes_after * (1 - info->fragmentation_after) * 1.001, (double)live * (double)bytes * 0.99);
}

/* ---- Linked objects ---------------------------------------------------------------------------------------------- */

static const unsigned targets_tried[] = {1, 2, 3, 5, 16};

START_TEST(linked_objects_stay_what_they_are) {
  unsigned n = targets_tried[_i / SHAPES], shape = (unsigned)_i % SHAPES;
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, scaled(100000), 64, tally);
  objects_thin(&heap, objects, 40, 7);
  objects_link(objects, (enum shape)shape, 11);
  objects_sound(objects, tally);
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, objects.table, objects.count));
  MAM_HeapCompactInfo info = compact(&heap, n, 0);
  objects_sound(objects, tally);
  is_compact(&heap, &info, n, tally->live, 64);
  ck_assert_uint_gt(info.moved_count, 0);
  (void)printf("%s, n %u: %u passes, fragmentation %.3f to %.3f\n", shape_names[shape], n, info.pass_count,
               info.fragmentation_before, info.fragmentation_after);
  GPU_OK(gpu_compact_create(heap.handle, objects, tally)); /* the heap still serves */
  objects_link(objects, GRAPH, 3);
  objects_sound(objects, tally);
}
END_TEST

/* A kernel follows the list from one pointer, without the table. */
START_TEST(a_list_is_walked_in_its_order) {
  struct gpu_heap heap = gpu_heap_of(64 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, scaled(40000), 48, tally);
  struct gpu_object **head = gpu_heap_array(sizeof *head);
  objects_thin(&heap, objects, 30, 5);
  objects_link(objects, LIST, 17);
  unsigned count = 0, *before = gpu_heap_array(objects.count * sizeof *before),
           *after = gpu_heap_array(objects.count * sizeof *after);
  for (unsigned i = 0; i < objects.count; i++)
    count += objects.table[i] != NULL;
  *head = objects.table[0];
  GPU_OK(gpu_compact_walk(head, count + 1, before));
  GPU_OK(cudaDeviceSynchronize());
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, head, 1));
  (void)compact(&heap, 1, 0);
  GPU_OK(gpu_compact_walk(head, count + 1, after));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_ne(before[count - 1], GPU_COMPACT_NONE);
  ck_assert_uint_eq(before[count], GPU_COMPACT_NONE);
  ck_assert_mem_eq(before, after, (count + 1) * sizeof *before);
}
END_TEST

START_TEST(kernels_forward_their_own_pointers) {
  struct gpu_heap heap = gpu_heap_of(128 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, scaled(60000), 96, tally);
  objects_thin(&heap, objects, 35, 3);
  objects_link(objects, GRAPH, 23);
  MAM_OK(MAM_HeapCompactBegin(heap.heap, NULL, NULL));
  GPU_OK(gpu_compact_forward(heap.handle, objects));
  objects_sound(objects, tally);
  GPU_OK(gpu_compact_forward(heap.handle, objects)); /* a second time changes nothing */
  objects_sound(objects, tally);
  MAM_OK(MAM_HeapCompactEnd(heap.heap));
  objects_sound(objects, tally);
}
END_TEST

START_TEST(any_fill_level_ends_below_the_bound) {
  static const unsigned percents[] = {0, 2, 10, 25, 40, 60, 80, 95, 100};
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, scaled(80000), 64, tally);
  unsigned n = targets_tried[_i];
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, objects.table, objects.count));
  for (unsigned i = 0; i < sizeof percents / sizeof percents[0]; i += gpu_small() ? 4 : 1) {
    objects_thin(&heap, objects, percents[i], i);
    objects_link(objects, GRAPH, i);
    MAM_HeapCompactInfo info = compact(&heap, n, 0);
    objects_sound(objects, tally);
    is_compact(&heap, &info, n, tally->live, 64);
    GPU_OK(gpu_compact_create(heap.handle, objects, tally));
  }
}
END_TEST

START_TEST(types_of_all_sizes_are_compacted_together) {
  static const unsigned sizes[] = {32, 48, 80, 160, 448, 1000, 3000, 10000, 32768};
  enum { TYPES = sizeof sizes / sizeof sizes[0] };
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects[TYPES];
  size_t live = 0;
  unsigned long long *slots = gpu_heap_slots(scaled(20000));
  struct gpu_heap_traffic traffic = {.count = scaled(20000), .low = 16, .high = 3000, .seed = 5};
  struct gpu_heap_tally *untyped = gpu_heap_tally_new();
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, untyped, NULL));
  for (int i = 0; i < TYPES; i++) {
    objects[i] = objects_new(&heap, scaled(3000000 / sizes[i]) + 2, sizes[i], tally);
    objects_thin(&heap, objects[i], 30, (uint64_t)i);
    objects_link(objects[i], GRAPH, (uint64_t)i);
    MAM_OK(MAM_HeapRegisterRoots(heap.heap, objects[i].table, objects[i].count));
  }
  GPU_OK(gpu_heap_release(heap.handle, traffic, 0, 0, 2, slots, untyped, NULL));
  MAM_HeapCompactInfo info = compact(&heap, 2, 0);
  for (int i = 0; i < TYPES; i++) {
    objects_sound(objects[i], tally);
    live += tally->live;
  }
  ck_assert_uint_eq(info.live_count, live);
  ck_assert_double_lt(info.fragmentation_after, info.fragmentation_before);
  GPU_OK(gpu_heap_check(traffic, slots, untyped, NULL));
  gpu_heap_sound(untyped);
}
END_TEST

START_TEST(objects_are_listed_for_kernels) {
  struct gpu_heap heap = gpu_heap_of(128 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, scaled(60000), 48, tally);
  void **listed = gpu_heap_array((objects.count + 1) * sizeof *listed);
  size_t count = 0, steps = 0;
  (void)type_new(&heap, 64);
  objects_thin(&heap, objects, 55, 3);
  objects_link(objects, GRAPH, 3);
  objects_sound(objects, tally);
  MAM_OK(MAM_HeapObjects(heap.heap, objects.type, NULL, 0, &count));
  ck_assert_uint_eq(count, tally->live);
  MAM_OK(MAM_HeapObjects(heap.heap, objects.type, listed, objects.count, &count));
  ck_assert_uint_eq(count, tally->live);
  ck_assert_ptr_null(listed[count]);
  for (size_t i = 1; i < count; i++)
    steps += listed[i] > listed[i - 1];
  ck_assert_uint_gt(steps, count * 9 / 10); /* mostly in order of address */
  /* The list has the same objects as the table. */
  unsigned long long sum = 0, wanted = 0;
  for (unsigned i = 0; i < objects.count; i++)
    wanted += (unsigned long long)(uintptr_t)objects.table[i];
  for (size_t i = 0; i < count; i++)
    sum += (unsigned long long)(uintptr_t)listed[i];
  ck_assert_uint_eq(sum, wanted);
  MAM_IS(MAM_HeapObjects(heap.heap, 0, listed, objects.count, &count), cudaErrorInvalidValue);
  MAM_IS(MAM_HeapObjects(heap.heap, objects.type + (5 << 6), listed, objects.count, &count), cudaErrorInvalidValue);
}
END_TEST

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

START_TEST(won_memory_goes_to_the_pool) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  const size_t superblock = gpu_small() ? 8 * MIB : 32 * MIB, wanted = 5 * superblock;
  options.bytes = superblock;
  options.limit_bytes = 8 * superblock;
  struct gpu_heap heap = gpu_heap_new(&options);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  for (int i = 0; i < 7; i++)
    MAM_OK(MAM_HeapGrow(heap.heap, superblock));
  struct gpu_objects objects = objects_new(&heap, (unsigned)(superblock / MIB) * 58750, 128, tally);
  objects_thin(&heap, objects, 20, 9);
  objects_link(objects, GRAPH, 9);
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, objects.table, objects.count));
  size_t before = gpu_heap_info(&heap).reserved_bytes;
  void *block = NULL;
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  ck_assert_uint_eq(gpu_heap_info(&heap).reserved_bytes, before); /* every superblock has objects */
  MAM_IS(MAM_PoolMalloc(heap.pool, &block, wanted), cudaErrorMemoryAllocation);
  MAM_HeapCompactInfo info = compact(&heap, 2, 0);
  objects_sound(objects, tally);
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  size_t after = gpu_heap_info(&heap).reserved_bytes;
  (void)printf("heap of %zu MiB: %zu MiB of pages to %zu, %zu MiB after trimming\n", before / MIB,
               info.bytes_before / MIB, info.bytes_after / MIB, after / MIB);
  ck_assert_uint_le(after, before / 2);
  MAM_OK(MAM_PoolMalloc(heap.pool, &block, wanted));
  MAM_OK(MAM_CudaFree(block));
  objects_sound(objects, tally);
}
END_TEST

START_TEST(moved_pages_serve_large_requests_again) {
  const size_t bytes = gpu_small() ? 8 * MIB : 64 * MIB;
  struct gpu_heap heap = gpu_heap_of(bytes);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_heap_tally *asked = gpu_heap_tally_new();
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_objects objects = objects_new(&heap, (unsigned)(bytes / MIB) * 5300, 128, tally);
  objects_thin(&heap, objects, 20, 9);
  objects_link(objects, GRAPH, 9);
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, objects.table, objects.count));
  GPU_OK(gpu_heap_ask(heap.handle, bytes / 2, slot, asked, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(asked->served, 0);
  (void)compact(&heap, 3, 0);
  GPU_OK(gpu_heap_ask(heap.handle, bytes / 2, slot, asked, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(asked->served, 1);
  objects_sound(objects, tally);
}
END_TEST

/* ---- Types ---- */

/* A program has two heaps and takes a type of one for one of the other.  That heap has no type of the number, or one of
 * another size. */
START_TEST(a_type_is_one_of_its_heap_alone) {
  struct gpu_heap mine = gpu_heap_of(16 * MIB), other = gpu_heap_of(16 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  static const unsigned sizes[] = {4096, 64, 32768};
  MAM_HeapInfo info = {.struct_size = sizeof info};
  struct gpu_objects objects = {.count = 4096};
  mam_type own = type_new(&other, 512);
  objects.table = gpu_heap_array(objects.count * sizeof *objects.table);
  for (unsigned i = 0; i < 3; i++) {
    size_t count = 77;
    objects.bytes = sizes[i];
    objects.type = type_new(&mine, sizes[i]);
    tally->refused = 0;
    GPU_OK(gpu_compact_create(other.handle, objects, tally));
    GPU_OK(cudaDeviceSynchronize());
    for (unsigned j = 0; j < objects.count; j++)
      ck_assert_msg(objects.table[j] == NULL, "%u bytes: object %u is at %p", sizes[i], j, (void *)objects.table[j]);
    ck_assert_uint_eq(tally->refused, objects.count);
    MAM_IS(MAM_HeapObjects(other.heap, objects.type, NULL, 0, &count), cudaErrorInvalidValue);
    ck_assert_uint_eq(count, 77);
    ck_assert_uint_ne(objects.type, own);
  }
  /* Nor is any number a type that differs from one in a bit: it might have another size. */
  objects.bytes = 512;
  for (unsigned bit = 0; bit < 32; bit++) {
    size_t count = 77;
    objects.type = own ^ 1u << bit;
    tally->refused = 0;
    GPU_OK(gpu_compact_create(other.handle, objects, tally));
    GPU_OK(cudaDeviceSynchronize());
    ck_assert_msg(tally->refused == objects.count, "bit %u: %llu refused", bit, (unsigned long long)tally->refused);
    MAM_IS(MAM_HeapObjects(other.heap, objects.type, NULL, 0, &count), cudaErrorInvalidValue);
  }
  MAM_OK(MAM_HeapGetInfo(other.heap, &info));
  ck_assert_uint_eq(info.live_count, 0);
  objects.type = own;
  objects.count = 1000;
  tally->refused = 0;
  GPU_OK(gpu_compact_create(other.handle, objects, tally));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(tally->refused, 0);
}
END_TEST

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

START_TEST(use_during_a_compaction_is_refused) {
  struct gpu_heap heap = gpu_heap_of(64 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, 5000, 64, tally);
  MAM_HeapInfo info = {.struct_size = sizeof info};
  MAM_HeapTypeOptions type_options = MAM_HEAP_TYPE_OPTIONS_INIT;
  type_options.bytes = 64;
  size_t count = 77;
  mam_type type = 77;
  char *report = NULL;
  mam_device_heap handle;
  MAM_IS(MAM_HeapCompactEnd(heap.heap), cudaErrorIllegalState);
  MAM_OK(MAM_HeapCompactBegin(heap.heap, NULL, NULL));
  MAM_IS(MAM_HeapCompactBegin(heap.heap, NULL, NULL), cudaErrorIllegalState);
  ck_assert_str_ne(MAM_LastError(), "");
  MAM_IS(MAM_HeapCompact(heap.heap, NULL, NULL), cudaErrorIllegalState);
  MAM_IS(MAM_HeapGrow(heap.heap, MIB), cudaErrorIllegalState);
  MAM_IS(MAM_HeapTrim(heap.heap, 0), cudaErrorIllegalState);
  MAM_IS(MAM_HeapReset(heap.heap), cudaErrorIllegalState);
  MAM_IS(MAM_HeapGetInfo(heap.heap, &info), cudaErrorIllegalState);
  MAM_IS(MAM_HeapList(heap.heap, NULL, 0, &count), cudaErrorIllegalState);
  MAM_IS(MAM_HeapReport(heap.heap, &report), cudaErrorIllegalState);
  MAM_IS(MAM_HeapFree(heap.heap, objects.table[0]), cudaErrorIllegalState);
  MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorIllegalState);
  MAM_IS(MAM_HeapRegisterRoots(heap.heap, objects.table, 1), cudaErrorIllegalState);
  ck_assert_uint_eq(count, 77);
  ck_assert_uint_eq(type, 77);
  MAM_OK(MAM_HeapHandle(heap.heap, &handle));
  MAM_OK(MAM_HeapCompactEnd(heap.heap));
  MAM_IS(MAM_HeapCompactEnd(heap.heap), cudaErrorIllegalState);
  MAM_OK(MAM_HeapGetInfo(heap.heap, &info));
}
END_TEST

START_TEST(a_kernel_that_allocates_meanwhile_is_noticed) {
  struct gpu_heap heap = gpu_heap_of(64 * MIB);
  struct gpu_compact_tally *tally = gpu_heap_array(sizeof *tally);
  struct gpu_objects objects = objects_new(&heap, 5000, 64, tally);
  MAM_OK(MAM_HeapCompactBegin(heap.heap, NULL, NULL));
  GPU_OK(gpu_compact_forward(heap.handle, objects));
  GPU_OK(cudaDeviceSynchronize());
  objects.table[0] = NULL;
  GPU_OK(gpu_compact_create(heap.handle, objects, tally));
  GPU_OK(cudaDeviceSynchronize());
  MAM_IS(MAM_HeapCompactEnd(heap.heap), cudaErrorIllegalState);
  MAM_OK(MAM_HeapCompact(heap.heap, NULL, NULL));
}
END_TEST

START_TEST(wrong_arguments_are_refused) {
  static const size_t bad_offsets[] = {4, 64, 61};
  struct gpu_heap heap = gpu_heap_of(16 * MIB);
  MAM_HeapTypeOptions type_options = MAM_HEAP_TYPE_OPTIONS_INIT;
  MAM_HeapCompactOptions options = MAM_HEAP_COMPACT_OPTIONS_INIT;
  mam_type type = 77;
  void **roots = gpu_heap_array(64);
  MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorInvalidValue);
  type_options.bytes = 32769;
  MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorInvalidValue);
  type_options.bytes = 64;
  type_options.pointer_count = 1;
  MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorInvalidValue);
  for (int i = 0; i < 3; i++) {
    type_options.pointer_offsets = &bad_offsets[i];
    MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorInvalidValue);
  }
  ck_assert_uint_eq(type, 77);
  for (int i = 0; i < MAM_HEAP_TYPES; i++)
    (void)type_new(&heap, 64);
  type_options.pointer_count = 0;
  MAM_IS(MAM_HeapRegisterType(heap.heap, &type_options, &type), cudaErrorMemoryAllocation);
  MAM_IS(MAM_HeapRegisterRoots(heap.heap, NULL, 1), cudaErrorInvalidValue);
  MAM_IS(MAM_HeapRegisterRoots(heap.heap, roots, 0), cudaErrorInvalidValue);
  MAM_IS(MAM_HeapRegisterRoots(heap.heap, (char *)roots + 4, 1), cudaErrorInvalidValue);
  MAM_OK(MAM_HeapRegisterRoots(heap.heap, roots, 8));
  MAM_IS(MAM_HeapRegisterRoots(heap.heap, roots, 8), cudaErrorAlreadyAcquired);
  MAM_OK(MAM_HeapForgetRoots(heap.heap, roots));
  MAM_IS(MAM_HeapForgetRoots(heap.heap, roots), cudaErrorInvalidValue);
  options.targets = 0;
  MAM_IS(MAM_HeapCompact(heap.heap, &options, NULL), cudaErrorInvalidValue);
  options.targets = 17;
  MAM_IS(MAM_HeapCompact(heap.heap, &options, NULL), cudaErrorInvalidValue);
  options.targets = 3;
  options.targets_first = 4;
  MAM_IS(MAM_HeapCompact(heap.heap, &options, NULL), cudaErrorInvalidValue);
  options.targets_first = 0;
  MAM_IS(MAM_HeapCompact(heap.heap, &options, NULL), cudaErrorInvalidValue);
  MAM_OK(MAM_HeapCompact(heap.heap, NULL, NULL)); /* the heap is empty */
}
END_TEST

static Suite *compact_suite(void) {
  Suite *suite = suite_create("defragmentation");
  TCase *linked = gpu_heap_case_add(suite, "linked objects");
  int tried = gpu_small() ? 2 : sizeof targets_tried / sizeof targets_tried[0]; /* a sanitizer is slow */
  tcase_add_loop_test(linked, linked_objects_stay_what_they_are, 0, tried * SHAPES);
  tcase_add_test(linked, a_list_is_walked_in_its_order);
  tcase_add_test(linked, kernels_forward_their_own_pointers);
  tcase_add_loop_test(linked, any_fill_level_ends_below_the_bound, 0, tried);
  tcase_add_test(linked, types_of_all_sizes_are_compacted_together);
  tcase_add_test(linked, objects_are_listed_for_kernels);
  TCase *memory = gpu_heap_case_add(suite, "memory");
  tcase_add_test(memory, won_memory_goes_to_the_pool);
  tcase_add_test(memory, moved_pages_serve_large_requests_again);
  TCase *misuse = gpu_heap_case_add(suite, "misuse");
  tcase_add_test(misuse, use_during_a_compaction_is_refused);
  tcase_add_test(misuse, a_kernel_that_allocates_meanwhile_is_noticed);
  tcase_add_test(misuse, wrong_arguments_are_refused);
  tcase_add_test(misuse, a_type_is_one_of_its_heap_alone);
  return suite;
}

int main(void) { return gpu_heap_main(compact_suite); }
