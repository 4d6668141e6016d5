/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What it costs that mapped memory is open to the other devices: a mapping with and without them, and chunks of
 * cuMemAlloc, before and after the program enables peer access.  It asks the driver alone.
 * usage: peer_cost
 * Prints a CSV row a size: bytes, medians in microseconds of cuMemCreate and cuMemMap, of cuMemSetAccess for the
 * device, of cuMemSetAccess for it and its peers, of cuMemUnmap and cuMemRelease after either, of cuMemAlloc and
 * cuMemFree with peer access off and on; then what 16 GiB that are open to the peer take of the peer's memory. Exits
 * with 77 without two devices of which the second can reach the first.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <dlfcn.h>

#include "cuda/driver.h"

enum { TURNS = 21, PEERS_MOST = 31 };

static const struct driver *driver;
static CUmemAccessDesc access_of[1 + PEERS_MOST];
static size_t devices = 1; /* how many of access_of */
static CUresult (*peer_enable)(CUcontext context, unsigned flags);

static double now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  (void)driver_error(driver, result, what);
  (void)fprintf(stderr, "peer_cost: %s: %d\n", what, result);
  exit(EXIT_FAILURE);
}
#define MUST(call) must(call, #call)

static int compare(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median(double *values) {
  qsort(values, TURNS, sizeof *values, compare);
  return values[TURNS / 2];
}

static void map(CUdeviceptr at, size_t bytes) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle;
  MUST(driver->cuMemCreate(&handle, bytes, &properties, 0));
  MUST(driver->cuMemMap(at, bytes, 0, handle, 0));
  MUST(driver->cuMemRelease(handle));
}

/* The medians of mapping, of access for count devices, and of unmapping. */
static void mapping_measure(CUdeviceptr at, size_t bytes, size_t count, double medians[3]) {
  double times[3][TURNS];
  for (int turn = 0; turn < TURNS; turn++) {
    double start = now_us();
    map(at, bytes);
    double mapped = now_us();
    MUST(driver->cuMemSetAccess(at, bytes, access_of, count));
    double usable = now_us();
    MUST(driver->cuMemUnmap(at, bytes));
    times[0][turn] = mapped - start;
    times[1][turn] = usable - mapped;
    times[2][turn] = now_us() - usable;
  }
  for (int i = 0; i < 3; i++)
    medians[i] = median(times[i]);
}

static void chunk_measure(size_t bytes, double medians[2]) {
  double times[2][TURNS];
  for (int turn = 0; turn < TURNS; turn++) {
    CUdeviceptr address;
    double start = now_us();
    MUST(driver->cuMemAlloc(&address, bytes));
    double taken = now_us();
    MUST(driver->cuMemFree(address));
    times[0][turn] = taken - start;
    times[1][turn] = now_us() - taken;
  }
  for (int i = 0; i < 2; i++)
    medians[i] = median(times[i]);
}

static size_t free_of(CUcontext context) {
  size_t free_bytes = 0, total = 0;
  MUST(driver->cuCtxPushCurrent(context));
  MUST(driver->cuMemGetInfo(&free_bytes, &total));
  MUST(driver->cuCtxPopCurrent(&context));
  return free_bytes;
}

/* What memory costs a peer that may reach it. */
static void peer_measure(CUdeviceptr at, CUcontext peer) {
  const size_t piece = (size_t)256 << 20, pieces = 64;
  size_t before = free_of(peer);
  for (size_t i = 0; i < pieces; i++) {
    map(at + i * piece, piece);
    MUST(driver->cuMemSetAccess(at + i * piece, piece, access_of, devices));
  }
  printf("# %zu GiB open to the peer take %zd KiB of its memory\n", pieces * piece >> 30,
         (ssize_t)(before - free_of(peer)) / 1024);
  for (size_t i = 0; i < pieces; i++)
    MUST(driver->cuMemUnmap(at + i * piece, piece));
}

static bool peers_find(void) {
  int count = 0, can = 0;
  access_of[0] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(driver->cuDeviceGetCount(&count));
  for (int peer = 1; peer < count && devices <= PEERS_MOST; peer++)
    if (driver->cuDeviceCanAccessPeer(&can, peer, 0) == CUDA_SUCCESS && can != 0)
      access_of[devices++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return devices > 1;
}

int main(void) {
  static const size_t sizes[] = {2, 16, 64, 256, 1024};
  enum { SIZES = sizeof sizes / sizeof sizes[0] };
  double alone[SIZES][3], open[SIZES][3], off[SIZES][2], on[SIZES][2];
  CUcontext first, peer;
  CUdeviceptr at;
  if (driver_get(&driver) != cudaSuccess || !peers_find()) {
    puts("SKIP: no device that can reach the first one's memory");
    return 77;
  }
  *(void **)&peer_enable = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxEnablePeerAccess");
  MUST(driver->cuDevicePrimaryCtxRetain(&peer, access_of[1].location.id));
  MUST(driver->cuDevicePrimaryCtxRetain(&first, 0));
  MUST(driver->cuCtxPushCurrent(first));
  MUST(driver->cuMemAddressReserve(&at, (size_t)32 << 30, 0, 0, 0));
  for (int i = 0; i < SIZES; i++) {
    mapping_measure(at, sizes[i] << 20, 1, alone[i]);
    mapping_measure(at, sizes[i] << 20, devices, open[i]);
    chunk_measure(sizes[i] << 20, off[i]);
  }
  peer_measure(at, peer);
  MUST(driver->cuCtxPushCurrent(peer));
  MUST(peer_enable(first, 0));
  MUST(driver->cuCtxPopCurrent(&peer));
  printf("mib,devices,map_us,access_alone_us,access_all_us,unmap_alone_us,unmap_all_us,alloc_off_us,free_off_us,"
         "alloc_on_us,free_on_us\n");
  for (int i = 0; i < SIZES; i++) {
    chunk_measure(sizes[i] << 20, on[i]);
    printf("%zu,%zu,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f\n", sizes[i], devices, alone[i][0], alone[i][1],
           open[i][1], alone[i][2], open[i][2], off[i][0], off[i][1], on[i][0], on[i][1]);
  }
  return EXIT_SUCCESS;
}
