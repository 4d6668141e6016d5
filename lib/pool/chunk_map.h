/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which pool owns an address: the chunks of all pools in one table, ordered by address, read without a lock.
 *
 * Knows ranges and the pools they belong to by pointer only.  What a reader finds may be outdated by the time it
 * looks at it: pools are never unmapped (pool.h), and the pool decides under its own lock.
 */
#ifndef MAM_LIB_CHUNK_MAP_H
#define MAM_LIB_CHUNK_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mam_pool;

enum chunk_map_result { CHUNK_MAP_OK, CHUNK_MAP_NO_MEMORY, CHUNK_MAP_OVERLAP };

/* Adds a chunk, of which there may be any number, as far as the host has memory.  On CHUNK_MAP_OVERLAP *other is the
 * pool of a chunk that overlaps: since no two live chunks do, that pool's memory must be gone. */
enum chunk_map_result chunk_map_add(uintptr_t base, size_t bytes, struct mam_pool *pool, struct mam_pool **other);

/* Removes the chunk that starts at base, which must be there. */
void chunk_map_remove(uintptr_t base);

/* The pool whose chunk holds address, NULL if there is none.  Any thread, no lock, never waits for more than a writer's
 * few stores. */
struct mam_pool *chunk_map_find(uintptr_t address);

/* For fork: keeps writers out. */
void chunk_map_lock(void);
void chunk_map_unlock(void);

#endif
