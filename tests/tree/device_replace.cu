// SPDX-License-Identifier: BSD-2-Clause
// What the test of mam/replace.cuh compiles: kernels that were written without a thought of libmam, and host code
// beside them that has the same calls.  SECOND makes it another file of the same program; BETWEEN_OTHERS includes the
// header before others that have functions of these names; SITES adds a kernel with so many calls (1 or 16).
#ifndef __CUDACC_RTC__
struct members {
  int taken;
  void *malloc(unsigned long bytes, int zeroed);
  void *malloc(unsigned long bytes) { return malloc(bytes, 0); }
  void free(void *block) { taken -= block != nullptr; }
};
#endif
#ifdef BETWEEN_OTHERS
#include <cstdlib>
#include <cub/cub.cuh>
#include <mam/replace.cuh>
#include <thrust/device_vector.h>
#include <thrust/sort.h>
#endif
#include <mam/replace.cuh>

#ifdef SECOND
#define NAME(name) name##_second
#else
#define NAME(name) name
#endif

struct NAME(node) {
  int value;
  NAME(node) * next;
  __host__ __device__ NAME(node)(int begin) : value(begin), next(nullptr) {}
  __host__ __device__ ~NAME(node)() { value = 0; }
};

extern "C" __global__ void NAME(list_kernel)(int *sums, int length) {
  NAME(node) *first = nullptr;
  int *numbers = (int *)malloc(length * sizeof(int));
  for (int i = 0; numbers != nullptr && i < length; i++) {
    NAME(node) *next = new NAME(node)(numbers[i] = i);
    next->next = first;
    first = next;
  }
  long *sum = new long[2]();
  while (first != nullptr) {
    sum[0] += first->value;
    NAME(node) *next = first->next;
    delete first;
    first = next;
  }
  sums[threadIdx.x] = (int)sum[0];
  delete[] sum;
  free(numbers);
}

/* Each way to a block that device code has, and the way back. */
struct NAME(shape) {
  __device__ virtual ~NAME(shape)() {}
  __device__ virtual float area() const = 0;
};
struct NAME(square) : NAME(shape) {
  float side;
  __device__ NAME(square)(float length) : side(length) {}
  __device__ float area() const override { return side * side; }
};
struct alignas(64) NAME(line) {
  char bytes[64];
};
struct alignas(4096) NAME(page) {
  char bytes[4096];
};

enum { NAME(DOORS) = 10 };

extern "C" __global__ void NAME(doors_take)(void **all, int count) {
  void **blocks = all + threadIdx.x * NAME(DOORS);
  void *(*by_pointer)(size_t) = malloc;
  blocks[0] = malloc(count);
  blocks[1] = by_pointer(2 * count);
  blocks[2] = new NAME(node)(count);
  blocks[3] = new int[count];
  NAME(shape) *shape = new NAME(square)(2);
  blocks[4] = shape != nullptr && shape->area() == 4 ? shape : nullptr;
  blocks[5] = __nv_aligned_device_malloc(count, 256);
#ifdef __cpp_aligned_new
  blocks[6] = new NAME(line);
  blocks[7] = new NAME(line)[3];
  blocks[8] = new NAME(page);
#else
  for (int i = 6; i < 9; i++)
    blocks[i] = __nv_aligned_device_malloc(64, i < 8 ? 64 : 4096);
#endif
#ifdef __CUDACC_RTC__
  blocks[9] = malloc(count);
#else
  blocks[9] = new (std::nothrow_t{}) char[0];
#endif
}

extern "C" __global__ void NAME(doors_give)(void **all) {
  void **blocks = all + threadIdx.x * NAME(DOORS);
  void (*by_pointer)(void *) = free;
  free(blocks[0]);
  by_pointer(blocks[1]);
  delete (NAME(node) *)blocks[2];
  delete[](int *) blocks[3];
  delete (NAME(shape) *)blocks[4];
  free(blocks[5]);
#ifdef __cpp_aligned_new
  delete (NAME(line) *)blocks[6];
  delete[](NAME(line) *) blocks[7];
  delete (NAME(page) *)blocks[8];
#else
  for (int i = 6; i < 9; i++)
    free(blocks[i]);
#endif
#ifdef __CUDACC_RTC__
  free(blocks[9]);
#else
  std::free(blocks[9]);
#endif
}

/* Many sites, of which none is to have a copy of the heap's quick way: SITES says how many. */
#ifdef SITES
#define SITE4(i) SITE(i) SITE(i + 1) SITE(i + 2) SITE(i + 3)
#define SITE(i)                                                                                                        \
  if (sizes[i] != i)                                                                                                   \
    blocks[i * blockDim.x + threadIdx.x] = malloc(sizes[i]);
extern "C" __global__ void sites_kernel(void **blocks, const int *sizes) {
  SITE(0)
#if SITES > 1
  SITE4(1) SITE4(5) SITE4(9) SITE(13) SITE(14) SITE(15)
#endif
}
#endif

#ifndef __CUDACC_RTC__
int NAME(host)() {
  NAME(node) *one = new NAME(node)(1);
  void *blocks[] = {malloc(sizeof(int)), std::malloc(10), std::calloc(1, 2)};
  void (*by_pointer)(void *) = std::free;
  int value = one->value;
  free(blocks[0]);
  std::free(blocks[1]);
  by_pointer(blocks[2]);
  delete one;
  members pool = {0};
  pool.free(pool.malloc(8));
#if !MAM_HEAP_RECORDED
  pool.free(pool.malloc(8, 1));
#endif
  return pool.taken == 0 ? value : 0;
}
#undef malloc
#ifndef SECOND
void *members::malloc(unsigned long bytes, int zeroed) {
  taken++;
  return bytes == 8 && zeroed <= 1 ? this : nullptr;
}
#endif
#endif

#ifdef MAIN
int host_second();
int main() { return host() + host_second() == 2 ? 0 : 1; }
#endif
