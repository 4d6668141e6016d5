/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdlib.h>
#include <string.h>

#include "bench_distinct.h"

static void *distinct_at(const struct distinct *table, size_t index) {
  return (char *)table->items + index * table->item_bytes;
}

static uint32_t *distinct_slot(const struct distinct *table, const void *item) {
  uint64_t hash = 0;
  for (size_t i = 0; i + sizeof(uint32_t) <= table->item_bytes; i += sizeof(uint32_t)) {
    uint32_t part;
    (void)memcpy(&part, (const char *)item + i, sizeof part);
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
  }
  size_t at = (size_t)(hash >> 20) & (table->slot_count - 1);
  while (table->slots[at] != 0 && memcmp(distinct_at(table, table->slots[at] - 1), item, table->item_bytes) != 0)
    at = (at + 1) & (table->slot_count - 1);
  return &table->slots[at];
}

/* Doubles the slots, of which at most half are used. */
static bool distinct_grow(struct distinct *table) {
  size_t slot_count = table->slot_count == 0 ? 256 : 2 * table->slot_count;
  uint32_t *slots = calloc(slot_count, sizeof *slots);
  void *items = realloc(table->items, slot_count / 2 * table->item_bytes);
  if (items != NULL)
    table->items = items;
  if (slots == NULL || items == NULL) {
    free(slots);
    return false;
  }
  free(table->slots);
  table->slots = slots;
  table->slot_count = slot_count;
  table->room = slot_count / 2;
  for (size_t i = 0; i < table->count; i++)
    *distinct_slot(table, distinct_at(table, i)) = (uint32_t)i + 1;
  return true;
}

bool distinct_find(struct distinct *table, const void *item, uint32_t *index) {
  if (table->count == table->room && !distinct_grow(table))
    return false;
  uint32_t *slot = distinct_slot(table, item);
  if (*slot == 0) {
    (void)memcpy(distinct_at(table, table->count++), item, table->item_bytes);
    *slot = (uint32_t)table->count;
  }
  *index = *slot - 1;
  return true;
}
