/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * tools/python/bridge/mam_torch.cc over a library that only writes down what it is asked for: which pool a tensor comes
 * from, how it is freed, when a graph's pool ends, what is thrown when there is no memory.  Built and run by
 * check_bridge.sh, which needs a C++ compiler and no more.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include <sys/types.h>

#define MAM_NO_CUDA_HEADERS 1
#include "expect.h"
#include "mam.h"

using PoolId = std::pair<unsigned long long, unsigned long long>;
extern "C" {
void *mam_torch_alloc(ssize_t size, int device, cudaStream_t stream);
void mam_torch_free(void *block, ssize_t size, int device, cudaStream_t stream);
void mam_torch_record_stream(void *block, cudaStream_t stream);
void mam_torch_begin(int device, PoolId id, std::function<bool(cudaStream_t)> filter);
void mam_torch_end(int device, PoolId id);
void mam_torch_release(int device, PoolId id);
void mam_torch_empty_cache();
int mam_torch_graph_pools();
void mam_torch_out_of_memory(void *constructor, const std::type_info *type);
}

/* ---- PyTorch's exceptions, by their shape ------------------------------------------------------------------------ */

static int errors_alive;

namespace c10 {
struct SourceLocation {
  const char *function, *file;
  uint32_t line;
};

class Error : public std::exception {
public:
  Error(SourceLocation where, std::string text);
  Error(const Error &) = delete;
  ~Error() override { errors_alive--; }
  const char *what() const noexcept override { return text_.c_str(); }
  SourceLocation where() const { return where_; }

private:
  std::string text_;
  std::string more_[8];
  SourceLocation where_;
};

class OutOfMemoryError : public Error {
public:
  OutOfMemoryError(SourceLocation where, std::string text);
};

Error::Error(SourceLocation where, std::string text) : text_(std::move(text)), where_(where) { errors_alive++; }
OutOfMemoryError::OutOfMemoryError(SourceLocation where, std::string text) : Error(where, std::move(text)) {}
} // namespace c10

/* As mam/torch.py finds them. */
extern "C" {
void constructor_itself() __asm__(
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
void constructor_of_base() __asm__(
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
}

/* ---- The library that writes down -------------------------------------------------------------------------------- */

struct mam_pool {
  int blocks;
};

namespace {
mam_pool default_pool;
std::map<void *, mam_pool *> blocks; /* whose each live block is */
std::set<mam_pool *> pools;
int brackets, failures_due, plain_frees, async_frees;
cudaStream_t freed_on;
cudaError_t failure = cudaErrorMemoryAllocation;

cudaError_t allocate(mam_pool *pool, void **block, size_t size) {
  if (failures_due > 0) {
    failures_due--;
    return failure;
  }
  *block = std::malloc(size);
  blocks[*block] = pool;
  pool->blocks++;
  return cudaSuccess;
}

cudaError_t release(void *block) {
  auto found = blocks.find(block);
  if (found == blocks.end())
    return cudaErrorInvalidValue;
  found->second->blocks--;
  blocks.erase(found);
  std::free(block);
  return cudaSuccess;
}
} // namespace

extern "C" {
cudaError_t MAM_Create_auto(void) { return cudaSuccess; }
cudaError_t MAM_CudaMallocAsync(void **block, size_t size, cudaStream_t) {
  return allocate(&default_pool, block, size);
}
cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **block, size_t size, cudaStream_t) {
  return allocate(pool, block, size);
}
cudaError_t MAM_CudaFree(void *block) {
  plain_frees++;
  return release(block);
}
cudaError_t MAM_CudaFreeAsync(void *block, cudaStream_t stream) {
  async_frees++;
  freed_on = stream;
  return release(block);
}
cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *options) {
  EXPECT(options->keeps_memory != 0); /* a graph's memory is never unmapped under it */
  *pool = new mam_pool{0};
  pools.insert(*pool);
  return cudaSuccess;
}
cudaError_t MAM_PoolDestroy(MAM_Pool pool) {
  if (brackets != 0 || pool->blocks != 0 || pools.erase(pool) == 0) {
    std::printf("a pool was destroyed in a capture, with blocks, or twice\n");
    std::exit(1);
  }
  delete pool;
  return cudaSuccess;
}
cudaError_t MAM_PoolGetInfo(MAM_Pool, MAM_PoolInfo *info) {
  info->limit_bytes = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t MAM_PoolExplain(MAM_Pool, size_t, char **text) {
  *text = strdup("it is explained");
  return cudaSuccess;
}
cudaError_t MAM_Trim(size_t) { return cudaSuccess; }
cudaError_t MAM_CaptureBegin(void) {
  brackets++;
  return cudaSuccess;
}
cudaError_t MAM_CaptureEnd(void) {
  brackets--;
  return cudaSuccess;
}
const char *MAM_LastError(void) { return "there is none"; }
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

namespace {
cudaStream_t stream_of(size_t number) { return reinterpret_cast<cudaStream_t>(number); }
const cudaStream_t eager = stream_of(64), captured = stream_of(128);
const PoolId first{1, 0}, second{2, 0};

bool is_captured(cudaStream_t stream) { return stream == captured; }

void tensor_is_freed_on_its_stream() {
  void *block = mam_torch_alloc(100, 0, eager);
  async_frees = plain_frees = 0;
  mam_torch_free(block, 100, 0, eager);
  EXPECT(async_frees == 1 && plain_frees == 0 && freed_on == eager);
}

void tensor_of_several_streams_is_freed_for_all() {
  void *block = mam_torch_alloc(100, 0, eager);
  mam_torch_record_stream(block, captured);
  async_frees = plain_frees = 0;
  mam_torch_free(block, 100, 0, eager);
  EXPECT(async_frees == 0 && plain_frees == 1);
  tensor_is_freed_on_its_stream(); /* even if it has the same address */
}

void nothing_has_no_memory() {
  EXPECT(mam_torch_alloc(0, 0, eager) == nullptr);
  mam_torch_free(nullptr, 0, 0, eager);
  EXPECT(blocks.empty());
}

void missing_memory_is_an_exception() {
  bool thrown = false;
  failures_due = 1;
  try {
    (void)mam_torch_alloc(100, 0, eager);
  } catch (const std::runtime_error &error) {
    thrown = std::string(error.what()).find("out of memory") != std::string::npos;
  }
  EXPECT(thrown && blocks.empty());
}

void missing_memory_is_pytorch_s_exception(void (*constructor)()) {
  int thrown = 0;
  mam_torch_out_of_memory(reinterpret_cast<void *>(constructor), &typeid(c10::OutOfMemoryError));
  for (int i = 0; i < 3; i++) {
    failures_due = 1;
    try {
      (void)mam_torch_alloc(100, 3, eager);
    } catch (const c10::OutOfMemoryError &error) {
      EXPECT(errors_alive == 1 && error.where().line > 0 && std::string(error.where().file) == "mam_torch.cc");
      EXPECT(std::string(error.what()) == "CUDA out of memory on device 3: libmam: there is none\nit is explained");
      thrown++;
    }
    EXPECT(errors_alive == 0);
    failures_due = 1;
    try {
      (void)mam_torch_alloc(100, 0, eager);
    } catch (const c10::Error &) { /* as what catches any error of PyTorch's */
      thrown++;
    }
    failures_due = 1;
    std::exception_ptr kept; /* as between threads */
    try {
      (void)mam_torch_alloc(100, 0, eager);
    } catch (...) {
      kept = std::current_exception();
    }
    EXPECT(errors_alive == 1);
    kept = nullptr;
    EXPECT(errors_alive == 0);
  }
  EXPECT(thrown == 6 && blocks.empty());
  mam_torch_out_of_memory(nullptr, nullptr);
}

void other_failures_are_no_lack_of_memory() {
  bool thrown = false;
  mam_torch_out_of_memory(reinterpret_cast<void *>(constructor_itself), &typeid(c10::OutOfMemoryError));
  failures_due = 1;
  failure = cudaErrorContextIsDestroyed;
  try {
    (void)mam_torch_alloc(100, 0, eager);
  } catch (const std::runtime_error &) {
    thrown = true;
  }
  failure = cudaErrorMemoryAllocation;
  mam_torch_out_of_memory(nullptr, nullptr);
  EXPECT(thrown && blocks.empty());
}

/* The capturing stream's tensors alone come from the graph's pool, and only while it captures. */
void capture_has_a_pool_of_its_own() {
  mam_torch_begin(0, first, is_captured);
  EXPECT(brackets == 1);
  void *inside = mam_torch_alloc(100, 0, captured), *outside = mam_torch_alloc(100, 0, eager);
  EXPECT(blocks[inside] != &default_pool && blocks[outside] == &default_pool);
  mam_torch_free(inside, 100, 0, captured);
  mam_torch_end(0, first);
  EXPECT(brackets == 0);
  void *after = mam_torch_alloc(100, 0, captured);
  EXPECT(blocks[after] == &default_pool);
  mam_torch_free(outside, 100, 0, eager);
  mam_torch_free(after, 100, 0, captured);
  mam_torch_empty_cache();
  EXPECT(mam_torch_graph_pools() == 1 && pools.size() == 1); /* the graph lives */
  mam_torch_release(0, first);
  mam_torch_empty_cache();
  EXPECT(mam_torch_graph_pools() == 0 && pools.empty());
}

void pool_outlives_its_graph_while_a_tensor_does() {
  mam_torch_begin(0, first, is_captured);
  void *result = mam_torch_alloc(100, 0, captured);
  mam_torch_end(0, first);
  mam_torch_release(0, first);
  mam_torch_empty_cache();
  EXPECT(pools.size() == 1);
  mam_torch_free(result, 100, 0, captured);
  mam_torch_empty_cache();
  EXPECT(pools.empty());
}

/* A second graph uses a tensor of the first one's pool, and the program drops the tensor in the second capture.
 * PyTorch's own test of a graph that is reset does so. */
void pool_outlives_a_capture_that_uses_its_tensor() {
  mam_torch_begin(0, first, is_captured);
  void *result = mam_torch_alloc(100, 0, captured);
  mam_torch_end(0, first);
  mam_torch_release(0, first);
  mam_torch_begin(0, second, is_captured);
  mam_torch_free(result, 100, 0, captured);
  mam_torch_empty_cache();
  EXPECT(pools.size() == 2); /* destroying it now would wait, in a capture */
  mam_torch_end(0, second);
  EXPECT(pools.size() == 2 && mam_torch_graph_pools() == 2); /* the second graph may run */
  mam_torch_release(0, second);
  EXPECT(pools.size() == 2);
  mam_torch_empty_cache();
  EXPECT(pools.empty() && mam_torch_graph_pools() == 0);
}

void missing_memory_ends_idle_pools() {
  mam_torch_begin(0, first, is_captured);
  mam_torch_end(0, first);
  mam_torch_release(0, first);
  EXPECT(pools.size() == 1);
  failures_due = 1;
  void *block = mam_torch_alloc(100, 0, eager);
  EXPECT(block != nullptr && pools.empty());
  mam_torch_free(block, 100, 0, eager);
}

void shared_pool_lives_as_long_as_either_graph() {
  mam_torch_begin(0, first, is_captured);
  void *one = mam_torch_alloc(100, 0, captured);
  mam_torch_end(0, first);
  mam_torch_begin(0, first, is_captured);
  void *two = mam_torch_alloc(100, 0, captured);
  EXPECT(blocks[one] == blocks[two] && pools.size() == 1);
  mam_torch_end(0, first);
  mam_torch_free(one, 100, 0, captured);
  mam_torch_free(two, 100, 0, captured);
  mam_torch_release(0, first);
  mam_torch_empty_cache();
  EXPECT(pools.size() == 1);
  mam_torch_release(0, first);
  mam_torch_empty_cache();
  EXPECT(pools.empty());
}

void refused_captured_tensor_leaves_no_trace() {
  bool thrown = false;
  mam_torch_begin(0, first, is_captured);
  failures_due = 2;
  try {
    (void)mam_torch_alloc(100, 0, captured);
  } catch (const std::runtime_error &) {
    thrown = true;
  }
  failures_due = 1; /* the second attempt, after a trim, succeeds */
  void *block = mam_torch_alloc(100, 0, captured);
  EXPECT(thrown && blocks.size() == 1);
  mam_torch_free(block, 100, 0, captured);
  mam_torch_end(0, first);
  mam_torch_release(0, first);
  mam_torch_empty_cache();
  EXPECT(pools.empty());
}
} // namespace

int main() {
  tensor_is_freed_on_its_stream();
  tensor_of_several_streams_is_freed_for_all();
  nothing_has_no_memory();
  missing_memory_is_an_exception();
  missing_memory_is_pytorch_s_exception(constructor_itself);
  missing_memory_is_pytorch_s_exception(constructor_of_base);
  other_failures_are_no_lack_of_memory();
  capture_has_a_pool_of_its_own();
  pool_outlives_its_graph_while_a_tensor_does();
  pool_outlives_a_capture_that_uses_its_tensor();
  missing_memory_ends_idle_pools();
  shared_pool_lives_as_long_as_either_graph();
  refused_captured_tensor_leaves_no_trace();
  EXPECT(blocks.empty());
  return 0;
}
