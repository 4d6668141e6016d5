/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory for Thrust, CUB and cuda::mr: a vector's, what an algorithm needs for itself, and a resource.
 */
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE 1 /* for CCCL 3.0 and earlier */
#include <cstdio>
#include <cub/device/device_reduce.cuh>
#include <exception>
#include <mam.hpp>
#include <mam/resource.hpp>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

static int sum_of(const int *numbers, int count, cudaStream_t stream) {
  int sum = 0;
  size_t bytes = 0;
  auto result = mam::make_unique<int>(mam::on(stream));
  cub::DeviceReduce::Sum(nullptr, bytes, numbers, result.get(), count, stream);
  auto scratch = mam::make_unique<char[]>(bytes, mam::on(stream));
  cub::DeviceReduce::Sum(scratch.get(), bytes, numbers, result.get(), count, stream);
  cudaMemcpyAsync(&sum, result.get(), sizeof sum, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  return sum;
}

int main() {
  cudaStream_t stream = nullptr;
  try {
    thrust::device_vector<int, mam::allocator<int, thrust::device_ptr<int>>> numbers(1000);
    mam::allocator<char> temporary(mam::on(stream));
    auto policy = thrust::cuda::par(temporary).on(stream);
    thrust::sequence(policy, numbers.begin(), numbers.end());
    thrust::sort(policy, numbers.begin(), numbers.end(), thrust::greater<int>());
    std::printf("the sum is %d\n", sum_of(thrust::raw_pointer_cast(numbers.data()), 1000, stream));

    mam::resource resource; /* wherever a library takes one of cuda::mr */
    void *block = resource.allocate_async(1 << 20, 256, stream);
    resource.deallocate_async(block, 1 << 20, 256, stream);
  } catch (const std::exception &failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
