/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/resource.hpp beside the concepts of cuda::mr, and by a reference of cuda::mr on plain host memory.  Built and run
 * by check_cpp.sh, with the names that the CCCL of the toolkit has.
 */
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE 1
#include <cstdio>

#include "mam/resource.hpp"

namespace mr = cuda::mr;

#if CCCL_VERSION >= 3001000
template <class Resource, class... Properties>
constexpr bool serves =
    mr::synchronous_resource_with<Resource, Properties...> &&mr::resource_with<Resource, Properties...>;
using Reference = mr::resource_ref<mr::device_accessible, mr::host_accessible>;

static bool serves_by_reference(Reference reference) {
  cuda::stream_ref stream{cudaStream_t{}};
  void *plain = reference.allocate_sync(100, 64), *ordered = reference.allocate(stream, 100, 64);
  bool different = plain != ordered && plain != nullptr && ordered != nullptr;
  reference.deallocate_sync(plain, 100, 64);
  reference.deallocate(stream, ordered, 100, 64);
  return different;
}
#else
template <class Resource, class... Properties>
constexpr bool serves = mr::resource_with<Resource, Properties...> &&mr::async_resource_with<Resource, Properties...>;
using Reference = mr::async_resource_ref<mr::device_accessible, mr::host_accessible>;

static bool serves_by_reference(Reference reference) {
  cuda::stream_ref stream{cudaStream_t{}};
  void *plain = reference.allocate(100, 64), *ordered = reference.allocate_async(100, 64, stream);
  bool different = plain != ordered && plain != nullptr && ordered != nullptr;
  reference.deallocate(plain, 100, 64);
  reference.deallocate_async(ordered, 100, 64, stream);
  return different;
}
#endif

static_assert(serves<mam::resource, mr::device_accessible>, "device memory");
static_assert(!serves<mam::resource, mr::host_accessible>, "the host cannot touch it");
static_assert(serves<mam::shared_resource, mr::device_accessible, mr::host_accessible>, "memory of both");

int main() {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_PoolInfo info = {};
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = std::size_t{4} << 20;
  mam::unique_pool pool = mam::make_pool(options), another = mam::make_pool(options);
  mam::shared_resource resource(pool.get()), other(another.get());
  bool good =
      serves_by_reference(Reference(resource)) && resource == mam::shared_resource(pool.get()) && resource != other;
  info.struct_size = sizeof info;
  good = good && MAM_PoolGetInfo(pool.get(), &info) == cudaSuccess && info.malloc_count == 2 && info.used_count == 0;
  if (!good)
    std::printf("cuda::mr did not get its two blocks, or did not free them (%s)\n", MAM_LastError());
  return good ? 0 : 1;
}
