/* SPDX-License-Identifier: BSD-2-Clause */
/* Defragmentation on heaps in host memory: its plan, the objects, and the pointers between them. */
#include <check.h>
#include <math.h>
#include <stdio.h>

#include "support/compact_model.h"
#include "support/run_suite.h"

enum { MIB = 1 << 20, OBJECTS_MOST = 60000 };

/* ck_assert for many checks: Check writes each of its own to a file, which takes longer than all else. */
#define REQUIRE(expression)                                                                                            \
  do                                                                                                                   \
    if (!(expression))                                                                                                 \
      ck_abort_msg("%s", #expression);                                                                                 \
  while (0)

/* An object of a test: its number, pointers to other objects, and a pattern to its end. */
struct object {
  mam__u64 number;
  struct object *next[2];
  unsigned char pattern[];
};

static const mam__u16 object_pointers[] = {1, 2};

static struct heap_model *model;
static struct object *objects[OBJECTS_MOST]; /* NULL: freed.  Only the test knows the table */
static mam__u32 object_count, object_bytes;
static mam__u64 random_state;

static mam__u32 random_below(mam__u32 limit) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (mam__u32)((random_state >> 33) % limit);
}

static unsigned char pattern_of(mam__u32 number, mam__u32 byte) { return (unsigned char)(number * 31 + byte * 7 + 1); }

/* Creates count objects of a type, or as many as there is room for.  Their pointers lead to any of them. */
static void objects_create_some(mam_type type, mam__u32 bytes, mam__u32 count) {
  object_bytes = bytes;
  for (object_count = 0; object_count < count; object_count++) {
    mam__u32 i = object_count;
    void *block;
    if (heap_model_malloc_kind(model, type, i % model->control->heap.slot_count, 1, &block) != 1)
      break;
    objects[i] = (struct object *)block;
    objects[i]->number = i;
    for (mam__u32 byte = 0; byte < bytes - sizeof(struct object); byte++)
      objects[i]->pattern[byte] = pattern_of(i, byte);
  }
  for (mam__u32 i = 0; i < object_count; i++)
    for (int j = 0; j < 2; j++)
      objects[i]->next[j] = objects[random_below(object_count)];
}

static void objects_create(mam_type type, mam__u32 bytes, mam__u32 count) {
  objects_create_some(type, bytes, count);
  REQUIRE(object_count == count);
}

static void object_free(mam__u32 i) {
  REQUIRE(heap_model_free(model, objects[i]) == 1);
  objects[i] = NULL;
}

/* Frees objects at random, so that this percentage stays.  Pointers to freed ones become NULL. */
static void objects_thin(mam__u32 percent) {
  for (mam__u32 i = 0; i < object_count; i++)
    if (objects[i] != NULL && random_below(100) >= percent)
      object_free(i);
  for (mam__u32 i = 0; i < object_count; i++)
    for (int j = 0; j < 2 && objects[i] != NULL; j++) {
      mam__u64 to = random_below(object_count);
      objects[i]->next[j] = objects[to]; /* maybe NULL */
    }
}

/* The object that each pointer leads to, before and after. */
static mam__u32 led_to[OBJECTS_MOST][2];

static void pointers_note(void) {
  for (mam__u32 i = 0; i < object_count; i++)
    for (int j = 0; j < 2 && objects[i] != NULL; j++)
      led_to[i][j] = objects[i]->next[j] == NULL ? object_count : (mam__u32)objects[i]->next[j]->number;
}

/* Has the library forward the test's own table, as a root array. */
static void objects_forward(void) {
  mam_device_heap heap = model->control->heap;
  for (mam__u32 i = 0; i < object_count; i++)
    objects[i] = (struct object *)mam__forwarded(&heap, (mam__u64)objects[i]);
}

/* Every object is where the table says, is whole, points to the same objects as before, and overlaps none. */
static void objects_check(void) {
  for (mam__u32 i = 0; i < object_count; i++) {
    if (objects[i] == NULL)
      continue;
    REQUIRE(objects[i]->number == i);
    for (mam__u32 byte = 0; byte < object_bytes - sizeof(struct object); byte++)
      REQUIRE(objects[i]->pattern[byte] == pattern_of(i, byte));
    for (int j = 0; j < 2; j++)
      REQUIRE(objects[i]->next[j] == (led_to[i][j] == object_count ? NULL : objects[led_to[i][j]]));
    REQUIRE(mam__block_bytes(model->control, (mam__u64)objects[i]) >= object_bytes);
  }
}

static mam__u32 objects_live(void) {
  mam__u32 live = 0;
  for (mam__u32 i = 0; i < object_count; i++)
    live += objects[i] != NULL;
  return live;
}

/* The average free level of the spans of a type that hold anything, from the words alone; and used chunks. */
static double fragmentation(mam__u32 type, mam__u32 *spans, mam__u32 *used) {
  double level = 0;
  *spans = *used = 0;
  for (mam__u32 i = 0; i < model->control->superblock_count; i++) {
    struct mam__area area = model->control->superblocks[i];
    for (mam__u32 page = 0; page < area.page_count; page++) {
      const mam__u64 *words = area.words + (size_t)page * MAM__PAGE_WORDS;
      unsigned live = 0, chunks = 0;
      if (words[0] == 0 || mam__word_is_run(words[0]) || (words[0] >> 44 & 15) != type)
        continue;
      for (unsigned word = 0; word < (words[0] >> 40 & 15); word++) {
        live += mam__ones_u32(mam__word_used(words[word]));
        chunks += words[word] >> 32 & 63;
      }
      *used += live;
      *spans += live != 0;
      level += live == 0 ? 0 : 1 - (double)live / chunks;
    }
  }
  return *spans == 0 ? 0 : level / *spans;
}

static unsigned compact_all(mam__u32 types, mam__u32 n_first, mam__u32 n_last) {
  struct mam_compact *compact = compact_model_open(model, types, n_last);
  compact->n_first = n_first;
  unsigned passes = compact_model_passes(compact);
  compact_model_rewrite(compact);
  objects_forward();
  compact_model_close(compact);
  return passes;
}

static void set_up(void) {
  random_state = 12345;
  model = heap_model_create(32 * MIB, 4);
}

static void tear_down(void) { heap_model_destroy(model); }

/* ---- The plan ---- */

START_TEST(each_candidate_is_in_at_most_one_merge) {
  static unsigned char seen[5000];
  for (mam__u32 n = 1; n <= MAM_COMPACT_TARGETS; n += n < 8 ? 1 : 7)
    for (mam__u32 candidates = n + 1; candidates < sizeof seen; candidates = candidates * 3 / 2 + 1) {
      memset(seen, 0, sizeof seen);
      mam__u32 sources = 0;
      for (mam__u32 i = 0; i < mam_merge_count(candidates, n); i++) {
        struct mam_merge merge = mam_merge_of(candidates, n, i);
        REQUIRE(merge.sources == 1);
        REQUIRE(merge.targets == n);
        REQUIRE(merge.target < candidates);
        REQUIRE(seen[merge.source]++ == 0);
        for (mam__u32 j = 0; j < merge.targets; j++)
          REQUIRE(seen[merge.target - j * merge.stride]++ == 0);
        sources++;
      }
      ck_assert_uint_eq(sources, candidates / (n + 1));
    }
}
END_TEST

START_TEST(few_candidates_keep_as_many_as_their_objects_need) {
  for (mam__u32 candidates = 2; candidates < 20; candidates++)
    for (mam__u32 live = candidates; live <= candidates * 256; live += 17) {
      struct mam_merge merge = mam_merge_rest(candidates, live, 256);
      REQUIRE(merge.sources + merge.targets == candidates);
      REQUIRE(merge.targets * 256 >= live);
      REQUIRE((merge.targets - 1) * 256 < live);
      REQUIRE(merge.target - (merge.targets - 1) * merge.stride == merge.source + merge.sources);
    }
}
END_TEST

/* For any pattern of used and free chunks and any first free one: each object gets a free chunk of its own, in
 * order. */
START_TEST(objects_are_paired_with_free_chunks_in_order) {
  static struct mam_merge_room room;
  for (int round = 0; round < 3000; round++) {
    mam__u32 words = MAM__PAGE_WORDS * (1 + random_below(MAM_COMPACT_TARGETS)), holes = 0, object = 0;
    struct mam_source source = {.kind = mam__class_of(48)};
    for (mam__u32 i = 0; i < words / MAM__PAGE_WORDS; i++)
      room.address[i] = (mam__u64)random_below(1000) << 20;
    for (mam__u32 i = 0; i < words; i++) {
      room.before[i] = (mam__u16)holes;
      room.free[i] = random_below(4) == 0 ? 0 : random_below(1u << 31) ^ random_below(2) << 31;
      holes += (mam__u32)__builtin_popcount(room.free[i]);
    }
    for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
      source.used[i] = random_below(3) == 0 ? 0 : random_below(1u << 31) ^ random_below(2) << 31;
      source.live += (mam__u32)__builtin_popcount(source.used[i]);
    }
    if (source.live > holes)
      continue;
    mam__u32 first = random_below(holes - source.live + 1), hole = 0;
    mam_merge_pair(compact_model_team, &room, &source, words, first);
    for (mam__u32 chunk = 0; chunk < MAM_SPAN_CHUNKS; chunk++)
      if ((source.used[chunk / 32] >> chunk % 32 & 1) != 0)
        REQUIRE(room.from[object++] == chunk);
    REQUIRE(object == source.live);
    for (mam__u32 chunk = 0; chunk < 32 * words; chunk++)
      if ((room.free[chunk / 32] >> chunk % 32 & 1) != 0 && hole++ >= first && hole - 1 - first < source.live)
        REQUIRE(room.to[hole - 1 - first] == room.address[chunk / MAM_SPAN_CHUNKS] + chunk % MAM_SPAN_CHUNKS * 48);
  }
}
END_TEST

/* For any number of pointers an object: each pointer of a used chunk is read once, and nothing else is read. */
START_TEST(each_pointer_is_read_once) {
  enum { BYTES = 8 * (MAM__TYPE_POINTERS + 3) };
  static mam__u64 memory[MAM_SPAN_CHUNKS * BYTES / 8];
  static unsigned char seen[MAM_SPAN_CHUNKS * BYTES / 8];
  struct mam_compact compact = {.pointers_most = MAM__TYPE_POINTERS};
  mam__u16 places[MAM__TYPE_POINTERS];
  for (mam__u32 count = 1; count <= MAM__TYPE_POINTERS; count++) {
    struct mam_span_left left = {
        .address = (mam__u64)memory, .pointers = places, .pointer_count = count, .bytes = BYTES};
    left.words = 1 + random_below(MAM__PAGE_WORDS);
    for (mam__u32 i = 0; i < left.words; i++)
      left.used[i] = random_below(1u << 31) ^ random_below(2) << 31;
    for (mam__u32 i = 0; i < count; i++)
      places[i] = (mam__u16)(MAM__TYPE_POINTERS + 2 - i);
    for (mam__u32 i = 0; i < sizeof memory / sizeof *memory; i++)
      memory[i] = i + 1;
    memset(seen, 0, sizeof seen);
    for (mam__u32 i = 0; i < 32 * mam_span_parts(&compact); i++) {
      struct mam_pointers pointers;
      mam_pointers_read(&pointers, &left, i / 32, i % 32);
      for (mam__u32 j = 0; j < MAM_COMPACT_BATCH; j++)
        if (pointers.addresses.old[j] != 0)
          seen[pointers.addresses.old[j] - 1]++;
    }
    for (mam__u32 chunk = 0; chunk < MAM_SPAN_CHUNKS; chunk++)
      for (mam__u32 i = 0; i < BYTES / 8; i++)
        REQUIRE(seen[chunk * (BYTES / 8) + i] ==
                (i > MAM__TYPE_POINTERS + 2 - count && (left.used[chunk / 32] >> chunk % 32 & 1) != 0));
  }
}
END_TEST

/* ---- Objects ---- */

static const mam__u32 levels[] = {0, 1, 5, 20, 40, 50, 60, 75, 90, 97, 100};
static const mam__u32 numbers[] = {1, 2, 3, 4, 6, 8, 16};

/* All fill levels and n: nothing is lost, pointers lead where they led, the bound holds but for one span. */
START_TEST(objects_survive_and_the_bound_holds) {
  static const mam__u32 sizes[] = {32, 64, 80, 200, 700};
  mam__u32 n = numbers[_i % 7], bytes = sizes[_i % 5], spans, used, before;
  for (mam__u32 level = 0; level < sizeof levels / sizeof levels[0]; level++) {
    mam_type type = compact_model_type(model, 1, bytes, 2, object_pointers);
    objects_create(type, bytes, 10000);
    objects_thin(levels[level]);
    pointers_note();
    (void)fragmentation(1, &before, &used);
    unsigned passes = compact_all(1, _i % 2 == 0 ? 1 : n, n);
    objects_check();
    double left = fragmentation(1, &spans, &used);
    ck_assert_uint_eq(used, objects_live());
    ck_assert_uint_le(spans, before);
    /* One span may be left that is emptier. */
    ck_assert_msg(spans == 0 || left * spans <= (spans - 1) / (n + 1.0) + 1, "n %u: %f of %u spans", n, left, spans);
    /* Each pass takes 1/(n+1) of the candidates away, or one at least. */
    ck_assert_uint_le(passes, 2 + log(before + 1) * (n + 1));
    for (mam__u32 i = 0; i < object_count; i++)
      if (objects[i] != NULL)
        object_free(i);
    ck_assert_uint_eq(heap_model_free_pages(model), model->control->superblocks[0].page_count);
  }
}
END_TEST

START_TEST(one_pass_removes_its_share_of_candidates) {
  mam__u32 n = numbers[_i], spans, used, after;
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  objects_create(type, 64, 40000);
  objects_thin(40);
  pointers_note();
  struct mam_compact *compact = compact_model_open(model, 1, n);
  (void)fragmentation(1, &spans, &used);
  mam__u64 merges = compact_model_pass(compact, compact->n_last, true);
  ck_assert_uint_eq(compact->state->found.spans, spans);
  ck_assert_uint_eq(compact->state->found.live, used);
  if (compact->state->found.candidates > n)
    ck_assert_uint_eq(merges, compact->state->found.candidates / (n + 1));
  else
    ck_assert_uint_gt(merges, 0);
  compact_model_rewrite(compact);
  objects_forward();
  compact_model_close(compact);
  objects_check();
  (void)fragmentation(1, &after, &used);
  ck_assert_uint_eq(after, spans - merges);
}
END_TEST

START_TEST(addresses_inside_an_object_follow_it) {
  mam_type type = compact_model_type(model, 1, 112, 0, NULL);
  static char *inside[OBJECTS_MOST];
  mam_device_heap heap = model->control->heap;
  objects_create(type, 112, 5000);
  for (mam__u32 i = 0; i < object_count; i++)
    if (i % 3 != 0)
      object_free(i);
  for (mam__u32 i = 0; i < object_count; i++)
    inside[i] = objects[i] == NULL ? NULL : (char *)objects[i] + i % 112;
  struct mam_compact *compact = compact_model_open(model, 1, 2);
  mam__u32 moved = 0;
  (void)compact_model_passes(compact);
  for (mam__u32 i = 0; i < object_count; i++)
    if (inside[i] != NULL) {
      char *now = (char *)mam__forwarded(&heap, (mam__u64)inside[i]);
      moved += now != inside[i];
      REQUIRE(((struct object *)(now - i % 112))->number == i);
      REQUIRE(mam__forwarded(&heap, (mam__u64)now) == (mam__u64)now);
    }
  ck_assert_uint_gt(moved, 0);
  compact_model_close(compact);
}
END_TEST

START_TEST(types_and_untyped_blocks_do_not_mix) {
  static void *plain[2000], *others[3000];
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam_type other = compact_model_type(model, 2, 64, 0, NULL);
  for (mam__u32 i = 0; i < 3000; i++) {
    REQUIRE(heap_model_malloc_kind(model, other, i % 4, 1, &others[i]) == 1);
    memset(others[i], (int)(i % 251), 64);
    if (i < 2000) {
      plain[i] = heap_model_malloc(model, 64, i % 4);
      memset(plain[i], 0xee, 64);
    }
  }
  objects_create(type, 64, 20000);
  objects_thin(30);
  for (mam__u32 i = 0; i < 3000; i++)
    if (i % 5 != 0) {
      REQUIRE(heap_model_free(model, others[i]));
      if (i < 2000)
        REQUIRE(heap_model_free(model, plain[i]));
    }
  pointers_note();
  struct mam_compact *compact = compact_model_open(model, 2, 1);
  mam_device_heap heap = model->control->heap;
  (void)compact_model_passes(compact);
  compact_model_rewrite(compact);
  objects_forward();
  mam__u32 moved = 0;
  for (mam__u32 i = 0; i < 3000; i += 5) {
    unsigned char *now = (unsigned char *)mam__forwarded(&heap, (mam__u64)others[i]);
    moved += now != others[i];
    for (unsigned byte = 0; byte < 64; byte++)
      REQUIRE(now[byte] == i % 251);
    if (i < 2000) {
      REQUIRE(mam__forwarded(&heap, (mam__u64)plain[i]) == (mam__u64)plain[i]);
      for (unsigned byte = 0; byte < 64; byte++)
        REQUIRE(((unsigned char *)plain[i])[byte] == 0xee);
    }
  }
  ck_assert_uint_gt(moved, 0);
  compact_model_close(compact);
  objects_check();
}
END_TEST

/* Pointers that lead to a freed object, or nowhere, stay as they are. */
START_TEST(other_pointers_stay) {
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam_device_heap heap = model->control->heap;
  static mam__u64 gone[20000];
  objects_create(type, 64, 20000);
  for (mam__u32 i = 0; i < object_count; i++)
    if (i % 5 != 0) {
      gone[i] = (mam__u64)objects[i];
      object_free(i);
    }
  struct mam_compact *compact = compact_model_open(model, 1, 1);
  ck_assert_uint_gt(compact_model_pass(compact, compact->n_last, true), 0);
  for (mam__u32 i = 0; i < object_count; i++)
    REQUIRE(mam__forwarded(&heap, gone[i]) == gone[i]);
  ck_assert_uint_eq(mam__forwarded(&heap, 0), 0);
  ck_assert_uint_eq(mam__forwarded(&heap, (mam__u64)&heap), (mam__u64)&heap);
  ck_assert_uint_eq(mam__forwarded(&heap, ~0ull), ~0ull);
  compact_model_close(compact);
}
END_TEST

/* Pointers into pages that an earlier compaction gave back stay as they are, too. */
START_TEST(pointers_into_returned_pages_stay) {
  static struct object *before[40000];
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam__u32 moved = 0, looked = 0;
  objects_create(type, 64, 40000);
  objects_thin(30);
  memcpy(before, objects, object_count * sizeof *before);
  for (int round = 0; round < 2; round++) {
    struct mam_compact *compact = compact_model_open(model, 1, 1);
    ck_assert_uint_gt(compact_model_pass(compact, compact->n_last, true), 0);
    compact_model_rewrite(compact);
    objects_forward();
    for (mam__u32 i = 0; i < object_count; i++) {
      moved += round == 0 && objects[i] != before[i];
      if (round == 0 || objects[i] == NULL || objects[i]->next[0] == NULL)
        continue;
      REQUIRE(objects[i]->next[0] == before[objects[i]->number]);
      looked++;
    }
    compact_model_close(compact);
    for (mam__u32 i = 0; round == 0 && i < object_count; i++) {
      if (objects[i] == NULL)
        continue;
      objects[i]->next[0] = objects[i] != before[i] ? before[i] : NULL;
      objects[i]->next[1] = NULL;
      if (i % 2 == 0)
        object_free(i);
    }
  }
  ck_assert_uint_gt(moved, 1000);
  ck_assert_uint_gt(looked, 300);
}
END_TEST

/* So do pointers into a span that has no object left, but was not given back. */
START_TEST(pointers_into_empty_spans_stay) {
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam_device_heap heap = model->control->heap;
  objects_create(type, 64, 20000);
  objects_thin(90);
  struct mam_compact *compact = compact_model_open(model, 1, 1);
  mam__u32 page = (mam__u32)(((mam__u64)objects[10000] - heap.base) >> MAM__PAGE_SHIFT);
  page -= mam__entry_back(*mam__page_entry(mam__heap_words(&heap), page));
  mam__u64 from = heap.base + ((mam__u64)page << MAM__PAGE_SHIFT),
           *words = mam__heap_words(&heap) + (size_t)page * MAM__PAGE_WORDS;
  mam__u64 to = from + ((mam__u64)mam__word_span_pages(words[0]) << MAM__PAGE_SHIFT), gone = (mam__u64)objects[10000];
  for (mam__u32 i = 0; i < object_count; i++)
    if ((mam__u64)objects[i] >= from && (mam__u64)objects[i] < to)
      objects[i] = NULL;
    else if (objects[i] != NULL)
      objects[i]->next[0] = (struct object *)gone;
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    words[i] = mam__word_emptied(words[i]);
  (void)compact_model_passes(compact);
  compact_model_rewrite(compact);
  REQUIRE(mam__forwarded(&heap, gone) == gone);
  objects_forward();
  for (mam__u32 i = 0; i < object_count; i++)
    REQUIRE(objects[i] == NULL || (mam__u64)objects[i]->next[0] == gone);
  compact_model_close(compact);
  REQUIRE(words[0] == 0 && (mam__area_pages(model->control->superblocks[0])[page >> 6] >> (page & 63) & 1) == 0);
}
END_TEST

/* What was merged last lies in front: later superblocks become empty, and their pages can be allocated again. */
START_TEST(later_superblocks_become_empty) {
  heap_model_grow(model, 32 * MIB);
  mam_type type = compact_model_type(model, 1, 512, 2, object_pointers);
  mam__u32 spans, used;
  objects_create(type, 512, OBJECTS_MOST);
  ck_assert_uint_gt(heap_model_free_pages(model), 0);
  objects_thin(30);
  pointers_note();
  (void)compact_all(1, 1, 1);
  objects_check();
  (void)fragmentation(1, &spans, &used);
  struct mam__area last = model->control->superblocks[1];
  for (mam__u32 i = 0; i < mam__area_map_words(last); i++)
    REQUIRE(mam__area_pages(last)[i] == mam__map_open_word(last.page_count, i));
  for (mam__u32 page = 0; page < last.page_count * MAM__PAGE_WORDS; page++)
    REQUIRE(last.words[page] == 0);
  ck_assert_ptr_nonnull(heap_model_malloc(model, 30 * MIB, 0));
}
END_TEST

/* Where pages were scarce, spans are smaller than others of their type. */
START_TEST(parts_of_spans_take_part) {
  static void *large[2000];
  mam_type type = compact_model_type(model, 1, 200, 2, object_pointers);
  mam__u32 count = 0, spans, used;
  while (count < 2000 && (large[count] = heap_model_malloc(model, 9 * MAM__PAGE_BYTES, 0)) != NULL)
    count++;
  for (mam__u32 i = 0; i < count; i += 2)
    REQUIRE(heap_model_free(model, large[i])); /* holes of nine pages; a whole span does not fit */
  objects_create_some(type, 200, OBJECTS_MOST);
  ck_assert_uint_gt(object_count, 1000);
  struct mam__area area = model->control->superblocks[0];
  mam__u32 parts = 0;
  for (mam__u32 page = 0; page < area.page_count; page++)
    if (mam__word_class(area.words[page * MAM__PAGE_WORDS]) == type)
      parts +=
          mam__word_span_pages(area.words[page * MAM__PAGE_WORDS]) < mam__span_pages(model->control->heap.tuning, type);
  ck_assert_uint_gt(parts, 10);
  for (mam__u32 percent = 90; percent > 10; percent -= 20) {
    objects_thin(percent);
    pointers_note();
    (void)compact_all(1, 1, 2);
    objects_check();
    (void)fragmentation(1, &spans, &used);
    ck_assert_uint_eq(used, objects_live());
  }
}
END_TEST

/* A free by an address from before a compaction is refused and does no harm. */
START_TEST(frees_of_moved_objects_are_refused) {
  static struct object *before[20000];
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam__u32 moved = 0;
  objects_create(type, 64, 20000);
  objects_thin(30);
  pointers_note();
  memcpy(before, objects, object_count * sizeof *before);
  struct mam_compact *compact = compact_model_open(model, 1, 1);
  ck_assert_uint_gt(compact_model_pass(compact, compact->n_last, true), 0);
  compact_model_rewrite(compact);
  objects_forward();
  for (mam__u32 i = 0; i < object_count; i++)
    if (objects[i] != before[i]) {
      moved++;
      REQUIRE(!heap_model_free(model, before[i]));
      REQUIRE(mam__block_bytes(model->control, (mam__u64)before[i]) == 0);
    }
  ck_assert_uint_eq(model->control->refused_free, moved);
  objects_check();
  compact_model_close(compact);
  objects_check();
}
END_TEST

START_TEST(few_objects_in_many_spans_end_in_one) {
  heap_model_destroy(model);
  model = heap_model_create((size_t)256 * MIB, 4);
  mam_type type = compact_model_type(model, 1, 64, 2, object_pointers);
  mam__u32 all = heap_model_free_pages(model), left = 0, spans, used;
  objects_create(type, 64, OBJECTS_MOST);
  for (mam__u32 i = 0; i < object_count; i++)
    if (left < 10 && i % 1000 == 0)
      left++;
    else
      object_free(i);
  for (mam__u32 i = 0; i < object_count; i++)
    if (objects[i] != NULL)
      objects[i]->next[0] = objects[i]->next[1] = objects[i];
  pointers_note();
  ck_assert_uint_lt(heap_model_free_pages(model), all - 20);
  (void)compact_all(1, 1, 2);
  objects_check();
  (void)fragmentation(1, &spans, &used);
  ck_assert_uint_eq(spans, 1);
  ck_assert_uint_eq(used, 10);
  ck_assert_uint_eq(heap_model_free_pages(model), all - mam__span_pages(model->control->heap.tuning, type));
}
END_TEST

/* A list has each object of its type once, and ends where its array ends. */
START_TEST(objects_are_listed) {
  static mam__u64 listed[OBJECTS_MOST + 1];
  mam_type type = compact_model_type(model, 1, 80, 2, object_pointers);
  mam_type other = compact_model_type(model, 2, 80, 0, NULL);
  void *stranger;
  objects_create(type, 80, 20000);
  objects_thin(35);
  REQUIRE(heap_model_malloc_kind(model, other, 0, 1, &stranger) == 1);
  for (int short_of_room = 0; short_of_room < 2; short_of_room++) {
    struct mam_compact *compact = compact_model_open(model, 2, 1);
    mam__u32 live = objects_live(), room = short_of_room ? 100 : OBJECTS_MOST;
    memset(listed, 0, sizeof listed);
    ck_assert_uint_eq(compact_model_list(compact, 1, listed, room), live);
    for (mam__u32 i = 0; i < live && i < room; i++) {
      mam__u32 number = (mam__u32)((struct object *)listed[i])->number;
      REQUIRE(number < object_count && (mam__u64)objects[number] == listed[i]);
      REQUIRE(i == 0 || listed[i] > listed[i - 1]);
    }
    ck_assert_uint_eq(listed[live < room ? live : room], 0);
    compact_model_close(compact);
  }
}
END_TEST

/* After a compaction, objects can be created and freed as before. */
START_TEST(the_heap_works_on_after_it) {
  mam_type type = compact_model_type(model, 1, 48, 2, object_pointers);
  objects_create(type, 48, 30000);
  for (int round = 0; round < 20; round++) {
    objects_thin(30 + random_below(60));
    pointers_note();
    (void)compact_all(1, 1, 1 + random_below(5));
    objects_check();
    for (mam__u32 i = 0; i < object_count; i++)
      if (objects[i] == NULL && random_below(2) == 0) {
        void *block;
        REQUIRE(heap_model_malloc_kind(model, type, random_below(4) % model->control->heap.slot_count, 1, &block) == 1);
        objects[i] = (struct object *)block;
        objects[i]->number = i;
        objects[i]->next[0] = objects[i]->next[1] = NULL;
        for (mam__u32 byte = 0; byte < 48 - sizeof(struct object); byte++)
          objects[i]->pattern[byte] = pattern_of(i, byte);
      }
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("compaction");
  TCase *plan = tcase_create("the plan"), *heap = tcase_create("objects");
  tcase_add_test(plan, each_candidate_is_in_at_most_one_merge);
  tcase_add_test(plan, few_candidates_keep_as_many_as_their_objects_need);
  tcase_add_test(plan, objects_are_paired_with_free_chunks_in_order);
  tcase_add_test(plan, each_pointer_is_read_once);
  suite_add_tcase(suite, plan);
  tcase_add_checked_fixture(heap, set_up, tear_down);
  tcase_add_loop_test(heap, objects_survive_and_the_bound_holds, 0, 35);
  tcase_add_loop_test(heap, one_pass_removes_its_share_of_candidates, 0, 7);
  tcase_add_test(heap, addresses_inside_an_object_follow_it);
  tcase_add_test(heap, types_and_untyped_blocks_do_not_mix);
  tcase_add_test(heap, other_pointers_stay);
  tcase_add_test(heap, pointers_into_returned_pages_stay);
  tcase_add_test(heap, pointers_into_empty_spans_stay);
  tcase_add_test(heap, later_superblocks_become_empty);
  tcase_add_test(heap, parts_of_spans_take_part);
  tcase_add_test(heap, few_objects_in_many_spans_end_in_one);
  tcase_add_test(heap, objects_are_listed);
  tcase_add_test(heap, frees_of_moved_objects_are_refused);
  tcase_add_test(heap, the_heap_works_on_after_it);
  suite_add_tcase(suite, heap);
  return run_suite(suite);
}
