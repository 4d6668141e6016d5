/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stream capture goes on while the library allocates, frees and grows, in the capturing thread and in others, and the
 * graph computes what was captured.  Memory that is freed during a capture is handed out to no other use before the end
 * of the capture.
 *
 * A graph uses the memory of its capture whenever it is launched.  So a test keeps the blocks until the last launch, or
 * launches the graph only while nothing else uses the pool.  The program needs a GPU and exits with 77 without one.
 */
#include "gpu_kernels.h"
#include "gpu_traffic.h"
#include "gpu_util.h"

enum {
  CAPTURES = 6, /* in one test */
  REPLAYS = 3,
  BLOCKS = 5, /* sizes of blocks in a capture */
  MODES = 3,
  OWN_THREADS = 2,
  OWN_CAPTURES = 20,
};

static const enum cudaStreamCaptureMode modes[MODES] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                        cudaStreamCaptureModeRelaxed};
static const size_t chunk_bytes = 32 * MIB;
static const size_t block_bytes[BLOCKS] = {1, 1000, 65536, 3 * MIB, 40 * MIB}; /* for the last one the pool grows */

static struct {
  cudaStream_t stream, other; /* captures; does everything else */
  uint64_t *mismatches;
  void *inputs[BLOCKS]; /* not from the library, so that they outlive every pool */
} scene;

/* Blocks that the present capture freed by the plain call. */
static struct {
  const unsigned char *from[BLOCKS];
  size_t bytes[BLOCKS];
  int count;
} parked;

static void scene_set_up(void) {
  parked.count = 0;
  GPU_OK(gpu_kernels_load());
  GPU_OK(cudaStreamCreateWithFlags(&scene.stream, cudaStreamNonBlocking));
  GPU_OK(cudaStreamCreateWithFlags(&scene.other, cudaStreamNonBlocking));
  scene.mismatches = gpu_counter_new();
  for (int i = 0; i < BLOCKS; i++) {
    GPU_OK(cudaMalloc(&scene.inputs[i], block_bytes[i]));
    GPU_OK(gpu_fill(scene.inputs[i], block_bytes[i], 1, scene.stream));
    GPU_OK(gpu_check(scene.inputs[i], block_bytes[i], 1, scene.mismatches, scene.other));
  }
  GPU_OK(cudaDeviceSynchronize());
  *scene.mismatches = 0; /* the streams had no order, so a check may have come before its fill */
}

/* Ends a capture that a failed test left open. */
static void scene_tear_down(void) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = NULL;
  if (cudaStreamIsCapturing(scene.stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) {
    (void)cudaStreamEndCapture(scene.stream, &graph);
    (void)MAM_CaptureEnd();
    (void)cudaGetLastError();
  }
  GPU_OK(cudaDeviceSynchronize());
  for (int i = 0; i < BLOCKS; i++)
    GPU_OK(cudaFree(scene.inputs[i]));
  GPU_OK(cudaFreeHost(scene.mismatches));
  GPU_OK(cudaStreamDestroy(scene.stream));
  GPU_OK(cudaStreamDestroy(scene.other));
}

/* ---- One capture ------------------------------------------------------------------------------------------------- */

/* A graph that copies each input through a temporary block to a result, and what it needs for that. */
struct captured {
  cudaGraphExec_t executable;
  void *results[BLOCKS];
  void *temporary[2 * BLOCKS]; /* blocks that the capture did not free */
};

static unsigned char *block_new(MAM_Pool pool, size_t bytes, bool async) {
  void *block = NULL;
  if (async)
    MAM_OK(MAM_PoolMallocAsync(pool, &block, bytes, scene.stream));
  else
    MAM_OK(MAM_PoolMalloc(pool, &block, bytes));
  const unsigned char *from = (const unsigned char *)block;
  for (int i = 0; i < parked.count; i++)
    ck_assert_msg(from + bytes <= parked.from[i] || parked.from[i] + parked.bytes[i] <= from,
                  "%p of %zu bytes was handed out during the capture that freed it", block, bytes);
  return (unsigned char *)block;
}

static void block_free(struct traffic *traffic, void *block, size_t bytes, bool async) {
  if (traffic != NULL)
    traffic_ban(traffic, block, bytes);
  if (!async) {
    parked.from[parked.count] = (const unsigned char *)block;
    parked.bytes[parked.count++] = bytes;
  }
  MAM_OK(async ? MAM_CudaFreeAsync(block, scene.stream) : MAM_CudaFree(block));
}

/* Captures input -> temporary -> result.  Then a second temporary block of that size is overwritten, which may have the
 * memory of the first. */
static void step_capture(struct captured *captured, int i, MAM_Pool pool, struct traffic *traffic, bool frees) {
  size_t bytes = block_bytes[i];
  bool async = i % 2 == 0;
  unsigned char *first = block_new(pool, bytes, async);
  captured->results[i] = block_new(pool, bytes, !async);
  GPU_OK(gpu_copy(first, scene.inputs[i], bytes, scene.stream));
  GPU_OK(gpu_copy(captured->results[i], first, bytes, scene.stream));
  if (frees)
    block_free(traffic, first, bytes, async);
  unsigned char *second = block_new(pool, bytes, true);
  GPU_OK(gpu_fill(second, bytes, 999, scene.stream));
  if (frees)
    block_free(traffic, second, bytes, true);
  captured->temporary[2 * i] = frees ? NULL : first;
  captured->temporary[2 * i + 1] = frees ? NULL : second;
}

static void capture(struct captured *captured, enum cudaStreamCaptureMode mode, MAM_Pool pool, struct traffic *traffic,
                    bool frees) {
  cudaGraph_t graph = NULL;
  parked.count = 0;
  MAM_OK(MAM_CaptureBegin());
  GPU_OK(cudaStreamBeginCapture(scene.stream, mode));
  for (int i = 0; i < BLOCKS; i++)
    step_capture(captured, i, pool, traffic, frees);
  GPU_OK(cudaStreamEndCapture(scene.stream, &graph));
  if (traffic != NULL)
    traffic_unban(traffic);
  MAM_OK(MAM_CaptureEnd());
  parked.count = 0;
  ck_assert_ptr_nonnull(graph);
  GPU_OK(cudaGraphInstantiate(&captured->executable, graph, 0));
  GPU_OK(cudaGraphDestroy(graph));
}

/* Each launch has other inputs, so that an old result does not pass for a new one. */
static void replay(const struct captured *captured) {
  for (uint32_t round = 0; round < REPLAYS; round++) {
    for (uint32_t i = 0; i < BLOCKS; i++)
      GPU_OK(gpu_fill(scene.inputs[i], block_bytes[i], 10 * round + i, scene.stream));
    GPU_OK(cudaGraphLaunch(captured->executable, scene.stream));
    for (uint32_t i = 0; i < BLOCKS; i++)
      GPU_OK(gpu_check(captured->results[i], block_bytes[i], 10 * round + i, scene.mismatches, scene.stream));
    GPU_OK(cudaStreamSynchronize(scene.stream));
    ck_assert_msg(*scene.mismatches == 0, "replay %u: %llu bytes of the results are wrong", round,
                  (unsigned long long)*scene.mismatches);
  }
}

static void captured_end(struct captured *captured) {
  GPU_OK(cudaGraphExecDestroy(captured->executable));
  for (int i = 0; i < BLOCKS; i++)
    MAM_OK(MAM_CudaFree(captured->results[i]));
  for (int i = 0; i < 2 * BLOCKS; i++)
    MAM_OK(MAM_CudaFree(captured->temporary[i]));
}

/* ---- Bracketed captures ------------------------------------------------------------------------------------------ */

static MAM_Pool growing_pool(MAM_Source source) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = source;
  options.chunk_bytes = chunk_bytes;
  options.limit_bytes = 4 * GIB;
  return gpu_pool_new(&options);
}

/* _i of the tests below: a mode and a source. */
static enum cudaStreamCaptureMode mode_of(int i) { return modes[i % MODES]; }
static MAM_Source source_of(int i) { return i / MODES == 0 ? MAM_SOURCE_DEVICE : MAM_SOURCE_VMM; }

static struct traffic *others_begin(MAM_Pool pool) {
  const struct traffic_options options = {.pool = pool,
                                          .calls = TRAFFIC_MIXED,
                                          .sizes = TRAFFIC_MODEST,
                                          .only_own_streams = true,
                                          .hold_us = 100,
                                          .threads = 2};
  return traffic_begin(&options);
}

static void others_end(struct traffic *traffic) {
  uint64_t kernels = 0, faults = traffic_end(traffic, &kernels);
  ck_assert_msg(faults == 0, "%llu bytes were changed under the kernels of other threads", (unsigned long long)faults);
  ck_assert_uint_gt(kernels, 0);
}

static void pool_is_empty(MAM_Pool pool) {
  MAM_PoolInfo info = gpu_pool_info(pool);
  ck_assert_uint_eq(info.used_bytes, 0);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count);
}

START_TEST(captures_live_on_with_frees_inside_and_traffic_beside) {
  MAM_Pool pool = growing_pool(source_of(_i));
  struct captured captured[CAPTURES];
  struct traffic *traffic = others_begin(pool);
  for (int i = 0; i < CAPTURES; i++)
    capture(&captured[i], mode_of(_i), pool, traffic, true);
  others_end(traffic);
  for (int i = 0; i < CAPTURES; i++)
    replay(&captured[i]);
  for (int i = 0; i < CAPTURES; i++)
    captured_end(&captured[i]);
  pool_is_empty(pool);
}
END_TEST

START_TEST(graphs_that_keep_their_blocks_run_beside_traffic) {
  MAM_Pool pool = growing_pool(source_of(_i));
  struct captured captured[CAPTURES];
  /* compute-sanitizer hangs if one thread waits for a graph while others launch kernels */
  struct traffic *traffic = gpu_small() ? NULL : others_begin(pool);
  for (int i = 0; i < CAPTURES; i++) {
    capture(&captured[i], mode_of(_i), pool, traffic, false);
    for (int j = 0; j <= i; j++)
      replay(&captured[j]);
  }
  for (int i = 0; i < CAPTURES; i++)
    captured_end(&captured[i]);
  if (traffic != NULL)
    others_end(traffic);
  pool_is_empty(pool);
}
END_TEST

/* The capture frees the whole pool, and asks for it again. */
START_TEST(allocation_that_would_have_to_wait_is_refused) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = chunk_bytes;
  options.waiting_limit_bytes = chunk_bytes;
  MAM_Pool pool = gpu_pool_new(&options);
  void *all = block_new(pool, chunk_bytes, false), *again = NULL;
  cudaGraph_t graph = NULL;
  MAM_OK(MAM_CaptureBegin());
  GPU_OK(cudaStreamBeginCapture(scene.stream, mode_of(_i)));
  GPU_OK(gpu_fill(all, chunk_bytes, 1, scene.stream));
  MAM_OK(MAM_CudaFree(all));
  MAM_IS(MAM_PoolMalloc(pool, &again, chunk_bytes), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(again);
  GPU_OK(cudaStreamEndCapture(scene.stream, &graph));
  MAM_OK(MAM_CaptureEnd());
  GPU_OK(cudaGraphDestroy(graph));
  MAM_OK(MAM_PoolMalloc(pool, &again, chunk_bytes));
  MAM_OK(MAM_CudaFree(again));
}
END_TEST

START_TEST(end_without_begin_is_refused) {
  MAM_IS(MAM_CaptureEnd(), cudaErrorInvalidValue);
  MAM_OK(MAM_CaptureBegin());
  MAM_OK(MAM_CaptureBegin());
  MAM_OK(MAM_CaptureEnd());
  MAM_OK(MAM_CaptureEnd());
  MAM_IS(MAM_CaptureEnd(), cudaErrorInvalidValue);
}
END_TEST

/* ---- Several threads that capture -------------------------------------------------------------------------------- */

struct capturer {
  pthread_t thread;
  MAM_Pool pool;
  uint32_t seed;
  cudaStream_t stream;
  uint64_t *mismatches;
  struct gpu_outcome outcome;
};

/* A block from before the capture, one of the capture, and a temporary one that is freed after the launches. */
static bool capturer_record(struct capturer *own, void **blocks, cudaGraph_t *graph) {
  struct gpu_outcome *outcome = &own->outcome;
  enum cudaStreamCaptureMode mode =
      own->seed % 2 == 0 ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeRelaxed;
  if (!GPU_TRY(outcome, MAM_CaptureBegin()))
    return false;
  bool begun = GPU_TRY(outcome, cudaStreamBeginCapture(own->stream, mode));
  bool done = begun && GPU_TRY(outcome, MAM_PoolMallocAsync(own->pool, &blocks[1], MIB, own->stream)) &&
              GPU_TRY(outcome, MAM_PoolMalloc(own->pool, &blocks[2], MIB)) &&
              GPU_TRY(outcome, gpu_copy(blocks[1], blocks[0], MIB, own->stream)) &&
              GPU_TRY(outcome, gpu_copy(blocks[2], blocks[1], MIB, own->stream));
  if (begun)
    done = GPU_TRY(outcome, cudaStreamEndCapture(own->stream, graph)) && done;
  return GPU_TRY(outcome, MAM_CaptureEnd()) && done;
}

static bool capturer_replay(struct capturer *own, void *const *blocks, cudaGraph_t graph) {
  struct gpu_outcome *outcome = &own->outcome;
  cudaGraphExec_t executable = NULL;
  if (!GPU_TRY(outcome, cudaGraphInstantiate(&executable, graph, 0)))
    return false;
  bool done = true;
  for (uint32_t round = 0; round < REPLAYS && done; round++)
    done = GPU_TRY(outcome, gpu_fill(blocks[0], MIB, own->seed + round, own->stream)) &&
           GPU_TRY(outcome, cudaGraphLaunch(executable, own->stream)) &&
           GPU_TRY(outcome, gpu_check(blocks[2], MIB, own->seed + round, own->mismatches, own->stream));
  done = GPU_TRY(outcome, cudaStreamSynchronize(own->stream)) && done;
  return GPU_TRY(outcome, cudaGraphExecDestroy(executable)) && done;
}

static bool capturer_step(struct capturer *own) {
  void *blocks[3] = {NULL};
  cudaGraph_t graph = NULL;
  bool done = GPU_TRY(&own->outcome, MAM_PoolMallocAsync(own->pool, &blocks[0], MIB, own->stream)) &&
              capturer_record(own, blocks, &graph) && capturer_replay(own, blocks, graph);
  if (graph != NULL)
    done = GPU_TRY(&own->outcome, cudaGraphDestroy(graph)) && done;
  for (int i = 0; i < 3; i++)
    done = GPU_TRY(&own->outcome, MAM_CudaFreeAsync(blocks[i], own->stream)) && done;
  return done;
}

static void *capturer_run(void *argument) {
  struct capturer *own = (struct capturer *)argument;
  if (!GPU_TRY(&own->outcome, cudaSetDevice(0)) ||
      !GPU_TRY(&own->outcome, cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking)))
    return NULL;
  for (int i = 0; i < OWN_CAPTURES && capturer_step(own); i++)
    own->seed += 2 * REPLAYS;
  (void)GPU_TRY(&own->outcome, cudaStreamDestroy(own->stream));
  return NULL;
}

/* Each thread's bracket begins and ends within the other's. */
START_TEST(brackets_of_several_threads_overlap) {
  MAM_Pool pool = growing_pool(MAM_SOURCE_DEVICE);
  static struct capturer capturers[OWN_THREADS];
  int started = 0;
  for (uint32_t i = 0; i < OWN_THREADS; i++)
    capturers[i] = (struct capturer){.pool = pool, .seed = 1000 * i + i, .mismatches = gpu_counter_new()};
  /* From here until all threads have ended nothing fails the test: they would go on beside the next one. */
  while (started < OWN_THREADS &&
         pthread_create(&capturers[started].thread, NULL, capturer_run, &capturers[started]) == 0)
    started++;
  for (int i = 0; i < started; i++)
    (void)pthread_join(capturers[i].thread, NULL);
  ck_assert_int_eq(started, OWN_THREADS);
  for (int i = 0; i < OWN_THREADS; i++) {
    ck_assert_msg(capturers[i].outcome.text[0] == '\0', "thread %d: %s", i, capturers[i].outcome.text);
    ck_assert_uint_eq(*capturers[i].mismatches, 0);
    GPU_OK(cudaFreeHost(capturers[i].mismatches));
  }
  pool_is_empty(pool);
}
END_TEST

/* ---- Without brackets -------------------------------------------------------------------------------------------- */

static void unbracketed_steps(void *result, size_t bytes) {
  for (int i = 0; i < 100; i++) {
    void *temporary = NULL;
    size_t size = i % 2 == 0 ? bytes : 1 + (size_t)i;
    MAM_OK(MAM_CudaMallocAsync(&temporary, size, scene.stream));
    GPU_OK(gpu_copy(temporary, scene.inputs[3], size, scene.stream));
    GPU_OK(gpu_copy(result, temporary, size, scene.stream));
    MAM_OK(MAM_CudaFreeAsync(temporary, scene.stream));
  }
}

/* The library asks the stream itself whether it is captured. */
START_TEST(stream_ordered_calls_on_the_capturing_stream_need_no_bracket) {
  size_t bytes = block_bytes[3];
  struct captured captured = {.executable = NULL};
  cudaGraph_t graph = NULL;
  void *result = NULL;
  MAM_OK(MAM_Create(256 * MIB));
  MAM_OK(MAM_CudaMalloc(&result, bytes));
  GPU_OK(cudaStreamBeginCapture(scene.stream, mode_of(_i)));
  unbracketed_steps(result, bytes);
  GPU_OK(cudaStreamEndCapture(scene.stream, &graph));
  ck_assert_ptr_nonnull(graph);
  GPU_OK(cudaGraphInstantiate(&captured.executable, graph, 0));
  GPU_OK(cudaGraphDestroy(graph));
  for (uint32_t round = 0; round < REPLAYS; round++) {
    GPU_OK(gpu_fill(scene.inputs[3], bytes, round, scene.stream));
    GPU_OK(cudaGraphLaunch(captured.executable, scene.stream));
    GPU_OK(gpu_check(result, bytes, round, scene.mismatches, scene.stream));
    GPU_OK(cudaStreamSynchronize(scene.stream));
    ck_assert_uint_eq(*scene.mismatches, 0);
  }
  GPU_OK(cudaGraphExecDestroy(captured.executable));
  MAM_OK(MAM_CudaFree(result));
}
END_TEST

/* ---- The driver -------------------------------------------------------------------------------------------------- */

/* What libmam_preload relies on when memory runs out during a capture: in the relaxed mode the driver's own free waits
 * for a kernel that uses another block, on a stream that does not wait for others, and no capture is disturbed. */
START_TEST(a_free_of_the_driver_waits_and_leaves_a_capture_alone) {
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  uint64_t *stop = gpu_counter_new();
  cudaGraph_t graph = NULL;
  void *small = NULL;
  GPU_OK(gpu_spin_then_fill((const uint32_t *)stop, 100, scene.inputs[1], block_bytes[1], 7, scene.other));
  GPU_OK(cudaStreamBeginCapture(scene.stream, mode_of(_i)));
  GPU_OK(gpu_copy(scene.inputs[3], scene.inputs[2], block_bytes[2], scene.stream));
  GPU_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  GPU_OK(cudaMalloc(&small, 1));
  ck_assert_int_eq(cudaStreamQuery(scene.other), cudaErrorNotReady);
  (void)cudaGetLastError();
  GPU_OK(cudaFree(small));
  GPU_OK(cudaStreamQuery(scene.other));
  GPU_OK(cudaThreadExchangeStreamCaptureMode(&mode));
  GPU_OK(cudaStreamEndCapture(scene.stream, &graph));
  ck_assert_ptr_nonnull(graph);
  GPU_OK(cudaGraphDestroy(graph));
  GPU_OK(cudaFreeHost(stop));
}
END_TEST

/* ---- The suite --------------------------------------------------------------------------------------------------- */

static TCase *capture_case_add(Suite *suite, const char *name) {
  TCase *tests = gpu_case_add(suite, name);
  tcase_add_checked_fixture(tests, scene_set_up, scene_tear_down);
  tcase_add_checked_fixture(tests, NULL, traffic_tear_down);
  return tests;
}

static Suite *capture_suite(void) {
  Suite *suite = suite_create("stream captures");
  TCase *bracketed = capture_case_add(suite, "bracketed");
  tcase_add_loop_test(bracketed, captures_live_on_with_frees_inside_and_traffic_beside, 0, 2 * MODES);
  tcase_add_loop_test(bracketed, graphs_that_keep_their_blocks_run_beside_traffic, 0, 2 * MODES);
  tcase_add_loop_test(bracketed, allocation_that_would_have_to_wait_is_refused, 0, MODES);
  tcase_add_test(bracketed, end_without_begin_is_refused);
  tcase_add_test(bracketed, brackets_of_several_threads_overlap);
  TCase *bare = capture_case_add(suite, "without brackets");
  tcase_add_loop_test(bare, stream_ordered_calls_on_the_capturing_stream_need_no_bracket, 0, MODES);
  TCase *driver = capture_case_add(suite, "the driver");
  tcase_add_loop_test(driver, a_free_of_the_driver_waits_and_leaves_a_capture_alone, 0, MODES);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(capture_suite());
}
