/* SPDX-License-Identifier: BSD-2-Clause */
/* Questions about memory in use: freed while work runs, captured, used by threads; resets, contexts, fork, exit. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include <cuda.h>

#include "gpu_preload.h"

enum {
  THREADS = 8,
  THREAD_STEPS = 1500,
  THREAD_BLOCKS = 24,
  LATE_ROUNDS = 20,
  LATE_MS = 5,
  CAPTURE_BLOCKS = 3,
  CHILD_ALARM_S = 20,
};

static uint32_t random_next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

static void pause_ms(long ms) {
  struct timespec time = {.tv_nsec = ms * 1000000};
  (void)nanosleep(&time, NULL);
}

/* ---- Freed while it is still read -------------------------------------------------------------------------------- */

static void stream_delay(void *argument) {
  (void)argument;
  pause_ms(LATE_MS);
}

/* A copy waits in a stream while its source is freed.  Memory that is allocated and filled then must not be the
 * source. */
static bool late_round(door_stream stream, unsigned char *result, size_t bytes, int round) {
  unsigned char *source = block_new(bytes);
  NEED(door_fill(source, round + 1, bytes));
  NEED(door_wait_all());
  NEED(door_call_async(stream_delay, NULL, stream));
  NEED(door_copy_async(result, source, bytes, stream));
  NEED(door_free(source));
  unsigned char *next = block_new(bytes);
  NEED(door_fill(next, 0xEE, bytes));
  NEED(door_wait_all());
  bool right = block_holds(result, round + 1, bytes) && block_holds(next, 0xEE, bytes);
  NEED(door_free(next));
  return right;
}

static void late_readers(void) {
  const size_t sizes[] = {1000, 100000, 8 * MIB};
  door_stream stream = NULL;
  NEED(door_stream_new(&stream));
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    unsigned char *result = block_new(sizes[i]);
    int right = 0;
    for (int round = 0; round < LATE_ROUNDS; round++)
      right += late_round(stream, result, sizes[i], round) ? 1 : 0;
    char what[64];
    (void)snprintf(what, sizeof what, "blocks of %zu freed under a copy", sizes[i]);
    tell(what, "%d of %d right", right, LATE_ROUNDS);
    NEED(door_free(result));
  }
  NEED(door_stream_end(stream));
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static const char *const mode_names[DOOR_CAPTURE_MODES] = {"global", "thread-local", "relaxed"};
static const size_t capture_bytes[CAPTURE_BLOCKS] = {1000, 300000, 48 * MIB};

static void *other_thread_malloc(void *argument) {
  void *block = NULL;
  int error = door_malloc(&block, *(size_t *)argument);
  if (error == 0)
    (void)door_free(block);
  return (void *)(intptr_t)error;
}

static int malloc_in_another_thread(size_t bytes) {
  pthread_t thread;
  void *answer = NULL;
  NEED(pthread_create(&thread, NULL, other_thread_malloc, &bytes));
  NEED(pthread_join(thread, &answer));
  return (int)(intptr_t)answer;
}

static int status_of(door_stream stream) {
  int status = -1;
  return door_capture_status(stream, &status) == 0 ? status : -1;
}

/* Captures input -> temporary -> result, with a temporary block that the capture allocates.  If the capture also frees
 * that, the copy goes past it: a graph must not use what its capture frees. */
static void capture_steps(const char *what, door_stream stream, unsigned char *input, unsigned char *result,
                          size_t bytes, bool frees, void **temporary) {
  int error = door_malloc(temporary, bytes);
  tell(what, "malloc %d, capturing %d", error, status_of(stream));
  unsigned char *through = error == 0 && !frees ? (unsigned char *)*temporary : input;
  if (through != input)
    tell(what, "copy %d", door_copy_async(through, input, bytes, stream));
  tell(what, "copy %d", door_copy_async(result, through, bytes, stream));
  if (frees && error == 0) {
    tell(what, "free %d", door_free(*temporary));
    tell(what, "capturing %d", status_of(stream));
    *temporary = NULL;
  }
}

static void capture_launch(const char *what, door_graph graph, door_stream stream, unsigned char *input,
                           unsigned char *result, size_t bytes) {
  NEED(door_fill(input, 0x42, bytes));
  NEED(door_fill(result, 0, bytes));
  NEED(door_wait_all());
  tell(what, "launch %d", door_graph_launch(graph, stream));
  tell(what, "wait %d", door_wait(stream));
  tell(what, "result right: %s", yes(block_holds(result, 0x42, bytes)));
  NEED(door_graph_end(graph));
}

static void capture_ask(int mode, size_t bytes, bool frees) {
  char what[96];
  door_stream stream = NULL;
  door_graph graph = NULL;
  void *temporary = NULL;
  unsigned char *input = block_new(bytes), *result = block_new(bytes);
  (void)snprintf(what, sizeof what, "%s, %zu bytes%s", mode_names[mode], bytes, frees ? ", freed" : "");
  NEED(door_stream_new(&stream));
  NEED(door_wait_all());
  tell(what, "begin %d", door_capture_begin(stream, mode));
  capture_steps(what, stream, input, result, bytes, frees, &temporary);
  tell(what, "end %d", door_capture_end(stream, &graph));
  if (graph != NULL)
    capture_launch(what, graph, stream, input, result, bytes);
  tell(what, "afterwards %d", door_wait_all());
  if (temporary != NULL)
    tell(what, "free %d", door_free(temporary));
  NEED(door_stream_end(stream));
  NEED(door_free(input));
  NEED(door_free(result));
}

static void capture_beside(int mode) {
  char what[64];
  door_stream stream = NULL;
  door_graph graph = NULL;
  (void)snprintf(what, sizeof what, "%s, another thread", mode_names[mode]);
  NEED(door_stream_new(&stream));
  tell(what, "begin %d", door_capture_begin(stream, mode));
  tell(what, "malloc of 1000 %d", malloc_in_another_thread(1000));
  tell(what, "malloc of 5 MiB %d", malloc_in_another_thread(5 * MIB));
  tell(what, "capturing %d", status_of(stream));
  tell(what, "end %d", door_capture_end(stream, &graph));
  if (graph != NULL)
    NEED(door_graph_end(graph));
  NEED(door_stream_end(stream));
}

/* Beside a capture, more memory comes and goes than there is.  A copy reads each block after its free, in one stream,
 * while the next block is filled in another. */
static void capture_full(void) {
  enum { ROUNDS = 9, STREAMS = 2 };
  size_t free_bytes = 0, total_bytes = 0, sample = MIB;
  door_stream stream = NULL, others[STREAMS] = {NULL};
  door_graph graph = NULL;
  int right = 0;
  NEED(door_memory(&free_bytes, &total_bytes));
  unsigned char *samples = block_new(ROUNDS * sample);
  NEED(door_stream_new(&stream));
  for (int i = 0; i < STREAMS; i++)
    NEED(door_stream_new(&others[i]));
  NEED(door_capture_begin(stream, 2));
  for (int round = 0; round < ROUNDS; round++) {
    size_t bytes = free_bytes / 3;
    unsigned char *block = block_new(bytes);
    NEED(door_fill_async(block, round + 1, bytes, others[round % STREAMS]));
    NEED(door_call_async(stream_delay, NULL, others[round % STREAMS]));
    NEED(door_copy_async(samples + (size_t)round * sample, block, sample, others[round % STREAMS]));
    NEED(door_free(block));
  }
  tell("a full device", "capturing %d", status_of(stream));
  tell("a full device", "end %d", door_capture_end(stream, &graph));
  NEED(door_wait_all());
  for (int round = 0; round < ROUNDS; round++)
    right += block_holds(samples + (size_t)round * sample, round + 1, sample) ? 1 : 0;
  tell("a full device", "%d of %d right", right, ROUNDS);
  if (graph != NULL)
    NEED(door_graph_end(graph));
  NEED(door_stream_end(stream));
  for (int i = 0; i < STREAMS; i++)
    NEED(door_stream_end(others[i]));
  NEED(door_free(samples));
}

static void captures(void) {
  for (int mode = 0; mode < DOOR_CAPTURE_MODES; mode++) {
    for (int i = 0; i < CAPTURE_BLOCKS; i++) {
      capture_ask(mode, capture_bytes[i], false);
      capture_ask(mode, capture_bytes[i], true);
    }
    capture_beside(mode);
  }
  capture_full();
  tell("afterwards", "%d", door_wait_all());
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

struct held {
  unsigned char *block;
  size_t bytes;
  int byte;
};

struct worker {
  pthread_t thread;
  uint64_t seed;
  int faults, errors;
};

static struct held handed[THREADS]; /* blocks that the thread which takes them frees */
static pthread_mutex_t handed_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t size_random(uint64_t *seed) {
  size_t bytes = (size_t)1 << random_next(seed) % 23;
  return bytes + random_next(seed) % bytes;
}

static void held_end(struct worker *worker, struct held *held) {
  if (held->block == NULL)
    return;
  unsigned char ends[2] = {0, 0};
  worker->errors +=
      door_read(&ends[0], held->block, 1) != 0 || door_read(&ends[1], held->block + held->bytes - 1, 1) != 0;
  worker->faults += ends[0] != held->byte || ends[1] != held->byte;
  worker->errors += door_free(held->block) != 0;
  held->block = NULL;
}

static void held_new(struct worker *worker, struct held *held, door_stream stream) {
  held->bytes = size_random(&worker->seed);
  held->byte = 1 + (int)(random_next(&worker->seed) % 255);
  void *block = NULL;
  int error = door_malloc(&block, held->bytes);
  held->block = error == 0 ? (unsigned char *)block : NULL;
  worker->errors += error != 0 || door_fill_async(block, held->byte, held->bytes, stream) != 0;
}

/* Exchanges a block with another thread, so that threads free each other's blocks. */
static void held_swap(struct worker *worker, struct held *held) {
  (void)pthread_mutex_lock(&handed_lock);
  struct held *other = &handed[random_next(&worker->seed) % THREADS];
  struct held mine = *held;
  *held = *other;
  *other = mine;
  (void)pthread_mutex_unlock(&handed_lock);
}

static void *worker_run(void *argument) {
  struct worker *worker = argument;
  struct held held[THREAD_BLOCKS] = {{NULL, 0, 0}};
  door_stream stream = NULL;
  if (door_open() != 0 || door_stream_new(&stream) != 0)
    return (worker->errors++, NULL);
  for (int step = 0; step < THREAD_STEPS; step++) {
    struct held *one = &held[random_next(&worker->seed) % THREAD_BLOCKS];
    worker->errors += one->block != NULL && door_wait(stream) != 0;
    if (random_next(&worker->seed) % 8 == 0)
      held_swap(worker, one);
    held_end(worker, one);
    held_new(worker, one, stream);
    worker->errors += door_wait(stream) != 0; /* the next thread may read it */
  }
  for (int i = 0; i < THREAD_BLOCKS; i++)
    held_end(worker, &held[i]);
  worker->errors += door_stream_end(stream) != 0;
  return NULL;
}

static void threads(void) {
  struct worker workers[THREADS];
  int faults = 0, errors = 0;
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (struct worker){.seed = (uint64_t)i + 1};
    NEED(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]));
  }
  for (int i = 0; i < THREADS; i++) {
    NEED(pthread_join(workers[i].thread, NULL));
    faults += workers[i].faults;
    errors += workers[i].errors;
  }
  struct worker rest = {.seed = 1};
  for (int i = 0; i < THREADS; i++)
    held_end(&rest, &handed[i]);
  tell("8 threads", "%d wrong bytes, %d errors", faults + rest.faults, errors + rest.errors);
}

/* ---- Contexts and resets ----------------------------------------------------------------------------------------- */

struct context_functions {
  int (*create)(CUcontext *, unsigned, int);
  int (*destroy)(CUcontext);
  int (*get)(CUcontext *);
  int (*set)(CUcontext);
};

static bool context_functions_find(struct context_functions *functions) {
  *(void **)&functions->create = door_function("cuCtxCreate_v2", 3020);
  *(void **)&functions->destroy = door_function("cuCtxDestroy_v2", 4000);
  *(void **)&functions->get = door_function("cuCtxGetCurrent", 4000);
  *(void **)&functions->set = door_function("cuCtxSetCurrent", 4000);
  return functions->create != NULL && functions->destroy != NULL && functions->get != NULL && functions->set != NULL;
}

/* A second context begins and ends with blocks in it.  The blocks of the first one are not harmed. */
static void contexts(void) {
  struct context_functions functions;
  CUcontext first = NULL, second = NULL;
  void *there = NULL;
  if (!context_functions_find(&functions))
    return tell("functions", "none");
  unsigned char *here = block_new(5000);
  NEED(door_fill(here, 0x77, 5000));
  NEED(functions.get(&first));
  for (int round = 0; round < 2; round++) {
    unsigned char *other = block_new(100);
    tell("create", "%d", functions.create(&second, 0, 0));
    tell("malloc there", "%d", door_malloc(&there, 3 * MIB));
    tell("fill there", "%d", door_fill(there, 1, 3 * MIB));
    tell("wait there", "%d", door_wait_all());
    tell("first context's block freed there", "%d", door_free(other));
    NEED(functions.set(first));
    tell("destroy", "%d", functions.destroy(second));
    tell("its block freed afterwards", "%d", door_free(there));
    tell("the first one's block", "holds: %s", yes(block_holds(here, 0x77, 5000)));
    NEED(functions.set(first));
  }
  tell("free", "%d", door_free(here));
}

static void reset(void) {
  for (int round = 0; round < 2; round++) {
    unsigned char *small = block_new(1000), *large = block_new(4 * MIB);
    size_t before = 0, after = 0, total = 0;
    tell("reset", "%d", door_reset());
    tell("old small block freed", "%d", door_free(small));
    tell("old large block freed", "%d", door_free(large));
    NEED(door_memory(&before, &total));
    unsigned char *block = block_new(64 * MIB);
    tell("new block", "fill %d", door_fill(block, 3, 64 * MIB));
    tell("new block", "holds: %s", yes(block_holds(block, 3, 64 * MIB)));
    tell("new block", "free %d", door_free(block));
    tell("new block", "free again %d", door_free(block));
    NEED(door_memory(&after, &total));
    tell("memory", "came back: %s", yes(after + 4 * MIB >= before));
  }
}

/* ---- fork and exit ----------------------------------------------------------------------------------------------- */

/* CUDA does not work in a forked child.  The child must not harm the parent's memory. */
static void forked(void) {
  unsigned char *block = block_new(1000);
  NEED(door_fill(block, 0x11, 1000));
  (void)fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    void *mine = NULL;
    (void)alarm(CHILD_ALARM_S);
    tell("in the child", "malloc %d", door_malloc(&mine, 1000));
    tell("in the child", "free %d", door_free(block));
    _exit(0);
  }
  int status = -1;
  (void)waitpid(child, &status, 0);
  tell("child", "status %d", status);
  tell("block", "holds: %s", yes(block_holds(block, 0x11, 1000)));
  tell("block", "free %d", door_free(block));
}

static unsigned char *left;

static void at_exit(void) {
  void *block = NULL;
  int error = door_malloc(&block, 1000);
  tell("at exit", "free %d, malloc %d", door_free(left), error);
}

__attribute__((destructor)) static void at_unload(void) {
  if (left != NULL)
    tell("in a destructor", "free %d", door_free(left));
}

static void at_end(void) {
  left = block_new(4096);
  tell("atexit", "%d", atexit(at_exit));
}

static atomic_bool late_goes_on;

static void *late_run(void *argument) {
  (void)argument;
  for (;;) {
    void *block = NULL;
    if (door_malloc(&block, 5000) == 0)
      (void)door_free(block);
    atomic_store_explicit(&late_goes_on, true, memory_order_relaxed); /* relaxed: only the value matters */
  }
  return NULL;
}

/* A thread allocates while main returns and the process ends.  The CUDA runtime 13.0 crashes by itself then, so only
 * the driver's doors are asked. */
static void late_thread(void) {
  pthread_t thread;
  NEED(pthread_create(&thread, NULL, late_run, NULL));
  NEED(pthread_detach(thread));
  while (!atomic_load_explicit(&late_goes_on, memory_order_relaxed)) /* relaxed: a flag, nothing is read after it */
    pause_ms(1);
  tell("main", "returns");
}

const struct preload_case work_cases[] = {
    {"late-readers", late_readers},
    {"captures", captures},
    {"threads", threads},
    {"contexts", contexts},
    {"forked", forked},
    {"reset", reset},
    {"exit", at_end},
    {"late-thread", late_thread},
    {NULL, NULL},
};
