/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host has the GPU do with a device heap: the metadata is the GPU's.  Embedded in the library as a fatbin, and
 * loaded through the driver by heap.c.
 */
#include <mam/heap_core.h>
#include <mam/heap_record.h>

#include "compact_kernels.cuh"

static __device__ mam_u64 thread_rank(void) { return (mam_u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ mam_u64 thread_count(void) { return (mam_u64)gridDim.x * blockDim.x; }

/* Empties a superblock that nobody uses. */
extern "C" __global__ void mam_kernel_clear(struct mam_area area) {
  mam_area_clear(area, thread_rank(), thread_count());
}

/* Empties the slots of a heap that nobody uses. */
extern "C" __global__ void mam_kernel_clear_slots(struct mam_heap_control *control) {
  mam_slots_clear(control, thread_rank(), thread_count());
}

/* Frees what the slots of a heap hold that nobody uses. */
extern "C" __global__ void mam_kernel_drain(struct mam_heap_control *control) {
  mam_slots_drain(control, thread_rank(), thread_count());
}

/* Frees a block; answers whether it was one. */
extern "C" __global__ void mam_kernel_free(struct mam_heap_control *control, mam_u64 address) {
  control->answer = (mam_u64)mam_block_free(control, address);
}

/* Copies records together that lie anywhere. */
extern "C" __global__ void mam_kernel_records(const mam_u64 *places, struct mam_record *records, mam_u64 count) {
  for (mam_u64 i = thread_rank(); i < count; i += thread_count())
    records[i] = *(const struct mam_record *)places[i];
}
