/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels that call malloc, free, new and delete get a device heap; their text stays as it is. */
#include <mam/replace.cuh>
#include <stdio.h>

__global__ void kernel() {
  int *row = (int *)malloc(100 * sizeof(int));
  if (row != NULL)
    row[threadIdx.x] = 1;
  free(row);
}

int main() {
  if (mam_replace_create((size_t)128 << 20) != cudaSuccess) { /* where the program set cudaLimitMallocHeapSize */
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  kernel<<<100, 100>>>();
  cudaError_t error = cudaDeviceSynchronize();
  return mam_replace_destroy() == cudaSuccess && error == cudaSuccess ? 0 : 1;
}
