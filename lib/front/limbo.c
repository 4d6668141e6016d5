/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/limbo.h"

static struct segment *limbo_pull(struct limbo *limbo) {
  struct segment *segment = limbo_at(limbo, 0)->segment;
  limbo->first = (limbo->first + 1) % LIMBO_BLOCKS;
  limbo->count--;
  return segment;
}

unsigned limbo_clear(struct limbo *limbo, uint64_t passed, struct segment **segments, uint64_t *epoch, unsigned most) {
  unsigned count = 0;
  for (; limbo->count > 0 && count < most && limbo_at(limbo, 0)->epoch <= passed; count++) {
    *epoch = limbo_at(limbo, 0)->epoch; /* the latest: oldest first */
    segments[count] = limbo_pull(limbo);
  }
  return count;
}

unsigned limbo_drain(struct limbo *limbo, uint64_t passed, struct segment **segments, uint64_t *fence) {
  uint64_t latest;
  unsigned count = limbo_clear(limbo, passed, segments, &latest, LIMBO_DRAINED);
  bool many = limbo->count >= LIMBO_FENCED && limbo_at(limbo, 0)->epoch > passed;
  *fence = many ? limbo_at(limbo, 0)->epoch : 0;
  return count;
}

uint64_t limbo_last_epoch(struct limbo *limbo) {
  return limbo->count > 0 ? limbo_at(limbo, limbo->count - 1)->epoch : 0;
}
