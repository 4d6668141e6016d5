/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One of several processes that fill and empty a device in turns: a byte on descriptor 3 says that it is this one's
 * turn, a byte on 4 passes it on.  With the driver alone no allocation of a turn fails, as all others hold nothing.
 * usage: gpu_preload_turns MIB SECONDS    MIB: what a turn allocates; 0: prints what there is, and stops
 * Ends with 1 if an allocation failed, with 77 without a GPU.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS_MOST = 4096, BLOCK_MIB = 256, SKIP = 77 };
static const size_t MIB = (size_t)1 << 20;

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*alloc)(unsigned long long *, size_t);
static int (*release)(unsigned long long);
static int (*info)(size_t *, size_t *);

static void *function(void *driver, const char *name) {
  void *found = dlsym(driver, name);
  if (found == NULL)
    exit(SKIP);
  return found;
}

static void begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  if (driver == NULL)
    exit(SKIP);
  *(void **)&init = function(driver, "cuInit");
  *(void **)&retain = function(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = function(driver, "cuCtxSetCurrent");
  *(void **)&alloc = function(driver, "cuMemAlloc_v2");
  *(void **)&release = function(driver, "cuMemFree_v2");
  *(void **)&info = function(driver, "cuMemGetInfo_v2");
  if (init(0) != 0 || retain(&context, 0) != 0 || set_current(context) != 0)
    exit(SKIP);
}

/* Allocates blocks of 256 MiB up to so many MiB, and frees them.  Returns the first error. */
static int fill_and_empty(size_t mib) {
  static unsigned long long blocks[BLOCKS_MOST];
  size_t left = mib;
  int count = 0, error = 0;
  while (left >= BLOCK_MIB && count < BLOCKS_MOST && error == 0) {
    error = alloc(&blocks[count], BLOCK_MIB * MIB);
    left -= BLOCK_MIB;
    count += error == 0;
  }
  for (int i = 0; i < count; i++)
    if (release(blocks[i]) != 0)
      error = error == 0 ? -1 : error;
  return error;
}

int main(int count, char **arguments) {
  size_t mib = count > 1 ? strtoul(arguments[1], NULL, 10) : 0, free_bytes, total_bytes;
  time_t end = time(NULL) + (count > 2 ? atol(arguments[2]) : 10);
  unsigned turns = 0, failures = 0;
  char turn;
  begin();
  if (mib == 0)
    return info(&free_bytes, &total_bytes) == 0 && printf("%zu\n", free_bytes / MIB) > 0 ? 0 : 1;
  while (read(3, &turn, 1) == 1) {
    bool ends = turn == 'e' || time(NULL) >= end;
    int error = ends ? 0 : fill_and_empty(mib);
    turns += !ends;
    failures += error != 0;
    if (error != 0 && failures < 5)
      printf("turn %u: %d\n", turns, error);
    turn = ends ? 'e' : turn;
    if (write(4, &turn, 1) != 1 || ends)
      break;
  }
  printf("%u turns, %u failed\n", turns, failures);
  return failures > 0;
}
