/* SPDX-License-Identifier: BSD-2-Clause */
/* What a user of the installed library compiles first.  As C and, with nullptr for NULL, as C++. */
#include <mam.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  void *block = NULL;
  if (MAM_Create(8u << 20) != cudaSuccess || MAM_CudaMalloc(&block, 1000) != cudaSuccess || block == NULL) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  memset(block, 1, 1000);
  return MAM_CudaFree(block) != cudaSuccess || MAM_Destroy() != cudaSuccess;
}
