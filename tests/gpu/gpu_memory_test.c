/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How much memory a default pool holds beside what its program needs, on a GPU: after loops, and when it has been calm
 * for a while.  The library reads its environment once in a process, so the program runs itself once for each source.
 */
#include <spawn.h>
#include <sys/wait.h>

#include "gpu_kernels.h"
#include "gpu_util.h"

extern char **environ;

enum { PAIRS = 20000, CALM_MS = 10000 };

static size_t held(void) { return gpu_pool_info(NULL).reserved_bytes; }

static size_t spare_of(size_t size) { return 4 * size > 256 * MIB ? 4 * size : 256 * MIB; }

/* The errors are checked at the end: Check takes half a microsecond for each check. */
static void pairs(size_t size, unsigned count) {
  unsigned failed = 0;
  for (unsigned i = 0; i < count; i++) {
    void *block = NULL;
    failed += MAM_CudaMalloc(&block, size) != cudaSuccess;
    failed += MAM_CudaFree(block) != cudaSuccess;
  }
  ck_assert_uint_eq(failed, 0);
}

static const size_t sizes[] = {4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

START_TEST(loop_of_pairs_holds_four_blocks_or_256_mib) {
  MAM_OK(MAM_Create_auto());
  pairs(sizes[_i], PAIRS);
  double start_ms = gpu_now_ms();
  pairs(sizes[_i], PAIRS);
  printf("pairs of %zu KiB: %.1f ns, %zu MiB held\n", sizes[_i] >> 10, (gpu_now_ms() - start_ms) * 1e6 / PAIRS,
         held() >> 20);
  ck_assert_uint_le(held(), spare_of(sizes[_i]));
}
END_TEST

/* What the pool holds, once nothing has used it until that is at most so much, or for CALM_MS. */
static size_t held_after_a_while(size_t most) {
  double start_ms = gpu_now_ms();
  while (held() > most && gpu_now_ms() - start_ms < CALM_MS)
    (void)usleep(50000);
  printf("%zu MiB held after %.1f s\n", held() >> 20, (gpu_now_ms() - start_ms) / 1e3);
  return held();
}

START_TEST(calm_pool_gives_back) {
  void *blocks[40];
  MAM_OK(MAM_Create_auto());
  for (int i = 0; i < 40; i++)
    MAM_OK(MAM_CudaMalloc(&blocks[i], 100 * MIB));
  for (int i = 1; i < 40; i++)
    MAM_OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_le(held_after_a_while(512 * MIB), 512 * MIB);
  uint64_t *mismatches = gpu_counter_new();
  GPU_OK(gpu_fill(blocks[0], 100 * MIB, 7, 0)); /* the block is still whole */
  GPU_OK(gpu_check(blocks[0], 100 * MIB, 7, mismatches, 0));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
  GPU_OK(cudaFreeHost(mismatches));
  MAM_OK(MAM_CudaFree(blocks[0]));
}
END_TEST

/* The reaper takes no memory that a kernel uses, and no call waits for the kernel. */
START_TEST(calm_pool_leaves_a_running_kernel_alone) {
  void *block = NULL;
  volatile uint32_t *stop = (volatile uint32_t *)gpu_counter_new();
  MAM_OK(MAM_Create_auto());
  MAM_OK(MAM_CudaMalloc(&block, GIB));
  GPU_OK(gpu_spin_then_fill((const uint32_t *)stop, 20000, block, GIB, 9, 0));
  MAM_OK(MAM_CudaFree(block));
  (void)usleep(3000000);
  ck_assert_uint_ge(held(), GIB);
  ck_assert_int_eq(cudaStreamQuery(0), cudaErrorNotReady);
  *stop = 1;
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_le(held_after_a_while(64 * MIB), 64 * MIB);
  GPU_OK(cudaFreeHost((void *)(uintptr_t)stop));
}
END_TEST

static Suite *memory_suite(const char *source) {
  Suite *suite = suite_create(source);
  TCase *loops = gpu_case_add(suite, "loops"), *calm = gpu_case_add(suite, "when it is calm");
  tcase_add_loop_test(loops, loop_of_pairs_holds_four_blocks_or_256_mib, 0, SIZES);
  tcase_add_test(calm, calm_pool_gives_back);
  tcase_add_test(calm, calm_pool_leaves_a_running_kernel_alone);
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

int main(int count, char **arguments) {
  gpu_environment_clear();
  if (count < 2) {
    int absent = gpu_probe();
    if (absent != 0)
      return absent;
    bool mapped = run_for(arguments[0], "vmm"), chunks = run_for(arguments[0], "chunks");
    return mapped && chunks ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  (void)setenv("MAM_SOURCE", arguments[1], 1);
  if (gpu_probe() != 0 || gpu_kernels_load() != cudaSuccess)
    return EXIT_FAILURE;
  return gpu_suite_run(memory_suite(arguments[1]));
}
