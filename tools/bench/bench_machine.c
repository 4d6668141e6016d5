/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_machine.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static bool machine_open(struct machine *machine, const struct driver *driver) {
  CUdevice device;
  CUresult result = driver->cuDeviceGet(&device, 0);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuDeviceGet") == cudaSuccess;
  result = driver->cuDevicePrimaryCtxRetain(&machine->context, device);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuDevicePrimaryCtxRetain") == cudaSuccess;
  result = driver->cuCtxSetCurrent(machine->context);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxSetCurrent") == cudaSuccess;
  if (driver->cuDeviceGetName == NULL ||
      driver->cuDeviceGetName(machine->device, (int)sizeof machine->device, device) != CUDA_SUCCESS)
    (void)snprintf(machine->device, sizeof machine->device, "unnamed GPU");
  if (driver->cuDriverGetVersion == NULL || driver->cuDriverGetVersion(&machine->driver_version) != CUDA_SUCCESS)
    machine->driver_version = 0;
  return true;
}

bool machine_probe(struct machine *machine) {
  const struct driver *driver = NULL;
  *machine = (struct machine){.device = "host memory"};
  if (driver_get(&driver) == cudaSuccess && machine_open(machine, driver)) {
    machine->driver = driver;
    return true;
  }
  (void)snprintf(machine->reason, sizeof machine->reason, "%s", error_last());
  return false;
}

bool machine_thread_begin(const struct machine *machine) {
  if (machine->driver == NULL)
    return true;
  CUresult result = machine->driver->cuCtxSetCurrent(machine->context);
  return result == CUDA_SUCCESS || driver_error(machine->driver, result, "cuCtxSetCurrent") == cudaSuccess;
}

bool machine_free_bytes(const struct machine *machine, size_t *bytes) {
  if (machine->driver == NULL)
    return false;
  size_t free_bytes = 0, total_bytes = 0;
  CUresult result = machine->driver->cuMemGetInfo(&free_bytes, &total_bytes);
  if (result != CUDA_SUCCESS)
    return driver_error(machine->driver, result, "cuMemGetInfo") == cudaSuccess;
  *bytes = free_bytes;
  return true;
}
