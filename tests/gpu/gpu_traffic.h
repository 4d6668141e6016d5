/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that allocate blocks, launch kernels which hold them (gpu_hold), and free them while those kernels still run.
 * Memory that is handed out too early shows as a fault in the tally.
 *
 * Between traffic_begin and traffic_end the only CUDA calls of the threads are kernel launches: nothing waits, and
 * nothing is forbidden during a stream capture.  The tally alone tells them how far the GPU has come.
 */
#ifndef MAM_TESTS_GPU_TRAFFIC_H
#define MAM_TESTS_GPU_TRAFFIC_H

#include <pthread.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

enum {
  TRAFFIC_THREADS_MAX = 16,
  TRAFFIC_STREAMS = 4,       /* for each thread */
  TRAFFIC_KEPT = 8,          /* blocks that a thread frees some time later */
  TRAFFIC_AHEAD = 48,        /* kernels that a thread may have in the streams, on average */
  TRAFFIC_BANS = 4096,       /* in one traffic */
  TRAFFIC_STALL_MS = 30000,  /* kernels that do not end within that count as a failure */
  TRAFFIC_LEGACY_EVERY = 64, /* one launch in so many goes to the legacy default stream */
};

/* How blocks are allocated and freed. */
enum traffic_calls {
  TRAFFIC_PLAIN, /* MAM_CudaMalloc, MAM_CudaFree */
  TRAFFIC_ASYNC, /* MAM_CudaMallocAsync, MAM_CudaFreeAsync on the stream of the kernel */
  TRAFFIC_MIXED, /* each call one or the other */
};

enum traffic_sizes {
  TRAFFIC_SMALL,  /* 1 B to 4 KiB */
  TRAFFIC_LARGE,  /* 64 KiB to 4 MiB */
  TRAFFIC_ALL,    /* both */
  TRAFFIC_MODEST, /* 1 B to 64 KiB: for a long time in which nothing becomes free */
};

struct traffic_options {
  MAM_Pool pool; /* NULL: the default pool */
  enum traffic_calls calls;
  enum traffic_sizes sizes;
  bool only_own_streams; /* all non-blocking: the default streams do not wait for them, nor they for these */
  unsigned hold_us;      /* each kernel's; 0: random, 50 us to 5 ms */
  int threads;
};

/* The one that runs.  It is static because a test that fails leaves its frame, and the threads go on until
 * traffic_tear_down. */
static struct traffic {
  struct traffic_options options;
  bool runs;
  struct gpu_tally *tally; /* mapped, as is stop; stop not 0 ends the holding */
  uint32_t *stop;
  bool ended;        /* atomic: the threads should return */
  int ready;         /* atomic: threads whose streams exist and have run a kernel */
  uint64_t launched; /* atomic */
  /* Memory that no thread of the traffic may get, from traffic_ban to traffic_unban: [ban_first, ban_last).  Entries
   * are written once, before ban_last passes them, and never used again, so that a reader needs no lock. */
  struct {
    uintptr_t from, to;
  } bans[TRAFFIC_BANS];
  unsigned ban_first, ban_last; /* atomic */
  struct traffic_thread {
    struct traffic *traffic;
    pthread_t thread;
    bool runs;
    uint64_t random;
    uint32_t seed;
    cudaStream_t streams[TRAFFIC_STREAMS];
    struct {
      void *block;
      cudaStream_t stream;
    } kept[TRAFFIC_KEPT];
    struct gpu_outcome outcome;
  } each[TRAFFIC_THREADS_MAX];
} traffic_now;

/* ---- Bans -------------------------------------------------------------------------------------------------------- */

/* From now on no thread may be given this memory.  Call it before the block is freed. */
static inline void traffic_ban(struct traffic *traffic, const void *block, size_t bytes) {
  unsigned last = __atomic_load_n(&traffic->ban_last, __ATOMIC_RELAXED); /* written by this thread alone */
  ck_assert_uint_lt(last, TRAFFIC_BANS);
  traffic->bans[last].from = (uintptr_t)block;
  traffic->bans[last].to = (uintptr_t)block + bytes;
  __atomic_store_n(&traffic->ban_last, last + 1, __ATOMIC_RELEASE); /* the entry; pairs with traffic_is_allowed */
}

/* Lifts all bans.  Call it before other threads may get the memory. */
static inline void traffic_unban(struct traffic *traffic) {
  unsigned last = __atomic_load_n(&traffic->ban_last, __ATOMIC_RELAXED);
  __atomic_store_n(&traffic->ban_first, last, __ATOMIC_RELEASE);
}

/* For a block that the calling thread has just got.  If its memory was banned and the ban lifted since, the thread got
 * the block after that, so it sees the new ban_first. */
static inline bool traffic_is_allowed(struct traffic_thread *own, const void *block, size_t bytes) {
  struct traffic *traffic = own->traffic;
  unsigned first = __atomic_load_n(&traffic->ban_first, __ATOMIC_ACQUIRE);
  unsigned last = __atomic_load_n(&traffic->ban_last, __ATOMIC_ACQUIRE); /* pairs with traffic_ban */
  for (unsigned i = first; i < last; i++)
    if ((uintptr_t)block < traffic->bans[i].to && traffic->bans[i].from < (uintptr_t)block + bytes)
      return gpu_outcome_fail(&own->outcome, "%p of %zu bytes was handed out during the capture that freed %p", block,
                              bytes, (void *)traffic->bans[i].from);
  return true;
}

/* ---- A thread's steps -------------------------------------------------------------------------------------------- */

static inline size_t traffic_small_size(uint64_t *random) {
  static const size_t often[] = {1, 16, 100, 256, 512, 1000, 2048, 4096};
  uint32_t number = gpu_random(random);
  return number % 2 == 0 ? often[number / 2 % 8] : 1 + number / 2 % 4096;
}

static inline size_t traffic_size(enum traffic_sizes sizes, uint64_t *random) {
  uint32_t number = gpu_random(random);
  if (sizes == TRAFFIC_SMALL || (sizes != TRAFFIC_LARGE && number % 2 == 0))
    return traffic_small_size(random);
  if (sizes == TRAFFIC_MODEST)
    return 1 + number / 2 % 65536;
  return (size_t)65536 << number / 2 % 6 | number / 16 % 65536;
}

/* Up to 4.8 ms; short and long times are equally likely. */
static inline unsigned traffic_hold_us(const struct traffic *traffic, uint64_t *random) {
  if (traffic->options.hold_us != 0)
    return traffic->options.hold_us;
  uint32_t number = gpu_random(random);
  unsigned base = 50u << number % 6;
  return base + number / 6 % (2 * base);
}

static inline cudaStream_t traffic_stream(struct traffic_thread *own) {
  uint32_t number = gpu_random(&own->random);
  if (!own->traffic->options.only_own_streams && number % TRAFFIC_LEGACY_EVERY == 0)
    return cudaStreamLegacy;
  return own->streams[number / TRAFFIC_LEGACY_EVERY % TRAFFIC_STREAMS];
}

static inline bool traffic_is_async(struct traffic_thread *own) {
  enum traffic_calls calls = own->traffic->options.calls;
  return calls == TRAFFIC_ASYNC || (calls == TRAFFIC_MIXED && gpu_random(&own->random) % 2 == 0);
}

static inline bool traffic_allocate(struct traffic_thread *own, void **block, size_t bytes, cudaStream_t stream) {
  MAM_Pool pool = own->traffic->options.pool;
  bool async = traffic_is_async(own), done;
  if (async)
    done = pool != NULL ? GPU_TRY(&own->outcome, MAM_PoolMallocAsync(pool, block, bytes, stream))
                        : GPU_TRY(&own->outcome, MAM_CudaMallocAsync(block, bytes, stream));
  else
    done = pool != NULL ? GPU_TRY(&own->outcome, MAM_PoolMalloc(pool, block, bytes))
                        : GPU_TRY(&own->outcome, MAM_CudaMalloc(block, bytes));
  return done && traffic_is_allowed(own, *block, bytes);
}

static inline bool traffic_free(struct traffic_thread *own, void *block, cudaStream_t stream) {
  if (block == NULL)
    return true;
  return traffic_is_async(own) ? GPU_TRY(&own->outcome, MAM_CudaFreeAsync(block, stream))
                               : GPU_TRY(&own->outcome, MAM_CudaFree(block));
}

/* Frees the block, or keeps it and frees one that was kept. */
static inline bool traffic_let_go(struct traffic_thread *own, void *block, cudaStream_t stream) {
  uint32_t number = gpu_random(&own->random);
  if (number % 4 != 0)
    return traffic_free(own, block, stream);
  unsigned slot = number / 4 % TRAFFIC_KEPT;
  bool done = traffic_free(own, own->kept[slot].block, own->kept[slot].stream);
  own->kept[slot].block = block;
  own->kept[slot].stream = stream;
  return done;
}

static inline bool traffic_launch(struct traffic_thread *own, void *block, size_t bytes, cudaStream_t stream) {
  struct traffic *traffic = own->traffic;
  /* relaxed: a count that limits how far the host is ahead */
  (void)__atomic_add_fetch(&traffic->launched, 1, __ATOMIC_RELAXED);
  return GPU_TRY(&own->outcome, gpu_hold(traffic->stop, traffic_hold_us(traffic, &own->random), block, bytes,
                                         own->seed++, traffic->tally, stream));
}

static inline bool traffic_step(struct traffic_thread *own) {
  cudaStream_t stream = traffic_stream(own);
  size_t bytes = traffic_size(own->traffic->options.sizes, &own->random);
  void *block = NULL;
  return traffic_allocate(own, &block, bytes, stream) && traffic_launch(own, block, bytes, stream) &&
         traffic_let_go(own, block, stream);
}

static inline bool traffic_is_ended(struct traffic *traffic) {
  return __atomic_load_n(&traffic->ended, __ATOMIC_ACQUIRE);
}

static inline uint64_t traffic_in_flight(struct traffic *traffic) {
  uint64_t finished =
      __atomic_load_n(&traffic->tally->finished, __ATOMIC_ACQUIRE); /* first: it never exceeds launched */
  return __atomic_load_n(&traffic->launched, __ATOMIC_RELAXED) - finished;
}

/* Waits, without a CUDA call, until the GPU is close enough.  False if it stands still. */
static inline bool traffic_wait(struct traffic_thread *own) {
  struct traffic *traffic = own->traffic;
  double start_ms = gpu_now_ms();
  while (traffic_in_flight(traffic) > (uint64_t)traffic->options.threads * TRAFFIC_AHEAD &&
         !traffic_is_ended(traffic)) {
    if (gpu_now_ms() - start_ms > TRAFFIC_STALL_MS)
      return gpu_outcome_fail(&own->outcome, "kernels that hold a block for 5 ms at most did not end");
    (void)usleep(50);
  }
  return true;
}

/* ---- A thread ---------------------------------------------------------------------------------------------------- */

/* Streams of every kind, each of which has run a kernel: a first launch may do what a capture forbids. */
static inline bool traffic_streams_create(struct traffic_thread *own) {
  struct gpu_outcome *outcome = &own->outcome;
  bool done = GPU_TRY(outcome, cudaSetDevice(0));
  for (int i = 0; i < TRAFFIC_STREAMS && done; i++) {
    if (!own->traffic->options.only_own_streams && i == 0)
      own->streams[i] = cudaStreamPerThread;
    else if (!own->traffic->options.only_own_streams && i == 1)
      done = GPU_TRY(outcome, cudaStreamCreate(&own->streams[i]));
    else
      done = GPU_TRY(outcome, cudaStreamCreateWithFlags(&own->streams[i], cudaStreamNonBlocking));
    done = done && traffic_launch(own, NULL, 0, own->streams[i]);
  }
  return done;
}

static inline void traffic_streams_destroy(struct traffic_thread *own) {
  for (int i = 0; i < TRAFFIC_STREAMS; i++) {
    if (own->streams[i] == NULL)
      continue;
    (void)GPU_TRY(&own->outcome, cudaStreamSynchronize(own->streams[i]));
    if (own->streams[i] != cudaStreamPerThread)
      (void)GPU_TRY(&own->outcome, cudaStreamDestroy(own->streams[i]));
  }
}

static inline void *traffic_run(void *argument) {
  struct traffic_thread *own = (struct traffic_thread *)argument;
  bool done = traffic_streams_create(own) && traffic_step(own);
  (void)__atomic_add_fetch(&own->traffic->ready, 1, __ATOMIC_RELEASE); /* pairs with traffic_begin */
  while (done && !traffic_is_ended(own->traffic))
    done = traffic_wait(own) && traffic_step(own);
  for (int i = 0; i < TRAFFIC_KEPT; i++)
    (void)traffic_free(own, own->kept[i].block, own->kept[i].stream);
  traffic_streams_destroy(own);
  return NULL;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static inline struct gpu_tally *gpu_tally_new(void) {
  void *tally = NULL;
  GPU_OK(cudaHostAlloc(&tally, sizeof(struct gpu_tally), cudaHostAllocMapped | cudaHostAllocPortable));
  memset(tally, 0, sizeof(struct gpu_tally));
  return (struct gpu_tally *)tally;
}

/* Starts the threads and returns when each has run its first kernels.  End it with traffic_end. */
static inline struct traffic *traffic_begin(const struct traffic_options *options) {
  struct traffic *traffic = &traffic_now;
  GPU_OK(gpu_kernels_load());
  ck_assert_msg(!traffic->runs && options->threads <= TRAFFIC_THREADS_MAX, "the test is wrong");
  memset(traffic, 0, sizeof *traffic);
  traffic->options = *options;
  traffic->tally = gpu_tally_new();
  traffic->stop = (uint32_t *)gpu_counter_new();
  traffic->runs = true;
  for (int i = 0; i < options->threads; i++) {
    struct traffic_thread *own = &traffic->each[i];
    own->traffic = traffic;
    own->random = 1000 + (uint64_t)i;
    own->seed = (uint32_t)(i + 1) << 24;
    own->runs = pthread_create(&own->thread, NULL, traffic_run, own) == 0;
    ck_assert_msg(own->runs, "no thread could be started");
  }
  while (__atomic_load_n(&traffic->ready, __ATOMIC_ACQUIRE) < options->threads)
    (void)usleep(100);
  return traffic;
}

/* Ends the threads and their kernels, and returns the tally and the GPU's answer. */
static inline cudaError_t traffic_stop(struct traffic *traffic, struct gpu_tally *tally) {
  __atomic_store_n(&traffic->ended, true, __ATOMIC_RELEASE);
  for (int i = 0; i < traffic->options.threads; i++)
    if (traffic->each[i].runs)
      (void)pthread_join(traffic->each[i].thread, NULL);
  traffic->runs = false;
  cudaError_t error = cudaDeviceSynchronize();
  *tally = *traffic->tally;
  GPU_OK(cudaFreeHost(traffic->tally));
  GPU_OK(cudaFreeHost(traffic->stop));
  return error;
}

/* The teardown of a test that failed between traffic_begin and traffic_end. */
static inline void traffic_tear_down(void) {
  struct gpu_tally tally;
  if (traffic_now.runs)
    (void)traffic_stop(&traffic_now, &tally);
}

/* Ends the traffic.  Returns how many faults the kernels found, and writes how many kernels ran to *kernels.  Fails the
 * test if a thread met an error. */
static inline uint64_t traffic_end(struct traffic *traffic, uint64_t *kernels) {
  struct gpu_tally tally;
  cudaError_t error = traffic_stop(traffic, &tally);
  for (int i = 0; i < traffic->options.threads; i++)
    ck_assert_msg(traffic->each[i].outcome.text[0] == '\0', "thread %d: %s", i, traffic->each[i].outcome.text);
  GPU_OK(error);
  ck_assert_uint_eq(tally.finished, traffic->launched);
  *kernels = tally.finished;
  return tally.faults;
}

#endif
