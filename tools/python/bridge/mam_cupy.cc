/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What CuPy's CFunctionAllocator calls, over libmam.  mam/_cupy.py registers these functions.
 *
 * Streams.  CuPy's own pool gives a freed block back to the stream on which it was allocated, which may have it again
 * at once; a program that uses an array on another stream waits before it drops it.  CuPy tells its allocator a device
 * and no stream.  So the current stream is asked for by the C function of CuPy that its own pool asks.
 *
 * A block of the legacy default stream is freed on that stream: the stream lives as long as its context, and most
 * programs use no other.  A block of any other stream is freed by the plain call, which waits for the work of all
 * streams before the memory is used again: by then the stream may have been destroyed and its handle be another
 * stream's, and the per-thread stream is another one in another thread.  Neither is less safe than CuPy's pool.
 *
 * Captures.  A fence, which a free may ask for, spoils a capture.  The library learns of a capture by a call that names
 * the stream (mam(7)).  So a free under another current stream than the default one names that first.
 *
 * CuPy calls these functions with the GIL held.
 */
#include "bridge.h"

#include <atomic>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_set>

namespace {

/* CuPy makes it a MemoryError with this text. */
class NoMemory : public std::bad_alloc {
public:
  explicit NoMemory(std::string text) : text_(std::move(text)) {}
  const char *what() const noexcept override { return text_.c_str(); }

private:
  std::string text_;
};

struct State {
  /* relaxed wherever they are read: set before the allocator is handed out */
  std::atomic<intptr_t (*)()> current_stream{nullptr}; /* of CuPy; -1 and a Python error if it fails */
  std::atomic<void (*)()> error_clear{nullptr};        /* of Python */
  std::mutex lock;                                     /* of what follows, but for the count */
  std::unordered_set<void *> elsewhere;                /* live blocks of other streams than the legacy default one */
  std::atomic<size_t> elsewhere_count{0};
};

/* Never destroyed: Python frees arrays after static objects have gone. */
State &state() {
  static State *const the_state = new State;
  return *the_state;
}

const intptr_t kNoStream = -1;

/* CuPy's current stream; kNoStream if it cannot be known. */
intptr_t current_stream() {
  auto ask = state().current_stream.load(std::memory_order_relaxed);
  if (ask == nullptr)
    return kNoStream;
  intptr_t stream = ask();
  if (stream == kNoStream)
    state().error_clear.load(std::memory_order_relaxed)();
  return stream;
}

bool is_legacy_default(intptr_t stream) { return stream == 0 || stream == 1; /* cudaStreamLegacy */ }

void note_elsewhere(void *block) {
  State &all = state();
  std::lock_guard<std::mutex> guard(all.lock);
  all.elsewhere.insert(block);
  all.elsewhere_count.store(all.elsewhere.size(), std::memory_order_release); /* pairs with was_elsewhere */
}

/* A block's note is written before the block is freed, so its own count is seen by whoever frees it. */
bool was_elsewhere(void *block) {
  State &all = state();
  if (all.elsewhere_count.load(std::memory_order_acquire) == 0)
    return false;
  std::lock_guard<std::mutex> guard(all.lock);
  bool was = all.elsewhere.erase(block) != 0;
  all.elsewhere_count.store(all.elsewhere.size(), std::memory_order_release);
  return was;
}

/* The shortest call that names a stream: an allocation and its free. */
void name_stream(intptr_t number) {
  cudaStream_t stream = reinterpret_cast<cudaStream_t>(number);
  void *probe = nullptr;
  if (MAM_CudaMallocAsync(&probe, 1, stream) == cudaSuccess)
    (void)MAM_CudaFreeAsync(probe, stream);
}

} // namespace

extern "C" {

/* The functions by which CuPy names its current stream and Python forgets an error; NULL if there are none. */
MAM_API void mam_cupy_use(intptr_t (*current)(), void (*error_clear)()) {
  state().error_clear.store(error_clear, std::memory_order_relaxed);
  state().current_stream.store(error_clear != nullptr ? current : nullptr, std::memory_order_relaxed);
}

/* Throws what CuPy makes a MemoryError if there is no memory, std::runtime_error otherwise. */
MAM_API void *mam_cupy_malloc(void *, size_t size, int device) {
  void *block = nullptr;
  if (size == 0)
    return nullptr;
  intptr_t stream = current_stream();
  cudaError_t error = stream == kNoStream ? MAM_CudaMalloc(&block, size)
                                          : MAM_CudaMallocAsync(&block, size, reinterpret_cast<cudaStream_t>(stream));
  if (error == cudaErrorMemoryAllocation)
    throw NoMemory(mam_bridge::failure_text("out of memory", device, nullptr, size));
  if (error != cudaSuccess)
    throw std::runtime_error(mam_bridge::failure_text("no allocation", device, nullptr, 0));
  if (!is_legacy_default(stream))
    try {
      note_elsewhere(block);
    } catch (const std::bad_alloc &) {
      (void)MAM_CudaFree(block);
      throw;
    }
  return block;
}

MAM_API void mam_cupy_free(void *, void *block, int) {
  if (block == nullptr)
    return;
  intptr_t stream = current_stream();
  if (stream != kNoStream && !is_legacy_default(stream))
    name_stream(stream);
  cudaError_t error = was_elsewhere(block) ? cudaErrorUnknown : MAM_CudaFreeAsync(block, nullptr);
  if (error != cudaSuccess) /* another stream's, or the thread has no context for that one */
    error = MAM_CudaFree(block);
  mam_bridge::free_tell(error, "an array's memory");
}

} /* extern "C" */
