/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/zstd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

static struct zstd table;
static bool loaded;

static bool find(void *library, const char *name, void *function) {
  *(void **)function = dlsym(library, name);
  return *(void **)function != NULL;
}

static void load(void) {
  void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  loaded = library != NULL && find(library, "ZSTD_createCCtx", &table.createCCtx) &&
           find(library, "ZSTD_freeCCtx", &table.freeCCtx) && find(library, "ZSTD_compressCCtx", &table.compressCCtx) &&
           find(library, "ZSTD_decompress", &table.decompress) && find(library, "ZSTD_isError", &table.isError);
  if (library != NULL && !loaded)
    (void)dlclose(library);
}

const struct zstd *zstd_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, load);
  return loaded ? &table : NULL;
}
