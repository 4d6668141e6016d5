/* SPDX-License-Identifier: BSD-2-Clause */
/* The two trees, and how segments move between them, at imaginary addresses.  Only lib/pool/segment*.c is tested. */
#include <check.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "pool/segment.h"
#include "support/run_suite.h"

enum { KIB = 1024, BASE = 0x10000000 };

static struct segment_set set;

static void set_up(void) { segment_set_init(&set); }

static void tear_down(void) {
  ck_assert_ptr_null(segment_set_check(&set));
  segment_set_clear(&set);
}

static struct segment *take(size_t bytes) {
  bool no_host_memory;
  struct segment *segment = segment_take(&set, bytes, false, &no_host_memory);
  ck_assert(!no_host_memory);
  ck_assert_ptr_null(segment_set_check(&set));
  return segment;
}

static uintptr_t take_base(size_t bytes) {
  struct segment *segment = take(bytes);
  ck_assert_ptr_nonnull(segment);
  ck_assert_uint_eq(segment->bytes, bytes);
  return segment->base;
}

static void release(uintptr_t base) {
  segment_free(&set, segment_find(&set, base));
  ck_assert_ptr_null(segment_set_check(&set));
}

static void wait_for(uintptr_t base, uint64_t epoch) {
  segment_wait_on(&set, NULL, segment_find(&set, base), epoch);
  ck_assert_ptr_null(segment_set_check(&set));
}

START_TEST(empty_set_serves_nothing) {
  ck_assert_ptr_null(take(1));
  ck_assert_uint_eq(segment_largest_free(&set), 0);
  ck_assert_ptr_null(segment_first(&set));
}
END_TEST

START_TEST(chunk_is_one_free_segment) {
  ck_assert(segment_add_chunk(&set, BASE, 64 * KIB, SEGMENT_FREE));
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 64 * KIB);
}
END_TEST

START_TEST(take_splits_the_front_off) {
  segment_add_chunk(&set, BASE, 64 * KIB, SEGMENT_FREE);
  ck_assert_uint_eq(take_base(KIB), BASE);
  ck_assert_uint_eq(take_base(KIB), BASE + KIB);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 62 * KIB);
}
END_TEST

START_TEST(perfect_fit_leaves_no_rest) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  ck_assert_uint_eq(take_base(4 * KIB), BASE);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 0);
  ck_assert_ptr_null(take(1));
  release(BASE);
  ck_assert_uint_eq(segment_largest_free(&set), 4 * KIB);
}
END_TEST

/* A hole of more than twice the block's size is cut. */
START_TEST(holes_are_cut_up_as_far_as_is_allowed) {
  segment_add_chunk(&set, BASE, 64 * KIB, SEGMENT_FREE);
  set.cuts_bytes = 3 * KIB;
  ck_assert_uint_eq(take_base(KIB), BASE);
  ck_assert_uint_eq(take_base(2 * KIB), BASE + KIB);
  ck_assert_ptr_null(take(512));
  ck_assert_ptr_null(take(30 * KIB));
  ck_assert_uint_eq(take_base(31 * KIB), BASE + 3 * KIB);
  ck_assert_uint_eq(take_base(15 * KIB), BASE + 34 * KIB);
  set.cuts_bytes = 512;
  ck_assert_uint_eq(take_base(512), BASE + 49 * KIB);
  ck_assert_uint_eq(set.cuts_bytes, 0);
}
END_TEST

/* Holes of 1, 2 and 4 KiB: each request takes the smallest hole that is large enough. */
START_TEST(best_fit_takes_the_smallest_hole_that_fits) {
  segment_add_chunk(&set, BASE, 64 * KIB, SEGMENT_FREE);
  uintptr_t four = take_base(4 * KIB);
  take_base(KIB);
  uintptr_t one = take_base(KIB);
  take_base(KIB);
  uintptr_t two = take_base(2 * KIB);
  take_base(KIB);
  release(four), release(one), release(two);
  ck_assert_uint_eq(take_base(1536), two);
  ck_assert_uint_eq(take_base(KIB), one);
  ck_assert_uint_eq(take_base(3 * KIB), four);
}
END_TEST

START_TEST(equal_holes_are_taken_from_the_lowest_address) {
  segment_add_chunk(&set, BASE, 64 * KIB, SEGMENT_FREE);
  uintptr_t blocks[6];
  for (int i = 0; i < 6; i++)
    blocks[i] = take_base(KIB);
  release(blocks[4]), release(blocks[0]), release(blocks[2]);
  ck_assert_uint_eq(take_base(KIB), blocks[0]);
  ck_assert_uint_eq(take_base(KIB), blocks[2]);
  ck_assert_uint_eq(take_base(KIB), blocks[4]);
}
END_TEST

START_TEST(free_merges_neither_neighbour_while_both_are_used) {
  segment_add_chunk(&set, BASE, 3 * KIB, SEGMENT_FREE);
  take_base(KIB);
  uintptr_t middle = take_base(KIB);
  take_base(KIB);
  release(middle);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), KIB);
}
END_TEST

START_TEST(free_merges_the_neighbour_before) {
  segment_add_chunk(&set, BASE, 3 * KIB, SEGMENT_FREE);
  uintptr_t first = take_base(KIB), second = take_base(KIB);
  take_base(KIB);
  release(first), release(second);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 2 * KIB);
}
END_TEST

START_TEST(free_merges_the_neighbour_after) {
  segment_add_chunk(&set, BASE, 3 * KIB, SEGMENT_FREE);
  uintptr_t first = take_base(KIB), second = take_base(KIB);
  take_base(KIB);
  release(second), release(first);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 2 * KIB);
}
END_TEST

START_TEST(free_merges_both_neighbours) {
  segment_add_chunk(&set, BASE, 3 * KIB, SEGMENT_FREE);
  uintptr_t first = take_base(KIB), second = take_base(KIB), third = take_base(KIB);
  release(first), release(third), release(second);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 3 * KIB);
}
END_TEST

/* Chunks may touch, but are memory that the source gave separately: no segment may span two of them. */
START_TEST(segments_never_merge_across_a_chunks_edge) {
  segment_add_chunk(&set, BASE + 4 * KIB, 4 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  uintptr_t low = take_base(4 * KIB), high = take_base(4 * KIB);
  release(low), release(high);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 2);
  ck_assert_ptr_null(take(5 * KIB));
}
END_TEST

START_TEST(waiting_segments_never_merge_across_a_chunks_edge) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 4 * KIB, 4 * KIB, SEGMENT_FREE);
  uintptr_t low = take_base(4 * KIB), high = take_base(4 * KIB);
  wait_for(high, 1), wait_for(low, 1);
  ck_assert_uint_eq(set.count[SEGMENT_WAITING], 2);
}
END_TEST

START_TEST(waiting_segment_is_not_handed_out) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  wait_for(take_base(4 * KIB), 1);
  ck_assert_ptr_null(take(1));
  (void)segment_pass_some(&set, 1, UINT_MAX);
  ck_assert_uint_eq(take_base(4 * KIB), BASE);
}
END_TEST

START_TEST(only_passed_epochs_become_free) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  uintptr_t blocks[4];
  for (int i = 0; i < 4; i++)
    blocks[i] = take_base(KIB);
  wait_for(blocks[0], 1), wait_for(blocks[1], 2), wait_for(blocks[3], 3);
  (void)segment_pass_some(&set, 0, UINT_MAX);
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 0);
  (void)segment_pass_some(&set, 2, UINT_MAX);
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 2 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(set.bytes[SEGMENT_WAITING], KIB);
  (void)segment_pass_some(&set, 3, UINT_MAX);
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 3 * KIB);
}
END_TEST

START_TEST(waiting_neighbours_of_one_epoch_merge) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  uintptr_t blocks[4];
  for (int i = 0; i < 4; i++)
    blocks[i] = take_base(KIB);
  wait_for(blocks[0], 1), wait_for(blocks[2], 1);
  ck_assert_uint_eq(set.count[SEGMENT_WAITING], 2);
  wait_for(blocks[1], 1);
  ck_assert_uint_eq(set.count[SEGMENT_WAITING], 1);
  ck_assert_uint_eq(set.bytes[SEGMENT_WAITING], 3 * KIB);
}
END_TEST

START_TEST(waiting_neighbours_of_different_epochs_stay_apart) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  uintptr_t first = take_base(KIB), second = take_base(KIB);
  wait_for(first, 1), wait_for(second, 2);
  ck_assert_uint_eq(set.count[SEGMENT_WAITING], 2);
}
END_TEST

/* Blocks of 4 KiB side by side: u used, f free, w and v waiting for two streams. */
static void lay_out(const char *states, struct waiting_stream *w, struct waiting_stream *v) {
  size_t count = strlen(states);
  waiting_stream_init(w);
  waiting_stream_init(v);
  ck_assert(segment_add_chunk(&set, BASE, count * 4 * KIB, SEGMENT_FREE));
  for (size_t i = 0; i < count; i++)
    ck_assert_uint_eq(take_base(4 * KIB), BASE + i * 4 * KIB);
  for (size_t i = 0; i < count; i++) {
    struct segment *segment = segment_find(&set, BASE + i * 4 * KIB);
    if (states[i] == 'f')
      segment_free(&set, segment);
    else if (states[i] != 'u')
      segment_wait_on(&set, states[i] == 'w' ? w : v, segment, 1 + i);
    ck_assert_ptr_null(segment_set_check(&set));
  }
}

static const struct {
  const char *states;
  unsigned most; /* how many blocks the first stream gets in one piece */
  unsigned at;   /* where */
} runs[] = {{"ufu", 0, 0},   {"uwu", 1, 1},         {"ufwfu", 3, 1}, {"wfwfwu", 5, 0},
            {"fwuwf", 2, 0}, {"ufvfwfufwfw", 4, 7}, {"wvwfv", 2, 2}, {"fwvwfwu", 3, 3}};

START_TEST(free_neighbours_join_what_waits_for_a_stream) {
  struct waiting_stream w, v;
  lay_out(runs[_i].states, &w, &v);
  size_t most = runs[_i].most * 4 * KIB;
  ck_assert(!segment_may_retake(&set, &w, most + 1));
  ck_assert_ptr_null(segment_set_check(&set));
  if (most > 0) {
    ck_assert(segment_may_retake(&set, &w, most));
    ck_assert_ptr_null(segment_set_check(&set));
    bool no_host_memory;
    struct segment *taken = segment_retake(&set, &w, most, false, &no_host_memory);
    ck_assert(!no_host_memory);
    ck_assert_ptr_nonnull(taken);
    ck_assert_uint_eq(taken->base, BASE + runs[_i].at * 4 * KIB);
    ck_assert_uint_eq(taken->bytes, most);
    ck_assert_uint_eq(taken->state, SEGMENT_USED);
  }
  (void)segment_pass_stream(&set, &w, 100, UINT_MAX);
  (void)segment_pass_stream(&set, &v, 100, UINT_MAX);
}
END_TEST

START_TEST(what_joined_waits_for_the_latest_epoch) {
  struct waiting_stream w, v;
  lay_out("uwfwu", &w, &v); /* w wait for epochs 2 and 4 */
  ck_assert(segment_may_retake(&set, &w, 12 * KIB));
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 0);
  (void)segment_pass_stream(&set, &w, 3, UINT_MAX);
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 0);
  (void)segment_pass_stream(&set, &w, 4, UINT_MAX);
  ck_assert_uint_eq(segment_largest_free(&set), 12 * KIB);
}
END_TEST

START_TEST(find_knows_only_starts) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_FREE);
  uintptr_t base = take_base(2 * KIB);
  ck_assert_ptr_nonnull(segment_find(&set, base));
  ck_assert_ptr_null(segment_find(&set, base + 512));
  ck_assert_ptr_null(segment_find(&set, base - 512));
}
END_TEST

/* The size tree stays in order when a hole becomes smaller than another one, or larger. */
START_TEST(resized_holes_keep_the_size_tree_in_order) {
  segment_add_chunk(&set, BASE, 16 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 32 * KIB, 12 * KIB, SEGMENT_FREE);
  uintptr_t block = take_base(9 * KIB); /* from the 12 KiB chunk, whose hole becomes 3 KiB */
  ck_assert_uint_eq(block, BASE + 32 * KIB);
  ck_assert_uint_eq(take_base(2 * KIB), BASE + 41 * KIB);
  ck_assert_uint_eq(take_base(10 * KIB), BASE);
  release(block);
  ck_assert_uint_eq(segment_largest_free(&set), 9 * KIB);
  release(BASE);
  ck_assert_uint_eq(segment_largest_free(&set), 16 * KIB);
}
END_TEST

/* Many segments, freed in an order that makes every kind of merge: at the end, one hole. */
START_TEST(thousands_of_segments_become_one_hole_again) {
  enum { COUNT = 10000 };
  static uintptr_t blocks[COUNT];
  bool no_host_memory;
  segment_add_chunk(&set, BASE, (size_t)COUNT * KIB, SEGMENT_FREE);
  for (int i = 0; i < COUNT; i++)
    blocks[i] = segment_take(&set, KIB, false, &no_host_memory)->base;
  for (int step = 7, i = 0, k = 0; k < COUNT; k++, i = (i + step) % COUNT) /* 7 and 10000 share no factor */
    segment_free(&set, segment_find(&set, blocks[i]));
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), (size_t)COUNT * KIB);
}
END_TEST

START_TEST(host_memory_for_a_live_segment_is_at_most_96_bytes) {
  enum { COUNT = 1000000 };
  segment_add_chunk(&set, BASE, (size_t)COUNT * 512, SEGMENT_FREE);
  bool no_host_memory;
  size_t most_bytes_a_segment = 0;
  for (size_t count = 1; count <= COUNT && segment_take(&set, 512, false, &no_host_memory) != NULL; count++)
    if (count >= 1000 &&
        set.nodes_bytes / count > most_bytes_a_segment) /* with fewer segments, the first array is most of it */
      most_bytes_a_segment = set.nodes_bytes / count;
  ck_assert_uint_eq(set.count[SEGMENT_USED], COUNT);
  ck_assert_uint_lt(most_bytes_a_segment, 96);
}
END_TEST

/* ---- Addresses with memory in places ---- */

enum { RANGE = 64 * KIB };

/* Maps memory at a part of a reserved range, or unmaps it. */
static void move(uintptr_t base, size_t bytes, bool to_free) {
  struct segment *moving = segment_move(&set, segment_at(&set, base), base, bytes);
  ck_assert_ptr_nonnull(moving);
  ck_assert_uint_eq(moving->base, base);
  ck_assert_uint_eq(moving->bytes, bytes);
  ck_assert_uint_eq(set.bytes[SEGMENT_MOVING], bytes);
  ck_assert_ptr_null(segment_set_check(&set));
  segment_moved(&set, moving, to_free ? SEGMENT_FREE : SEGMENT_UNMAPPED);
  ck_assert_uint_eq(set.count[SEGMENT_MOVING], 0);
  ck_assert_ptr_null(segment_set_check(&set));
}

static void map(uintptr_t base, size_t bytes) { move(base, bytes, true); }
static void unmap(uintptr_t base, size_t bytes) { move(base, bytes, false); }

START_TEST(reserved_range_serves_nothing) {
  ck_assert(segment_add_chunk(&set, BASE, RANGE, SEGMENT_UNMAPPED));
  ck_assert_uint_eq(set.bytes[SEGMENT_UNMAPPED], RANGE);
  ck_assert_uint_eq(segment_largest_free(&set), 0);
  ck_assert_ptr_null(take(1));
}
END_TEST

START_TEST(mapped_part_is_free_and_the_rest_is_not) {
  segment_add_chunk(&set, BASE, RANGE, SEGMENT_UNMAPPED);
  map(BASE + 8 * KIB, 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 2);
  ck_assert_uint_eq(set.bytes[SEGMENT_UNMAPPED], RANGE - 4 * KIB);
  ck_assert_uint_eq(take_base(4 * KIB), BASE + 8 * KIB);
  ck_assert_ptr_null(take(1));
  release(BASE + 8 * KIB);
}
END_TEST

START_TEST(mapped_part_merges_with_free_neighbours) {
  segment_add_chunk(&set, BASE, RANGE, SEGMENT_UNMAPPED);
  map(BASE, 4 * KIB), map(BASE + 8 * KIB, 4 * KIB), map(BASE + 4 * KIB, 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(segment_largest_free(&set), 12 * KIB);
}
END_TEST

START_TEST(unmapped_parts_merge_with_unmapped_neighbours) {
  segment_add_chunk(&set, BASE, RANGE, SEGMENT_UNMAPPED);
  map(BASE, RANGE);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 0);
  unmap(BASE + 4 * KIB, 4 * KIB), unmap(BASE + 12 * KIB, 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 2);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 3);
  unmap(BASE + 8 * KIB, 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 1);
  ck_assert_uint_eq(set.bytes[SEGMENT_UNMAPPED], 12 * KIB);
  unmap(BASE, 4 * KIB), unmap(BASE + 16 * KIB, RANGE - 16 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 1);
  ck_assert_uint_eq(set.bytes[SEGMENT_UNMAPPED], RANGE);
}
END_TEST

START_TEST(move_that_fails_leaves_everything_as_it_was) {
  segment_add_chunk(&set, BASE, RANGE, SEGMENT_UNMAPPED);
  unmap(BASE + 4 * KIB, 4 * KIB); /* the mapping fails */
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 1);
  map(BASE, RANGE);
  map(BASE + 4 * KIB, 4 * KIB); /* the unmapping fails */
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 1);
  ck_assert_uint_eq(take_base(RANGE), BASE);
}
END_TEST

START_TEST(moving_segment_is_neither_handed_out_nor_merged) {
  segment_add_chunk(&set, BASE, RANGE, SEGMENT_FREE);
  struct segment *moving = segment_move(&set, segment_at(&set, BASE), BASE + 4 * KIB, 4 * KIB);
  uintptr_t low = take_base(4 * KIB);
  ck_assert_uint_eq(low, BASE);
  ck_assert_ptr_null(take(RANGE - 4 * KIB));
  release(low);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 2);
  segment_moved(&set, moving, SEGMENT_FREE);
  ck_assert_uint_eq(take_base(RANGE), BASE);
}
END_TEST

START_TEST(unmapped_ranges_of_touching_chunks_stay_apart) {
  segment_add_chunk(&set, BASE, 4 * KIB, SEGMENT_UNMAPPED);
  segment_add_chunk(&set, BASE + 4 * KIB, 4 * KIB, SEGMENT_UNMAPPED);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 2);
  map(BASE + 4 * KIB, 4 * KIB), map(BASE, 4 * KIB);
  ck_assert_uint_eq(segment_largest_free(&set), 4 * KIB);
  unmap(BASE, 4 * KIB), unmap(BASE + 4 * KIB, 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_UNMAPPED], 2);
}
END_TEST

START_TEST(segment_is_found_by_any_address_in_it) {
  segment_add_chunk(&set, BASE, 8 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 16 * KIB, 8 * KIB, SEGMENT_FREE);
  uintptr_t block = take_base(KIB);
  ck_assert_uint_eq(segment_at(&set, block)->base, block);
  ck_assert_uint_eq(segment_at(&set, block + KIB - 1)->base, block);
  ck_assert_uint_eq(segment_at(&set, block + KIB)->base, block + KIB);
  ck_assert_ptr_null(segment_at(&set, BASE - 1));
  ck_assert_ptr_null(segment_at(&set, BASE + 8 * KIB)); /* between the chunks */
  ck_assert_ptr_null(segment_at(&set, BASE + 24 * KIB));
}
END_TEST

START_TEST(removed_chunk_is_gone) {
  segment_add_chunk(&set, BASE, 8 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 8 * KIB, 8 * KIB, SEGMENT_FREE);
  segment_remove(&set, segment_find(&set, BASE));
  ck_assert_ptr_null(segment_set_check(&set));
  ck_assert_uint_eq(take_base(8 * KIB), BASE + 8 * KIB);
  ck_assert_ptr_null(take(1));
}
END_TEST

/* ---- Aligned ---- */

static uintptr_t take_aligned_base(size_t bytes, size_t alignment) {
  bool no_host_memory;
  struct segment *segment = segment_take_aligned(&set, bytes, alignment, &no_host_memory);
  ck_assert(!no_host_memory);
  ck_assert_ptr_null(segment_set_check(&set));
  if (segment == NULL)
    return 0;
  ck_assert_uint_eq(segment->bytes, bytes);
  ck_assert_uint_eq(segment->base % alignment, 0);
  return segment->base;
}

START_TEST(aligned_block_leaves_front_and_rest_free) {
  segment_add_chunk(&set, BASE + KIB, 16 * KIB, SEGMENT_FREE);
  ck_assert_uint_eq(take_aligned_base(4 * KIB, 4 * KIB), BASE + 4 * KIB);
  ck_assert_uint_eq(set.count[SEGMENT_FREE], 2);
  ck_assert_uint_eq(set.bytes[SEGMENT_FREE], 12 * KIB);
  release(BASE + 4 * KIB);
  ck_assert_uint_eq(segment_largest_free(&set), 16 * KIB);
}
END_TEST

/* There are two holes that are large enough, but the smaller one has no aligned place. */
START_TEST(aligned_block_passes_over_holes_that_lie_wrong) {
  segment_add_chunk(&set, BASE + KIB, 5 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 8 * KIB, 6 * KIB, SEGMENT_FREE);
  ck_assert_uint_eq(take_aligned_base(4 * KIB, 4 * KIB), BASE + 8 * KIB);
  ck_assert_uint_eq(take_aligned_base(4 * KIB, 4 * KIB), 0);
}
END_TEST

START_TEST(aligned_block_is_found_behind_many_holes_that_lie_wrong) {
  for (uintptr_t i = 0; i < 100; i++)
    segment_add_chunk(&set, BASE + i * 16 * KIB + KIB, 5 * KIB, SEGMENT_FREE);
  segment_add_chunk(&set, BASE + 2000 * KIB + KIB, 8 * KIB, SEGMENT_FREE);
  ck_assert_uint_eq(take_aligned_base(4 * KIB, 4 * KIB) % (4 * KIB), 0);
  ck_assert_uint_eq(set.count[SEGMENT_USED], 1);
}
END_TEST

/* The checker names each invariant that the test breaks. */
START_TEST(check_finds_what_is_broken) {
  segment_add_chunk(&set, BASE, 16 * KIB, SEGMENT_FREE);
  struct segment *used = take(KIB), *hole = segment_next(used);
  struct segment saved_used = *used, saved_hole = *hole;
  used->bytes += 512;
  ck_assert_str_eq(segment_set_check(&set), "two segments overlap");
  used->bytes -= 1024;
  ck_assert_str_eq(segment_set_check(&set), "there is a gap inside a chunk");
  *used = saved_used;
  used->state = SEGMENT_FREE;
  ck_assert_str_eq(segment_set_check(&set), "two neighbours are free");
  *used = saved_used;
  hole->state = SEGMENT_USED;
  ck_assert_str_eq(segment_set_check(&set), "the sums do not agree with the segments");
  *hole = saved_hole;
  struct size_forest saved_forest = set.by_size;
  memset(&set.by_size, 0, sizeof set.by_size);
  ck_assert_str_eq(segment_set_check(&set), "the size tree lacks a free segment");
  set.by_size = saved_forest;
}
END_TEST

START_TEST(check_finds_broken_unmapped_segments) {
  segment_add_chunk(&set, BASE, 16 * KIB, SEGMENT_UNMAPPED);
  map(BASE + 4 * KIB, 4 * KIB);
  struct segment *low = segment_at(&set, BASE), *high = segment_at(&set, BASE + 8 * KIB);
  struct segment *mapped = segment_at(&set, BASE + 4 * KIB);
  LIST_REMOVE(low, as.unmapped);
  ck_assert_str_eq(segment_set_check(&set), "the unmapped list lacks an unmapped segment");
  LIST_INSERT_HEAD(&set.unmapped, low, as.unmapped);
  struct segment saved_low = *low, saved_high = *high;
  low->bytes += 4 * KIB;
  high->state = SEGMENT_MOVING;
  ck_assert_ptr_nonnull(segment_set_check(&set));
  *low = saved_low, *high = saved_high;
  mapped->state = SEGMENT_UNMAPPED;
  ck_assert_str_eq(segment_set_check(&set), "two neighbours are unmapped");
  mapped->state = SEGMENT_FREE;
}
END_TEST

int main(void) {
  Suite *suite = suite_create("segment");
  TCase *tests = tcase_create("segment");
  tcase_add_checked_fixture(tests, set_up, tear_down);
  tcase_add_test(tests, empty_set_serves_nothing);
  tcase_add_test(tests, chunk_is_one_free_segment);
  tcase_add_test(tests, take_splits_the_front_off);
  tcase_add_test(tests, perfect_fit_leaves_no_rest);
  tcase_add_test(tests, holes_are_cut_up_as_far_as_is_allowed);
  tcase_add_test(tests, best_fit_takes_the_smallest_hole_that_fits);
  tcase_add_test(tests, equal_holes_are_taken_from_the_lowest_address);
  tcase_add_test(tests, free_merges_neither_neighbour_while_both_are_used);
  tcase_add_test(tests, free_merges_the_neighbour_before);
  tcase_add_test(tests, free_merges_the_neighbour_after);
  tcase_add_test(tests, free_merges_both_neighbours);
  tcase_add_test(tests, segments_never_merge_across_a_chunks_edge);
  tcase_add_test(tests, waiting_segments_never_merge_across_a_chunks_edge);
  tcase_add_test(tests, waiting_segment_is_not_handed_out);
  tcase_add_test(tests, only_passed_epochs_become_free);
  tcase_add_test(tests, waiting_neighbours_of_one_epoch_merge);
  tcase_add_test(tests, waiting_neighbours_of_different_epochs_stay_apart);
  tcase_add_loop_test(tests, free_neighbours_join_what_waits_for_a_stream, 0, sizeof runs / sizeof runs[0]);
  tcase_add_test(tests, what_joined_waits_for_the_latest_epoch);
  tcase_add_test(tests, find_knows_only_starts);
  tcase_add_test(tests, resized_holes_keep_the_size_tree_in_order);
  tcase_add_test(tests, thousands_of_segments_become_one_hole_again);
  tcase_add_test(tests, host_memory_for_a_live_segment_is_at_most_96_bytes);
  tcase_add_test(tests, check_finds_what_is_broken);
  tcase_add_test(tests, check_finds_broken_unmapped_segments);
  tcase_add_test(tests, reserved_range_serves_nothing);
  tcase_add_test(tests, mapped_part_is_free_and_the_rest_is_not);
  tcase_add_test(tests, mapped_part_merges_with_free_neighbours);
  tcase_add_test(tests, unmapped_parts_merge_with_unmapped_neighbours);
  tcase_add_test(tests, move_that_fails_leaves_everything_as_it_was);
  tcase_add_test(tests, moving_segment_is_neither_handed_out_nor_merged);
  tcase_add_test(tests, unmapped_ranges_of_touching_chunks_stay_apart);
  tcase_add_test(tests, segment_is_found_by_any_address_in_it);
  tcase_add_test(tests, removed_chunk_is_gone);
  tcase_add_test(tests, aligned_block_leaves_front_and_rest_free);
  tcase_add_test(tests, aligned_block_passes_over_holes_that_lie_wrong);
  tcase_add_test(tests, aligned_block_is_found_behind_many_holes_that_lie_wrong);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
