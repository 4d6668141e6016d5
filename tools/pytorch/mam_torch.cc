/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What PyTorch's CUDAPluggableAllocator calls, over libmam.  mam_torch.py registers these functions.
 *
 * C++, unlike the rest of the project, for two reasons: PyTorch hands a std::function over, and the only way to tell it
 * that there is no memory is an exception.  It includes nothing of PyTorch or of CUDA, so one build serves any PyTorch
 * that was built with libstdc++.
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
 * capture begins, mam_torch_end after it ended, and mam_torch_release when a graph is gone.  The pool ends when the
 * last graph and the last tensor in it are gone.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

#define MAM_NO_CUDA_HEADERS 1
#include "mam.h"

namespace {

using PoolId = std::pair<unsigned long long, unsigned long long>; /* PyTorch's MempoolId_t */
using StreamFilter = std::function<bool(cudaStream_t)>;

constexpr int kDevicesMax = 64;
constexpr size_t kGraphStepBytes = size_t{32} << 20; /* a graph's pool holds at most that much more than it needs */
constexpr int kErrorUnloading = 4;                   /* the process ends: the driver has gone before the last tensor */

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
  std::vector<GraphPool *> retired;                    /* without a graph, but not empty yet */
  std::unordered_map<void *, Note> notes;
  std::atomic<size_t> capture_count{0}, note_count{0};
  std::atomic<bool> environments[kDevicesMax] = {};
};

/* Never destroyed: Python frees tensors after static objects have gone. */
State &state() {
  static State *const the_state = new State;
  return *the_state;
}

[[noreturn]] void fail(const char *what, size_t size, int device) {
  std::string text = std::string("libmam: ") + what + " on device " + std::to_string(device) + ": " + MAM_LastError();
  char *explanation = nullptr;
  if (size != 0 && MAM_PoolExplain(nullptr, size, &explanation) == cudaSuccess)
    text += std::string("\n") + explanation;
  std::free(explanation);
  throw std::runtime_error(text);
}

/* The environment is created rather than left to come by itself: it then stays when the program has no tensor. */
void environment_ensure(int device) {
  if (device < 0 || device >= kDevicesMax)
    throw std::runtime_error("libmam: no such device: " + std::to_string(device));
  std::atomic<bool> &exists = state().environments[device];
  if (exists.load(std::memory_order_relaxed)) /* a hint; making it twice harms nothing */
    return;
  cudaError_t error = MAM_Create_auto();
  if (error != cudaSuccess && error != cudaErrorAlreadyAcquired)
    fail("no memory pool", 0, device);
  exists.store(true, std::memory_order_relaxed);
}

/* ---- Graphs' pools, under the lock ------------------------------------------------------------------------------- */

/* Without a bound of its own: it may grow to what the device's default pool may hold. */
MAM_Pool graph_pool_create(int device) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_PoolInfo info = {};
  MAM_Pool pool = nullptr;
  info.struct_size = sizeof info;
  if (MAM_PoolGetInfo(nullptr, &info) != cudaSuccess)
    fail("no memory pool", 0, device);
  options.device = device;
  options.chunk_bytes = kGraphStepBytes;
  options.limit_bytes = info.limit_bytes > kGraphStepBytes ? info.limit_bytes : kGraphStepBytes;
  for (MAM_Source source : {MAM_SOURCE_VMM, MAM_SOURCE_DEVICE}) { /* not every device can map pieces */
    options.source = source;
    if (MAM_PoolCreate(&pool, &options) == cudaSuccess)
      return pool;
  }
  fail("no memory pool for a graph", 0, device);
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

/* Ends pools that nothing can use any more.  That waits for the GPU, so it is left until no capture is under way. */
void graph_pools_sweep() {
  State &all = state();
  if (!all.captures.empty())
    return;
  for (size_t i = all.retired.size(); i-- > 0;) {
    GraphPool *pool = all.retired[i];
    if (pool->blocks != 0)
      continue;
    (void)MAM_PoolDestroy(pool->pool);
    delete pool;
    all.retired.erase(all.retired.begin() + static_cast<std::ptrdiff_t>(i));
  }
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
  graph_pools_sweep();
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

void *graph_allocate(GraphPool *pool, size_t size, int device, cudaStream_t stream) {
  void *block = nullptr;
  cudaError_t error = MAM_PoolMallocAsync(pool->pool, &block, size, stream);
  if (error == cudaErrorMemoryAllocation && MAM_Trim(0) == cudaSuccess) /* what the default pool does not need */
    error = MAM_PoolMallocAsync(pool->pool, &block, size, stream);
  if (error != cudaSuccess) {
    graph_pool_block_gone(pool);
    fail("no memory for a captured tensor", size, device);
  }
  note_change(block, [pool](Note &note) { note.pool = pool; });
  return block;
}

} // namespace

extern "C" {

/* Throws std::runtime_error if there is no memory. */
MAM_API void *mam_torch_alloc(ssize_t size, int device, cudaStream_t stream) {
  void *block = nullptr;
  if (size <= 0)
    return nullptr;
  environment_ensure(device);
  if (state().capture_count.load(std::memory_order_acquire) != 0) /* pairs with mam_torch_begin */
    if (GraphPool *pool = graph_pool_of(device, stream))
      return graph_allocate(pool, static_cast<size_t>(size), device, stream);
  if (MAM_CudaMallocAsync(&block, static_cast<size_t>(size), stream) != cudaSuccess)
    fail("no memory", static_cast<size_t>(size), device);
  return block;
}

/* PyTorch calls it from destructors, so a failure is no exception but a line on stderr. */
MAM_API void mam_torch_free(void *block, ssize_t, int, cudaStream_t stream) {
  if (block == nullptr)
    return;
  Note note = note_take(block);
  cudaError_t error = note.other_streams ? MAM_CudaFree(block) : MAM_CudaFreeAsync(block, stream);
  if (error != cudaSuccess && !note.other_streams)
    error = MAM_CudaFree(block); /* the stream may be gone; the plain call needs none */
  if (error != cudaSuccess && error != cudaErrorContextIsDestroyed && static_cast<int>(error) != kErrorUnloading)
    (void)std::fprintf(stderr, "libmam: a tensor's memory was not freed: %s\n", MAM_LastError());
  if (note.pool != nullptr)
    graph_pool_block_gone(note.pool);
}

MAM_API void mam_torch_record_stream(void *block, cudaStream_t) {
  if (block != nullptr)
    note_change(block, [](Note &note) { note.other_streams = true; });
}

MAM_API void mam_torch_empty_cache() { (void)MAM_Trim(0); }

MAM_API void mam_torch_begin(int device, PoolId id, StreamFilter filter) {
  State &all = state();
  environment_ensure(device);
  std::lock_guard<std::mutex> guard(all.lock);
  GraphPool *pool = graph_pool_use(device, id); /* before the bracket: creating it may take what a capture forbids */
  if (MAM_CaptureBegin() != cudaSuccess) {
    pool->uses--;
    fail("no capture", 0, device);
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
  graph_pools_sweep();
}

MAM_API void mam_torch_release(int device, PoolId id) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  auto found = all.pools.find({device, id});
  if (found == all.pools.end() || --found->second->uses > 0)
    return;
  all.retired.push_back(found->second);
  all.pools.erase(found);
  graph_pools_sweep();
}

/* How many graphs' pools there are. */
MAM_API int mam_torch_graph_pools() {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  return static_cast<int>(all.pools.size() + all.retired.size());
}

} /* extern "C" */
