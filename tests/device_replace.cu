// SPDX-License-Identifier: BSD-2-Clause
// What the test of mam/replace.cuh compiles: a kernel that was written without a thought of libmam, and host code
// beside it that has the same calls.  SECOND makes it another file of the same program.
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

#ifndef __CUDACC_RTC__
int NAME(host)() {
  NAME(node) *one = new NAME(node)(1);
  int *numbers = (int *)malloc(sizeof(int));
  int value = one->value;
  free(numbers);
  delete one;
  return value;
}
#endif

#ifdef MAIN
int host_second();
int main() { return host() + host_second() == 2 ? 0 : 1; }
#endif
