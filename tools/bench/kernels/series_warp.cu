/* SPDX-License-Identifier: BSD-2-Clause */
/* Warp heaps: the lanes of a warp start a header, and end it after the series. */
#include <mam/warp.cuh>

#include "series.h"

struct series {
  typedef mam_device_heap handle;

  __device__ series(const handle &heap, const struct series_work &work_) : work(work_) {
    mam_warp_options options = MAM_WARP_OPTIONS_INIT;
    options.superblock_bytes = work.superblock;
    options.most_bytes = work.most;
    options.first_bytes = work.first;
    warp = mam_warp_start_lanes(heap, __activemask(), options, NULL);
  }
  __device__ void *take(unsigned) { return mam_warp_malloc(warp, work.bytes); }
  __device__ void finish() { mam_warp_end(warp); }
  __device__ heap_word keep() { return (heap_word)mam_warp_hand_over(warp); }
  static __device__ void drop(const handle &, const struct series_work &work, heap_word thread) {
    mam_warp_end(mam_warp_adopt((mam_warp *)work.handles[thread]));
  }

private:
  const struct series_work &work;
  mam_warp *warp;
};

#include "series.cuh"
