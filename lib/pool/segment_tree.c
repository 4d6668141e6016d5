/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool/segment_inside.h"

/* ---- The pointer tree ---- */

/* These declarations put the inline functions of segment_inside.h here. */
extern int compare_addresses(const struct segment *a, const struct segment *b);
RB_PROTOTYPE_INTERNAL(pointer_tree, segment, by_address, compare_addresses, extern)

struct segment *segment_first(struct segment_set *set) {
  return RB_MIN(pointer_tree, &set->by_address);
}

struct segment *segment_next(struct segment *segment) {
  return RB_NEXT(pointer_tree, , segment);
}

struct segment *segment_find(struct segment_set *set, uintptr_t base) {
  struct segment key = {.base = base};
  return RB_FIND(pointer_tree, &set->by_address, &key);
}

struct segment *segment_at(struct segment_set *set, uintptr_t address) {
  struct segment *at = RB_ROOT(&set->by_address), *below = NULL;
  while (at != NULL) {
    if (at->base <= address) {
      below = at;
      at = RB_RIGHT(at, by_address);
    } else {
      at = RB_LEFT(at, by_address);
    }
  }
  return below != NULL && address - below->base < below->bytes ? below : NULL;
}

/* ---- The size tree ---- */

/* RB_GENERATE_STATIC, spelled out: libbsd's uses an attribute that is not defined on Linux. */
#define TREE_FUNCTION static __attribute__((unused))
RB_GENERATE_INTERNAL(size_tree, segment, as.by_size, compare_sizes, TREE_FUNCTION)

void size_insert(struct size_forest *forest, struct segment *segment) {
  unsigned branch = size_branch(segment->bytes);
  struct size_tree *tree = &forest->branches[branch];
  if (!RB_EMPTY(tree)) {
    RB_INSERT(size_tree, tree, segment);
    return;
  }
  /* The branch is mostly empty, and this is quicker than RB_INSERT. */
  RB_SET(segment, NULL, as.by_size);
  RB_COLOR(segment, as.by_size) = RB_BLACK;
  RB_ROOT(tree) = segment;
  forest->words[branch / 64] |= (uint64_t)1 << branch % 64;
  forest->branched |= (uint64_t)1 << branch / 64;
}

/* Whether a segment is the only one of its branch. */
static bool size_alone(const struct size_tree *tree, const struct segment *segment) {
  return RB_ROOT(tree) == segment && RB_LEFT(segment, as.by_size) == NULL && RB_RIGHT(segment, as.by_size) == NULL;
}

void size_remove(struct size_forest *forest, struct segment *segment) {
  unsigned branch = size_branch(segment->bytes);
  struct size_tree *tree = &forest->branches[branch];
  if (!size_alone(tree, segment)) {
    RB_REMOVE(size_tree, tree, segment);
    return;
  }
  RB_ROOT(tree) = NULL;
  forest->words[branch / 64] &= ~((uint64_t)1 << branch % 64);
  if (forest->words[branch / 64] == 0)
    forest->branched &= ~((uint64_t)1 << branch / 64);
}

/* Whether a segment with new bounds keeps its place in its branch. */
static bool size_stays(const struct size_forest *forest, struct segment *segment, uintptr_t base, size_t bytes) {
  const struct segment key = {.base = base, .bytes = bytes}, *smaller, *larger;
  if (size_alone(&forest->branches[size_branch(bytes)], segment))
    return true;
  return ((smaller = RB_PREV(size_tree, , segment)) == NULL || compare_sizes(smaller, &key) < 0) &&
         ((larger = RB_NEXT(size_tree, , segment)) == NULL || compare_sizes(&key, larger) < 0);
}

void size_resize(struct size_forest *forest, struct segment *segment, uintptr_t base, size_t bytes) {
  bool stays = size_branch(bytes) == size_branch(segment->bytes) && size_stays(forest, segment, base, bytes);
  if (!stays)
    size_remove(forest, segment);
  segment->base = base;
  segment->bytes = bytes;
  if (!stays)
    size_insert(forest, segment);
}

/* The first branch from this one on that is not empty.  SIZE_BRANCHES if there is none. */
static unsigned branch_from(const struct size_forest *forest, unsigned branch) {
  if (branch >= SIZE_BRANCHES)
    return SIZE_BRANCHES;
  unsigned word = branch / 64;
  uint64_t bits = forest->words[word] & ~(uint64_t)0 << branch % 64;
  if (bits == 0) {
    uint64_t words = word + 1 < SIZE_WORDS ? forest->branched & ~(uint64_t)0 << (word + 1) : 0;
    if (words == 0)
      return SIZE_BRANCHES;
    word = (unsigned)__builtin_ctzl(words);
    bits = forest->words[word];
  }
  return word * 64 + (unsigned)__builtin_ctzl(bits);
}

/* The smallest segment of the branches from this one on.  NULL if there is none. */
static struct segment *size_least(struct size_forest *forest, unsigned branch) {
  branch = branch_from(forest, branch);
  return branch < SIZE_BRANCHES ? RB_MIN(size_tree, &forest->branches[branch]) : NULL;
}

struct segment *size_first(struct size_forest *forest) {
  return size_least(forest, 0);
}

struct segment *size_next(struct size_forest *forest, struct segment *segment) {
  struct segment *next = RB_NEXT(size_tree, , segment);
  return next != NULL ? next : size_least(forest, size_branch(segment->bytes) + 1);
}

struct segment *size_last(struct size_forest *forest) {
  if (forest->branched == 0)
    return NULL;
  unsigned word = 63 - (unsigned)__builtin_clzl(forest->branched);
  unsigned branch = word * 64 + 63 - (unsigned)__builtin_clzl(forest->words[word]);
  return RB_MAX(size_tree, &forest->branches[branch]);
}

struct segment *size_best_fit(struct size_forest *forest, size_t bytes) {
  struct segment key = {.base = 0, .bytes = bytes};
  if (key.bytes != bytes) /* the field has fewer bits: no segment has so many bytes */
    return NULL;
  unsigned branch = size_branch(bytes);
  struct segment *fit = RB_NFIND(size_tree, &forest->branches[branch], &key);
  return fit != NULL ? fit : size_least(forest, branch + 1);
}
