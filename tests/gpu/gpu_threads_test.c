/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many host threads use one pool.  They hand blocks over to each other and come and go, and kernels check that each
 * block still has its giver's pattern.  The program needs a GPU and exits with 77 without one.
 */
#include <pthread.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

enum {
  THREADS = 16,
  BATCH = 16,   /* blocks that are filled and handed over together */
  STASH = 1024, /* blocks on their way */
  EXCHANGE_MS = 3000,
  CHURN_MS = 3000,
  CHURN_STEPS = 8, /* batches in the life of a short-lived thread */
};

/* ---- What is handed over ----------------------------------------------------------------------------------------- */

struct parcel {
  void *block;
  size_t bytes;
  uint32_t seed;
};

/* Blocks that no thread holds, in random order, so that each thread gets blocks of all others. */
static struct {
  pthread_mutex_t lock;
  struct parcel parcels[STASH];
  int count;
  MAM_Pool pool; /* NULL: the default pool */
  uint32_t next_seed;
  uint64_t *mismatches; /* mapped */
  uint64_t checked;     /* atomic: how many parcels a kernel checked */
  bool ended;           /* atomic */
} stash = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* False if the stash is full. */
static bool stash_put(const struct parcel *parcel) {
  (void)pthread_mutex_lock(&stash.lock);
  bool room = stash.count < STASH;
  if (room)
    stash.parcels[stash.count++] = *parcel;
  (void)pthread_mutex_unlock(&stash.lock);
  return room;
}

/* False if the stash is empty. */
static bool stash_take(struct parcel *parcel, uint32_t random) {
  (void)pthread_mutex_lock(&stash.lock);
  bool any = stash.count > 0;
  if (any) {
    struct parcel *chosen = &stash.parcels[random % (uint32_t)stash.count];
    *parcel = *chosen;
    *chosen = stash.parcels[--stash.count];
  }
  (void)pthread_mutex_unlock(&stash.lock);
  return any;
}

/* ---- A thread ---------------------------------------------------------------------------------------------------- */

struct worker {
  pthread_t thread;
  uint64_t random;
  int steps; /* 0: until the test ends */
  cudaStream_t stream;
  struct gpu_outcome outcome;
};

/* Mostly small sizes, some up to 1 MiB, few up to 8 MiB. */
static size_t parcel_size(uint64_t *random) {
  uint32_t kind = gpu_random(random) % 100, number = gpu_random(random);
  if (kind < 70)
    return 1 + number % 4096;
  return 1 + number % (kind < 97 ? MIB : 8 * MIB);
}

static bool worker_allocate(struct worker *own, void **block, size_t bytes) {
  bool async = gpu_random(&own->random) % 2 == 0;
  if (stash.pool == NULL)
    return async ? GPU_TRY(&own->outcome, MAM_CudaMallocAsync(block, bytes, own->stream))
                 : GPU_TRY(&own->outcome, MAM_CudaMalloc(block, bytes));
  return async ? GPU_TRY(&own->outcome, MAM_PoolMallocAsync(stash.pool, block, bytes, own->stream))
               : GPU_TRY(&own->outcome, MAM_PoolMalloc(stash.pool, block, bytes));
}

/* Launches the kernel that checks the block, and frees the block at once.  The giver's kernel has ended, so the last
 * use of the block is on this stream. */
static bool worker_open(struct worker *own, const struct parcel *parcel) {
  (void)__atomic_add_fetch(&stash.checked, 1, __ATOMIC_RELAXED); /* a statistic */
  return GPU_TRY(&own->outcome, gpu_check(parcel->block, parcel->bytes, parcel->seed, stash.mismatches, own->stream)) &&
         (gpu_random(&own->random) % 2 == 0 ? GPU_TRY(&own->outcome, MAM_CudaFree(parcel->block))
                                            : GPU_TRY(&own->outcome, MAM_CudaFreeAsync(parcel->block, own->stream)));
}

static bool worker_pack(struct worker *own, struct parcel *parcel) {
  parcel->bytes = parcel_size(&own->random);
  parcel->seed = __atomic_add_fetch(&stash.next_seed, 1, __ATOMIC_RELAXED); /* unique is all that it need be */
  return worker_allocate(own, &parcel->block, parcel->bytes) &&
         GPU_TRY(&own->outcome, gpu_fill(parcel->block, parcel->bytes, parcel->seed, own->stream));
}

/* Fills a batch of blocks, waits for it, and hands it over; where the stash is full, checks the block itself.  Then
 * opens as many parcels of others. */
static bool worker_step(struct worker *own) {
  struct parcel batch[BATCH], taken;
  for (int i = 0; i < BATCH; i++)
    if (!worker_pack(own, &batch[i]))
      return false;
  if (!GPU_TRY(&own->outcome, cudaStreamSynchronize(own->stream)))
    return false;
  for (int i = 0; i < BATCH; i++)
    if (!stash_put(&batch[i]) && !worker_open(own, &batch[i]))
      return false;
  for (int i = 0; i < BATCH && stash_take(&taken, gpu_random(&own->random)); i++)
    if (!worker_open(own, &taken))
      return false;
  return true;
}

static void *worker_run(void *argument) {
  struct worker *own = (struct worker *)argument;
  if (!GPU_TRY(&own->outcome, cudaSetDevice(0)) ||
      !GPU_TRY(&own->outcome, cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking)))
    return NULL;
  bool done = true;
  for (int i = 0; done && (own->steps == 0 || i < own->steps); i++)
    done = !__atomic_load_n(&stash.ended, __ATOMIC_ACQUIRE) && worker_step(own);
  (void)GPU_TRY(&own->outcome, cudaStreamDestroy(own->stream)); /* kernels on it may still run */
  return NULL;
}

static void worker_start(struct worker *own, uint64_t random, int steps) {
  *own = (struct worker){.random = random, .steps = steps};
  ck_assert_int_eq(pthread_create(&own->thread, NULL, worker_run, own), 0);
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

static struct worker workers[THREADS];

/* Joins all threads first, because a failed assertion must leave no thread behind. */
static void workers_join(int count) {
  for (int i = 0; i < count; i++)
    (void)pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < count; i++)
    ck_assert_msg(workers[i].outcome.text[0] == '\0', "thread %d: %s", i, workers[i].outcome.text);
}

static void stash_begin(MAM_Pool pool) {
  GPU_OK(gpu_kernels_load());
  stash.pool = pool;
  stash.count = 0;
  stash.checked = 0;
  stash.ended = false;
  stash.mismatches = gpu_counter_new();
}

/* Opens what is left, in this thread, which gave none of it. */
static void stash_end(void) {
  struct parcel parcel;
  while (stash_take(&parcel, 0)) {
    GPU_OK(gpu_check(parcel.block, parcel.bytes, parcel.seed, stash.mismatches, NULL));
    MAM_OK(MAM_CudaFree(parcel.block));
    stash.checked++;
  }
  GPU_OK(cudaDeviceSynchronize());
  uint64_t mismatches = *stash.mismatches;
  GPU_OK(cudaFreeHost(stash.mismatches));
  ck_assert_msg(mismatches == 0, "%llu bytes were changed", (unsigned long long)mismatches);
  ck_assert_uint_gt(stash.checked, gpu_small() ? 100 : 2000);
}

/* All threads have ended, and all memory is there, in one piece. */
static void pool_is_whole(MAM_Pool pool) {
  void *all = NULL;
  MAM_PoolInfo info = gpu_pool_info(pool);
  ck_assert_uint_eq(info.used_bytes, 0);
  ck_assert_uint_eq(info.used_count, 0);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count);
  MAM_OK(MAM_PoolMalloc(pool, &all, info.reserved_bytes));
  MAM_OK(MAM_CudaFree(all));
}

static void exchange(MAM_Pool pool) {
  stash_begin(pool);
  for (int i = 0; i < THREADS; i++)
    worker_start(&workers[i], 1 + (uint64_t)i, 0);
  (void)usleep((gpu_small() ? 500 : EXCHANGE_MS) * 1000);
  __atomic_store_n(&stash.ended, true, __ATOMIC_RELEASE);
  workers_join(THREADS);
  stash_end();
}

static MAM_Pool pool_of(MAM_Source source) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = source;
  options.chunk_bytes = 4 * GIB;
  return gpu_pool_new(&options);
}

START_TEST(blocks_keep_their_contents_from_thread_to_thread) {
  MAM_Pool pool = pool_of((MAM_Source)_i);
  exchange(pool);
  pool_is_whole(pool);
}
END_TEST

START_TEST(default_pool_serves_all_threads) {
  MAM_OK(MAM_Create(4 * GIB));
  exchange(NULL);
  MAM_Pool pool = NULL;
  MAM_OK(MAM_PoolDefault(&pool));
  pool_is_whole(pool);
}
END_TEST

/* Threads allocate, hand over and exit, one generation after another.  What they kept for their next allocations must
 * come back. */
START_TEST(threads_that_exit_leave_nothing_behind) {
  MAM_Pool pool = pool_of(MAM_SOURCE_DEVICE);
  stash_begin(pool);
  double start_ms = gpu_now_ms();
  for (uint64_t generation = 1; gpu_now_ms() - start_ms < (gpu_small() ? 500 : CHURN_MS); generation++) {
    for (int i = 0; i < THREADS; i++)
      worker_start(&workers[i], 100 * generation + (uint64_t)i, CHURN_STEPS);
    workers_join(THREADS);
  }
  stash_end();
  pool_is_whole(pool);
}
END_TEST

static Suite *threads_suite(void) {
  Suite *suite = suite_create("threads");
  TCase *tests = gpu_case_add(suite, "threads");
  tcase_add_loop_test(tests, blocks_keep_their_contents_from_thread_to_thread, MAM_SOURCE_DEVICE,
                      MAM_SOURCE_DEVICE + 1);
  tcase_add_loop_test(tests, blocks_keep_their_contents_from_thread_to_thread, MAM_SOURCE_VMM, MAM_SOURCE_VMM + 1);
  tcase_add_test(tests, default_pool_serves_all_threads);
  tcase_add_test(tests, threads_that_exit_leave_nothing_behind);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(threads_suite());
}
