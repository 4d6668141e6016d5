/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the measurements run on: the first GPU with its primary context, or none and why.
 *
 * It looks at the machine without the library under test.  It knows no allocator.
 */
#ifndef MAM_BENCH_MACHINE_H
#define MAM_BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/driver.h"

struct machine {
  const struct driver *driver; /* NULL: there is no GPU */
  CUcontext context;           /* the primary context, retained until the process ends */
  char device[128];            /* the GPU's name; "host memory" without one */
  int driver_version;          /* as CUDA counts: 13.0 is 13000; 0 without a GPU */
  char reason[256];            /* why there is no GPU */
};

/* Fills *machine and makes the context current in this thread.  If there is no usable GPU, it returns false and gives
 * the reason. */
bool machine_probe(struct machine *machine);

/* Makes the context current in a new thread, as in a program's own threads.  If the driver refuses, it returns false
 * and records the error. */
bool machine_thread_begin(const struct machine *machine);

/* Writes the free memory by cuMemGetInfo.  False without a GPU, or if the driver refuses; then the error is
 * recorded. */
bool machine_free_bytes(const struct machine *machine, size_t *bytes);

#endif
