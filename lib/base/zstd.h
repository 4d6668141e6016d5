/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libzstd, opened when it is first needed.  Nothing is linked with it: a program that makes no record does not load it,
 * and where it is missing, records are written as they are.
 */
#ifndef MAM_LIB_ZSTD_H
#define MAM_LIB_ZSTD_H

#include <stddef.h>

struct zstd {
  void *(*createCCtx)(void);
  size_t (*freeCCtx)(void *context);
  size_t (*compressCCtx)(void *context, void *to, size_t to_bytes, const void *from, size_t from_bytes, int level);
  size_t (*decompress)(void *to, size_t to_bytes, const void *from, size_t from_bytes);
  unsigned (*isError)(size_t result);
};

/* NULL if there is no libzstd.  The first call runs the dynamic linker: the caller holds no lock. */
const struct zstd *zstd_load(void);

#endif
