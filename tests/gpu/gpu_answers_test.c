/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * MAM_CudaMalloc answers as cudaMalloc does, and MAM_CudaFree as cudaFree, on the GPU of this machine.
 *
 * The oracle of each test is the real call, made in the same test.  A test expects a value of its own only where the
 * library documents one.  The program needs a GPU and exits with 77 without one.
 */
#include <spawn.h>
#include <sys/wait.h>

#include "gpu_util.h"

extern char **environ;

enum {
  ENVIRONMENT_BYTES = 64 << 20,
  NEIGHBOURS = 8,
  CHILD_ALARM_S = 60,
  FIRST_CALL_BYTES = 1 << 20,
  FIRST_CALL_BYTE = 0xA5,
};

static char poison; /* its address is what a pointer holds before a call */

typedef cudaError_t (*malloc_function)(void **pointer, size_t bytes);
typedef cudaError_t (*free_function)(void *pointer);

struct answer {
  cudaError_t error;
  void *pointer;
};

static struct answer ask(malloc_function function, size_t bytes) {
  struct answer answer = {.pointer = &poison};
  answer.error = function(&answer.pointer, bytes);
  return answer;
}

/* What the call wrote to the pointer, in words that can be the same for two allocators. */
static const char *kind_of(struct answer answer) {
  return answer.pointer == NULL ? "NULL" : answer.pointer == &poison ? "nothing" : "an address";
}

static void answers_agree(size_t bytes) {
  struct answer real = ask(cudaMalloc, bytes);
  (void)cudaGetLastError(); /* the real call leaves an error, which is not the subject here */
  if (real.error == cudaSuccess)
    GPU_OK(cudaFree(real.pointer)); /* first, because a lazy environment takes all memory */
  struct answer ours = ask(MAM_CudaMalloc, bytes);
  ck_assert_msg(ours.error == real.error, "%zu bytes: MAM_CudaMalloc says %s (%s), cudaMalloc says %s", bytes,
                cudaGetErrorName(ours.error), MAM_LastError(), cudaGetErrorName(real.error));
  ck_assert_msg(strcmp(kind_of(ours), kind_of(real)) == 0, "%zu bytes: MAM_CudaMalloc wrote %s, cudaMalloc wrote %s",
                bytes, kind_of(ours), kind_of(real));
  if (ours.error == cudaSuccess)
    MAM_OK(MAM_CudaFree(ours.pointer));
}

static size_t free_device_bytes(void) {
  size_t free_bytes = 0, total_bytes = 0;
  GPU_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

static void all_sizes_agree(void) {
  const size_t sizes[] = {0,
                          1,
                          511,
                          512,
                          513,
                          1000,
                          MIB,
                          free_device_bytes() + ENVIRONMENT_BYTES + MIB,
                          (size_t)1 << 50,
                          SIZE_MAX - 511,
                          SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    answers_agree(sizes[i]);
}

START_TEST(malloc_answers_as_cudaMalloc_for_every_size) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  all_sizes_agree();
}
END_TEST

START_TEST(lazy_malloc_answers_as_cudaMalloc_for_every_size) { all_sizes_agree(); }
END_TEST

START_TEST(null_argument_answers_as_cudaMalloc) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  const size_t sizes[] = {16, 0};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    cudaError_t real = cudaMalloc(NULL, sizes[i]);
    (void)cudaGetLastError();
    MAM_IS(MAM_CudaMalloc(NULL, sizes[i]), real);
  }
}
END_TEST

/* The largest power of two that divides the addresses of many live blocks of many sizes. */
static uintptr_t alignment_of(malloc_function allocate, free_function release) {
  const size_t sizes[] = {1, 15, 16, 255, 256, 511, 512, 513, 1000, 4097, 65535, MIB - 1};
  enum { KINDS = sizeof sizes / sizeof sizes[0], COUNT = 8 * KINDS };
  void *blocks[COUNT];
  uintptr_t bits = 0;
  for (size_t i = 0; i < COUNT; i++) {
    struct answer answer = ask(allocate, sizes[i % KINDS]);
    GPU_OK(answer.error);
    blocks[i] = answer.pointer;
    bits |= (uintptr_t)answer.pointer;
  }
  for (size_t i = 0; i < COUNT; i++)
    GPU_OK(release(blocks[i]));
  return bits & -bits;
}

START_TEST(blocks_are_aligned_as_those_of_cudaMalloc) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  uintptr_t real = alignment_of(cudaMalloc, cudaFree), ours = alignment_of(MAM_CudaMalloc, MAM_CudaFree);
  ck_assert_uint_ge(ours, real);
  ck_assert_uint_ge(ours, 512); /* as mam.h promises */
}
END_TEST

static size_t distance(const void *left, const void *right) {
  uintptr_t a = (uintptr_t)left, b = (uintptr_t)right;
  return a > b ? a - b : b - a;
}

/* The least distance between two of some blocks of the same size. */
static size_t neighbour_distance(malloc_function allocate, free_function release, size_t bytes) {
  void *blocks[NEIGHBOURS];
  size_t least = SIZE_MAX;
  for (int i = 0; i < NEIGHBOURS; i++) {
    struct answer answer = ask(allocate, bytes);
    GPU_OK(answer.error);
    blocks[i] = answer.pointer;
    for (int j = 0; j < i; j++)
      if (distance(blocks[i], blocks[j]) < least)
        least = distance(blocks[i], blocks[j]);
  }
  for (int i = 0; i < NEIGHBOURS; i++)
    GPU_OK(release(blocks[i]));
  return least;
}

START_TEST(neighbours_lie_as_far_apart_as_those_of_cudaMalloc) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  size_t real = neighbour_distance(cudaMalloc, cudaFree, 1000);
  ck_assert_uint_eq(neighbour_distance(MAM_CudaMalloc, MAM_CudaFree, 1000), real);
}
END_TEST

/* ---- Frees ------------------------------------------------------------------------------------------------------- */

/* An allocator's answers to every kind of pointer that is not the start of one of its live blocks. */
struct free_answers {
  cudaError_t null, live, twice, interior, interior_unaligned, host_heap, host_stack;
};

static struct free_answers free_answers_of(malloc_function allocate, free_function release) {
  struct answer block = ask(allocate, 4096), other = ask(allocate, 4096);
  GPU_OK(block.error);
  GPU_OK(other.error);
  char on_stack = 0;
  void *on_heap = malloc(64);
  ck_assert_ptr_nonnull(on_heap);
  struct free_answers answers; /* filled one by one, in this order */
  answers.null = release(NULL);
  answers.interior = release((char *)block.pointer + 512);
  answers.interior_unaligned = release((char *)block.pointer + 1);
  answers.host_heap = release(on_heap);
  answers.host_stack = release(&on_stack);
  answers.live = release(block.pointer);
  answers.twice = release(block.pointer);
  free(on_heap);
  GPU_OK(cudaMemset(other.pointer, 1, 4096)); /* the other block is still whole */
  (void)cudaGetLastError();
  GPU_OK(release(other.pointer));
  return answers;
}

START_TEST(free_answers_as_cudaFree_for_every_pointer) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  struct free_answers real = free_answers_of(cudaMalloc, cudaFree);
  struct free_answers ours = free_answers_of(MAM_CudaMalloc, MAM_CudaFree);
  ck_assert_str_eq(cudaGetErrorName(ours.null), cudaGetErrorName(real.null));
  ck_assert_str_eq(cudaGetErrorName(ours.live), cudaGetErrorName(real.live));
  ck_assert_str_eq(cudaGetErrorName(ours.twice), cudaGetErrorName(real.twice));
  ck_assert_str_eq(cudaGetErrorName(ours.interior), cudaGetErrorName(real.interior));
  ck_assert_str_eq(cudaGetErrorName(ours.interior_unaligned), cudaGetErrorName(real.interior_unaligned));
  ck_assert_str_eq(cudaGetErrorName(ours.host_heap), cudaGetErrorName(real.host_heap));
  ck_assert_str_eq(cudaGetErrorName(ours.host_stack), cudaGetErrorName(real.host_stack));
}
END_TEST

static void bytes_are(const void *block, size_t bytes, unsigned char value) {
  unsigned char *copy = malloc(bytes);
  ck_assert_ptr_nonnull(copy);
  GPU_OK(cudaMemcpy(copy, block, bytes, cudaMemcpyDeviceToHost));
  size_t unlike = 0;
  for (size_t i = 0; i < bytes; i++)
    unlike += copy[i] != value;
  free(copy);
  ck_assert_uint_eq(unlike, 0);
}

/* A block of cudaMalloc is as foreign to MAM_CudaFree as a host pointer is to cudaFree. */
START_TEST(pointer_of_cudaMalloc_is_foreign_and_unharmed) {
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  void *host = malloc(64), *real = NULL;
  ck_assert_ptr_nonnull(host);
  cudaError_t foreign = cudaFree(host);
  (void)cudaGetLastError();
  free(host);
  GPU_OK(cudaMalloc(&real, 4096));
  GPU_OK(cudaMemset(real, 0x5A, 4096));
  MAM_IS(MAM_CudaFree(real), foreign);
  bytes_are(real, 4096, 0x5A);
  GPU_OK(cudaFree(real));
}
END_TEST

/* ---- What a call leaves alone ------------------------------------------------------------------------------------ */

/* What the runtime and the driver hold for the calling thread. */
struct thread_state {
  cudaError_t last_error;
  int device;
  CUcontext context;
};

static struct thread_state state_now(void) {
  struct thread_state state = {.device = -1};
  state.last_error = cudaPeekAtLastError();
  state.context = gpu_context_current();
  ck_assert_msg(cudaGetDevice(&state.device) == cudaSuccess, "cudaGetDevice failed");
  return state;
}

static void state_is(struct thread_state before, const char *after_what) {
  struct thread_state now = state_now();
  ck_assert_msg(now.last_error == before.last_error, "%s changed the last error from %s to %s", after_what,
                cudaGetErrorName(before.last_error), cudaGetErrorName(now.last_error));
  ck_assert_msg(now.context == before.context, "%s changed the current context", after_what);
  ck_assert_msg(now.device == before.device, "%s changed the current device", after_what);
}

/* Calls each function of the library, with success and without, and looks at the thread's state after each. */
static void every_call_leaves(struct thread_state before) {
  void *pointer = NULL;
  char *text = NULL;
  MAM_Pool pool = NULL;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
#define LEAVES(call, succeeds)                                                                                         \
  do {                                                                                                                 \
    cudaError_t got_ = (call);                                                                                         \
    ck_assert_msg((got_ == cudaSuccess) == (succeeds), "%s: %s (%s)", #call, cudaGetErrorName(got_), MAM_LastError()); \
    state_is(before, #call);                                                                                           \
  } while (0)
  LEAVES(MAM_CudaMalloc(&pointer, 1000), true); /* creates the environment lazily */
  LEAVES(MAM_CudaFree(pointer), true);          /* and may end it */
  LEAVES(MAM_Destroy(), true);
  LEAVES(MAM_Create_auto(), true);
  LEAVES(MAM_Destroy(), true);
  LEAVES(MAM_Create((size_t)1 << 50), false);
  LEAVES(MAM_Create(ENVIRONMENT_BYTES), true);
  LEAVES(MAM_Create(ENVIRONMENT_BYTES), false);
  LEAVES(MAM_CudaMalloc(&pointer, (size_t)1 << 50), false);
  LEAVES(MAM_CudaMalloc(NULL, 16), false);
  LEAVES(MAM_CudaMalloc(&pointer, 1000), true);
  LEAVES(MAM_CudaFree((char *)pointer + 512), false);
  LEAVES(MAM_PoolGetInfo(NULL, &info), true);
  LEAVES(MAM_PoolReport(NULL, &text), true);
  free(text);
  LEAVES(MAM_PoolExplain(NULL, MIB, &text), true);
  free(text);
  LEAVES(MAM_CudaFree(pointer), true);
  LEAVES(MAM_CudaFree(pointer), false);
  LEAVES(MAM_PoolDefault(&pool), true);
  LEAVES(MAM_PoolDestroy(pool), false);
  options.device = 12345;
  LEAVES(MAM_PoolCreate(&pool, &options), false);
  options.device = 0;
  options.chunk_bytes = ENVIRONMENT_BYTES;
  LEAVES(MAM_PoolCreate(&pool, &options), true);
  LEAVES(MAM_PoolMalloc(pool, &pointer, 1000), true);
  LEAVES(MAM_PoolDestroy(pool), true);
  LEAVES(MAM_PoolDestroy(pool), false);
  LEAVES(MAM_Destroy(), true);
#undef LEAVES
}

START_TEST(pending_runtime_error_stays_pending) {
  void *pointer = NULL;
  cudaError_t provoked = cudaMalloc(&pointer, (size_t)1 << 50);
  ck_assert_int_ne(provoked, cudaSuccess);
  struct thread_state before = state_now();
  ck_assert_int_eq(before.last_error, provoked);
  every_call_leaves(before);
  ck_assert_int_eq(cudaGetLastError(), provoked);
}
END_TEST

START_TEST(no_call_leaves_a_runtime_error_or_another_context) {
  GPU_OK(cudaFree(NULL)); /* the runtime makes its context current by this */
  struct thread_state before = state_now();
  ck_assert_int_eq(before.last_error, cudaSuccess);
  ck_assert_ptr_nonnull(before.context);
  every_call_leaves(before);
}
END_TEST

/* ---- Child processes --------------------------------------------------------------------------------------------- */

/* How a child ended, in words for a message; NULL if it exited with 0. */
static const char *child_wait(pid_t child) {
  static char text[64];
  int status = 0;
  if (waitpid(child, &status, 0) != child)
    return "could not be waited for";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return NULL;
  (void)snprintf(text, sizeof text, WIFEXITED(status) ? "exited with %d" : "was killed by signal %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  return text;
}

/* The child's side of malloc_works_as_the_first_call_of_a_process: nothing of CUDA was called in this process. */
static int first_call(void) {
  static unsigned char copy[FIRST_CALL_BYTES];
  struct gpu_outcome outcome = {""};
  void *block = NULL;
  size_t unlike = 0;
  (void)alarm(CHILD_ALARM_S);
  bool good = GPU_TRY(&outcome, MAM_CudaMalloc(&block, FIRST_CALL_BYTES)) &&
              GPU_TRY(&outcome, cudaMemset(block, FIRST_CALL_BYTE, FIRST_CALL_BYTES)) &&
              GPU_TRY(&outcome, cudaMemcpy(copy, block, FIRST_CALL_BYTES, cudaMemcpyDeviceToHost)) &&
              GPU_TRY(&outcome, cudaPeekAtLastError()) && GPU_TRY(&outcome, MAM_CudaFree(block)) &&
              GPU_TRY(&outcome, cudaDeviceSynchronize());
  for (size_t i = 0; i < FIRST_CALL_BYTES; i++)
    unlike += copy[i] != FIRST_CALL_BYTE;
  if (good && unlike != 0)
    good = gpu_outcome_fail(&outcome, "%zu of the bytes that cudaMemset wrote read otherwise", unlike);
  if (!good)
    (void)fprintf(stderr, "in the child: %s\n", outcome.text);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

START_TEST(malloc_works_as_the_first_call_of_a_process) {
  char name[] = "gpu_answers_test", argument[] = "first-call", *const arguments[] = {name, argument, NULL};
  pid_t child;
  ck_assert_int_eq(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
  const char *trouble = child_wait(child);
  ck_assert_msg(trouble == NULL, "the child, whose first call was MAM_CudaMalloc, %s", trouble);
}
END_TEST

/* What both allocators answer in a child that was forked without exec. */
struct forked_answers {
  struct answer malloc_ours, malloc_real;
  cudaError_t free_ours, free_real;
};

/* In the child: ask, write the answers to the pipe, end without running the parent's exit handlers. */
static void forked_child(int pipe_end, void *ours, void *real) {
  (void)alarm(CHILD_ALARM_S);
  struct forked_answers answers;
  answers.malloc_ours = ask(MAM_CudaMalloc, 1000);
  answers.free_ours = MAM_CudaFree(ours);
  answers.malloc_real = ask(cudaMalloc, 1000);
  answers.free_real = cudaFree(real);
  _exit(write(pipe_end, &answers, sizeof answers) == sizeof answers ? EXIT_SUCCESS : EXIT_FAILURE);
}

START_TEST(forked_child_answers_as_cudaMalloc_there) {
  struct forked_answers answers;
  void *ours = NULL, *real = NULL;
  int ends[2];
  MAM_OK(MAM_Create(ENVIRONMENT_BYTES));
  MAM_OK(MAM_CudaMalloc(&ours, 1000));
  GPU_OK(cudaMalloc(&real, 1000));
  ck_assert_int_eq(pipe(ends), 0);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0)
    forked_child(ends[1], ours, real);
  (void)close(ends[1]);
  ssize_t got = read(ends[0], &answers, sizeof answers);
  (void)close(ends[0]);
  const char *trouble = child_wait(child);
  ck_assert_msg(trouble == NULL, "the forked child %s", trouble);
  ck_assert_int_eq(got, sizeof answers);
  ck_assert_str_eq(cudaGetErrorName(answers.malloc_ours.error), cudaGetErrorName(answers.malloc_real.error));
  ck_assert_str_eq(cudaGetErrorName(answers.free_ours), cudaGetErrorName(answers.free_real));
  GPU_OK(cudaFree(real)); /* the parent goes on as before */
  MAM_OK(MAM_CudaFree(ours));
}
END_TEST

static Suite *answers_suite(void) {
  Suite *suite = suite_create("answers of cudaMalloc and cudaFree");
  TCase *mallocs = gpu_case_add(suite, "malloc");
  tcase_add_test(mallocs, malloc_answers_as_cudaMalloc_for_every_size);
  tcase_add_test(mallocs, lazy_malloc_answers_as_cudaMalloc_for_every_size);
  tcase_add_test(mallocs, null_argument_answers_as_cudaMalloc);
  tcase_add_test(mallocs, blocks_are_aligned_as_those_of_cudaMalloc);
  tcase_add_test(mallocs, neighbours_lie_as_far_apart_as_those_of_cudaMalloc);
  TCase *frees = gpu_case_add(suite, "free");
  tcase_add_test(frees, free_answers_as_cudaFree_for_every_pointer);
  tcase_add_test(frees, pointer_of_cudaMalloc_is_foreign_and_unharmed);
  TCase *state = gpu_case_add(suite, "state");
  tcase_add_test(state, pending_runtime_error_stays_pending);
  tcase_add_test(state, no_call_leaves_a_runtime_error_or_another_context);
  TCase *children = gpu_case_add(suite, "children");
  tcase_add_test(children, malloc_works_as_the_first_call_of_a_process);
  tcase_add_test(children, forked_child_answers_as_cudaMalloc_there);
  return suite;
}

int main(int argc, char **argv) {
  gpu_environment_clear();
  if (argc == 2 && strcmp(argv[1], "first-call") == 0)
    return first_call();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(answers_suite());
}
