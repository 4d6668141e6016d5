/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When the memory of a freed block is handed out again.  A kernel spins, and then writes to a block that was freed
 * meanwhile.  If the library hands this memory out too early, the kernel's pattern appears in the new block.
 *
 * Every wait of a kernel here is limited.  Streams are non-blocking, so only the library and these tests wait for that
 * kernel. The program needs a GPU and exits with 77 without one.
 */
#include "gpu_kernels.h"
#include "gpu_util.h"

enum {
  SPIN_MS = 200,       /* of the kernel that holds a block */
  SPIN_LONG_MS = 2000, /* of one that the test ends itself */
  PROMPT_MS = 50,      /* a call that takes longer has waited; well below SPIN_MS */
  LATE_SEED = 4000000, /* of the late kernel's pattern */
  ROUNDS = 16,
};

/* ---- The late kernel --------------------------------------------------------------------------------------------- */

static struct {
  cudaStream_t slow, quick; /* of the late kernel; of everything else */
  uint32_t *stop;           /* mapped; not 0 ends the late kernel */
  uint64_t *mismatches;
} trap;

/* All kernels are loaded and have run once on both streams: a first launch may wait for the GPU, which is not the
 * subject here. */
static void trap_set_up(void) {
  void *scratch = NULL;
  GPU_OK(gpu_kernels_load());
  GPU_OK(cudaStreamCreateWithFlags(&trap.slow, cudaStreamNonBlocking));
  GPU_OK(cudaStreamCreateWithFlags(&trap.quick, cudaStreamNonBlocking));
  trap.mismatches = gpu_counter_new();
  trap.stop = (uint32_t *)gpu_counter_new();
  GPU_OK(cudaMalloc(&scratch, MIB));
  cudaStream_t streams[] = {trap.slow, trap.quick};
  for (int i = 0; i < 2; i++) {
    GPU_OK(gpu_spin_then_fill(trap.stop, 0, scratch, MIB, 1, streams[i]));
    GPU_OK(gpu_fill(scratch, MIB, 1, streams[i]));
    GPU_OK(gpu_check(scratch, MIB, 1, trap.mismatches, streams[i]));
    GPU_OK(cudaStreamSynchronize(streams[i]));
  }
  ck_assert_uint_eq(*trap.mismatches, 0);
  GPU_OK(cudaFree(scratch));
}

static void trap_tear_down(void) {
  __atomic_store_n(trap.stop, 1, __ATOMIC_RELEASE);
  GPU_OK(cudaDeviceSynchronize());
  GPU_OK(cudaStreamDestroy(trap.slow));
  GPU_OK(cudaStreamDestroy(trap.quick));
  GPU_OK(cudaFreeHost(trap.stop));
  GPU_OK(cudaFreeHost(trap.mismatches));
}

/* Whether the late kernel still runs. */
static bool kernel_runs(void) {
  cudaError_t error = cudaStreamQuery(trap.slow);
  ck_assert_msg(error == cudaSuccess || error == cudaErrorNotReady, "cudaStreamQuery: %s", cudaGetErrorName(error));
  return error == cudaErrorNotReady;
}

/* Starts the kernel that writes the block late.  False only if launches wait for their kernels, as under a sanitizer:
 * then the test can learn nothing about that time. */
static bool kernel_start(void *block, size_t bytes, unsigned spin_ms) {
  GPU_OK(gpu_spin_then_fill(trap.stop, spin_ms, block, bytes, LATE_SEED, trap.slow));
  bool runs = kernel_runs();
  ck_assert_msg(runs || gpu_small(), "the kernel that was to spin for %u ms ended at once", spin_ms);
  return runs;
}

static void kernel_finish(void) {
  __atomic_store_n(trap.stop, 1, __ATOMIC_RELEASE);
  GPU_OK(cudaStreamSynchronize(trap.slow));
}

static size_t block_bytes(void) { return gpu_small() ? 64 << 10 : MIB; }

/* A pool with room for 64 blocks. */
static MAM_PoolOptions options_of(MAM_Reuse reuse) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.reuse = reuse;
  options.chunk_bytes = 64 * block_bytes();
  return options;
}

static unsigned char *block_new(MAM_Pool pool, size_t bytes) {
  void *block = NULL;
  MAM_OK(MAM_PoolMalloc(pool, &block, bytes));
  ck_assert_ptr_nonnull(block);
  return block;
}

/* Frees a block while the late kernel runs.  The free must not wait for it. */
static void free_is_prompt(void *block, bool runs) {
  double start_ms = gpu_now_ms();
  MAM_OK(MAM_CudaFree(block));
  double took_ms = gpu_now_ms() - start_ms;
  if (!runs)
    return;
  ck_assert_msg(took_ms < PROMPT_MS, "MAM_CudaFree took %.1f ms while a kernel ran", took_ms);
  ck_assert_msg(kernel_runs(), "the kernel ended before MAM_CudaFree returned, after %.1f ms", took_ms);
}

static void blocks_are(unsigned char *const *blocks, size_t bytes, uint32_t first_seed, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    GPU_OK(gpu_check(blocks[i], bytes, first_seed + i, trap.mismatches, trap.quick));
  GPU_OK(cudaStreamSynchronize(trap.quick));
  ck_assert_msg(*trap.mismatches == 0, "%llu bytes were changed: freed memory was handed out too early",
                (unsigned long long)*trap.mismatches);
}

/* ---- Fenced ------------------------------------------------------------------------------------------------------ */

/* Allocates a block.  If the late kernel still runs after that, the block must not overlap the freed one. */
static unsigned char *block_beside(MAM_Pool pool, const unsigned char *freed, size_t bytes) {
  unsigned char *block = block_new(pool, bytes);
  if (kernel_runs())
    ck_assert_msg(block + bytes <= freed || freed + bytes <= block,
                  "%p was handed out while a kernel was to write the freed block at %p", (void *)block,
                  (const void *)freed);
  return block;
}

/* Blocks of the freed block's size come and go and keep their patterns.  The late kernel writes into none of them. */
static void freed_block_is_left_to_the_kernel(MAM_Pool pool) {
  size_t bytes = block_bytes();
  unsigned char *blocks[ROUNDS], *freed = block_new(pool, bytes);
  uint64_t waits = gpu_pool_info(pool).synchronize_count;
  bool runs = kernel_start(freed, bytes, SPIN_LONG_MS);
  free_is_prompt(freed, runs);
  ck_assert_uint_ge(gpu_pool_info(pool).waiting_bytes, bytes);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    unsigned char *passing = block_beside(pool, freed, bytes);
    GPU_OK(gpu_fill(passing, bytes, 1000, trap.quick));
    MAM_OK(MAM_CudaFree(passing)); /* it waits for the same kernel, and must come back later */
    blocks[i] = block_beside(pool, freed, bytes);
    GPU_OK(gpu_fill(blocks[i], bytes, i, trap.quick));
  }
  ck_assert_msg(!runs || kernel_runs(), "the kernel ended before the allocations did: nothing was tested");
  ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, waits);
  kernel_finish();
  blocks_are(blocks, bytes, 0, ROUNDS);
  for (int i = 0; i < ROUNDS; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
}

/* When nothing runs, all that was freed can be allocated in one piece. */
static void pool_is_one_hole_again(MAM_Pool pool) {
  size_t bytes = gpu_pool_info(pool).reserved_bytes;
  GPU_OK(cudaDeviceSynchronize());
  unsigned char *all = block_new(pool, bytes);
  ck_assert_uint_eq(gpu_pool_info(pool).used_bytes, bytes);
  MAM_OK(MAM_CudaFree(all));
}

START_TEST(block_freed_under_a_kernel_is_not_handed_out_before_it_ended) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  MAM_Pool pool = gpu_pool_new(&options);
  freed_block_is_left_to_the_kernel(pool);
  pool_is_one_hole_again(pool);
}
END_TEST

START_TEST(default_pool_is_as_careful) {
  MAM_Pool pool = NULL;
  MAM_OK(MAM_Create(64 * MIB));
  MAM_OK(MAM_PoolDefault(&pool));
  freed_block_is_left_to_the_kernel(pool);
  pool_is_one_hole_again(pool);
}
END_TEST

/* The pool has room for one such block only.  The allocation waits, rather than fail or hand the block out early. */
START_TEST(allocation_waits_for_the_kernel_where_it_would_fail_otherwise) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  size_t bytes = options.chunk_bytes / 4 * 3;
  options.waiting_limit_bytes = options.chunk_bytes; /* so that the free does not wait */
  MAM_Pool pool = gpu_pool_new(&options);
  unsigned char *freed = block_new(pool, bytes);
  uint64_t waits = gpu_pool_info(pool).synchronize_count;
  bool runs = kernel_start(freed, bytes, SPIN_MS);
  free_is_prompt(freed, runs);
  ck_assert_uint_ge(gpu_pool_info(pool).waiting_bytes, bytes);
  unsigned char *block = block_new(pool, bytes);
  ck_assert_msg(!kernel_runs(), "the block was handed out while a kernel was to write it");
  ck_assert_uint_gt(gpu_pool_info(pool).synchronize_count, waits);
  ck_assert_uint_eq(gpu_pool_info(pool).waiting_bytes, 0);
  GPU_OK(gpu_fill(block, bytes, 5, trap.quick));
  GPU_OK(cudaStreamSynchronize(trap.slow));
  blocks_are(&block, bytes, 5, 1);
}
END_TEST

/* A driver before CUDA 12.5 has no fences: there the last free waits for the GPU. */
START_TEST(free_past_the_waiting_limit_asks_for_a_fence) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  size_t bytes = block_bytes();
  options.waiting_limit_bytes = 2 * bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  unsigned char *blocks[3];
  for (int i = 0; i < 3; i++)
    blocks[i] = block_new(pool, bytes);
  uint64_t waits = gpu_pool_info(pool).synchronize_count, fences = gpu_pool_info(pool).fence_count;
  bool runs = kernel_start(blocks[0], bytes, SPIN_MS);
  free_is_prompt(blocks[0], runs);
  free_is_prompt(blocks[1], runs);
  ck_assert_uint_eq(gpu_pool_info(pool).waiting_bytes, 2 * bytes); /* equal to the limit, and not past it */
  ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, waits);
  MAM_OK(MAM_CudaFree(blocks[2]));
  if (gpu_pool_info(pool).fence_count > fences) {
    ck_assert_msg(!runs || kernel_runs(), "MAM_CudaFree waited, though the driver has fences");
    ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, waits);
  } else {
    ck_assert_msg(!kernel_runs(), "MAM_CudaFree neither fenced nor waited, though more than the limit waits for reuse");
    ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, waits + 1);
  }
}
END_TEST

/* ---- Immediate --------------------------------------------------------------------------------------------------- */

START_TEST(immediate_reuse_hands_the_block_out_at_once) {
  MAM_PoolOptions options = options_of(MAM_REUSE_IMMEDIATE);
  size_t bytes = block_bytes();
  MAM_Pool pool = gpu_pool_new(&options);
  unsigned char *freed = block_new(pool, bytes), *guard = block_new(pool, bytes);
  bool runs = kernel_start(guard, bytes, SPIN_LONG_MS);
  free_is_prompt(freed, runs); /* it lies between the chunk's edge and the guard, in a hole of its size */
  ck_assert_uint_eq(gpu_pool_info(pool).waiting_bytes, 0);
  unsigned char *block = block_new(pool, bytes);
  ck_assert_msg(!runs || kernel_runs(), "the kernel ended before the allocation did: nothing was tested");
  ck_assert_ptr_eq(block, freed);
  ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, 0);
  kernel_finish();
  blocks_are(&guard, bytes, LATE_SEED, 1); /* the kernel wrote to its own block */
}
END_TEST

/* ---- Ends that wait ---------------------------------------------------------------------------------------------- */

START_TEST(pool_destroy_waits_for_the_kernel) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  MAM_Pool pool = gpu_pool_new(&options);
  (void)kernel_start(block_new(pool, block_bytes()), block_bytes(), SPIN_MS);
  MAM_OK(gpu_pool_end(pool));
  ck_assert_msg(!kernel_runs(), "the memory was given back under a running kernel");
}
END_TEST

START_TEST(destroy_waits_for_the_kernel) {
  void *block = NULL;
  MAM_OK(MAM_Create(64 * MIB));
  MAM_OK(MAM_CudaMalloc(&block, block_bytes()));
  (void)kernel_start(block, block_bytes(), SPIN_MS);
  MAM_OK(MAM_Destroy());
  ck_assert_msg(!kernel_runs(), "the memory was given back under a running kernel");
}
END_TEST

/* The only test here with a lazy environment: only the first one of a process ends with its last block. */
START_TEST(last_free_of_a_lazy_environment_waits_for_the_kernel) {
  void *block = NULL;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_OK(MAM_CudaMalloc(&block, block_bytes()));
  (void)kernel_start(block, block_bytes(), SPIN_MS);
  MAM_OK(MAM_CudaFree(block));
  MAM_IS(MAM_PoolGetInfo(NULL, &info), cudaErrorInvalidResourceHandle); /* it is gone */
  ck_assert_msg(!kernel_runs(), "the memory was given back under a running kernel");
}
END_TEST

/* ---- Stream captures (mam(7)) ------------------------------------------------------------------------------------ */

static const enum cudaStreamCaptureMode capture_modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};

static void graph_run(cudaGraph_t graph) {
  cudaGraphExec_t executable = NULL;
  GPU_OK(cudaGraphInstantiate(&executable, graph, 0));
  GPU_OK(cudaGraphLaunch(executable, trap.quick));
  GPU_OK(cudaStreamSynchronize(trap.quick));
  GPU_OK(cudaGraphExecDestroy(executable));
  GPU_OK(cudaGraphDestroy(graph));
}

/* During a capture, where cudaMalloc would end it: blocks from a hole, from another chunk and from a new pool, and
 * frees. */
START_TEST(calls_that_need_not_wait_leave_a_capture_alive) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  options.limit_bytes = 4 * options.chunk_bytes;
  MAM_Pool pool = gpu_pool_new(&options), other = NULL;
  cudaGraph_t graph = NULL;
  MAM_OK(MAM_CaptureBegin());
  GPU_OK(cudaStreamBeginCapture(trap.quick, capture_modes[_i]));
  unsigned char *block = block_new(pool, block_bytes()), *freed = block_new(pool, block_bytes());
  unsigned char *large = block_new(pool, options.chunk_bytes);
  MAM_OK(MAM_CudaFree(freed));
  MAM_OK(MAM_PoolCreate(&other, &options));
  MAM_OK(MAM_CudaFree(block_new(other, 1000)));
  GPU_OK(gpu_fill(block, block_bytes(), 77, trap.quick));
  GPU_OK(gpu_fill(large, options.chunk_bytes, 78, trap.quick));
  GPU_OK(cudaStreamEndCapture(trap.quick, &graph));
  MAM_OK(MAM_CaptureEnd());
  ck_assert_uint_eq(gpu_pool_info(pool).chunk_count, 2);
  ck_assert_uint_eq(gpu_pool_info(pool).synchronize_count, 0);
  graph_run(graph);
  GPU_OK(gpu_check(block, block_bytes(), 77, trap.mismatches, trap.quick));
  GPU_OK(gpu_check(large, options.chunk_bytes, 78, trap.mismatches, trap.quick));
  GPU_OK(cudaStreamSynchronize(trap.quick));
  ck_assert_uint_eq(*trap.mismatches, 0);
  MAM_OK(gpu_pool_end(other));
  MAM_OK(gpu_pool_end(pool));
}
END_TEST

/* An allocation that would have to wait is refused, or ends the capture.  Nothing is lost. */
START_TEST(allocation_that_has_to_wait_during_a_capture_loses_nothing) {
  MAM_PoolOptions options = options_of(MAM_REUSE_FENCED);
  options.waiting_limit_bytes = options.chunk_bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  void *all = block_new(pool, options.chunk_bytes);
  cudaGraph_t graph = NULL;
  MAM_OK(MAM_CudaFree(all));
  GPU_OK(cudaStreamBeginCapture(trap.quick, capture_modes[_i]));
  all = NULL;
  cudaError_t error = MAM_PoolMalloc(pool, &all, options.chunk_bytes);
  ck_assert_msg((error == cudaSuccess) == (all != NULL), "error %d with the address %p", (int)error, all);
  (void)cudaStreamEndCapture(trap.quick, &graph);
  (void)cudaGetLastError();
  if (all == NULL)
    all = block_new(pool, options.chunk_bytes);
  ck_assert_uint_eq(gpu_pool_info(pool).used_bytes, options.chunk_bytes);
  MAM_OK(gpu_pool_end(pool));
}
END_TEST

static TCase *reuse_case_add(Suite *suite, const char *name) {
  TCase *tests = gpu_case_add(suite, name);
  tcase_add_checked_fixture(tests, trap_set_up, trap_tear_down);
  return tests;
}

static Suite *reuse_suite(void) {
  Suite *suite = suite_create("reuse of freed memory");
  TCase *fenced = reuse_case_add(suite, "fenced");
  tcase_add_test(fenced, block_freed_under_a_kernel_is_not_handed_out_before_it_ended);
  tcase_add_test(fenced, default_pool_is_as_careful);
  tcase_add_test(fenced, allocation_waits_for_the_kernel_where_it_would_fail_otherwise);
  tcase_add_test(fenced, free_past_the_waiting_limit_asks_for_a_fence);
  TCase *immediate = reuse_case_add(suite, "immediate");
  tcase_add_test(immediate, immediate_reuse_hands_the_block_out_at_once);
  TCase *ends = reuse_case_add(suite, "ends");
  tcase_add_test(ends, pool_destroy_waits_for_the_kernel);
  tcase_add_test(ends, destroy_waits_for_the_kernel);
  tcase_add_test(ends, last_free_of_a_lazy_environment_waits_for_the_kernel);
  TCase *captures = reuse_case_add(suite, "captures");
  tcase_add_loop_test(captures, calls_that_need_not_wait_leave_a_capture_alive, 0, 3);
  tcase_add_loop_test(captures, allocation_that_has_to_wait_during_a_capture_loses_nothing, 0, 3);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(reuse_suite());
}
