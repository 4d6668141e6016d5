/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device heap's protocol in every interleaving: two and three threads that claim, free, end spans and use pages for
 * another size, one atomic operation at a time (interleave.h).
 *
 * The threads are coroutines on one thread and stop before each atomic operation.  So operations are sequentially
 * consistent; lib/heap/README.md argues what weaker orders could add.  The values that a thread has read say where it
 * is.
 *
 *   a scenario       prepare, then a body for each thread, then judge
 *   judge            no two blocks overlap, no page is lost, no free chunk is hidden, no empty span is left, and maps
 *                    are true at all levels
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static void step(void);
static uint64_t seen(uint64_t value);
#define MAM__ATOMICS_STEP() step()
#define MAM__ATOMICS_SEEN(value) seen(value)
#define MAM__ATOMICS_PAUSE() waits()
#define MAM__SCARCE_PATIENCE patience
static void waits(void);
static unsigned patience; /* what the passes of a request may cost */

#include "support/heap_model.h"
#include "support/interleave.h"
#include "support/run_suite.h"

enum {
  THREADS = 3,
  BLOCKS = 8,
  HEAP_BYTES = 24 * MAM__PAGE_BYTES,
  WIDE_BYTES = 80 * MAM__PAGE_BYTES,
  LONG_BYTES = 216 * MAM__PAGE_BYTES,
  PART_BYTES = 4420 * MAM__PAGE_BYTES
};
enum { CLASS_A = 19, CLASS_B = 20 }; /* 1024 and 1280 bytes: a span has 32 chunks and one usage word */

/* ---- Threads ---- */

static uint64_t readings[THREADS];

static void step(void) {
  if (coroutine_running < 0)
    return;
  /* Some steps read nothing, and the thread is at another place all the same. */
  readings[coroutine_running] = interleave_mix(readings[coroutine_running], 0);
  coroutine_yield();
}

static uint64_t seen(uint64_t value) {
  if (coroutine_running >= 0)
    readings[coroutine_running] = interleave_mix(readings[coroutine_running], value + 1);
  return value;
}

/* A thread that waits goes on when another thread has changed something, or when no other can go. */
static bool waiting[THREADS];
static uint64_t waits_since[THREADS];
static uint64_t memory_hash(void);

static void waits(void) {
  if (coroutine_running < 0)
    return;
  waiting[coroutine_running] = true;
  waits_since[coroutine_running] = memory_hash();
}

static bool can_go(int which) {
  if (coroutine_lives[which] && waiting[which] && waits_since[which] != memory_hash())
    waiting[which] = false;
  return coroutine_lives[which] && !waiting[which];
}

/* ---- A scenario ---- */

struct thread {
  void *blocks[BLOCKS]; /* blocks that it holds; NULL: none */
  unsigned count;
  bool unsound; /* its free succeeded: of two frees of one block, one must */
};

struct scenario {
  const char *name;
  unsigned threads;
  void (*prepare)(void);
  void (*bodies[THREADS])(void);
  void (*conclude)(void); /* what is asked beyond judge; NULL: nothing */
};

static struct heap_model *model;
static void *prepared[64];
static struct thread threads[THREADS];
static const struct scenario *scenario;

/* What is claimed after the threads have ended, by `conclude`, is held by the first one. */
static void hold(void *block) {
  struct thread *thread = &threads[coroutine_running < 0 ? 0 : coroutine_running];
  if (block != NULL)
    thread->blocks[thread->count++] = block;
}

static void claim_by_recycling(mam__u32 size_class) {
  struct mam__claim claim = mam__recycle_any(model->control, size_class, 1);
  if (claim.mask != 0)
    hold((void *)(uintptr_t)mam__claim_chunk(claim, 0));
}

static void claim_quickly(mam__u32 size_class) {
  void *block = heap_model_claim(model, size_class);
  if (block != NULL)
    hold(block);
}

/* Searches for a run of pages until it has one or there is none. */
static struct mam__found search(mam__u32 pages) {
  mam__u32 step = MAM__SEARCH_NEAR, at = model->control->active, home = 0, page = MAM__NO_PAGE;
  while (step != MAM__SEARCH_END && page == MAM__NO_PAGE)
    page = mam__search_turn(model->control, pages, &home, &step, &at, page);
  struct mam__found found = {mam__search_area(model->control, at), page};
  return found;
}

/* Takes pages and makes a span of them whose first count chunks are the caller's, as a pass does. */
static struct mam__claim claim_own(mam__u32 size_class, mam__u32 pages, mam__u32 count) {
  struct mam__claim none = {0, 0, 0};
  if (mam__pages_before(model->control, size_class, 0, pages, count, 1) != MAM__PAGES_SEARCH)
    return none;
  struct mam__found found = search(pages);
  if (found.page != MAM__NO_PAGE)
    return mam__span_begin(model->control, size_class, 0, pages, count, 1, found);
  if (mam__span_is_shared(size_class, pages, count))
    mam__opening_end(model->control, size_class);
  return none;
}

static void claim_of_a_new_span(mam__u32 size_class) {
  struct mam__claim claim = claim_own(size_class, mam__span_pages(model->control->heap.tuning, size_class), 1);
  if (claim.mask != 0)
    hold((void *)(uintptr_t)mam__claim_chunk(claim, 0));
}

static const char *violation; /* what is wrong in this run, NULL if nothing */

static void free_prepared(unsigned index) {
  if (!heap_model_free(model, prepared[index]))
    violation = "a live block was refused";
}

/* ---- What must hold after every run ---- */

static mam__u64 bytes_of(const void *block) { return mam__block_bytes(model->control, (mam__u64)(uintptr_t)block); }

static const char *overlap(void) {
  for (unsigned i = 0; i < THREADS * BLOCKS; i++)
    for (unsigned j = 0; j < i; j++) {
      const char *a = (const char *)threads[i / BLOCKS].blocks[i % BLOCKS];
      const char *b = (const char *)threads[j / BLOCKS].blocks[j % BLOCKS];
      if (a != NULL && b != NULL && a < b + bytes_of(b) && b < a + bytes_of(a))
        return "two blocks overlap";
    }
  return NULL;
}

/* A free chunk of a span is found by a request for its class. */
static const char *hidden(void) {
  struct mam__area area = model->control->superblocks[0];
  for (mam__u32 page = 0; page < area.page_count; page++)
    for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
      mam__u64 word = area.words[page * MAM__PAGE_WORDS + i];
      if (mam__word_free(word) == 0)
        continue;
      const mam__u64 *map = mam__area_class(area, mam__word_class(word));
      if ((map[page >> 6] >> (page & 63) & 1) != 0 || map[mam__area_map_words(area)] == MAM__FULL_WORD)
        return "a free chunk is in no map";
    }
  return NULL;
}

/* The upper levels of the maps hide nothing. */
static const char *closed_above(void) {
  struct mam__area area = model->control->superblocks[0];
  bool open = heap_model_opens_above(mam__area_pages(area), mam__area_map_words(area));
  for (mam__u32 kind = 0; kind < MAM__HEAP_CLASSES; kind++)
    open = open && heap_model_opens_above(mam__area_class(area, kind), mam__area_map_words(area));
  return open ? NULL : "what is open in a map is closed above";
}

/* All taken pages belong to spans and runs, and no page belongs to two. */
static const char *stray_pages(void) {
  struct mam__area area = model->control->superblocks[0];
  bool owned[PART_BYTES / MAM__PAGE_BYTES] = {false};
  for (mam__u32 page = 0; page < area.page_count; page++) {
    mam__u64 word = area.words[page * MAM__PAGE_WORDS];
    mam__u32 count = word == 0 ? 0 : mam__word_is_run(word) ? mam__run_pages(word, 0) : mam__word_span_pages(word);
    for (mam__u32 i = page; i < page + count; i++) {
      if (owned[i])
        return "two spans overlap";
      owned[i] = true;
    }
  }
  for (mam__u32 page = 0; page < area.page_count; page++)
    if ((mam__area_pages(area)[page / 64] >> page % 64 & 1) != owned[page])
      return "pages are lost, or free under a span";
  return NULL;
}

/* A span whose last chunk was freed has ended. */
static const char *left_over(void) {
  struct mam__area area = model->control->superblocks[0];
  for (mam__u32 page = 0; page < area.page_count; page++) {
    const mam__u64 *words = &area.words[page * MAM__PAGE_WORDS];
    mam__u32 used = 0;
    for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
      used |= mam__word_used(words[i]);
    if (words[0] != 0 && !mam__word_is_run(words[0]) && used == 0)
      return "an empty span has not ended";
  }
  return NULL;
}

/* Pages that a search noted as missing are missing. */
static const char *known_wrongly(void) {
  bool holds = heap_model_shortages_hold(model->control->superblocks[0]);
  return holds ? NULL : "pages that are there are known to be missing";
}

static const char *judge(void) {
  const char *fault = violation;
  for (unsigned i = 0; i < THREADS && fault == NULL; i++)
    for (unsigned j = 0; j < threads[i].count && fault == NULL; j++)
      if (bytes_of(threads[i].blocks[j]) == 0)
        fault = "a block that a thread holds is not live";
  fault = fault != NULL ? fault : overlap();
  bool lazy_still =
      model->control->mode != MAM__MODE_WATCHED; /* then free chunks are in no map, and empty spans stay */
  fault = fault != NULL || lazy_still ? fault : hidden();
  fault = fault != NULL || lazy_still ? fault : closed_above();
  fault = fault != NULL ? fault : stray_pages();
  fault = fault != NULL ? fault : known_wrongly();
  fault = fault != NULL || lazy_still ? fault : left_over();
  if (fault == NULL && scenario->conclude != NULL) {
    scenario->conclude();
    fault = violation;
  }
  for (unsigned i = 0; i < THREADS && fault == NULL; i++)
    for (unsigned j = 0; j < threads[i].count && fault == NULL; j++)
      if (!heap_model_free(model, threads[i].blocks[j]))
        fault = "a block that a thread holds cannot be freed";
  return fault != NULL ? fault : stray_pages();
}

/* ---- All interleavings ---- */

static uint64_t memory_hash(void) {
  struct mam__area area = model->control->superblocks[0];
  const mam__u64 *end = (mam__u64 *)(uintptr_t)area.base;
  const mam__u64 *entries = area.words - 1 - mam__entries_words(area.page_count);
  uint64_t hash = 0;
  for (const mam__u64 *word = mam__area_metadata(area); word < end; word++)
    if (word < entries || word >= area.words - 1) /* the usage words confirm what entries say */
      hash = interleave_mix(hash, *word + (mam__u64)(end - word));
  for (mam__u32 i = 0; i < model->control->heap.slot_count * MAM__HEAP_KINDS; i++)
    hash = interleave_mix(hash, *mam__slot_at(model->control, i));
  for (mam__u32 number = 0; number < MAM__HEAP_KINDS; number++)
    hash = interleave_mix(hash, model->control->held[number]);
  for (mam__u32 number = 0; number < MAM__HEAP_KINDS; number++)
    hash = interleave_mix(hash, model->control->missing[number]);
  hash = interleave_mix(hash, model->control->mode | (uint64_t)model->control->sweep_next << 8 |
                                  (uint64_t)model->control->sweep_done << 32);
  hash = interleave_mix(hash, model->control->kept_end);
  for (unsigned i = 0; i < MAM__OPENINGS; i++)
    hash = interleave_mix(hash, model->control->opening[i]);
  return interleave_mix(hash, mam__cursors(model->control)[0]);
}

static uint64_t state_hash(void) {
  uint64_t hash = memory_hash();
  for (unsigned i = 0; i < scenario->threads; i++)
    hash = interleave_mix(hash, readings[i] * 4 + coroutine_lives[i] * 2 + waiting[i]);
  return hash;
}

static void body(int which) { scenario->bodies[which](); }

static void run_begin(void) {
  memset(threads, 0, sizeof threads);
  violation = NULL;
  patience = 1; /* further passes would multiply the states */
  model->control->heap.tuning &= ~MAM__TUNED_LAZY;
  mam__area_clear(model->control->superblocks[0], 0, 1);
  mam__slots_clear(model->control, 0, 1);
  memset(model->control->missing, 0, sizeof model->control->missing);
  memset(model->control->opening, 0, sizeof model->control->opening); /* the run before may have ended in the middle */
  scenario->prepare();
  for (unsigned i = 0; i < scenario->threads; i++) {
    coroutine_create((int)i, body);
    waiting[i] = false;
    readings[i] = i;
  }
}

/* The threads that do not wait.  If all wait, all that have not ended. */
static unsigned who_can(void) {
  unsigned can = 0, living = 0;
  for (unsigned i = 0; i < scenario->threads; i++) {
    can |= (unsigned)can_go((int)i) << i;
    living |= (unsigned)coroutine_lives[i] << i;
  }
  return can != 0 ? can : living;
}

/* Explores a scenario.  Returns the first fault that is found, NULL if there is none.  *states: how many states there
 * are. */
static const char *explore(const struct scenario *explored, size_t heap_bytes, size_t *states) {
  const struct interleave threads_of_it = {explored->name, run_begin, who_can, coroutine_resume,
                                           state_hash,     NULL,      judge};
  scenario = explored;
  model = heap_model_create(heap_bytes, 1);
  const char *fault = interleave_explore(&threads_of_it, states);
  heap_model_destroy(model);
  return fault;
}

/* ---- Scenarios ---- */

/* Prepares blocks: the first chunks of a span of a class, or all of them.  No slot holds the span. */
static void prepare_blocks(mam__u32 size_class, unsigned count) {
  mam__u32 limit = mam__slot_limit(&model->control->heap, size_class);
  mam__u32 pages = mam__span_pages(model->control->heap.tuning, size_class);
  struct mam__claim claim = claim_own(size_class, pages, count);
  for (unsigned i = 0; i < count; i++)
    prepared[i] = (void *)(uintptr_t)mam__claim_chunk(claim, i);
  ck_assert_uint_le(count, limit);
}

static void one_left(void) { prepare_blocks(CLASS_A, 1); }
/* Takes a run of all pages except those of one span. */
static void *run_of_all_but_a_span(void) {
  mam__u32 pages = model->control->superblocks[0].page_count - mam__span_pages(model->control->heap.tuning, CLASS_A);
  return (void *)(uintptr_t)mam__run_malloc(model->control, (mam__u64)pages * MAM__PAGE_BYTES, 0);
}
/* The same as one_left, and no other page is free, so the next span begins where this one did. */
static void one_left_of_all(void) {
  one_left();
  ck_assert_ptr_nonnull(run_of_all_but_a_span());
}
static void two_left(void) { prepare_blocks(CLASS_A, 2); }
/* No page is free, and the slot of CLASS_A has no ticket.  It is not dry.  Of a span of no slot two chunks are free. */
static void two_chunks_and_no_page(void) {
  prepare_blocks(CLASS_A, 32);
  ck_assert_ptr_nonnull(run_of_all_but_a_span());
  for (unsigned i = 30; i < 32; i++)
    (void)heap_model_free(model, prepared[i]);
}
static void full_span(void) {
  prepare_blocks(CLASS_A, 32);
  (void)mam__recycle_any(model->control, CLASS_A, 1); /* it finds none and clears the hint */
}
/* Prepares one chunk in each of two words of a span, and nothing else in it.  The span has 64 chunks of 320 bytes. */
enum { CLASS_TWO_WORDS = 12 };
static void two_words(void) {
  prepare_blocks(CLASS_TWO_WORDS, 32);
  struct mam__claim claim = mam__recycle_any(model->control, CLASS_TWO_WORDS, 1);
  for (unsigned i = 1; i < 32; i++)
    (void)heap_model_free(model, prepared[i]);
  prepared[1] = (void *)(uintptr_t)mam__claim_chunk(claim, 0);
}
/* Prepares one chunk in the first word of such a span, and nothing in the second. */
static void one_in_two_words(void) { prepare_blocks(CLASS_TWO_WORDS, 1); }
/* One chunk of such a span is free, in the first word.  prepared[1] is in the second. */
static void one_free_in_two_words(void) {
  prepare_blocks(CLASS_TWO_WORDS, 32);
  struct mam__claim claim = mam__recycle_any(model->control, CLASS_TWO_WORDS, 32);
  ck_assert_uint_eq(mam__ones_u32(claim.mask), 32);
  ck_assert(heap_model_free(model, prepared[0]));
  prepared[1] = (void *)(uintptr_t)mam__claim_chunk(claim, 0);
}
/* A part of a span: one page with 85 chunks of 48 bytes, all of them used.  16 bytes are left. */
enum { CLASS_WITH_TAIL = 2, TAIL_CHUNK = 85 };
static void full_part(void) {
  struct mam__claim claim = claim_own(CLASS_WITH_TAIL, 1, 32);
  prepared[0] = (void *)(uintptr_t)mam__claim_chunk(claim, 0);
  for (unsigned used = 32; used < TAIL_CHUNK; used += mam__ones_u32(claim.mask)) {
    claim = mam__recycle_any(model->control, CLASS_WITH_TAIL, 32);
    ck_assert_uint_ne(claim.mask, 0);
  }
}
static void nothing(void) {}
/* Prepares a run of all pages except those of one span. */
static void little_room(void) { prepared[0] = run_of_all_but_a_span(); }

static void free_0(void) { free_prepared(0); }
static void free_1(void) { free_prepared(1); }
static void free_2(void) { free_prepared(2); }
/* A wrong free of what is left behind the last chunk, as mam_free does it. */
static void free_the_tail(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 page = (mam__u32)(((mam__u64)(uintptr_t)prepared[0] - area.base) >> MAM__PAGE_SHIFT);
  if (mam__chunks_free(area, page * MAM__PAGE_WORDS + TAIL_CHUNK / 32, 1u << TAIL_CHUNK % 32) == 0)
    violation = "a free of no chunk was not refused";
}
static void recycle_a(void) { claim_by_recycling(CLASS_A); }
static void recycle_two_words(void) { claim_by_recycling(CLASS_TWO_WORDS); }
static void quick_a(void) { claim_quickly(CLASS_A); }
static void quick_two_words(void) { claim_quickly(CLASS_TWO_WORDS); }
static void recycle_with_tail(void) { claim_by_recycling(CLASS_WITH_TAIL); }
static void quick_with_tail(void) { claim_quickly(CLASS_WITH_TAIL); }
/* A claim of a thread that has found the span already. */
static void claim_of_the_second_word(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u64 *word =
      &area.words[(mam__u32)(((mam__u64)(uintptr_t)prepared[0] - area.base) >> MAM__PAGE_SHIFT) * MAM__PAGE_WORDS + 1];
  mam__u32 bits = mam__word_claim(word, mam__load_relaxed_u64(word), CLASS_TWO_WORDS, 1);
  if (bits != 0)
    hold((char *)prepared[0] + (size_t)(32 + mam__lowest_u32(bits)) * mam__class_bytes(CLASS_TWO_WORDS));
}
static void free_and_split_anew(void) {
  free_prepared(0);
  claim_of_a_new_span(CLASS_B);
}
/* Each chunk that is used is a block of a thread. */
static void none_is_lost(void) {
  struct mam__area area = model->control->superblocks[0];
  unsigned used = 0, held = 0;
  for (mam__u32 i = 0; i < area.page_count * MAM__PAGE_WORDS; i++)
    used += mam__ones_u32(mam__word_is_run(area.words[i]) ? 0 : mam__word_used(area.words[i]));
  for (unsigned i = 0; i < THREADS; i++)
    held += threads[i].count;
  if (used != held)
    violation = "a chunk is used and no thread has it";
}
static void free_and_split_smaller(void) {
  free_prepared(0);
  claim_of_a_new_span(CLASS_A - 1);
}
static void free_what_it_holds(void) {
  struct thread *thread = &threads[coroutine_running];
  if (thread->count != 0 && !heap_model_free(model, thread->blocks[--thread->count]))
    violation = "a block just claimed cannot be freed";
  thread->blocks[thread->count] = NULL;
}
static void claim_and_free(void) {
  claim_by_recycling(CLASS_A);
  free_what_it_holds();
}
static void claim_of_the_second_word_and_free(void) {
  claim_of_the_second_word();
  free_what_it_holds();
}
static void take_tickets(void) {
  void *blocks[1];
  if (heap_model_malloc_warp(model, 1024, 0, 1, blocks) == 1)
    hold(blocks[0]);
  else
    violation = "there was room";
}
static void take_many_tickets(void) {
  void *blocks[31];
  unsigned got = heap_model_malloc_warp(model, 1024, 0, 31, blocks);
  if (got != 31)
    violation = "there was room for all";
  for (unsigned i = 0; i < got && i < BLOCKS; i++)
    hold(blocks[i]);
}

/* ---- A dry slot, and pages that have come back since ---- */

/* The slot of CLASS_A is dry.  All pages are free. */
static void dry(void) {
  mam__u32 number = mam__kind_number(CLASS_A) * model->control->heap.slot_count;
  *mam__slot_at(model->control, number) = MAM__SLOT_DRY | mam__slot_limit(&model->control->heap, CLASS_A);
}
/* Frees a chunk of the span that a refill makes.  No thread was given that chunk. */
static void free_what_no_thread_has(void) {
  mam__u64 first = mam__area_address(model->control->superblocks[0], 0);
  if (heap_model_free(model, (char *)(uintptr_t)first + 31 * mam__class_bytes(CLASS_A)))
    violation = "a chunk that no thread has was freed";
}
/* The refill has made its span where free_what_no_thread_has looks. */
static void refilled_at_first(void) {
  mam__u64 first = mam__area_address(model->control->superblocks[0], 0);
  if ((mam__u64)(uintptr_t)threads[0].blocks[0] - first >= 32 * mam__class_bytes(CLASS_A))
    violation = "the refill has taken other pages";
}

/* ---- A lazy heap: a slot's span, all of whose chunks were handed out and then freed, except the first ---- */

static void lazy_and_keeping(void) {
  model->control->heap.tuning |= MAM__TUNED_LAZY;
  mam__slots_clear(model->control, 0, 1);
}
/* The same after a request found no pages: the heap is about to be swept, and keeps no words. */
static void lazy(void) {
  lazy_and_keeping();
  model->control->kept_end = MAM__KEPT_DONE;
  model->control->sweep_done = mam__area_part_count(model->control->superblocks[0]);
}
/* The slot of CLASS_A has no tickets left, and the first count chunks of its span are live. */
static void lazy_used(unsigned count) {
  lazy();
  if (heap_model_malloc_warp(model, 1024, 0, 31, prepared) != 31 ||
      heap_model_malloc_warp(model, 1024, 0, 1, prepared + 31) != 1)
    ck_abort_msg("there was room");
  for (unsigned i = count; i < 32; i++)
    (void)heap_model_free(model, prepared[i]);
}
static void lazy_one_left(void) { lazy_used(1); }
static void lazy_none_left(void) { lazy_used(0); }
static void sweep(void) {
  mam__u32 page = mam__sweep(model->control, 1);
  if (page != MAM__NO_PAGE)
    mam__pages_release(model->control->superblocks[0], page, 1);
}
/* After a sweep of everything, empty spans have ended and the others are watched. */
static void swept(void) {
  struct mam__area area = model->control->superblocks[0];
  for (mam__u32 page = 0; page < area.page_count; page++) {
    mam__u64 word = area.words[page * MAM__PAGE_WORDS];
    if (word != 0 && !mam__word_is_run(word) && (word & MAM__WORD_WATCHED) == 0)
      violation = "a span is not watched after the sweep";
    if (word != 0 && !mam__word_is_run(word) && mam__word_used(word) == 0)
      violation = "an empty span is left after the sweep";
  }
}

/* A lazy heap whose page map has two words: a run fills the first, and an empty span of a slot begins the second. */
static void run_before_a_span(void) {
  lazy();
  prepared[0] = (void *)(uintptr_t)mam__run_malloc(model->control, 64 * MAM__PAGE_BYTES, 0);
  if (heap_model_malloc_warp(model, 1024, 0, 1, prepared + 1) != 1 || !heap_model_free(model, prepared[1]))
    ck_abort_msg("there was room");
  mam__u32 left = heap_model_free_pages(model);
  prepared[2] = (void *)(uintptr_t)mam__run_malloc(model->control, (mam__u64)left * MAM__PAGE_BYTES, 0);
  if (prepared[0] == NULL || prepared[2] == NULL)
    ck_abort_msg("there was room");
}
static void free_run_and_split_anew(void) {
  free_prepared(0);
  claim_of_a_new_span(CLASS_TWO_WORDS);
}
static void sweep_all(void) { (void)mam__sweep(model->control, MAM__SPAN_PAGES + 1); }
/* A lazy heap: a slot has an empty span, and a run all other pages. */
static void lazy_and_full(void) {
  lazy_none_left();
  ck_assert_ptr_nonnull(run_of_all_but_a_span());
}

static void take_a_run(void) {
  mam__u64 address = mam__run_malloc(model->control, 3 * MAM__PAGE_BYTES, 0);
  hold((void *)(uintptr_t)address);
}
/* Takes pages for a run, without the second search of mam__run_malloc. */
static void take_pages(void) {
  struct mam__found found = search(3);
  if (found.page == MAM__NO_PAGE)
    return;
  mam__store_relaxed_u16(mam__page_entry(found.area->words, found.page), MAM__ENTRY_RUN);
  mam__store_relaxed_u64(&found.area->words[found.page * MAM__PAGE_WORDS], mam__run_word(3));
  hold((void *)(uintptr_t)mam__area_address(*found.area, found.page));
}
/* Searches all pages, not only those near the home. */
static void search_pages(mam__u32 count) {
  mam__u32 page = mam__pages_search(&model->control->superblocks[0], count, 0);
  if (page != MAM__NO_PAGE)
    mam__pages_release(model->control->superblocks[0], page, count);
}
static void search_few(void) { search_pages(3); }
static void known_to_be_short(void) {
  little_room();
  search_pages(20);
  if ((*mam__area_shortage(model->control->superblocks[0]) & MAM__SHORT_PAGES) != 20)
    ck_abort_msg("a search in vain is forgotten");
}
/* All pages are taken, these two as runs of one page, and it is known that no two pages side by side are free. */
static void two_neighbours(mam__u32 page) {
  mam__u32 lengths[] = {page, 1, 1, model->control->superblocks[0].page_count - page - 2};
  for (unsigned i = 0; i < 4; i++)
    prepared[(i + 3) % 4] =
        (void *)(uintptr_t)mam__run_malloc(model->control, (mam__u64)lengths[i] * MAM__PAGE_BYTES, 0);
  if ((mam__u64)(uintptr_t)prepared[0] != mam__area_address(model->control->superblocks[0], page) ||
      (char *)prepared[1] != (char *)prepared[0] + MAM__PAGE_BYTES || prepared[2] == NULL)
    ck_abort_msg("the pages are others");
  search_pages(2);
  if ((*mam__area_shortage(model->control->superblocks[0]) & MAM__SHORT_PAGES) != 2)
    ck_abort_msg("a search in vain is forgotten");
}
static void two_in_a_word(void) { two_neighbours(10); }
static void two_in_two_words(void) { two_neighbours(63); }
static void search_two(void) { search_pages(2); }
static void search_three(void) { search_pages(3); }
/* Single pages have come back, which does not void what is known of longer runs. */
static void more_are_still_missing(void) {
  mam__u32 known = *mam__area_shortage(model->control->superblocks[0]) & MAM__SHORT_PAGES;
  if (known != 3 && known != 4)
    violation = "two pages came back, and more is void than that";
}
/* Page 63 is free, and the third word of the page map.  The word between them is taken. */
static void words_behind_a_taken_one(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 begins[] = {0, 64, 192}, ends[] = {63, 128, area.page_count};
  ck_assert_uint_eq(mam__run_take_at(0, area.page_count, &area), area.page_count);
  for (unsigned i = 0; i < 3; i++) {
    *mam__page_entry(area.words, begins[i]) = MAM__ENTRY_RUN;
    area.words[begins[i] * MAM__PAGE_WORDS] = mam__run_word(ends[i] - begins[i]);
    if (ends[i] < area.page_count)
      mam__pages_release(area, ends[i], begins[i + 1] - ends[i]);
  }
}
/* Three words are free or come back, in this order in the page map: the last of the first part, and the first two of
 * the second.  It is known that no run of two words begins in the first part. */
static void words_on_both_sides_of_a_part_s_end(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 begins[] = {4096, 4160, 0, 4224}, ends[] = {4160, 4224, 4032, area.page_count};
  ck_assert_uint_eq(mam__run_take_at(0, area.page_count, &area), area.page_count);
  for (unsigned i = 0; i < 4; i++) {
    *mam__page_entry(area.words, begins[i]) = MAM__ENTRY_RUN;
    area.words[begins[i] * MAM__PAGE_WORDS] = mam__run_word(ends[i] - begins[i]);
    prepared[i] = (void *)(uintptr_t)mam__area_address(area, begins[i]);
  }
  mam__pages_release(area, 4032, 64);
  search_pages(128);
  ck_assert_uint_eq(heap_model_length(mam__area_parts(area)[0] & MAM__SHORT_PAGES), 128);
}
static void search_two_words(void) { search_pages(128); }

/* A long run is tried, fails at the taken word, and what was taken behind it is given back. */
static void try_a_long_run(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 got = mam__run_take_at(63, 129, &area);
  mam__run_undo(63, got, 129, &area);
  if (got != 1)
    violation = "the word was taken";
}
static void search_forty(void) { search_pages(40); }

/* Three words of the page map are a run, the others are another one. */
static void a_run_of_three_words(void) {
  lazy_and_keeping();
  mam__u32 pages = model->control->superblocks[0].page_count;
  prepared[0] = (void *)(uintptr_t)mam__run_malloc(model->control, 192 * MAM__PAGE_BYTES, 0);
  prepared[1] = (void *)(uintptr_t)mam__run_malloc(model->control, (mam__u64)(pages - 192) * MAM__PAGE_BYTES, 0);
  if (prepared[0] == NULL || prepared[1] == NULL)
    ck_abort_msg("there was room");
}
static void three_kept_words(void) {
  a_run_of_three_words();
  free_prepared(0);
  if (heap_model_free_pages(model) != 0)
    ck_abort_msg("the words are not kept");
  patience = 1000;
}
static void hold_run(mam__u32 page, mam__u32 count) {
  struct mam__area area = model->control->superblocks[0];
  if (page == MAM__NO_PAGE)
    return;
  mam__store_relaxed_u16(mam__page_entry(area.words, page), MAM__ENTRY_RUN);
  mam__store_relaxed_u64(&area.words[page * MAM__PAGE_WORDS], mam__run_word(count));
  hold((void *)(uintptr_t)mam__area_address(area, page));
}
/* A request in need of three pages.  It ends that words are kept. */
static void claim_kept(void) { hold_run(mam__kept_claim(model->control, 3), 3); }
/* A request for a long run, before it searches. */
static void take_kept(void) {
  (void)mam__add_relaxed_u32(&model->control->opening[MAM__HEAP_KINDS], 1);
  hold_run(mam__run_take_kept(model->control, &model->control->superblocks[0], 128), 128);
  (void)mam__add_acq_rel_u32(&model->control->opening[MAM__HEAP_KINDS], ~0u);
}
/* Of three words that long runs had two are kept.  The third is in a run. */
static void two_of_three_kept_words(void) {
  lazy_and_keeping();
  mam__u32 pages = model->control->superblocks[0].page_count;
  prepared[0] = (void *)(uintptr_t)mam__run_malloc(model->control, 128 * MAM__PAGE_BYTES, 0);
  prepared[1] = (void *)(uintptr_t)mam__run_malloc(model->control, (mam__u64)(pages - 128) * MAM__PAGE_BYTES, 0);
  if (prepared[0] == NULL || prepared[1] == NULL)
    ck_abort_msg("there was room");
  free_prepared(0);
  if (heap_model_free_pages(model) != 0 || model->control->kept_end != 3)
    ck_abort_msg("the words are not kept");
  patience = 1000;
}
/* It takes two words, misses the third, and gives the two back. */
static void take_three_kept(void) {
  (void)mam__add_relaxed_u32(&model->control->opening[MAM__HEAP_KINDS], 1);
  hold_run(mam__run_take_kept(model->control, &model->control->superblocks[0], 192), 192);
  (void)mam__add_acq_rel_u32(&model->control->opening[MAM__HEAP_KINDS], ~0u);
}
/* The pages 63 to 127 are a run, the third word of the page map is free, and the rest is another run.  It is known that
 * no 65 pages are free. */
static void two_words_before_a_free_one(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 begins[] = {63, 0, 192}, ends[] = {128, 63, area.page_count};
  ck_assert_uint_eq(mam__run_take_at(0, area.page_count, &area), area.page_count);
  for (unsigned i = 0; i < 3; i++) {
    *mam__page_entry(area.words, begins[i]) = MAM__ENTRY_RUN;
    area.words[begins[i] * MAM__PAGE_WORDS] = mam__run_word(ends[i] - begins[i]);
    prepared[i] = (void *)(uintptr_t)mam__area_address(area, begins[i]);
  }
  mam__pages_release(area, 128, 64);
  search_pages(65);
  if ((*mam__area_shortage(area) & MAM__SHORT_PAGES) == 0)
    ck_abort_msg("a search in vain is forgotten");
}
static void hold_two_pages(void) { hold_run(mam__pages_search(&model->control->superblocks[0], 2, 0), 2); }
static void the_longest_run_is_found(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 longest = 0, row = 0;
  for (mam__u32 page = 0; page < area.page_count; page++) {
    row = (mam__area_pages(area)[page / 64] >> page % 64 & 1) == 0 ? row + 1 : 0;
    longest = row > longest ? row : longest;
  }
  mam__u64 address = mam__run_malloc(model->control, (mam__u64)longest * MAM__PAGE_BYTES, 0);
  if (address == 0)
    violation = "a run that is there is refused, and nobody else is";
  else if (!mam__block_free(model->control, address))
    violation = "a live run was refused";
}
static void no_more_kept_words(void) {
  three_kept_words();
  model->control->kept_end = MAM__KEPT_DONE - 1;
}
static void give_kept_back(void) {
  (void)mam__add_relaxed_u32(&model->control->opening[MAM__HEAP_KINDS], 1);
  if (mam__kept_drain(model->control, model->control->superblocks[0]) != MAM__NO_PAGE)
    mam__swept(model->control, 1);
  (void)mam__add_acq_rel_u32(&model->control->opening[MAM__HEAP_KINDS], ~0u);
}
static void two_claims(void) {
  if (threads[0].count + threads[1].count == 0)
    violation = "words that were kept serve no request";
}
static void free_run(void) { free_prepared(0); }
static void free_twice(void) {
  static const char *const both = "two frees of one block both succeeded";
  int freed = heap_model_free(model, prepared[0]);
  threads[coroutine_running].unsound = freed != 0;
  if (threads[0].unsound && threads[1].unsound)
    violation = both;
}
static void one_of_two_frees(void) {
  if (!threads[0].unsound && !threads[1].unsound)
    violation = "of two frees of one block none succeeded";
}

/* ---- A full heap in which slots hold what is left: no request that needs it may fail ---- */

/* All chunks of a span but count are in use, and a slot holds these.  No page is free. */
static void slot_holds(unsigned count) {
  patience = 1000;
  if (heap_model_malloc_warp(model, 1024, 0, 32 - count, prepared) != 32 - count)
    ck_abort_msg("there was room");
  mam__u32 pages = model->control->superblocks[0].page_count - mam__span_pages(model->control->heap.tuning, CLASS_A);
  ck_assert_uint_ne(mam__run_malloc(model->control, (mam__u64)pages * MAM__PAGE_BYTES, 0), 0);
}
static void slot_holds_one(void) { slot_holds(1); }
static void slot_holds_two(void) { slot_holds(2); }
/* A slot holds the chunks of a span but 17, which are free.  A flush takes no pages from such a span. */
static void slot_holds_all(void) {
  slot_holds(15);
  for (unsigned i = 0; i < 17; i++)
    free_prepared(i);
}
static void flush(void) { (void)mam__held_flush(mam__kind_number(CLASS_A), model->control); }
/* A part of a request: two whole ones would have too many states. */
static void flush_and_take(void) {
  flush();
  claim_by_recycling(CLASS_A);
}
static void take_a_ticket(void) {
  mam__u64 *slot = mam__slot_at(model->control, mam__kind_number(CLASS_A) * model->control->heap.slot_count);
  mam__u32 limit = mam__slot_limit(&model->control->heap, CLASS_A);
  struct mam__claim claim = mam__claim_tickets(slot, mam__slot_take(slot, 1), CLASS_A, limit, 1);
  if (claim.mask != 0)
    hold((void *)(uintptr_t)claim.address);
  else if ((claim.address & MAM__REST_REFILL) != 0) /* leaves the task to the next request */
    (void)mam__exchange_release_u64(slot, MAM__SLOT_DRY | limit);
}

/* ---- A slot's span of which four chunks were handed out: a flush takes most of its pages ---- */

enum { CLASS_OF_TWO = 15 }; /* 512 bytes: a span has 64 chunks and two usage words */

/* Three of them are live. */
static void three_of(size_t bytes) {
  if (heap_model_malloc_warp(model, bytes, 0, 4, prepared) != 4)
    ck_abort_msg("there was room");
  free_prepared(3);
}
static void three_of_a_word(void) { three_of(1024); }
static void three_of_two_words(void) { three_of(512); }
static void one_of_a_word(void) {
  three_of_a_word();
  free_prepared(1);
  free_prepared(2);
}
static void nothing_is_left(void) {
  if (heap_model_free_pages(model) != model->control->superblocks[0].page_count)
    violation = "pages are lost";
}
/* In a lazy heap the span is not watched.  Nobody was told of its free chunks. */
static void lazy_three_of(size_t bytes) {
  lazy();
  three_of(bytes);
  free_prepared(2);
}
static void lazy_three_of_a_word(void) { lazy_three_of(1024); }
static void lazy_three_of_two_words(void) { lazy_three_of(512); }
static void flush_two_words(void) { (void)mam__held_flush(CLASS_OF_TWO, model->control); }
/* Takes pages that the flush may have given back, for a span of another size, which has words and entries there. */
static void take_cut_pages(void) {
  mam__u32 page = mam__pages_search(&model->control->superblocks[0], 5, 0);
  if (page != MAM__NO_PAGE)
    mam__span_write_alone(&model->control->superblocks[0], page, CLASS_B, 16, 1, MAM__OWNER_NONE);
}
/* All pages but those of the span are in use. */
static void three_and_no_page(void) {
  three_of_a_word();
  ck_assert_uint_ne(
      mam__run_malloc(model->control, (model->control->superblocks[0].page_count - 8) * MAM__PAGE_BYTES, 0), 0);
}
/* What is left of the span ends with its last chunk, and a chunk that is free is found by others. */
static void cut_and_whole(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u64 address = (mam__u64)(uintptr_t)prepared[1];
  mam__u32 page = (mam__u32)((address - area.base) >> MAM__PAGE_SHIFT);
  mam__u64 word = area.words[page * MAM__PAGE_WORDS];
  mam__u32 kind = mam__word_class(word), pages = mam__word_span_pages(word), left = heap_model_free_pages(model);
  if (pages * MAM__PAGE_BYTES >= 32 << 10 || (word & MAM__WORD_WATCHED) == 0)
    violation = "a flush left a span as it was";
  else if ((mam__area_class(area, kind)[page >> 6] >> (page & 63) & 1) != 0)
    violation = "nobody is told of free chunks";
  free_prepared(1);
  for (unsigned i = 0; i < 3; i += 2) /* an actor may have freed these */
    if (mam__block_bytes(model->control, (mam__u64)(uintptr_t)prepared[i]) != 0)
      free_prepared(i);
  if (violation == NULL && heap_model_free_pages(model) != left + pages)
    violation = "what a flush left of a span does not end";
}
/* A slot that holds chunks has its bit in control->held. */
static void no_slot_is_forgotten(void) {
  mam__u32 number = mam__kind_number(CLASS_A), count = model->control->heap.slot_count;
  mam__u64 ticket = *mam__slot_at(model->control, number * count) & MAM__SLOT_TICKETS;
  if (ticket < mam__slot_limit(&model->control->heap, CLASS_A) &&
      (model->control->held[number] & mam__held_bit(count, 0)) == 0)
    violation = "a flush has forgotten a slot that holds chunks";
}
/* A request for a chunk of a class, from a first step on.  Returns whether it got one. */
static bool ask(mam__u32 size_class, mam__u32 first) {
  struct mam__request request = {model->control, size_class, 0, 1, 0, 0, 0, 0};
  struct mam__claim claim = mam__claim_chunks(&request, first);
  if (claim.mask != 0)
    hold((void *)(uintptr_t)mam__claim_chunk(claim, 0));
  return claim.mask != 0;
}
/* A request in need: it looks at no slot before. */
static void need(mam__u32 size_class) {
  if (!ask(size_class, MAM__STEP_BEGIN))
    violation = "a request failed, and there was a chunk all the time";
}
static void need_a(void) { need(CLASS_A); }
static void need_smaller(void) { need(CLASS_A - 1); }
/* All chunks of CLASS_A are used, and all pages are taken. */
static void full_heap(void) {
  full_span();
  ck_assert_ptr_nonnull(run_of_all_but_a_span());
}
static void ask_a(void) { (void)ask(CLASS_A, MAM__STEP_VAIN); }
/* If the requests were refused, they noted nothing that is not so any more: the next one gets the chunk. */
static void the_next_gets_it(void) {
  unsigned held = 0;
  for (unsigned i = 0; i < THREADS; i++)
    held += threads[i].count;
  if (held == 0 && !ask(CLASS_A, MAM__STEP_VAIN))
    violation = "a request failed, and there is a chunk";
}
static void need_run(void) {
  take_a_run();
  if (threads[coroutine_running].count == 0)
    violation = "a request failed, and there was a run all the time";
}

/* The fault of the paper: a claim reads the chunk size and then sets a bit in the page's bit field, whose size may be
 * another by then. */
static void claim_by_stale_size(void) {
  struct mam__area area = model->control->superblocks[0];
  mam__u32 page = (mam__u32)(((mam__u64)(uintptr_t)prepared[0] - area.base) / MAM__PAGE_BYTES);
  mam__u64 *word = &area.words[page * MAM__PAGE_WORDS];
  if (mam__word_class(mam__load_relaxed_u64(word)) != CLASS_A)
    return;
  mam__u64 bit = 1ull << 1;
  if ((mam__and_acq_rel_u64(word, ~bit) & bit) != 0) {
    hold((char *)prepared[0] + mam__class_bytes(CLASS_A));
    if (mam__word_class(*word) != CLASS_A)
      violation = "a chunk was claimed by a size that its page has no more";
  }
}

/* There was nothing to claim. */
static void none_is_held(void) {
  for (unsigned i = 0; i < THREADS; i++)
    if (threads[i].count != 0)
      violation = "a thread holds what is no chunk";
}

static const struct scenario scenarios[] = {
    {"the last free against a claim", 2, one_left, {free_0, recycle_a}, NULL},
    {"the last free and another size against a claim", 2, one_left, {free_and_split_anew, recycle_a}, NULL},
    {"the last free and another size against claim and free", 2, one_left, {free_and_split_anew, claim_and_free}, NULL},
    {"two last frees", 2, two_left, {free_0, free_1}, NULL},
    {"two last frees against a claim", 3, two_left, {free_0, free_1, recycle_a}, NULL},
    {"the last free against two claims", 3, one_left, {free_0, recycle_a, recycle_a}, NULL},
    {"two last frees in two words", 2, two_words, {free_0, free_1}, NULL},
    {"two last frees in two words against a claim", 3, two_words, {free_0, free_1, recycle_two_words}, NULL},
    {"a last free in two words against two claims",
     3,
     one_in_two_words,
     {free_0, claim_of_the_second_word, recycle_two_words},
     NULL},
    {"a free in a full span against a claim", 2, full_span, {free_0, recycle_a}, NULL},
    {"two frees in a full span against a claim", 3, full_span, {free_0, free_1, recycle_a}, NULL},
    {"the last free against a quick claim", 2, one_left, {free_0, quick_a}, NULL},
    {"the last free and another size against a quick claim", 2, one_left, {free_and_split_anew, quick_a}, NULL},
    {"the last free and another size in the same pages against a quick claim",
     2,
     one_left_of_all,
     {free_and_split_smaller, quick_a},
     none_is_lost},
    {"two last frees against a quick claim", 3, two_left, {free_0, free_1, quick_a}, NULL},
    {"two last frees in two words against a quick claim", 3, two_words, {free_0, free_1, quick_two_words}, NULL},
    {"a last free in two words against a quick and a slow claim",
     3,
     one_in_two_words,
     {free_0, quick_two_words, recycle_two_words},
     NULL},
    {"a last free in two words against a claim and free in the other one and a slow claim",
     3,
     one_in_two_words,
     {free_0, claim_of_the_second_word_and_free, recycle_two_words},
     NULL},
    {"a free in a full span against a quick and a slow claim", 3, full_span, {free_0, quick_a, recycle_a}, NULL},
    {"two frees in a full span against a quick claim", 3, full_span, {free_0, free_1, quick_a}, NULL},
    {"a free in a full word against a quick claim in the other one",
     2,
     one_free_in_two_words,
     {free_1, quick_two_words},
     NULL},
    {"a free in a full word against a quick and a slow claim",
     3,
     one_free_in_two_words,
     {free_1, quick_two_words, recycle_two_words},
     NULL},
    {"a free behind the last chunk against a claim", 2, full_part, {free_the_tail, recycle_with_tail}, none_is_held},
    {"a free behind the last chunk against a quick claim",
     2,
     full_part,
     {free_the_tail, quick_with_tail},
     none_is_held},
    {"two refills", 2, nothing, {take_tickets, take_tickets}, NULL},
    {"two refills where pages are scarce", 2, two_chunks_and_no_page, {take_tickets, take_tickets}, NULL},
    {"two refills where pages are scarce against a free",
     3,
     two_chunks_and_no_page,
     {take_tickets, take_tickets, free_0},
     NULL},
    {"the end of a slot's span", 2, nothing, {take_many_tickets, take_many_tickets}, NULL},
    {"two frees of one block", 2, one_left, {free_twice, free_twice}, one_of_two_frees},
    {"two frees of one run", 2, little_room, {free_twice, free_twice}, one_of_two_frees},
    {"the last pages", 2, little_room, {take_a_run, take_a_run}, NULL},
    {"a run that comes back", 2, little_room, {free_run, take_a_run}, NULL},
    {"the last free against the slot that had the span", 2, lazy_one_left, {free_0, take_tickets}, NULL},
    {"the refill of a dry slot against a wrong free",
     2,
     dry,
     {take_tickets, free_what_no_thread_has},
     refilled_at_first},
    {"two who take a span back", 2, lazy_none_left, {take_tickets, take_tickets}, NULL},
    {"the last free against a sweep", 2, lazy_one_left, {free_0, sweep}, swept},
    {"taking a span back against a sweep", 2, lazy_none_left, {take_tickets, sweep}, swept},
    {"a new span against a sweep", 2, lazy, {take_tickets, sweep}, swept},
    {"two sweeps", 2, lazy_one_left, {sweep, sweep}, swept},
    {"pages that come back", 3, little_room, {free_run, take_pages, take_pages}, NULL},
    {"pages that come back against a search", 2, known_to_be_short, {free_run, search_few}, NULL},
    {"two neighbours that come back", 2, two_in_a_word, {free_0, free_1}, more_are_still_missing},
    {"two neighbours that come back against a search", 3, two_in_a_word, {free_0, free_1, search_two}, NULL},
    {"two neighbours that come back against a longer search",
     3,
     two_in_a_word,
     {free_0, free_1, search_three},
     more_are_still_missing},
    {"a flush of the last chunk against a request", 2, slot_holds_one, {flush, need_a}, NULL},
    {"a flush against a request that takes a ticket", 2, slot_holds_two, {flush, take_a_ticket}, no_slot_is_forgotten},
    {"a flush that cuts a span against a free", 2, three_of_a_word, {flush, free_0}, cut_and_whole},
    {"a flush that cuts a span against its last free", 2, one_of_a_word, {flush, free_0}, nothing_is_left},
    {"a flush that cuts a span against two frees", 3, three_of_a_word, {flush, free_0, free_2}, cut_and_whole},
    {"a flush that cuts a span of two words against a free",
     2,
     three_of_two_words,
     {flush_two_words, free_0},
     cut_and_whole},
    {"a flush that cuts a span against a sweep", 2, lazy_three_of_a_word, {flush, sweep_all}, cut_and_whole},
    {"a flush that cuts a span of two words against a sweep",
     2,
     lazy_three_of_two_words,
     {flush_two_words, sweep_all},
     cut_and_whole},
    {"a flush that cuts a span against one who takes the pages",
     2,
     three_and_no_page,
     {flush, take_cut_pages},
     cut_and_whole},
    {"two that flush a span which they cut", 2, three_of_two_words, {flush_two_words, flush_two_words}, cut_and_whole},
    {"a flush of the last chunk against a smaller request", 2, slot_holds_one, {flush, need_smaller}, NULL},
    {"two that flush the last two chunks", 2, slot_holds_two, {flush_and_take, need_a}, NULL},
    {"a flush of the last span against a run", 2, slot_holds_all, {flush, need_run}, NULL},
    {"a sweep of the last span against a run", 2, lazy_and_full, {sweep_all, need_run}, NULL},
    {"a request that may be refused against a free", 2, full_heap, {free_0, ask_a}, the_next_gets_it},
    {"two requests that may be refused against a free", 3, full_heap, {free_0, ask_a, ask_a}, the_next_gets_it},
};

/* The page map has two words. */
static const struct scenario wide_scenarios[] = {
    {"two neighbours of two words that come back", 2, two_in_two_words, {free_0, free_1}, NULL},
    {"two neighbours of two words against a search", 3, two_in_two_words, {free_0, free_1, search_two}, NULL},
    {"a run that is freed and split anew against a sweep",
     2,
     run_before_a_span,
     {sweep_all, free_run_and_split_anew},
     swept},
};

/* The page map has four words. */
static const struct scenario long_scenarios[] = {
    {"words that are given back against a search", 2, words_behind_a_taken_one, {try_a_long_run, search_forty}, NULL},
    {"a run that is kept against the end of that", 2, a_run_of_three_words, {free_0, claim_kept}, NULL},
    {"two that end that words are kept", 2, three_kept_words, {claim_kept, claim_kept}, two_claims},
    {"a long run of kept words against the end of that", 2, three_kept_words, {take_kept, claim_kept}, NULL},
    {"a request in need against a long one that helps", 2, three_kept_words, {need_run, take_kept}, NULL},
    {"a take of kept words that fails against the end of that",
     2,
     two_of_three_kept_words,
     {take_three_kept, claim_kept},
     NULL},
    {"two words that come back while another thread takes some of their pages",
     2,
     two_words_before_a_free_one,
     {free_0, hold_two_pages},
     the_longest_run_is_found},
    {"a request in need against one that gives back", 2, no_more_kept_words, {need_run, give_kept_back}, NULL},
};

/* The page map has two parts. */
static const struct scenario part_scenarios[] = {
    {"words that come back behind a part's end", 2, words_on_both_sides_of_a_part_s_end, {free_0, free_1}, NULL},
    {"a word that comes back against a search",
     2,
     words_on_both_sides_of_a_part_s_end,
     {free_0, search_two_words},
     NULL},
    {"the second word that comes back against a search",
     2,
     words_on_both_sides_of_a_part_s_end,
     {free_1, search_two_words},
     NULL},
};

static void explore_sound(const struct scenario *explored, size_t heap_bytes) {
  size_t states;
  const char *fault = explore(explored, heap_bytes, &states);
  if (fault != NULL)
    ck_abort_msg("%s: %s", explored->name, fault);
  ck_assert_uint_gt(states, 20); /* if the steps were not compiled in, there would be two */
}

START_TEST(every_interleaving_keeps_the_heap_whole) { explore_sound(&scenarios[_i], HEAP_BYTES); }
END_TEST

START_TEST(every_interleaving_keeps_a_wide_heap_whole) { explore_sound(&wide_scenarios[_i], WIDE_BYTES); }
END_TEST

START_TEST(every_interleaving_keeps_a_long_heap_whole) { explore_sound(&long_scenarios[_i], LONG_BYTES); }
END_TEST

START_TEST(every_interleaving_keeps_a_heap_of_two_parts_whole) { explore_sound(&part_scenarios[_i], PART_BYTES); }
END_TEST

START_TEST(the_papers_stale_chunk_size_is_found) {
  static const struct scenario stale = {
      "the paper's claim", 2, one_left_of_all, {free_and_split_smaller, claim_by_stale_size}, NULL};
  size_t states;
  ck_assert_ptr_nonnull(explore(&stale, HEAP_BYTES, &states));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap interleavings");
  TCase *tests = tcase_create("interleavings"), *long_tests = tcase_create("interleavings in a long heap");
  tcase_set_timeout(tests, 180);      /* some have a million states */
  tcase_set_timeout(long_tests, 180); /* each state has 1,700 words */
  if (COROUTINES_WORK) {
    tcase_add_loop_test(tests, every_interleaving_keeps_the_heap_whole, 0, sizeof scenarios / sizeof scenarios[0]);
    tcase_add_loop_test(tests, every_interleaving_keeps_a_wide_heap_whole, 0,
                        sizeof wide_scenarios / sizeof wide_scenarios[0]);
    tcase_add_loop_test(long_tests, every_interleaving_keeps_a_long_heap_whole, 0,
                        sizeof long_scenarios / sizeof long_scenarios[0]);
    tcase_add_loop_test(long_tests, every_interleaving_keeps_a_heap_of_two_parts_whole, 0,
                        sizeof part_scenarios / sizeof part_scenarios[0]);
    tcase_add_test(tests, the_papers_stale_chunk_size_is_found);
  }
  suite_add_tcase(suite, tests);
  suite_add_tcase(suite, long_tests);
  return run_suite(suite);
}
