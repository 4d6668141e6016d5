/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/shelf.h"

unsigned shelf_clear(struct shelf *shelf, uint64_t passed, struct segment **segments, uint64_t *epoch, uint64_t *lane,
                     unsigned most) {
  unsigned count = 0;
  *lane = shelf_is_empty(shelf) ? 0 : block_lane(shelf->oldest);
  for (; !shelf_is_empty(shelf) && count < most && shelf->oldest->epoch <= passed && block_lane(shelf->oldest) == *lane;
       count++) {
    segments[count] = shelf->oldest->segment;
    *epoch = shelf->oldest->epoch; /* the latest: oldest first */
    shelf->oldest = ring_after(shelf, shelf->oldest);
  }
  return count;
}

size_t shelf_bytes(const struct shelf *shelf) {
  size_t bytes = 0;
  if (shelf->bytes != 0)
    return shelf_count(shelf) * shelf->bytes;
  for (struct freed_block *block = shelf->oldest; block != shelf->next; block = ring_after(shelf, block))
    bytes += block->segment->bytes;
  return bytes;
}
