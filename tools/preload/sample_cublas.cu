// SPDX-License-Identifier: BSD-2-Clause
// Matrix products by cuBLAS, which allocates by a CUDA runtime of its own, beside the program's.
// usage: sample_cublas [ROUNDS]
// Prints a sum, and last a line "time ... ms" as samples.cu does.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime.h>

static void check(int error, const char *what) {
  if (error == 0)
    return;
  std::printf("FAIL: %s answered %d\n", what, error);
  std::exit(1);
}

#define CHECK(call) check((int)(call), #call)

// Each round makes a handle, because cuBLAS allocates the handle's workspace.
static double product_round(int round) {
  int width = 128 * (round % 4 + 1);
  size_t bytes = sizeof(float) * width * width;
  std::vector<float> host((size_t)width * width);
  for (size_t i = 0; i < host.size(); i++)
    host[i] = (float)((i * 7 + round) % 13);
  float *a = nullptr, *c = nullptr, one = 1, zero = 0;
  cublasHandle_t handle = nullptr;
  CHECK(cublasCreate(&handle));
  CHECK(cudaMalloc(&a, bytes));
  CHECK(cudaMalloc(&c, bytes));
  CHECK(cudaMemcpy(a, host.data(), bytes, cudaMemcpyHostToDevice));
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, width, width, width, &one, a, width, a, width, &zero, c, width));
  CHECK(cudaMemcpy(host.data(), c, bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(a));
  CHECK(cudaFree(c));
  CHECK(cublasDestroy(handle));
  double sum = 0;
  for (float value : host)
    sum += value;
  return sum; // exact: all are whole numbers below 2^24
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 100, count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    return std::puts("SKIP: no CUDA device"), 77;
  double sum = product_round(0);
  auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < rounds; i++)
    sum += product_round(i);
  double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  std::printf("%d rounds %.0f\ntime %.4f ms\n", rounds, sum, ms / (rounds - 1));
  return 0;
}
