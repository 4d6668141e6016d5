/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What client.c calls of api.c beside mam.h.
 */
#ifndef MAM_LIB_API_H
#define MAM_LIB_API_H

#include "front/front.h"
#include "mam.h"

/* A block of an environment, first by the thread's last front.  id: of the pool that is meant, 0 if that is not known;
 * tried: front_malloc_quick was asked with it and had nothing. */
cudaError_t api_malloc(uint64_t id, bool tried, size_t size, const void *site, const void *tag, uintptr_t *address);

/* What is rare about a free: what front_free_quick said, if that is not FRONT_FREED. */
cudaError_t api_free(uintptr_t address, enum front_freed freed);

#endif
