/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A pointer from a device heap is NULL or a block of it that no other thread owns, in whatever way the lanes of a warp
 * came to the call.  Every case of gpu_heap_divergent_kernels.h runs in kernels that were compiled in several ways, in
 * heaps from 8 MiB to 8 GiB.  CK_RUN_CASE picks one way of compiling.
 */
#include "gpu_heap_divergent_kernels.h"
#include "gpu_heap_util.h"

enum {
  HEAPS = 4,
  SMALL_HEAPS = 2,
  REPEATS = 6, /* in each heap; 24 launches of each case in all */
  SMALL_REPEATS = 2,
  STREAMS = 4,
  GRAPH_LAUNCHES = 20,
  MAIL = 264 * 512, /* one place for each thread of the largest grid */
  ROUNDS_MAX = 300,
  LAUNCH_LIMIT_MS = 20000,
  SMALL_LAUNCH_LIMIT_MS = 400000,
};

/* Ways to compile the kernels. */
struct variant {
  const char *name;
  divergent_launch *launch, *deep;
};

/* Code for debuggers has the full stack of each call: a function that allocates cannot call itself five times within a
 * kilobyte. */
static const struct variant variants[] = {
    {"O3", divergent_launch_o3, divergent_deep_o3},
    {"debug", divergent_launch_debug, NULL},
    {"ptxas_O1", divergent_launch_ptxas_o1, divergent_deep_ptxas_o1},
    {"rdc", divergent_launch_rdc, divergent_deep_rdc},
    {"registers_32", divergent_launch_registers_32, divergent_deep_registers_32},
    {"registers_64", divergent_launch_registers_64, divergent_deep_registers_64},
    {"checked", divergent_launch_checked, divergent_deep_checked},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const char *const case_names[DIVERGENT_CASES] = {
    [DIVERGENT_CONTINUE_PLAIN] = "continue, plain",
    [DIVERGENT_CONTINUE_CONSTANT] = "continue, plain, constant size",
    [DIVERGENT_CONTINUE_OWNED] = "continue",
    [DIVERGENT_CONTINUE_VARIED] = "continue, sizes",
    [DIVERGENT_BREAK] = "break",
    [DIVERGENT_RETURN] = "early return",
    [DIVERGENT_SITES] = "many calls",
    [DIVERGENT_SWITCH] = "switch",
    [DIVERGENT_TEMPLATES] = "templates",
    [DIVERGENT_TWO_HEAPS] = "two heaps",
    [DIVERGENT_HEAP_OF_LANE] = "a heap for each lane",
    [DIVERGENT_LOCKS] = "under a lock",
    [DIVERGENT_SHARED_BARRIER] = "hands, shared memory and barriers",
    [DIVERGENT_SHARED_EXCHANGE] = "hands, shared memory",
    [DIVERGENT_GLOBAL_EXCHANGE] = "hands, global memory",
    [DIVERGENT_LANE_EXCHANGE] = "hands, lanes",
    [DIVERGENT_TILES] = "tiles",
    [DIVERGENT_COALESCED] = "coalesced groups",
    [DIVERGENT_GRID] = "grid barriers",
    [DIVERGENT_CLUSTER] = "clusters",
    [DIVERGENT_ODD_SHAPE] = "odd thread blocks",
    [DIVERGENT_LARGE] = "whole pages",
    [DIVERGENT_WIDE] = "thread blocks of 1024",
    [DIVERGENT_WARP_PARTS] = "warp heaps of parts",
    [DIVERGENT_WARP_TILES] = "warp heaps of tiles",
    [DIVERGENT_WARP_LANES] = "warp heaps of given lanes",
    [DIVERGENT_POINTERS] = "function pointers",
    [DIVERGENT_RECURSION] = "recursion",
    [DIVERGENT_RECURSION_POINTERS] = "recursion by function pointers",
    [DIVERGENT_RECURSION_VIRTUAL] = "recursion by virtual functions",
};

/* A heap and what the test knows of it; before is its state at the beginning of the test. */
struct site {
  struct gpu_heap heap;
  size_t bytes;
  struct divergent_job job;
  MAM_HeapInfo before;
  unsigned long long sum_before, may_refuse;
};

static struct site sites[HEAPS];
static unsigned site_count;
static cudaStream_t streams[STREAMS];
static unsigned long long *sums; /* Two words for the sums that kernels make. */
static size_t stack_limit;
static bool has_clusters, has_grids;

/* ---- The heaps of a way to compile ------------------------------------------------------------------------------- */

static unsigned long long owner_words(const struct site *site) { return (site->job.bytes / 16 + 31) / 32; }

static void site_open(struct site *site, size_t bytes) {
  *site = (struct site){.bytes = bytes, .heap = gpu_heap_of(bytes)};
  struct divergent_job *job = &site->job;
  job->base = site->heap.handle.base;
  job->bytes = (uint64_t)site->heap.handle.page_count * 4096;
  job->mail_count = MAIL;
  job->tally = gpu_heap_array(sizeof *job->tally);
  GPU_OK(cudaMalloc((void **)&job->owners, owner_words(site) * sizeof *job->owners));
  GPU_OK(cudaMalloc((void **)&job->mail, STREAMS * MAIL * sizeof *job->mail));
  GPU_OK(cudaMemset((void *)(uintptr_t)job->base, 0, job->bytes));
}

static bool device_has(enum cudaDeviceAttr attribute, int least) {
  int value = 0, device = 0;
  GPU_OK(cudaGetDevice(&device));
  GPU_OK(cudaDeviceGetAttribute(&value, attribute, device));
  return value >= least;
}

static void sites_open(void) {
  static const size_t sizes[HEAPS] = {8 * MIB, 64 * MIB, 512 * MIB, 8 * GIB};
  size_t free_bytes = 0, total_bytes = 0;
  has_clusters = device_has(cudaDevAttrComputeCapabilityMajor, 9);
  has_grids = device_has(cudaDevAttrCooperativeLaunch, 1);
  GPU_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  site_count = gpu_small() ? SMALL_HEAPS : HEAPS;
  for (unsigned i = 0; i < site_count; i++)
    site_open(&sites[i], sizes[i] < free_bytes / 4 ? sizes[i] : free_bytes / 4 / MIB * MIB);
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  sums = gpu_heap_array(2 * sizeof *sums);
}

static void sites_close(void) {
  for (unsigned i = 0; i < site_count; i++) {
    (void)cudaFree(sites[i].job.owners);
    (void)cudaFree(sites[i].job.mail);
  }
  for (unsigned i = 0; i < STREAMS; i++)
    (void)cudaStreamDestroy(streams[i]);
  gpu_heap_test_end();
}

/* ---- One launch -------------------------------------------------------------------------------------------------- */

/* A run's names, for messages. */
struct run {
  const struct variant *variant;
  const char *name; /* of the case */
  struct site *site;
};

/* Waits for all streams.  If a kernel hangs, only the program can be ended. */
static double run_await(const struct run *run) {
  double begin_ms = gpu_now_ms(), limit_ms = gpu_small() ? SMALL_LAUNCH_LIMIT_MS : LAUNCH_LIMIT_MS;
  for (unsigned i = 0; i < STREAMS;) {
    cudaError_t error = cudaStreamQuery(streams[i]);
    if (error == cudaSuccess)
      i++;
    else
      ck_assert_msg(error == cudaErrorNotReady, "%s: %s, heap of %zu MiB: %s", run->variant->name, run->name,
                    run->site->bytes / MIB, cudaGetErrorName(error));
    if (error == cudaErrorNotReady && gpu_now_ms() - begin_ms > limit_ms) {
      printf("FAIL: %s: %s, heap of %zu MiB: kernels have not ended after %.0f s\n", run->variant->name, run->name,
             run->site->bytes / MIB, limit_ms / 1e3);
      (void)fflush(stdout);
      _exit(EXIT_FAILURE);
    }
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError(); /* not ready is no error, but the next launch would see it */
      (void)usleep(50);
    }
  }
  return gpu_now_ms() - begin_ms;
}

static cudaError_t run_launch(const struct run *run, enum divergent_case which, struct divergent_job job,
                              unsigned stream) {
  const struct site *other = &sites[(unsigned)(run->site - sites + 1) % site_count];
  divergent_launch *launch = which >= DIVERGENT_POINTERS ? run->variant->deep : run->variant->launch;
  job.mail += (size_t)stream * MAIL;
  return launch(which, run->site->heap.handle, job, other->heap.handle, other->job, streams[stream]);
}

/* The shape and the sizes of one repeat of a case. */
static struct divergent_job job_of(struct site *site, enum divergent_case which, unsigned repeat) {
  static const unsigned shapes[][2] = {{264, 512}, {528, 128}, {264, 512}, {1056, 64}, {264, 512}, {132, 256}};
  static const unsigned sizes[][2] = {{16, 16}, {16, 400}, {64, 64}, {4096, 4096}, {16, 3000}, {24, 24}};
  struct divergent_job job = site->job;
  job.blocks = shapes[repeat % 6][0];
  job.threads = which == DIVERGENT_LOCKS ? 64 : shapes[repeat % 6][1];
  job.low = sizes[(repeat + (unsigned)which) % 6][0];
  job.high = sizes[(repeat + (unsigned)which) % 6][1];
  if (which == DIVERGENT_CONTINUE_PLAIN && site->bytes < 512 * MIB)
    job.low = job.high = 16 << repeat % 3;
  /* As many threads as have room.  Another test has heaps that are far too small, and is slow. */
  while (job.blocks > 8 && (size_t)job.blocks * job.threads * (job.high + job.high / 4) > site->bytes / 2)
    job.blocks /= 2;
  if (gpu_small()) {
    job.blocks = 8;
    job.threads = job.threads < 96 ? job.threads : 96;
  }
  job.seed = repeat * DIVERGENT_CASES + (unsigned)which;
  return job;
}

static bool is_debug(const struct variant *variant) { return variant->launch == divergent_launch_debug; }

static unsigned rounds_at_first(const struct variant *variant, enum divergent_case which) {
  if (gpu_small())
    return 3;
  return which == DIVERGENT_CONTINUE_PLAIN && !is_debug(variant) ? ROUNDS_MAX : 1;
}

/* The number of rounds for which a launch takes some milliseconds. */
static unsigned rounds_next(unsigned rounds, double took_ms) {
  if (gpu_small())
    return rounds;
  if (took_ms > 12)
    return rounds > 2 ? rounds / 2 : 1;
  return took_ms < 4 && rounds < ROUNDS_MAX ? rounds * 2 : rounds;
}

/* ---- What a heap is looked at for -------------------------------------------------------------------------------- */

static unsigned long long site_sum(const struct site *site) {
  sums[0] = 0;
  GPU_OK(divergent_sum((const unsigned long long *)(uintptr_t)site->job.base, site->job.bytes / 8, &sums[0], NULL));
  GPU_OK(cudaDeviceSynchronize());
  return sums[0];
}

static unsigned long long site_bits(const struct site *site) {
  sums[1] = 0;
  GPU_OK(divergent_bits(site->job.owners, owner_words(site), &sums[1], NULL));
  GPU_OK(cudaDeviceSynchronize());
  return sums[1];
}

/* Begins anew, whatever a failed test left. */
static void site_begin(struct site *site) {
  site->before = gpu_heap_info(&site->heap);
  if (site->before.live_count != 0) {
    MAM_OK(MAM_HeapReset(site->heap.heap));
    site->before = gpu_heap_info(&site->heap);
  }
  GPU_OK(cudaMemset(site->job.owners, 0, owner_words(site) * sizeof *site->job.owners));
  GPU_OK(cudaMemset(site->job.mail, 0, STREAMS * MAIL * sizeof *site->job.mail));
  *site->job.tally = (struct divergent_tally){0};
  site->may_refuse = 0;
  site->sum_before = site_sum(site);
}

/* A request may be refused only if the blocks that all threads may have at once come near to the heap's size. */
static void site_expects(struct site *site, const struct divergent_job *job, enum divergent_case which) {
  unsigned long long block = job->high > 64 ? job->high + job->high / 4 : 64;
  unsigned long long threads = (unsigned long long)job->blocks * (which == DIVERGENT_WIDE ? 1024 : job->threads);
  if (which == DIVERGENT_LARGE || which == DIVERGENT_HEAP_OF_LANE || which >= DIVERGENT_WARP_PARTS ||
      threads * block * 16 > site->bytes)
    site->may_refuse++;
}

#define SITE_ZERO(value)                                                                                               \
  ck_assert_msg((value) == 0, "%s: %s, heap of %zu MiB: " #value " is %llu", run->variant->name, run->name,            \
                run->site->bytes / MIB, (unsigned long long)(value))
#define SITE_EQUAL(value, expected)                                                                                    \
  ck_assert_msg((value) == (expected), "%s: %s, heap of %zu MiB: " #value " is %llu, not " #expected " = %llu",        \
                run->variant->name, run->name, run->site->bytes / MIB, (unsigned long long)(value),                    \
                (unsigned long long)(expected))

/* Wrong pointers are reported first, because the other faults may follow from them. */
static void site_pointers(const struct run *run) {
  const struct divergent_tally *tally = run->site->job.tally;
  ck_assert_msg(tally->wild == 0, "%s: %s, heap of %zu MiB: %llu of %llu pointers are not in the heap; one is %#llx",
                run->variant->name, run->name, run->site->bytes / MIB, tally->wild, tally->served, tally->first_wild);
  SITE_ZERO(tally->shared);
  SITE_ZERO(tally->lost);
  SITE_ZERO(tally->changed);
  SITE_ZERO(tally->unsupported);
}

/* has_sums: the sums tell whether only owners wrote to the heap's pages. */
static void site_sound(const struct run *run, bool has_sums) {
  const struct divergent_tally *tally = run->site->job.tally;
  site_pointers(run);
  SITE_EQUAL(tally->freed, tally->served);
  if (has_sums) {
    unsigned long long sum = site_sum(run->site) - run->site->sum_before;
    SITE_EQUAL(sum, tally->added);
  }
  if (run->site->may_refuse == 0)
    SITE_ZERO(tally->refused);
  unsigned long long owned_places = site_bits(run->site);
  SITE_ZERO(owned_places);
  MAM_HeapInfo after = gpu_heap_info(&run->site->heap);
  SITE_ZERO(after.live_count);
  SITE_EQUAL(after.refused_free_count, run->site->before.refused_free_count);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

/* In code for debuggers a grid barrier does not hold for warps whose lanes come to it apart (nvcc 13.0, an H100 and an
 * H200): in a program of such barriers without any heap, threads read what had been written in another round. */
static bool lacks(const struct variant *variant, enum divergent_case which) {
  return (which == DIVERGENT_CLUSTER && !has_clusters) ||
         (which == DIVERGENT_GRID && (!has_grids || is_debug(variant)));
}

static void case_repeat(struct run *run, enum divergent_case which) {
  unsigned rounds = rounds_at_first(run->variant, which);
  for (unsigned repeat = 0; repeat < (gpu_small() ? SMALL_REPEATS : REPEATS); repeat++) {
    struct divergent_job job = job_of(run->site, which, repeat);
    job.rounds = rounds;
    if (repeat % 3 == 2)
      job.owners = which >= DIVERGENT_WARP_PARTS ? job.owners : NULL;
    site_expects(run->site, &job, which);
    cudaError_t error = run_launch(run, which, job, 0);
    ck_assert_msg(error == cudaSuccess, "%s: %s: the launch: %s", run->variant->name, run->name,
                  cudaGetErrorName(error));
    rounds = rounds_next(rounds, run_await(run));
    site_pointers(run);
  }
}

static void case_run(const struct variant *variant, enum divergent_case which) {
  struct run run = {variant, case_names[which], NULL};
  if (lacks(variant, which)) {
    printf("%s: %s: not on this device\n", variant->name, run.name);
    return;
  }
  for (unsigned i = 0; i < site_count; i++)
    site_begin(&sites[i]);
  printf("%s: %s: ms in heaps of", variant->name, run.name);
  for (unsigned i = 0; i < site_count; i++) {
    double begin_ms = gpu_now_ms();
    run.site = &sites[i];
    case_repeat(&run, which);
    printf("%s %zu MiB: %.0f", i == 0 ? "" : ",", sites[i].bytes / MIB, gpu_now_ms() - begin_ms);
  }
  printf("\n");
  (void)fflush(stdout);
  for (unsigned i = 0; i < site_count; i++) {
    run.site = &sites[i];
    site_sound(&run, which < DIVERGENT_WARP_PARTS && which != DIVERGENT_HEAP_OF_LANE);
  }
}

/* The number of the loop test stands for a variant and a case. */
START_TEST(lanes_that_part_get_blocks_of_their_own) {
  case_run(&variants[_i / DIVERGENT_CASES], (enum divergent_case)(_i % DIVERGENT_CASES));
}
END_TEST

START_TEST(warp_heaps_of_lanes_that_part_are_their_own) {
  case_run(&variants[_i / DIVERGENT_CASES], (enum divergent_case)(_i % DIVERGENT_CASES));
}
END_TEST

START_TEST(functions_that_nobody_sees_run_on_the_default_stack) {
  size_t limit = 0;
  case_run(&variants[_i / DIVERGENT_CASES], (enum divergent_case)(_i % DIVERGENT_CASES));
  GPU_OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
  ck_assert_uint_eq(limit, stack_limit);
}
END_TEST

static const enum divergent_case crowd[] = {
    DIVERGENT_CONTINUE_OWNED,  DIVERGENT_SITES,           DIVERGENT_GLOBAL_EXCHANGE, DIVERGENT_COALESCED,
    DIVERGENT_CONTINUE_VARIED, DIVERGENT_SHARED_EXCHANGE, DIVERGENT_SWITCH,          DIVERGENT_RETURN,
    DIVERGENT_BREAK,           DIVERGENT_TEMPLATES,       DIVERGENT_LANE_EXCHANGE,   DIVERGENT_TILES,
};
enum { CROWD = sizeof crowd / sizeof crowd[0] };

/* Launches one kernel of the crowd on each stream, all on one heap.  Over a few turns each kernel meets each other
 * one. */
static void crowd_launch(const struct run *run, unsigned turn, unsigned rounds) {
  for (unsigned i = 0; i < STREAMS; i++) {
    enum divergent_case which = crowd[(turn * 5 + i * (1 + turn / CROWD)) % CROWD];
    struct divergent_job job = job_of(run->site, which, turn + i);
    job.blocks = job.blocks / STREAMS + 1;
    job.rounds = rounds;
    run->site->may_refuse++;
    GPU_OK(run_launch(run, which, job, i));
  }
}

START_TEST(kernels_of_several_streams_get_blocks_of_their_own) {
  struct run run = {&variants[_i], "several streams", NULL};
  for (unsigned i = 0; i < site_count; i++) {
    unsigned rounds = rounds_at_first(run.variant, DIVERGENT_SITES);
    run.site = &sites[i];
    site_begin(run.site);
    for (unsigned turn = 0; turn < (gpu_small() ? 2 : GRAPH_LAUNCHES); turn++) {
      crowd_launch(&run, turn, rounds);
      rounds = rounds_next(rounds, run_await(&run));
      site_pointers(&run);
    }
    site_sound(&run, true);
  }
}
END_TEST

/* A graph with branches that run at once, each of kernels of the crowd. */
static cudaGraphExec_t graph_new(const struct run *run) {
  cudaEvent_t fork = NULL, joins[STREAMS] = {NULL};
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  GPU_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  GPU_OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
  GPU_OK(cudaEventRecord(fork, streams[0]));
  for (unsigned i = 1; i < STREAMS; i++)
    GPU_OK(cudaStreamWaitEvent(streams[i], fork, 0));
  for (unsigned turn = 0; turn < 3; turn++)
    crowd_launch(run, turn, gpu_small() ? 2 : 8);
  for (unsigned i = 1; i < STREAMS; i++) {
    GPU_OK(cudaEventCreateWithFlags(&joins[i], cudaEventDisableTiming));
    GPU_OK(cudaEventRecord(joins[i], streams[i]));
    GPU_OK(cudaStreamWaitEvent(streams[0], joins[i], 0));
  }
  GPU_OK(cudaStreamEndCapture(streams[0], &graph));
  for (unsigned i = 1; i < STREAMS; i++)
    GPU_OK(cudaEventDestroy(joins[i]));
  GPU_OK(cudaGraphInstantiate(&exec, graph, 0));
  GPU_OK(cudaGraphDestroy(graph));
  GPU_OK(cudaEventDestroy(fork));
  return exec;
}

START_TEST(kernels_of_graphs_get_blocks_of_their_own) {
  struct run run = {&variants[_i], "graphs", NULL};
  for (unsigned i = 0; i < site_count; i++) {
    run.site = &sites[i];
    site_begin(run.site);
    cudaGraphExec_t graph = graph_new(&run);
    for (unsigned turn = 0; turn < (gpu_small() ? 2 : GRAPH_LAUNCHES); turn++) {
      GPU_OK(cudaGraphLaunch(graph, streams[0]));
      (void)run_await(&run);
      site_pointers(&run);
    }
    site_sound(&run, true);
    GPU_OK(cudaGraphExecDestroy(graph));
  }
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* Adds a case of Check for one way to compile.  A kernel that breaks its context breaks that case alone. */
static TCase *case_add(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_add_unchecked_fixture(tests, sites_open, sites_close);
  tcase_set_timeout(tests, 0);
  suite_add_tcase(suite, tests);
  return tests;
}

static void variant_add(Suite *suite, int variant) {
  TCase *tests = case_add(suite, variants[variant].name);
  int first = variant * DIVERGENT_CASES;
  tcase_add_loop_test(tests, lanes_that_part_get_blocks_of_their_own, first, first + DIVERGENT_WARP_PARTS);
  tcase_add_loop_test(tests, kernels_of_several_streams_get_blocks_of_their_own, variant, variant + 1);
  tcase_add_loop_test(tests, kernels_of_graphs_get_blocks_of_their_own, variant, variant + 1);
  tcase_add_loop_test(tests, warp_heaps_of_lanes_that_part_are_their_own, first + DIVERGENT_WARP_PARTS,
                      first + DIVERGENT_POINTERS);
}

static void deep_add(Suite *suite, int variant) {
  static char names[VARIANTS][32];
  int first = variant * DIVERGENT_CASES;
  if (variants[variant].deep == NULL)
    return;
  (void)snprintf(names[variant], sizeof names[variant], "deep_%s", variants[variant].name);
  tcase_add_loop_test(case_add(suite, names[variant]), functions_that_nobody_sees_run_on_the_default_stack,
                      first + DIVERGENT_POINTERS, first + DIVERGENT_CASES);
}

/* A sanitizer is slow, so it runs three ways to compile. */
static bool takes_part(int variant) {
  return !gpu_small() || variants[variant].launch == divergent_launch_o3 ||
         variants[variant].launch == divergent_launch_rdc || variants[variant].launch == divergent_launch_checked;
}

static Suite *divergent_suite(void) {
  Suite *suite = suite_create("device heaps in divergent kernels");
  /* The first: a kernel whose stack the driver knows to be larger raises the limit for all that follow. */
  for (int variant = 0; variant < VARIANTS; variant++)
    if (takes_part(variant))
      deep_add(suite, variant);
  for (int variant = 0; variant < VARIANTS; variant++)
    if (takes_part(variant))
      variant_add(suite, variant);
  return suite;
}

int main(void) {
  gpu_environment_clear();
  int absent = gpu_probe();
  if (absent != 0)
    return absent;
  if (cudaDeviceGetLimit(&stack_limit, cudaLimitStackSize) != cudaSuccess)
    return EXIT_FAILURE;
  gpu_watchdog_more_s = gpu_small() ? 3000 : 180;
  return gpu_suite_run(divergent_suite());
}
