/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * tools/python/bridge/mam_cupy.cc over a library that only writes down what it is asked for: on which stream an array's
 * memory is allocated, how it is freed, what is thrown when there is none.  Built and run by check_bridge.sh, which
 * needs a C++ compiler and no more.
 */
#include <cstdint>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#define MAM_NO_CUDA_HEADERS 1
#include "expect.h"
#include "mam.h"

extern "C" {
void mam_cupy_use(intptr_t (*current)(), void (*error_clear)());
void *mam_cupy_malloc(void *, size_t size, int device);
void mam_cupy_free(void *, void *block, int device);
}

/* ---- The library that writes down -------------------------------------------------------------------------------- */

namespace {
const intptr_t kNone = -100; /* no stream was named */
const intptr_t kLegacy = 1, kPerThread = 2, kUser = 64;

std::set<void *> blocks;
std::vector<char> memory(1 << 20);
intptr_t malloc_stream = kNone, free_stream = kNone;
int frees;
cudaError_t malloc_failure = cudaSuccess, stream_free_failure = cudaSuccess;

cudaError_t allocate(void **block, intptr_t stream) {
  *block = nullptr;
  if (malloc_failure != cudaSuccess)
    return malloc_failure;
  malloc_stream = stream;
  *block = memory.data() + (blocks.empty() ? 0 : 512); /* the same ones again and again */
  EXPECT(blocks.insert(*block).second);
  return cudaSuccess;
}

cudaError_t release(void *block, intptr_t stream) {
  EXPECT(blocks.erase(block) == 1);
  free_stream = stream;
  frees++;
  return cudaSuccess;
}
} // namespace

extern "C" {
cudaError_t MAM_CudaMalloc(void **block, size_t) { return allocate(block, kNone); }
cudaError_t MAM_CudaMallocAsync(void **block, size_t, cudaStream_t stream) {
  return allocate(block, reinterpret_cast<intptr_t>(stream));
}
cudaError_t MAM_CudaFree(void *block) { return release(block, kNone); }
cudaError_t MAM_CudaFreeAsync(void *block, cudaStream_t stream) {
  return stream_free_failure != cudaSuccess ? stream_free_failure : release(block, reinterpret_cast<intptr_t>(stream));
}
cudaError_t MAM_PoolExplain(MAM_Pool, size_t, char **text) {
  *text = strdup("it is explained");
  return cudaSuccess;
}
const char *MAM_LastError(void) { return "there is none"; }
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

namespace {
intptr_t current, malloced_on;
int errors_cleared;

intptr_t current_stream() { return current; }
void error_clear() { errors_cleared++; }

/* Allocates on one stream, and frees while another one is current. */
void round_trip(intptr_t stream, intptr_t other) {
  current = stream;
  malloc_stream = free_stream = kNone;
  void *block = mam_cupy_malloc(nullptr, 100, 0);
  malloced_on = malloc_stream;
  current = other;
  malloc_stream = kNone;
  mam_cupy_free(nullptr, block, 0);
  EXPECT(malloc_stream == (other == kUser || other == kPerThread ? other : kNone)); /* it is named before the free */
  EXPECT(blocks.empty());
}

void block_of_the_default_stream_goes_back_to_it() {
  for (intptr_t stream : {intptr_t{0}, kLegacy})
    for (intptr_t other : {intptr_t{0}, kPerThread, kUser}) {
      round_trip(stream, other);
      EXPECT(malloced_on == stream && free_stream == 0);
    }
}

/* The stream may be gone, or be another thread's own. */
void block_of_another_stream_waits_for_all() {
  for (intptr_t stream : {kUser, kPerThread})
    for (intptr_t other : {intptr_t{0}, stream}) {
      round_trip(stream, other);
      EXPECT(malloced_on == stream && free_stream == kNone);
    }
  round_trip(0, 0); /* at the same address */
  EXPECT(free_stream == 0);
}

void stream_that_is_not_known_is_none() {
  round_trip(-1, 0);
  EXPECT(malloced_on == kNone && free_stream == kNone && errors_cleared == 1);
  mam_cupy_use(nullptr, nullptr);
  round_trip(0, 0);
  EXPECT(malloced_on == kNone && free_stream == kNone && errors_cleared == 1);
  mam_cupy_use(current_stream, error_clear);
}

void thread_without_a_context_frees_all_the_same() {
  stream_free_failure = cudaErrorUnknown;
  frees = 0;
  round_trip(0, 0);
  EXPECT(free_stream == kNone && frees == 1);
  stream_free_failure = cudaSuccess;
}

void nothing_has_no_memory() {
  EXPECT(mam_cupy_malloc(nullptr, 0, 0) == nullptr);
  mam_cupy_free(nullptr, nullptr, 0);
  EXPECT(blocks.empty());
}

void missing_memory_is_a_bad_alloc_with_the_text() {
  bool thrown = false;
  malloc_failure = cudaErrorMemoryAllocation;
  try {
    (void)mam_cupy_malloc(nullptr, 100, 3);
  } catch (const std::bad_alloc &error) {
    thrown = std::string(error.what()) == "out of memory on device 3: libmam: there is none\nit is explained";
  }
  malloc_failure = cudaSuccess;
  EXPECT(thrown && blocks.empty());
}

void other_failures_are_no_lack_of_memory() {
  bool thrown = false;
  malloc_failure = cudaErrorNoDevice;
  try {
    (void)mam_cupy_malloc(nullptr, 100, 0);
  } catch (const std::runtime_error &error) {
    thrown = std::string(error.what()) == "no allocation on device 0: libmam: there is none";
  }
  malloc_failure = cudaSuccess;
  EXPECT(thrown && blocks.empty());
}
} // namespace

int main() {
  mam_cupy_use(current_stream, error_clear);
  block_of_the_default_stream_goes_back_to_it();
  block_of_another_stream_waits_for_all();
  stream_that_is_not_known_is_none();
  thread_without_a_context_frees_all_the_same();
  nothing_has_no_memory();
  missing_memory_is_a_bad_alloc_with_the_text();
  other_failures_are_no_lack_of_memory();
  return 0;
}
