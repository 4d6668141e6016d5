// SPDX-License-Identifier: BSD-2-Clause
// What the test of the device headers compiles: every function of them, with no other header.  Plain CUDA C++, so that
// nvcc and NVRTC both take it.
//
// LIVE numbers stay live across the calls: without a heap (LIVE_ALONE) the kernel uses the registers that the test
// wants a user's kernel to have, and what it uses with one is what the heap costs it.  Every function is in the file,
// but those of warp heaps if WITHOUT_WARPS says so: what is called out of line counts for all kernels of a file.
#ifndef LIVE
#define LIVE 8
#endif

#ifndef LIVE_ALONE
#include <mam/device.cuh>
#ifndef WITHOUT_WARPS
#include <mam/warp.cuh>
#endif

extern "C" __global__ void every_function(mam_device_heap heap, unsigned long long bytes, unsigned *answers) {
  mam_heap_status why = MAM_HEAP_OK;
  void *block = mam_malloc(heap, bytes), *other = mam_malloc_why(heap, bytes, &why);
  answers[threadIdx.x] = (unsigned)why + (unsigned)mam_malloc_size(heap, block) + mam_heap_contains(heap, block);
  mam_free(heap, block);
  mam_free(heap, other);
}

#ifndef WITHOUT_WARPS
extern "C" __global__ void every_function_of_warps(mam_device_heap heap, unsigned long long bytes,
                                                   unsigned long long *answers) {
  mam_heap_status why = MAM_HEAP_OK;
  mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  options.block_bytes = 64;
  mam_warp *warp = mam_warp_start(heap), *other = mam_warp_start_lanes(heap, __activemask(), options, &why);
  answers[threadIdx.x] = (unsigned long long)mam_warp_malloc(warp, bytes) + (unsigned)why;
  answers[threadIdx.x] += (unsigned long long)mam_warp_malloc_why(other, bytes, &why) + (unsigned)why;
  mam_warp_tidy_up(warp);
  mam_warp_end(mam_warp_adopt(mam_warp_hand_over(warp)));
  mam_warp_end(other);
}

extern "C" __global__ void user_kernel_warp(mam_device_heap heap, unsigned long long *to, unsigned bytes) {
  mam_warp *warp = mam_warp_start(heap);
  to[threadIdx.x] = (unsigned long long)mam_warp_malloc(warp, bytes);
  mam_warp_end(warp);
}
#endif
#endif

struct user {
  unsigned values[LIVE];
};

static __device__ void user_begin(struct user &user, const unsigned *from) {
#pragma unroll
  for (int i = 0; i < LIVE; i++)
    user.values[i] = from[i * blockDim.x + threadIdx.x];
}

static __device__ void user_go_on(struct user &user, unsigned mixer) {
#pragma unroll
  for (int i = 0; i < LIVE; i++)
    user.values[i] = user.values[i] * mixer + user.values[(i + 1) % LIVE];
}

static __device__ void user_end(const struct user &user, unsigned *to) {
#pragma unroll
  for (int i = 0; i < LIVE; i++)
    to[i * blockDim.x + threadIdx.x] = user.values[i];
}

#ifdef LIVE_ALONE
extern "C" __global__ void user_kernel(unsigned *from, unsigned *to, unsigned *block, unsigned bytes) {
  struct user user;
  user_begin(user, from);
  user_go_on(user, bytes);
  block[threadIdx.x] = bytes;
  user_go_on(user, block[threadIdx.x + 1]);
  user_end(user, to);
}
#else
static __device__ void user_writes(unsigned *block, struct user &user, unsigned bytes) {
  if (block == 0)
    return;
  block[0] = bytes;
  user_go_on(user, block[1]);
}

extern "C" __global__ void user_kernel_malloc(mam_device_heap heap, unsigned *from, unsigned *to, unsigned bytes) {
  struct user user;
  user_begin(user, from);
  user_go_on(user, bytes);
  user_writes((unsigned *)mam_malloc(heap, bytes), user, bytes);
  user_end(user, to);
}

extern "C" __global__ void user_kernel_free(mam_device_heap heap, unsigned *from, unsigned *to, unsigned **blocks,
                                            unsigned bytes) {
  struct user user;
  user_begin(user, from);
  user_go_on(user, bytes);
  unsigned *block = blocks[threadIdx.x];
  user_writes(block, user, bytes);
  mam_free(heap, block);
  user_go_on(user, bytes);
  user_end(user, to);
}

extern "C" __global__ void user_kernel_both(mam_device_heap heap, unsigned *from, unsigned *to, unsigned bytes) {
  struct user user;
  user_begin(user, from);
  user_go_on(user, bytes);
  unsigned *block = (unsigned *)mam_malloc(heap, bytes);
  user_writes(block, user, bytes);
  mam_free(heap, block);
  user_go_on(user, bytes);
  user_end(user, to);
}
#endif
