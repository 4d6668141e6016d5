/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam.hpp - the pools of mam.h for C++14 and later: owning pointers, allocators, a memory resource of the standard.
 *
 *     auto numbers = mam::make_unique<float[]>(1000);                       // device memory, freed at the end of scope
 *     auto scratch = mam::make_unique<float[]>(1000, mam::on(stream));      // in the order of a stream
 *
 * Everything here ends in a call of mam.h, which says what it does.  mam-cpp(7) is the manual.  <mam/resource.hpp> has
 * the resources for cuda::mr.  The header includes nothing of CUDA by itself but what mam.h includes.
 *
 * Failures are exceptions: mam::bad_alloc if there is no memory, mam::error for all else.  What frees does not throw.
 *
 * Blocks are bytes.  No constructor and no destructor runs in them, because the host cannot touch most of them.
 */
#ifndef MAM_HPP
#define MAM_HPP

#include "mam.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#if __cplusplus >= 201703L && defined(__has_include)
#if __has_include(<memory_resource>)
#include <memory_resource>
#if defined(__cpp_lib_memory_resource)
#define MAM_HAVE_PMR 1
#endif
#endif
#endif

namespace mam {
/* Stream 0 is another one in a file that is compiled with --default-stream per-thread (mam.h), so the inline functions
 * of such a file are others too. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread {
#endif

/* ---- Failures ---- */

/* There is no memory.  what() is MAM_LastError(). */
class bad_alloc : public std::bad_alloc {
public:
  explicit bad_alloc(const char *text) noexcept {
    std::size_t length = 0;
    while (length + 1 < sizeof text_ && text[length] != '\0') {
      text_[length] = text[length];
      length++;
    }
    text_[length] = '\0';
  }
  const char *what() const noexcept override { return text_; }

private:
  char text_[256];
};

/* Any other failure.  what() is MAM_LastError(). */
class error : public std::runtime_error {
public:
  error(cudaError_t code, const char *text) : std::runtime_error(text), code_(code) {}
  cudaError_t code() const noexcept { return code_; }

private:
  cudaError_t code_;
};

/* Throws what a result of mam.h means. */
inline void check(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation)
    throw bad_alloc(MAM_LastError());
  if (code != cudaSuccess)
    throw error(code, MAM_LastError());
}

/* ---- Pools ---- */

struct pool_deleter {
  void operator()(mam_pool *pool) const noexcept { (void)MAM_PoolDestroy(pool); }
};

/* Owns a pool, and ends it with all its blocks. */
using unique_pool = std::unique_ptr<mam_pool, pool_deleter>;

inline unique_pool make_pool(const MAM_PoolOptions &options) {
  MAM_Pool created = nullptr;
  check(MAM_PoolCreate(&created, &options));
  return unique_pool(created);
}

/* ---- Where blocks come from, and in which order ---- */

/* A pool, by default that of the current CUDA context, and optionally a stream of that context.  With a stream, blocks
 * are allocated and freed in its order (MAM_CudaMallocAsync, MAM_CudaFreeAsync).  A value: it owns neither. */
class place {
public:
  place() noexcept : pool_(nullptr), stream_(nullptr), alignment_(512), ordered_(false) {}

  /* The same in another pool.  alignment: what the pool's options say of it. */
  place in(MAM_Pool pool, std::size_t alignment = 512) const noexcept {
    place other = *this;
    other.pool_ = pool;
    other.alignment_ = alignment;
    return other;
  }
  /* An empty pointer is an error: it does not mean the default pool. */
  place in(const unique_pool &pool, std::size_t alignment = 512) const {
    if (!pool)
      throw error(cudaErrorInvalidResourceHandle, "mam::in: the pointer owns no pool");
    return in(pool.get(), alignment);
  }

  /* The same in the order of a stream. */
  place on(cudaStream_t stream) const noexcept {
    place other = *this;
    other.stream_ = stream;
    other.ordered_ = true;
    return other;
  }

  MAM_Pool pool() const noexcept { return pool_; }
  cudaStream_t stream() const noexcept { return stream_; }
  bool ordered() const noexcept { return ordered_; }
  std::size_t alignment() const noexcept { return alignment_; }

  /* Throws if there is no block of that size, or if blocks of the pool are not aligned so. */
  void *allocate(std::size_t bytes, std::size_t alignment = 1) const {
    void *block = nullptr;
    if (alignment > alignment_)
      throw bad_alloc("blocks of this pool are not aligned as asked for");
    if (ordered_)
      check(pool_ != nullptr ? MAM_PoolMallocAsync(pool_, &block, bytes, stream_)
                             : MAM_CudaMallocAsync(&block, bytes, stream_));
    else
      check(pool_ != nullptr ? MAM_PoolMalloc(pool_, &block, bytes) : MAM_CudaMalloc(&block, bytes));
    return block;
  }

  /* Of a stream that is gone, the block is freed as if it had been used on all streams. */
  void deallocate(void *block) const noexcept {
    if (!ordered_ || MAM_CudaFreeAsync(block, stream_) != cudaSuccess)
      (void)MAM_CudaFree(block);
  }

  friend bool operator==(const place &a, const place &b) noexcept {
    return a.pool_ == b.pool_ && a.ordered_ == b.ordered_ && a.stream_ == b.stream_;
  }
  friend bool operator!=(const place &a, const place &b) noexcept { return !(a == b); }

private:
  MAM_Pool pool_;
  cudaStream_t stream_;
  std::size_t alignment_;
  bool ordered_;
};

inline place in(MAM_Pool pool, std::size_t alignment = 512) noexcept { return place().in(pool, alignment); }
inline place in(const unique_pool &pool, std::size_t alignment = 512) { return place().in(pool, alignment); }
inline place on(cudaStream_t stream) noexcept { return place().on(stream); }

/* ---- Owning pointers ---- */

namespace detail {
inline std::size_t bytes_of(std::size_t count, std::size_t each) {
  if (count > (std::numeric_limits<std::size_t>::max)() / each)
    throw std::bad_array_new_length();
  return count * each;
}
} // namespace detail

/* Frees a block as its place says: on the stream that it was allocated on, if there is one. */
class deleter {
public:
  deleter() noexcept = default;
  explicit deleter(const place &from) noexcept : place_(from) {}
  void operator()(const volatile void *block) const noexcept { place_.deallocate(const_cast<void *>(block)); }
  const place &where() const noexcept { return place_; }

  /* From now on the block is freed in the order of this stream: the one that used it last. */
  void free_on(cudaStream_t stream) noexcept { place_ = place_.on(stream); }

private:
  place place_;
};

/* Owns a block.  The pointer is one of the GPU's: the host may dereference it only if the pool's memory allows that. */
template <class T> using unique_ptr = std::unique_ptr<T, deleter>;

/* make_unique<T>() has room for one T, make_unique<T[]>(count) for count of them, none of which is constructed.  0
 * gives an empty pointer. */
template <class T, typename std::enable_if<!std::is_array<T>::value, int>::type = 0>
unique_ptr<T> make_unique(const place &from = place()) {
  static_assert(std::is_trivially_destructible<T>::value, "no destructor runs in a block");
  return unique_ptr<T>(static_cast<T *>(from.allocate(sizeof(T), alignof(T))), deleter(from));
}

template <class T, typename std::enable_if<std::is_array<T>::value && std::extent<T>::value == 0, int>::type = 0>
unique_ptr<T> make_unique(std::size_t count, const place &from = place()) {
  using element = typename std::remove_extent<T>::type;
  static_assert(std::is_trivially_destructible<element>::value, "no destructor runs in a block");
  std::size_t bytes = detail::bytes_of(count, sizeof(element));
  return unique_ptr<T>(static_cast<element *>(from.allocate(bytes, alignof(element))), deleter(from));
}

/* ---- Allocators ---- */

namespace detail {
template <class Pointer, class U> struct rebound;
template <class T, class U> struct rebound<T *, U> { using type = U *; };
template <template <class, class...> class Fancy, class T, class... Rest, class U>
struct rebound<Fancy<T, Rest...>, U> {
  using type = Fancy<U, Rest...>;
};

template <class T> void *raw(T *pointer) noexcept { return const_cast<typename std::remove_cv<T>::type *>(pointer); }
template <class Fancy> auto raw(const Fancy &pointer) -> decltype(static_cast<void *>(pointer.get())) {
  return pointer.get();
}
} // namespace detail

/* An allocator of the standard and of Thrust.  A container that touches its elements on the host needs a pool whose
 * memory allows that.  For containers in device memory Pointer is Thrust's:
 *
 *     thrust::device_vector<int, mam::allocator<int, thrust::device_ptr<int>>> numbers(1000);
 *     thrust::sort(thrust::cuda::par(temporary).on(stream), ...);   // with: mam::allocator<char>
 * temporary(mam::on(stream));
 */
template <class T, class Pointer = T *> class allocator {
public:
  using value_type = T;
  using pointer = Pointer;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;
  template <class U> struct rebind { using other = allocator<U, typename detail::rebound<Pointer, U>::type>; };

  allocator() noexcept = default;
  allocator(const place &from) noexcept : place_(from) {} /* NOLINT: a place is an allocator's only choice */
  template <class U, class Other> allocator(const allocator<U, Other> &other) noexcept : place_(other.where()) {}

  pointer allocate(size_type count) {
    return pointer(static_cast<T *>(place_.allocate(detail::bytes_of(count, sizeof(T)), alignof(T))));
  }
  void deallocate(pointer block, size_type) noexcept { place_.deallocate(detail::raw(block)); }
  const place &where() const noexcept { return place_; }

private:
  place place_;
};

template <class T, class P, class U, class Q>
bool operator==(const allocator<T, P> &a, const allocator<U, Q> &b) noexcept {
  return a.where() == b.where();
}
template <class T, class P, class U, class Q>
bool operator!=(const allocator<T, P> &a, const allocator<U, Q> &b) noexcept {
  return !(a == b);
}

/* For code that is written for an allocator like cub::CachingDeviceAllocator.  As there, the results are errors. */
class cub_allocator {
public:
  cub_allocator() noexcept = default;
  explicit cub_allocator(MAM_Pool pool) noexcept : pool_(pool) {}
  cudaError_t DeviceAllocate(void **block, std::size_t bytes, cudaStream_t stream = nullptr) const noexcept {
    return pool_ != nullptr ? MAM_PoolMallocAsync(pool_, block, bytes, stream)
                            : MAM_CudaMallocAsync(block, bytes, stream);
  }
  cudaError_t DeviceFree(void *block) const noexcept { return MAM_CudaFree(block); }

private:
  MAM_Pool pool_ = nullptr;
};

/* ---- A memory resource of the standard ---- */

#if defined(MAM_HAVE_PMR)
/* A pool of its own, in memory that the host can touch, for std::pmr.  It ends with all its blocks.  It serves any
 * alignment: where that of the pool is too small, a block is larger by the alignment that is asked for. */
class host_resource : public std::pmr::memory_resource {
public:
  /* Plain host memory, taken as it is needed. */
  host_resource() : host_resource(options_of(MAM_SOURCE_HOST)) {}

  /* MAM_SOURCE_HOST, _PINNED or _MANAGED, and what else the options say. */
  explicit host_resource(const MAM_PoolOptions &options)
      : pool_(make_pool(checked(options))), place_(mam::in(pool_, options.alignment != 0 ? options.alignment : 512)) {}

  /* Containers keep its address, as that of any memory resource. */
  host_resource(const host_resource &) = delete;
  host_resource &operator=(const host_resource &) = delete;

  MAM_Pool pool() const noexcept { return pool_.get(); }

private:
  static MAM_PoolOptions options_of(MAM_Source source) {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.source = source;
    return options;
  }
  static const MAM_PoolOptions &checked(const MAM_PoolOptions &options) {
    if (options.source == MAM_SOURCE_DEVICE || options.source == MAM_SOURCE_VMM)
      throw error(cudaErrorInvalidValue, "mam::host_resource: the host cannot touch memory of this source");
    return options;
  }

  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > place_.alignment())
      return allocate_inside(bytes, alignment);
    return place_.allocate(bytes != 0 ? bytes : 1, alignment);
  }
  void do_deallocate(void *block, std::size_t, std::size_t alignment) override {
    place_.deallocate(alignment > place_.alignment() ? static_cast<void **>(block)[-1] : block);
  }

  /* At the first multiple of the alignment after the begin of a larger block, whose address is in the word before.
   * Both are multiples of the pool's alignment, so there is room for the word. */
  void *allocate_inside(std::size_t bytes, std::size_t alignment) {
    if (bytes > (std::numeric_limits<std::size_t>::max)() - alignment)
      throw bad_alloc("no memory is so large");
    char *whole = static_cast<char *>(place_.allocate(bytes + alignment));
    void *block = whole + (alignment - reinterpret_cast<std::uintptr_t>(whole) % alignment);
    static_cast<void **>(block)[-1] = whole;
    return block;
  }

  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  unique_pool pool_;
  place place_;
};
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
} // namespace per_thread
#endif
} // namespace mam

#endif /* MAM_HPP */
