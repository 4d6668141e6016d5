/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/resource.hpp - the pools of mam.h as memory resources for cuda::mr, the interface of CCCL and RMM.
 *
 *     mam::resource pool;                                           // the default pool of the current context
 *     cuda::mr::resource_ref<cuda::mr::device_accessible> ref = pool;
 *
 * The names of cuda::mr changed.  Up to CCCL 3.0 a resource has allocate, deallocate, allocate_async and
 * deallocate_async; from 3.1 on it has allocate_sync and deallocate_sync, and allocate and deallocate take a stream
 * first.  These have all of them.  Up to 3.0 define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE before any header of
 * CCCL, as CCCL asks for.
 */
#ifndef MAM_RESOURCE_HPP
#define MAM_RESOURCE_HPP

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include "mam.hpp"

namespace mam {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread {
#endif

namespace detail {
template <class T, class... List> struct is_one_of : std::false_type {};
template <class T, class First, class... Rest>
struct is_one_of<T, First, Rest...>
    : std::conditional<std::is_same<T, First>::value, std::true_type, is_one_of<T, Rest...>>::type {};
} // namespace detail

/* A resource with properties.  It owns no pool.  Two of them are equal if they are of the same place. */
template <class... Properties> class basic_resource {
public:
  basic_resource() noexcept = default;
  explicit basic_resource(const place &from) noexcept : place_(from) {}
  explicit basic_resource(MAM_Pool pool, std::size_t alignment = 512) noexcept : place_(mam::in(pool, alignment)) {}

  /* In no stream's order, or in that of the place. */
  void *allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
    return place_.allocate(bytes, alignment);
  }
  void deallocate(void *block, std::size_t, std::size_t = default_alignment) noexcept { place_.deallocate(block); }
  void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return place_.allocate(bytes, alignment);
  }
  void deallocate_sync(void *block, std::size_t, std::size_t = default_alignment) noexcept { place_.deallocate(block); }

  /* In the order of the given stream. */
  void *allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
    return place_.on(stream.get()).allocate(bytes, alignment);
  }
  void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) {
    return allocate_async(bytes, default_alignment, stream);
  }
  void deallocate_async(void *block, std::size_t, std::size_t, ::cuda::stream_ref stream) noexcept {
    place_.on(stream.get()).deallocate(block);
  }
  void deallocate_async(void *block, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
    deallocate_async(block, bytes, default_alignment, stream);
  }
  void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_async(bytes, alignment, stream);
  }
  void deallocate(::cuda::stream_ref stream, void *block, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    deallocate_async(block, bytes, alignment, stream);
  }

  const place &where() const noexcept { return place_; }

  friend bool operator==(const basic_resource &a, const basic_resource &b) noexcept { return a.place_ == b.place_; }
  friend bool operator!=(const basic_resource &a, const basic_resource &b) noexcept { return !(a == b); }
  template <class Property, typename std::enable_if<detail::is_one_of<Property, Properties...>::value, int>::type = 0>
  friend constexpr void get_property(const basic_resource &, Property) noexcept {}

private:
  static constexpr std::size_t default_alignment = 256; /* what cudaMalloc promises */
  place place_;
};

/* Device memory: the default pool, or one of MAM_SOURCE_DEVICE or MAM_SOURCE_VMM. */
using resource = basic_resource<::cuda::mr::device_accessible>;

/* Memory that the host and the devices can touch: a pool of MAM_SOURCE_PINNED or MAM_SOURCE_MANAGED. */
using shared_resource = basic_resource<::cuda::mr::device_accessible, ::cuda::mr::host_accessible>;

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
} // namespace per_thread
#endif
} // namespace mam

#endif /* MAM_RESOURCE_HPP */
