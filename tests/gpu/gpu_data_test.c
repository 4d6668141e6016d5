/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks keep what is written to them.  In random traffic each block holds a pattern of its own, which kernels and
 * copies write and check while other blocks come and go.  Afterwards the driver has its memory again.
 *
 * The traffic does not wait on purpose: a block is freed right after the launch of the kernel that checks it.  If the
 * pool hands it out too early, that kernel finds out.  The program needs a GPU and exits with 77 without one.
 */
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

extern char **environ;

enum {
  THREADS = 4,
  BLOCKS_MAX = 512,
  COPY_BYTES_MAX = 1 << 20,    /* kernels write larger blocks: the host is slow */
  FLUCTUATION_BYTES = 4 << 20, /* tolerance of cudaMemGetInfo, for the driver's own blocks */
  CHILD_ALARM_S = 120,
};

/* ---- Traffic ----------------------------------------------------------------------------------------------------- */

struct block {
  unsigned char *address;
  size_t bytes;
  uint32_t seed; /* of the block's pattern */
};

/* One thread's traffic on a pool that others may use too. */
struct traffic {
  MAM_Pool pool; /* NULL: the default pool, through MAM_CudaMalloc */
  cudaStream_t stream;
  uint64_t *mismatches;  /* bytes that kernels found changed */
  unsigned char *buffer; /* page-locked host memory for copies */
  uint64_t random;
  uint32_t next_seed;
  size_t budget_bytes; /* of live blocks at most */
  size_t block_bytes_max;
  size_t live_bytes;
  int count;
  struct block blocks[BLOCKS_MAX];
  struct gpu_outcome outcome;
};

/* How much traffic a run makes. */
struct scale {
  size_t pool_bytes, block_bytes_max;
  int steps, thread_steps;
};

static struct scale scale_of_run(void) {
  if (gpu_small())
    return (struct scale){.pool_bytes = 64 * MIB, .block_bytes_max = 256 << 10, .steps = 200, .thread_steps = 60};
  return (struct scale){.pool_bytes = 4 * GIB, .block_bytes_max = 16 * MIB, .steps = 4000, .thread_steps = 1500};
}

static struct traffic *traffic_new(MAM_Pool pool, uint32_t number, size_t budget_bytes, size_t block_bytes_max) {
  struct traffic *traffic = calloc(1, sizeof *traffic);
  void *buffer = NULL;
  ck_assert_ptr_nonnull(traffic);
  traffic->pool = pool;
  traffic->random = number + 1;
  traffic->next_seed = (number + 1) << 24; /* no two threads share a seed */
  traffic->budget_bytes = budget_bytes;
  traffic->block_bytes_max = block_bytes_max;
  GPU_OK(cudaStreamCreateWithFlags(&traffic->stream, cudaStreamNonBlocking));
  traffic->mismatches = gpu_counter_new();
  GPU_OK(cudaHostAlloc(&buffer, COPY_BYTES_MAX, cudaHostAllocDefault));
  traffic->buffer = buffer;
  return traffic;
}

static void traffic_delete(struct traffic *traffic) {
  GPU_OK(cudaStreamSynchronize(traffic->stream));
  GPU_OK(cudaStreamDestroy(traffic->stream));
  GPU_OK(cudaFreeHost(traffic->mismatches));
  GPU_OK(cudaFreeHost(traffic->buffer));
  free(traffic);
}

/* From 1 byte to the largest size, each power of two as likely as the next, odd sizes too. */
static size_t traffic_size(struct traffic *traffic) {
  size_t bound = traffic->block_bytes_max;
  for (uint32_t halvings = gpu_random(&traffic->random) % 16; halvings > 0 && bound > 1; halvings--)
    bound /= 2;
  return gpu_random(&traffic->random) % bound + 1;
}

/* Kernels write blocks of any size; copies write half of the small ones. */
static bool traffic_copies(struct traffic *traffic, size_t bytes) {
  return bytes <= COPY_BYTES_MAX && gpu_random(&traffic->random) % 2 == 0;
}

static void pattern_to_host(unsigned char *host, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++)
    host[i] = gpu_pattern_byte(seed, i);
}

static size_t pattern_mismatches(const unsigned char *host, size_t bytes, uint32_t seed) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++)
    count += host[i] != gpu_pattern_byte(seed, i);
  return count;
}

static bool block_write(struct traffic *traffic, const struct block *block) {
  if (!traffic_copies(traffic, block->bytes))
    return GPU_TRY(&traffic->outcome, gpu_fill(block->address, block->bytes, block->seed, traffic->stream));
  pattern_to_host(traffic->buffer, block->bytes, block->seed);
  return GPU_TRY(&traffic->outcome, cudaMemcpy(block->address, traffic->buffer, block->bytes, cudaMemcpyHostToDevice));
}

/* A kernel is only enqueued, and counts in *mismatches later.  A copy is checked at once. */
static bool block_verify(struct traffic *traffic, const struct block *block) {
  if (!traffic_copies(traffic, block->bytes))
    return GPU_TRY(&traffic->outcome,
                   gpu_check(block->address, block->bytes, block->seed, traffic->mismatches, traffic->stream));
  if (!GPU_TRY(&traffic->outcome, cudaStreamSynchronize(traffic->stream)) ||
      !GPU_TRY(&traffic->outcome, cudaMemcpy(traffic->buffer, block->address, block->bytes, cudaMemcpyDeviceToHost)))
    return false;
  size_t mismatches = pattern_mismatches(traffic->buffer, block->bytes, block->seed);
  if (mismatches != 0)
    return gpu_outcome_fail(&traffic->outcome, "%zu of %zu bytes at %p changed", mismatches, block->bytes,
                            (void *)block->address);
  return true;
}

static cudaError_t traffic_malloc(struct traffic *traffic, void **address, size_t bytes) {
  return traffic->pool == NULL ? MAM_CudaMalloc(address, bytes) : MAM_PoolMalloc(traffic->pool, address, bytes);
}

static bool block_add(struct traffic *traffic, size_t bytes) {
  void *address = NULL;
  if (!GPU_TRY(&traffic->outcome, traffic_malloc(traffic, &address, bytes)))
    return false;
  struct block *block = &traffic->blocks[traffic->count++];
  *block = (struct block){.address = address, .bytes = bytes, .seed = traffic->next_seed++};
  traffic->live_bytes += bytes;
  return block_write(traffic, block);
}

/* A kernel copies the block to a new one, which keeps its seed.  The old one is freed while the kernel may still read
 * it. */
static bool block_move(struct traffic *traffic, int index) {
  struct block *block = &traffic->blocks[index];
  void *address = NULL;
  if (!GPU_TRY(&traffic->outcome, traffic_malloc(traffic, &address, block->bytes)) ||
      !GPU_TRY(&traffic->outcome, gpu_copy(address, block->address, block->bytes, traffic->stream)))
    return false;
  void *old = block->address;
  block->address = address;
  return GPU_TRY(&traffic->outcome, MAM_CudaFree(old));
}

static bool block_remove(struct traffic *traffic, int index) {
  struct block block = traffic->blocks[index];
  if (!block_verify(traffic, &block) || !GPU_TRY(&traffic->outcome, MAM_CudaFree(block.address)))
    return false;
  traffic->blocks[index] = traffic->blocks[--traffic->count];
  traffic->live_bytes -= block.bytes;
  return true;
}

/* Waits for the checks that are enqueued, and reads their count. */
static bool traffic_settle(struct traffic *traffic) {
  if (!GPU_TRY(&traffic->outcome, cudaStreamSynchronize(traffic->stream)))
    return false;
  uint64_t mismatches = __atomic_load_n(traffic->mismatches, __ATOMIC_ACQUIRE);
  return mismatches == 0 ||
         gpu_outcome_fail(&traffic->outcome, "kernels found %llu bytes changed", (unsigned long long)mismatches);
}

static bool traffic_verify_all(struct traffic *traffic) {
  for (int i = 0; i < traffic->count; i++)
    if (!block_verify(traffic, &traffic->blocks[i]))
      return false;
  return traffic_settle(traffic);
}

static bool traffic_step(struct traffic *traffic) {
  uint32_t dice = gpu_random(&traffic->random) % 100;
  size_t bytes = traffic_size(traffic);
  bool fits = traffic->count < BLOCKS_MAX && traffic->live_bytes + bytes <= traffic->budget_bytes;
  if (traffic->count == 0 || (fits && dice < 55))
    return block_add(traffic, bytes);
  int index = (int)(gpu_random(&traffic->random) % (uint32_t)traffic->count);
  return dice < 65 ? block_move(traffic, index) : block_remove(traffic, index);
}

static bool traffic_run(struct traffic *traffic, int steps) {
  for (int i = 0; i < steps; i++)
    if (!traffic_step(traffic) || (i % 500 == 499 && !traffic_verify_all(traffic)))
      return false;
  return traffic_verify_all(traffic);
}

static bool traffic_remove_all(struct traffic *traffic) {
  while (traffic->count > 0)
    if (!block_remove(traffic, traffic->count - 1))
      return false;
  return traffic_settle(traffic);
}

/* Traffic in the test's own thread, which begins and ends without a live block. */
static void traffic_on(MAM_Pool pool, size_t budget_bytes, size_t block_bytes_max, int steps) {
  struct traffic *traffic = traffic_new(pool, 0, budget_bytes, block_bytes_max);
  bool good = traffic_run(traffic, steps) && traffic_remove_all(traffic);
  struct gpu_outcome outcome = traffic->outcome;
  if (good)
    traffic_delete(traffic); /* if the test has failed, kernels may still use it */
  ck_assert_msg(good, "%s", outcome.text);
}

static void pool_is_empty(MAM_Pool pool) {
  MAM_PoolInfo info = gpu_pool_info(pool);
  ck_assert_uint_eq(info.used_bytes, 0);
  ck_assert_uint_eq(info.requested_bytes, 0);
  ck_assert_uint_eq(info.used_count, 0);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count);
}

/* ---- Memory goes back to the driver ------------------------------------------------------------------------------ */

/* Lets the driver take what it takes once, for code, streams and launches, before the first look at free memory. */
static void warm_up(void) {
  GPU_OK(gpu_kernels_load());
  MAM_OK(MAM_Create(64 * MIB));
  traffic_on(NULL, 16 * MIB, MIB, 40);
  MAM_OK(MAM_Destroy());
  GPU_OK(cudaDeviceSynchronize());
}

static size_t free_device_bytes(void) {
  size_t free_bytes = 0, total_bytes = 0;
  GPU_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

static void free_bytes_are(size_t expected) {
  size_t now = free_device_bytes(), difference = now > expected ? now - expected : expected - now;
  ck_assert_msg(difference <= FLUCTUATION_BYTES, "%zu bytes of the device are free, expected %zu", now, expected);
}

/* This test is the first: only the first lazy environment of a process ends with its last block. */
START_TEST(memory_is_the_drivers_again_after_the_last_lazy_block) {
  warm_up();
  size_t before = free_device_bytes();
  void *first = NULL, *second = NULL;
  MAM_OK(MAM_CudaMalloc(&first, MIB));
  MAM_OK(MAM_CudaMalloc(&second, 1000));
  ck_assert_uint_lt(free_device_bytes(), before / 4 * 3); /* it has taken the largest chunk */
  GPU_OK(cudaMemset(first, 1, MIB));
  MAM_OK(MAM_CudaFree(first));
  ck_assert_uint_lt(free_device_bytes(), before / 4 * 3);
  MAM_OK(MAM_CudaFree(second));
  free_bytes_are(before);
}
END_TEST

START_TEST(memory_is_the_drivers_again_after_destroy) {
  warm_up();
  size_t before = free_device_bytes(), chunk_bytes = scale_of_run().pool_bytes;
  void *block = NULL;
  MAM_OK(MAM_Create(chunk_bytes));
  free_bytes_are(before - chunk_bytes);
  MAM_OK(MAM_CudaMalloc(&block, chunk_bytes / 2)); /* takes nothing from the driver; MAM_Destroy frees it */
  free_bytes_are(before - chunk_bytes);
  MAM_OK(MAM_Destroy());
  free_bytes_are(before);
  MAM_IS(MAM_CudaFree(block), cudaErrorInvalidValue); /* the block ended with its environment */
}
END_TEST

START_TEST(memory_is_the_drivers_again_after_pool_destroy) {
  warm_up();
  size_t before = free_device_bytes();
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = 8 * MIB;
  options.limit_bytes = 64 * MIB;
  MAM_Pool pool = gpu_pool_new(&options);
  for (int i = 0; i < 8; i++) {
    void *block = NULL;
    MAM_OK(MAM_PoolMalloc(pool, &block, 8 * MIB));
  }
  free_bytes_are(before - 64 * MIB);
  MAM_OK(gpu_pool_end(pool));
  free_bytes_are(before);
}
END_TEST

/* ---- Patterns survive -------------------------------------------------------------------------------------------- */

START_TEST(patterns_survive_traffic_in_a_created_environment) {
  struct scale scale = scale_of_run();
  MAM_OK(MAM_Create(scale.pool_bytes));
  traffic_on(NULL, scale.pool_bytes / 2, scale.block_bytes_max, scale.steps);
  pool_is_empty(NULL);
}
END_TEST

START_TEST(patterns_survive_traffic_in_a_lazy_environment) {
  struct scale scale = scale_of_run();
  traffic_on(NULL, scale.pool_bytes / 2, scale.block_bytes_max, scale.steps / 2);
}
END_TEST

START_TEST(patterns_survive_traffic_that_fills_the_pool) {
  struct scale scale = scale_of_run();
  size_t pool_bytes = 64 * scale.block_bytes_max;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = pool_bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  traffic_on(pool, pool_bytes / 2, scale.block_bytes_max, scale.steps);
  pool_is_empty(pool);
}
END_TEST

START_TEST(patterns_survive_traffic_in_a_growing_pool) {
  struct scale scale = scale_of_run();
  size_t chunk_bytes = gpu_small() ? 4 * MIB : 64 * MIB, limit_bytes = 16 * chunk_bytes;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = chunk_bytes;
  options.limit_bytes = limit_bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  ck_assert_uint_eq(gpu_pool_info(pool).chunk_count, 1);
  void *first_chunk = NULL;
  MAM_OK(MAM_PoolMalloc(pool, &first_chunk, chunk_bytes)); /* so that the traffic needs other chunks */
  traffic_on(pool, limit_bytes / 4, chunk_bytes / 16, scale.steps);
  MAM_OK(MAM_CudaFree(first_chunk));
  MAM_PoolInfo info = gpu_pool_info(pool);
  ck_assert_uint_gt(info.chunk_count, 1);
  ck_assert_uint_le(info.reserved_bytes, limit_bytes);
  pool_is_empty(pool);
}
END_TEST

START_TEST(growing_pool_fills_up_to_its_limit_and_every_chunk_is_memory) {
  size_t chunk_bytes = gpu_small() ? 4 * MIB : 64 * MIB, limit_bytes = 16 * chunk_bytes, block_bytes = chunk_bytes / 4;
  enum { BLOCKS = 64 };
  void *blocks[BLOCKS], *none = blocks;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = chunk_bytes;
  options.limit_bytes = limit_bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  uint64_t *mismatches = gpu_counter_new();
  for (uint32_t i = 0; i < BLOCKS; i++) {
    MAM_OK(MAM_PoolMalloc(pool, &blocks[i], block_bytes));
    GPU_OK(gpu_fill(blocks[i], block_bytes, i, NULL));
  }
  MAM_IS(MAM_PoolMalloc(pool, &none, 1), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(none);
  ck_assert_uint_eq(gpu_pool_info(pool).reserved_bytes, limit_bytes);
  for (uint32_t i = 0; i < BLOCKS; i++)
    GPU_OK(gpu_check(blocks[i], block_bytes, i, mismatches, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}
END_TEST

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

struct worker {
  pthread_t thread;
  struct traffic *traffic;
  int steps;
};

static void *worker_main(void *argument) {
  struct worker *worker = argument;
  struct gpu_outcome *outcome = &worker->traffic->outcome;
  if (GPU_TRY(outcome, cudaSetDevice(0)) && traffic_run(worker->traffic, worker->steps))
    (void)traffic_remove_all(worker->traffic);
  return NULL;
}

static void threads_share(MAM_Pool pool, size_t pool_bytes) {
  struct scale scale = scale_of_run();
  struct worker workers[THREADS];
  for (uint32_t i = 0; i < THREADS; i++)
    workers[i] = (struct worker){
        .traffic = traffic_new(pool, i, pool_bytes / (2 * THREADS), scale.block_bytes_max),
        .steps = scale.thread_steps,
    };
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
  for (int i = 0; i < THREADS; i++)
    ck_assert_msg(workers[i].traffic->outcome.text[0] == '\0', "thread %d: %s", i, workers[i].traffic->outcome.text);
  for (int i = 0; i < THREADS; i++)
    traffic_delete(workers[i].traffic);
}

START_TEST(patterns_survive_traffic_of_threads_on_one_environment) {
  size_t pool_bytes = scale_of_run().pool_bytes;
  MAM_OK(MAM_Create(pool_bytes));
  threads_share(NULL, pool_bytes);
  pool_is_empty(NULL);
}
END_TEST

START_TEST(patterns_survive_traffic_of_threads_on_a_lazy_environment) {
  threads_share(NULL, scale_of_run().pool_bytes);
}
END_TEST

/* ---- Every source ------------------------------------------------------------------------------------------------ */

/* Kernels write and check each of some blocks of a source. */
static void kernels_use(MAM_Pool pool, unsigned char **blocks, const size_t *sizes, uint32_t count) {
  uint64_t *mismatches = gpu_counter_new();
  for (uint32_t i = 0; i < count; i++) {
    void *block = NULL;
    MAM_OK(MAM_PoolMalloc(pool, &block, sizes[i]));
    blocks[i] = block;
    GPU_OK(gpu_fill(block, sizes[i], i, NULL));
  }
  for (uint32_t i = 0; i < count; i++)
    GPU_OK(gpu_check(blocks[i], sizes[i], i, mismatches, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}

/* The host reads what the kernels wrote, and writes what a kernel then reads. */
static void host_uses(unsigned char **blocks, const size_t *sizes, uint32_t count) {
  uint64_t *mismatches = gpu_counter_new();
  for (uint32_t i = 0; i < count; i++) {
    ck_assert_uint_eq(pattern_mismatches(blocks[i], sizes[i], i), 0);
    pattern_to_host(blocks[i], sizes[i], 1000 + i);
  }
  for (uint32_t i = 0; i < count; i++)
    GPU_OK(gpu_check(blocks[i], sizes[i], 1000 + i, mismatches, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}

static void source_is_usable(MAM_Source source, enum cudaMemoryType type) {
  static const size_t sizes[] = {1, 3, 512, 513, 1000, 65537, MIB, 3 * MIB + 1};
  enum { COUNT = sizeof sizes / sizeof sizes[0] };
  unsigned char *blocks[COUNT];
  struct cudaPointerAttributes attributes;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = source;
  options.chunk_bytes = 32 * MIB;
  MAM_Pool pool = gpu_pool_new(&options);
  kernels_use(pool, blocks, sizes, COUNT);
  GPU_OK(cudaPointerGetAttributes(&attributes, blocks[COUNT - 1]));
  ck_assert_int_eq(attributes.type, type);
  if (type != cudaMemoryTypeDevice)
    host_uses(blocks, sizes, COUNT);
  for (int i = 0; i < COUNT; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
  pool_is_empty(pool);
  MAM_OK(gpu_pool_end(pool));
}

START_TEST(device_pool_serves_kernels) { source_is_usable(MAM_SOURCE_DEVICE, cudaMemoryTypeDevice); }
END_TEST

START_TEST(pinned_pool_serves_kernels_and_host) { source_is_usable(MAM_SOURCE_PINNED, cudaMemoryTypeHost); }
END_TEST

START_TEST(managed_pool_serves_kernels_and_host) { source_is_usable(MAM_SOURCE_MANAGED, cudaMemoryTypeManaged); }
END_TEST

/* ---- The largest chunk ------------------------------------------------------------------------------------------- */

/* In this process no kernel is loaded yet.  The environment has all memory, and the driver still has to take some. */
static bool launch_beside_the_largest_chunk(struct gpu_outcome *outcome) {
  size_t before = 0, total = 0, left = 0;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  void *block = NULL, *mismatches = NULL;
  cudaStream_t stream = NULL;
  if (!GPU_TRY(outcome, cudaMemGetInfo(&before, &total)) || !GPU_TRY(outcome, MAM_Create_auto()) ||
      !GPU_TRY(outcome, MAM_PoolGetInfo(NULL, &info)) || !GPU_TRY(outcome, cudaMemGetInfo(&left, &total)))
    return false;
  size_t slack_bytes = gpu_small() ? 5 * GIB : 512 * MIB; /* the headroom, and what the search may miss */
  if (info.reserved_bytes + slack_bytes < before || left < 128 * MIB)
    return gpu_outcome_fail(outcome, "of %zu free bytes it took %zu and left %zu", before, info.reserved_bytes, left);
  if (!GPU_TRY(outcome, cudaStreamCreate(&stream)) ||
      !GPU_TRY(outcome, cudaHostAlloc(&mismatches, sizeof(uint64_t), cudaHostAllocMapped)))
    return false;
  *(uint64_t *)mismatches = 0;
  if (!GPU_TRY(outcome, MAM_CudaMalloc(&block, 8 * MIB)) || !GPU_TRY(outcome, gpu_fill(block, 8 * MIB, 1, stream)) ||
      !GPU_TRY(outcome, gpu_check(block, 8 * MIB, 1, mismatches, stream)) ||
      !GPU_TRY(outcome, cudaStreamSynchronize(stream)))
    return false;
  if (*(uint64_t *)mismatches != 0)
    return gpu_outcome_fail(outcome, "a kernel found its own pattern changed");
  return GPU_TRY(outcome, MAM_CudaFree(block)) && GPU_TRY(outcome, MAM_Destroy()) &&
         GPU_TRY(outcome, cudaDeviceSynchronize());
}

static int largest_chunk_child(void) {
  struct gpu_outcome outcome = {""};
  (void)alarm(CHILD_ALARM_S);
  bool good = launch_beside_the_largest_chunk(&outcome);
  if (!good)
    (void)fprintf(stderr, "in the child: %s\n", outcome.text);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

START_TEST(create_auto_leaves_enough_for_a_first_launch) {
  char name[] = "gpu_data_test", argument[] = "largest-chunk", *const arguments[] = {name, argument, NULL};
  pid_t child;
  int status = 0;
  ck_assert_int_eq(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed (status %#x); it says why on stderr",
                status);
}
END_TEST

static Suite *data_suite(void) {
  Suite *suite = suite_create("data in blocks");
  TCase *back = gpu_case_add(suite, "memory goes back");
  tcase_add_test(back, memory_is_the_drivers_again_after_the_last_lazy_block);
  tcase_add_test(back, memory_is_the_drivers_again_after_destroy);
  tcase_add_test(back, memory_is_the_drivers_again_after_pool_destroy);
  TCase *largest = gpu_case_add(suite, "largest chunk");
  tcase_add_test(largest, create_auto_leaves_enough_for_a_first_launch);
  TCase *patterns = gpu_case_add(suite, "patterns");
  tcase_add_test(patterns, patterns_survive_traffic_in_a_created_environment);
  tcase_add_test(patterns, patterns_survive_traffic_in_a_lazy_environment);
  tcase_add_test(patterns, patterns_survive_traffic_that_fills_the_pool);
  tcase_add_test(patterns, patterns_survive_traffic_in_a_growing_pool);
  tcase_add_test(patterns, growing_pool_fills_up_to_its_limit_and_every_chunk_is_memory);
  TCase *threads = gpu_case_add(suite, "threads");
  tcase_add_test(threads, patterns_survive_traffic_of_threads_on_one_environment);
  tcase_add_test(threads, patterns_survive_traffic_of_threads_on_a_lazy_environment);
  TCase *sources = gpu_case_add(suite, "sources");
  tcase_add_test(sources, device_pool_serves_kernels);
  tcase_add_test(sources, pinned_pool_serves_kernels_and_host);
  tcase_add_test(sources, managed_pool_serves_kernels_and_host);
  return suite;
}

int main(int argc, char **argv) {
  gpu_environment_clear();
  (void)setenv("MAM_SOURCE", "device", 1); /* the largest chunk, as the paper takes it, before the first call */
  if (argc == 2 && strcmp(argv[1], "largest-chunk") == 0)
    return largest_chunk_child();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(data_suite());
}
