/* SPDX-License-Identifier: BSD-2-Clause */
/* What report_test.sh runs: allocates and frees as its arguments say, and exits.
 * usage: report_program [clean|leak|destroy|fork|explain|report|silent] */
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

int main(int count, char **arguments) {
  const char *how = count > 1 ? arguments[1] : "clean";
  char *text = NULL;
  if (strcmp(how, "silent") == 0)
    return EXIT_SUCCESS;
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
