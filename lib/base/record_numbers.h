/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The numbers that things have in the file of a record: sites, tags, streams, contexts and texts each have a table.
 * Only record_inside.h includes it.
 */
#ifndef MAM_LIB_RECORD_NUMBERS_H
#define MAM_LIB_RECORD_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Numbers in the file, by what they stand for: open addressing, at most half full. */
struct numbers {
  struct number {
    uint64_t key;
    uint32_t value;
    bool used;
  } * places, last; /* last: the one that was asked for last */
  size_t room, count;
};

static inline uint64_t key_hash(uint64_t key) { return (key ^ key >> 32) * 0x9e3779b97f4a7c15u >> 20; }

static inline struct number *number_place(const struct numbers *numbers, uint64_t key) {
  size_t at = key_hash(key) & (numbers->room - 1);
  while (numbers->places[at].used && numbers->places[at].key != key)
    at = (at + 1) & (numbers->room - 1);
  return &numbers->places[at];
}

static inline bool numbers_widen(struct numbers *numbers) {
  struct numbers wider = {
      .room = numbers->room == 0 ? 64 : numbers->room * 2, .count = numbers->count, .last = numbers->last};
  wider.places = calloc(wider.room, sizeof *wider.places);
  if (wider.places == NULL)
    return false;
  for (size_t i = 0; i < numbers->room; i++)
    if (numbers->places[i].used)
      *number_place(&wider, numbers->places[i].key) = numbers->places[i];
  free(numbers->places);
  *numbers = wider;
  return true;
}

static inline void numbers_clear(struct numbers *numbers) {
  free(numbers->places);
  *numbers = (struct numbers){0};
}

/* Puts what a key stands for into the file and answers with its number there. */
typedef uint32_t number_new(uint64_t key, const void *more);

/* Without memory to remember it by, it is put into the file once more. */
static inline uint32_t number_of(struct numbers *numbers, uint64_t key, number_new *put, const void *more) {
  if (__builtin_expect(numbers->last.used && numbers->last.key == key, true)) /* mostly as for the event before */
    return numbers->last.value;
  struct number *place = numbers->room > 0 ? number_place(numbers, key) : NULL;
  if (__builtin_expect(place != NULL && place->used, true)) {
    numbers->last = *place;
    return place->value;
  }
  uint32_t value = put(key, more);
  numbers->last = (struct number){key, value, true};
  if (2 * numbers->count < numbers->room || numbers_widen(numbers)) {
    *number_place(numbers, key) = (struct number){key, value, true};
    numbers->count++;
  }
  return value;
}

#endif
