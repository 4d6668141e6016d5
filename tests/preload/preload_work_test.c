/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What libmam_preload sees of a program's work: captures are never disturbed, waits serve as fences, and a context's
 * end takes its pool along without a free.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

#include "preload_util.h"

/* A fence is a call of this; it would end a capture. */
static unsigned fences(void) { return fake_calls("cuCtxRecordEvent") + fake_calls("cuCtxSynchronize"); }

/* Frees and allocates what cannot be served without a fence, but by growing. */
static void churn(void) {
  for (int i = 0; i < 50; i++) {
    address_t small = allocate(2000), large = allocate(8 * MIB);
    OK(cuMemFree_v2(small));
    OK(cuMemFree_v2(large));
  }
}

/* ---- Host memory ---- */

/* Of the calling thread's allocations in libmam's libraries this one fails, counted from 1.  0: none does. */
static __thread unsigned failing;

static bool fails_for(const void *caller) {
  Dl_info in;
  if (failing == 0 || dladdr(caller, &in) == 0)
    return false;
  const char *slash = strrchr(in.dli_fname, '/'), *file = slash != NULL ? slash + 1 : in.dli_fname;
  return strncmp(file, "libmam", 6) == 0 && --failing == 0; /* a folder's name may be libmam-0.1.0 */
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);

/* The program's own, which the dynamic linker finds first. */
void *malloc(size_t bytes) { return fails_for(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) {
  return fails_for(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

/* ---- Captures ---- */

START_TEST(allocation_goes_on_during_a_capture_of_any_mode) {
  begin();
  churn();
  for (int mode = 0; mode < 3; mode++) {
    void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *graph = NULL;
    OK(cuStreamBeginCapture_v2(stream, mode));
    unsigned before = fences();
    churn();
    ck_assert_uint_eq(fences(), before);
    OK(cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
  }
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* The first allocation of a program comes while it captures. */
START_TEST(a_pool_may_begin_during_a_capture) {
  void *graph = NULL;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  churn();
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(captures_are_counted) {
  begin();
  churn();
  void *one = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *other = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(one, 2));
  OK(cuStreamBeginCapture_v2(other, 2));
  OK(cuStreamEndCapture(one, NULL));
  unsigned before = fences();
  churn();
  ck_assert_uint_eq(fences(), before);
  OK(cuStreamEndCapture(other, NULL));
  churn();
  ck_assert_uint_gt(fences(), before);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(a_capture_that_does_not_begin_holds_nothing_back) {
  begin();
  churn();
  ck_assert_int_ne(cuStreamBeginCapture_v2(NULL, 0), 0); /* the legacy stream cannot be captured */
  unsigned before = fences();
  churn();
  ck_assert_uint_gt(fences(), before);
}
END_TEST

START_TEST(a_spoilt_capture_ends_all_the_same) {
  begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  ck_assert_int_ne(cuCtxSynchronize(), 0); /* the program's own mistake */
  ck_assert_int_ne(cuStreamEndCapture(stream, NULL), 0);
  unsigned before = fences();
  churn();
  ck_assert_uint_gt(fences(), before);
}
END_TEST

START_TEST(a_stream_that_goes_takes_its_capture_along) {
  begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuStreamDestroy_v2(stream));
  unsigned before = fences();
  churn();
  ck_assert_uint_gt(fences(), before);
}
END_TEST

START_TEST(the_threads_own_stream_can_be_captured) {
  begin();
  churn();
  OK(cuStreamBeginCapture_v2_ptsz(NULL, 0));
  unsigned before = fences();
  churn();
  ck_assert_uint_eq(fences(), before);
  OK(cuStreamEndCapture_ptsz(NULL, NULL));
  churn();
  ck_assert_uint_gt(fences(), before);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* A capture in one context is no business of another's pool. */
START_TEST(captures_are_counted_by_context) {
  begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  void *other = fake_context_create(0);
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuCtxSetCurrent(other));
  unsigned before = fences();
  churn();
  ck_assert_uint_gt(fences(), before);
  OK(cuStreamEndCapture(stream, NULL)); /* from the other context */
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* ---- Blocks of graphs ---- */

enum { BLOCKS = 24 };
static const size_t sizes[] = {1000, 20000, MIB, 9 * MIB};

/* Captures a stream; of the blocks allocated meanwhile, all but the last are freed before the end. */
static void *capture(address_t blocks[BLOCKS]) {
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *graph = NULL;
  OK(cuStreamBeginCapture_v2(stream, 0));
  for (int i = 0; i < BLOCKS; i++)
    blocks[i] = allocate(sizes[i % 4]);
  for (int i = 0; i < BLOCKS - 1; i++)
    OK(cuMemFree_v2(blocks[i]));
  OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

/* Whether any of so many allocations meets a block. */
static bool handed_out(const address_t blocks[BLOCKS]) {
  address_t taken[4 * BLOCKS];
  bool met = false;
  for (int i = 0; i < 4 * BLOCKS; i++) {
    size_t size = sizes[i % 4];
    taken[i] = allocate(size);
    for (int j = 0; j < BLOCKS; j++)
      met = met || (taken[i] < blocks[j] + sizes[j % 4] && blocks[j] < taken[i] + size);
  }
  for (int i = 0; i < 4 * BLOCKS; i++)
    OK(cuMemFree_v2(taken[i]));
  return met;
}

static size_t free_now(void) {
  size_t free_bytes, total_bytes;
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  return free_bytes;
}

/* What the blocks that capture() freed come to, at least. */
static const size_t FREED_BYTES = BLOCKS / 4 * (MIB + 9 * MIB) - 9 * MIB;

START_TEST(a_graphs_blocks_are_kept_as_long_as_it) {
  address_t blocks[BLOCKS], base;
  struct ipc_handle handle;
  void *executable = NULL;
  begin();
  void *graph = capture(blocks);
  FAILS(INVALID_VALUE, cuMemFree_v2(blocks[0])); /* for the program it is freed */
  FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, NULL, blocks[0]));
  FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, blocks[0]));
  OK(cuIpcGetMemHandle(&handle, blocks[BLOCKS - 1]));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  ck_assert(!handed_out(blocks));
  OK(cuGraphDestroy(graph));
  OK(cuMemFree_v2(blocks[BLOCKS - 1])); /* an output, after the capture */
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES + 9 * MIB);
  FAILS(INVALID_VALUE, cuMemFree_v2(blocks[BLOCKS - 1]));
}
END_TEST

START_TEST(a_graph_that_was_never_made_executable_keeps_until_its_end) {
  address_t blocks[BLOCKS];
  begin();
  void *graph = capture(blocks);
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphDestroy(graph));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
  OK(cuMemFree_v2(blocks[BLOCKS - 1])); /* the program had not */
}
END_TEST

/* Whether one of so many allocations of the block's size is handed out in it. */
static bool comes_again_among(unsigned count, address_t block, size_t bytes) {
  enum { MOST = 512 };
  address_t others[MOST];
  bool found = false;
  ck_assert_uint_le(count, MOST);
  for (unsigned i = 0; i < count; i++) {
    others[i] = allocate(bytes);
    found |= others[i] < block + bytes && block < others[i] + bytes;
  }
  for (unsigned i = 0; i < count; i++)
    OK(cuMemFree_v2(others[i]));
  return found;
}

/* The same, of so many that the pool has to use all that is free. */
static bool comes_again(address_t block, size_t bytes) { return comes_again_among(40, block, bytes); }

static int exchange_mode(int mode) {
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

/* What the driver alone would have served is a block as all others: it ends with the program's free.  The relaxed mode
 * is the thread's, or the capture's. */
START_TEST(in_the_relaxed_mode_a_block_ends_when_it_is_freed) {
  void *graph = NULL, *executable = NULL;
  begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, _i == 0 ? 1 : 2));
  int before = exchange_mode(_i == 0 ? 2 : 0);
  address_t first = allocate(9 * MIB), second = allocate(9 * MIB);
  size_t free_before = free_now();
  OK(cuMemFree_v2(first));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
  (void)exchange_mode(before);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  free_before = free_now();
  OK(cuMemFree_v2(second));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

static void *allocate_and_free(void *context) {
  OK(cuCtxSetCurrent(context));
  (void)exchange_mode(1);
  OK(cuMemFree_v2(allocate(9 * MIB)));
  return NULL;
}

/* A thread that has said that only its own captures concern it. */
START_TEST(a_block_of_a_thread_that_a_capture_does_not_concern_is_not_kept) {
  pthread_t thread;
  void *context = begin(), *graph = NULL;
  (void)allocate(1000);
  size_t free_before = free_now();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  ck_assert_int_eq(pthread_create(&thread, NULL, allocate_and_free, context), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_uint_gt(free_now(), free_before - 9 * MIB); /* the first capture takes 2 MiB for good */
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* The driver alone refuses the free. */
START_TEST(a_block_of_before_that_a_capture_frees_is_kept) {
  void *graph = NULL, *executable = NULL;
  begin();
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuMemFree_v2(block));
  FAILS(INVALID_VALUE, cuMemFree_v2(block));
  FAILS(INVALID_VALUE, cuMemFree_v2(block + MIB));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  ck_assert(!comes_again(block, 9 * MIB));
  size_t free_before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(without_host_memory_a_free_in_a_capture_fails_and_loses_nothing) {
  void *graph = NULL;
  begin();
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  failing = 1;
  FAILS(OUT_OF_MEMORY, cuMemFree_v2(block));
  ck_assert_uint_eq(failing, 0);
  OK(cuStreamEndCapture(stream, &graph));
  size_t free_before = free_now();
  OK(cuMemFree_v2(block));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
}
END_TEST

/* Whichever request for host memory fails: a capture begins and keeps its blocks, or does not begin. */
START_TEST(without_host_memory_a_graphs_block_is_kept_or_not_had) {
  static const size_t both[] = {1000, 3 * MIB};
  unsigned refused = 0, kept = 0, fulfilled = 0;
  begin();
  churn();
  for (unsigned nth = 1; nth <= 20; nth++) {
    void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *graph = NULL, *executable = NULL;
    size_t bytes = both[nth % 2];
    address_t block;
    failing = (nth + 1) / 2;
    int began = cuStreamBeginCapture_v2(stream, 1);
    if (began != 0) {
      FAILS(OUT_OF_MEMORY, began);
      refused++;
      failing = 0;
      OK(cuStreamBeginCapture_v2(stream, 1));
    }
    OK(cuMemAlloc_v2(&block, bytes));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    fulfilled += failing > 0;
    failing = 0;
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(block));
    if (fake_holds((const void *)(uintptr_t)block, bytes)) { /* it is a pool's */
      ck_assert_msg(!comes_again(block, bytes), "request %u", nth);
      kept++;
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuStreamDestroy_v2(stream));
  }
  ck_assert_uint_ge(refused, 4);
  ck_assert_uint_ge(kept, 10);
  ck_assert_uint_ge(fulfilled, 2); /* all requests were tried */
}
END_TEST

/* A clone, and a graph that it was put into, keep what it kept, and no longer. */
START_TEST(copies_of_a_graph_keep_its_blocks_as_long_as_they_live) {
  address_t blocks[BLOCKS];
  void *clone = NULL, *node = NULL, *executable = NULL;
  begin();
  void *graph = capture(blocks), *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *parent = NULL;
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuStreamEndCapture(stream, &parent));
  OK(cuGraphClone(&clone, graph));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, clone));
  OK(cuGraphInstantiateWithFlags(&executable, parent, 0));
  OK(cuGraphDestroy(graph));
  ck_assert(!handed_out(blocks));
  OK(cuGraphDestroy(clone));
  ck_assert(!handed_out(blocks));
  OK(cuGraphDestroy(parent));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* An update takes the place of what the executable used before. */
START_TEST(an_updated_executable_keeps_the_new_graphs_blocks) {
  address_t blocks[BLOCKS], later[BLOCKS];
  void *executable = NULL;
  begin();
  void *graph = capture(blocks);
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  graph = capture(later);
  fake_fail("cuGraphExecUpdate", 1, 910);
  FAILS(910, cuGraphExecUpdate_v2(executable, graph, NULL));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecUpdate_v2(executable, graph, NULL));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
  OK(cuGraphDestroy(graph));
  ck_assert(!handed_out(later));
  before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* Bytes of host memory that a loop as in CUDA's guide leaves behind: captured anew, the executable updated. */
static size_t captured_anew(bool allocates, int count, void *stream, void **executable) {
  struct mallinfo2 before = mallinfo2();
  for (int i = 0; i < count; i++) {
    void *graph = NULL;
    OK(cuStreamBeginCapture_v2(stream, 0));
    if (allocates)
      OK(cuMemFree_v2(allocate(3 * MIB)));
    OK(cuStreamEndCapture(stream, &graph));
    if (*executable == NULL)
      OK(cuGraphInstantiateWithFlags(executable, graph, 0));
    else
      OK(cuGraphExecUpdate_v2(*executable, graph, NULL));
    OK(cuGraphDestroy(graph));
  }
  size_t after = mallinfo2().uordblks;
  return after > before.uordblks ? after - before.uordblks : 0;
}

START_TEST(a_loop_of_captures_and_updates_leaves_nothing_behind) {
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *executable = NULL;
  (void)captured_anew(_i != 0, 100, stream, &executable);
  size_t held = fake_live_bytes();
  ck_assert_uint_le(captured_anew(_i != 0, 2000, stream, &executable), 2000);
  ck_assert_uint_le(fake_live_bytes(), held + CHUNK_BYTES);
}
END_TEST

START_TEST(a_destruction_that_fails_lets_nothing_go) {
  address_t blocks[BLOCKS];
  void *executable = NULL;
  begin();
  void *graph = capture(blocks);
  fake_fail("cuGraphDestroy", 1, 1);
  FAILS(INVALID_VALUE, cuGraphDestroy(graph));
  ck_assert(!handed_out(blocks));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  fake_fail("cuGraphExecDestroy", 1, 1);
  FAILS(INVALID_VALUE, cuGraphExecDestroy(executable));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* ---- Blocks that several graphs use ---- */

/* Two captures go on, for each of which the driver alone refuses the frees.  The graphs end in either order. */
START_TEST(a_block_that_two_captures_may_use_is_kept_for_both) {
  void *graphs[2], *executables[2], *streams[2];
  begin();
  address_t before = allocate(9 * MIB);
  for (int i = 0; i < 2; i++) {
    streams[i] = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(streams[i], 0));
  }
  address_t during = allocate(9 * MIB);
  OK(cuMemFree_v2(before));
  OK(cuMemFree_v2(during));
  for (int i = 0; i < 2; i++) {
    OK(cuStreamEndCapture(streams[i], &graphs[i]));
    OK(cuGraphInstantiateWithFlags(&executables[i], graphs[i], 0));
    OK(cuGraphDestroy(graphs[i]));
  }
  OK(cuGraphExecDestroy(executables[_i]));
  ck_assert(!comes_again(before, 9 * MIB) && !comes_again(during, 9 * MIB));
  size_t free_before = free_now();
  OK(cuGraphExecDestroy(executables[1 - _i]));
  ck_assert_uint_ge(free_now(), free_before + 18 * MIB);
}
END_TEST

/* It was allocated in one capture, and another one uses it and frees it. */
START_TEST(a_block_of_one_capture_that_another_frees_is_kept_for_both) {
  void *graphs[2], *executable;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  address_t block = allocate(9 * MIB);
  OK(cuStreamEndCapture(stream, &graphs[0]));
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuMemFree_v2(block));
  OK(cuStreamEndCapture(stream, &graphs[1]));
  OK(cuGraphInstantiateWithFlags(&executable, graphs[1], 0));
  OK(cuGraphDestroy(graphs[0]));
  OK(cuGraphDestroy(graphs[1]));
  ck_assert(!comes_again(block, 9 * MIB));
  size_t free_before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
}
END_TEST

/* A capture forbids a free whatever context is current. */
START_TEST(a_block_freed_in_another_context_is_kept) {
  void *graph, *executable, *context = begin();
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *other = fake_context_create(0);
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuCtxSetCurrent(other));
  OK(cuMemFree_v2(block));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  ck_assert(!comes_again(block, 9 * MIB));
  OK(cuGraphDestroy(graph));
  size_t free_before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
}
END_TEST

START_TEST(a_block_freed_on_a_captured_stream_is_kept) {
  void *graph, *executable;
  begin();
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, _i));
  OK(cuMemFreeAsync(block, stream));
  FAILS(INVALID_VALUE, cuMemFreeAsync(block, stream));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  ck_assert(!comes_again(block, 9 * MIB));
  size_t free_before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), free_before + 9 * MIB);
}
END_TEST

static void *begins_a_capture(void *argument) {
  void **place = argument; /* the context; then the stream */
  OK(cuCtxSetCurrent(place[0]));
  place[1] = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(place[1], 1));
  return NULL;
}

/* A new thread may get the identity of one that has ended. */
START_TEST(a_capture_of_a_thread_that_ended_concerns_no_other) {
  pthread_t thread;
  void *graph, *place[2] = {begin(), NULL};
  (void)allocate(1000);
  size_t free_before = free_now();
  OK(pthread_create(&thread, NULL, begins_a_capture, place));
  OK(pthread_join(thread, NULL));
  OK(pthread_create(&thread, NULL, allocate_and_free, place[0]));
  OK(pthread_join(thread, NULL));
  OK(cuStreamEndCapture(place[1], &graph));
  ck_assert_uint_gt(free_now(), free_before - 9 * MIB);
}
END_TEST

/* ---- Graphs in graphs ---- */

START_TEST(a_graph_that_is_launched_in_a_capture_is_a_part_of_the_captured_one) {
  address_t blocks[BLOCKS];
  void *inner, *outer, *executable;
  begin();
  void *graph = capture(blocks);
  OK(cuGraphInstantiateWithFlags(&inner, graph, 0));
  OK(cuGraphDestroy(graph));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuGraphLaunch(inner, stream));
  OK(cuStreamEndCapture(stream, &outer));
  OK(cuGraphExecDestroy(inner));
  OK(cuGraphInstantiateWithFlags(&executable, outer, 0));
  OK(cuGraphDestroy(outer));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* Captures into the body of a conditional node.  The body goes with the graph, and its handle comes again. */
START_TEST(what_is_captured_into_a_body_is_kept_with_its_graph) {
  int conditional[64] = {13, [7] = 1};
  void *graph, *node, **bodies, *executable, *others[2];
  begin();
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddNode(&node, graph, NULL, 0, conditional));
  memcpy(&bodies, conditional + 8, sizeof bodies);
  void *body = bodies[0];
  OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, 0));
  OK(cuMemFree_v2(block));
  OK(cuStreamEndCapture(stream, NULL));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphCreate(&others[0], 0));
  OK(cuGraphCreate(&others[1], 0));
  ck_assert(others[0] == body || others[1] == body);
  OK(cuGraphDestroy(others[0]));
  OK(cuGraphDestroy(others[1]));
  ck_assert(!comes_again(block, 9 * MIB));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + 9 * MIB);
}
END_TEST

/* The graph in a child node is asked for, and made executable by itself. */
START_TEST(the_graph_in_a_node_has_the_blocks_of_its_own) {
  address_t blocks[BLOCKS];
  void *parent, *node, *inside, *executable;
  begin();
  void *graph = capture(blocks);
  OK(cuGraphCreate(&parent, 0));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
  OK(cuGraphDestroy(graph));
  OK(cuGraphChildGraphNodeGetGraph(node, &inside));
  OK(cuGraphInstantiateWithFlags(&executable, inside, 0));
  OK(cuGraphDestroy(parent));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* The program does not destroy a graph that a node has taken over. */
START_TEST(a_graph_that_a_node_takes_over_goes_with_it) {
  address_t blocks[BLOCKS];
  void *parent, *node;
  int moved[64] = {4, [6] = 1};
  begin();
  void *graph = capture(blocks);
  OK(cuGraphCreate(&parent, 0));
  memcpy(moved + 4, &graph, sizeof graph);
  OK(cuGraphAddNode(&node, parent, NULL, 0, moved));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphDestroy(parent));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* Adds a conditional node.  Returns the graph of its body. */
static void *body_add(void *graph, void **node) {
  int conditional[64] = {13, [7] = 1};
  void **bodies;
  OK(cuGraphAddNode(node, graph, NULL, 0, conditional));
  memcpy(&bodies, conditional + 8, sizeof bodies);
  return bodies[0];
}

/* A capture into a graph.  Returns a block that was freed during it. */
static address_t captured_into(void *graph) {
  address_t block = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 0));
  OK(cuMemFree_v2(block));
  OK(cuStreamEndCapture(stream, NULL));
  return block;
}

/* So many new graphs that the handles of those that have gone come again. */
static void handles_come_again(void) {
  void *others[8];
  for (int i = 0; i < 8; i++)
    OK(cuGraphCreate(&others[i], 0));
  for (int i = 0; i < 8; i++)
    OK(cuGraphDestroy(others[i]));
}

/* A block of an executable graph is kept as long as this, and no longer. */
static void check_kept_until_its_end(void *executable, address_t block) {
  handles_come_again();
  ck_assert(!comes_again(block, 9 * MIB));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + 9 * MIB);
}

/* The graph with the body moves into another one, and that into a third, which is not destroyed at first. */
START_TEST(a_body_moves_with_its_graph) {
  void *graphs[3], *node, *executable;
  int moved[64] = {4, [6] = 1};
  begin();
  for (int i = 0; i < 3; i++)
    OK(cuGraphCreate(&graphs[i], 0));
  void *body = body_add(graphs[0], &node);
  for (int i = 0; i < 2; i++) {
    memcpy(moved + 4, &graphs[i], sizeof graphs[i]);
    OK(cuGraphAddNode(&node, graphs[i + 1], NULL, 0, moved));
  }
  fake_fail("cuGraphDestroy", 1, 1);
  FAILS(INVALID_VALUE, cuGraphDestroy(graphs[2]));
  address_t block = captured_into(body);
  OK(cuGraphInstantiateWithFlags(&executable, graphs[2], 0));
  OK(cuGraphDestroy(graphs[2]));
  check_kept_until_its_end(executable, block);
}
END_TEST

/* The body goes with its node, and its handle comes again as that of a graph of its own. */
START_TEST(a_graph_at_the_handle_of_a_body_that_has_gone_is_its_own) {
  void *parent, *node, *graph, *executable;
  begin();
  OK(cuGraphCreate(&parent, 0));
  void *body = body_add(parent, &node);
  OK(cuGraphDestroyNode(node));
  OK(cuGraphCreate(&graph, 0));
  ck_assert_ptr_eq(graph, body);
  address_t block = captured_into(graph);
  OK(cuGraphDestroy(parent));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  check_kept_until_its_end(executable, block);
}
END_TEST

/* The library has not seen the node before, and cannot know which graph it is in. */
START_TEST(the_graph_in_a_node_of_a_clone_has_its_blocks) {
  address_t blocks[BLOCKS];
  void *parent, *clone, *node, *inside, *executable;
  begin();
  void *graph = capture(blocks);
  OK(cuGraphCreate(&parent, 0));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
  OK(cuGraphDestroy(graph));
  OK(cuGraphClone(&clone, parent));
  OK(cuGraphDestroy(parent));
  OK(cuGraphNodeFindInClone(&node, node, clone));
  OK(cuGraphChildGraphNodeGetGraph(node, &inside));
  OK(cuGraphInstantiateWithFlags(&executable, inside, 0));
  OK(cuGraphDestroy(clone));
  ck_assert(!handed_out(blocks));
  size_t before = free_now();
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now(), before + FREED_BYTES);
}
END_TEST

/* The node is added when no graph uses a block yet. */
START_TEST(what_is_captured_into_the_graph_in_a_node_is_kept_with_its_graph) {
  void *parent, *child, *node, *inside, *executable;
  begin();
  OK(cuGraphCreate(&parent, 0));
  OK(cuGraphCreate(&child, 0));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
  OK(cuGraphDestroy(child));
  OK(cuGraphChildGraphNodeGetGraph(node, &inside));
  address_t block = captured_into(inside);
  OK(cuGraphInstantiateWithFlags(&executable, parent, 0));
  OK(cuGraphDestroy(parent));
  check_kept_until_its_end(executable, block);
}
END_TEST

START_TEST(a_node_that_is_given_another_graph_has_its_blocks) {
  void *parent, *child, *node, *executable;
  int parameters[64] = {4};
  begin();
  OK(cuGraphCreate(&parent, 0));
  OK(cuGraphCreate(&child, 0));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
  address_t block = captured_into(child);
  memcpy(parameters + 4, &child, sizeof child);
  OK(cuGraphNodeSetParams(node, parameters));
  OK(cuGraphDestroy(child));
  OK(cuGraphInstantiateWithFlags(&executable, parent, 0));
  OK(cuGraphDestroy(parent));
  check_kept_until_its_end(executable, block);
}
END_TEST

/* An executable graph gets one graph after another for a node of its own. */
START_TEST(graphs_that_were_replaced_in_a_node_go) {
  enum { ROUNDS = 1000 };
  void *parent, *node, *executable, *graph;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphCreate(&parent, 0));
  OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
  OK(cuGraphInstantiateWithFlags(&executable, parent, 0));
  OK(cuGraphDestroy(graph));
  size_t before = free_now();
  address_t last = 0;
  for (int i = 0; i < ROUNDS; i++) {
    OK(cuStreamBeginCapture_v2(stream, 0));
    last = allocate(9 * MIB);
    OK(cuMemFree_v2(last));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphExecChildGraphNodeSetParams(executable, node, graph));
    OK(cuGraphDestroy(graph));
  }
  ck_assert_uint_ge(free_now() + 27 * MIB, before);
  ck_assert(!comes_again(last, 9 * MIB));
  OK(cuGraphExecDestroy(executable));
  ck_assert_uint_ge(free_now() + 9 * MIB, before);
}
END_TEST

/* ---- The relaxed mode ---- */

/* The driver alone serves such a program, so it may have its memory back at any time.  As long as there is other
 * memory, a block is held back even so. */
START_TEST(in_the_relaxed_mode_a_block_comes_again_only_for_want_of_others) {
  void *graph, *executable;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  address_t block = allocate(GIB);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuMemFree_v2(block));
  FAILS(INVALID_VALUE, cuMemFree_v2(block));
  for (int i = 0; i < 3; i++) {
    address_t other = allocate(GIB);
    ck_assert(other + GIB <= block || other >= block + GIB);
    OK(cuMemFree_v2(other));
  }
  ck_assert_uint_ge(free_now(), 4 * GIB - 16 * MIB);
  if (_i == 0)
    (void)allocate(3 * GIB + GIB / 2);
  else
    OK(cuMemAllocAsync(&block, 3 * GIB + GIB / 2, NULL));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}
END_TEST

/* It counts as free on the device that it is on. */
START_TEST(what_is_held_softly_on_one_device_is_not_free_on_another) {
  void *graph, *second = NULL;
  fake_set_devices(2);
  void *first = begin();
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  (void)allocate(MIB);
  size_t free_before = free_now();
  OK(cuCtxSetCurrent(first));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  address_t block = allocate(GIB);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuCtxSetCurrent(second));
  address_t others = allocate(3 * GIB);
  OK(cuMemFree_v2(block));
  ck_assert_uint_le(free_now(), free_before - 3 * GIB);
  OK(cuMemFree_v2(others));
  OK(cuGraphDestroy(graph));
}
END_TEST

static void *fills_the_device(void *context) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 500; i++)
    OK(cuMemFree_v2(allocate(64 * MIB)));
  return NULL;
}

/* Threads that have nothing to do with a capture do not take the memory of its graph. */
START_TEST(a_block_outlasts_those_of_threads_beside_a_relaxed_capture) {
  pthread_t thread;
  void *graph, *context = begin();
  (void)allocate(9 * MIB); /* so that the chunk stays */
  address_t before = allocate(9 * MIB);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  address_t during = allocate(9 * MIB);
  OK(cuMemFree_v2(before));
  OK(cuMemFree_v2(during));
  ck_assert_int_eq(pthread_create(&thread, NULL, fills_the_device, context), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  OK(cuStreamEndCapture(stream, &graph));
  const unsigned most = (4 * GIB - GIB / 2) / (9 * MIB);
  ck_assert(!comes_again_among(most, before, 9 * MIB) && !comes_again_among(most, during, 9 * MIB));
  OK(cuGraphDestroy(graph));
}
END_TEST

/* A program that goes on in the relaxed mode, or beside it.  What it freed counts as free, however much that is. */
START_TEST(in_the_relaxed_mode_many_blocks_are_free_when_they_are_freed) {
  enum { PAIRS = 400000, BYTES = 512 };
  void *graph;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuMemFree_v2(allocate(BYTES)));
  OK(cuStreamBeginCapture_v2(stream, 2));
  size_t before = free_now();
  for (int i = 0; i < PAIRS; i++)
    OK(cuMemFree_v2(allocate(BYTES)));
  ck_assert_uint_ge(free_now() + 16 * MIB, before);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
}
END_TEST

/* ---- Handles that come again while a call is on its way back ---- */

struct other {
  void *context, *handle;
  int (*call)(void *handle);
};

static void *other_calls(void *context) {
  const struct other *other = context;
  OK(cuCtxSetCurrent(other->context));
  OK(other->call(other->handle));
  return NULL;
}

/* Another thread is in this call, which has done its work. */
static pthread_t held_in(const struct other *other, const char *name) {
  pthread_t thread;
  fake_hold(name);
  ck_assert_int_eq(pthread_create(&thread, NULL, other_calls, (void *)(uintptr_t)other), 0);
  while (!fake_is_held())
    (void)usleep(1000);
  return thread;
}

static void let_go(pthread_t thread) {
  fake_let_go();
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

START_TEST(a_graph_at_a_destroyed_ones_handle_keeps_its_blocks) {
  address_t gone[BLOCKS], blocks[BLOCKS];
  void *executable = NULL, *later = NULL;
  struct other other = {begin(), capture(gone), cuGraphDestroy};
  if (_i == 1) {
    OK(cuGraphInstantiateWithFlags(&executable, other.handle, 0));
    OK(cuGraphDestroy(other.handle));
    other = (struct other){other.context, executable, cuGraphExecDestroy};
  }
  pthread_t thread = held_in(&other, _i == 0 ? "cuGraphDestroy" : "cuGraphExecDestroy");
  void *graph = capture(blocks);
  if (_i == 1)
    OK(cuGraphInstantiateWithFlags(&later, graph, 0));
  ck_assert_ptr_eq(other.handle, _i == 0 ? graph : later);
  let_go(thread);
  if (_i == 0)
    OK(cuGraphInstantiateWithFlags(&later, graph, 0));
  OK(cuGraphDestroy(graph));
  ck_assert(!handed_out(blocks));
}
END_TEST

START_TEST(a_capture_at_a_destroyed_streams_handle_goes_on) {
  void *graph = NULL;
  struct other other = {begin(), fake_stream_create(FAKE_STREAM_NON_BLOCKING), cuStreamDestroy_v2};
  churn();
  if (_i == 1)
    OK(cuStreamBeginCapture_v2(other.handle, 2)); /* it goes with the stream */
  pthread_t thread = held_in(&other, "cuStreamDestroy");
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  ck_assert_ptr_eq(stream, other.handle);
  OK(cuStreamBeginCapture_v2(stream, 2));
  let_go(thread);
  unsigned before = fences();
  churn();
  ck_assert_uint_eq(fences(), before);
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  churn();
  ck_assert_uint_gt(fences(), before);
}
END_TEST

static int destroys_in_vain(void *stream) {
  FAILS(INVALID_VALUE, cuStreamDestroy_v2(stream));
  return 0;
}

/* Another thread is in a call that fails to end the stream, so the capture goes on. */
START_TEST(a_block_freed_while_a_call_does_not_end_the_capture_is_kept) {
  void *graph, *executable;
  struct other other = {begin(), fake_stream_create(FAKE_STREAM_NON_BLOCKING), destroys_in_vain};
  address_t block = allocate(9 * MIB);
  OK(cuStreamBeginCapture_v2(other.handle, 0));
  fake_fail("cuStreamDestroy", 1, 1);
  pthread_t thread = held_in(&other, "cuStreamDestroy");
  OK(cuMemFree_v2(block));
  let_go(thread);
  OK(cuStreamEndCapture(other.handle, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  check_kept_until_its_end(executable, block);
}
END_TEST

static int allocate_too_much(void *freed) {
  address_t address;
  OK(cuMemFree_v2(*(address_t *)freed));
  return cuMemAlloc_v2(&address, 3 * GIB + GIB / 2);
}

static void *capture_once(void *context) {
  void *graph = NULL;
  OK(cuCtxSetCurrent(context));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  (void)usleep(200000);
  OK(cuStreamEndCapture(stream, &graph));
  return NULL;
}

/* One thread waits for the GPU because there is no memory, while another begins to capture. */
START_TEST(a_wait_for_want_of_memory_ends_no_capture) {
  pthread_t capturing;
  void *context = begin();
  (void)allocate(1000); /* so that no chunk is free, which would go back first */
  address_t freed = allocate(GIB);
  struct fake_range range = {(const void *)(uintptr_t)freed, MIB};
  ck_assert(fake_launch(NULL, &range, 1));
  struct other other = {context, &freed, allocate_too_much};
  pthread_t thread = held_in(&other, "cuCtxSynchronize");
  ck_assert_int_eq(pthread_create(&capturing, NULL, capture_once, context), 0);
  (void)usleep(50000);
  let_go(thread);
  ck_assert_int_eq(pthread_join(capturing, NULL), 0);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(a_stream_that_is_not_destroyed_goes_on_capturing) {
  void *graph = NULL;
  begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  FAILS(900, cuStreamBeginCapture_v2(stream, 2));
  fake_fail("cuStreamDestroy", 1, 1);
  FAILS(INVALID_VALUE, cuStreamDestroy_v2(stream));
  fake_fail("cuStreamEndCapture", 1, 904);
  FAILS(904, cuStreamEndCapture(stream, &graph));
  unsigned before = fences();
  churn();
  ck_assert_uint_eq(fences(), before);
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(a_reset_takes_kept_blocks_along) {
  address_t blocks[BLOCKS];
  void *context = begin();
  (void)capture(blocks);
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  ck_assert(handed_out(blocks)); /* at the same addresses, but new */
}
END_TEST

/* ---- Reuse ---- */

START_TEST(freed_memory_is_not_handed_out_under_a_kernel) {
  void *context = begin();
  for (int i = 0; i < 200; i++) {
    address_t address = allocate(MIB);
    ck_assert(!fake_in_use((const void *)(uintptr_t)address, MIB, FAKE_NO_STREAM));
    struct fake_range range = {(const void *)(uintptr_t)address, MIB};
    ck_assert(fake_launch(NULL, &range, 1));
    OK(cuMemFree_v2(address));
    if (i % 7 == 0)
      fake_finish(context);
  }
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

static void launch_and_free(size_t bytes, address_t *address) {
  *address = allocate(bytes);
  struct fake_range range = {(const void *)(uintptr_t)*address, bytes};
  ck_assert(fake_launch(NULL, &range, 1));
  OK(cuMemFree_v2(*address));
}

/* After the program waited for everything, freed memory comes back without a fence. */
START_TEST(the_programs_own_wait_is_a_fence) {
  address_t address = 0;
  begin();
  for (int form = 0; form < 2; form++) {
    launch_and_free(8 * MIB, &address);
    OK(form == 0 ? cuCtxSynchronize() : cuCtxSynchronize_v2(NULL));
    unsigned before = fake_calls("cuCtxRecordEvent") + fake_calls("cuEventQuery");
    ck_assert_uint_eq(allocate(8 * MIB), address);
    ck_assert_uint_eq(fake_calls("cuCtxRecordEvent") + fake_calls("cuEventQuery"), before);
  }
}
END_TEST

START_TEST(a_wait_that_failed_is_no_fence) {
  address_t address = 0;
  begin();
  launch_and_free(8 * MIB, &address);
  fake_fail("cuCtxSynchronize", 1, 700);
  FAILS(700, cuCtxSynchronize());
  address_t next = allocate(8 * MIB);
  ck_assert(!fake_in_use((const void *)(uintptr_t)next, 8 * MIB, FAKE_NO_STREAM));
}
END_TEST

/* The pool has the memory, but the driver would say what happened. */
START_TEST(after_an_error_of_the_gpu_an_allocation_says_so) {
  address_t address = 0;
  void *context = begin();
  (void)allocate(1000);
  fake_poison(context, 700);
  FAILS(700, cuMemAlloc_v2(&address, 3 * MIB));
  FAILS(700, cuMemAlloc_v2(&address, 100 * MIB));
  FAILS(700, cuMemAlloc_v2(&address, 1000)); /* though the thread has one at hand */
  ck_assert_uint_eq(address, 0);
}
END_TEST

/* ---- Ends of contexts ---- */

START_TEST(a_destroyed_context_takes_its_pool_along) {
  begin();
  address_t kept = allocate(MIB);
  void *context = fake_context_create(0);
  OK(cuCtxSetCurrent(context));
  address_t lost = allocate(MIB);
  unsigned frees = fake_calls("cuMemFree");
  OK(cuCtxDestroy_v2(context));
  ck_assert_uint_eq(fake_calls("cuMemFree"), frees); /* nothing was freed */
  FAILS(INVALID_VALUE, cuMemFree_v2(lost));
  OK(cuCtxSetCurrent(fake_primary_retain(0)));
  OK(cuMemFree_v2(kept));
  ck_assert_uint_eq(fake_live_bytes(), CHUNK_BYTES);
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

START_TEST(after_a_reset_old_blocks_are_gone_and_new_ones_come) {
  void *context = begin();
  address_t small = allocate(1000), large = allocate(MIB), base;
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  FAILS(INVALID_VALUE, cuMemFree_v2(small));
  FAILS(INVALID_VALUE, cuMemFree_v2(large));
  FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, NULL, large));
  for (int i = 0; i < 100; i++)
    (void)allocate(MIB);
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

/* What was parked for a capture in a context that is gone does not stay parked for the next one. */
START_TEST(a_reset_during_a_capture_holds_nothing_back) {
  void *context = begin();
  churn();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  unsigned before = fences();
  churn();
  ck_assert_uint_gt(fences(), before);
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

START_TEST(the_last_release_of_a_primary_context_is_its_end) {
  begin();
  address_t address = allocate(MIB);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuCtxSetCurrent(NULL));
  FAILS(INVALID_VALUE, cuMemFree_v2(address));
  ck_assert_uint_eq(fake_retains(0), 0); /* the library kept none of its own */
}
END_TEST

START_TEST(each_device_has_its_own_pool) {
  void *second = NULL;
  fake_set_devices(2);
  void *first = begin();
  address_t one = allocate(MIB);
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  address_t other = allocate(MIB);
  void *owner = NULL;
  OK(cuPointerGetAttribute(&owner, 1, one));
  ck_assert_ptr_eq(owner, first);
  OK(cuPointerGetAttribute(&owner, 1, other));
  ck_assert_ptr_eq(owner, second);
  OK(cuMemFree_v2(one)); /* whatever is current */
  OK(cuMemFree_v2(other));
}
END_TEST

static Suite *suite(void) {
  Suite *suite = suite_create("preload, work");
  TCase *tests = tcase_create("work");
  tcase_add_test(tests, allocation_goes_on_during_a_capture_of_any_mode);
  tcase_add_test(tests, a_pool_may_begin_during_a_capture);
  tcase_add_test(tests, captures_are_counted);
  tcase_add_test(tests, a_capture_that_does_not_begin_holds_nothing_back);
  tcase_add_test(tests, a_spoilt_capture_ends_all_the_same);
  tcase_add_test(tests, a_stream_that_goes_takes_its_capture_along);
  tcase_add_test(tests, the_threads_own_stream_can_be_captured);
  tcase_add_test(tests, captures_are_counted_by_context);
  tcase_add_test(tests, a_graphs_blocks_are_kept_as_long_as_it);
  tcase_add_test(tests, a_graph_that_was_never_made_executable_keeps_until_its_end);
  tcase_add_loop_test(tests, in_the_relaxed_mode_a_block_ends_when_it_is_freed, 0, 2);
  tcase_add_test(tests, a_block_of_a_thread_that_a_capture_does_not_concern_is_not_kept);
  tcase_add_test(tests, a_block_of_before_that_a_capture_frees_is_kept);
  tcase_add_test(tests, without_host_memory_a_free_in_a_capture_fails_and_loses_nothing);
  tcase_add_test(tests, without_host_memory_a_graphs_block_is_kept_or_not_had);
  tcase_add_test(tests, copies_of_a_graph_keep_its_blocks_as_long_as_they_live);
  tcase_add_test(tests, an_updated_executable_keeps_the_new_graphs_blocks);
  tcase_add_loop_test(tests, a_loop_of_captures_and_updates_leaves_nothing_behind, 0, 2);
  tcase_add_test(tests, a_destruction_that_fails_lets_nothing_go);
  tcase_add_loop_test(tests, a_block_that_two_captures_may_use_is_kept_for_both, 0, 2);
  tcase_add_test(tests, a_block_of_one_capture_that_another_frees_is_kept_for_both);
  tcase_add_test(tests, a_block_freed_in_another_context_is_kept);
  tcase_add_loop_test(tests, a_block_freed_on_a_captured_stream_is_kept, 0, 3);
  tcase_add_test(tests, a_capture_of_a_thread_that_ended_concerns_no_other);
  tcase_add_test(tests, a_graph_that_is_launched_in_a_capture_is_a_part_of_the_captured_one);
  tcase_add_test(tests, what_is_captured_into_a_body_is_kept_with_its_graph);
  tcase_add_test(tests, the_graph_in_a_node_has_the_blocks_of_its_own);
  tcase_add_test(tests, a_graph_that_a_node_takes_over_goes_with_it);
  tcase_add_test(tests, a_body_moves_with_its_graph);
  tcase_add_test(tests, a_graph_at_the_handle_of_a_body_that_has_gone_is_its_own);
  tcase_add_test(tests, the_graph_in_a_node_of_a_clone_has_its_blocks);
  tcase_add_test(tests, what_is_captured_into_the_graph_in_a_node_is_kept_with_its_graph);
  tcase_add_test(tests, a_node_that_is_given_another_graph_has_its_blocks);
  tcase_add_test(tests, graphs_that_were_replaced_in_a_node_go);
  tcase_add_loop_test(tests, in_the_relaxed_mode_a_block_comes_again_only_for_want_of_others, 0, 2);
  tcase_add_test(tests, what_is_held_softly_on_one_device_is_not_free_on_another);
  tcase_add_test(tests, a_block_outlasts_those_of_threads_beside_a_relaxed_capture);
  tcase_add_test(tests, in_the_relaxed_mode_many_blocks_are_free_when_they_are_freed);
  tcase_add_loop_test(tests, a_graph_at_a_destroyed_ones_handle_keeps_its_blocks, 0, 2);
  tcase_add_loop_test(tests, a_capture_at_a_destroyed_streams_handle_goes_on, 0, 2);
  tcase_add_test(tests, a_block_freed_while_a_call_does_not_end_the_capture_is_kept);
  tcase_add_test(tests, a_wait_for_want_of_memory_ends_no_capture);
  tcase_add_test(tests, a_stream_that_is_not_destroyed_goes_on_capturing);
  tcase_add_test(tests, a_reset_takes_kept_blocks_along);
  tcase_add_test(tests, freed_memory_is_not_handed_out_under_a_kernel);
  tcase_add_test(tests, the_programs_own_wait_is_a_fence);
  tcase_add_test(tests, a_wait_that_failed_is_no_fence);
  tcase_add_test(tests, after_an_error_of_the_gpu_an_allocation_says_so);
  tcase_add_test(tests, a_destroyed_context_takes_its_pool_along);
  tcase_add_test(tests, after_a_reset_old_blocks_are_gone_and_new_ones_come);
  tcase_add_test(tests, a_reset_during_a_capture_holds_nothing_back);
  tcase_add_test(tests, the_last_release_of_a_primary_context_is_its_end);
  tcase_add_test(tests, each_device_has_its_own_pool);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  return preload_run_suite(arguments, suite);
}
