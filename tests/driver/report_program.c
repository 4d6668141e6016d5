/* SPDX-License-Identifier: BSD-2-Clause */
/* What report_test.sh runs: allocates and frees as its arguments say, and exits.
 * usage: report_program [clean|leak|destroy|fork|explain|report|silent|pool|refused] */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mam.h"

static void must(cudaError_t error) {
  if (error != cudaSuccess) {
    (void)fprintf(stderr, "report_program: %d: %s\n", (int)error, MAM_LastError());
    exit(EXIT_FAILURE);
  }
}

/* Not static, so that this call site has a name where the program is linked with -rdynamic. */
__attribute__((noinline)) void *here(size_t bytes);
void *here(size_t bytes) {
  void *block = NULL;
  must(MAM_CudaMalloc(&block, bytes));
  return block;
}

static void pool_end(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool;
  void *block;
  options.source = MAM_SOURCE_HOST;
  must(MAM_PoolCreate(&pool, &options));
  must(MAM_PoolMalloc(pool, &block, (size_t)1 << 20));
  must(MAM_CudaFree(block));
  must(MAM_PoolDestroy(pool));
}

static void be_refused(void) {
  void *block;
  must(MAM_Create((size_t)8 << 20));
  if (MAM_CudaMalloc(&block, (size_t)9 << 20) == cudaSuccess)
    exit(EXIT_FAILURE);
  must(MAM_Destroy());
}

int main(int count, char **arguments) {
  const char *how = count > 1 ? arguments[1] : "clean";
  char *text = NULL;
  if (strcmp(how, "silent") == 0)
    return EXIT_SUCCESS;
  if (strcmp(how, "pool") == 0 || strcmp(how, "refused") == 0) {
    (strcmp(how, "pool") == 0 ? pool_end : be_refused)();
    return EXIT_SUCCESS;
  }
  must(MAM_Create_auto());
  void *small[3], *large[2];
  for (int i = 0; i < 3; i++)
    small[i] = here(1000);
  for (int i = 0; i < 2; i++)
    large[i] = here((size_t)1 << 20);
  if (strcmp(how, "explain") == 0 || strcmp(how, "report") == 0) {
    must(strcmp(how, "report") == 0 ? MAM_PoolReport(NULL, &text) : MAM_PoolExplain(NULL, 1, &text));
    (void)fputs(text, stdout);
    free(text);
  }
  bool leaks = strcmp(how, "leak") == 0 || strcmp(how, "destroy") == 0;
  for (int i = 0; i < 3 && !leaks; i++)
    must(MAM_CudaFree(small[i]));
  must(MAM_CudaFree(large[0]));
  if (!leaks)
    must(MAM_CudaFree(large[1]));
  if (strcmp(how, "destroy") == 0)
    must(MAM_Destroy());
  if (strcmp(how, "fork") == 0) {
    pid_t child = fork();
    if (child == 0)
      exit(EXIT_SUCCESS);
    (void)waitpid(child, NULL, 0);
  }
  return EXIT_SUCCESS;
}
