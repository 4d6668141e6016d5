/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/source.h"

#include "base/error.h"

cudaError_t source_open(MAM_Source kind, CUcontext handle, int ordinal, struct source *source) {
  static const struct source_operations *const operations[] = {
      [MAM_SOURCE_DEVICE] = &source_device,   [MAM_SOURCE_PINNED] = &source_pinned,
      [MAM_SOURCE_MANAGED] = &source_managed, [MAM_SOURCE_HOST] = &source_host,
      [MAM_SOURCE_VMM] = &source_vmm,
  };
  struct source opened = {.operations = operations[kind]};
  if (kind != MAM_SOURCE_HOST) {
    const struct driver *driver;
    cudaError_t error = driver_get(&driver);
    if (error == cudaSuccess)
      error = handle != NULL ? context_open_handle(driver, handle, &opened.context)
              : ordinal >= 0 ? context_open_device(driver, ordinal, &opened.context)
                             : context_open_current(driver, &opened.context);
    if (error != cudaSuccess)
      return error;
  }
  if (kind == MAM_SOURCE_VMM) {
    cudaError_t error = source_vmm_open(&opened);
    if (error != cudaSuccess) {
      source_close(&opened);
      return error;
    }
  }
  *source = opened;
  return cudaSuccess;
}

void source_close(struct source *source) {
  if (source->context.driver != NULL)
    context_release(&source->context);
}

cudaError_t source_take_largest(const struct source *source, size_t headroom_bytes, size_t limit_bytes, uintptr_t *base,
                                size_t *bytes) {
  size_t available;
  cudaError_t error = source->operations->available(source, &available);
  if (error != cudaSuccess)
    return error;
  /* With little left, the headroom is half of it rather than all. */
  size_t wanted = available - (available / 2 < headroom_bytes ? available / 2 : headroom_bytes);
  if (wanted > limit_bytes)
    wanted = limit_bytes;
  /* What is available may lie in pieces, and others take meanwhile: try a sixteenth less each time, down to the
   * smallest chunk.  From 1 TiB that is about 200 tries of microseconds. */
  for (;;) {
    wanted -= wanted % SOURCE_GRANULARITY_BYTES;
    if (wanted == 0)
      return error_set(cudaErrorMemoryAllocation, "the %s source has no chunk left: %zu bytes available",
                       source->operations->name, available);
    error = source->operations->chunk_take(source, wanted, base);
    if (error != cudaErrorMemoryAllocation)
      break;
    wanted -= wanted / 16 > SOURCE_GRANULARITY_BYTES ? wanted / 16 : SOURCE_GRANULARITY_BYTES;
  }
  if (error == cudaSuccess)
    *bytes = wanted;
  return error;
}
