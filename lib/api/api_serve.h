/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a request of the public functions is served, on the slow way: by an environment, by a pool of choice, on a
 * stream.
 */
#ifndef MAM_LIB_API_SERVE_H
#define MAM_LIB_API_SERVE_H

#include "front/front.h"
#include "mam.h"

/* A block of an environment, first by the thread's last front.  request->default_id: of the pool that is meant, 0 if
 * that is not known; request->pool is NULL. */
cudaError_t api_malloc(struct front_request *request, uintptr_t *address);

/* The same with the program's last word, and for size 0.  *ptr is NULL if there is no block. */
cudaError_t api_malloc_until(struct front_request *request, void **ptr);

/* The same from a pool of choice; who is the public function's name. */
cudaError_t api_pool_malloc(const char *who, MAM_Pool pool, struct front_request *request, void **ptr);

/* What is rare about a free: what front_free_quick said, if that is not FRONT_FREED. */
cudaError_t api_free(uintptr_t address, enum front_freed freed);

/* As front_free_of. */
cudaError_t api_free_of(struct mam_pool *pool, uint64_t generation, uintptr_t address);

/* By a rule, on a stream if that is MAM_REUSE_STREAM. */
cudaError_t api_free_by_rule(uintptr_t address, MAM_Reuse reuse, cudaStream_t stream);

/* Says that a handle is of no pool, and returns the error. */
cudaError_t api_refuse_handle(const char *who);

#endif
