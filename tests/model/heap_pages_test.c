/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * model/heap_pages_test.c - random runs and chunks in lazy heaps of many sizes, beside a naive model: which page has
 * which owner.  One thread, one to three superblocks, whose page maps end within a word, a word before, at and behind
 * the end of a part.
 *
 * After each step every page belongs to one span or run, is kept for a long run, or is free in the page map; the upper
 * levels of the map, the bits past its end and what is known to be missing are true; and no request is under way.  A
 * request for a run that is there is served.
 */
#include <stdbool.h>
#include <stdint.h>

#include "support/random.h"

#define MAM__ATOMICS_SALT() random_below(1u << 30)

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "mam/detail/heap_core.h"
#include "support/heap_model.h"
#include "support/run_suite.h"

enum { PAGES_MOST = 65536, BLOCKS_MOST = 4000, SUPERBLOCKS_MOST = 3, STEPS = 6000 };
enum owner { OWNER_NONE, OWNER_BLOCK, OWNER_KEPT };

static const mam__u32 sizes[] = {64,   65,   127,  128,  129,   4095,  4096,  4097,
                                 4159, 4161, 8192, 8255, 12289, 20000, 64417, PAGES_MOST};
/* Lengths of runs, in pages, where a step of an algorithm ends. */
static const mam__u32 lengths[] = {63,  64,  65,   66,   127,  128,  129,  191,  192,  193,
                                   255, 256, 1000, 4032, 4095, 4096, 4097, 4160, 5000, 8192};

static struct heap_model *model;
static unsigned char owners[SUPERBLOCKS_MOST][PAGES_MOST];
static mam__u64 blocks[BLOCKS_MOST];
static unsigned block_count;

static size_t bytes_of_pages(mam__u32 pages) {
  size_t bytes = ((size_t)pages << MAM__PAGE_SHIFT) + mam__area_metadata_bytes(pages);
  return (bytes + MAM__PAGE_BYTES - 1) & ~(size_t)(MAM__PAGE_BYTES - 1);
}

static void own(mam__u32 superblock, mam__u32 page, mam__u32 count, enum owner owner) {
  ck_assert_uint_le(page + count, model->control->superblocks[superblock].page_count);
  for (mam__u32 i = page; i < page + count; i++) {
    if (owners[superblock][i] != OWNER_NONE)
      ck_abort_msg("page %u has two owners", i);
    owners[superblock][i] = (unsigned char)owner;
  }
}

/* Whether a word of the page map may be kept, by what control->kept_end says. */
static bool may_be_kept(mam__u32 superblock, mam__u32 word) {
  mam__u32 end = model->control->kept_end;
  if (superblock != 0 || (word + 1) * 64 > model->control->superblocks[0].page_count)
    return false;
  return end < MAM__KEPT_OFF ? word < end : end < MAM__KEPT_DONE && word / 64 < MAM__KEPT_DONE - end;
}

static void check_superblock(mam__u32 superblock) {
  struct mam__area area = model->control->superblocks[superblock];
  const mam__u64 *map = mam__area_pages(area);
  mam__u32 words = mam__area_map_words(area);
  memset(owners[superblock], OWNER_NONE, area.page_count);
  for (mam__u32 page = 0; page < area.page_count; page++) {
    const mam__u64 *usage = &area.words[page * MAM__PAGE_WORDS];
    if (usage[0] != 0)
      own(superblock, page,
          mam__word_is_run(usage[0]) ? mam__run_pages(usage[0], usage[1]) : mam__word_span_pages(usage[0]),
          OWNER_BLOCK);
  }
  for (mam__u32 word = 0; word < mam__area_part_count(area) * 64; word++)
    if ((mam__area_kept(area)[word / 64] >> word % 64 & 1) == 0) {
      if (!may_be_kept(superblock, word))
        ck_abort_msg("word %u is kept, and kept_end is %#x", word, model->control->kept_end);
      own(superblock, word * 64, 64, OWNER_KEPT);
    }
  for (mam__u32 page = 0; page < words * 64; page++)
    if ((map[page / 64] >> page % 64 & 1) != (page >= area.page_count || owners[superblock][page] != OWNER_NONE))
      ck_abort_msg("the page map is wrong about page %u", page);
  ck_assert(heap_model_opens_above(map, words));
  ck_assert(heap_model_shortages_hold(area));
}

static void check_heap(void) {
  for (mam__u32 i = 0; i < model->control->superblock_count; i++)
    check_superblock(i);
  for (mam__u32 i = 0; i < MAM__OPENINGS; i++)
    ck_assert_uint_eq(model->control->opening[i], 0);
}

/* The longest run that no block has. */
static mam__u32 longest_run(void) {
  mam__u32 longest = 0;
  for (mam__u32 i = 0; i < model->control->superblock_count; i++)
    for (mam__u32 page = 0, row = 0; page < model->control->superblocks[i].page_count; page++) {
      row = owners[i][page] == OWNER_BLOCK ? 0 : row + 1;
      longest = row > longest ? row : longest;
    }
  return longest;
}

static mam__u32 random_length(mam__u32 longest) {
  switch (random_below(20)) {
  case 0:
    return longest > MAM__CHUNK_BYTES / MAM__PAGE_BYTES ? longest : longest + 9;
  case 1:
    return longest + 9;
  case 2:
  case 3:
  case 4:
  case 5:
    return lengths[random_below(sizeof lengths / sizeof lengths[0])];
  case 6:
  case 7:
  case 8:
    return 9 + random_below(1u << (3 + random_below(12)));
  default:
    return 65 + random_below(260);
  }
}

static void ask(bool chunk) {
  mam__u32 longest = longest_run(), pages = random_length(longest);
  mam__u64 address;
  if (!chunk && random_below(6) == 0)
    address = mam__run_try(model->control, pages, random_below(model->control->home_count));
  else {
    size_t bytes = chunk ? 1 + random_below(1u << (4 + random_below(12))) : (size_t)pages << MAM__PAGE_SHIFT;
    void *block = heap_model_malloc(model, bytes, random_below(model->control->heap.slot_count));
    address = (mam__u64)(uintptr_t)block;
    if (block == NULL && (chunk ? longest >= MAM__SPAN_PAGES : pages <= longest))
      ck_abort_msg("%zu bytes are refused, and %u pages in a row are there", bytes, longest);
  }
  if (address != 0)
    blocks[block_count++] = address;
}

static void free_any(void) {
  unsigned which = random_below(block_count);
  ck_assert(mam__block_free(model->control, blocks[which]));
  blocks[which] = blocks[--block_count];
}

static void reset(void) {
  for (mam__u32 i = 0; i < model->control->superblock_count; i++)
    mam__area_clear(model->control->superblocks[i], 0, 1);
  mam__slots_clear(model->control, 0, 1);
  block_count = 0;
}

START_TEST(each_page_has_one_owner) {
  mam__u32 pages = sizes[_i / 2];
  random_state = 88172645463325252u + (unsigned)_i;
  model = heap_model_create(bytes_of_pages(pages), 1 + random_below(8));
  heap_model_make_lazy(model);
  ck_assert_uint_eq(model->control->superblocks[0].page_count, pages);
  for (unsigned i = 0; _i % 2 != 0 && i <= random_below(2); i++)
    heap_model_grow(model, bytes_of_pages(sizes[random_below(10)]));
  block_count = 0;
  unsigned chance = 50, chunks = 0, steps = STEPS / (1 + pages / 2000);
  for (unsigned step = 0; step < steps; step++) {
    if (step % (steps / 8 + 1) == 0) {
      if (random_below(3) == 0)
        reset();
      chance = 40 + 10 * random_below(3);
      chunks = random_below(3);
    }
    check_heap();
    if (block_count != 0 && (random_below(100) < chance || block_count == BLOCKS_MOST))
      free_any();
    else
      ask(random_below(3) < chunks);
  }
  while (block_count != 0)
    free_any();
  check_heap();
  heap_model_destroy(model);
}
END_TEST

/* A run of more than 64 kept words takes whole words of the kept map, and gives back what it does not need. */
START_TEST(the_rest_of_kept_words_comes_back) {
  static const mam__u32 runs[] = {16384, 5000, 16384, PAGES_MOST};
  model = heap_model_create(bytes_of_pages(PAGES_MOST), 4);
  heap_model_make_lazy(model);
  block_count = 0;
  for (unsigned i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    void *block = heap_model_malloc(model, (size_t)runs[i] << MAM__PAGE_SHIFT, 0);
    ck_assert_ptr_nonnull(block);
    check_heap();
    ck_assert(mam__block_free(model->control, (mam__u64)(uintptr_t)block));
    check_heap();
  }
  heap_model_destroy(model);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap pages");
  TCase *tests = tcase_create("pages");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, each_page_has_one_owner, 0, 2 * sizeof sizes / sizeof sizes[0]);
  tcase_add_test(tests, the_rest_of_kept_words_comes_back);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
