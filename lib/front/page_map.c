/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/page_map.h"

#include <stdlib.h>

_Atomic(struct page_map_leaf *) page_map_top[1 << PAGE_MAP_TOP_BITS];

/* The leaf of a page, made if there is none.  Leaves are never freed. */
static struct page_map_leaf *leaf_get(uintptr_t index) {
  struct page_map_leaf *leaf = atomic_load_explicit(&page_map_top[index], memory_order_acquire);
  if (leaf != NULL)
    return leaf;
  struct page_map_leaf *mine = calloc(1, sizeof *mine);
  if (mine == NULL)
    return NULL;
  /* release: the zeroed leaf; acquire on failure: the winner's.  Pairs with page_map_find. */
  if (atomic_compare_exchange_strong_explicit(&page_map_top[index], &leaf, mine, memory_order_acq_rel,
                                              memory_order_acquire))
    return mine;
  free(mine);
  return leaf;
}

bool page_map_set(uintptr_t base, struct slab *slab) {
  uintptr_t page = base >> PAGE_MAP_PAGE_BITS, index = page >> PAGE_MAP_LEAF_BITS;
  if (index >= (uintptr_t)1 << PAGE_MAP_TOP_BITS)
    return false;
  struct page_map_leaf *leaf = leaf_get(index);
  if (leaf == NULL)
    return false;
  /* release: publishes the slab; pairs with the acquire in page_map_find */
  atomic_store_explicit(&leaf->slabs[page & ((1 << PAGE_MAP_LEAF_BITS) - 1)], slab, memory_order_release);
  return true;
}
