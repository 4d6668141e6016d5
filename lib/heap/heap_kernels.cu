/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels that the host runs on a device heap, whose metadata is in device memory.  They are embedded in the
 * library as a fatbin (heap_embed).  heap_gpu.c loads them by the driver, and the names of the functions are in its
 * table.
 */
#include <mam/detail/heap_record.h>
#include <mam/detail/warp_core.h>
#include <mam/warp.h>

#include "heap/compact_kernels.cuh"

static __device__ mam__u64 thread_rank(void) { return (mam__u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ mam__u64 thread_count(void) { return (mam__u64)gridDim.x * blockDim.x; }

/* Empties a superblock.  No other kernel uses it meanwhile. */
extern "C" __global__ void mam_kernel_clear(struct mam__area area) {
  mam__area_clear(area, thread_rank(), thread_count());
}

/* Empties the slots of a heap.  No other kernel uses it meanwhile. */
extern "C" __global__ void mam_kernel_clear_slots(struct mam__heap_control *control) {
  mam__slots_clear(control, thread_rank(), thread_count());
}

/* Frees what the slots of a heap hold.  No other kernel uses the heap meanwhile. */
extern "C" __global__ void mam_kernel_drain(struct mam__heap_control *control) {
  mam__slots_drain(control, thread_rank(), thread_count());
}

/* Frees a block.  The answer is 1 if the address was a live block's, else 0. */
extern "C" __global__ void mam_kernel_free(struct mam__heap_control *control, mam__u64 address) {
  control->answer = (mam__u64)mam__block_free(control, address);
}

/* Copies the records at count places into one array. */
extern "C" __global__ void mam_kernel_records(const mam__u64 *places, struct mam__record *records, mam__u64 count) {
  for (mam__u64 i = thread_rank(); i < count; i += thread_count())
    records[i] = *(const struct mam__record *)places[i];
}

/* ---- Warp heaps ---- */

/* warp_core.h needs both functions.  These kernels do not allocate. */
MAM__INLINE mam__u64 mam__warp_heap_malloc(struct mam__heap_control *, mam__u64) { return 0; }
MAM__INLINE mam__u64 mam__warp_heap_try(struct mam__heap_control *, mam__u64) { return 0; }
MAM__INLINE void mam__warp_heap_free(struct mam__heap_control *control, mam__u64 address) {
  (void)mam__block_free(control, address);
}

/* Adds to a header's description what a list and the lists before it hold: the lists' own blocks and their entries. */
static __device__ void warp_list_count(struct mam_warp *warp, mam__u64 list, MAM_WarpHeader *header) {
  for (mam__u64 at = mam__warp_address(list); at != 0; at = mam__warp_address(list)) {
    for (mam__u32 i = 0; i < mam__warp_number(list); i++)
      header->bytes += mam__block_bytes(warp->control, *mam__warp_list_entry(at, i));
    header->allocated_count += mam__warp_number(list);
    if (at != mam__warp_list_inside(warp))
      header->bytes += mam__block_bytes(warp->control, at);
    list = *(mam__u64 *)at;
  }
}

/* Describes each block that is a header, as long as there is room, and counts all headers. */
extern "C" __global__ void mam_kernel_warp_list(struct mam__heap_control *control, const mam__u64 *blocks,
                                                mam__u64 count, MAM_WarpHeader *headers, mam__u64 capacity,
                                                mam__u64 *found) {
  for (mam__u64 i = thread_rank(); i < count; i += thread_count()) {
    struct mam_warp *warp = (struct mam_warp *)blocks[i];
    if (!mam__warp_is(warp) || warp->control != control)
      continue;
    MAM_WarpHeader header = {warp,
                             mam__warp_taking_part(warp->lanes),
                             mam__warp_active(warp->lanes),
                             warp->handed_over,
                             warp->block_less_1 + 1,
                             0,
                             (size_t)mam__block_bytes(control, blocks[i])};
    warp_list_count(warp, warp->list, &header);
    warp_list_count(warp, warp->early, &header);
    mam__u64 place = mam__add_relaxed_u64(found, 1);
    if (place < capacity)
      headers[place] = header;
  }
}

/* Ends a header.  No other kernel uses it meanwhile.  The answer is 1 if it was a header of this heap, else 0. */
extern "C" __global__ void mam_kernel_warp_end(struct mam__heap_control *control, struct mam_warp *warp) {
  control->answer = 0;
  if (mam__block_bytes(control, (mam__u64)warp) < sizeof *warp || !mam__warp_is(warp) || warp->control != control)
    return;
  warp->largest = 0;
  mam__warp_flush(warp, warp->list, mam__lanes_alone());
  mam__warp_flush(warp, warp->early, mam__lanes_alone());
  mam__warp_vanish(warp);
  control->answer = 1;
}
