/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of `mam-bench compact`. */
#include <mam/device.cuh>

#include "compact.h"

static __device__ unsigned thread_here(void) { return blockIdx.x * blockDim.x + threadIdx.x; }

/* ---- Objects ---- */

extern "C" __global__ void compact_make(mam_heap heap, struct compact_work work, struct compact_faults *faults) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] != 0)
    return;
  struct compact_object *object = (struct compact_object *)mam_malloc_typed(heap, work.type);
  work.table[number] = (heap_word)object;
  if (object == NULL)
    atomicAdd(&faults->refused, 1ull);
  else
    object->number = number;
}

extern "C" __global__ void compact_thin(mam_heap heap, struct compact_work work) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0 ||
      heap_mix(number * 0x9e3779b9u + work.seed) % heap_chance_whole < work.keep)
    return;
  mam_free(heap, (void *)work.table[number]);
  work.table[number] = 0;
}

static __device__ heap_word linked(const struct compact_work &work, unsigned number, unsigned link) {
  return work.table[heap_mix(number * compact_links + link + work.seed) % work.count];
}

extern "C" __global__ void compact_link(struct compact_work work) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0)
    return;
  for (unsigned i = 0; i < compact_links; i++)
    ((struct compact_object *)work.table[number])->links[i] = (struct compact_object *)linked(work, number, i);
}

extern "C" __global__ void compact_forward(mam_heap heap, struct compact_work work) {
  unsigned number = thread_here();
  if (number < work.count)
    mam_forward(heap, (struct compact_object **)&work.table[number]);
}

extern "C" __global__ void compact_verify(struct compact_work work, struct compact_faults *faults) {
  unsigned number = thread_here();
  const struct compact_object *object = number < work.count ? (struct compact_object *)work.table[number] : NULL;
  if (object == NULL)
    return;
  atomicAdd(&faults->live, 1ull);
  if (object->number != number)
    atomicAdd(&faults->wrong_objects, 1ull);
  for (unsigned i = 0; i < compact_links; i++)
    if ((heap_word)object->links[i] != linked(work, number, i))
      atomicAdd(&faults->wrong_links, 1ull);
}

/* ---- What a bitmap of candidates would cost that each free keeps ---- */

extern "C" __global__ void compact_free(mam_heap heap, struct compact_work work) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0)
    return;
  mam_free(heap, (void *)work.table[number]);
  work.table[number] = 0;
}

/* The same, and one lane of each group that frees in one usage word looks how full the span is now, and sets a bit for
 * its page if it became a candidate.  map has a bit for each page of the first superblock. */
extern "C" __global__ void compact_free_keeping(mam_heap heap, struct compact_work work, unsigned *map) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0)
    return;
  heap_word offset = work.table[number] - heap.base;
  unsigned page = (unsigned)(offset >> MAM_PAGE_SHIFT), entry = heap.entries[page];
  struct mam_bit bit = mam_bit_of(offset, entry);
  unsigned first = bit.word / MAM_PAGE_WORDS, group = __match_any_sync(__activemask(), bit.word);
  mam_free(heap, (void *)work.table[number]);
  work.table[number] = 0;
  if ((group & mam_lane_below()) != 0)
    return;
  unsigned live = 0, chunks = 0;
  for (unsigned i = 0; i < MAM_PAGE_WORDS; i++) {
    mam_u64 word = mam_load_relaxed_u64(&heap.words[first * MAM_PAGE_WORDS + i]);
    live += mam_ones_u32((mam_u32)word);
    chunks += mam_word_chunks(word);
  }
  if (live * 3 <= chunks * 2 && (live + mam_ones_u32(group)) * 3 > chunks * 2)
    atomicOr(&map[first / 32], 1u << (first & 31));
}

/* ---- The forest ---- */

static __device__ bool burns(const struct forest_work &work, unsigned x, unsigned y) {
  const struct forest_plant *plant = work.cells[(y & (work.height - 1)) * work.width + (x & (work.width - 1))];
  return plant != NULL && plant->burning != 0;
}

static __device__ bool chance(const struct forest_work &work, unsigned cell, unsigned salt, unsigned limit) {
  return heap_mix(cell * 0x9e3779b9u + heap_mix(work.step * 2 + salt)) < limit;
}

/* Looks only, so that a step does not depend on the order of its threads. */
extern "C" __global__ void forest_decide(struct forest_work work) {
  unsigned cell = thread_here(), x = cell & (work.width - 1), y = cell / work.width, decision = forest_nothing;
  if (y >= work.height)
    return;
  const struct forest_plant *plant = work.cells[cell];
  if (plant == NULL)
    decision = chance(work, cell, 0, work.sprouting) ? forest_sprout : forest_nothing;
  else if (plant->burning != 0)
    decision = forest_vanish;
  else if (burns(work, x + 1, y) || burns(work, x - 1, y) || burns(work, x, y + 1) || burns(work, x, y - 1) ||
           chance(work, cell, 1, work.lightning))
    decision = forest_ignite;
  else
    decision = plant->age + 1 == work.mature_age ? forest_mature : forest_grow;
  work.decisions[cell] = (unsigned char)decision;
}

static __device__ struct forest_plant *sprout(mam_heap heap, const struct forest_work &work, unsigned cell) {
  struct forest_plant *plant = (struct forest_plant *)mam_malloc_typed(heap, work.sapling);
  if (plant != NULL) {
    plant->cell = cell;
    plant->age = 0;
    plant->height = 0.1f;
    plant->burning = 0;
  }
  return plant;
}

static __device__ struct forest_plant *mature(mam_heap heap, const struct forest_work &work,
                                              struct forest_plant *sapling) {
  struct forest_tree *tree = (struct forest_tree *)mam_malloc_typed(heap, work.tree);
  if (tree == NULL)
    return sapling; /* and stays one: its age is past that */
  tree->plant = *sapling;
  for (unsigned i = 0; i < 12; i++)
    tree->rings[i] = sapling->height * (float)i;
  mam_free(heap, sapling);
  return &tree->plant;
}

extern "C" __global__ void forest_apply(mam_heap heap, struct forest_work work, struct forest_counts *counts) {
  unsigned cell = thread_here();
  if (cell >= work.width * work.height)
    return;
  struct forest_plant *plant = work.cells[cell];
  switch (work.decisions[cell]) {
  case forest_sprout:
    work.cells[cell] = plant = sprout(heap, work, cell);
    if (plant == NULL)
      atomicAdd(&counts->refused, 1ull);
    break;
  case forest_mature:
    work.cells[cell] = mature(heap, work, plant);
    work.cells[cell]->age++;
    break;
  case forest_grow:
    plant->age++;
    plant->height += 0.01f;
    break;
  case forest_ignite:
    plant->burning = 1;
    break;
  case forest_vanish:
    mam_free(heap, plant);
    work.cells[cell] = NULL;
    break;
  }
}

extern "C" __global__ void forest_count(struct forest_work work, struct forest_counts *counts) {
  unsigned cell = thread_here();
  const struct forest_plant *plant = cell < work.width * work.height ? work.cells[cell] : NULL;
  bool grown = plant != NULL && plant->age >= work.mature_age;
  if (plant == NULL)
    return;
  atomicAdd(grown ? &counts->trees : &counts->saplings, 1ull);
  atomicAdd(&counts->check, (heap_word)heap_mix(plant->cell + cell * 3 + plant->age) + plant->burning);
}
