/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A list-based allocator, the paper's baseline (section 4), in two forms.  With LISTS_ARENAS_BY_MULTIPROCESSOR 0 all
 * threads share one arena.  With 1 each multiprocessor has one, and a thread goes on to the next arena if its own has
 * nothing.
 *
 * Memory is a row of segments, each behind its header.  Free segments are in lists, one for each bin of sizes.  A
 * request takes the first segment that fits, from its own bin upwards, and splits it.  A free merges with the segment
 * behind it.  A lock protects an arena's headers and lists.  All accesses to them are volatile, so they go to the L2,
 * where all multiprocessors see them.
 */
#include <stddef.h>

#include "work.h"

enum { lists_bins = 10, lists_arenas_most = 256, lists_header_units = 2, lists_none = 0 };

static const unsigned long long lists_patience_ns = 2000000000; /* after so long without the lock, a call fails */

/* Positions and lengths are in units of 16 bytes from the heap's beginning.  No segment has position 0. */
struct lists_segment {
  unsigned units;          /* with the header */
  unsigned bytes;          /* that the program asked for; 0 if free */
  unsigned next, previous; /* in its bin's list; lists_none at the ends */
  unsigned arena, reserved[3];
};

struct lists_arena {
  unsigned lock, first, end, reserved; /* the segments lie in [first, end) */
  unsigned bins[lists_bins];
  unsigned padding[18]; /* no two arenas share a line */
};

struct adapter {
  struct handle {
    unsigned long long base; /* the arenas' array, then the segments */
    unsigned long long bytes;
  };
  static __device__ void *take(const handle &heap, size_t bytes);
  static __device__ void give(const handle &heap, void *block);
  static __device__ size_t size(const handle &, void *block) {
    return 16 * (size_t)(((const volatile lists_segment *)block)[-1].units - lists_header_units);
  }
};

#include "kernels.cuh"

static __device__ unsigned lists_arena_count(void) {
#if LISTS_ARENAS_BY_MULTIPROCESSOR
  unsigned multiprocessors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
  return multiprocessors < lists_arenas_most ? multiprocessors : lists_arenas_most;
#else
  return 1;
#endif
}

static __device__ unsigned lists_home(void) {
#if LISTS_ARENAS_BY_MULTIPROCESSOR
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  return multiprocessor % lists_arena_count();
#else
  return 0;
#endif
}

static __device__ volatile lists_arena *lists_arena_at(const adapter::handle &heap, unsigned index) {
  return (volatile lists_arena *)heap.base + index;
}

static __device__ volatile lists_segment *lists_segment_at(const adapter::handle &heap, unsigned position) {
  return (volatile lists_segment *)(heap.base + 16 * (unsigned long long)position);
}

static __device__ unsigned long long lists_now_ns(void) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/* False if the lock was not free in time. */
static __device__ bool lists_lock(volatile lists_arena *arena) {
  unsigned long long start_ns = lists_now_ns();
  for (unsigned wait_ns = 50; atomicCAS((unsigned *)&arena->lock, 0, 1) != 0; wait_ns = min(2 * wait_ns, 2000u)) {
    if (lists_now_ns() - start_ns > lists_patience_ns)
      return false;
    __nanosleep(wait_ns);
  }
  __threadfence(); /* this thread sees what the last holder wrote */
  return true;
}

static __device__ void lists_unlock(volatile lists_arena *arena) {
  __threadfence(); /* other threads see the writes before the lock is free */
  atomicExch((unsigned *)&arena->lock, 0);
}

/* The bin of segments of at least 2^(bin + 1) units.  The smallest segment is a header with one unit behind it. */
static __device__ unsigned lists_bin(unsigned units) {
  unsigned bin = 31 - __clz((int)units) - 1;
  return bin < lists_bins ? bin : lists_bins - 1;
}

static __device__ void lists_link(const adapter::handle &heap, volatile lists_arena *arena, unsigned position) {
  volatile lists_segment *segment = lists_segment_at(heap, position);
  unsigned bin = lists_bin(segment->units), next = arena->bins[bin];
  segment->bytes = 0;
  segment->previous = lists_none;
  segment->next = next;
  if (next != lists_none)
    lists_segment_at(heap, next)->previous = position;
  arena->bins[bin] = position;
}

static __device__ void lists_unlink(const adapter::handle &heap, volatile lists_arena *arena, unsigned position) {
  volatile lists_segment *segment = lists_segment_at(heap, position);
  unsigned next = segment->next, previous = segment->previous;
  if (next != lists_none)
    lists_segment_at(heap, next)->previous = previous;
  if (previous != lists_none)
    lists_segment_at(heap, previous)->next = next;
  else
    arena->bins[lists_bin(segment->units)] = next;
}

/* The first free segment of the arena with at least so many units, from the bin of that size upwards; else
 * lists_none. */
static __device__ unsigned lists_find(const adapter::handle &heap, volatile lists_arena *arena, unsigned units) {
  for (unsigned bin = lists_bin(units); bin < lists_bins; bin++)
    for (unsigned at = arena->bins[bin]; at != lists_none; at = lists_segment_at(heap, at)->next)
      if (lists_segment_at(heap, at)->units >= units)
        return at;
  return lists_none;
}

/* Gives the caller units of a free segment.  The rest becomes a free segment, if it is large enough. */
static __device__ void lists_split(const adapter::handle &heap, volatile lists_arena *arena, unsigned position,
                                   unsigned units) {
  volatile lists_segment *segment = lists_segment_at(heap, position);
  unsigned rest = segment->units - units;
  lists_unlink(heap, arena, position);
  if (rest <= lists_header_units)
    return;
  segment->units = units;
  lists_segment_at(heap, position + units)->units = rest;
  lists_segment_at(heap, position + units)->arena = segment->arena;
  lists_link(heap, arena, position + units);
}

__device__ void *adapter::take(const handle &heap, size_t bytes) {
  unsigned units = lists_header_units + (unsigned)((bytes + 15) / 16);
  for (unsigned i = 0; i < lists_arena_count(); i++) {
    volatile lists_arena *arena = lists_arena_at(heap, (lists_home() + i) % lists_arena_count());
    if (!lists_lock(arena))
      return NULL;
    unsigned position = lists_find(heap, arena, units);
    if (position != lists_none) {
      lists_split(heap, arena, position, units);
      lists_segment_at(heap, position)->bytes = (unsigned)bytes;
    }
    lists_unlock(arena);
    if (position != lists_none)
      return (void *)(heap.base + 16 * (unsigned long long)(position + lists_header_units));
  }
  return NULL;
}

__device__ void adapter::give(const handle &heap, void *block) {
  unsigned position = (unsigned)(((unsigned long long)block - heap.base) / 16) - lists_header_units;
  volatile lists_segment *segment = lists_segment_at(heap, position);
  volatile lists_arena *arena = lists_arena_at(heap, segment->arena);
  if (!lists_lock(arena))
    return;
  unsigned behind = position + segment->units;
  if (behind < arena->end && lists_segment_at(heap, behind)->bytes == 0) {
    lists_unlink(heap, arena, behind);
    segment->units += lists_segment_at(heap, behind)->units;
  }
  lists_link(heap, arena, position);
  lists_unlock(arena);
}

/* Empties the heap, with one thread for each possible arena. */
extern "C" __global__ void heap_prepare(adapter::handle heap) {
  unsigned index = threadIdx.x, arenas = lists_arena_count();
  if (index >= arenas)
    return;
  unsigned first = lists_arenas_most * sizeof(lists_arena) / 16;
  unsigned share = (unsigned)(heap.bytes / 16 - first) / arenas;
  volatile lists_arena *arena = lists_arena_at(heap, index);
  arena->lock = 0;
  arena->first = first + index * share;
  arena->end = arena->first + share;
  for (unsigned bin = 0; bin < lists_bins; bin++)
    arena->bins[bin] = lists_none;
  lists_segment_at(heap, arena->first)->units = share;
  lists_segment_at(heap, arena->first)->arena = index;
  lists_link(heap, arena, arena->first);
}

/* Adds up what is free, with one thread for each arena.  The headers of segments are the metadata. */
extern "C" __global__ void heap_survey(adapter::handle heap, struct heap_survey *survey) {
  if (threadIdx.x >= lists_arena_count())
    return;
  volatile lists_arena *arena = lists_arena_at(heap, threadIdx.x);
  for (unsigned at = arena->first; at < arena->end; at += lists_segment_at(heap, at)->units) {
    unsigned long long bytes = 16ull * (lists_segment_at(heap, at)->units - lists_header_units);
    atomicAdd(&survey->metadata_bytes, 16ull * lists_header_units);
    if (lists_segment_at(heap, at)->bytes != 0)
      continue;
    atomicAdd(&survey->free_bytes, bytes);
    atomicMax(&survey->largest_free_bytes, bytes);
  }
}
