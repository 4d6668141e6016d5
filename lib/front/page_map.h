/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which slab an address lies in: a table of the pages of 512 KiB of the address space in two levels, read without a
 * lock.
 *
 * Slabs are opaque here (slab.h).  They are never freed, so a slab that was found here may be read at any time; whether
 * it still is of a pool is asked then.
 */
#ifndef MAM_LIB_PAGE_MAP_H
#define MAM_LIB_PAGE_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* User space ends at 2^47 on x86-64 and on 64-bit ARM with 48 bits at 2^48: 16 + 13 + 19 bits. */
enum { PAGE_MAP_PAGE_BITS = 19, PAGE_MAP_LEAF_BITS = 13, PAGE_MAP_TOP_BITS = 16 };

struct slab;

struct page_map_leaf {
  _Atomic(struct slab *) slabs[1 << PAGE_MAP_LEAF_BITS];
};

extern _Atomic(struct page_map_leaf *) page_map_top[1 << PAGE_MAP_TOP_BITS] __attribute__((visibility("hidden")));

/* The slab at an address, NULL if there is none. */
static inline struct slab *page_map_find(uintptr_t address) {
  uintptr_t page = address >> PAGE_MAP_PAGE_BITS, index = page >> PAGE_MAP_LEAF_BITS;
  if (index >= (uintptr_t)1 << PAGE_MAP_TOP_BITS)
    return NULL;
  /* acquire, both: the leaf's and the slab's content; pair with the releases in page_map.c */
  struct page_map_leaf *leaf = atomic_load_explicit(&page_map_top[index], memory_order_acquire);
  if (leaf == NULL)
    return NULL;
  return atomic_load_explicit(&leaf->slabs[page & ((1 << PAGE_MAP_LEAF_BITS) - 1)], memory_order_acquire);
}

/* Writes the slab of the page at base, NULL for none.  False if the host has no memory for the table or the address is
 * beyond it; never for NULL where a slab was. */
bool page_map_set(uintptr_t base, struct slab *slab);

#endif
