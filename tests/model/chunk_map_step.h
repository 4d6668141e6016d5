/* SPDX-License-Identifier: BSD-2-Clause */
/* The build includes this file before everything else in the copy of chunk_map.c that chunk_map_test.c explores.  The
 * copy then calls the test before each access, and its tables are small. */
#ifndef MAM_TESTS_CHUNK_MAP_STEP_H
#define MAM_TESTS_CHUNK_MAP_STEP_H

#include <stdbool.h>

void chunk_map_test_step(bool is_store);
void chunk_map_test_table_step(void);
void chunk_map_test_retry(void);
bool chunk_map_test_full(void);
#define CHUNK_MAP_STEP(is_store) chunk_map_test_step(is_store)
#define CHUNK_MAP_TABLE_STEP() chunk_map_test_table_step()
#define CHUNK_MAP_RETRY(wait) ((void)(wait), chunk_map_test_retry())
#define CHUNK_MAP_IS_FULL(held, room) ((held) == (room) || chunk_map_test_full())
#define CHUNK_MAP_ROOM 4

#endif
