/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which graphs are inside of others, which own them and destroy them:
 *
 *   a graph --+-- a conditional node ------ the graphs of its bodies --- ...
 *             +-- a node with a graph ----- that graph --- ...
 *
 * A program gets the handle of a graph inside, may capture into it, and may make it executable.  But it destroys the
 * outermost graph only, the root, or a node with all that is inside.  So the uses of blocks (preload_graph.c) are the
 * root's.
 *
 * A program also finds nodes that this library has not seen: those of a copy, and those of a capture.  Of the graph in
 * such a node it is not known which root it has; one lives, and this is all that is known.
 *
 * A part's parent has it among its children.  A part is in the table, except while its destruction goes on.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "preload/preload_part.h"

struct part {
  const void *handle;
  bool unknown;                  /* what it is inside of is not known; then it has no parent */
  struct part *parent;           /* NULL: it is a root, or its parent is not known */
  struct part *children;         /* what is inside of it */
  struct part *sibling, **place; /* place is what points to this one; NULL without a parent */
  struct part *next;             /* in the chain of the table */
};

enum { TABLE_BITS = 10 }; /* the table has 2 to this power chains */

static struct part *table[1 << TABLE_BITS];
static _Atomic unsigned part_count; /* relaxed: a hint.  Of those in the table */

bool preload_parts(void) { return atomic_load_explicit(&part_count, memory_order_relaxed) > 0; }

/* Fibonacci hashing: the product's high bits depend on all bits of the key. */
static struct part **chain_of(const void *handle) {
  return &table[(uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u >> (64 - TABLE_BITS)];
}

static struct part *find_locked(const void *handle) {
  struct part *part = *chain_of(handle);
  while (part != NULL && part->handle != handle)
    part = part->next;
  return part;
}

/* ---- The table ---- */

static void link_locked(struct part *part) {
  struct part **chain = chain_of(part->handle);
  part->next = *chain;
  *chain = part;
  atomic_fetch_add_explicit(&part_count, 1, memory_order_relaxed);
}

static void unlink_locked(struct part *part) {
  struct part **link = chain_of(part->handle);
  while (*link != part)
    link = &(*link)->next;
  *link = part->next;
  atomic_fetch_sub_explicit(&part_count, 1, memory_order_relaxed);
}

/* Does the same for a part and all that is inside of it. */
static void each_locked(struct part *part, void (*act)(struct part *part)) {
  for (struct part *child = part->children; child != NULL; child = child->sibling)
    each_locked(child, act);
  act(part);
}

/* ---- The trees ---- */

static void attach_locked(struct part *part, struct part *parent) {
  part->parent = parent;
  part->place = &parent->children;
  part->sibling = parent->children;
  if (part->sibling != NULL)
    part->sibling->place = &part->sibling;
  parent->children = part;
}

static void detach_locked(struct part *part) {
  if (part->parent == NULL)
    return;
  *part->place = part->sibling;
  if (part->sibling != NULL)
    part->sibling->place = part->place;
  part->parent = NULL;
  part->place = NULL;
  part->sibling = NULL;
}

static const struct part *root_locked(const struct part *part) {
  while (part->parent != NULL)
    part = part->parent;
  return part;
}

const void *preload_part_root_locked(const void *part) {
  const struct part *found = find_locked(part);
  if (found == NULL)
    return part;
  found = root_locked(found);
  return found->unknown ? NULL : found->handle;
}

/* The entry of a handle, a new one if it has none.  NULL if the host has no memory. */
static struct part *get_locked(const void *handle) {
  struct part *part = find_locked(handle);
  if (part != NULL || (part = calloc(1, sizeof *part)) == NULL)
    return part;
  part->handle = handle;
  link_locked(part);
  return part;
}

void preload_part_add_locked(const void *part, const void *in) {
  struct part *added = get_locked(part), *parent = in != NULL ? get_locked(in) : NULL;
  if (added == NULL || (in != NULL && parent == NULL))
    return;
  detach_locked(added);
  added->unknown = in == NULL;
  if (parent != NULL && root_locked(parent) != added) /* else it were inside of itself: a handle that came again */
    attach_locked(added, parent);
}

/* ---- Ends ---- */

struct part *preload_part_take_locked(const void *part) {
  struct part *found = find_locked(part);
  if (found != NULL)
    each_locked(found, unlink_locked);
  return found;
}

static void free_locked(struct part *part) {
  while (part->children != NULL) {
    struct part *child = part->children;
    detach_locked(child);
    free_locked(child);
  }
  free(part);
}

void preload_part_end_locked(struct part *taken) {
  detach_locked(taken);
  free_locked(taken);
}

void preload_part_back_locked(struct part *taken) { each_locked(taken, link_locked); }

void preload_part_born_locked(const void *part) {
  struct part *taken = preload_part_take_locked(part);
  if (taken != NULL)
    preload_part_end_locked(taken);
}
