/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/device.cuh - malloc and free for kernels, from a device heap that the host created (mam/heap.h).
 *
 *   __global__ void kernel(mam_heap heap) {
 *     float *row = (float *)mam_malloc(heap, 100 * sizeof(float));
 *     if (row != NULL) ...
 *     mam_free(heap, row);
 *   }
 *
 * The header works for sm_75 and later, with and without -rdc=true, with nvcc, NVRTC and tools that use NVRTC.  It
 * needs no header outside of include/mam.  The host gets the handle from MAM_HeapHandle and passes it to the kernel by
 * value; mam-heap(7) names other places for it.
 *
 * Any thread of a kernel may call any function at any time: lanes that diverged, and several kernels and streams at
 * once.  Any thread may free a block: of the same kernel, of a later kernel, or of the host (MAM_HeapFree).  No
 * function waits for another thread for longer than a bounded time.
 *
 * Memory order: what a thread wrote to a block before it freed the block comes before everything that the block's next
 * owner does with it.  What another thread wrote comes before that only if it happens before the free, as with any
 * free.
 *
 * Units: sizes and alignments are in bytes.
 *
 * The program may define before it includes the header:
 *   MAM_HEAP_CHECKED   1: frees verify their argument, see mam_free.  This costs time.  Default 0.
 *   MAM_HEAP_RECORDED  1: mam_malloc, mam_malloc_aligned, mam_free and mam_malloc_size keep records of the calling line
 *                      and the requested size, in heaps that have records.  Define it in all files whose kernels use
 *                      the heap.  Default 0.
 */
#ifndef MAM_DEVICE_CUH
#define MAM_DEVICE_CUH

#include <mam/heap_grow.h>
#include <mam/heap_record.h>

/* Allocates at least bytes bytes and returns their address, which is a multiple of 16.  The memory is not initialised.
 * The block belongs to the caller until a free.  A block has a multiple of 16 bytes up to 128, at most a fourth more
 * than bytes above that, and whole pages of 4 KiB above 32 KiB.  A full heap may serve a request from chunks of spans
 * that are up to twice as large.
 *
 * Returns NULL if bytes is 0 or the heap cannot serve the request; mam_malloc_why says why.  If the heap grows under
 * kernels (MAM_HeapOptions, grow_bytes), the call waits for more memory before it fails, up to wait_ms. */
static __device__ void *mam_malloc(mam_heap heap, size_t bytes);

/* Allocates as mam_malloc does and writes the reason to *why, which must not be NULL: MAM_HEAP_OK if it returns a
 * block; MAM_HEAP_FULL if there is no room; MAM_HEAP_TOO_LARGE if the heap could not serve it even if it were empty;
 * MAM_HEAP_ZERO if bytes is 0; MAM_HEAP_BAD if heap is no handle of a heap: all of it is 0. */
static __device__ void *mam_malloc_why(mam_heap heap, size_t bytes, mam_heap_status *why);

/* Allocates as mam_malloc does and records bytes, file and line for the block, if the host created the heap with
 * records (MAM_HeapOptions).  file is a string of the kernel's module.  The record takes the last 16 bytes of the
 * block.  mam_malloc_size does not count them in a file with MAM_HEAP_RECORDED. */
static __device__ void *mam_malloc_at(mam_heap heap, size_t bytes, const char *file, unsigned line);

/* Allocates as mam_malloc does, at an address that is a multiple of alignment.  alignment is a power of two up to 4096;
 * otherwise the call returns NULL.  The block is as large as one of mam_malloc for bytes rounded up to a multiple of
 * alignment.  A full heap may serve the request from chunks of spans that are up to twice as large, or from whole
 * pages. */
static __device__ void *mam_malloc_aligned(mam_heap heap, size_t alignment, size_t bytes);

/* Allocates an object of a type that the host registered (MAM_HeapRegisterType).  The object has the type's size.  A
 * compaction (MAM_HeapCompact) may move it.  Returns NULL if type is no type of the heap, or the heap is full. */
static __device__ void *mam_malloc_typed(mam_heap heap, mam_type type);

/* Frees a block.  block may be NULL, which does nothing.  The call refuses an address outside of the heap, and one that
 * was freed before and not handed out since: it changes nothing and counts the call (MAM_HeapInfo, refused_free_count).
 * With MAM_HEAP_CHECKED it refuses every address at which no live block starts. */
static __device__ void mam_free(mam_heap heap, void *block);

/* Rewrites *pointer if it points into an object that a compaction moved, so that it points to the same byte of the
 * moved object.  Any other pointer stays as it is.  The call has an effect only between MAM_HeapCompactBegin and
 * MAM_HeapCompactEnd. */
template <typename Type> static __device__ void mam_forward(mam_heap heap, Type **pointer);

/* Returns how many bytes of a live block the program may use: at least what it requested.  Returns 0 for NULL, and for
 * an address at which no live block starts, as far as the call can tell. */
static __device__ size_t mam_malloc_size(mam_heap heap, const void *block);

/* ---- How ---- */

#ifndef MAM_HEAP_CHECKED
#define MAM_HEAP_CHECKED 0
#endif
#ifndef MAM_HEAP_RECORDED
#define MAM_HEAP_RECORDED 0
#endif

/* The calling warp's home and its slot of each class. */
MAM_INLINE mam_u32 mam_home_here(const mam_heap &heap) {
  mam_u32 multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  return (multiprocessor < heap.home_last ? multiprocessor : heap.home_last) >> heap.home_shift;
}
MAM_INLINE mam_u32 mam_slot_here(const mam_heap &heap, mam_u32 home) {
  mam_u32 warp;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  return home << heap.warp_bits | (warp & ((1u << heap.warp_bits) - 1));
}

/* With the page of a span that a slot has got again: it is filled already. */
enum { MAM_REST_AGAIN = 1u << 31 };

MAM_INLINE mam_u32 mam_wanted(const mam_heap &heap, mam_u32 kind, mam_u32 home) {
  return kind | home << MAM_REST_HOME | (heap.lazy && mam_kind_type(kind) == 0 ? MAM_REST_LAZY : 0);
}

/* For count requests for a chunk of a kind that were refused: whether they are to be made again, as mam_growth_await.
 */
MAM_OUTLINE mam_plea mam_malloc_refused(struct mam_heap_control *control, mam_u32 wanted, mam_u32 count,
                                        mam_plea plea) {
  mam_u32 pages = mam_span_pages(control->heap.chunks, wanted & MAM_REST_KIND);
  plea = MAM_OUT_OF_SIGHT(mam_growth_await)(&control->growth, pages, plea);
  if (plea == 0)
    mam_failed(control, wanted >> MAM_REST_HOME & 1023, count);
  return plea;
}

/* Chunks for lanes that got none so far, by all means: growth too.  That is why the loop is here, and not around the
 * code that all kernels have, which would keep twice the registers for it.  The first lane acts for all of the group,
 * and the group comes to each exchange: those that got a chunk leave it between two rounds. */
MAM_OUTLINE void *mam_malloc_rest(struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot, mam_u32 group) {
  mam_plea plea = 0;
  if (control == 0)
    return 0;
  for (;;) {
    struct mam_claim claim = {0, 0, 0};
    MAM_FORGET(group); /* what is computed from it is not kept over the first lane's calls */
    if (mam_ones_u32(group) >> (slot >> MAM_REST_CHUNKS) == 0) /* too few for a whole span */
      wanted &= ~(mam_u32)MAM_REST_WHOLE;
    if ((group & mam_lane_below()) == 0) {
      claim = mam_claim_chunks(control, wanted, slot, mam_ones_u32(group));
      MAM_FORGET(group);
      plea = claim.mask != 0 ? 0 : MAM_OUT_OF_SIGHT(mam_malloc_refused)(control, wanted, mam_ones_u32(group), plea);
    }
    wanted &= ~(mam_u32)MAM_REST_REFILL;
    MAM_FORGET(group);
    struct mam_lanes lanes = mam_lanes_of(group);
    claim.mask = mam_lanes_first_u32(lanes, claim.mask);
    claim.address = mam_lanes_first_u64(lanes, claim.mask != 0 ? claim.address : plea);
    claim.chunk_bytes = mam_lanes_first_u32(lanes, claim.chunk_bytes);
    mam_u32 got = mam_ones_u32(claim.mask);
    if (lanes.rank < got)
      return (void *)mam_claim_chunk(claim, lanes.rank);
    if (got == 0 && claim.address == 0)
      return 0;
    group &= ~mam_lowest_ones(group, got);
  }
}

/* Requests that are not for chunks: of whole pages, or of nothing. */
MAM_OUTLINE void *mam_malloc_pages(mam_u32 home, struct mam_heap_control *control, size_t bytes) {
  mam_plea plea = 0;
  if (control == 0 || bytes == 0)
    return 0;
  for (;;) {
    void *block = (void *)MAM_OUT_OF_SIGHT(mam_run_malloc)(control, bytes, home);
    mam_u64 pages = ((mam_u64)bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
    if (block != 0)
      return block;
    plea = pages < MAM_NO_PAGE ? MAM_OUT_OF_SIGHT(mam_growth_await)(&control->growth, (mam_u32)pages, plea) : 0;
    if (plea == 0) {
      mam_failed(control, home, 1);
      return 0;
    }
  }
}

/* The chunk of a span at address that has that number. */
MAM_INLINE void *mam_chunk_of(mam_u64 address, mam_u32 number, mam_u32 size_class) {
  mam_u32 shift = mam_class_shift(size_class);
  return (void *)(address + ((mam_u64)(number * mam_class_multiple(size_class, shift)) << (shift + 4)));
}

/* Of a group of lanes that together asked for tickets, those that got none: ticket is the first lane's, limit the
 * number of a slot's chunks.  The same for all of them. */
MAM_INLINE mam_u32 mam_lanes_without(mam_u32 group, mam_u32 ticket, mam_u32 limit) {
  return ticket >= limit ? group : group & ~mam_lowest_ones(group, limit - ticket);
}

/* Chunks for the lanes of a group of which none has a ticket.  What it keeps while it calls is little: the rest it
 * computes anew from the class, which it hides from the compiler for that. */
MAM_INLINE void *mam_malloc_more(const mam_heap &heap, mam_u32 wanted, mam_u32 slot, mam_u32 prior, mam_u32 group) {
  mam_u32 rank;
  if ((wanted & (MAM_REST_WHOLE | MAM_REST_REFILL | MAM_REST_DRY)) == 0) {
    mam_u64 old = 0;
    if ((group & mam_lane_below()) == 0)
      old = MAM_OUT_OF_SIGHT(mam_slot_wait)(&heap.slots[slot & MAM_REST_SLOT], 1u << (slot >> MAM_REST_CHUNKS),
                                            mam_ones_u32(group));
    asm volatile("" : "+r"(wanted), "+r"(slot), "+r"(group));
    old = mam_mask_first_u64(group, old); /* all of the group: none has left it */
    rank = mam_ones_u32(group & mam_lane_below());
    mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS), limit = 1u << (slot >> MAM_REST_CHUNKS);
    group = mam_lanes_without(group, ticket, limit);
    if (ticket + rank < limit)
      return mam_chunk_of(mam_slot_address(old), ticket + rank, wanted & MAM_REST_KIND);
    wanted |= ticket <= limit ? MAM_REST_REFILL : 0;
    prior = mam_slot_page(old, heap.base, heap.page_count);
  }
  if ((wanted & (MAM_REST_WHOLE | MAM_REST_REFILL)) != 0 && (wanted & MAM_REST_DRY) == 0 && heap.control != 0) {
    mam_u32 page = MAM_NO_PAGE;
    if ((group & mam_lane_below()) == 0) {
      struct mam_request request = mam_request_of(&heap, wanted, slot, prior);
      struct mam_area area = request.area;
      if ((wanted & MAM_REST_REFILL) != 0)
        mam_held_set(&request);
      if ((wanted & MAM_REST_LAZY) != 0 && (wanted & MAM_REST_REFILL) != 0 && prior != MAM_NO_PAGE)
        page = MAM_REST_AGAIN |
               mam_slot_retake(&request,
                               MAM_OUT_OF_SIGHT(mam_ring_take)(area.words, heap.entries + area.page_count,
                                                               area.page_count, prior, wanted & MAM_REST_KIND,
                                                               request.chunks_log2, request.home, request.home_count),
                               mam_ones_u32(group));
      if (page == MAM_NO_PAGE)
        page = MAM_OUT_OF_SIGHT(mam_refill_pages)(
            &mam_cursors(heap.control)[request.home], area.words, area.page_count, request.home, request.home_count,
            (mam_class_bytes(wanted & MAM_REST_KIND) << (slot >> MAM_REST_CHUNKS)) >> MAM_PAGE_SHIFT);
    }
    asm volatile("" : "+r"(wanted), "+r"(slot), "+r"(group), "+r"(prior));
    page = mam_mask_first_u32(group, page); /* all of the group, or of those that the wait above left in it */
    if (page != MAM_NO_PAGE) {
      struct mam_request request = mam_request_of(&heap, wanted, slot, prior);
      struct mam_lanes lanes = mam_lanes_of(group);
      mam_u32 got = lanes.count;
      if ((page & MAM_REST_AGAIN) == 0)
        got = mam_slot_fill(&request, request.area, page, lanes.count, lanes);
      page &= MAM_REFILL_PAGE;
      group &= ~mam_lowest_ones(group, got);
      if (lanes.rank < got)
        return mam_chunk_of(mam_area_address(request.area, page), lanes.rank, wanted & MAM_REST_KIND);
      wanted &= ~(mam_u32)MAM_REST_REFILL;
    }
  }
  return MAM_OUT_OF_SIGHT(mam_malloc_rest)(heap.control, wanted, slot, group);
}

/* A chunk of a kind of that number, whose size class has that shift and multiple. */
MAM_INLINE void *mam_malloc_kind(const mam_heap &heap, mam_u32 home, mam_u32 kind, mam_u32 number, mam_u32 shift,
                                 mam_u32 multiple) {
  mam_u32 chunks_log2 = mam_span_chunks_log2(heap.chunks, shift);
  mam_u32 slot = number * heap.slot_count + mam_slot_here(heap, home);
  mam_u32 here = __activemask(), group = __match_any_sync(here, kind), count = mam_ones_u32(group);
  mam_u32 rank = mam_ones_u32(group & mam_lane_below());
  /* A group that is large enough for whole spans asks for no tickets. */
  mam_u64 old = MAM_SLOT_TICKETS;
  int few = count >> chunks_log2 == 0;
  if (few && rank == 0) /* acquire: as in mam_slot_take, of which this is the part that every kernel has */
    old = mam_add_acquire_u64(&heap.slots[slot], count);
  /* All that were here come to this exchange, of whatever group: groups by themselves would take turns. */
  here = mam_mask_of(here);
  __syncwarp(here); /* what the first lane of a group acquired comes before what the others do with their chunks */
  old = __shfl_sync(here, old, (int)mam_lowest_u32(group));
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS), mine = ticket + rank;
  if (mine >> chunks_log2 == 0)
    return (void *)(mam_slot_address(old) + ((mam_u64)(mine * multiple) << (shift + 4)));
  mam_u32 wanted = mam_wanted(heap, kind, home);
  wanted |= !few ? MAM_REST_WHOLE
                 : (ticket <= 1u << chunks_log2 ? MAM_REST_REFILL : 0) | (mam_slot_is_dry(old) ? MAM_REST_DRY : 0);
  mam_u32 prior = mam_slot_page(old, heap.base, heap.page_count);
  group = mam_lanes_without(mam_mask_of(group), ticket, 1u << chunks_log2);
  return mam_malloc_more(heap, wanted, slot | chunks_log2 << MAM_REST_CHUNKS, prior, group);
}

static __device__ __forceinline__ void *mam_malloc(mam_heap heap, size_t bytes) {
  mam_u32 home = mam_home_here(heap);
  if (bytes - 1 >= MAM_CHUNK_BYTES)
    return MAM_OUT_OF_SIGHT(mam_malloc_pages)(home, heap.control, bytes);
  mam_u32 less = (mam_u32)(bytes - 1) >> 4, shift = mam_class_shift_of(less), multiple = (less >> shift) + 1;
  mam_u32 size_class = 4 * shift + multiple - 1;
  return mam_malloc_kind(heap, home, size_class, size_class, shift, multiple);
}

static __device__ __forceinline__ void *mam_malloc_typed(mam_heap heap, mam_type type) {
  mam_u32 shift = mam_class_shift(type);
  if (mam_kind_type(type) == 0)
    return 0;
  return mam_malloc_kind(heap, mam_home_here(heap), type, mam_kind_number(type), shift,
                         mam_class_multiple(type, shift));
}

static __device__ __forceinline__ void *mam_malloc_why(mam_heap heap, size_t bytes, mam_heap_status *why) {
  void *block = mam_malloc(heap, bytes);
  *why = block != 0                                              ? MAM_HEAP_OK
         : heap.control == 0                                     ? MAM_HEAP_BAD
         : bytes == 0                                            ? MAM_HEAP_ZERO
         : MAM_OUT_OF_SIGHT(mam_heap_could)(heap.control, bytes) ? MAM_HEAP_FULL
                                                                 : MAM_HEAP_TOO_LARGE;
  return block;
}

/* Frees that are not of chunks in the first superblock, or are to be checked. */
MAM_OUTLINE void mam_free_rest(struct mam_heap_control *control, void *block) {
  if (control != 0 && block != 0)
    (void)MAM_OUT_OF_SIGHT(mam_block_free)(control, (mam_u64)block);
}

/* What comes after bits of a usage word in the first superblock were cleared, or what was wrong with that. */
MAM_OUTLINE void mam_free_more(struct mam_heap_control *control, mam_u64 *words, mam_u32 page_count, mam_u32 word,
                               mam_u64 old, mam_u32 bits) {
  struct mam_area area = {0, words, page_count, 0};
  if (((mam_u32)old & bits) != bits)
    (void)mam_add_relaxed_u64(&control->refused_free, mam_ones_u32(bits & ~(mam_u32)old));
  if (((mam_u32)old & bits) != 0)
    MAM_OUT_OF_SIGHT(mam_word_follow)(word, bits, old, area);
}

/* Lanes of one group: the or of their bits. */
MAM_INLINE mam_u32 mam_lanes_or(mam_u32 group, mam_u32 bits) {
#if __CUDA_ARCH__ >= 800
  return __reduce_or_sync(group, bits);
#else
  mam_u32 all = 0;
  for (mam_u32 rest = group; rest != 0; rest &= rest - 1)
    all |= __shfl_sync(group, bits, (int)mam_lowest_u32(rest));
  return all;
#endif
}

enum { MAM_FREE_GROUPS = 4 };

static __device__ __forceinline__ void mam_free(mam_heap heap, void *block) {
  mam_u64 offset = (mam_u64)block - heap.base;
  mam_u32 entry = 0;
  if (!MAM_HEAP_CHECKED && (offset >> MAM_PAGE_SHIFT) < heap.page_count)
    entry = mam_load_relaxed_u16(&heap.entries[offset >> MAM_PAGE_SHIFT]);
  if ((entry & 63) - 1 >= MAM_HEAP_CLASSES) {
    MAM_OUT_OF_SIGHT(mam_free_rest)(heap.control, block);
    return;
  }
  struct mam_bit bit = mam_bit_of(offset, entry);
  mam_u32 here = __activemask(), group = __match_any_sync(here, bit.word), bits = 1u << bit.bit;
  /* Groups take turns where each does something alone, so many small ones are better left.  The lanes that are here
   * come from the match to this vote, whose number is the same for all of them, and to the barrier with nothing
   * between. */
  int groups = (int)mam_ones_u32(__ballot_sync(here, (group & mam_lane_below()) == 0));
  __syncwarp(here); /* what the lanes wrote to their blocks comes before the first lane's release */
  if (groups <= MAM_FREE_GROUPS) {
    bits = mam_lanes_or(mam_mask_of(group), bits);
    if ((group & mam_lane_below()) != 0)
      return;
  }
  mam_u64 old = mam_and_release_u64(&heap.words[bit.word], ~(mam_u64)bits); /* release: as in mam_chunks_free */
  if (mam_word_wants_more(old, bits) || ((mam_u32)old & bits) != bits)
    MAM_OUT_OF_SIGHT(mam_free_more)(heap.control, heap.words, heap.page_count, bit.word, old, bits);
}

static __device__ __forceinline__ size_t mam_malloc_size(mam_heap heap, const void *block) {
  return heap.control != 0 && block != 0 ? MAM_OUT_OF_SIGHT(mam_block_bytes)(heap.control, (mam_u64)block) : 0;
}

template <typename Type> static __device__ void mam_forward(mam_heap heap, Type **pointer) {
  mam_u64 old = (mam_u64)*pointer, now = heap.control != 0 ? mam_forwarded(&heap, old) : old;
  if (now != old)
    *pointer = (Type *)now;
}

/* ---- Alignment ----
 *
 * A span begins on a page, so what lies in it is aligned as its chunks' size is, up to a page.  Sizes of a class are
 * even steps, and at most a fourth of the largest of them: of a number that is a multiple of the alignment, the class
 * is either of a larger step, which is a multiple of it too, or has that very size.  So a request for the next multiple
 * of the alignment gets what is aligned, and above MAM_CHUNK_BYTES whole pages.  Only a full heap serves a request from
 * chunks of another class, which need not be aligned. */

/* An aligned block of bytes, a multiple of alignment, in place of one that is not: of larger classes up to twice as
 * large, which are multiples of alignment themselves; or whole pages, for which the heap may grow. */
MAM_OUTLINE void *mam_malloc_aligned_rest(MAM_TAG(1) struct mam_heap_control *control, mam_u32 mask, mam_u32 bytes,
                                          void *block) {
  mam_u32 home = mam_home_here(control->heap), larger = bytes;
  for (;;) {
    MAM_OUT_OF_SIGHT(mam_free_rest)(control, block);
    larger = (mam_class_bytes(mam_class_of(larger)) + 1 + mask) & ~mask;
    if (larger > 2 * bytes || larger > MAM_CHUNK_BYTES)
      break;
    struct mam_claim claim =
        MAM_OUT_OF_SIGHT(mam_claim_scarce)(control, mam_class_of(larger) | home << MAM_REST_HOME, 1);
    if (claim.mask == 0)
      break;
    block = (void *)mam_claim_chunk(claim, 0);
    if (((mam_u64)block & mask) == 0)
      return block;
  }
  return MAM_OUT_OF_SIGHT(mam_malloc_pages)(home, control, bytes);
}

static __device__ __forceinline__ void *mam_malloc_aligned(mam_heap heap, size_t alignment, size_t bytes) {
  size_t mask = alignment - 1;
  if (mask >= MAM_PAGE_BYTES || (alignment & mask) != 0)
    return 0;
  bytes = (bytes + mask) & ~mask; /* 0 where that is too much for a number */
  void *block = mam_malloc(heap, bytes);
  if (((mam_u64)block & mask) == 0)
    return block;
  return MAM_OUT_OF_SIGHT(mam_malloc_aligned_rest)(heap.control, (mam_u32)mask, (mam_u32)bytes, block);
}

/* ---- Records ---- */

static __device__ __forceinline__ void *mam_malloc_at(mam_heap heap, size_t bytes, const char *file, unsigned line) {
  if (heap.control == 0 || heap.control->sites == 0 || bytes - 1 >= ~(size_t)0 - sizeof(struct mam_record))
    return mam_malloc(heap, bytes);
  void *block = mam_malloc(heap, bytes + sizeof(struct mam_record));
  if (block != 0)
    MAM_OUT_OF_SIGHT(mam_record_write)(heap.control, (mam_u64)block, bytes, file, line);
  return block;
}

/* Of a block with a record the bytes before it are the caller's: as mam_malloc_at. */
static __device__ __forceinline__ void *mam_malloc_aligned_at(mam_heap heap, size_t alignment, size_t bytes,
                                                              const char *file, unsigned line) {
  if (heap.control == 0 || heap.control->sites == 0 || bytes - 1 >= ~(size_t)0 - sizeof(struct mam_record))
    return mam_malloc_aligned(heap, alignment, bytes);
  void *block = mam_malloc_aligned(heap, alignment, bytes + sizeof(struct mam_record));
  if (block != 0)
    MAM_OUT_OF_SIGHT(mam_record_write)(heap.control, (mam_u64)block, bytes, file, line);
  return block;
}

#if MAM_HEAP_RECORDED
MAM_INLINE void mam_free_recorded(mam_heap heap, void *block) {
  if (heap.control != 0 && heap.control->sites != 0 && block != 0)
    MAM_OUT_OF_SIGHT(mam_record_end)(heap.control, (mam_u64)block);
  mam_free(heap, block);
}
MAM_INLINE size_t mam_malloc_size_recorded(mam_heap heap, const void *block) {
  return heap.control != 0 && block != 0 ? MAM_OUT_OF_SIGHT(mam_record_size)(heap.control, (mam_u64)block) : 0;
}
#define mam_malloc(heap, bytes) mam_malloc_at(heap, bytes, __FILE__, __LINE__)
#define mam_malloc_aligned(heap, alignment, bytes) mam_malloc_aligned_at(heap, alignment, bytes, __FILE__, __LINE__)
#define mam_free(heap, block) mam_free_recorded(heap, block)
#define mam_malloc_size(heap, block) mam_malloc_size_recorded(heap, block)
#endif

#endif /* MAM_DEVICE_CUH */
