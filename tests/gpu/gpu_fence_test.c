/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks are freed while kernels use them.  No other kernel may get their memory before, except under immediate reuse,
 * and no call waits for those kernels as long as there is memory.  The driver confirms what a pool of mapped pieces
 * takes and gives back.  The program needs a GPU and exits with 77 without one.
 */
#include "gpu_kernels.h"
#include "gpu_traffic.h"
#include "gpu_util.h"

enum {
  TRAFFIC_MS = 1500,
  OPERATIONS = 100000,
  ATTEMPTS = 3,        /* for the longest call: the host may be busy with something else once */
  SPIN_MAX_MS = 10000, /* of the kernel that no call may wait for; the test ends it */
  PROMPT_MS = 50,      /* for one call that may map or unmap memory */
};

/* ---- Holders ----------------------------------------------------------------------------------------------------- */

/* Runs the traffic for a while; returns the faults.  It is a test only if many kernels ran. */
static uint64_t faults_of(const struct traffic_options *options) {
  uint64_t kernels = 0;
  struct traffic *traffic = traffic_begin(options);
  (void)usleep((gpu_small() ? 200 : TRAFFIC_MS) * 1000);
  uint64_t faults = traffic_end(traffic, &kernels);
  ck_assert_msg(gpu_small() || kernels > 1000, "only %llu kernels ran", (unsigned long long)kernels);
  return faults;
}

static const size_t traffic_chunk_bytes = (size_t)2 << 30;

static MAM_Pool pool_of(MAM_Reuse reuse) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.reuse = reuse;
  options.chunk_bytes = traffic_chunk_bytes;
  return gpu_pool_new(&options);
}

/* When nothing runs, all that was freed can be allocated again. */
static void pool_is_whole(MAM_Pool pool) {
  void *all = NULL;
  GPU_OK(cudaDeviceSynchronize());
  MAM_PoolInfo info = gpu_pool_info(pool);
  ck_assert_uint_eq(info.used_bytes, 0);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count);
  MAM_OK(MAM_PoolMalloc(pool, &all, info.reserved_bytes));
  MAM_OK(MAM_CudaFree(all));
}

static void no_fault_in_pool(MAM_Reuse reuse, enum traffic_calls calls, enum traffic_sizes sizes) {
  const struct traffic_options traffic = {.pool = pool_of(reuse), .calls = calls, .sizes = sizes, .threads = 4};
  uint64_t faults = faults_of(&traffic);
  ck_assert_msg(faults == 0, "%llu bytes were changed under the kernels that held them", (unsigned long long)faults);
  pool_is_whole(traffic.pool);
}

/* _i is the kind of sizes, here and below. */
START_TEST(fenced_blocks_are_left_to_their_kernels) {
  no_fault_in_pool(MAM_REUSE_FENCED, TRAFFIC_PLAIN, (enum traffic_sizes)_i);
}
END_TEST

START_TEST(stream_ordered_blocks_are_left_to_their_kernels) {
  no_fault_in_pool(MAM_REUSE_FENCED, TRAFFIC_ASYNC, (enum traffic_sizes)_i);
}
END_TEST

START_TEST(plain_and_stream_ordered_calls_mix) {
  no_fault_in_pool(MAM_REUSE_FENCED, TRAFFIC_MIXED, (enum traffic_sizes)_i);
}
END_TEST

START_TEST(default_pool_leaves_blocks_to_their_kernels) {
  MAM_OK(MAM_Create(traffic_chunk_bytes));
  const struct traffic_options traffic = {.calls = (enum traffic_calls)_i, .sizes = TRAFFIC_ALL, .threads = 4};
  uint64_t faults = faults_of(&traffic);
  ck_assert_msg(faults == 0, "%llu bytes were changed under the kernels that held them", (unsigned long long)faults);
}
END_TEST

/* The same traffic finds memory that is handed out too early: without this test the ones above would prove nothing.  A
 * sanitizer may run kernels one after another, and then nothing is too early. */
START_TEST(immediate_reuse_is_caught) {
  const struct traffic_options traffic = {
      .pool = pool_of(MAM_REUSE_IMMEDIATE), .calls = TRAFFIC_PLAIN, .sizes = (enum traffic_sizes)_i, .threads = 4};
  uint64_t faults = faults_of(&traffic);
  ck_assert_msg(faults > 0 || gpu_small(), "no fault was found where blocks are handed out at once");
}
END_TEST

/* ---- No call waits ----------------------------------------------------------------------------------------------- */

/* A kernel that runs until it is told to end, on a stream that nothing else waits for. */
static struct {
  cudaStream_t stream;
  uint32_t *stop;
} slow;

static void slow_set_up(void) {
  GPU_OK(gpu_kernels_load());
  GPU_OK(cudaStreamCreateWithFlags(&slow.stream, cudaStreamNonBlocking));
  slow.stop = (uint32_t *)gpu_counter_new();
  GPU_OK(gpu_spin_then_fill(slow.stop, 0, NULL, 0, 0, slow.stream));
  GPU_OK(cudaStreamSynchronize(slow.stream));
}

static void slow_tear_down(void) {
  __atomic_store_n(slow.stop, 1, __ATOMIC_RELEASE);
  GPU_OK(cudaStreamSynchronize(slow.stream));
  GPU_OK(cudaStreamDestroy(slow.stream));
  GPU_OK(cudaFreeHost(slow.stop));
}

static bool slow_runs(void) {
  cudaError_t error = cudaStreamQuery(slow.stream);
  ck_assert_msg(error == cudaSuccess || error == cudaErrorNotReady, "cudaStreamQuery: %s", cudaGetErrorName(error));
  return error == cudaErrorNotReady;
}

/* Starts the kernel.  False only if launches wait for their kernels, as under a sanitizer. */
static bool slow_start(void) {
  __atomic_store_n(slow.stop, 0, __ATOMIC_RELEASE);
  GPU_OK(gpu_spin_then_fill(slow.stop, gpu_small() ? 10 : SPIN_MAX_MS, NULL, 0, 0, slow.stream));
  bool runs = slow_runs();
  ck_assert_msg(runs || gpu_small(), "the kernel that was to run on ended at once");
  return runs;
}

static void slow_end(void) {
  __atomic_store_n(slow.stop, 1, __ATOMIC_RELEASE);
  GPU_OK(cudaStreamSynchronize(slow.stream));
}

/* Mostly small sizes.  50,000 blocks have about 5 GiB, none of which may be used again while the kernel runs. */
static size_t mixed_size(uint64_t *random) {
  uint32_t kind = gpu_random(random) % 1000, number = gpu_random(random);
  if (kind < 640)
    return 1 + number % 4096;
  if (kind < 960)
    return 1 + number % 65536;
  if (kind < 999)
    return 1 + number % MIB;
  return 64 * MIB;
}

struct longest {
  double ms;
  const char *call;
  size_t bytes;
};

static void longest_note(struct longest *longest, double start_ms, const char *call, size_t bytes) {
  double took_ms = gpu_now_ms() - start_ms;
  if (took_ms > longest->ms)
    *longest = (struct longest){took_ms, call, bytes};
}

enum { LIVE = 64 };

/* Allocations and frees in random order, at most LIVE blocks at a time.  Returns the longest call. */
static struct longest calls_under_the_kernel(MAM_Pool pool, int operations) {
  struct longest longest = {0, "none", 0};
  void *blocks[LIVE] = {NULL};
  size_t sizes[LIVE] = {0};
  uint64_t random = 7;
  for (int i = 0; i < operations; i++) {
    unsigned slot = gpu_random(&random) % LIVE;
    double start_ms = 0;
    if (blocks[slot] == NULL) {
      sizes[slot] = mixed_size(&random);
      start_ms = gpu_now_ms();
      MAM_OK(MAM_PoolMalloc(pool, &blocks[slot], sizes[slot]));
      longest_note(&longest, start_ms, "MAM_PoolMalloc", sizes[slot]);
    } else {
      start_ms = gpu_now_ms();
      MAM_OK(MAM_CudaFree(blocks[slot]));
      longest_note(&longest, start_ms, "MAM_CudaFree", sizes[slot]);
      blocks[slot] = NULL;
    }
  }
  return longest;
}

/* Whether no call took a millisecond.  The pool is new, so all that was freed in it waits for the kernel. */
static bool no_call_waits(const MAM_PoolOptions *options) {
  MAM_Pool pool = gpu_pool_new(options);
  bool runs = slow_start();
  struct longest longest = calls_under_the_kernel(pool, gpu_small() ? 1000 : OPERATIONS);
  ck_assert_msg(!runs || slow_runs(), "the kernel ended before the calls did: nothing was tested");
  ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, 0);
  slow_end();
  MAM_OK(gpu_pool_end(pool));
  printf("longest of %d calls: %.3f ms, %s of %zu bytes\n", OPERATIONS, longest.ms, longest.call, longest.bytes);
  return !runs || longest.ms < 1;
}

/* If calls wait for the kernel, they do so in each attempt; if only the host paused, one attempt is free of it. */
static void nobody_waits(const MAM_PoolOptions *options) {
  bool prompt = false;
  for (int i = 0; i < ATTEMPTS && !prompt; i++)
    prompt = no_call_waits(options);
  ck_assert_msg(prompt, "in each of %d attempts a call took a millisecond or more while a kernel ran", ATTEMPTS);
}

START_TEST(no_call_waits_for_a_kernel_while_the_chunk_has_memory) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = 8 * GIB;
  options.waiting_limit_bytes = 8 * GIB;
  nobody_waits(&options);
}
END_TEST

START_TEST(no_call_waits_for_a_kernel_while_the_pool_can_grow) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_VMM;
  options.chunk_bytes = 64 * MIB;
  options.limit_bytes = 32 * GIB;
  options.waiting_limit_bytes = 32 * GIB;
  nobody_waits(&options);
}
END_TEST

/* ---- Growth and giving back -------------------------------------------------------------------------------------- */

enum { PIECES = 16 };
static const size_t piece_bytes = 64 * MIB;
static const size_t slack_bytes = 48 * MIB; /* page tables, and what the driver keeps for itself */

static size_t driver_free_bytes(void) {
  size_t free_bytes = 0, total_bytes = 0;
  GPU_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

static MAM_Pool limited_pool(size_t limit_bytes) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_VMM;
  options.chunk_bytes = piece_bytes;
  options.limit_bytes = limit_bytes;
  options.waiting_limit_bytes = limit_bytes;
  return gpu_pool_new(&options);
}

static MAM_Pool growing_pool(void) { return limited_pool(4 * GIB); }

/* The pool holds as much as the driver has lost. */
static void driver_agrees(MAM_Pool pool, size_t before_bytes) {
  size_t reserved_bytes = gpu_pool_info(pool).reserved_bytes, free_bytes = driver_free_bytes();
  size_t gone_bytes = before_bytes > free_bytes ? before_bytes - free_bytes : 0;
  ck_assert_msg(gone_bytes + slack_bytes >= reserved_bytes && gone_bytes <= reserved_bytes + slack_bytes,
                "the pool says that it holds %zu bytes, the driver has %zu less than before", reserved_bytes,
                gone_bytes);
}

static void piece_fill(void *piece, uint32_t seed) {
  GPU_OK(gpu_fill(piece, piece_bytes, seed, slow.stream));
  GPU_OK(cudaStreamSynchronize(slow.stream));
}

static void pieces_are(void *const *pieces) {
  uint64_t *mismatches = gpu_counter_new();
  for (uint32_t i = 0; i < PIECES; i++)
    if (pieces[i] != NULL)
      GPU_OK(gpu_check(pieces[i], piece_bytes, i, mismatches, slow.stream));
  GPU_OK(cudaStreamSynchronize(slow.stream));
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}

static void pieces_new(MAM_Pool pool, void **pieces) {
  for (uint32_t i = 0; i < PIECES; i++) {
    if (pieces[i] != NULL)
      continue;
    MAM_OK(MAM_PoolMalloc(pool, &pieces[i], piece_bytes));
    piece_fill(pieces[i], i);
  }
}

/* Frees every step-th piece and waits for the GPU, because memory that waits for kernels is not given back. */
static void pieces_free(void **pieces, int step) {
  for (int i = 0; i < PIECES; i += step) {
    MAM_OK(MAM_CudaFree(pieces[i]));
    pieces[i] = NULL;
  }
  GPU_OK(cudaDeviceSynchronize());
}

/* Trims until the pool holds at most that much.  A trim asks how far the GPU is and does not wait for the answer, so
 * one may not be enough. */
static void trim_to(MAM_Pool pool, size_t keep_bytes, size_t most_bytes) {
  double start_ms = gpu_now_ms();
  do
    MAM_OK(MAM_PoolTrim(pool, keep_bytes));
  while (gpu_pool_info(pool).reserved_bytes > most_bytes && gpu_now_ms() - start_ms < 1000);
  ck_assert_uint_le(gpu_pool_info(pool).reserved_bytes, most_bytes);
}

START_TEST(memory_comes_and_goes_between_live_blocks) {
  size_t before_bytes = driver_free_bytes();
  MAM_Pool pool = growing_pool();
  void *pieces[PIECES] = {NULL};
  pieces_new(pool, pieces);
  ck_assert_uint_ge(gpu_pool_info(pool).reserved_bytes, PIECES * piece_bytes);
  driver_agrees(pool, before_bytes);
  for (int round = 0; round < 3; round++) {
    pieces_free(pieces, 2);
    trim_to(pool, 0, (PIECES / 2 + 1) * piece_bytes);
    driver_agrees(pool, before_bytes);
    pieces_are(pieces);
    pieces_new(pool, pieces);
    driver_agrees(pool, before_bytes);
    pieces_are(pieces);
  }
  pieces_free(pieces, 1);
  trim_to(pool, 0, piece_bytes);
  driver_agrees(pool, before_bytes);
}
END_TEST

/* At the limit, what is free between live blocks moves together, under a kernel and without a wait for it. */
START_TEST(free_pieces_move_to_where_a_block_fits) {
  enum { BLOCK_PIECES = 6 };
  size_t before_bytes = driver_free_bytes();
  MAM_Pool pool = limited_pool(PIECES * piece_bytes);
  void *pieces[PIECES] = {NULL}, *block = NULL;
  uint64_t *mismatches = gpu_counter_new();
  for (uint32_t round = 0; round < 3; round++) {
    pieces_new(pool, pieces);
    pieces_free(pieces, 2);
    trim_to(pool, (PIECES - 1) * piece_bytes, (PIECES - 1) * piece_bytes); /* now the free memory has passed */
    bool runs = slow_start();
    MAM_OK(MAM_PoolMalloc(pool, &block, BLOCK_PIECES * piece_bytes));
    GPU_OK(gpu_fill(block, BLOCK_PIECES * piece_bytes, 100 + round, 0));
    GPU_OK(gpu_check(block, BLOCK_PIECES * piece_bytes, 100 + round, mismatches, 0));
    GPU_OK(cudaStreamSynchronize(0));
    ck_assert_msg(!runs || slow_runs(), "the kernel ended before the block was used");
    slow_end();
    ck_assert_uint_eq(*mismatches, 0);
    pieces_are(pieces);
    driver_agrees(pool, before_bytes);
    MAM_OK(MAM_CudaFree(block));
    GPU_OK(cudaDeviceSynchronize());
  }
  GPU_OK(cudaFreeHost(mismatches));
  pieces_new(pool, pieces);
  pieces_free(pieces, 1);
  trim_to(pool, 0, piece_bytes);
  driver_agrees(pool, before_bytes);
}
END_TEST

START_TEST(trim_keeps_what_it_is_told_to_keep) {
  size_t before_bytes = driver_free_bytes();
  MAM_Pool pool = growing_pool();
  void *pieces[PIECES] = {NULL};
  pieces_new(pool, pieces);
  pieces_free(pieces, 1);
  trim_to(pool, 4 * piece_bytes, 5 * piece_bytes);
  ck_assert_uint_ge(gpu_pool_info(pool).reserved_bytes, 4 * piece_bytes);
  driver_agrees(pool, before_bytes);
}
END_TEST

START_TEST(trim_neither_waits_for_a_kernel_nor_takes_its_memory) {
  MAM_Pool pool = growing_pool();
  void *pieces[PIECES] = {NULL};
  pieces_new(pool, pieces);
  bool runs = slow_start();
  for (int i = 0; i < PIECES; i++)
    MAM_OK(MAM_CudaFree(pieces[i]));
  double start_ms = gpu_now_ms();
  MAM_OK(MAM_PoolTrim(pool, 0));
  double took_ms = gpu_now_ms() - start_ms;
  ck_assert_msg(!runs || slow_runs(), "the kernel ended before MAM_PoolTrim returned, after %.1f ms", took_ms);
  if (runs) {
    ck_assert_msg(took_ms < PROMPT_MS, "MAM_PoolTrim took %.1f ms while a kernel ran", took_ms);
    ck_assert_uint_ge(gpu_pool_info(pool).reserved_bytes, PIECES * piece_bytes);
  }
  slow_end();
  GPU_OK(cudaDeviceSynchronize());
  trim_to(pool, 0, piece_bytes);
}
END_TEST

/* ---- The suite --------------------------------------------------------------------------------------------------- */

static TCase *slow_case_add(Suite *suite, const char *name) {
  TCase *tests = gpu_case_add(suite, name);
  tcase_add_checked_fixture(tests, slow_set_up, slow_tear_down);
  return tests;
}

static Suite *fence_suite(void) {
  Suite *suite = suite_create("blocks under kernels");
  TCase *holders = gpu_case_add(suite, "holders");
  tcase_add_checked_fixture(holders, NULL, traffic_tear_down);
  tcase_add_loop_test(holders, fenced_blocks_are_left_to_their_kernels, TRAFFIC_SMALL, TRAFFIC_ALL + 1);
  tcase_add_loop_test(holders, stream_ordered_blocks_are_left_to_their_kernels, TRAFFIC_SMALL, TRAFFIC_ALL + 1);
  tcase_add_loop_test(holders, plain_and_stream_ordered_calls_mix, TRAFFIC_SMALL, TRAFFIC_ALL + 1);
  tcase_add_loop_test(holders, default_pool_leaves_blocks_to_their_kernels, TRAFFIC_PLAIN, TRAFFIC_MIXED + 1);
  tcase_add_loop_test(holders, immediate_reuse_is_caught, TRAFFIC_SMALL, TRAFFIC_ALL + 1);
  TCase *prompt = slow_case_add(suite, "no call waits");
  tcase_add_test(prompt, no_call_waits_for_a_kernel_while_the_chunk_has_memory);
  tcase_add_test(prompt, no_call_waits_for_a_kernel_while_the_pool_can_grow);
  TCase *growth = slow_case_add(suite, "growth and giving back");
  tcase_add_test(growth, memory_comes_and_goes_between_live_blocks);
  tcase_add_test(growth, free_pieces_move_to_where_a_block_fits);
  tcase_add_test(growth, trim_keeps_what_it_is_told_to_keep);
  tcase_add_test(growth, trim_neither_waits_for_a_kernel_nor_takes_its_memory);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(fence_suite());
}
