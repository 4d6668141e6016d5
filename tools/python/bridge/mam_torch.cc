/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What PyTorch's CUDAPluggableAllocator calls, over libmam.  mam/torch.py registers these functions.
 *
 * Out of memory.  PyTorch makes a torch.OutOfMemoryError of its own exception c10::OutOfMemoryError, and a RuntimeError
 * of any other.  That class is declared nowhere here.  PyTorch's libraries export its constructor and its type, or the
 * constructor of its base class, and mam/torch.py finds them by name.  So the object is made as a compiler would make
 * it, in room for several of it, and thrown by the C++ ABI's own function.  Where PyTorch has no such names, such as
 * one whose std::string is that before C++11, the exception is std::runtime_error.
 *
 * Streams.  PyTorch frees a tensor's memory with the stream that it was allocated on, and means: its last use comes
 * before this in the order of that stream.  So plain tensors are MAM_CudaMallocAsync and MAM_CudaFreeAsync on it.
 * A tensor that other streams use too is said to be so by Tensor.record_stream.  PyTorch does nothing about that with a
 * pluggable allocator but call mam_torch_record_stream, if it is registered: without it, such memory would be handed
 * out while the other stream still uses it.  Here the block is noted, and freed by the plain call, which waits for
 * the work of all streams.
 *
 * Devices.  PyTorch allocates with the device current; the block comes from that context's default pool.  It may free
 * with another device current, which is safe with either free.
 *
 * Graphs.  A graph goes on using the memory of its capture, freed or not, until it is gone.  So every PyTorch graph
 * pool (one for each graph, unless graphs share one) is a libmam pool of its own: what is freed in a capture is reused
 * by that capture, or by a later one into the same pool, and by nobody else.  PyTorch calls mam_torch_begin before a
 * capture begins, mam_torch_end after it ended, and mam_torch_release when a graph is gone.
 *
 * When the last graph and the last tensor in a pool are gone, the pool is idle.  It does not end at once: another graph
 * may have recorded a use of a tensor of this pool, and the program may have dropped that tensor.  PyTorch's own cache
 * keeps such memory until it is emptied or memory runs out, and programs have come to rely on that.  So do pools here.
 * torch.cuda.graph empties the cache before each capture.
 */
#include "bridge.h"

#include <atomic>
#include <cxxabi.h>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace {

using PoolId = std::pair<unsigned long long, unsigned long long>; /* PyTorch's MempoolId_t */
using StreamFilter = std::function<bool(cudaStream_t)>;

constexpr int kDevicesMax = 64;
constexpr size_t kGraphStepBytes = size_t{32} << 20; /* a graph's pool holds at most that much more than it needs */
constexpr size_t kErrorBytes = 1024;                 /* for a c10::Error, which had 136 in PyTorch 2.15 */

/* c10::SourceLocation, and the constructor of a c10::Error: of a class without virtual bases it is a plain function. */
struct SourceLocation {
  const char *function, *file;
  uint32_t line;
};
using ErrorConstructor = void (*)(void *error, SourceLocation where, std::string text);

struct GraphPool {
  MAM_Pool pool = nullptr;
  size_t blocks = 0; /* live in it, or being allocated */
  int uses = 0;      /* captures into it, less the graphs released */
};

struct Capture {
  int device;
  PoolId id;
  StreamFilter captures; /* whether a stream takes part in it */
  GraphPool *pool;
};

/* What is to know about a block; those without a note were allocated outside of captures and used on one stream. */
struct Note {
  GraphPool *pool = nullptr;
  bool other_streams = false;
};

struct State {
  std::mutex lock; /* of everything below but the atomics, which say whether it is worth taking */
  std::vector<Capture> captures;
  std::map<std::pair<int, PoolId>, GraphPool *> pools; /* those that PyTorch can still name */
  std::vector<GraphPool *> retired;                    /* without a graph; idle once they have no blocks */
  std::unordered_map<void *, Note> notes;
  std::atomic<size_t> capture_count{0}, note_count{0};
  std::atomic<bool> environments[kDevicesMax] = {};
  /* relaxed wherever they are read: set before PyTorch has the allocator */
  std::atomic<ErrorConstructor> out_of_memory{nullptr};
  std::atomic<std::type_info *> out_of_memory_type{nullptr};
};

/* Never destroyed: Python frees tensors after static objects have gone. */
State &state() {
  static State *const the_state = new State;
  return *the_state;
}

/* Every c10::Error is a std::exception first, so its destructor is found as that of one. */
void error_destroy(void *error) { static_cast<std::exception *>(error)->~exception(); }

[[noreturn]] void throw_out_of_memory(const std::string &text) {
  ErrorConstructor construct = state().out_of_memory.load(std::memory_order_relaxed);
  if (construct == nullptr)
    throw std::runtime_error(text);
  void *error = abi::__cxa_allocate_exception(kErrorBytes);
  try {
    construct(error, {"mam_torch_alloc", "mam_torch.cc", __LINE__}, text);
  } catch (...) {
    abi::__cxa_free_exception(error);
    throw;
  }
  abi::__cxa_throw(error, state().out_of_memory_type.load(std::memory_order_relaxed), error_destroy);
}

/* size: of the tensor that has no memory in the pool, NULL for the default one; 0 if something else failed. */
[[noreturn]] void fail(cudaError_t error, const char *what, int device, MAM_Pool pool, size_t size) {
  bool no_memory = error == cudaErrorMemoryAllocation;
  std::string text = mam_bridge::failure_text(no_memory ? "CUDA out of memory" : what, device, pool, size);
  if (no_memory)
    throw_out_of_memory(text);
  throw std::runtime_error(text);
}

/* The environment is created rather than left to come by itself: it then stays when the program has no tensor. */
void environment_ensure(int device) {
  if (device < 0 || device >= kDevicesMax)
    throw std::runtime_error("libmam: PyTorch asks for memory of device " + std::to_string(device));
  std::atomic<bool> &exists = state().environments[device];
  if (exists.load(std::memory_order_relaxed)) /* a hint; making it twice harms nothing */
    return;
  cudaError_t error = MAM_Create_auto();
  if (error != cudaSuccess && error != cudaErrorAlreadyAcquired)
    fail(error, "no memory pool", device, nullptr, 0);
  exists.store(true, std::memory_order_relaxed);
}

/* ---- Graphs' pools, under the lock ------------------------------------------------------------------------------- */

/* Without a bound of its own: it may grow to what the device's default pool may hold. */
MAM_Pool graph_pool_create(int device) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_PoolInfo info = {};
  MAM_Pool pool = nullptr;
  info.struct_size = sizeof info;
  cudaError_t error = MAM_PoolGetInfo(nullptr, &info);
  if (error != cudaSuccess)
    fail(error, "no memory pool", device, nullptr, 0);
  options.device = device;
  options.chunk_bytes = kGraphStepBytes;
  options.keeps_memory = 1; /* the graph uses it when the tensors are gone */
  options.limit_bytes = info.limit_bytes > kGraphStepBytes ? info.limit_bytes : kGraphStepBytes;
  for (MAM_Source source : {MAM_SOURCE_VMM, MAM_SOURCE_DEVICE}) { /* not every device can map pieces */
    options.source = source;
    error = MAM_PoolCreate(&pool, &options);
    if (error == cudaSuccess)
      return pool;
  }
  fail(error, "no memory pool for a graph", device, nullptr, 0);
}

GraphPool *graph_pool_use(int device, PoolId id) {
  GraphPool *&pool = state().pools[{device, id}];
  if (pool == nullptr) {
    MAM_Pool created = graph_pool_create(device);
    pool = new GraphPool;
    pool->pool = created;
  }
  pool->uses++;
  return pool;
}

/* Ends the idle pools, unless a capture is under way, because that waits for the GPU.  Whether one ended. */
bool graph_pools_sweep() {
  State &all = state();
  bool ended = false;
  std::lock_guard<std::mutex> guard(all.lock);
  if (!all.captures.empty())
    return false;
  for (size_t i = all.retired.size(); i-- > 0;) {
    GraphPool *pool = all.retired[i];
    if (pool->blocks != 0)
      continue;
    (void)MAM_PoolDestroy(pool->pool);
    delete pool;
    all.retired.erase(all.retired.begin() + static_cast<std::ptrdiff_t>(i));
    ended = true;
  }
  return ended;
}

/* The pool of the capture that the stream takes part in, with a block counted in it; null if there is none. */
GraphPool *graph_pool_of(int device, cudaStream_t stream) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  for (auto capture = all.captures.rbegin(); capture != all.captures.rend(); ++capture)
    if (capture->device == device && capture->captures(stream)) {
      capture->pool->blocks++;
      return capture->pool;
    }
  return nullptr;
}

void graph_pool_block_gone(GraphPool *pool) {
  std::lock_guard<std::mutex> guard(state().lock);
  pool->blocks--;
}

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

template <typename Change> void note_change(void *block, Change change) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  change(all.notes[block]);
  all.note_count.store(all.notes.size(), std::memory_order_release); /* pairs with note_take */
}

/* The block's note, which is forgotten.  A block's note is written before the block is freed, so its own count is seen
 * by whoever frees it. */
Note note_take(void *block) {
  State &all = state();
  Note note;
  if (all.note_count.load(std::memory_order_acquire) == 0)
    return note;
  std::lock_guard<std::mutex> guard(all.lock);
  auto found = all.notes.find(block);
  if (found == all.notes.end())
    return note;
  note = found->second;
  all.notes.erase(found);
  all.note_count.store(all.notes.size(), std::memory_order_release);
  return note;
}

cudaError_t allocate_once(MAM_Pool pool, void **block, size_t size, cudaStream_t stream) {
  return pool != nullptr ? MAM_PoolMallocAsync(pool, block, size, stream) : MAM_CudaMallocAsync(block, size, stream);
}

/* From the pool, NULL for the default one.  If it has no memory, once more, if an idle pool or the default one gave
 * some back. */
cudaError_t allocate(MAM_Pool pool, void **block, size_t size, cudaStream_t stream) {
  cudaError_t error = allocate_once(pool, block, size, stream);
  if (error != cudaErrorMemoryAllocation)
    return error;
  bool ended = graph_pools_sweep(), trimmed = pool != nullptr && MAM_Trim(0) == cudaSuccess;
  return ended || trimmed ? allocate_once(pool, block, size, stream) : error;
}

void *graph_allocate(GraphPool *pool, size_t size, int device, cudaStream_t stream) {
  void *block = nullptr;
  cudaError_t error = allocate(pool->pool, &block, size, stream);
  if (error != cudaSuccess) {
    std::exception_ptr thrown;
    try { /* first: the pool may end with its block, and what it holds is to be told */
      fail(error, "no memory for a captured tensor", device, pool->pool, size);
    } catch (...) {
      thrown = std::current_exception();
    }
    graph_pool_block_gone(pool);
    std::rethrow_exception(thrown);
  }
  note_change(block, [pool](Note &note) { note.pool = pool; });
  return block;
}

} // namespace

extern "C" {

/* How PyTorch's OutOfMemoryError is made, and its std::type_info.  NULL: it is not known. */
MAM_API void mam_torch_out_of_memory(ErrorConstructor constructor, std::type_info *type) {
  state().out_of_memory_type.store(type, std::memory_order_relaxed);
  state().out_of_memory.store(type != nullptr ? constructor : nullptr, std::memory_order_relaxed);
}

/* Throws PyTorch's OutOfMemoryError if there is no memory. */
MAM_API void *mam_torch_alloc(ssize_t size, int device, cudaStream_t stream) {
  void *block = nullptr;
  if (size <= 0)
    return nullptr;
  environment_ensure(device);
  if (state().capture_count.load(std::memory_order_acquire) != 0) /* pairs with mam_torch_begin */
    if (GraphPool *pool = graph_pool_of(device, stream))
      return graph_allocate(pool, static_cast<size_t>(size), device, stream);
  cudaError_t error = allocate(nullptr, &block, static_cast<size_t>(size), stream);
  if (error != cudaSuccess)
    fail(error, "no allocation", device, nullptr, static_cast<size_t>(size));
  return block;
}

MAM_API void mam_torch_free(void *block, ssize_t, int, cudaStream_t stream) {
  if (block == nullptr)
    return;
  Note note = note_take(block);
  cudaError_t error = note.other_streams ? MAM_CudaFree(block) : MAM_CudaFreeAsync(block, stream);
  if (error != cudaSuccess && !note.other_streams)
    error = MAM_CudaFree(block); /* the stream may be gone; the plain call needs none */
  mam_bridge::free_tell(error, "a tensor's memory");
  if (note.pool != nullptr)
    graph_pool_block_gone(note.pool);
}

MAM_API void mam_torch_record_stream(void *block, cudaStream_t) {
  if (block != nullptr)
    note_change(block, [](Note &note) { note.other_streams = true; });
}

MAM_API void mam_torch_empty_cache() {
  (void)graph_pools_sweep();
  (void)MAM_Trim(0);
}

MAM_API void mam_torch_begin(int device, PoolId id, StreamFilter filter) {
  State &all = state();
  environment_ensure(device);
  std::lock_guard<std::mutex> guard(all.lock);
  GraphPool *pool = graph_pool_use(device, id); /* before the bracket: creating it may take what a capture forbids */
  cudaError_t error = MAM_CaptureBegin();
  if (error != cudaSuccess) {
    pool->uses--;
    fail(error, "no capture", device, nullptr, 0);
  }
  all.captures.push_back({device, id, std::move(filter), pool});
  all.capture_count.store(all.captures.size(), std::memory_order_release);
}

MAM_API void mam_torch_end(int device, PoolId id) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  for (size_t i = all.captures.size(); i-- > 0;)
    if (all.captures[i].device == device && all.captures[i].id == id) {
      all.captures.erase(all.captures.begin() + static_cast<std::ptrdiff_t>(i));
      all.capture_count.store(all.captures.size(), std::memory_order_release);
      (void)MAM_CaptureEnd();
      break;
    }
}

MAM_API void mam_torch_release(int device, PoolId id) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  auto found = all.pools.find({device, id});
  if (found == all.pools.end() || --found->second->uses > 0)
    return;
  all.retired.push_back(found->second);
  all.pools.erase(found);
}

/* How many graphs' pools there are, with the idle ones. */
MAM_API int mam_torch_graph_pools() {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  return static_cast<int>(all.pools.size() + all.retired.size());
}

} /* extern "C" */
