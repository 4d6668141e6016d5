/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_kernel.h"

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* One thread reads the time until it is up.  A second limit, in cycles, ends it if the clock stands still. */
static const char ptx[] = ".version 6.3\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry mam_bench_spin(.param .u64 limit_ns, .param .u64 limit_cycles)\n"
                          "{\n"
                          "  .reg .pred %late;\n"
                          "  .reg .u64 %limit_ns, %limit_cycles, %start_ns, %start_cycles, %now;\n"
                          "  ld.param.u64 %limit_ns, [limit_ns];\n"
                          "  ld.param.u64 %limit_cycles, [limit_cycles];\n"
                          "  mov.u64 %start_ns, %globaltimer;\n"
                          "  mov.u64 %start_cycles, %clock64;\n"
                          "again:\n"
                          "  nanosleep.u32 1000;\n"
                          "  mov.u64 %now, %clock64;\n"
                          "  sub.u64 %now, %now, %start_cycles;\n"
                          "  setp.ge.u64 %late, %now, %limit_cycles;\n"
                          "  @%late bra done;\n"
                          "  mov.u64 %now, %globaltimer;\n"
                          "  sub.u64 %now, %now, %start_ns;\n"
                          "  setp.lt.u64 %late, %now, %limit_ns;\n"
                          "  @%late bra again;\n"
                          "done:\n"
                          "  ret;\n"
                          "}\n";

static const uint64_t cycles_per_ms_most = 4000000; /* more than any such GPU has */

static bool accept(const struct kernel *kernel, CUresult result, const char *what) {
  return result == CUDA_SUCCESS || driver_error(kernel->driver, result, what) == cudaSuccess;
}

bool kernel_possible(const struct machine *machine) {
  const struct driver *driver = machine->driver;
  return driver != NULL && driver->cuStreamCreate != NULL && driver->cuStreamDestroy != NULL &&
         driver->cuStreamQuery != NULL && driver->cuStreamSynchronize != NULL && driver->cuModuleLoadData != NULL &&
         driver->cuModuleUnload != NULL && driver->cuModuleGetFunction != NULL && driver->cuLaunchKernel != NULL;
}

bool kernel_open(struct kernel *kernel, const struct machine *machine) {
  const struct driver *driver = machine->driver;
  *kernel = (struct kernel){.driver = driver};
  return accept(kernel, driver->cuStreamCreate(&kernel->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate") &&
         accept(kernel, driver->cuModuleLoadData(&kernel->module, ptx), "cuModuleLoadData") &&
         accept(kernel, driver->cuModuleGetFunction(&kernel->function, kernel->module, "mam_bench_spin"),
                "cuModuleGetFunction") &&
         kernel_start(kernel, 0) && kernel_wait(kernel);
}

bool kernel_start(const struct kernel *kernel, unsigned milliseconds) {
  uint64_t limit_ns = milliseconds * (uint64_t)1000000, limit_cycles = milliseconds * cycles_per_ms_most;
  void *parameters[] = {&limit_ns, &limit_cycles};
  return accept(kernel,
                kernel->driver->cuLaunchKernel(kernel->function, 1, 1, 1, 1, 1, 1, 0, kernel->stream, parameters, NULL),
                "cuLaunchKernel");
}

bool kernel_runs(const struct kernel *kernel, bool *runs) {
  CUresult result = kernel->driver->cuStreamQuery(kernel->stream);
  *runs = result == CUDA_ERROR_NOT_READY;
  return *runs || accept(kernel, result, "cuStreamQuery");
}

bool kernel_wait(const struct kernel *kernel) {
  return accept(kernel, kernel->driver->cuStreamSynchronize(kernel->stream), "cuStreamSynchronize");
}

/* Errors are ignored: the stream and the module have done their work. */
void kernel_close(struct kernel *kernel) {
  if (kernel->module != NULL)
    (void)kernel->driver->cuModuleUnload(kernel->module);
  if (kernel->stream != NULL)
    (void)kernel->driver->cuStreamDestroy(kernel->stream);
  *kernel = (struct kernel){0};
}
