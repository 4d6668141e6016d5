/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks of the library against those of cudaMalloc on a machine with two GPUs that can reach each other: what kernels
 * of the peer and copies between the two see there, and what the driver says about a block.
 *
 * The library reads its environment once in a process.  So the program runs itself for each source of default pools,
 * and for cudaMalloc, which shows what to expect.
 */
#include <spawn.h>
#include <sys/wait.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

extern char **environ;

static const size_t sizes[] = {1000, 100 << 10, 3 << 20, 64 << 20, 300 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static bool by_cuda, mapped; /* blocks come from cudaMalloc; blocks are mapped memory */

static void *block_new(int device, size_t bytes) {
  void *block = NULL;
  GPU_OK(cudaSetDevice(device));
  if (by_cuda)
    GPU_OK(cudaMalloc(&block, bytes));
  else
    MAM_OK(MAM_CudaMalloc(&block, bytes));
  return block;
}

static void block_free(int device, void *block) {
  GPU_OK(cudaSetDevice(device));
  if (by_cuda)
    GPU_OK(cudaFree(block));
  else
    MAM_OK(MAM_CudaFree(block));
}

static void access_set(int device, int peer, bool on) {
  GPU_OK(cudaSetDevice(device));
  cudaError_t error = on ? cudaDeviceEnablePeerAccess(peer, 0) : cudaDeviceDisablePeerAccess(peer);
  if (error == cudaErrorPeerAccessAlreadyEnabled || error == cudaErrorPeerAccessNotEnabled)
    (void)cudaGetLastError();
  else
    GPU_OK(error);
}

static void both_set(bool on) {
  access_set(0, 1, on);
  access_set(1, 0, on);
}

/* A kernel of the device checks the block's pattern. */
static void assert_pattern(int device, const void *block, size_t bytes, uint32_t seed) {
  uint64_t *mismatches = gpu_counter_new();
  GPU_OK(cudaSetDevice(device));
  GPU_OK(gpu_check(block, bytes, seed, mismatches, 0));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
}

static void fill(int device, void *block, size_t bytes, uint32_t seed) {
  GPU_OK(cudaSetDevice(device));
  GPU_OK(gpu_fill(block, bytes, seed, 0));
  GPU_OK(cudaDeviceSynchronize());
}

/* The peer's kernels read what the block's device wrote, and the other way round. */
static void assert_reached(int device, void *block, size_t bytes, uint32_t seed) {
  fill(device, block, bytes, seed);
  assert_pattern(1 - device, block, bytes, seed);
  fill(1 - device, block, bytes, seed + 1);
  assert_pattern(device, block, bytes, seed + 1);
}

START_TEST(kernel_of_the_peer_reaches_blocks_of_before) {
  void *blocks[2][SIZES];
  both_set(false);
  for (int device = 0; device < 2; device++)
    for (int i = 0; i < SIZES; i++)
      blocks[device][i] = block_new(device, sizes[i]);
  both_set(true);
  for (int device = 0; device < 2; device++)
    for (int i = 0; i < SIZES; i++) {
      assert_reached(device, blocks[device][i], sizes[i], (uint32_t)(10 * device + i));
      block_free(device, blocks[device][i]);
    }
}
END_TEST

START_TEST(kernel_of_the_peer_reaches_blocks_of_after) {
  both_set(true);
  for (int device = 0; device < 2; device++)
    for (int i = 0; i < SIZES; i++) {
      void *block = block_new(device, sizes[i]);
      assert_reached(device, block, sizes[i], (uint32_t)(30 + 10 * device + i));
      block_free(device, block);
    }
}
END_TEST

/* With and without peer access. */
START_TEST(copies_between_the_devices_carry_the_data) {
  both_set(_i == 1);
  for (int i = 0; i < SIZES; i++) {
    void *from = block_new(0, sizes[i]), *to = block_new(1, sizes[i]);
    fill(0, from, sizes[i], (uint32_t)(60 + i));
    GPU_OK(cudaMemcpyPeer(to, 1, from, 0, sizes[i]));
    assert_pattern(1, to, sizes[i], (uint32_t)(60 + i));
    fill(1, to, sizes[i], (uint32_t)(70 + i));
    GPU_OK(cudaMemcpyPeer(from, 0, to, 1, sizes[i]));
    assert_pattern(0, from, sizes[i], (uint32_t)(70 + i));
    block_free(0, from);
    block_free(1, to);
  }
}
END_TEST

START_TEST(kernel_of_the_peer_reaches_pools_of_the_program_s_own) {
  static const MAM_Source kinds[] = {MAM_SOURCE_DEVICE, MAM_SOURCE_VMM};
  if (by_cuda)
    return;
  both_set(true);
  for (int device = 0; device < 2; device++) {
    MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
    options.device = device;
    options.source = kinds[_i];
    options.chunk_bytes = 4 * MIB;
    options.limit_bytes = GIB;
    MAM_Pool pool = gpu_pool_new(&options);
    for (int i = 0; i < SIZES; i++) {
      void *block = NULL;
      MAM_OK(MAM_PoolMalloc(pool, &block, sizes[i]));
      assert_reached(device, block, sizes[i], (uint32_t)(80 + 10 * device + i));
    }
    MAM_OK(gpu_pool_end(pool));
  }
}
END_TEST

/* ---- What the driver says of a block ---- */

static int attribute_of(CUpointer_attribute attribute, const void *block) {
  PFN_cuPointerGetAttribute_v4000 ask = gpu_driver_function("cuPointerGetAttribute", 4000);
  int value = -1;
  (void)ask(&value, attribute, (CUdeviceptr)(uintptr_t)block);
  return value;
}

START_TEST(range_of_the_driver_covers_the_block) {
  PFN_cuMemGetAddressRange_v3020 ask = gpu_driver_function("cuMemGetAddressRange", 3020);
  for (int i = 0; i < SIZES; i++) {
    void *block = block_new(0, sizes[i]);
    CUdeviceptr base = 0, address = (CUdeviceptr)(uintptr_t)block;
    size_t bytes = 0;
    DRIVER_OK(ask(&base, &bytes, address));
    printf("%zu bytes: range begins %llu before, %zu bytes\n", sizes[i], (unsigned long long)(address - base), bytes);
    ck_assert_uint_le(base, address);
    if (!mapped) /* as mam(7) says */
      ck_assert_uint_ge(base + bytes, address + sizes[i]);
    block_free(0, block);
  }
}
END_TEST

START_TEST(rdma_and_ipc_are_as_the_manual_says) {
  void *plain = NULL, *block = block_new(0, 4 * MIB);
  cudaIpcMemHandle_t handle;
  unsigned on = 1;
  PFN_cuPointerSetAttribute_v6000 set = gpu_driver_function("cuPointerSetAttribute", 6000);
  GPU_OK(cudaMalloc(&plain, 4 * MIB));
  int expected = attribute_of(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, plain);
  int got = attribute_of(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, block);
  cudaError_t ipc = cudaIpcGetMemHandle(&handle, block);
  (void)cudaGetLastError();
  printf("RDMA capable: %d, cudaMalloc's: %d; legacy IPC: %s; exports: %d\n", got, expected, cudaGetErrorName(ipc),
         attribute_of(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block));
  ck_assert_int_eq(got, expected);
  if (mapped)
    ck_assert_int_eq(attribute_of(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block) & 1, 1);
  else
    ck_assert_int_eq(ipc, cudaSuccess);
  ck_assert_int_eq(set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)block),
                   mapped ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS); /* as mam(7) says */
  block_free(0, block);
  GPU_OK(cudaFree(plain));
}
END_TEST

/* ---- The program ---- */

/* Ends the other device's environment; gpu_test_end ends the current device's. */
static void both_end(void) {
  for (int device = 1; device >= 0; device--) {
    (void)cudaSetDevice(device);
    gpu_test_end();
  }
}

static TCase *case_add(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_add_checked_fixture(tests, NULL, both_end);
  suite_add_tcase(suite, tests);
  return tests;
}

static Suite *peer_suite(const char *source) {
  Suite *suite = suite_create(source);
  TCase *peers = case_add(suite, "peers"), *driver = case_add(suite, "what the driver says");
  tcase_add_test(peers, kernel_of_the_peer_reaches_blocks_of_before);
  tcase_add_test(peers, kernel_of_the_peer_reaches_blocks_of_after);
  tcase_add_loop_test(peers, copies_between_the_devices_carry_the_data, 0, 2);
  tcase_add_loop_test(peers, kernel_of_the_peer_reaches_pools_of_the_program_s_own, 0, 2);
  tcase_add_test(driver, range_of_the_driver_covers_the_block);
  tcase_add_test(driver, rdma_and_ipc_are_as_the_manual_says);
  return suite;
}

/* Runs this program in a process of its own, for a source.  Whether its tests passed. */
static bool run_for(const char *program, const char *source) {
  char *arguments[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)source, NULL};
  pid_t child;
  int status = 0;
  (void)fflush(stdout);
  if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0 || waitpid(child, &status, 0) != child)
    return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int run_all(const char *program) {
  static const char *const sources[] = {"cudaMalloc", "auto", "chunks", "vmm"};
  int failed = 0, devices = 0, there = 0, back = 0;
  int absent = gpu_probe();
  if (absent != 0)
    return absent;
  (void)cudaGetDeviceCount(&devices);
  if (devices < 2) {
    printf("SKIP: one device alone: there is no peer\n");
    return GPU_SKIP;
  }
  (void)cudaDeviceCanAccessPeer(&there, 0, 1);
  (void)cudaDeviceCanAccessPeer(&back, 1, 0);
  if (there == 0 || back == 0) {
    printf("SKIP: the first two devices cannot reach each other's memory\n");
    return GPU_SKIP;
  }
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
    failed += !run_for(program, sources[i]);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int count, char **arguments) {
  gpu_environment_clear();
  if (count < 2)
    return run_all(arguments[0]);
  by_cuda = strcmp(arguments[1], "cudaMalloc") == 0;
  mapped = strcmp(arguments[1], "vmm") == 0;
  if (!by_cuda)
    (void)setenv("MAM_SOURCE", arguments[1], 1);
  for (int device = 1; device >= 0; device--)
    if (cudaSetDevice(device) != cudaSuccess || gpu_probe() != 0 || gpu_kernels_load() != cudaSuccess)
      return EXIT_FAILURE;
  return gpu_suite_run(peer_suite(arguments[1]));
}
