/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CUDA contexts: each has its own default pool, any thread may free a block, and a context that is destroyed or reset
 * while it has a pool harms nothing that comes after it.
 *
 * These tests make and destroy contexts by the driver's functions.  They never hand a destroyed context's handle to the
 * driver themselves: what the library does with one is the question.  The program needs a GPU and exits with 77 without
 * one.
 */
#include <pthread.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

enum {
  CHUNK_BYTES = 64 << 20,       /* of the primary context's pool */
  OTHER_CHUNK_BYTES = 32 << 20, /* of the other context's */
  BLOCK_BYTES = 1 << 20,
  NEW_BLOCKS = 16,   /* from which an environment serves, to show that it works */
  WRECK_BLOCKS = 24, /* left in a destroyed context: more than the waiting limit, half of its pool */
  FRESH_BLOCKS = 32, /* in the next context */
  ID_ROUNDS = 8,
};

/* ---- Contexts by the driver -------------------------------------------------------------------------------------- */

/* A new context on the first device, current in this thread.  cuCtxCreate takes a parameter struct since CUDA 12.5
 * (NULL or all zero for a plain context); a driver that has none of those forms still has the oldest. */
static CUcontext context_new(void) {
  CUcontext context = NULL;
  CUctxCreateParams plain = {NULL, 0, NULL};
  PFN_cuCtxCreate_v12050 create;
  PFN_cuCtxCreate_v3020 create_old;
  *(void **)&create = gpu_driver_find("cuCtxCreate", 13000);
  if (create != NULL &&
      (create(&context, NULL, 0, 0) == CUDA_SUCCESS || create(&context, &plain, 0, 0) == CUDA_SUCCESS))
    return context;
  *(void **)&create_old = gpu_driver_function("cuCtxCreate", 3020);
  DRIVER_OK(create_old(&context, 0, 0));
  return context;
}

static void context_delete(CUcontext context) {
  PFN_cuCtxDestroy_v4000 destroy;
  *(void **)&destroy = gpu_driver_function("cuCtxDestroy", 4000);
  DRIVER_OK(destroy(context));
}

static void context_push(CUcontext context) {
  PFN_cuCtxPushCurrent_v4000 push;
  *(void **)&push = gpu_driver_function("cuCtxPushCurrent", 4000);
  DRIVER_OK(push(context));
}

static CUcontext context_pop(void) {
  CUcontext context = NULL;
  PFN_cuCtxPopCurrent_v4000 pop;
  *(void **)&pop = gpu_driver_function("cuCtxPopCurrent", 4000);
  DRIVER_OK(pop(&context));
  return context;
}

/* The context that an address belongs to. */
static CUcontext context_of(const void *address) {
  CUcontext context = NULL;
  PFN_cuPointerGetAttribute_v4000 get;
  *(void **)&get = gpu_driver_function("cuPointerGetAttribute", 4000);
  DRIVER_OK(get(&context, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)(uintptr_t)address));
  return context;
}

/* The primary context of the first device, made current by the runtime. */
static CUcontext primary_current(void) {
  GPU_OK(cudaSetDevice(0));
  GPU_OK(cudaFree(NULL));
  CUcontext context = gpu_context_current();
  ck_assert_ptr_nonnull(context);
  return context;
}

/* ---- Blocks in the current context ------------------------------------------------------------------------------- */

static void *block_new(void) {
  void *block = NULL;
  MAM_OK(MAM_CudaMalloc(&block, BLOCK_BYTES));
  ck_assert_ptr_nonnull(block);
  return block;
}

static void block_write(void *block, uint32_t seed) {
  GPU_OK(gpu_fill(block, BLOCK_BYTES, seed, NULL));
  GPU_OK(cudaDeviceSynchronize());
}

static void block_is(const void *block, uint32_t seed) {
  uint64_t *mismatches = gpu_counter_new();
  GPU_OK(gpu_check(block, BLOCK_BYTES, seed, mismatches, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}

/* The current context's environment works like a new one. */
static void environment_works(void) {
  void *blocks[NEW_BLOCKS];
  for (uint32_t i = 0; i < NEW_BLOCKS; i++) {
    blocks[i] = block_new();
    block_write(blocks[i], i);
  }
  for (uint32_t i = 0; i < NEW_BLOCKS; i++)
    block_is(blocks[i], i);
  for (uint32_t i = 0; i < NEW_BLOCKS; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
}

static MAM_Pool default_pool(void) {
  MAM_Pool pool = NULL;
  MAM_OK(MAM_PoolDefault(&pool));
  return pool;
}

/* ---- Two contexts ------------------------------------------------------------------------------------------------ */

START_TEST(each_context_has_its_own_default_pool) {
  CUcontext primary = primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  void *in_primary = block_new();
  MAM_Pool pool_of_primary = default_pool();
  CUcontext other = context_new();
  ck_assert_ptr_ne(other, primary);
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_IS(MAM_PoolGetInfo(NULL, &info), cudaErrorInvalidResourceHandle); /* there is none here yet */
  MAM_OK(MAM_Create(OTHER_CHUNK_BYTES));
  MAM_IS(MAM_Create(OTHER_CHUNK_BYTES), cudaErrorAlreadyAcquired);
  void *in_other = block_new();
  ck_assert_ptr_ne(default_pool(), pool_of_primary);
  ck_assert_uint_eq(gpu_pool_info(NULL).reserved_bytes, OTHER_CHUNK_BYTES);
  ck_assert_uint_eq(gpu_pool_info(pool_of_primary).reserved_bytes, CHUNK_BYTES);
  ck_assert_ptr_eq(context_of(in_other), other);
  ck_assert_ptr_eq(context_of(in_primary), primary);
  block_write(in_other, 2);
  block_is(in_other, 2);
  MAM_OK(MAM_Destroy()); /* the environment of this context, not of the other */
  ck_assert_uint_eq(gpu_pool_info(pool_of_primary).used_count, 1);
  context_delete(other);
  ck_assert_ptr_eq(gpu_context_current(), primary);
  ck_assert_uint_eq(gpu_pool_info(NULL).reserved_bytes, CHUNK_BYTES);
  block_write(in_primary, 1);
  block_is(in_primary, 1);
  MAM_OK(MAM_CudaFree(in_primary));
}
END_TEST

/* What a thread with another context sees when it frees a block. */
struct visitor {
  CUcontext context; /* current in the thread */
  void *block;
  CUcontext context_after;
  struct gpu_outcome outcome;
};

static void *visitor_main(void *argument) {
  struct visitor *visitor = argument;
  if (GPU_TRY(&visitor->outcome, gpu_context_set(visitor->context)))
    (void)GPU_TRY(&visitor->outcome, MAM_CudaFree(visitor->block));
  visitor->context_after = gpu_context_current();
  return NULL;
}

static void freed_by_a_thread_in(CUcontext context, void *block) {
  struct visitor visitor = {.context = context, .block = block};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, visitor_main, &visitor), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_msg(visitor.outcome.text[0] == '\0', "%s", visitor.outcome.text);
  ck_assert_ptr_eq(visitor.context_after, context);
}

START_TEST(block_is_freed_from_a_thread_in_another_context) {
  CUcontext primary = primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  void *in_primary = block_new();
  MAM_Pool pool_of_primary = default_pool();
  CUcontext other = context_new();
  MAM_OK(MAM_Create(OTHER_CHUNK_BYTES));
  void *in_other = block_new();
  freed_by_a_thread_in(other, in_primary);
  ck_assert_uint_eq(gpu_pool_info(pool_of_primary).used_count, 0);
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 1);
  freed_by_a_thread_in(primary, in_other);
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 0);
  MAM_OK(MAM_Destroy());
  context_delete(other);
}
END_TEST

/* The pool makes its own context current, whichever the caller has, and gives that one back. */
START_TEST(stack_of_contexts_is_left_alone) {
  CUcontext primary = primary_current(), other = context_new();
  ck_assert_ptr_eq(context_pop(), other);
  ck_assert_ptr_eq(gpu_context_current(), primary);
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.context = other;
  options.chunk_bytes = OTHER_CHUNK_BYTES;
  options.limit_bytes = 2 * (size_t)OTHER_CHUNK_BYTES;
  options.waiting_limit_bytes = 1; /* each free asks for a fence, or waits if the driver has none */
  context_push(primary);
  MAM_Pool pool = gpu_pool_new(&options);
  void *blocks[2] = {NULL};
  for (int i = 0; i < 2; i++) /* the second takes another chunk */
    MAM_OK(MAM_PoolMalloc(pool, &blocks[i], OTHER_CHUNK_BYTES));
  ck_assert_ptr_eq(context_of(blocks[1]), other);
  for (int i = 0; i < 2; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_ge(gpu_pool_info(pool).synchronize_count + gpu_pool_info(pool).fence_count, 1);
  MAM_OK(gpu_pool_end(pool));
  ck_assert_ptr_eq(context_pop(), primary);
  ck_assert_ptr_eq(gpu_context_current(), primary);
  context_delete(other);
}
END_TEST

/* ---- A context that goes before its pools ------------------------------------------------------------------------ */

/* The remains of a context that was destroyed with two pools: its default pool, and one that the program created. */
struct wreck {
  CUcontext context; /* compared, never used */
  MAM_Pool default_pool, pool;
  void *blocks[WRECK_BLOCKS]; /* of the default pool */
  void *pool_block;
};

static struct wreck wreck_new(void) {
  struct wreck wreck = {.context = context_new()};
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = OTHER_CHUNK_BYTES;
  MAM_OK(MAM_Create(OTHER_CHUNK_BYTES));
  wreck.default_pool = default_pool();
  for (int i = 0; i < WRECK_BLOCKS; i++)
    wreck.blocks[i] = block_new();
  wreck.pool = gpu_pool_new(&options);
  MAM_OK(MAM_PoolMalloc(wreck.pool, &wreck.pool_block, BLOCK_BYTES));
  GPU_OK(cudaDeviceSynchronize());
  context_delete(wreck.context);
  return wreck;
}

/* Frees a block that went with its context.  The library may notice that at once, in a wait, or not at all. */
static void stale_free(void *block) {
  cudaError_t error = MAM_CudaFree(block);
  ck_assert_msg(error == cudaErrorInvalidValue || error == cudaSuccess || error == cudaErrorContextIsDestroyed,
                "MAM_CudaFree of a block whose context is gone: %s", cudaGetErrorName(error));
}

START_TEST(blocks_of_a_destroyed_context_are_freed_without_harm) {
  CUcontext primary = primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  void *witness = block_new();
  block_write(witness, 77);
  struct wreck wreck = wreck_new();
  ck_assert_ptr_eq(gpu_context_current(), primary);
  for (int i = 0; i < WRECK_BLOCKS; i++)
    stale_free(wreck.blocks[i]);
  stale_free(wreck.pool_block);
  (void)gpu_pool_end(wreck.pool); /* may answer anything */
  MAM_IS(MAM_PoolDestroy(wreck.pool), cudaErrorInvalidResourceHandle);
  block_is(witness, 77);
  environment_works();
  ck_assert_ptr_eq(gpu_context_current(), primary);
}
END_TEST

/* Whether a block overlaps one of some others. */
static bool overlaps_any(const void *block, void *const *others, int count) {
  for (int i = 0; i < count; i++) {
    uintptr_t left = (uintptr_t)block, right = (uintptr_t)others[i];
    if ((left > right ? left - right : right - left) < BLOCK_BYTES)
      return true;
  }
  return false;
}

/* The driver may give the next context the handle and the addresses of the last one.  What is left of the last one must
 * do no harm there. */
START_TEST(new_context_in_a_destroyed_ones_place_is_not_harmed) {
  (void)primary_current();
  struct wreck wreck = wreck_new();
  CUcontext next = context_new();
  void *fresh[FRESH_BLOCKS], *stale = NULL;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = OTHER_CHUNK_BYTES;
  MAM_OK(MAM_Create(2 * (size_t)OTHER_CHUNK_BYTES));
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 0);
  for (uint32_t i = 0; i < FRESH_BLOCKS; i++) {
    fresh[i] = block_new();
    ck_assert_ptr_eq(context_of(fresh[i]), next);
    block_write(fresh[i], i);
  }
  for (int i = 0; i < WRECK_BLOCKS; i++)
    if (!overlaps_any(wreck.blocks[i], fresh, FRESH_BLOCKS)) /* else it would be a rightful free of a live block */
      stale_free(wreck.blocks[i]);
  if (!overlaps_any(wreck.pool_block, fresh, FRESH_BLOCKS))
    stale_free(wreck.pool_block);
  /* The pool of the lost context is not destroyed yet, so no other pool has its handle. */
  MAM_Pool neighbour = gpu_pool_new(&options);
  ck_assert_ptr_ne(neighbour, wreck.pool);
  ck_assert_ptr_ne(default_pool(), wreck.pool);
  if (MAM_PoolMalloc(wreck.pool, &stale, BLOCK_BYTES) == cudaSuccess)
    ck_assert_msg(!overlaps_any(stale, fresh, FRESH_BLOCKS), "a dead pool handed out a live block");
  (void)gpu_pool_end(wreck.pool);
  MAM_OK(gpu_pool_end(neighbour));
  for (uint32_t i = 0; i < FRESH_BLOCKS; i++)
    block_is(fresh[i], i);
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, FRESH_BLOCKS);
  for (int i = 0; i < FRESH_BLOCKS; i++)
    MAM_OK(MAM_CudaFree(fresh[i]));
  environment_works();
  MAM_OK(MAM_Destroy());
  context_delete(next);
}
END_TEST

START_TEST(contexts_come_and_go_with_pools_alive) {
  CUcontext primary = primary_current();
  for (int i = 0; i < 4; i++) {
    CUcontext context = context_new();
    MAM_OK(MAM_Create(OTHER_CHUNK_BYTES));
    void *block = block_new();
    block_write(block, 5);
    block_is(block, 5);
    context_delete(context); /* the pool goes with it, without MAM_Destroy */
    ck_assert_ptr_eq(gpu_context_current(), primary);
  }
  MAM_OK(MAM_Create(CHUNK_BYTES));
  environment_works();
}
END_TEST

/* ---- cudaDeviceReset --------------------------------------------------------------------------------------------- */

static const size_t kept_bytes[] = {100, BLOCK_BYTES};
enum { KEPT_SIZES = sizeof kept_bytes / sizeof kept_bytes[0] };

/* Leaves freed blocks with the thread, which would serve it without a question to the pool. */
static void keep_some(void) {
  void *blocks[NEW_BLOCKS];
  for (int size = 0; size < KEPT_SIZES; size++)
    for (int turn = 0; turn < 4; turn++) {
      for (int i = 0; i < NEW_BLOCKS; i++)
        MAM_OK(MAM_CudaMalloc(&blocks[i], kept_bytes[size]));
      for (int i = 0; i < NEW_BLOCKS; i++)
        MAM_OK(MAM_CudaFree(blocks[i]));
      GPU_OK(cudaDeviceSynchronize());
    }
}

/* Makes a pool on the primary context, of which the thread keeps blocks, and resets the context.  Returns a block of
 * it. */
static void *reset_under_a_pool(void) {
  (void)primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  void *block = block_new();
  block_write(block, 1);
  keep_some();
  GPU_OK(cudaDeviceReset());
  return block;
}

/* After a reset the environment is a new one, and its memory exists. */
static void works_after_reset(void *old) {
  void *block = block_new(); /* lazily created again */
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 1);
  block_write(block, 9);
  if (old != block)
    stale_free(old);
  block_is(block, 9);
  environment_works();
  MAM_OK(MAM_CudaFree(block));
  MAM_OK(MAM_Destroy());
  MAM_OK(MAM_Create(CHUNK_BYTES));
  environment_works();
  MAM_OK(MAM_Destroy());
}

START_TEST(malloc_works_after_device_reset_and_a_runtime_call) {
  void *old = reset_under_a_pool();
  (void)primary_current();
  works_after_reset(old);
}
END_TEST

START_TEST(malloc_works_as_the_first_call_after_device_reset) { works_after_reset(reset_under_a_pool()); }
END_TEST

static void *reset_device(void *answer) {
  *(cudaError_t *)answer = cudaDeviceReset();
  return NULL;
}

/* The handle stays the same.  Only the id tells that the context has ended. */
START_TEST(reset_by_another_thread_is_noticed_at_the_next_allocation) {
  pthread_t thread;
  cudaError_t answer = cudaErrorUnknown;
  CUcontext primary = primary_current();
  for (int life = 0; life < 3; life++) {
    void *blocks[KEPT_SIZES];
    MAM_OK(MAM_Create(CHUNK_BYTES));
    keep_some();
    ck_assert_int_eq(pthread_create(&thread, NULL, reset_device, &answer), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    GPU_OK(answer);
    for (int size = 0; size < KEPT_SIZES; size++)
      MAM_OK(MAM_CudaMalloc(&blocks[size], kept_bytes[size]));
    ck_assert_ptr_eq(gpu_context_current(), primary);
    ck_assert_uint_eq(gpu_pool_info(NULL).used_count, KEPT_SIZES);
    for (int size = 0; size < KEPT_SIZES; size++) {
      GPU_OK(cudaMemset(blocks[size], life, kept_bytes[size]));
      GPU_OK(cudaDeviceSynchronize());
      MAM_OK(MAM_CudaFree(blocks[size]));
    }
    MAM_OK(MAM_Destroy());
  }
}
END_TEST

START_TEST(free_and_destroy_after_device_reset_harm_nothing) {
  void *old = reset_under_a_pool();
  stale_free(old);
  MAM_OK(MAM_Destroy());
  MAM_IS(MAM_CudaFree(old), cudaErrorInvalidValue);
  MAM_OK(MAM_Create(CHUNK_BYTES));
  environment_works();
}
END_TEST

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/* What a thread sees that has not used CUDA before. */
struct newcomer {
  CUcontext before, after_create, after_malloc;
  MAM_Pool pool;
  void *block;
  struct gpu_outcome outcome;
};

static void *newcomer_makes_a_pool(void *argument) {
  struct newcomer *newcomer = argument;
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.device = 0;
  options.chunk_bytes = OTHER_CHUNK_BYTES;
  newcomer->before = gpu_context_current();
  if (GPU_TRY(&newcomer->outcome, MAM_PoolCreate(&newcomer->pool, &options))) {
    newcomer->after_create = gpu_context_current();
    (void)GPU_TRY(&newcomer->outcome, MAM_PoolMalloc(newcomer->pool, &newcomer->block, BLOCK_BYTES));
  }
  newcomer->after_malloc = gpu_context_current();
  return NULL;
}

START_TEST(pool_of_a_device_is_created_without_a_current_context) {
  CUcontext primary = primary_current();
  struct newcomer newcomer = {.pool = NULL};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, newcomer_makes_a_pool, &newcomer), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_msg(newcomer.outcome.text[0] == '\0', "%s", newcomer.outcome.text);
  ck_assert_ptr_null(newcomer.before);
  ck_assert_msg(newcomer.after_create == NULL || newcomer.after_create == primary,
                "it left some other context current");
  ck_assert_msg(newcomer.after_malloc == NULL || newcomer.after_malloc == primary,
                "it left some other context current");
  ck_assert_ptr_eq(context_of(newcomer.block), primary);
  block_write(newcomer.block, 3);
  block_is(newcomer.block, 3);
  MAM_OK(MAM_CudaFree(newcomer.block));
  MAM_OK(MAM_PoolDestroy(newcomer.pool));
}
END_TEST

/* The same two calls, one of the runtime and one of the library, in threads without a context. */
static void *newcomer_asks_the_runtime(void *argument) {
  struct newcomer *newcomer = argument;
  newcomer->before = gpu_context_current();
  (void)GPU_TRY(&newcomer->outcome, cudaMalloc(&newcomer->block, BLOCK_BYTES));
  newcomer->after_malloc = gpu_context_current();
  return NULL;
}

static void *newcomer_asks_the_library(void *argument) {
  struct newcomer *newcomer = argument;
  newcomer->before = gpu_context_current();
  (void)GPU_TRY(&newcomer->outcome, MAM_CudaMalloc(&newcomer->block, BLOCK_BYTES));
  newcomer->after_malloc = gpu_context_current();
  return NULL;
}

static struct newcomer newcomer_runs(void *(*ask)(void *)) {
  struct newcomer newcomer = {.pool = NULL};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, ask, &newcomer), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_msg(newcomer.outcome.text[0] == '\0', "%s", newcomer.outcome.text);
  ck_assert_ptr_null(newcomer.before);
  return newcomer;
}

START_TEST(thread_without_a_context_gets_the_one_that_cudaMalloc_gives) {
  (void)primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  struct newcomer real = newcomer_runs(newcomer_asks_the_runtime);
  struct newcomer ours = newcomer_runs(newcomer_asks_the_library);
  ck_assert_ptr_eq(ours.after_malloc, real.after_malloc);
  ck_assert_ptr_eq(context_of(ours.block), context_of(real.block));
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 1); /* it is of the pool that was there */
  MAM_OK(MAM_CudaFree(ours.block));
  GPU_OK(cudaFree(real.block));
}
END_TEST

START_TEST(device_that_is_not_there_is_refused_as_by_cudaSetDevice) {
  int count = 0;
  GPU_OK(cudaGetDeviceCount(&count));
  const int ordinals[] = {count, count + 1, 12345};
  for (size_t i = 0; i < sizeof ordinals / sizeof ordinals[0]; i++) {
    MAM_Pool poison = (MAM_Pool)&count, pool = poison;
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.device = ordinals[i];
    options.chunk_bytes = OTHER_CHUNK_BYTES;
    cudaError_t real = cudaSetDevice(ordinals[i]);
    (void)cudaGetLastError();
    MAM_IS(MAM_PoolCreate(&pool, &options), real);
    ck_assert_ptr_eq(pool, poison);
  }
}
END_TEST

static int device_of(const void *address) {
  struct cudaPointerAttributes attributes;
  GPU_OK(cudaPointerGetAttributes(&attributes, address));
  return attributes.device;
}

START_TEST(each_device_has_its_own_default_pool) {
  GPU_OK(cudaSetDevice(1));
  MAM_OK(MAM_Create(OTHER_CHUNK_BYTES));
  void *on_second = block_new();
  block_write(on_second, 1);
  block_is(on_second, 1);
  (void)primary_current();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  void *on_first = block_new();
  ck_assert_int_eq(device_of(on_first), 0);
  ck_assert_int_eq(device_of(on_second), 1);
  MAM_OK(MAM_CudaFree(on_second)); /* with the first context current */
  MAM_OK(MAM_CudaFree(on_first));
  GPU_OK(cudaSetDevice(1));
  ck_assert_uint_eq(gpu_pool_info(NULL).reserved_bytes, OTHER_CHUNK_BYTES);
  ck_assert_uint_eq(gpu_pool_info(NULL).used_count, 0);
  MAM_OK(MAM_Destroy());
  GPU_OK(cudaSetDevice(0));
}
END_TEST

/* ---- Kernels of another context or device that use a block ------------------------------------------------------- */

enum {
  LATE_SPIN_MS = 2000, /* of a kernel that the test ends itself */
  LATE_SURE_MS = 1000, /* it certainly runs this long */
  LATE_ROUNDS = 8,
  LATE_SEED = 9000 /* of the pattern that the kernel writes */
};

static struct {
  uint32_t *stop;
  uint64_t *mismatches;
  double started_ms;
  bool runs; /* the kernel runs: under a sanitizer a launch may wait for its kernel */
} late;

static void late_set_up(void) {
  GPU_OK(gpu_kernels_load());
  late.stop = (uint32_t *)gpu_counter_new();
  late.mismatches = gpu_counter_new();
}

static void late_tear_down(void) {
  GPU_OK(cudaFreeHost(late.stop));
  GPU_OK(cudaFreeHost(late.mismatches));
}

/* Starts the kernel that writes the block late, in the current context, where it has run before. */
static void late_start(void *block, size_t bytes, cudaStream_t stream) {
  GPU_OK(gpu_kernels_load());
  GPU_OK(gpu_spin_then_fill(late.stop, 0, block, bytes, 1, stream));
  GPU_OK(cudaStreamSynchronize(stream));
  late.started_ms = gpu_now_ms();
  GPU_OK(gpu_spin_then_fill(late.stop, LATE_SPIN_MS, block, bytes, LATE_SEED, stream));
  late.runs = cudaStreamQuery(stream) == cudaErrorNotReady;
  (void)cudaGetLastError();
}

/* Allocates blocks while the kernel runs.  None may be the freed one. */
static void late_blocks(void *blocks[LATE_ROUNDS], void *freed, cudaStream_t stream, bool by_stream) {
  for (uint32_t i = 0; i < LATE_ROUNDS; i++) {
    if (by_stream)
      MAM_OK(MAM_CudaMallocAsync(&blocks[i], BLOCK_BYTES, stream));
    else
      MAM_OK(MAM_CudaMalloc(&blocks[i], BLOCK_BYTES));
    if (late.runs && gpu_now_ms() - late.started_ms < LATE_SURE_MS)
      ck_assert_msg(!overlaps_any(blocks[i], &freed, 1), "%p was handed out under a kernel that uses it", freed);
    GPU_OK(gpu_fill(blocks[i], BLOCK_BYTES, i, stream));
  }
  GPU_OK(cudaStreamSynchronize(stream));
}

/* The kernel has ended, and its pattern is in none of them. */
static void late_blocks_are_whole(void *blocks[LATE_ROUNDS], cudaStream_t stream) {
  for (uint32_t i = 0; i < LATE_ROUNDS; i++)
    GPU_OK(gpu_check(blocks[i], BLOCK_BYTES, i, late.mismatches, stream));
  GPU_OK(cudaStreamSynchronize(stream));
  ck_assert_uint_eq(*late.mismatches, 0);
  for (int i = 0; i < LATE_ROUNDS; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
}

static void late_stop(void) {
  __atomic_store_n(late.stop, 1, __ATOMIC_RELEASE);
  GPU_OK(cudaDeviceSynchronize());
}

/* The default streams of two contexts have the same handle, and are different streams. */
START_TEST(block_freed_on_another_contexts_stream_is_left_to_its_kernel) {
  cudaStream_t stream = _i == 0 ? NULL : cudaStreamPerThread;
  void *block = NULL, *blocks[LATE_ROUNDS];
  CUcontext primary = primary_current();
  late_set_up();
  MAM_OK(MAM_Create_auto());
  MAM_OK(MAM_CudaMallocAsync(&block, BLOCK_BYTES, stream));
  CUcontext other = context_new();
  late_start(block, BLOCK_BYTES, stream);
  MAM_OK(MAM_CudaFreeAsync(block, stream));
  context_push(primary);
  late_blocks(blocks, block, stream, true);
  ck_assert_ptr_eq(context_pop(), primary);
  late_stop();
  context_push(primary);
  late_blocks_are_whole(blocks, stream);
  ck_assert_ptr_eq(context_pop(), primary);
  context_delete(other);
  ck_assert_ptr_eq(gpu_context_current(), primary);
  late_tear_down();
  MAM_OK(MAM_Destroy());
}
END_TEST

static unsigned long long stream_id_new(PFN_cuStreamGetId_v12000 get) {
  unsigned long long id = 0;
  cudaStream_t stream;
  GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DRIVER_OK(get(stream, &id));
  GPU_OK(cudaStreamDestroy(stream));
  return id;
}

/* The library takes a handle with the id of before for the stream of before, without asking for the context. */
START_TEST(stream_ids_are_given_once_in_all_contexts) {
  unsigned long long ids[ID_ROUNDS][3];
  CUcontext primary = primary_current();
  PFN_cuStreamGetId_v12000 get;
  *(void **)&get = gpu_driver_find("cuStreamGetId", 12000);
  for (int i = 0; i < ID_ROUNDS && get != NULL; i++) {
    ids[i][0] = stream_id_new(get);
    CUcontext other = context_new();
    ids[i][1] = stream_id_new(get);
    ids[i][2] = stream_id_new(get);
    context_delete(other);
    ck_assert_ptr_eq(gpu_context_current(), primary);
  }
  for (int i = 0; i < 3 * ID_ROUNDS && get != NULL; i++)
    for (int j = 0; j < i; j++)
      ck_assert_uint_ne(ids[i / 3][i % 3], ids[j / 3][j % 3]);
}
END_TEST

/* Prints what cudaFree does: the library has to be at least as safe.  The kernel does not touch this memory. */
static void tell_what_cudaFree_does(const char *access) {
  void *block = NULL;
  cudaStream_t stream;
  GPU_OK(cudaSetDevice(0));
  GPU_OK(cudaMalloc(&block, BLOCK_BYTES));
  GPU_OK(cudaSetDevice(1));
  GPU_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  *late.stop = 0;
  late_start(NULL, 0, stream);
  GPU_OK(cudaSetDevice(0));
  double start_ms = gpu_now_ms();
  GPU_OK(cudaFree(block));
  double took_ms = gpu_now_ms() - start_ms;
  GPU_OK(cudaSetDevice(1));
  bool runs = cudaStreamQuery(stream) == cudaErrorNotReady;
  printf("cudaFree on device 0 under a kernel of device 1, peer access %s: %.1f ms, the kernel %s\n", access, took_ms,
         runs ? "runs on" : "has ended");
  late_stop();
  GPU_OK(cudaStreamDestroy(stream));
  GPU_OK(cudaSetDevice(0));
}

/* The address by which kernels of device 1 can use a block of device 0.  The library finds peers by the same
 * question. */
static void *address_on_peer(void *block) {
  CUdeviceptr there = 0;
  PFN_cuPointerGetAttribute_v4000 get;
  *(void **)&get = gpu_driver_function("cuPointerGetAttribute", 4000);
  GPU_OK(cudaSetDevice(1));
  CUresult result = get(&there, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)(uintptr_t)block);
  GPU_OK(cudaSetDevice(0));
  return result == CUDA_SUCCESS ? (void *)(uintptr_t)there : NULL;
}

START_TEST(block_that_a_peers_kernel_uses_is_not_handed_out) {
  int can = 0;
  void *block, *blocks[LATE_ROUNDS], *probe = NULL;
  GPU_OK(cudaDeviceCanAccessPeer(&can, 1, 0));
  if (can == 0) {
    printf("Device 1 cannot access device 0: left out.\n");
    return;
  }
  GPU_OK(cudaSetDevice(1));
  GPU_OK(cudaFree(NULL));
  (void)primary_current();
  late_set_up();
  MAM_OK(MAM_Create(CHUNK_BYTES));
  GPU_OK(cudaMalloc(&probe, 1));
  printf("before peer access is enabled, device 1 %s an address for device 0's memory\n",
         address_on_peer(probe) == NULL ? "has not" : "has");
  tell_what_cudaFree_does("not enabled");
  block = block_new();
  block_write(block, 1);
  GPU_OK(cudaSetDevice(1));
  GPU_OK(cudaDeviceEnablePeerAccess(0, 0));
  ck_assert_msg(address_on_peer(probe) != NULL, "the driver denies the access that was enabled");
  tell_what_cudaFree_does("enabled");
  *late.stop = 0;
  GPU_OK(cudaSetDevice(1));
  late_start(block, BLOCK_BYTES, NULL);
  GPU_OK(cudaSetDevice(0));
  MAM_OK(MAM_CudaFree(block));
  late_blocks(blocks, block, NULL, false);
  GPU_OK(cudaSetDevice(1));
  late_stop();
  GPU_OK(cudaSetDevice(0));
  late_blocks_are_whole(blocks, NULL);
  GPU_OK(cudaFree(probe));
  MAM_OK(MAM_Destroy());
  GPU_OK(cudaSetDevice(1));
  GPU_OK(cudaDeviceDisablePeerAccess(0));
  GPU_OK(cudaSetDevice(0));
  late_tear_down();
}
END_TEST

/* The set-up of each test.  A test that failed may have left its own context current, and pools in the first
 * context. */
static void context_test_begin(void) {
  (void)primary_current();
  MAM_OK(MAM_Destroy());
}

static TCase *context_case_add(Suite *suite, const char *name) {
  TCase *tests = gpu_case_add(suite, name);
  tcase_add_checked_fixture(tests, context_test_begin, NULL);
  return tests;
}

static Suite *context_suite(int devices) {
  Suite *suite = suite_create("contexts");
  TCase *two = context_case_add(suite, "two contexts");
  tcase_add_test(two, each_context_has_its_own_default_pool);
  tcase_add_test(two, block_is_freed_from_a_thread_in_another_context);
  tcase_add_test(two, stack_of_contexts_is_left_alone);
  tcase_add_test(two, stream_ids_are_given_once_in_all_contexts);
  TCase *device = context_case_add(suite, "devices");
  tcase_add_test(device, pool_of_a_device_is_created_without_a_current_context);
  tcase_add_test(device, thread_without_a_context_gets_the_one_that_cudaMalloc_gives);
  tcase_add_test(device, device_that_is_not_there_is_refused_as_by_cudaSetDevice);
  TCase *late_kernels = context_case_add(suite, "kernels elsewhere");
  tcase_add_loop_test(late_kernels, block_freed_on_another_contexts_stream_is_left_to_its_kernel, 0, 2);
  if (devices > 1) {
    tcase_add_test(device, each_device_has_its_own_default_pool);
    tcase_add_test(late_kernels, block_that_a_peers_kernel_uses_is_not_handed_out);
  } else {
    printf("There is one device: the tests of two are left out.\n");
  }
  TCase *destroyed = context_case_add(suite, "destroyed contexts");
  tcase_add_test(destroyed, blocks_of_a_destroyed_context_are_freed_without_harm);
  tcase_add_test(destroyed, new_context_in_a_destroyed_ones_place_is_not_harmed);
  tcase_add_test(destroyed, contexts_come_and_go_with_pools_alive);
  TCase *reset = context_case_add(suite, "cudaDeviceReset");
  tcase_add_test(reset, malloc_works_after_device_reset_and_a_runtime_call);
  tcase_add_test(reset, malloc_works_as_the_first_call_after_device_reset);
  tcase_add_test(reset, reset_by_another_thread_is_noticed_at_the_next_allocation);
  tcase_add_test(reset, free_and_destroy_after_device_reset_harm_nothing);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int devices = 0, absent = gpu_probe();
  if (absent != 0)
    return absent;
  if (cudaGetDeviceCount(&devices) != cudaSuccess)
    return EXIT_FAILURE;
  return gpu_suite_run(context_suite(devices));
}
