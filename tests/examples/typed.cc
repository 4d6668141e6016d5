/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Typed pointers, and no call that creates a pool: the first allocation creates it, and the last free ends it.
 *
 * prints: 1000 floats at 0x[0-9a-f]*
 */
#include <cstdio>
#include <mam.h>
#include <memory>

struct Release {
  void operator()(void *block) const { MAM_CudaFree(block); }
};

int main() {
  float *values = nullptr;
  if (MAM_CudaMalloc(&values, 1000 * sizeof *values) != cudaSuccess) {
    std::fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  std::unique_ptr<float[], Release> owner(values);
  std::printf("1000 floats at %p\n", static_cast<void *>(owner.get()));
  /* copies and kernels use the values here */
}
