/* SPDX-License-Identifier: BSD-2-Clause */
/* What stands in for the kernels of `mam-bench heap` where there was no CUDA compiler. */
#include "bench_heap_gpu.h"

const struct heap_image heap_images[] = {{NULL, NULL}};
const size_t heap_image_count = 0;
