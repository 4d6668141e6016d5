// SPDX-License-Identifier: BSD-2-Clause
// Small programs as users write them: plain cudaMalloc and cudaFree around some work, built by plain nvcc.
// usage: samples vector|matrix|reduce|streams|pitch|overrun [ROUNDS]
// Prints sums of what was computed, which do not depend on the order of threads.  The last line is "time ... ms": the
// mean of all rounds after the first one, allocations included.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call) check((call), #call, __LINE__)

static void check(cudaError_t error, const char *call, int line) {
  if (error == cudaSuccess)
    return;
  std::printf("FAIL: line %d: %s: %s\n", line, call, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T> static T *device_new(size_t count) {
  T *block = nullptr;
  CHECK(cudaMalloc(&block, count * sizeof(T)));
  return block;
}

static unsigned blocks_for(size_t count) { return (unsigned)((count + 255) / 256); }

__global__ void ramp_kernel(float *out, size_t count, float step) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < count)
    out[i] = step * (float)(i % 1024);
}

__global__ void add_kernel(const float *a, const float *b, float *out, size_t count) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < count)
    out[i] = a[i] + b[i];
}

__global__ void sum_kernel(const float *in, size_t count, unsigned long long *sum) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < count)
    atomicAdd(sum, (unsigned long long)in[i]);
}

static unsigned long long sum_of(const float *in, size_t count) {
  auto *sum = device_new<unsigned long long>(1);
  unsigned long long result = 0;
  CHECK(cudaMemset(sum, 0, sizeof *sum));
  sum_kernel<<<blocks_for(count), 256>>>(in, count, sum);
  CHECK(cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(sum));
  return result;
}

// ---- Vectors: three blocks of another size each round ----

static unsigned long long vector_round(int round) {
  size_t count = (size_t)(round % 7 + 1) * 100000;
  float *a = device_new<float>(count), *b = device_new<float>(count), *c = device_new<float>(count);
  ramp_kernel<<<blocks_for(count), 256>>>(a, count, 1.0f);
  ramp_kernel<<<blocks_for(count), 256>>>(b, count, 2.0f);
  add_kernel<<<blocks_for(count), 256>>>(a, b, c, count);
  unsigned long long sum = sum_of(c, count);
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  CHECK(cudaFree(c));
  return sum;
}

// ---- Matrices: C = A B by tiles ----

constexpr int TILE = 16;

__global__ void product_kernel(const float *a, const float *b, float *c, int width) {
  __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < width; k += TILE) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * width + k + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * width + column];
    __syncthreads();
    for (int i = 0; i < TILE; i++)
      sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  c[row * width + column] = sum;
}

static unsigned long long matrix_round(int round) {
  int width = 256 + 64 * (round % 4);
  size_t count = (size_t)width * width;
  float *a = device_new<float>(count), *b = device_new<float>(count), *c = device_new<float>(count);
  ramp_kernel<<<blocks_for(count), 256>>>(a, count, 0.25f);
  ramp_kernel<<<blocks_for(count), 256>>>(b, count, 0.5f);
  product_kernel<<<dim3(width / TILE, width / TILE), dim3(TILE, TILE)>>>(a, b, c, width);
  unsigned long long sum = sum_of(c, count);
  CHECK(cudaFree(c));
  CHECK(cudaFree(b));
  CHECK(cudaFree(a));
  return sum;
}

// ---- A reduction in steps, each with a block for its result ----

__global__ void fold_kernel(const unsigned long long *in, unsigned long long *out, size_t count) {
  __shared__ unsigned long long part[256];
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < count ? in[i] : 0;
  __syncthreads();
  for (unsigned half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half)
      part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0)
    out[blockIdx.x] = part[0];
}

static unsigned long long reduce_round(int round) {
  size_t count = (size_t)1 << (16 + round % 5);
  std::vector<unsigned long long> numbers(count);
  for (size_t i = 0; i < count; i++)
    numbers[i] = i * 2654435761u + (unsigned)round;
  auto *in = device_new<unsigned long long>(count);
  CHECK(cudaMemcpy(in, numbers.data(), count * sizeof numbers[0], cudaMemcpyHostToDevice));
  while (count > 1) {
    size_t next = blocks_for(count);
    auto *out = device_new<unsigned long long>(next);
    fold_kernel<<<(unsigned)next, 256>>>(in, out, count);
    CHECK(cudaFree(in));
    in = out;
    count = next;
  }
  unsigned long long sum = 0;
  CHECK(cudaMemcpy(&sum, in, sizeof sum, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(in));
  return sum;
}

// ---- Several streams, blocks freed while work of other streams runs ----

constexpr int STREAMS = 4;

static unsigned long long streams_round(int round) {
  cudaStream_t streams[STREAMS];
  float *a[STREAMS], *b[STREAMS], *host = nullptr;
  size_t count = (size_t)200000 + 1000 * (round % 3);
  unsigned long long sum = 0;
  CHECK(cudaMallocHost(&host, STREAMS * count * sizeof(float)));
  for (int i = 0; i < STREAMS; i++) {
    CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    a[i] = device_new<float>(count);
    b[i] = device_new<float>(count);
    ramp_kernel<<<blocks_for(count), 256, 0, streams[i]>>>(a[i], count, (float)(i + 1));
    add_kernel<<<blocks_for(count), 256, 0, streams[i]>>>(a[i], a[i], b[i], count);
    CHECK(cudaMemcpyAsync(host + i * count, b[i], count * sizeof(float), cudaMemcpyDeviceToHost, streams[i]));
    CHECK(cudaFree(a[i])); // kernels that read it may still run
  }
  for (int i = 0; i < STREAMS; i++) {
    CHECK(cudaStreamSynchronize(streams[i]));
    CHECK(cudaFree(b[i]));
    CHECK(cudaStreamDestroy(streams[i]));
  }
  for (size_t i = 0; i < STREAMS * count; i++)
    sum += (unsigned long long)host[i];
  CHECK(cudaFreeHost(host));
  return sum;
}

// ---- Pitched memory, arrays, textures ----

__global__ void texture_kernel(cudaTextureObject_t texture, float *out, size_t pitch, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x < width && y < height)
    ((float *)((char *)out + y * pitch))[x] = 2 * tex2D<float>(texture, x + 0.5f, y + 0.5f);
}

static cudaTextureObject_t texture_of(cudaArray_t array) {
  cudaResourceDesc resource = {};
  cudaTextureDesc description = {};
  cudaTextureObject_t texture = 0;
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  return texture;
}

static unsigned long long pitch_round(int round) {
  int width = 333 + round % 50, height = 200;
  std::vector<float> image((size_t)width * height);
  for (size_t i = 0; i < image.size(); i++)
    image[i] = (float)(i % 512);
  size_t row = width * sizeof(float), in_pitch = 0, out_pitch = 0;
  float *in = nullptr, *out = nullptr;
  cudaArray_t array = nullptr;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  CHECK(cudaMallocPitch(&in, &in_pitch, row, height));
  CHECK(cudaMallocPitch(&out, &out_pitch, row, height));
  CHECK(cudaMallocArray(&array, &format, width, height));
  CHECK(cudaMemcpy2D(in, in_pitch, image.data(), row, row, height, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2DToArray(array, 0, 0, in, in_pitch, row, height, cudaMemcpyDeviceToDevice));
  cudaTextureObject_t texture = texture_of(array);
  texture_kernel<<<dim3((width + 63) / 64, height), 64>>>(texture, out, out_pitch, width, height);
  CHECK(cudaMemcpy2D(image.data(), row, out, out_pitch, row, height, cudaMemcpyDeviceToHost));
  CHECK(cudaDestroyTextureObject(texture));
  CHECK(cudaFreeArray(array));
  CHECK(cudaFree(in));
  CHECK(cudaFree(out));
  unsigned long long sum = in_pitch + out_pitch;
  for (float value : image)
    sum += (unsigned long long)value;
  return sum;
}

// ---- A mistake for compute-sanitizer to find: writes behind the end of a block ----

static unsigned long long overrun_round(int round) {
  size_t count = 1000;
  float *a = device_new<float>(count), *b = device_new<float>(count);
  ramp_kernel<<<blocks_for(count), 256>>>(a, count + 1, 1.0f);
  ramp_kernel<<<blocks_for(count), 256>>>(b, count, 1.0f);
  unsigned long long sum = sum_of(a, count) + (unsigned)round;
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  return sum;
}

// --------------------------------------------------------------------------------------------------------------------

static const struct {
  const char *name;
  unsigned long long (*round)(int round);
} samples[] = {{"vector", vector_round},   {"matrix", matrix_round}, {"reduce", reduce_round},
               {"streams", streams_round}, {"pitch", pitch_round},   {"overrun", overrun_round}};

static int run(unsigned long long (*round)(int round), int rounds) {
  unsigned long long sum = round(0), mixed = sum;
  std::printf("first %llu\n", sum);
  auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < rounds; i++)
    mixed = mixed * 31 + round(i);
  double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  CHECK(cudaDeviceSynchronize());
  std::printf("%d rounds %llx\ntime %.4f ms\n", rounds, mixed, ms / (rounds - 1));
  return 0;
}

int main(int argc, char **argv) {
  int rounds = argc > 2 ? std::atoi(argv[2]) : 200, count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    return std::puts("SKIP: no CUDA device"), 77;
  for (const auto &sample : samples)
    if (argc > 1 && rounds > 1 && std::strcmp(sample.name, argv[1]) == 0)
      return run(sample.round, rounds);
  std::fprintf(stderr, "usage: samples vector|matrix|reduce|streams|pitch|overrun [ROUNDS]\n");
  return 2;
}
