/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Everything at once on one heap, for a time: several streams of kernels that allocate, check, exchange and free, sizes
 * that change from round to round, a heap that is sometimes roomy and sometimes full, and kernels whose lanes part.  It
 * lasts 3 seconds, or MAM_TEST_SOAK_S.
 */
#include "gpu_heap_divergent_kernels.h"
#include "gpu_heap_util.h"

enum { STREAMS = 4, REQUESTS = 30000, SMALL_REQUESTS = 600, MAIL = 128 * 512 };

static double soak_ms(void) {
  const char *text = getenv("MAM_TEST_SOAK_S");
  return (text != NULL ? strtod(text, NULL) : gpu_small() ? 1 : 3) * 1e3;
}

static struct gpu_heap_traffic traffic_of(uint64_t *state) {
  static const unsigned highs[] = {16, 64, 200, 512, 2000, 5000, 20000};
  struct gpu_heap_traffic traffic = {.count = gpu_small() ? SMALL_REQUESTS : REQUESTS, .low = 16};
  traffic.high = highs[gpu_random(state) % 7];
  if (gpu_random(state) % 3 == 0)
    traffic.low = traffic.high;
  traffic.count = 1 + gpu_random(state) % traffic.count;
  traffic.seed = gpu_random(state);
  traffic.lanes = (enum gpu_heap_lanes)(gpu_random(state) % 4);
  return traffic;
}

/* One round of a stream.  It frees all that it allocates. */
static void round_start(const struct gpu_heap *heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                        struct gpu_heap_tally *tally, cudaStream_t stream, uint64_t *state) {
  GPU_OK(gpu_heap_allocate(heap->handle, traffic, slots, tally, stream));
  GPU_OK(gpu_heap_check(traffic, slots, tally, stream));
  GPU_OK(gpu_heap_release(heap->handle, traffic, gpu_random(state) % traffic.count, 0, 2, slots, tally, stream));
  GPU_OK(gpu_heap_churn(heap->handle, traffic, 3, tally, stream));
  GPU_OK(gpu_heap_check(traffic, slots, tally, stream));
  GPU_OK(gpu_heap_release(heap->handle, traffic, gpu_random(state) % traffic.count, 0, 1, slots, tally, stream));
  GPU_OK(gpu_heap_exchange(heap->handle, traffic, 3, slots, tally, stream));
  GPU_OK(gpu_heap_drain(heap->handle, traffic, slots, tally, stream));
}

/* ---- Kernels whose lanes part ------------------------------------------------------------------------------------ */

static struct divergent_job divergent_new(const struct gpu_heap *heap) {
  struct divergent_job job = {.base = heap->handle.base, .bytes = (uint64_t)heap->handle.page_count * 4096};
  job.owners = gpu_heap_array((job.bytes / 16 + 31) / 32 * sizeof *job.owners);
  job.mail = gpu_heap_slots((size_t)STREAMS * MAIL);
  job.mail_count = MAIL;
  job.tally = gpu_heap_array(sizeof *job.tally);
  return job;
}

/* Some GPUs have no clusters, and a grid with barriers would wait for the other streams. */
static enum divergent_case divergent_which(uint64_t *state) {
  enum divergent_case which = (enum divergent_case)(gpu_random(state) % DIVERGENT_POINTERS);
  return which == DIVERGENT_CLUSTER || which == DIVERGENT_GRID ? DIVERGENT_COALESCED : which;
}

/* Starts one kernel on the stream, with its own part of the mail.  A case with two heaps gets this heap twice. */
static void divergent_start(const struct gpu_heap *heap, struct divergent_job job, unsigned stream_number,
                            cudaStream_t stream, uint64_t *state) {
  static const unsigned highs[] = {16, 48, 64, 300, 512, 3000, 4096};
  enum divergent_case which = divergent_which(state);
  job.mail += (size_t)stream_number * MAIL;
  job.blocks = gpu_small() ? 4 : 1 + gpu_random(state) % 128;
  job.threads = which == DIVERGENT_LOCKS || gpu_small() ? 64 : 32 * (1 + gpu_random(state) % 16);
  job.rounds = 1 + gpu_random(state) % (gpu_small() ? 3 : 12);
  job.seed = gpu_random(state);
  job.high = highs[gpu_random(state) % 7];
  job.low = gpu_random(state) % 2 == 0 ? 16 : job.high;
  GPU_OK(divergent_launch_o3(which, heap->handle, job, heap->handle, job, stream));
}

/* The kernels have freed all that they allocated, and no block was another thread's or outside the heap. */
static void divergent_sound(const struct divergent_tally *tally) {
  ck_assert_msg(tally->wild == 0, "%llu of %llu pointers are not in the heap; one is %#llx", tally->wild, tally->served,
                tally->first_wild);
  ck_assert_uint_eq(tally->shared, 0);
  ck_assert_uint_eq(tally->lost, 0);
  ck_assert_uint_eq(tally->changed, 0);
  ck_assert_uint_eq(tally->freed, tally->served);
}

static void soak(size_t heap_bytes, double for_ms) {
  struct gpu_heap heap = gpu_heap_of(heap_bytes);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  unsigned long long *slots = gpu_heap_slots((size_t)STREAMS * REQUESTS);
  struct divergent_job job = divergent_new(&heap);
  cudaStream_t streams[STREAMS];
  uint64_t state = heap_bytes;
  unsigned rounds = 0;
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  for (double end_ms = gpu_now_ms() + for_ms; gpu_now_ms() < end_ms; rounds++) {
    for (unsigned i = 0; i < STREAMS; i++) {
      divergent_start(&heap, job, i, streams[i], &state);
      round_start(&heap, traffic_of(&state), slots + (size_t)i * REQUESTS, tally, streams[i], &state);
      divergent_start(&heap, job, i, streams[i], &state);
    }
    gpu_heap_sound(tally);
    divergent_sound(job.tally);
    gpu_heap_holds(&heap, 0);
  }
  ck_assert_uint_gt(tally->served, 0);
  ck_assert_uint_eq(tally->served, tally->freed);
  (void)printf(
      "heap of %zu MiB: %u rounds, %llu blocks served, %llu requests refused, %llu blocks by divergent kernels\n",
      heap_bytes / MIB, rounds, tally->served, gpu_heap_refused(tally), job.tally->served);
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(cudaStreamDestroy(streams[i]));
}

START_TEST(roomy_heap_survives) { soak(2 * GIB, soak_ms() / 3); }
END_TEST
START_TEST(small_heap_survives) { soak(8 * MIB, soak_ms() / 3); }
END_TEST
START_TEST(heap_that_is_often_full_survives) { soak(64 * MIB, soak_ms() / 3); }
END_TEST

static Suite *heap_soak_suite(void) {
  Suite *suite = suite_create("device heaps for a time");
  TCase *soaks = gpu_heap_case_add(suite, "soak");
  tcase_set_timeout(soaks, 0);
  tcase_add_test(soaks, roomy_heap_survives);
  tcase_add_test(soaks, small_heap_survives);
  tcase_add_test(soaks, heap_that_is_often_full_survives);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  if (absent != 0)
    return absent;
  gpu_watchdog_more_s = (unsigned)(soak_ms() / 1e3);
  return gpu_suite_run(heap_soak_suite());
}
