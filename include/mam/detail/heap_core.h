/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_core.h - the device heap's algorithm, for a GPU and for host threads: the door to its rooms, which
 * README.md lists in the order in which to read them.
 *
 * The structure is ScatterAlloc's: superblocks, pages that are split into equal chunks at first use, a usage word with
 * chunk size and bit-field.  In the protocol each step is one atomic operation on one word.  ARCHITECTURE.md, "The
 * device heap", has the argument.
 */
#ifndef MAM_DETAIL_HEAP_CORE_H
#define MAM_DETAIL_HEAP_CORE_H

#include <mam/detail/heap_begin.h>
#include <mam/detail/heap_moved.h>
#include <mam/detail/heap_runs.h>

#endif /* MAM_DETAIL_HEAP_CORE_H */
