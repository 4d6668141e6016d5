/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A kernel that keeps the GPU busy for a given time and touches no memory, on a stream of its own that the default
 * stream does not wait for.  Compiled by the driver from PTX, so that no CUDA compiler is needed.
 *
 * Every function but kernel_close records the driver's error when it returns false.  Knows nothing of allocators.
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

/* Whether the driver has what this needs. */
bool kernel_possible(const struct machine *machine);

/* Loads the kernel into the current context and runs it once, so that a later start does neither wait nor allocate.
 * kernel_close follows in any case. */
bool kernel_open(struct kernel *kernel, const struct machine *machine);

/* Starts it: from now on it runs for so long, in wall time of the GPU. */
bool kernel_start(const struct kernel *kernel, unsigned milliseconds);

/* Writes whether it still runs. */
bool kernel_runs(const struct kernel *kernel, bool *runs);

/* Waits for its end. */
bool kernel_wait(const struct kernel *kernel);

void kernel_close(struct kernel *kernel);

#endif
