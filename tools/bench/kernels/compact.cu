/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of `mam-bench compact`. */
#include <mam/device.cuh>

#include "compact.h"

static __device__ unsigned thread_here(void) { return blockIdx.x * blockDim.x + threadIdx.x; }

/* ---- Objects ---- */

extern "C" __global__ void compact_make(mam_device_heap heap, struct compact_work work, struct compact_faults *faults) {
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

extern "C" __global__ void compact_thin(mam_device_heap heap, struct compact_work work) {
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

extern "C" __global__ void compact_forward(mam_device_heap heap, struct compact_work work) {
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

extern "C" __global__ void compact_free(mam_device_heap heap, struct compact_work work) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0)
    return;
  mam_free(heap, (void *)work.table[number]);
  work.table[number] = 0;
}

/* The same.  In addition one lane of each group that frees in one usage word checks how full the span is now, and sets
 * a bit for its page if it has become a candidate.  map has a bit for each page of the first superblock. */
extern "C" __global__ void compact_free_keeping(mam_device_heap heap, struct compact_work work, unsigned *map) {
  unsigned number = thread_here();
  if (number >= work.count || work.table[number] == 0)
    return;
  heap_word offset = work.table[number] - heap.base;
  unsigned page = (unsigned)(offset >> MAM__PAGE_SHIFT), entry = *mam__page_entry(mam__heap_words(&heap), page);
  struct mam__bit bit = mam__bit_of(offset, entry);
  unsigned first = bit.word / MAM__PAGE_WORDS, group = __match_any_sync(__activemask(), bit.word);
  mam_free(heap, (void *)work.table[number]);
  work.table[number] = 0;
  if ((group & mam__lane_below()) != 0)
    return;
  unsigned live = 0, chunks = 0;
  for (unsigned i = 0; i < MAM__PAGE_WORDS; i++) {
    mam__u64 word = mam__load_relaxed_u64(&mam__heap_words(&heap)[first * MAM__PAGE_WORDS + i]);
    live += mam__ones_u32(mam__word_used(word));
    chunks += mam__word_chunks(word);
  }
  if (live * 3 <= chunks * 2 && (live + mam__ones_u32(group)) * 3 > chunks * 2)
    atomicOr(&map[first / 32], 1u << (first & 31));
}

/* ---- Particles ---- */

extern "C" __global__ void particles_birth(mam_device_heap heap, struct particles_work work,
                                           struct particles_counts *counts) {
  unsigned i = thread_here();
  if (i >= work.births)
    return;
  struct particle *particle = (struct particle *)mam_malloc_typed(heap, work.type);
  work.table[work.count + i] = particle;
  if (particle == NULL) {
    atomicAdd(&counts->refused, 1ull);
    return;
  }
  unsigned number = work.first_number + i, mixed = heap_mix(number * 0x9e3779b9u);
  float chance = (float)(heap_mix(number + 0x51ed270bu) >> 8) / 16777216.0f;
  particle->x = (float)(mixed & 0xffff) / 65536.0f;
  particle->y = (float)(mixed >> 16) / 65536.0f;
  particle->vx = (short)(mixed * 3 & 1023) - 512;
  particle->vy = (short)(mixed * 5 & 1023) - 512;
  particle->dies = work.step + 1 + (unsigned)(-__logf(1.0f - chance) * (float)work.life);
}

static __device__ float moved(float at, short *speed) {
  at += (float)*speed * 1e-5f;
  if (at < 0.0f || at > 1.0f) {
    *speed = (short)-*speed;
    at = at < 0.0f ? -at : 2.0f - at;
  }
  return at;
}

extern "C" __global__ void particles_step(mam_device_heap heap, struct particles_work work) {
  unsigned i = thread_here();
  struct particle *particle = i < work.count ? work.table[i] : NULL;
  if (particle == NULL)
    return;
  struct particle now = *particle;
  if (now.dies <= work.step) {
    mam_free(heap, particle);
    work.table[i] = NULL;
    return;
  }
  now.x = moved(now.x, &now.vx);
  now.y = moved(now.y, &now.vy);
  *particle = now;
}

extern "C" __global__ void particles_count(struct particles_work work, struct particles_counts *counts) {
  unsigned i = thread_here();
  const struct particle *particle = i < work.count ? work.table[i] : NULL;
  heap_word live = particle != NULL, check = 0;
  if (particle != NULL)
    check = heap_mix(__float_as_uint(particle->x)) + heap_mix(__float_as_uint(particle->y) + 1) +
            heap_mix(particle->dies * 3 + (unsigned short)particle->vx);
  for (int distance = 16; distance != 0; distance /= 2) {
    live += __shfl_down_sync(~0u, live, distance);
    check += __shfl_down_sync(~0u, check, distance);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&counts->live, live);
    atomicAdd(&counts->check, check);
  }
}
