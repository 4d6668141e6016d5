/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every call of the driver fails in turn: for each scenario, function and error, the first call of the function fails,
 * then the second, until the scenario makes no more of them.  Each run is a process of its own.  In every one of them:
 *   - a call that allocates or creates either succeeds with memory that the driver really gave, or answers with the
 *     injected error, and then nothing changed, the error text is there, and the next attempt succeeds;
 *   - a call that gives back answers with success or the injected error, and what was given back is gone;
 *   - at the end no memory is held, unless a call that gives back said that it failed;
 *   - the driver was not misused, and the thread is as it was.
 * MAM_TEST_STRIDE=n lets only each n-th call of a function fail, for builds in which a process is slow.
 */
#include "mam.h"

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fake_driver.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

/* Exit statuses of a run. */
enum { RUN_GOOD = 0, RUN_BAD = 1, RUN_NOT_REACHED = 77 };

/* ---- One run ----------------------------------------------------------------------------------------------------- */

static struct {
  const char *scenario, *function;
  unsigned nth;
  int error;
  bool give_failed;    /* a call that gives memory back reported a failure */
  bool reuses_at_once; /* the pool's rule is immediate: freed memory may be in use */
  bool asks_by_memory; /* the environment keeps a piece of memory to ask the driver about */
} run;

static void require(bool holds, const char *what, int line) {
  if (holds)
    return;
  (void)fprintf(stderr, "%s:%d: %s, %s call %u answers %d: %s does not hold; last error: %s\n", __FILE__, line,
                run.scenario, run.function, run.nth, run.error, what, MAM_LastError());
  exit(RUN_BAD);
}
#define REQUIRE(condition) require(condition, #condition, __LINE__)

/* Whether the call succeeded.  If it failed, it must be because of an injected error that came during the call. */
static bool came_through(cudaError_t result, unsigned failures_before, const char *call, int line) {
  if (result == cudaSuccess)
    return true;
  require(fake_failures() > failures_before, call, line);
  if ((int)result != run.error)
    (void)fprintf(stderr, "answered %d\n", (int)result);
  require((int)result == run.error, call, line);
  require(MAM_LastError()[0] != '\0', "error text", line);
  return false;
}

/* A call that creates or allocates.  If it fails, undone must hold, and the call must succeed when it is repeated. */
#define TAKE(call, undone)                                                                                             \
  do {                                                                                                                 \
    unsigned failures_before = fake_failures();                                                                        \
    if (!came_through(call, failures_before, #call, __LINE__)) {                                                       \
      REQUIRE(undone);                                                                                                 \
      REQUIRE((call) == cudaSuccess);                                                                                  \
    }                                                                                                                  \
  } while (0)

/* A call that gives back. */
#define GIVE(call)                                                                                                     \
  do {                                                                                                                 \
    unsigned failures_before = fake_failures();                                                                        \
    if (!came_through(call, failures_before, #call, __LINE__))                                                         \
      run.give_failed = true;                                                                                          \
  } while (0)

static MAM_PoolInfo info_of(MAM_Pool pool) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  if (MAM_PoolGetInfo(pool, &info) != cudaSuccess)
    (void)memset(&info, 0, sizeof info);
  return info;
}

/* After a refused allocation the program sees the same pool as before.  Memory may have moved from waiting to free, out
 * of caches, and back to the source. */
static bool unchanged(MAM_Pool pool, MAM_PoolInfo before) {
  MAM_PoolInfo after = info_of(pool);
  return after.used_bytes == before.used_bytes && after.used_count == before.used_count &&
         after.requested_bytes == before.requested_bytes && after.limit_bytes == before.limit_bytes &&
         after.malloc_count == before.malloc_count && after.free_call_count == before.free_call_count &&
         after.reserved_bytes <= before.reserved_bytes && after.chunk_count <= before.chunk_count &&
         after.used_bytes + after.waiting_bytes + after.free_bytes == after.reserved_bytes;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

enum { block_limit = 64 };
static struct block {
  char *address;
  size_t bytes;
} blocks[block_limit];
static unsigned block_count;

static bool overlaps(const char *address, size_t bytes) {
  for (unsigned i = 0; i < block_count; i++)
    if (address < blocks[i].address + blocks[i].bytes && blocks[i].address < address + bytes)
      return true;
  return false;
}

/* By MAM_CudaMalloc if pool is NULL. */
static cudaError_t take_block(MAM_Pool pool, void **address, size_t bytes) {
  return pool != NULL ? MAM_PoolMalloc(pool, address, bytes) : MAM_CudaMalloc(address, bytes);
}

/* Memory stays held if the driver does not take its handle or mapping back. */
static bool refuses_to_take_back(void) {
  return strcmp(run.function, "cuMemRelease") == 0 || strcmp(run.function, "cuMemUnmap") == 0;
}

static bool holds_no_more(size_t held_before) {
  size_t asked = run.asks_by_memory ? FAKE_GRANULARITY_BYTES : 0;
  return refuses_to_take_back() || fake_live_bytes() <= held_before + asked;
}

static char *block(MAM_Pool pool, size_t bytes) {
  void *address = &address;
  MAM_PoolInfo before = info_of(pool);
  size_t held_before = fake_live_bytes();
  TAKE(take_block(pool, &address, bytes), address == NULL && unchanged(pool, before) && holds_no_more(held_before));
  REQUIRE(fake_holds(address, bytes));
  REQUIRE(run.reuses_at_once || !fake_in_use(address, bytes, FAKE_NO_STREAM));
  REQUIRE(!overlaps(address, bytes));
  blocks[block_count++] = (struct block){address, bytes};
  return address;
}

static void give_block(char *address) {
  GIVE(MAM_CudaFree(address));
  for (unsigned i = 0; i < block_count; i++)
    if (blocks[i].address == address)
      blocks[i] = blocks[--block_count];
  REQUIRE(MAM_CudaFree(address) == cudaErrorInvalidValue);
}

static void forget_blocks(void) { block_count = 0; }

/* A kernel uses every live block.  A block that is freed meanwhile must not be handed out before the kernel has
 * ended. */
static void launch(void *context) {
  struct fake_range ranges[block_limit];
  void *current = fake_current();
  for (unsigned i = 0; i < block_count; i++)
    ranges[i] = (struct fake_range){blocks[i].address, blocks[i].bytes};
  fake_make_current(context);
  REQUIRE(fake_launch(FAKE_STREAM_LEGACY, ranges, block_count));
  fake_make_current(current);
}

/* ---- Scenarios --------------------------------------------------------------------------------------------------- */

static void *use_primary(void) {
  void *context = fake_primary_retain(0);
  fake_make_current(context);
  return context;
}

/* Allocations and frees that fill 8 MiB, make blocks wait, and have to wait for the GPU. */
static void fill_and_refill(MAM_Pool pool, void *context) {
  char *a = block(pool, 1000), *b = block(pool, 2 * MIB), *c = block(pool, 5 * MIB);
  launch(context);
  give_block(b);
  b = block(pool, 2 * MIB); /* only the block that waits is large enough */
  launch(context);
  give_block(a);
  give_block(c); /* passes the waiting limit */
  a = block(pool, 3000);
  c = block(pool, MIB);
  launch(context);
  give_block(a);
  give_block(b);
  give_block(c);
  b = block(pool, 3 * MIB);
  fake_finish(context);
  a = block(pool, 1000);
  give_block(b);
  give_block(a);
}

static void explicit_environment(void) {
  void *context = use_primary();
  TAKE(MAM_Create(8 * MIB), fake_live_blocks() == 0);
  fill_and_refill(NULL, context);
  (void)block(NULL, 1000);
  GIVE(MAM_Destroy());
  forget_blocks();
  TAKE(MAM_Create(4 * MIB), true);
  REQUIRE(info_of(NULL).reserved_bytes == 4 * MIB);
  GIVE(MAM_Destroy());
}

static void environment_without_fences(void) {
  fake_hide("cuCtxRecordEvent");
  explicit_environment();
}

static void automatic_environment(void) {
  void *context = use_primary();
  fake_set_capacity(8 * MIB);
  (void)setenv("MAM_SOURCE", "device", 1);
  (void)setenv("MAM_HEADROOM", "0", 1);
  TAKE(MAM_Create_auto(), fake_live_blocks() == 0);
  REQUIRE(fake_live_bytes() >= 4 * MIB);
  give_block(block(NULL, MIB));
  fake_submit(context);
  GIVE(MAM_Destroy());
}

static void lazy_environment(void) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  use_primary();
  char *a = block(NULL, 1000), *b = block(NULL, 3 * MIB);
  give_block(a);
  give_block(b); /* the last block: the environment ends */
  for (int i = 0; i < 3; i++)
    give_block(block(NULL, 1000)); /* the environment comes back and stays */
  GIVE(MAM_Destroy());
}

static void lazy_chunk(void) {
  (void)setenv("MAM_SOURCE", "device", 1);
  lazy_environment();
}

/* Grows, serves again under work, gives memory back and grows again. */
static void mapped_environment(void) {
  void *context = use_primary();
  fake_set_capacity(96 * MIB);
  (void)setenv("MAM_HEADROOM", "32M", 1); /* so that there is another piece where the driver loses one */
  TAKE(MAM_Create_auto(), fake_live_blocks() == 0 && fake_reserved_bytes() == 0);
  char *a = block(NULL, 12 * MIB), *b = block(NULL, 20 * MIB), *c = block(NULL, 1000);
  launch(context);
  give_block(b);
  GIVE(MAM_Trim(0));
  REQUIRE(fake_holds(b, 20 * MIB)); /* since the kernel uses it */
  b = block(NULL, 24 * MIB);
  fake_finish(context);
  GIVE(MAM_Trim(0));
  give_block(a);
  a = block(NULL, 30 * MIB); /* from several free pieces */
  launch(context);
  give_block(b);
  give_block(c);
  b = block(NULL, 33 * MIB);
  give_block(a);
  give_block(b);
  launch(context);
  GIVE(MAM_Destroy());
}

static void mapped_pool(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool = NULL;
  use_primary();
  options.source = MAM_SOURCE_VMM;
  options.context = fake_context_create(0);
  options.chunk_bytes = 4 * MIB;
  options.limit_bytes = 8 * MIB;
  TAKE(MAM_PoolCreate(&pool, &options), pool == NULL && holds_no_more(0) && fake_reserved_bytes() == 0);
  fill_and_refill(pool, options.context);
  GIVE(MAM_PoolTrim(pool, 2 * MIB));
  (void)block(pool, 6 * MIB);
  GIVE(MAM_PoolDestroy(pool));
  forget_blocks();
}

/* Work and reuse on streams. */
static void streams(void) {
  void *context = use_primary(), *one = fake_stream_create(0), *two = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  void *address = NULL;
  TAKE(MAM_Create(8 * MIB), fake_live_blocks() == 0);
  for (int i = 0; i < 6; i++) {
    void *stream = i % 3 == 2 ? two : one;
    TAKE(MAM_CudaMallocAsync(&address, 3 * MIB, stream), address == NULL);
    REQUIRE(!fake_in_use(address, 3 * MIB, stream));
    const struct fake_range range = {address, 3 * MIB};
    REQUIRE(fake_launch(stream, &range, 1));
    TAKE(MAM_CudaFreeAsync(address, stream), info_of(NULL).used_count == 1);
    address = NULL;
  }
  fake_finish(context);
  give_block(block(NULL, 5 * MIB));
  GIVE(MAM_Destroy());
}

static void thread_without_context(void) {
  char *a = block(NULL, 1000);
  REQUIRE(fake_current() != NULL);
  give_block(a);
  TAKE(MAM_Create(4 * MIB), fake_live_blocks() == 0);
  GIVE(MAM_Destroy());
}

static MAM_Pool pool_with(const MAM_PoolOptions *options) {
  MAM_Pool pool = NULL;
  unsigned retains = fake_retains(0);
  TAKE(MAM_PoolCreate(&pool, options), pool == NULL && fake_live_blocks() == 0 && fake_retains(0) == retains);
  REQUIRE(pool != NULL);
  return pool;
}

static void growing_pool(MAM_Source source) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  use_primary();
  options.source = source;
  options.context = fake_context_create(0);
  options.chunk_bytes = 4 * MIB;
  options.limit_bytes = 12 * MIB;
  MAM_Pool pool = pool_with(&options);
  char *a = block(pool, 3 * MIB), *b = block(pool, 3 * MIB), *c = block(pool, 3 * MIB);
  /* A mapping source may have refused to map ahead.  Then the pool holds as much as is needed. */
  REQUIRE(info_of(pool).reserved_bytes == 12 * MIB ||
          (source == MAM_SOURCE_VMM && info_of(pool).reserved_bytes >= 9 * MIB));
  launch(options.context);
  give_block(a);
  a = block(pool, 2 * MIB);
  give_block(b);
  give_block(c);
  (void)block(pool, 4 * MIB);
  give_block(a);
  GIVE(MAM_PoolDestroy(pool));
  forget_blocks();
  REQUIRE(MAM_PoolDestroy(pool) == cudaErrorInvalidResourceHandle);
}

static void growing_device_pool(void) { growing_pool(MAM_SOURCE_DEVICE); }
static void growing_pinned_pool(void) { growing_pool(MAM_SOURCE_PINNED); }
static void growing_managed_pool(void) { growing_pool(MAM_SOURCE_MANAGED); }
static void growing_mapped_pool(void) { growing_pool(MAM_SOURCE_VMM); }

/* At its limit a pool moves what is free between live blocks. */
static void moving_pool(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  use_primary();
  options.source = MAM_SOURCE_VMM;
  options.context = fake_context_create(0);
  options.chunk_bytes = 4 * MIB;
  options.limit_bytes = 20 * MIB;
  MAM_Pool pool = pool_with(&options);
  char *row[5], *moved;
  for (int i = 0; i < 5; i++)
    row[i] = block(pool, 4 * MIB);
  launch(options.context);
  fake_finish(options.context);
  give_block(row[0]);
  give_block(row[2]);
  moved = block(pool, 8 * MIB);
  REQUIRE(fake_calls("cuMemRetainAllocationHandle") > 0);
  REQUIRE(info_of(pool).reserved_bytes <= 20 * MIB);
  for (int i = 1; i < 5; i += 2)
    REQUIRE(fake_holds(row[i], 4 * MIB));
  launch(options.context);
  fake_finish(options.context);
  give_block(moved);
  give_block(block(pool, 7 * MIB));
  GIVE(MAM_PoolDestroy(pool));
  forget_blocks();
}

static void pool_by_device(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.device = 0;
  options.chunk_bytes = 4 * MIB;
  options.reuse = MAM_REUSE_IMMEDIATE;
  run.reuses_at_once = true;
  MAM_Pool pool = pool_with(&options);
  give_block(block(pool, MIB));
  GIVE(MAM_PoolDestroy(pool));
  REQUIRE(fake_retains(0) == 0 || strcmp(run.function, "cuDevicePrimaryCtxRelease") == 0);
}

static void largest_pools(void) {
  use_primary();
  fake_set_capacity(64 * MIB);
  fake_set_host_capacity((size_t)1 << 40);
  for (int source = MAM_SOURCE_DEVICE; source <= MAM_SOURCE_MANAGED; source++) {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.source = (MAM_Source)source;
    MAM_Pool pool = NULL;
    size_t held_before = fake_live_bytes();
    TAKE(MAM_PoolCreate(&pool, &options), pool == NULL && fake_live_bytes() == held_before);
    give_block(block(pool, MIB));
    GIVE(MAM_PoolDestroy(pool));
  }
}

static void two_contexts(void) {
  void *first = use_primary(), *second = fake_context_create(0);
  TAKE(MAM_Create(8 * MIB), fake_live_blocks() == 0);
  char *a = block(NULL, MIB);
  fake_make_current(second);
  TAKE(MAM_Create(4 * MIB), fake_live_blocks() == 1);
  char *b = block(NULL, MIB);
  give_block(a);
  fake_make_current(first);
  give_block(b);
  GIVE(MAM_Destroy());
  fake_make_current(second);
  GIVE(MAM_Destroy());
}

/* One context uses the memory by peer access, and another one frees on a stream of its own. */
static void peers(void) {
  fake_set_devices(2);
  void *peer = fake_primary_retain(1), *other = fake_context_create(0), *first = use_primary();
  fake_peer_enable(peer, 0);
  TAKE(MAM_Create(8 * MIB), fake_live_blocks() == 0);
  char *a = block(NULL, 3 * MIB), *b = block(NULL, 3 * MIB);
  run.asks_by_memory = true;
  launch(peer);
  fake_make_current(other);
  REQUIRE(fake_launch(NULL, &(struct fake_range){b, 3 * MIB}, 1));
  GIVE(MAM_CudaFreeAsync(b, NULL));
  fake_make_current(first);
  forget_blocks();
  give_block(a);
  fake_make_current(first); /* the peer's is current if it could not be popped */
  (void)block(NULL, 3 * MIB);
  fake_make_current(first);
  GIVE(MAM_Destroy());
}

/* Another context gets the addresses of one that is gone. */
static void context_gone(void) {
  fake_make_current(fake_context_create(0));
  TAKE(MAM_Create(4 * MIB), fake_live_blocks() == 0);
  (void)block(NULL, MIB);
  fake_context_destroy(fake_current());
  forget_blocks();
  fake_make_current(fake_context_create(0));
  TAKE(MAM_Create(8 * MIB), fake_live_blocks() == 0);
  give_block(block(NULL, 8 * MIB));
  GIVE(MAM_Destroy());
}

/* ---- All runs ---------------------------------------------------------------------------------------------------- */

static const struct scenario {
  const char *name;
  void (*play)(void);
} scenarios[] = {
    {"explicit environment", explicit_environment},
    {"environment without fences", environment_without_fences},
    {"automatic environment", automatic_environment},
    {"lazy environment", lazy_environment},
    {"lazy chunk", lazy_chunk},
    {"mapped environment", mapped_environment},
    {"mapped pool", mapped_pool},
    {"streams", streams},
    {"thread without a context", thread_without_context},
    {"growing device pool", growing_device_pool},
    {"growing pinned pool", growing_pinned_pool},
    {"growing managed pool", growing_managed_pool},
    {"growing mapped pool", growing_mapped_pool},
    {"moving pool", moving_pool},
    {"pool by device", pool_by_device},
    {"largest pools", largest_pools},
    {"two contexts", two_contexts},
    {"peers", peers},
    {"context gone", context_gone},
};
enum { scenario_count = sizeof scenarios / sizeof scenarios[0] };

static const char *const functions[] = {
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxGetState",
    "cuPointerGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetId",
    "cuCtxSynchronize",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemGetInfo",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventQuery",
    "cuCtxRecordEvent",
    "cuStreamGetId",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamGetCaptureInfo",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuCtxGetDevice",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem",
};
enum { function_count = sizeof functions / sizeof functions[0] };

static const int errors[] = {2, 1, 700, 201, 999};
enum { error_count = sizeof errors / sizeof errors[0] };

/* The thread is as before, but for a context that could not be popped and a capture mode that could not be set back. */
static void require_thread_restored(int depth) {
  bool popping = strcmp(run.function, "cuCtxPopCurrent") == 0;
  bool exchanging = strcmp(run.function, "cuThreadExchangeStreamCaptureMode") == 0;
  REQUIRE(popping || fake_stack_depth() == depth);
  REQUIRE((exchanging && run.nth % 2 == 0) || fake_capture_mode() == 0);
}

static int play(const struct scenario *scenario) {
  fake_fail(run.function, run.nth, run.error);
  scenario->play();
  if (fake_failures() == 0)
    return RUN_NOT_REACHED;
  if (!run.give_failed && !refuses_to_take_back() && !run.asks_by_memory) /* these may stay held without a report */
    REQUIRE(fake_live_blocks() == 0 && fake_reserved_bytes() == 0);
  REQUIRE(fake_live_blocks() <= 1);
  REQUIRE(fake_violations() == 0);
  REQUIRE(fake_faults() == 0);
  REQUIRE(fake_wrong_frees() == 0);
  require_thread_restored(1 - (strcmp(scenario->name, "pool by device") == 0));
  return RUN_GOOD;
}

/* Plays the scenario in a child with one injected error.  Returns the child's exit status. */
static int play_apart(const struct scenario *scenario) {
  int status = 0;
  (void)fflush(NULL);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0)
    exit(play(scenario));
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status))
    (void)fprintf(stderr, "%s, %s call %u answers %d: signal %d\n", run.scenario, run.function, run.nth, run.error,
                  WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : RUN_BAD;
}

struct tally {
  unsigned injected, bad;
};

static int stride(void) {
  const char *text = getenv("MAM_TEST_STRIDE");
  int count = text != NULL ? atoi(text) : 1;
  return count > 0 ? count : 1;
}

/* Makes the first call of the function fail, then the second, and so on.  It stops after a few bad runs, since the rest
 * will be like them. */
static void play_function(const struct scenario *scenario, struct tally *tally) {
  unsigned bad = 0;
  for (int error = 0; error < error_count; error++) {
    int status = RUN_GOOD;
    run.error = errors[error];
    /* 201 is not a failure of cuCtxGetId: the thread has no context. */
    if (run.error == 201 && strcmp(run.function, "cuCtxGetId") == 0)
      continue;
    for (run.nth = 1; status != RUN_NOT_REACHED && bad < 5; run.nth += stride()) {
      status = play_apart(scenario);
      tally->injected += status != RUN_NOT_REACHED;
      bad += status != RUN_NOT_REACHED && status != RUN_GOOD;
    }
  }
  tally->bad += bad;
}

START_TEST(every_failure_is_survived) {
  const struct scenario *scenario = &scenarios[_i];
  struct tally tally = {0, 0};
  run.scenario = scenario->name;
  for (int function = 0; function < function_count; function++) {
    run.function = functions[function];
    play_function(scenario, &tally);
  }
  (void)printf("%s: %u injections, %u bad\n", scenario->name, tally.injected, tally.bad);
  (void)fflush(stdout);
  ck_assert_uint_eq(tally.bad, 0);
  ck_assert_uint_gt(tally.injected, 0);
}
END_TEST

/* Without an injected error each scenario reaches its end. */
START_TEST(nothing_fails_by_itself) {
  run.scenario = scenarios[_i].name;
  run.function = "cuInit";
  run.nth = 1000000;
  run.error = -1;
  ck_assert_int_eq(play_apart(&scenarios[_i]), RUN_NOT_REACHED);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("fault");
  TCase *tcase = tcase_create("injections");
  tcase_set_timeout(tcase, 120);
  tcase_add_loop_test(tcase, nothing_fails_by_itself, 0, scenario_count);
  tcase_add_loop_test(tcase, every_failure_is_survived, 0, scenario_count);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
