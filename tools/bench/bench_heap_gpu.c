/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_heap_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { block_threads = 256, scratch_bytes = 4096, attribute_clock_khz = 13, limit_malloc_heap = 2 };

bool gpu_accept(const struct heap_gpu *gpu, CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return true;
  (void)driver_error(gpu->driver, result, what);
  (void)fprintf(stderr, "mam-bench: heap: %s\n", error_last());
  return false;
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

const struct heap_image *gpu_image(const char *name) {
  for (size_t i = 0; i < heap_image_count; i++)
    if (strcmp(heap_images[i].name, name) == 0)
      return &heap_images[i];
  return NULL;
}

bool gpu_module_open(const struct heap_gpu *gpu, const char *name, CUmodule *module) {
  const struct heap_image *image = gpu_image(name);
  if (image == NULL) {
    (void)fprintf(stderr, "mam-bench: heap: this program was built without the kernels %s\n", name);
    return false;
  }
  return gpu_accept(gpu, gpu->driver->cuModuleLoadData(module, image->bytes), "cuModuleLoadData");
}

bool gpu_function(const struct heap_gpu *gpu, CUmodule module, const char *name, CUfunction *function) {
  return gpu_accept(gpu, gpu->driver->cuModuleGetFunction(function, module, name), name);
}

static bool blocks_module_open(struct heap_gpu *gpu) {
  const struct {
    const char *name;
    CUfunction *function;
  } kernels[] = {
      {"heap_nothing", &gpu->nothing},
      {"heap_plain", &gpu->plain},
      {"heap_mark", &gpu->mark},
      {"heap_check", &gpu->check},
      {"heap_count", &gpu->count},
      {"heap_write_by_thread", &gpu->write_by_thread},
      {"heap_read_by_thread", &gpu->read_by_thread},
      {"heap_write_by_warp", &gpu->write_by_warp},
      {"heap_read_by_warp", &gpu->read_by_warp},
      {"heap_touch_timed", &gpu->touch},
  };
  bool good = gpu_module_open(gpu, "blocks", &gpu->blocks);
  for (size_t i = 0; good && i < sizeof kernels / sizeof kernels[0]; i++)
    good = gpu_function(gpu, gpu->blocks, kernels[i].name, kernels[i].function);
  return good;
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

static bool arrays_open(struct heap_gpu *gpu) {
  const struct driver *driver = gpu->driver;
  gpu->host_cycles = malloc(gpu->requests_most * sizeof *gpu->host_cycles);
  if (gpu->host_cycles == NULL) {
    (void)fputs("mam-bench: heap: no host memory\n", stderr);
    return false;
  }
  return gpu_accept(gpu, driver->cuMemAlloc(&gpu->slots, gpu->requests_most * sizeof(heap_word)), "cuMemAlloc") &&
         gpu_accept(gpu, driver->cuMemAlloc(&gpu->sizes, gpu->requests_most * sizeof(unsigned)), "cuMemAlloc") &&
         gpu_accept(gpu, driver->cuMemAlloc(&gpu->cycles, gpu->requests_most * sizeof(unsigned)), "cuMemAlloc") &&
         gpu_accept(gpu, driver->cuMemAlloc(&gpu->scratch, scratch_bytes), "cuMemAlloc");
}

bool gpu_open(struct heap_gpu *gpu, const struct machine *machine, size_t requests_most) {
  int khz = 0;
  CUdevice device;
  *gpu = (struct heap_gpu){.driver = machine->driver, .requests_most = requests_most};
  if (!gpu_accept(gpu, gpu->driver->cuCtxGetDevice(&device), "cuCtxGetDevice") ||
      !gpu_accept(gpu, gpu->driver->cuDeviceGetAttribute(&khz, attribute_clock_khz, device), "cuDeviceGetAttribute"))
    return false;
  gpu->clock_mhz = khz / 1e3;
  return gpu_accept(gpu, gpu->driver->cuEventCreate(&gpu->begin, 0), "cuEventCreate") &&
         gpu_accept(gpu, gpu->driver->cuEventCreate(&gpu->end, 0), "cuEventCreate") && blocks_module_open(gpu) &&
         arrays_open(gpu);
}

/* Errors are ignored: the work of what ends here is done. */
void gpu_close(struct heap_gpu *gpu) {
  const CUdeviceptr arrays[] = {gpu->slots, gpu->sizes, gpu->cycles, gpu->scratch};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
    if (arrays[i] != 0)
      (void)gpu->driver->cuMemFree(arrays[i]);
  if (gpu->blocks != NULL)
    (void)gpu->driver->cuModuleUnload(gpu->blocks);
  if (gpu->begin != NULL)
    (void)gpu->driver->cuEventDestroy(gpu->begin);
  if (gpu->end != NULL)
    (void)gpu->driver->cuEventDestroy(gpu->end);
  free(gpu->host_cycles);
  *gpu = (struct heap_gpu){0};
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

bool gpu_start(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters) {
  unsigned blocks = (unsigned)((threads + block_threads - 1) / block_threads);
  return gpu_accept(gpu,
                    gpu->driver->cuLaunchKernel(function, blocks, 1, 1, block_threads, 1, 1, 0, NULL, parameters, NULL),
                    "cuLaunchKernel");
}

bool gpu_run(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters) {
  return gpu_start(gpu, function, threads, parameters) &&
         gpu_accept(gpu, gpu->driver->cuStreamSynchronize(NULL), "cuStreamSynchronize");
}

bool gpu_time(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters, double *us) {
  const struct driver *driver = gpu->driver;
  float milliseconds = 0;
  if (!gpu_accept(gpu, driver->cuEventRecord(gpu->begin, NULL), "cuEventRecord") ||
      !gpu_start(gpu, function, threads, parameters) ||
      !gpu_accept(gpu, driver->cuEventRecord(gpu->end, NULL), "cuEventRecord") ||
      !gpu_accept(gpu, driver->cuEventSynchronize(gpu->end), "cuEventSynchronize") ||
      !gpu_accept(gpu, driver->cuEventElapsedTime(&milliseconds, gpu->begin, gpu->end), "cuEventElapsedTime"))
    return false;
  *us = (double)milliseconds * 1e3;
  return true;
}

bool gpu_read(const struct heap_gpu *gpu, void *to, CUdeviceptr from, size_t bytes) {
  return gpu_accept(gpu, gpu->driver->cuMemcpyDtoH(to, from, bytes), "cuMemcpyDtoH");
}

bool gpu_clear(const struct heap_gpu *gpu, CUdeviceptr address, size_t bytes) {
  return gpu_accept(gpu, gpu->driver->cuMemsetD8Async(address, 0, bytes, NULL), "cuMemsetD8Async");
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

size_t gpu_work_threads(const struct heap_work *work) { return (size_t)work->count << work->every_shift; }

bool gpu_blocks_check(const struct heap_gpu *gpu, const struct heap_work *work, heap_word low, heap_word high,
                      struct heap_faults *faults) {
  struct heap_work parameter = *work;
  unsigned width = work->high >= 4096 ? heap_width_wide : 1;
  CUdeviceptr counts = gpu->scratch;
  void *mark[] = {&parameter, &width, &low, &high}, *check[] = {&parameter, &width, &low, &high, &counts};
  size_t threads = (size_t)work->count * width;
  return gpu_clear(gpu, counts, sizeof *faults) && gpu_run(gpu, gpu->mark, threads, mark) &&
         gpu_run(gpu, gpu->check, threads, check) && gpu_read(gpu, faults, counts, sizeof *faults);
}

bool gpu_blocks_count(const struct heap_gpu *gpu, const struct heap_work *work, struct heap_inside *inside) {
  struct heap_work parameter = *work;
  CUdeviceptr counts = gpu->scratch;
  void *parameters[] = {&parameter, &counts};
  return gpu_clear(gpu, counts, sizeof *inside) && gpu_run(gpu, gpu->count, (size_t)work->count, parameters) &&
         gpu_read(gpu, inside, counts, sizeof *inside);
}

/* ---- Cycles ------------------------------------------------------------------------------------------------------ */

static struct gpu_cycles cycles_of_kind(const unsigned *cycles, size_t count, unsigned kind) {
  struct gpu_cycles sum = {0};
  double squares = 0;
  for (size_t i = 0; i < count; i++) {
    double value = cycles[i] & heap_cycles_most;
    if (cycles[i] == 0 || (cycles[i] & ~(unsigned)heap_cycles_most) != kind)
      continue;
    sum.count++;
    sum.mean += value;
    squares += value * value;
    sum.most = value > sum.most ? value : sum.most;
  }
  if (sum.count == 0)
    return (struct gpu_cycles){0, (double)NAN, (double)NAN, (double)NAN};
  sum.mean /= (double)sum.count;
  double variance = squares / (double)sum.count - sum.mean * sum.mean;
  sum.variation = variance > 0 ? sqrt(variance) / sum.mean : 0;
  return sum;
}

bool gpu_cycles_sum(const struct heap_gpu *gpu, const struct heap_work *work, const unsigned *kinds, size_t kind_count,
                    struct gpu_cycles *sums) {
  size_t count = (size_t)work->count;
  if (!gpu_read(gpu, gpu->host_cycles, gpu->cycles, count * sizeof *gpu->host_cycles))
    return false;
  for (size_t i = 0; i < kind_count; i++)
    sums[i] = cycles_of_kind(gpu->host_cycles, count, kinds[i]);
  return true;
}
