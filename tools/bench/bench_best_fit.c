/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_best_fit.h"

#include <stdlib.h>

#include <bsd/sys/tree.h>

/* Blocks are multiples of this, as the pool's are. */
enum { unit_bytes = 512 };

/* The parts of the pool in order of address, as a ring.  It begins with parts[0], which is empty. */
struct best_fit_part {
  uint32_t before, after;
  bool used;
  size_t offset, bytes;
  RB_ENTRY(best_fit_part) link; /* of a hole */
};

static int compare_holes(const struct best_fit_part *a, const struct best_fit_part *b) {
  if (a->bytes != b->bytes)
    return a->bytes < b->bytes ? -1 : 1;
  return a->offset < b->offset ? -1 : a->offset > b->offset;
}

RB_HEAD(holes, best_fit_part);
/* RB_GENERATE_STATIC, spelled out: libbsd's uses an attribute that is not defined on Linux. */
RB_GENERATE_INTERNAL(holes, best_fit_part, link, compare_holes, static __attribute__((unused)))

static void hole_insert(struct best_fit *fit, struct best_fit_part *part) {
  struct holes holes = {fit->holes};
  (void)RB_INSERT(holes, &holes, part);
  fit->holes = holes.rbh_root;
}

static void hole_remove(struct best_fit *fit, struct best_fit_part *part) {
  struct holes holes = {fit->holes};
  (void)RB_REMOVE(holes, &holes, part);
  fit->holes = holes.rbh_root;
}

/* There is at most one hole for each block, and one more. */
static size_t parts_most(const struct best_fit *fit) { return 2 * fit->slot_count + 2; }

bool best_fit_make(struct best_fit *fit, size_t slot_count) {
  *fit = (struct best_fit){.slot_count = slot_count};
  fit->parts = malloc(parts_most(fit) * sizeof *fit->parts);
  fit->spare = malloc(parts_most(fit) * sizeof *fit->spare);
  fit->slots = malloc((slot_count + 1) * sizeof *fit->slots);
  return fit->parts != NULL && fit->spare != NULL && fit->slots != NULL;
}

void best_fit_free(struct best_fit *fit) {
  free(fit->parts);
  free(fit->spare);
  free(fit->slots);
}

void best_fit_begin(struct best_fit *fit, size_t pool_bytes) {
  fit->spare_count = 0;
  for (size_t i = parts_most(fit); i-- > 2;)
    fit->spare[fit->spare_count++] = (uint32_t)i;
  fit->parts[0] = (struct best_fit_part){.before = 1, .after = 1, .used = true};
  fit->parts[1] = (struct best_fit_part){.bytes = pool_bytes};
  fit->holes = NULL;
  fit->extent_bytes = 0;
  hole_insert(fit, &fit->parts[1]);
}

bool best_fit_allocate(struct best_fit *fit, uint32_t slot, size_t bytes) {
  struct best_fit_part *parts = fit->parts;
  struct holes holes = {fit->holes};
  size_t whole_bytes = (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  struct best_fit_part least = {.bytes = whole_bytes};
  struct best_fit_part *best = RB_NFIND(holes, &holes, &least);
  if (best == NULL || whole_bytes < bytes)
    return false;
  hole_remove(fit, best);
  if (best->bytes > whole_bytes) {
    uint32_t rest = fit->spare[--fit->spare_count], at = (uint32_t)(best - parts), after = best->after;
    parts[rest] = (struct best_fit_part){
        .before = at, .after = after, .offset = best->offset + whole_bytes, .bytes = best->bytes - whole_bytes};
    parts[after].before = best->after = rest;
    hole_insert(fit, &parts[rest]);
  }
  best->bytes = whole_bytes;
  best->used = true;
  fit->slots[slot] = (uint32_t)(best - parts);
  if (best->offset + whole_bytes > fit->extent_bytes)
    fit->extent_bytes = best->offset + whole_bytes;
  return true;
}

/* Adds a part to the one before it; neither is in the tree. */
static void part_join(struct best_fit *fit, uint32_t at) {
  struct best_fit_part *parts = fit->parts, *part = &parts[at];
  parts[part->before].bytes += part->bytes;
  parts[part->before].after = part->after;
  parts[part->after].before = part->before;
  fit->spare[fit->spare_count++] = at;
}

void best_fit_release(struct best_fit *fit, uint32_t slot) {
  struct best_fit_part *parts = fit->parts;
  uint32_t at = fit->slots[slot], before = parts[at].before, after = parts[at].after;
  parts[at].used = false;
  if (!parts[after].used) {
    hole_remove(fit, &parts[after]);
    part_join(fit, after);
  }
  if (!parts[before].used) {
    hole_remove(fit, &parts[before]);
    part_join(fit, at);
    at = before;
  }
  hole_insert(fit, &parts[at]);
}
