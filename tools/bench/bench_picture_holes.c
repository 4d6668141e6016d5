/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The largest hole after each moment.
 *
 * The addresses at which blocks begin and end cut the address space into pieces.  When a block is freed, its pieces
 * become holes, and when a block gets them, they end as holes.  Before its first block, a piece is no hole, since the
 * pool may not have its memory.
 *
 * A binary tree stands over the pieces.  Each node stands for a run of pieces, and has the hole at its left end, the
 * one at its right end and the largest one.  A moment changes the pieces of one block, which are the runs of at most
 * two nodes of each height, and the nodes above these are computed anew.  If the run of a node is all hole or has none,
 * the same holds for its children; they learn it when they are next visited.
 */
#include <stdlib.h>

#include "bench_picture.h"

struct node {
  uint64_t left, right, largest; /* bytes */
};

struct tree {
  uint64_t *cuts; /* sorted; piece i is from cuts[i] to cuts[i + 1] */
  size_t piece_count;
  struct node *nodes; /* node n has the children 2n and 2n + 1; the root is 1 */
};

static uint64_t block_end(const struct picture_block *block) {
  uint64_t extent =
      (block->size + picture_granularity_bytes - 1) / picture_granularity_bytes * picture_granularity_bytes;
  return block->address > UINT64_MAX - extent ? UINT64_MAX : block->address + extent;
}

static int compare_cuts(const void *a, const void *b) {
  uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
  return (left > right) - (left < right);
}

static bool tree_make(struct tree *tree, const struct picture *picture) {
  size_t count = 0, merged = 0;
  tree->cuts = malloc((2 * picture->block_count + 1) * sizeof *tree->cuts);
  if (tree->cuts == NULL)
    return false;
  for (size_t i = 0; i < picture->block_count; i++) {
    tree->cuts[count++] = picture->blocks[i].address;
    tree->cuts[count++] = block_end(&picture->blocks[i]);
  }
  qsort(tree->cuts, count, sizeof *tree->cuts, compare_cuts);
  for (size_t i = 0; i < count; i++)
    if (merged == 0 || tree->cuts[merged - 1] != tree->cuts[i])
      tree->cuts[merged++] = tree->cuts[i];
  tree->piece_count = merged > 1 ? merged - 1 : 0;
  /* A tree of n pieces has nodes up to 2^(h + 1) - 1, where 2^h is the least power of two that is not below n. */
  size_t leaves = 1;
  while (leaves < tree->piece_count)
    leaves *= 2;
  tree->nodes = calloc(2 * leaves, sizeof *tree->nodes);
  return tree->nodes != NULL;
}

static void tree_free(struct tree *tree) {
  free(tree->cuts);
  free(tree->nodes);
}

static size_t piece_at(const struct tree *tree, uint64_t address) {
  const uint64_t *cut = bsearch(&address, tree->cuts, tree->piece_count + 1, sizeof *cut, compare_cuts);
  return (size_t)(cut - tree->cuts);
}

/* The change of the pieces from begin to before end. */
struct change {
  size_t begin, end;
  bool hole;
};

/* Sets all of the node's run, from begin to before end. */
static void node_set(const struct tree *tree, size_t node, size_t begin, size_t end, bool hole) {
  uint64_t bytes = hole ? tree->cuts[end] - tree->cuts[begin] : 0;
  tree->nodes[node] = (struct node){bytes, bytes, bytes};
}

static void node_sum(const struct tree *tree, size_t node, size_t begin, size_t middle, size_t end) {
  const struct node *low = &tree->nodes[2 * node], *high = &tree->nodes[2 * node + 1];
  uint64_t joined = low->right + high->left, largest = low->largest > high->largest ? low->largest : high->largest;
  uint64_t low_bytes = tree->cuts[middle] - tree->cuts[begin], high_bytes = tree->cuts[end] - tree->cuts[middle];
  tree->nodes[node] = (struct node){low->left == low_bytes ? low_bytes + high->left : low->left,
                                    high->right == high_bytes ? low->right + high_bytes : high->right,
                                    joined > largest ? joined : largest};
}

static void node_change(const struct tree *tree, size_t node, size_t begin, size_t end, const struct change *change) {
  if (change->begin <= begin && end <= change->end) {
    node_set(tree, node, begin, end, change->hole);
    return;
  }
  size_t middle = begin + (end - begin) / 2;
  uint64_t bytes = tree->cuts[end] - tree->cuts[begin], largest = tree->nodes[node].largest;
  if (largest == bytes || largest == 0) { /* all hole or none: the children may not know it yet */
    node_set(tree, 2 * node, begin, middle, largest != 0);
    node_set(tree, 2 * node + 1, middle, end, largest != 0);
  }
  if (change->begin < middle)
    node_change(tree, 2 * node, begin, middle, change);
  if (change->end > middle)
    node_change(tree, 2 * node + 1, middle, end, change);
  node_sum(tree, node, begin, middle, end);
}

static void tree_block(const struct tree *tree, const struct picture_block *block, bool hole) {
  struct change change = {piece_at(tree, block->address), piece_at(tree, block_end(block)), hole};
  if (change.begin < change.end) /* else the block has no bytes */
    node_change(tree, 1, 0, tree->piece_count, &change);
}

bool picture_holes(struct picture *picture) {
  struct tree tree = {0};
  bool made = tree_make(&tree, picture);
  for (size_t i = 0; made && i < picture->moment_count; i++) {
    struct picture_moment *moment = &picture->moments[i];
    if (moment->kind == moment_allocate || moment->kind == moment_free)
      tree_block(&tree, &picture->blocks[moment->subject], moment->kind == moment_free);
    moment->hole = tree.nodes[1].largest;
  }
  tree_free(&tree);
  return made;
}
