/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The GPU as `mam-bench heap` uses it: modules of the embedded images, launches with their time, the arrays for the
 * requests of a kernel, and the kernels that know only blocks.
 *
 * A function that returns false has said on stderr what failed.  This file knows no allocator.
 */
#ifndef MAM_BENCH_HEAP_GPU_H
#define MAM_BENCH_HEAP_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "bench_machine.h"
#include "kernels/work.h"

/* An image of kernels that the CUDA compiler made when mam-bench was built. */
struct heap_image {
  const char *name;
  const unsigned char *bytes;
};

/* All of them.  Without a CUDA compiler there are none, and heap_image_count is 0. */
extern const struct heap_image heap_images[];
extern const size_t heap_image_count;

struct heap_gpu {
  const struct driver *driver;
  CUmodule blocks;
  CUfunction nothing, plain, mark, check, count, write_by_thread, read_by_thread, write_by_warp, read_by_warp, touch;
  CUevent begin, end;
  CUdeviceptr slots, sizes, cycles, scratch;
  size_t requests_most;  /* slots, sizes and cycles have room for so many */
  unsigned *host_cycles; /* as many */
  double clock_mhz;      /* cycles in a microsecond */
};

/* Loads the kernels that know only blocks and allocates the arrays.  Call gpu_close in any case. */
bool gpu_open(struct heap_gpu *gpu, const struct machine *machine, size_t requests_most);
void gpu_close(struct heap_gpu *gpu);

bool gpu_accept(const struct heap_gpu *gpu, CUresult result, const char *what);

/* The embedded image of that name; NULL if this program was built without it. */
const struct heap_image *gpu_image(const char *name);
bool gpu_module_open(const struct heap_gpu *gpu, const char *image, CUmodule *module);
bool gpu_function(const struct heap_gpu *gpu, CUmodule module, const char *name, CUfunction *function);

/* Starts a kernel on at least so many threads, with one parameter for each pointer of the array. */
bool gpu_start(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters);
/* The same, and waits until it has ended. */
bool gpu_run(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters);
/* The same; writes the microseconds from before the launch to the kernel's end, by the GPU's clock. */
bool gpu_time(const struct heap_gpu *gpu, CUfunction function, size_t threads, void **parameters, double *us);

bool gpu_read(const struct heap_gpu *gpu, void *to, CUdeviceptr from, size_t bytes);
bool gpu_clear(const struct heap_gpu *gpu, CUdeviceptr address, size_t bytes);

/* How many threads of the work have a request. */
size_t gpu_work_threads(const struct heap_work *work);

/* Checks that work's blocks lie in [low, high), are aligned and do not overlap.  It writes to every block. */
bool gpu_blocks_check(const struct heap_gpu *gpu, const struct heap_work *work, heap_word low, heap_word high,
                      struct heap_faults *faults);

/* Counts the requests of work that have a block, and the bytes that these asked for. */
bool gpu_blocks_count(const struct heap_gpu *gpu, const struct heap_work *work, struct heap_inside *inside);

/* Mean, coefficient of variation and maximum of cycles, of the calls of one kind. */
struct gpu_cycles {
  size_t count;
  double mean, variation, most;
};

/* Reads work's cycles and sums up those of one kind: 0, heap_cycles_free or heap_cycles_failed. */
bool gpu_cycles_sum(const struct heap_gpu *gpu, const struct heap_work *work, const unsigned *kinds, size_t kind_count,
                    struct gpu_cycles *sums);

#endif
