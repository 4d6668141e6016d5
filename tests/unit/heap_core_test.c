/* SPDX-License-Identifier: BSD-2-Clause */
/* The device heap's algorithm on one host thread: what a kernel may rely on, and that no memory is lost. */
#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

static void rest(void);
static unsigned salt(void);
#define MAM__ATOMICS_PAUSE() rest()
#define MAM__ATOMICS_SALT() salt()

#include "support/heap_model.h"
#include "support/random.h"
#include "support/run_suite.h"

enum { MIB = 1 << 20, MANY = 1 << 20 };

/* Of layout 5. */
#define LAYOUT_SUM 0xf6304632f56f15ddull

static struct heap_model *model;
static void **blocks;

static void set_up(void) { blocks = (void **)calloc(MANY, sizeof *blocks); }

static void tear_down(void) {
  if (model != NULL)
    heap_model_destroy(model);
  model = NULL;
  free(blocks);
}

/* What happens at the rest that counts `rests` down to 0. */
static unsigned rests;
static void (*happens)(void);

static void rest(void) {
  if (rests != 0 && --rests == 0)
    happens();
}

/* Another number each time, as a clock gives. */
static unsigned salt(void) {
  static unsigned last;
  return last += 0x2545f491;
}

/* Takes blocks of one size until there are no more.  Returns their number. */
static unsigned fill(size_t bytes) {
  unsigned count = 0;
  for (void *block; (block = heap_model_malloc(model, bytes, count / 32 % model->control->heap.slot_count)) != NULL;)
    blocks[count++] = block;
  return count;
}

static void free_all(unsigned count) {
  for (unsigned i = 0; i < count; i++)
    ck_assert(heap_model_free(model, blocks[i]));
}

/* ---- Sizes ---- */

START_TEST(classes_hold_what_is_asked_for_and_little_more) {
  for (mam__u32 bytes = 1; bytes <= MAM__CHUNK_BYTES; bytes++) {
    mam__u32 size_class = mam__class_of(bytes), chunk = mam__class_bytes(size_class);
    ck_assert_uint_lt(size_class, MAM__HEAP_CLASSES);
    ck_assert_uint_ge(chunk, bytes);
    ck_assert_uint_eq(chunk % 16, 0);
    if (bytes > 128)
      ck_assert_uint_lt(chunk * 4, bytes * 5);
    else
      ck_assert_uint_lt(chunk, bytes + 16);
  }
}
END_TEST

START_TEST(chunks_are_found_from_every_byte_of_a_span) {
  for (mam__u32 size_class = 0; size_class < MAM__HEAP_CLASSES; size_class++) {
    mam__u32 shift = mam__class_shift(size_class), bytes = mam__class_bytes(size_class);
    for (mam__u32 offset = 0; offset < 256 * bytes && offset < 64 * MAM__PAGE_BYTES; offset += 16)
      ck_assert_uint_eq(mam__chunk_index(offset / 16, shift, mam__class_multiple(size_class, shift)), offset / bytes);
  }
}
END_TEST

START_TEST(spans_are_whole_pages_of_whole_chunks) {
  static const size_t sizes[] = {8 * MIB, 256u * MIB};
  for (unsigned i = 0; i < 2; i++) {
    model = heap_model_create(sizes[i], 132);
    for (mam__u32 size_class = 0; size_class < MAM__HEAP_CLASSES; size_class++) {
      mam__u32 pages = mam__span_pages(model->control->heap.tuning, size_class);
      ck_assert_uint_ge(pages, 1);
      ck_assert_uint_le(pages, MAM__SPAN_PAGES);
      ck_assert_uint_eq(pages * MAM__PAGE_BYTES,
                        mam__slot_limit(&model->control->heap, size_class) * mam__class_bytes(size_class));
      ck_assert_uint_le(mam__slot_limit(&model->control->heap, size_class), 32 * MAM__PAGE_WORDS);
    }
    heap_model_destroy(model);
    model = NULL;
  }
}
END_TEST

/* ---- Blocks ---- */

START_TEST(blocks_are_aligned_sized_and_apart) {
  model = heap_model_create(64 * MIB, 132);
  unsigned count = 0;
  for (size_t bytes = 1; bytes <= 200000; bytes += bytes / 16 + 1, count++) {
    blocks[count] = heap_model_malloc(model, bytes, count % model->control->heap.slot_count);
    ck_assert_ptr_nonnull(blocks[count]);
    ck_assert_uint_eq((uintptr_t)blocks[count] % 16, 0);
    ck_assert_uint_ge(mam__block_bytes(model->control, (mam__u64)(uintptr_t)blocks[count]), bytes);
    memset(blocks[count], (int)count, bytes);
  }
  count = 0;
  for (size_t bytes = 1; bytes <= 200000; bytes += bytes / 16 + 1, count++)
    for (size_t i = 0; i < bytes; i++)
      if (((unsigned char *)blocks[count])[i] != (unsigned char)count)
        ck_abort_msg("block %u of %zu bytes was overwritten", count, bytes);
  free_all(count);
}
END_TEST

START_TEST(lanes_of_a_warp_get_neighbours) {
  model = heap_model_create(64 * MIB, 132);
  ck_assert_uint_eq(heap_model_malloc_warp(model, 48, 0, 32, blocks), 32);
  for (unsigned i = 1; i < 32; i++)
    ck_assert_ptr_eq(blocks[i], (char *)blocks[0] + (size_t)48 * i);
}
END_TEST

START_TEST(what_is_no_block_is_refused) {
  model = heap_model_create(8 * MIB, 132);
  char *block = (char *)heap_model_malloc(model, 100, 0), *run = (char *)heap_model_malloc(model, 100000, 0);
  static char elsewhere;
  ck_assert(!heap_model_free(model, block + 16));
  ck_assert(!heap_model_free(model, run + MAM__PAGE_BYTES));
  ck_assert(!heap_model_free(model, run + 16));
  ck_assert(!heap_model_free(model, &elsewhere));
  ck_assert(!heap_model_free(model, (void *)(uintptr_t)(model->control->heap.base - 1)));
  ck_assert(heap_model_free(model, block));
  ck_assert(heap_model_free(model, run));
  ck_assert(!heap_model_free(model, block));
  ck_assert(!heap_model_free(model, run));
  ck_assert_uint_eq(model->control->refused_free, 7);
}
END_TEST

/* ---- A full heap ---- */

static void share_handed_out(size_t heap_bytes, size_t bytes, double least) {
  model = heap_model_create(heap_bytes, 132);
  unsigned count = fill(bytes);
  double share = (double)count * (double)bytes / (double)heap_bytes;
  if (share < least)
    ck_abort_msg("of %zu bytes %.2f %% are handed out in blocks of %zu", heap_bytes, 100 * share, bytes);
  ck_assert_ptr_null(heap_model_malloc(model, bytes, 0));
  free_all(count);
  ck_assert_uint_ge(fill(bytes), count - count / 100); /* another order of spans may leave other remainders unused */
  heap_model_destroy(model);
  model = NULL;
}

START_TEST(nearly_all_of_a_heap_is_handed_out_at_every_size) {
  for (mam__u32 size_class = 3; size_class < 28; size_class++)
    share_handed_out((size_t)64 * MIB, mam__class_bytes(size_class), size_class < 12 ? 0.981 : 0.97);
}
END_TEST

START_TEST(a_small_heap_serves_mixed_sizes) {
  static const size_t sizes[] = {8 * MIB, 64 * MIB};
  for (unsigned i = 0; i < 2; i++) {
    size_t asked = 0;
    unsigned count = 0;
    model = heap_model_create(sizes[i], 132);
    for (;; count++) {
      size_t bytes = 4 + random_below(509);
      if (heap_model_malloc(model, bytes, random_below(model->control->heap.slot_count)) == NULL)
        break;
      asked += bytes;
    }
    double share = (double)asked / (double)sizes[i];
    (void)printf("of %zu MiB, %.1f %% are handed out in mixed sizes\n", sizes[i] / MIB, 100 * share);
    ck_assert_double_ge(share, 0.85);
    heap_model_destroy(model);
    model = NULL;
  }
}
END_TEST

START_TEST(a_full_heap_serves_again_what_was_freed) {
  model = heap_model_create(8 * MIB, 132);
  if (_i != 0)
    heap_model_make_lazy(model);
  unsigned count = fill(64);
  for (unsigned i = 0; i < count; i += 7) {
    ck_assert(heap_model_free(model, blocks[i]));
    blocks[i] = heap_model_malloc(model, 64, i % model->control->heap.slot_count);
    ck_assert_ptr_nonnull(blocks[i]);
    ck_assert_ptr_null(heap_model_malloc(model, 64, 0));
  }
  free_all(count);
}
END_TEST

START_TEST(pages_of_one_size_serve_another) {
  model = heap_model_create(8 * MIB, 132);
  if (_i != 0)
    heap_model_make_lazy(model);
  for (size_t bytes = 16; bytes <= 262144; bytes *= 4) {
    unsigned count = fill(bytes);
    ck_assert_double_ge((double)count * (double)bytes, (bytes < 32768 ? 0.93 : 0.75) * 8 * MIB);
    free_all(count);
  }
}
END_TEST

START_TEST(the_largest_run_is_the_superblock) {
  model = heap_model_create(8 * MIB, 132);
  size_t most = (size_t)model->control->superblocks[0].page_count * MAM__PAGE_BYTES;
  ck_assert(!mam__heap_could(model->control, most + 1));
  ck_assert_ptr_null(heap_model_malloc(model, most + 1, 0));
  void *block = heap_model_malloc(model, most, 0);
  ck_assert_ptr_nonnull(block);
  ck_assert_ptr_null(heap_model_malloc(model, 1, 0));
  ck_assert(heap_model_free(model, block));
  ck_assert_ptr_nonnull(heap_model_malloc(model, 1, 0));
}
END_TEST

START_TEST(a_heap_grows_while_it_is_full) {
  model = heap_model_create(1 * MIB, 4);
  unsigned count = fill(256);
  for (unsigned i = 0; i < 15; i++) {
    heap_model_grow(model, 1 * MIB);
    unsigned before = count;
    for (void *block; (block = heap_model_malloc(model, 256, count % model->control->heap.slot_count)) != NULL;)
      blocks[count++] = block;
    ck_assert_uint_gt(count, before + 3900);
  }
  free_all(count);
  ck_assert_uint_ge(heap_model_free_pages(model), 16 * 240);
}
END_TEST

/* ---- Long runs in a lazy heap ---- */

/* The run that each page is in, by its number from 1 on; 0: none. */
static unsigned short owners[64 * MIB / MAM__PAGE_BYTES];

static void own(const void *run, size_t pages, unsigned short from, unsigned short to) {
  size_t first = ((mam__u64)(uintptr_t)run - model->control->heap.base) / MAM__PAGE_BYTES;
  for (size_t page = first; page < first + pages; page++) {
    if (owners[page] != from)
      ck_abort_msg("page %zu is in run %u, not in %u", page, owners[page], from);
    owners[page] = to;
  }
}

START_TEST(long_runs_of_a_lazy_heap_are_apart_and_come_back) {
  enum { RUNS = 40, STEPS = 20000 };
  struct {
    void *address;
    size_t pages;
  } runs[RUNS] = {{NULL, 0}};
  memset(owners, 0, sizeof owners);
  model = heap_model_create(64 * MIB, 8);
  heap_model_make_lazy(model);
  unsigned served = 0;
  for (unsigned step = 0; step < STEPS; step++) {
    unsigned i = random_below(RUNS);
    if (runs[i].address != NULL) {
      own(runs[i].address, runs[i].pages, (unsigned short)(i + 1), 0);
      ck_assert(heap_model_free(model, runs[i].address));
      runs[i].address = NULL;
      continue;
    }
    runs[i].pages = 1 + random_below(1u << (4 + random_below(step < STEPS / 2 ? 7 : 10)));
    runs[i].address = heap_model_malloc(model, runs[i].pages * MAM__PAGE_BYTES, step % 8);
    if (runs[i].address != NULL)
      own(runs[i].address, runs[i].pages, 0, (unsigned short)(i + 1));
    served += runs[i].address != NULL;
  }
  ck_assert_uint_gt(served, STEPS / 4);
  for (unsigned i = 0; i < RUNS; i++)
    if (runs[i].address != NULL)
      ck_assert(heap_model_free(model, runs[i].address));
  if (_i != 0) {
    unsigned count = fill(256);
    ck_assert_double_ge((double)count * 256, 0.97 * 64 * MIB);
    free_all(count);
  }
  void *all = heap_model_malloc(model, (size_t)model->control->superblocks[0].page_count * MAM__PAGE_BYTES, 0);
  ck_assert_ptr_nonnull(all);
}
END_TEST

/* ---- Random operations beside a model ---- */

struct live {
  unsigned char *address;
  size_t bytes;
  unsigned char mark;
};

static void verify(const struct live *live) {
  for (size_t i = 0; i<live->bytes; i += live->bytes> 64 ? 37 : 1)
    if (live->address[i] != live->mark)
      ck_abort_msg("a block of %zu bytes was overwritten", live->bytes);
  if (live->address[live->bytes - 1] != live->mark)
    ck_abort_msg("the end of a block of %zu bytes was overwritten", live->bytes);
}

static bool in_a_superblock(const char *block, size_t bytes) {
  for (mam__u32 i = 0; i < model->control->superblock_count; i++) {
    struct mam__area area = model->control->superblocks[i];
    mam__u64 offset = (mam__u64)(uintptr_t)block - area.base, all = (mam__u64)area.page_count << MAM__PAGE_SHIFT;
    if (offset < all && bytes <= all - offset)
      return true;
  }
  return false;
}

/* Memory that waits in parks of warp heaps, as chunks and as runs of pages, goes to requests of either kind that find
 * no other memory. */
START_TEST(a_full_heap_takes_what_waits) {
  const mam__u32 sizes[] = {32 << 10, 128 << 10};
  const size_t wanted = _i == 0 ? 4096 : 40 << 10;
  model = heap_model_create(4 * MIB, 8);
  unsigned before = fill(wanted), after;
  free_all(before);
  ck_assert_uint_ge(mam__park_count(&model->control->heap), 8);
  for (unsigned i = 0; i < 8; i++) {
    mam__u64 block = (mam__u64)(uintptr_t)heap_model_malloc(model, sizes[i % 2], 0);
    ck_assert_uint_ne(block, 0);
    mam__parks(model->control)[MAM__PARK_WORDS * i + 1] = block << 16 | sizes[i % 2] / 16;
    model->control->parked += sizes[i % 2] / 16;
    model->control->parks_held = MAM__FULL_WORD;
  }
  after = fill(wanted);
  ck_assert_uint_ge(after * 100, before * 97);
  ck_assert_uint_eq(model->control->parked, 0);
  for (unsigned i = 0; i < 8; i++)
    ck_assert_uint_eq(mam__parks(model->control)[MAM__PARK_WORDS * i + 1], 0);
  free_all(after);
}
END_TEST

/* ---- Pages: searches against a plain array ---- */

enum { SEARCHED_PAGES = 4 * 4096 + 1234 };
static bool taken[SEARCHED_PAGES];

/* The length of the longest run of free pages. */
static mam__u32 longest_run(void) {
  mam__u32 longest = 0, here = 0;
  for (mam__u32 page = 0; page < SEARCHED_PAGES; page++) {
    here = taken[page] ? 0 : here + 1;
    longest = here > longest ? here : longest;
  }
  return longest;
}

static void take_or_leave(mam__u32 page, mam__u32 count, bool takes) {
  mam__u32 wrong = 0; /* asserted once: Check writes a note for each assertion */
  for (mam__u32 i = page; i < page + count; i++) {
    wrong += taken[i] == takes;
    taken[i] = takes;
  }
  ck_assert_uint_eq(wrong, 0);
}

/* The heap remembers run lengths that are missing, of the whole and of each part.  Each is really missing: no longer
 * run begins there. */
static void check_what_is_known(struct mam__area area, mam__u32 longest) {
  mam__u32 known = heap_model_length(*mam__area_shortage(area) & MAM__SHORT_PAGES);
  bool missing = known == 0 || longest < known;
  for (mam__u32 page = 0, here = 0; page < SEARCHED_PAGES; page++) {
    mam__u32 last = SEARCHED_PAGES - 1 - page; /* from the top down: here is the length of the run that begins there */
    here = taken[last] ? 0 : here + 1;
    known = heap_model_length(mam__area_parts(area)[last >> 12] & MAM__SHORT_PAGES);
    missing = missing && (known == 0 || here < known);
  }
  ck_assert(missing);
}

static struct mam__area begin_searches(void) {
  model = heap_model_create(72 * MIB, 4);
  struct mam__area area = model->control->superblocks[0];
  ck_assert_uint_ge(area.page_count, SEARCHED_PAGES);
  if (area.page_count > SEARCHED_PAGES) /* the rest is taken for good */
    ck_assert_uint_eq(mam__run_take_at(SEARCHED_PAGES, area.page_count - SEARCHED_PAGES, &area),
                      area.page_count - SEARCHED_PAGES);
  memset(taken, 0, sizeof taken);
  return area;
}

/* Pages that come back on one side of the end of a part lengthen a run that begins in the other part. */
START_TEST(runs_over_the_end_of_a_part_are_found) {
  struct mam__area area = begin_searches();
  ck_assert_uint_eq(mam__run_take_at(0, SEARCHED_PAGES, &area), SEARCHED_PAGES);
  for (mam__u32 end = 4096; end < SEARCHED_PAGES; end += 4096) {
    mam__u32 first = _i == 0 ? end - 2 : end, second = _i == 0 ? end : end - 2;
    mam__pages_release(area, first, 2);
    for (mam__u32 from = 0; from < 300; from += 60)
      ck_assert_uint_eq(mam__pages_search(&area, 4, from), MAM__NO_PAGE);
    mam__pages_release(area, SEARCHED_PAGES - 1, 1); /* so that only of parts something is remembered */
    ck_assert_uint_eq(mam__run_take_at(SEARCHED_PAGES - 1, 1, &area), 1);
    mam__pages_release(area, second, 2);
    ck_assert_uint_eq(mam__pages_search(&area, 4, 0), end - 2);
  }
}
END_TEST

/* The same of longer runs, whose pages come back behind the first word of the next part: in one word, and in two. */
START_TEST(long_runs_over_the_end_of_a_part_are_found) {
  struct mam__area area = begin_searches();
  mam__u32 back = _i == 0 ? 64 : 128, wanted = 128 + back;
  ck_assert_uint_eq(mam__run_take_at(0, SEARCHED_PAGES, &area), SEARCHED_PAGES);
  for (mam__u32 end = 4096; end < SEARCHED_PAGES - 1024; end += 4096) {
    mam__pages_release(area, end - 64, 128);
    ck_assert_uint_eq(mam__pages_search(&area, wanted, 0), MAM__NO_PAGE);
    ck_assert_uint_eq(heap_model_length(mam__area_parts(area)[end / 4096 - 1] & MAM__SHORT_PAGES), wanted);
    mam__area_parts(area)[end / 4096] = *mam__area_shortage(area) = 0; /* only of the first part it is remembered */
    mam__pages_release(area, end + 64, back);
    ck_assert_uint_eq(mam__pages_search(&area, wanted, 0), end - 64);
  }
}
END_TEST

/* Rows of free pages of many lengths, in a map whose pages are all taken. */
static void release_rows(struct mam__area area) {
  mam__u32 row_most = 1u << (1 + random_below(11)), gap_most = 1u << random_below(11);
  for (mam__u32 page = random_below(gap_most); page < SEARCHED_PAGES;) {
    mam__u32 row = 1 + random_below(row_most);
    row = row < SEARCHED_PAGES - page ? row : SEARCHED_PAGES - page;
    mam__pages_release(area, page, row);
    page += row + 1 + random_below(gap_most);
  }
}
static bool is_free(struct mam__area area, mam__u32 page) {
  return page < area.page_count && (mam__area_pages(area)[page / 64] >> page % 64 & 1) == 0;
}
static void release_all(struct mam__area area) {
  for (mam__u32 page = 0; page < SEARCHED_PAGES; page++)
    if (!is_free(area, page))
      mam__pages_release(area, page, 1);
}

/* A long run is the first one that a plain search from the same page on finds, in maps with rows of many lengths. */
START_TEST(long_runs_are_the_first_ones) {
  enum { LONGEST = 1500 };
  struct mam__area area = begin_searches();
  for (unsigned round = 0; round < 3000; round++) {
    ck_assert_uint_eq(mam__run_take_at(0, SEARCHED_PAGES, &area), SEARCHED_PAGES);
    release_rows(area);
    mam__u32 count = 65 + random_below(LONGEST), start = random_below(SEARCHED_PAGES - 128);
    mam__u32 last = start / 64 + 1 + random_below(SEARCHED_PAGES / 64 - start / 64), found = MAM__NO_PAGE;
    for (mam__u32 page = start, row = 0; page < SEARCHED_PAGES && found == MAM__NO_PAGE; page++) {
      row = is_free(area, page) ? row + 1 : 0;
      if (row == count)
        found = page + 1 - count < last * 64 ? page + 1 - count : SEARCHED_PAGES;
    }
    struct mam__tried tried = mam__run_take_long(&area, count, start, last);
    ck_assert_uint_eq(tried.page, found == SEARCHED_PAGES ? MAM__NO_PAGE : found);
    if (tried.page != MAM__NO_PAGE) {
      ck_assert_uint_eq(tried.got, count);
      mam__pages_release(area, tried.page, count);
    }
    release_all(area);
  }
}
END_TEST

/* How long a run is that pages which came back are part of: as long as it is, or longer than is known; at least as long
 * as what is left of it, if another thread takes some of the pages. */
START_TEST(runs_that_come_back_are_measured) {
  struct mam__area area = begin_searches();
  const mam__u64 *map = mam__area_pages(area);
  mam__u32 words = mam__area_map_words(area), measured = 0, exact = 0;
  for (unsigned round = 0; round < 2000; round++) {
    ck_assert_uint_eq(mam__run_take_at(0, SEARCHED_PAGES, &area), SEARCHED_PAGES);
    release_rows(area);
    mam__u32 page = random_below(SEARCHED_PAGES), begin = page, end = page;
    while (is_free(area, end) && end - page < 1 + round)
      end++;
    mam__u32 count = end - page;
    while (begin > 0 && is_free(area, begin - 1))
      begin--;
    while (is_free(area, end))
      end++;
    if (count > 0 && page / 64 != (page + count - 1) / 64) {
      mam__u32 run = mam__run_with(map, words, page, count);
      bool far = (page / 64 > 0 && begin <= (page / 64 - 1) * 64) || end > ((page + count - 1) / 64 + 2) * 64 - 1;
      ck_assert(run == mam__length_code(end - begin) || (far && run == MAM__SHORT_MOST));
      measured++;
      exact += run != MAM__SHORT_MOST;
      mam__u32 again = page + random_below(count), more = 1 + random_below(page + count - again), longest = 0;
      ck_assert_uint_eq(mam__run_take_at(again, more, &area), more);
      for (mam__u32 at = begin, row = 0; at < end; at++) {
        row = is_free(area, at) ? row + 1 : 0;
        longest = row > longest ? row : longest;
      }
      ck_assert_uint_ge(mam__run_with(map, words, page, count), longest == 0 ? 0 : mam__length_code(longest));
      mam__pages_release(area, again, more);
    }
    release_all(area);
  }
  ck_assert_uint_gt(measured, 300);
  ck_assert_uint_gt(exact, measured / 4);
}
END_TEST

/* Lengths are rounded down to codes for what is searched, and up for what is missing. */
START_TEST(codes_of_lengths_are_close) {
  for (mam__u32 pages = 1; pages <= 3 * MAM__SHORT_LONGEST; pages++) {
    mam__u32 code = mam__length_code(pages), up = mam__length_code_up(pages);
    ck_assert_uint_le(heap_model_length(code), pages);
    ck_assert_uint_gt(heap_model_length(code + 1), pages);
    ck_assert_uint_lt(code, MAM__SHORT_MOST);
    ck_assert(pages > MAM__SHORT_LONGEST ? up == 0 : up - code <= 1 && heap_model_length(up) >= pages);
    ck_assert_uint_le(heap_model_length(code + 1) - heap_model_length(code), 1 + pages / 8);
  }
  ck_assert_uint_eq(mam__length_code(MAM__NO_PAGE - 1), MAM__SHORT_MOST);
}
END_TEST

/* A search finds a run wherever it begins and ends, whatever earlier searches remembered. */
START_TEST(searches_find_what_there_is) {
  static struct { mam__u32 page, count; } runs[SEARCHED_PAGES];
  mam__u32 count = 0;
  struct mam__area area = begin_searches();
  for (unsigned step = 0; step < 30000; step++) {
    bool fills = step / 2000 % 2 == 0;
    mam__u32 wanted = 1 + random_below(random_below(64) == 0  ? 5000
                                       : random_below(8) == 0 ? 200
                                       : random_below(4) == 0 ? 64
                                                              : 12);
    if (count == 0 || random_below(16) < (fills ? 11 : 7)) {
      mam__u32 longest = longest_run(), from = random_below(mam__area_map_words(area));
      mam__u32 page = mam__pages_search(&area, wanted, from);
      ck_assert_msg((page != MAM__NO_PAGE) == (wanted <= longest), "%u pages of at most %u are %s", (unsigned)wanted,
                    (unsigned)longest, page == MAM__NO_PAGE ? "not found" : "found");
      if (page != MAM__NO_PAGE) {
        take_or_leave(page, wanted, true);
        runs[count].page = page;
        runs[count++].count = wanted;
      }
      if (step % 16 == 0)
        check_what_is_known(area, longest_run());
      continue;
    }
    mam__u32 which = random_below(count), page = runs[which].page, pages = runs[which].count;
    mam__pages_release(area, page, pages);
    take_or_leave(page, pages, false);
    runs[which] = runs[--count];
  }
}
END_TEST

/* A request that can do with less takes a run that is there or nothing; in an empty heap it takes one. */
START_TEST(a_try_takes_what_is_there) {
  static const mam__u32 counts[] = {9, 32, 64, 65, 127, 128, 200, 512};
  struct mam__area area = begin_searches();
  unsigned got = 0;
  for (unsigned step = 0; step < 3000; step++) {
    mam__u32 count = counts[random_below(8)], longest = longest_run();
    mam__u64 address = mam__run_try(model->control, count, random_below(model->control->home_count));
    ck_assert(step != 0 || address != 0);
    ck_assert(address == 0 || count <= longest);
    if (address != 0) {
      mam__u32 page = (mam__u32)((address - area.base) >> MAM__PAGE_SHIFT);
      take_or_leave(page, count, true);
      blocks[got++] = (void *)(uintptr_t)address;
    }
    for (unsigned leave = random_below(address == 0 ? 6 : 2); leave != 0 && got != 0; leave--) {
      unsigned which = random_below(got);
      mam__u32 page = (mam__u32)(((mam__u64)(uintptr_t)blocks[which] - area.base) >> MAM__PAGE_SHIFT);
      take_or_leave(page, mam__run_pages_at(&area, page), false);
      ck_assert(heap_model_free(model, blocks[which]));
      blocks[which] = blocks[--got];
    }
  }
  ck_assert_uint_eq(model->control->opening[MAM__HEAP_KINDS], 0);
  free_all(got);
}
END_TEST

/* A run that is nowhere near the home is not refused while another thread still sweeps. */
static void end_of_the_sweep(void) { mam__swept(model->control, 1); }
START_TEST(a_run_waits_for_a_sweep_of_others) {
  struct mam__area area = begin_searches();
  mam__u32 words = mam__area_map_words(area);
  ck_assert_uint_eq(mam__run_take_at(0, SEARCHED_PAGES, &area), SEARCHED_PAGES);
  for (mam__u32 word = 0; word < words; word++)
    if (word % model->control->home_count != 0)
      mam__pages_release(area, word * 64, SEARCHED_PAGES - word * 64 < 64 ? SEARCHED_PAGES - word * 64 : 64);
  model->control->mode = MAM__MODE_SWEEPING; /* another thread has the last word in its hands */
  model->control->sweep_next = words;
  model->control->sweep_done = words + mam__area_part_count(area) - 1;
  model->control->kept_end = MAM__KEPT_DONE;
  happens = end_of_the_sweep;
  rests = 1000;
  ck_assert_ptr_nonnull(heap_model_malloc(model, 12 * MAM__PAGE_BYTES, 0));
  ck_assert_uint_eq(rests, 0);
}
END_TEST

/* The hints of many blocks say that there are free chunks, and one of them is right.  Threads that took the others at
 * the same time have left it so. */
START_TEST(one_free_chunk_is_found_behind_many_old_hints) {
  enum { HINTS = 300 };
  mam__u32 of[HINTS], freed = 0, last = MAM__NO_PAGE, kind = mam__class_of(MAM__PAGE_BYTES);
  model = heap_model_create(16 * MIB, 1);
  unsigned count = fill(MAM__PAGE_BYTES);
  for (unsigned i = 0; i < count && freed < HINTS; i++) {
    struct mam__block block = mam__block_at(model->control, (mam__u64)(uintptr_t)blocks[i]);
    mam__u32 page = block.bit.word / MAM__PAGE_WORDS;
    if (last != MAM__NO_PAGE && page <= last)
      continue;
    ck_assert(heap_model_free(model, blocks[i]));
    last = page;
    of[freed++] = page;
  }
  ck_assert_uint_eq(freed, HINTS);
  for (unsigned i = 0; i + 1 < freed; i++)
    ck_assert_uint_ne(mam__span_claim(&model->control->superblocks[0].words[of[i] * MAM__PAGE_WORDS], kind, 1).bits, 0);
  ck_assert_ptr_nonnull(heap_model_malloc(model, MAM__PAGE_BYTES, 0));
  ck_assert_ptr_null(heap_model_malloc(model, MAM__PAGE_BYTES, 0));
}
END_TEST

/* A search for free chunks begins anywhere in the class map, and leaves no word of it out, whatever their number, and
 * whatever old hints it meets. */
START_TEST(a_free_chunk_is_found_wherever_it_is) {
  static const size_t sizes[] = {2 * MIB, 17 * MIB, 30 * MIB, 131 * MIB};
  enum { PLACES = 3000 };
  mam__u32 kind = mam__class_of(MAM__PAGE_BYTES);
  model = heap_model_create(sizes[_i], 1);
  unsigned count = fill(MAM__PAGE_BYTES);
  ck_assert_uint_eq(mam__recycle_any(model->control, kind, 1).mask, 0);
  for (unsigned i = 0; i < PLACES; i++) {
    void *block = blocks[i == 0 ? 0 : i == 1 ? count - 1 : random_below(count)];
    struct mam__block at = mam__block_at(model->control, (mam__u64)(uintptr_t)block);
    if (mam__word_chunks(at.area->words[at.bit.word]) == 1)
      continue; /* with its last chunk the span ends */
    ck_assert(heap_model_free(model, block));
    for (unsigned old = 0; old < i % 5; old++)
      mam__span_hint(*at.area, random_below(at.area->page_count), kind);
    struct mam__claim claim = mam__recycle_any(model->control, kind, 1);
    ck_assert_uint_ne(claim.mask, 0);
    ck_assert_uint_eq(mam__claim_chunk(claim, 0), (mam__u64)(uintptr_t)block);
    ck_assert_uint_eq(mam__recycle_any(model->control, kind, 1).mask, 0);
  }
}
END_TEST

/* Requests for tickets of a dry slot, while a thread that has the task of refilling it is delayed, do not let its
 * tickets run into the address. */
START_TEST(tickets_of_a_dry_slot_are_kept_few) {
  enum { BYTES = 512, LANES = 8, REQUESTS = 1000, HALF = MAM__SLOT_TICKETS / 2 };
  mam__u32 kind = mam__class_of(BYTES);
  model = heap_model_create(2 * MIB, 1);
  unsigned count = fill(BYTES);
  for (unsigned i = 0; i < count; i += 2)
    ck_assert(heap_model_free(model, blocks[i]));
  mam__u64 *slot = mam__slot_at(model->control, mam__kind_number(kind) * model->control->heap.slot_count);
  ck_assert(mam__slot_is_dry(*slot));
  (void)mam__slot_take(slot, HALF - 100); /* the thread that is delayed, and many requests since */
  for (unsigned i = 0; i < REQUESTS; i++) {
    void *some[LANES];
    unsigned got = heap_model_malloc_warp(model, BYTES, 0, LANES, some);
    ck_assert_uint_gt(got, 0);
    ck_assert_uint_le(*slot & MAM__SLOT_TICKETS, HALF + LANES);
    for (unsigned j = 0; j < got; j++)
      ck_assert(heap_model_free(model, some[j]));
  }
}
END_TEST

/* While a thread that has the task of refilling a dry slot is delayed, checks of the home's chunks neither wait for it
 * nor refuse what is live. */
START_TEST(a_check_does_not_wait_for_a_dry_slot) {
  enum { BYTES = 512 };
  mam__u32 kind = mam__class_of(BYTES);
  model = heap_model_create(2 * MIB, 1);
  unsigned count = fill(BYTES);
  mam__u64 *slot = mam__slot_at(model->control, mam__kind_number(kind) * model->control->heap.slot_count);
  ck_assert(mam__slot_is_dry(*slot));
  (void)mam__slot_take(slot, 1); /* the task, and no more steps of its thread */
  for (unsigned i = 0; i < count; i++) {
    ck_assert(heap_model_free(model, blocks[i]));
    ck_assert(!heap_model_free(model, blocks[i]));
  }
}
END_TEST

/* A check of a chunk looks at all slots of the home: a chunk that was set aside for one of them is not live. */
START_TEST(a_check_knows_what_each_slot_of_a_home_holds) {
  enum { BYTES = 512, HOMES = 2 };
  void *first[64];
  model = heap_model_create(64 * MIB, HOMES);
  unsigned slots = model->control->heap.slot_count;
  ck_assert_uint_gt(slots, HOMES);
  ck_assert_uint_le(slots, 64);
  for (unsigned slot = 0; slot < slots; slot++)
    ck_assert_ptr_nonnull(first[slot] = heap_model_malloc(model, BYTES, slot));
  for (unsigned slot = 0; slot < slots; slot++) {
    ck_assert(!heap_model_free(model, (char *)first[slot] + BYTES));
    ck_assert(heap_model_free(model, first[slot]));
    ck_assert(!heap_model_free(model, first[slot]));
  }
}
END_TEST

/* Where the first superblock has no run of pages and another has, a refill takes pages: the slot is not dry. */
START_TEST(a_grown_heap_refills_its_slots) {
  enum { BYTES = 512, LANES = 8 };
  model = heap_model_create(4 * MIB, 1);
  mam__u64 *slot = mam__slot_at(model->control, mam__kind_number(mam__class_of(BYTES)));
  unsigned count = fill(BYTES);
  ck_assert(mam__slot_is_dry(*slot));
  heap_model_grow(model, 64 * MIB);
  for (unsigned i = 0; i < count; i += 2) /* chunks of split spans */
    ck_assert(heap_model_free(model, blocks[i]));
  for (unsigned i = 0; i < count / 2; i++) { /* these are used up, then pages of the other one are */
    void *some[LANES];
    ck_assert_uint_eq(heap_model_malloc_warp(model, BYTES, 0, LANES, some), LANES);
  }
  ck_assert(!mam__slot_is_dry(*slot));
  for (unsigned i = 1; i < count; i += 2)
    ck_assert(heap_model_free(model, blocks[i]));
  for (unsigned i = 0; i < 1000; i++) {
    void *block = heap_model_malloc(model, BYTES, 0);
    ck_assert_ptr_nonnull(block);
    ck_assert(!mam__slot_is_dry(*slot));
  }
}
END_TEST

/* A request that was refused and asks again, since the heap has grown, takes the task of a dry slot. */
START_TEST(a_request_that_asks_again_refills_a_dry_slot) {
  enum { BYTES = 512 };
  mam__u32 kind = mam__class_of(BYTES), number = mam__kind_number(kind);
  model = heap_model_create(4 * MIB, 1);
  mam__u64 *slot = mam__slot_at(model->control, number);
  mam__u32 log2 = mam__lowest_u32(mam__slot_limit(&model->control->heap, kind));
  (void)fill(BYTES);
  *slot = MAM__SLOT_DRY | 1u << log2; /* the task is no thread's */
  heap_model_grow(model, 4 * MIB);
  struct mam__request request = {model->control, kind, number | log2 << MAM__REST_CHUNKS, 1, 0, 0, 0, 0};
  ck_assert_uint_ne(mam__claim_chunks(&request, MAM__STEP_VAIN).mask, 0);
  ck_assert(!mam__slot_is_dry(*slot));
}
END_TEST

/* A request in need does not take a part of a span while another thread opens a whole one of the class.  Here that
 * thread never ends, so the request gives up in the end. */
START_TEST(no_part_is_taken_while_a_span_is_opened) {
  enum { BYTES = 128 };
  mam__u32 kind = mam__class_of(BYTES);
  model = heap_model_create(4 * MIB, 1);
  mam__u32 free_pages = heap_model_free_pages(model);
  struct mam__request request = {model->control, kind, 0, 1, 0, 0, 0, 0};
  ck_assert_uint_gt(mam__span_pages(model->control->heap.tuning, kind), 1);
  model->control->opening[mam__kind_number(kind)] = 1;
  ck_assert_uint_eq(mam__claim_chunks(&request, MAM__STEP_BEGIN).mask, 0);
  ck_assert_uint_eq(heap_model_free_pages(model), free_pages);
  model->control->opening[mam__kind_number(kind)] = 0;
  ck_assert_uint_ne(mam__claim_chunks(&request, MAM__STEP_BEGIN).mask, 0);
  ck_assert_uint_eq(heap_model_free_pages(model), free_pages - mam__span_pages(model->control->heap.tuning, kind));
}
END_TEST

/* Requests of a size get what slots of any other size hold. */
START_TEST(what_slots_of_each_size_hold_serves_another) {
  static const mam__u32 asked[] = {0, 19, MAM__HEAP_CLASSES - 1};
  for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
    mam__u32 bytes = mam__class_bytes(asked[i]);
    model = heap_model_create(MIB, 1);
    unsigned most = fill(bytes);
    heap_model_destroy(model);
    for (mam__u32 held = 0; held < MAM__HEAP_CLASSES; held++) {
      model = heap_model_create(MIB, 1);
      for (unsigned slot = 0; slot < model->control->heap.slot_count; slot++)
        ck_assert(heap_model_free(model, heap_model_malloc(model, mam__class_bytes(held), slot)));
      ck_assert_uint_ge(fill(bytes) + 1, most); /* a large chunk fits or not, by where the slots' pages were */
      heap_model_destroy(model);
    }
  }
  model = NULL;
}
END_TEST

/* What kernels and the library have in common: sizes, places and encodings. */
START_TEST(the_layout_is_that_of_its_number) {
  struct mam__area area = mam__area_place(1 << 20, 8 * MIB);
  mam_device_heap small = {0}, large = {0};
  mam__heap_tune(&small, 8 * MIB, 132);
  mam__heap_tune(&large, 8192ull * MIB, 132);
  const mam__u64 facts[] = {
      sizeof(mam_device_heap),
      offsetof(mam_device_heap, base),
      offsetof(mam_device_heap, page_count),
      offsetof(mam_device_heap, number),
      sizeof(struct mam__heap_control),
      offsetof(struct mam__heap_control, mode),
      offsetof(struct mam__heap_control, held),
      offsetof(struct mam__heap_control, superblocks),
      offsetof(struct mam__heap_control, growth),
      mam__control_bytes(&small),
      mam__control_bytes(&large),
      small.tuning,
      large.tuning,
      (mam__u64)(uintptr_t)mam__slot_at((struct mam__heap_control *)(uintptr_t)4096, 5),
      (mam__u64)(uintptr_t)area.words,
      area.base,
      (mam__u64)(uintptr_t)mam__area_pages(area),
      (mam__u64)(uintptr_t)mam__area_class(area, mam__kind_of(3, 2)),
      (mam__u64)(uintptr_t)mam__page_entry(area.words, 5),
      (mam__u64)(uintptr_t)mam__area_owners(area),
      (mam__u64)(uintptr_t)mam__area_rings(area),
      mam__word_of(mam__kind_of(13, 5), 5, 2, 31),
      mam__word_emptied(mam__word_of(mam__kind_of(13, 5), 5, 2, 31)),
      MAM__WORD_WATCHED,
      mam__run_word(0x12345),
      mam__run_word_more(0x12345),
      mam__entry_of(mam__kind_of(13, 5), 9),
      mam__slot_of(0x123456000, 7),
      MAM__SLOT_DRY,
      mam__ring_number(641, 2, 4),
      mam__class_of(1000),
  };
  mam__u64 sum = 0xcbf29ce484222325; /* FNV-1a, by words */
  for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
    sum = (sum ^ facts[i]) * 0x100000001b3;
  ck_assert_msg(sum == LAYOUT_SUM,
                "the layout of heaps has changed: raise its number, MAM_HEAP_LAYOUT_*, in lib/api/mam.map and in "
                "MAM_HeapHandle(3), and write %#llx here",
                sum);
}
END_TEST

/* A search for pages stays within a small superblock, whatever it remembered of a large one. */
START_TEST(superblocks_of_different_sizes_are_kept_apart) {
  model = heap_model_create(MIB, 2);
  heap_model_grow(model, 64 * MIB);
  for (unsigned round = 0; round < 8; round++) {
    size_t bytes = round % 2 == 0 ? 40000 : 1000;
    unsigned count = fill(bytes);
    for (unsigned i = 0; i < count; i++)
      ck_assert(in_a_superblock(blocks[i], bytes));
    free_all(count);
    model->control->active = round / 2 % 2;
  }
}
END_TEST

START_TEST(random_operations_keep_every_block_whole) {
  enum { LIVE = 4096, STEPS = 300000 };
  static struct live live[LIVE];
  memset(live, 0, sizeof live);
  model = heap_model_create(8 * MIB, 8);
  if (_i != 0)
    heap_model_make_lazy(model);
  mam__u32 all = heap_model_free_pages(model);
  for (unsigned step = 0; step < STEPS; step++) {
    struct live *chosen = &live[random_below(LIVE)];
    if (chosen->address != NULL) {
      verify(chosen);
      ck_assert(heap_model_free(model, chosen->address));
      ck_assert(!heap_model_free(model, chosen->address));
      chosen->address = NULL;
      continue;
    }
    chosen->bytes = 1 + random_below(1u << (4 + random_below(step / 100000 % 2 == 0 ? 9 : 14)));
    chosen->mark = (unsigned char)step;
    chosen->address = heap_model_malloc(model, chosen->bytes, random_below(model->control->heap.slot_count));
    if (chosen->address != NULL)
      memset(chosen->address, chosen->mark, chosen->bytes);
  }
  for (unsigned i = 0; i < LIVE; i++)
    if (live[i].address != NULL) {
      verify(&live[i]);
      ck_assert(heap_model_free(model, live[i].address));
    }
  /* Only slots hold spans now. */
  mam__u32 held = 0;
  for (mam__u32 size_class = 0; size_class < MAM__HEAP_CLASSES; size_class++)
    held += model->control->heap.slot_count * mam__span_pages(model->control->heap.tuning, size_class);
  ck_assert_uint_le(all - heap_model_free_pages(model), held);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap_core");
  TCase *tests = tcase_create("core");
  tcase_add_checked_fixture(tests, set_up, tear_down);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, classes_hold_what_is_asked_for_and_little_more);
  tcase_add_test(tests, chunks_are_found_from_every_byte_of_a_span);
  tcase_add_test(tests, spans_are_whole_pages_of_whole_chunks);
  tcase_add_test(tests, blocks_are_aligned_sized_and_apart);
  tcase_add_test(tests, lanes_of_a_warp_get_neighbours);
  tcase_add_test(tests, what_is_no_block_is_refused);
  tcase_add_test(tests, nearly_all_of_a_heap_is_handed_out_at_every_size);
  tcase_add_test(tests, a_small_heap_serves_mixed_sizes);
  tcase_add_loop_test(tests, a_full_heap_serves_again_what_was_freed, 0, 2);
  tcase_add_loop_test(tests, pages_of_one_size_serve_another, 0, 2);
  tcase_add_test(tests, the_largest_run_is_the_superblock);
  tcase_add_test(tests, a_heap_grows_while_it_is_full);
  tcase_add_loop_test(tests, a_full_heap_takes_what_waits, 0, 2);
  tcase_add_test(tests, searches_find_what_there_is);
  tcase_add_test(tests, a_try_takes_what_is_there);
  tcase_add_loop_test(tests, runs_over_the_end_of_a_part_are_found, 0, 2);
  tcase_add_loop_test(tests, long_runs_over_the_end_of_a_part_are_found, 0, 2);
  tcase_add_test(tests, long_runs_are_the_first_ones);
  tcase_add_test(tests, runs_that_come_back_are_measured);
  tcase_add_test(tests, codes_of_lengths_are_close);
  tcase_add_test(tests, a_run_waits_for_a_sweep_of_others);
  tcase_add_test(tests, one_free_chunk_is_found_behind_many_old_hints);
  tcase_add_loop_test(tests, a_free_chunk_is_found_wherever_it_is, 0, 4);
  tcase_add_test(tests, tickets_of_a_dry_slot_are_kept_few);
  tcase_add_test(tests, a_check_does_not_wait_for_a_dry_slot);
  tcase_add_test(tests, a_check_knows_what_each_slot_of_a_home_holds);
  tcase_add_test(tests, a_grown_heap_refills_its_slots);
  tcase_add_test(tests, a_request_that_asks_again_refills_a_dry_slot);
  tcase_add_test(tests, no_part_is_taken_while_a_span_is_opened);
  tcase_add_test(tests, what_slots_of_each_size_hold_serves_another);
  tcase_add_test(tests, the_layout_is_that_of_its_number);
  tcase_add_test(tests, superblocks_of_different_sizes_are_kept_apart);
  tcase_add_loop_test(tests, long_runs_of_a_lazy_heap_are_apart_and_come_back, 0, 2);
  tcase_add_loop_test(tests, random_operations_keep_every_block_whole, 0, 2);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
