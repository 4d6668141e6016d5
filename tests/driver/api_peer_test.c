/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A block of the library against one of cudaMalloc, on a machine with several devices, over the fake driver: whether
 * kernels of a peer reach it, whenever peer access was enabled; what the driver says about it; what the program can ask
 * about it.
 */
#include "api_util.h"

#include "api/client.h"

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long address);

static void *contexts[2];

/* Two devices that can reach each other's memory, each with its primary context.  The first one is current. */
static void use_peers(void) {
  fake_set_devices(2);
  fake_set_peers();
  contexts[1] = use_primary(1);
  contexts[0] = use_primary(0);
}

static void enable_both(void) {
  fake_peer_enable(contexts[0], 1);
  fake_peer_enable(contexts[1], 0);
}

/* Starts a kernel on the device's default stream that uses the block. */
static void start_on(int device, const char *address, size_t bytes) {
  const struct fake_range range = {address, bytes};
  void *before = fake_current();
  fake_make_current(contexts[device]);
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  fake_make_current(before);
}

static void run_on(int device, const char *address, size_t bytes) {
  start_on(device, address, bytes);
  fake_finish(contexts[device]);
}

static const char *const sources[] = {"auto", "vmm", "chunks"};

START_TEST(kernel_of_a_peer_reaches_a_block_of_before) {
  setenv("MAM_SOURCE", sources[_i], 1);
  use_peers();
  char *first = block(MIB);
  fake_make_current(contexts[1]);
  char *second = block(MIB);
  enable_both();
  run_on(1, first, MIB);
  run_on(0, second, MIB);
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

START_TEST(kernel_of_a_peer_reaches_a_block_of_after) {
  setenv("MAM_SOURCE", sources[_i], 1);
  use_peers();
  enable_both();
  char *first = block(MIB);
  fake_make_current(contexts[1]);
  char *second = block(MIB);
  run_on(1, first, MIB);
  run_on(0, second, MIB);
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

/* Small blocks, large ones, and growth of the pool for them. */
START_TEST(kernel_of_a_peer_reaches_what_a_pool_grew_by) {
  static const size_t sizes[] = {1000, 100 * KIB, 3 * MIB, 64 * MIB, 200 * MIB, 700 * MIB};
  setenv("MAM_SOURCE", sources[_i], 1);
  use_peers();
  enable_both();
  OK(MAM_Create_auto());
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    run_on(1, block(sizes[i]), sizes[i]);
  ck_assert_uint_eq(fake_faults(), 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(kernel_of_a_peer_reaches_a_pool_of_the_program_s_own) {
  static const MAM_Source kinds[] = {MAM_SOURCE_DEVICE, MAM_SOURCE_VMM};
  MAM_PoolOptions options = options_with(4 * MIB);
  use_peers();
  enable_both();
  options.source = kinds[_i];
  options.limit_bytes = 128 * MIB;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, 12 * MIB), *b = block_of(pool, 4 * MIB), *c = block_of(pool, 12 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(c));
  run_on(1, block_of(pool, 24 * MIB), 24 * MIB); /* in memory that moves, if it can */
  ck_assert_int_eq(fake_calls("cuMemRetainAllocationHandle") > 0, kinds[_i] == MAM_SOURCE_VMM);
  run_on(1, b, 4 * MIB);
  run_on(1, block_of(pool, 3 * MIB), 3 * MIB);
  run_on(1, block_of(pool, 30 * MIB), 30 * MIB);
  ck_assert_uint_eq(fake_faults(), 0);
  OK(MAM_PoolDestroy(pool));
}
END_TEST

/* The peer reaches mapped memory even if the program did not enable peer access. */
START_TEST(mapped_memory_that_a_peer_uses_comes_back_when_its_work_is_done) {
  void *pointer = NULL;
  setenv("MAM_SOURCE", "vmm", 1);
  use_peers();
  OK(MAM_Create(64 * MIB));
  char *a = block(64 * MIB);
  start_on(1, a, 64 * MIB);
  OK(MAM_CudaFree(a));
  fake_fail("cuCtxSynchronize", 1, 719); /* this wait would finish the work, so it must fail */
  FAILS((cudaError_t)719, MAM_CudaMalloc(&pointer, 64 * MIB));
  fake_finish(contexts[1]);
  ck_assert_ptr_eq(block(64 * MIB), a);
  ck_assert_uint_eq(fake_faults(), 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* As mam-run hears it: the program waits in the block's context, and a peer's kernel runs on.  No fence has asked yet
 * which peers there are. */
START_TEST(wait_of_the_program_is_none_for_the_kernel_of_a_peer) {
  uint64_t epoch = 0;
  setenv("MAM_SOURCE", "chunks", 1);
  use_peers();
  enable_both();
  OK(MAM_Create(64 * MIB));
  char *a = block(4 * MIB);
  start_on(1, a, 4 * MIB);
  OK(MAM_CudaFree(a));
  struct reuse *reuse = mam_client.wait_begin(NULL, &epoch);
  ck_assert_ptr_nonnull(reuse);
  fake_finish(contexts[0]);
  mam_client.wait_end(reuse, epoch);
  char *b = block(4 * MIB);
  ck_assert_ptr_ne(b, a);
  OK(MAM_CudaFree(b));
  fake_finish(contexts[1]);
  ck_assert_uint_eq(fake_faults(), 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* Where there are no fences, a free may wait, and then it asks which peers can use the memory: by a small block, for
 * which a full device has no room. */
START_TEST(free_succeeds_on_a_full_device_of_two) {
  enum { BLOCKS = 32 };
  void *blocks[BLOCKS], *others[64];
  unsigned count = 0;
  fake_hide("cuCtxRecordEvent");
  setenv("MAM_SOURCE", "chunks", 1);
  use_peers();
  for (unsigned i = 0; i < BLOCKS; i++)
    blocks[i] = block(4 * MIB);
  for (size_t bytes = 1024 * MIB; bytes >= 1; bytes /= 2)
    while (count < 64 && cuMemAlloc_v2((unsigned long long *)&others[count], bytes) == 0)
      count++;
  for (unsigned i = 0; i < BLOCKS; i++)
    OK(MAM_CudaFree(blocks[i]));
  while (count > 0)
    (void)cuMemFree_v2((unsigned long long)(uintptr_t)others[--count]);
}
END_TEST

/* A program that does not use peers must not lose memory for them. */
START_TEST(peer_that_is_refused_leaves_the_device_its_memory) {
  setenv("MAM_SOURCE", "vmm", 1);
  use_peers();
  fake_fail("cuMemSetAccess", 1, 801);
  run_on(0, block(MIB), MIB);
  ck_assert_uint_eq(fake_failures(), 1);
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

/* Other libraries ask for the range that a block lies in, and rely on a range of at least the block. */
START_TEST(on_a_machine_with_peers_the_driver_s_range_covers_a_block) {
  static const size_t sizes[] = {1000, 3 * MIB, 100 * MIB, 70 * MIB, 1024 * MIB};
  unsigned long long base;
  size_t bytes;
  use_peers();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    unsigned long long address = (uintptr_t)block(sizes[i]);
    ck_assert_int_eq(cuMemGetAddressRange_v2(&base, &bytes, address), 0);
    ck_assert_uint_le(base, address);
    ck_assert_uint_ge(base + bytes, address + sizes[i]);
  }
}
END_TEST

/* The library also takes a piece of memory about which it asks whether peers have access. */
START_TEST(on_a_machine_with_peers_memory_is_taken_as_it_is_needed_and_given_back) {
  const size_t piece_bytes = FAKE_GRANULARITY_BYTES;
  use_peers();
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_live_bytes(), 0);
  char *small = block(MIB), *large = block(GIB);
  ck_assert_uint_le(fake_live_bytes(), GIB + 64 * MIB + piece_bytes);
  OK(MAM_CudaFree(large));
  OK(MAM_Trim(0));
  ck_assert_uint_le(fake_live_bytes(), 64 * MIB + piece_bytes);
  OK(MAM_CudaFree(small));
  OK(MAM_Trim(0));
  ck_assert_uint_le(fake_live_bytes(), piece_bytes);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 4 * GIB - 256 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&(void *){NULL}, 4 * GIB));
  char *all = block(4 * GIB - 256 * MIB);
  OK(MAM_CudaFree(all));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* Each free chunk is too small, and the limit leaves no room for another chunk beside them. */
START_TEST(free_chunks_give_way_to_one_that_is_large_enough) {
  char *blocks[3];
  use_peers();
  OK(MAM_Create_auto());
  for (int i = 0; i < 3; i++)
    blocks[i] = block(GIB);
  char *stays = block(100 * KIB);
  if (_i == 1) /* another program has the rest: the driver refuses before the limit does */
    fake_set_capacity(3 * GIB + 128 * MIB);
  for (int i = 0; i < 3; i++)
    OK(MAM_CudaFree(blocks[i]));
  char *large = block(2 * GIB + 512 * MIB);
  ck_assert(fake_holds(large, 2 * GIB + 512 * MIB));
  ck_assert(fake_holds(stays, 100 * KIB));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* A kernel uses what was freed.  Once it has ended, the chunks are free, and they make room for one that is larger. */
START_TEST(chunks_that_wait_give_way_too) {
  char *blocks[16];
  if (_i == 1)
    use_driver_without_fences();
  use_primary(0);
  OK(MAM_CreateWith(0, "chunks", "600M"));
  for (int i = 0; i < 16; i++)
    blocks[i] = block(32 * MIB);
  const struct fake_range range = {blocks[0], 32 * MIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  for (int i = 0; i < 16; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert(fake_holds(block(600 * MIB), 600 * MIB));
  ck_assert_uint_eq(info_of(NULL).failure_count, 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* A loop over one size after another in one pool: blocks that a thread keeps of one size must not starve the next size.
 * Each pair asks for the id of the current context, and a fence serves at least four pairs.  With another device whose
 * context is asked about, a fence takes some seven calls. */
START_TEST(pairs_of_any_size_make_few_calls_of_the_driver) {
  enum { warm_up = 10000, pairs = 10000, calls_most = 32000 };
  setenv("MAM_SOURCE", "chunks", 1);
  setenv("MAM_LINGER_MS", "1000000", 1); /* so that a pause of the thread does not make the pool calm */
  fake_set_capacity(140 * GIB);
  use_peers();
  OK(MAM_Create_auto());
  for (unsigned bits = 0; bits <= 30; bits += 2 - (unsigned)_i) {
    unsigned calls = 0, blocks = 0;
    for (int i = 0; i < warm_up + pairs; i++) {
      if (i == warm_up) {
        calls = fake_calls(NULL);
        blocks = fake_calls("cuMemAlloc") + fake_calls("cuMemFree");
      }
      OK(MAM_CudaFree(block((size_t)1 << bits)));
    }
    calls = fake_calls(NULL) - calls;
    ck_assert_msg(calls <= calls_most, "%u calls for %d pairs of 2^%u bytes", calls, pairs, bits);
    ck_assert_uint_eq(fake_calls("cuMemAlloc") + fake_calls("cuMemFree"), blocks);
  }
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(without_peers_memory_is_mapped) {
  fake_set_devices(2);
  use_primary(0);
  (void)block(MIB);
  ck_assert_uint_gt(fake_calls("cuMemMap"), 0);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 0);
}
END_TEST

START_TEST(mapped_memory_can_be_exported_and_reached_by_other_adapters) {
  use_primary(0);
  char *a = block(40 * MIB);
  ck_assert(fake_exportable(a, 40 * MIB));
  ck_assert(fake_rdma_capable(a, 40 * MIB));
}
END_TEST

START_TEST(mapped_memory_is_plain_where_the_driver_refuses_more) {
  fake_set_shares_nothing();
  use_primary(0);
  char *a = block(40 * MIB);
  ck_assert(!fake_exportable(a, 40 * MIB));
  ck_assert(fake_holds(a, 40 * MIB));
  OK(MAM_CudaFree(a));
  assert_nothing_held();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("api_peer");
  TCase *peers = add_case(suite, "peers"), *driver = add_case(suite, "what the driver says");
  TCase *pairs = add_case(suite, "pairs");
  tcase_set_timeout(pairs, 60); /* for so many pairs */
  tcase_add_loop_test(peers, kernel_of_a_peer_reaches_a_block_of_before, 0, 3);
  tcase_add_loop_test(peers, kernel_of_a_peer_reaches_a_block_of_after, 0, 3);
  tcase_add_loop_test(peers, kernel_of_a_peer_reaches_what_a_pool_grew_by, 0, 3);
  tcase_add_loop_test(peers, kernel_of_a_peer_reaches_a_pool_of_the_program_s_own, 0, 2);
  tcase_add_test(peers, mapped_memory_that_a_peer_uses_comes_back_when_its_work_is_done);
  tcase_add_test(peers, wait_of_the_program_is_none_for_the_kernel_of_a_peer);
  tcase_add_test(peers, free_succeeds_on_a_full_device_of_two);
  tcase_add_test(peers, peer_that_is_refused_leaves_the_device_its_memory);
  tcase_add_test(driver, on_a_machine_with_peers_the_driver_s_range_covers_a_block);
  tcase_add_test(driver, on_a_machine_with_peers_memory_is_taken_as_it_is_needed_and_given_back);
  tcase_add_loop_test(driver, free_chunks_give_way_to_one_that_is_large_enough, 0, 2);
  tcase_add_loop_test(driver, chunks_that_wait_give_way_too, 0, 2);
  tcase_add_loop_test(pairs, pairs_of_any_size_make_few_calls_of_the_driver, 0, 2);
  tcase_add_test(driver, without_peers_memory_is_mapped);
  tcase_add_test(driver, mapped_memory_can_be_exported_and_reached_by_other_adapters);
  tcase_add_test(driver, mapped_memory_is_plain_where_the_driver_refuses_more);
  return run_suite(suite);
}
