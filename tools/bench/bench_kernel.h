/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A kernel that keeps the GPU busy for a given time and touches no memory, on a stream that the default stream does not
 * wait for.  The driver compiles it from PTX, so that no CUDA compiler is needed.
 *
 * A function that returns false, other than kernel_close, has recorded the driver's error.  This file knows no
 * allocator.
 */
#ifndef MAM_BENCH_KERNEL_H
#define MAM_BENCH_KERNEL_H

#include <stdbool.h>

#include "bench_machine.h"

struct kernel {
  const struct driver *driver;
  CUstream stream;
  CUmodule module;
  CUfunction function;
};

/* Whether the driver has the functions for this. */
bool kernel_possible(const struct machine *machine);

/* Loads the kernel into the current context and runs it once, so that a later start neither waits nor allocates.  Call
 * kernel_close in any case. */
bool kernel_open(struct kernel *kernel, const struct machine *machine);

/* Starts the kernel, which runs for so long by the GPU's wall clock. */
bool kernel_start(const struct kernel *kernel, unsigned milliseconds);

/* Writes whether the kernel still runs. */
bool kernel_runs(const struct kernel *kernel, bool *runs);

/* Waits until the kernel has ended. */
bool kernel_wait(const struct kernel *kernel);

void kernel_close(struct kernel *kernel);

#endif
