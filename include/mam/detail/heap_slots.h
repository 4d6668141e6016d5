/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_slots.h - slots: each owns a span and hands its chunks out by ticket.
 *
 * A request for n chunks adds n to the slot's word, and its old value is the request's first ticket.  Let limit be the
 * number of chunks of the span.
 *
 *   ticket < limit                 the request gets the chunks from that number on, as far as there are some
 *   ticket <= limit < ticket + n   the request has the task of refilling the slot; this is exactly one request
 *   ticket > limit                 another thread is refilling the slot: wait, or go another way
 *
 * While there are more tickets than chunks, a thread is about to write the slot's word.  Instead of an address the word
 * may have 0 (no span yet), MAM_SLOT_DRY (there were no pages for a refill) or MAM_SLOT_FLUSHED (the chunks without a
 * ticket are being freed).  Chunks without a ticket count as used, so the span stays while it is in a slot.
 *
 * control->held has a word for each kind, with a bit for each group of its slots, up to 64 groups: 1 if a slot of the
 * group may hold a chunk without a ticket, or is about to.  A refill sets it first.  A flush (mam_held_flush) clears it
 * before it looks, and sets it again if it saw a slot that is being refilled.
 *
 * No thread concludes from a 0 that slots are empty when they are not.  A thread that concludes has made the stamps odd
 * and passed mam_fence_all (F) before the look.  A thread that refills has seen or set the bit, passes mam_fence_all
 * (G), looks at the stamp, and then writes the slot.
 *
 *   G before F: the look sees the bit, unless a flush cleared it in between.  That flush saw the slot as being refilled
 *               and set the bit again and raised the stamp, or it saw the chunks and freed them.
 *   F before G: the refill sees an odd stamp.  After it has written the slot it sets the bit again, which may have been
 *               cleared, and raises the stamp, so that the conclusion is void.
 */
#ifndef MAM_DETAIL_HEAP_SLOTS_H
#define MAM_DETAIL_HEAP_SLOTS_H

#include <mam/detail/heap_spans.h>

/* The number of chunks of a slot's span. */
MAM_INLINE mam_u32 mam_slot_limit(const mam_heap *heap, mam_u32 size_class) {
  return 1u << mam_span_chunks_log2(heap->chunks, mam_class_shift(size_class));
}

/* A group has 1 << mam_held_shift slots (or parks), so that there are at most 64 groups. */
MAM_INLINE mam_u32 mam_held_shift(mam_u32 slot_count) {
  mam_u32 bits = 32 - mam_leading_zeros_u32(slot_count - 1);
  return bits > 6 ? bits - 6 : 0;
}
/* The bit of a slot in control->held, by the slot's number in its kind. */
MAM_INLINE mam_u64 mam_held_bit(mam_u32 slot_count, mam_u32 slot) {
  return 1ull << (slot >> mam_held_shift(slot_count));
}

/* ---- Tickets ---- */

/* What a request for tickets got. */
struct mam_tickets {
  mam_u64 address;
  mam_u32 mask; /* 0: none */
  int refill;   /* the caller has to refill the slot */
};

/* What a request for count tickets got, given the slot's word before it. */
MAM_INLINE struct mam_tickets mam_tickets_of(mam_u64 old, mam_u32 chunk_bytes, mam_u32 limit, mam_u32 count) {
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS);
  struct mam_tickets tickets = {0, 0, ticket <= limit && ticket + count > limit};
  if (ticket < limit) {
    tickets.address = mam_slot_address(old) + (mam_u64)ticket * chunk_bytes;
    tickets.mask = 0xffffffffu >> (32 - (limit - ticket < count ? limit - ticket : count));
  }
  return tickets;
}

/* Asks for count tickets.  acquire: pairs with the refill that published the span, and through it with the frees of
 * what was there before. */
MAM_INLINE mam_u64 mam_slot_take(mam_u64 *slot, mam_u32 count) { return mam_add_acquire_u64(slot, count); }

/* Keeps tickets that were asked for in vain from reaching the address.  now: the slot's word, perhaps an older one.
 * Each thread that asked in vain calls this before it asks again, and it does not return while the tickets are above
 * half of what they can count.  So above half each thread of a GPU asks at most once, for up to 32 tickets of its warp,
 * and a GPU has fewer than 2^23 threads at a time. */
MAM_INLINE void mam_slot_keep(mam_u64 *slot, mam_u64 now, mam_u32 limit) {
  MAM_LOOP
  while ((now & MAM_SLOT_TICKETS) > MAM_SLOT_TICKETS / 2) {
    mam_u64 seen = mam_cas_relaxed_u64(slot, now, (now & ~MAM_SLOT_TICKETS) | (limit + 1));
    if (seen == now)
      return;
    now = seen;
  }
}

/* The chunks of a thread that asked for count tickets of a slot, whose word was old before.  If it got fewer than it
 * asked for, the slot is left to another thread to refill.  With mask 0 the address is not 0 if the caller has to
 * refill the slot. */
MAM_INLINE struct mam_claim mam_claim_tickets(mam_u64 *slot, mam_u64 old, mam_u32 size_class, mam_u32 limit,
                                              mam_u32 count) {
  struct mam_tickets tickets = mam_tickets_of(old, mam_class_bytes(size_class), limit, count);
  struct mam_claim claim = {tickets.mask != 0 ? tickets.address : (mam_u64)tickets.refill, tickets.mask,
                            mam_class_bytes(size_class)};
  if (tickets.mask != 0 && tickets.refill)
    (void)mam_exchange_release_u64(slot, (old & ~MAM_SLOT_TICKETS) | limit);
  return claim;
}

/* Waits for the thread that refills the slot, then asks for tickets again.  Returns the slot's word before that;
 * MAM_SLOT_TICKETS, which gives neither tickets nor the task, after a bounded time or if the slot is dry. */
MAM_OUTLINE mam_u64 mam_slot_wait(mam_u64 *slot, mam_u32 limit, mam_u32 count) {
  MAM_LOOP
  for (int i = 0; i < MAM_WAIT_ROUNDS; i++) {
    mam_u64 now = mam_load_relaxed_u64(slot);
    if ((now & MAM_SLOT_TICKETS) <= limit) {
      now = mam_slot_take(slot, count);
      if ((now & MAM_SLOT_TICKETS) <= limit)
        return now;
    }
    mam_slot_keep(slot, now, limit);
    if (mam_slot_is_dry(now))
      break;
    mam_pause();
  }
  return MAM_SLOT_TICKETS;
}

/* Waits for tickets of a slot that another thread refills.  Returns as mam_claim_tickets. */
MAM_OUTLINE struct mam_claim mam_claim_waited(MAM_TAG(1) struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                              mam_u32 count) {
  mam_u64 *place = &control->heap.slots[slot & MAM_REST_SLOT];
  mam_u32 limit = 1u << (slot >> MAM_REST_CHUNKS);
  return mam_claim_tickets(place, MAM_OUT_OF_SIGHT(mam_slot_wait)(place, limit, count), wanted & MAM_REST_KIND, limit,
                           count);
}

/* ---- Tickets of any slot ---- */

/* Which of up to MAM_AHEAD slots hold chunks without a ticket: a bit for each.  Eight bits above: which are being
 * refilled. */
MAM_OUTLINE mam_u32 mam_slots_look(MAM_TAG(6) const mam_u64 *slots, mam_u32 limit, mam_u32 left) {
  mam_u64 seen[MAM_AHEAD];
  mam_u32 found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(&slots[i < left ? i : 0]);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++) {
    mam_u32 ticket = (mam_u32)(seen[i] & MAM_SLOT_TICKETS);
    found |= (mam_u32)(i < left && ticket < limit) << i | (mam_u32)(i < left && ticket > limit) << (i + MAM_AHEAD);
  }
  return found;
}

/* Takes tickets of any slot of the class.  With mask 0 the address is not 0 if a slot is being refilled. */
MAM_OUTLINE struct mam_claim mam_steal(MAM_TAG(2) struct mam_heap_control *control, mam_u32 size_class, mam_u32 count) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  const mam_heap *heap = &control->heap;
  mam_u32 limit = mam_slot_limit(heap, size_class);
  mam_u64 *slots = &heap->slots[mam_kind_number(size_class) * heap->slot_count];
  MAM_LOOP
  for (mam_u32 at = 0; at < heap->slot_count; at += MAM_AHEAD) {
    mam_u64 groups = mam_load_relaxed_u64(&control->held[mam_kind_number(size_class)]);
    groups &= MAM_FULL_WORD << (at >> mam_held_shift(heap->slot_count));
    if (groups == 0)
      break;
    mam_u32 first = mam_lowest_u64(groups) << mam_held_shift(heap->slot_count);
    at = first > at ? first : at;
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_slots_look)(&slots[at], limit, heap->slot_count - at);
    claim.address |= seen >> MAM_AHEAD != 0;
    MAM_LOOP
    for (seen &= (1u << MAM_AHEAD) - 1; seen != 0; seen &= seen - 1) {
      mam_u64 *slot = &slots[at + mam_lowest_u32(seen)], now = mam_slot_take(slot, count);
      struct mam_claim taken = mam_claim_tickets(slot, now, size_class, limit, count);
      if (taken.mask != 0)
        return taken;
      if (taken.address != 0) /* leaves the refill to another thread */
        (void)mam_exchange_release_u64(slot, (now & ~MAM_SLOT_TICKETS) | limit);
      else
        mam_slot_keep(slot, now, limit);
    }
  }
  return claim;
}

/* ---- Flushing ---- */

/* Frees the chunks of a slot that have no ticket.  Returns whether there were any.  Meanwhile the slot's word says so:
 * threads that ask for tickets wait, and a check does not take a chunk that is being freed for a live one. */
MAM_OUTLINE int mam_slot_flush(MAM_TAG(2) mam_u32 limit, struct mam_heap_control *control, mam_u32 number) {
  mam_u64 now = mam_load_relaxed_u64(&control->heap.slots[number]);
  mam_u32 ticket = (mam_u32)(now & MAM_SLOT_TICKETS);
  /* acq_rel: the tickets are the caller's, and it sees the span's words as they were when the slot was refilled. */
  if (ticket >= limit || mam_cas_acq_rel_u64(&control->heap.slots[number], now, MAM_SLOT_FLUSHED | (limit + 1)) != now)
    return 0;
  const struct mam_area *area = MAM_OUT_OF_SIGHT(mam_area_find)(control, mam_slot_address(now));
  MAM_LOOP
  for (; ticket < limit; ticket = (ticket | 31) + 1) {
    mam_u32 word = (mam_u32)((mam_slot_address(now) - area->base) >> MAM_PAGE_SHIFT) * MAM_PAGE_WORDS;
    mam_u32 bits = 0xffffffffu << (ticket & 31);
    if (limit < 32)
      bits &= (1u << limit) - 1;
    (void)mam_chunks_free(*area, word + (ticket >> 5), bits);
  }
  (void)mam_exchange_release_u64(&control->heap.slots[number], (now & ~MAM_SLOT_TICKETS) | limit);
  return 1;
}

/* Which of up to MAM_AHEAD kinds have slots that may hold chunks: a bit for each. */
MAM_OUTLINE mam_u32 mam_held_look(MAM_TAG(1) const mam_u64 *held, mam_u32 left) {
  mam_u32 found = 0;
  mam_u64 seen[MAM_AHEAD];
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(&held[i < left ? i : 0]);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    found |= (mam_u32)(i < left && seen[i] != 0) << i;
  return found;
}

/* What a flush returns. */
enum {
  /* It freed chunks. */
  MAM_FLUSH_FREED = 1,
  /* It saw slots that were being refilled. */
  MAM_FLUSH_BUSY = 2,
  /* From this bit on mam_held_flush returns the number of a kind. */
  MAM_FLUSH_NUMBER = 2
};

/* Frees the chunks without a ticket of one group of slots, the first that may hold any, of the kinds from a number on.
 * Returns MAM_FLUSH_* and, from bit MAM_FLUSH_NUMBER on, the number of the kind to go on with; MAM_HEAP_KINDS if there
 * is none. */
MAM_OUTLINE mam_u32 mam_held_flush(MAM_TAG(1) mam_u32 number, struct mam_heap_control *control) {
  mam_u32 further = MAM_AHEAD, found = 0;
  MAM_LOOP
  while (further == MAM_AHEAD && number < MAM_HEAP_KINDS) {
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_held_look)(&control->held[number], MAM_HEAP_KINDS - number);
    number += further = mam_lowest_u32(seen | 1u << MAM_AHEAD);
  }
  mam_u64 groups = number < MAM_HEAP_KINDS ? mam_load_relaxed_u64(&control->held[number]) : 0;
  if (groups == 0)
    return (number < MAM_HEAP_KINDS ? number + 1 : (mam_u32)MAM_HEAP_KINDS) << MAM_FLUSH_NUMBER;
  mam_u32 kind = mam_kind_numbered(control, number), group = mam_lowest_u64(groups);
  mam_u32 limit = kind != MAM_NO_KIND ? mam_slot_limit(&control->heap, kind) : 0;
  mam_u32 at = group << mam_held_shift(control->heap.slot_count);
  mam_u32 last = (group + 1) << mam_held_shift(control->heap.slot_count);
  last = last < control->heap.slot_count ? last : control->heap.slot_count;
  (void)mam_and_acq_rel_u64(&control->held[number], ~(1ull << group));
  mam_fence_all(); /* pairs with mam_slot_publish */
  MAM_LOOP
  for (; at < last; at += MAM_AHEAD) {
    mam_u32 first = number * control->heap.slot_count + at;
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_slots_look)(&control->heap.slots[first], limit, last - at);
    found |= seen >> MAM_AHEAD != 0 ? MAM_FLUSH_BUSY : 0;
    MAM_LOOP
    for (seen &= (1u << MAM_AHEAD) - 1; seen != 0; seen &= seen - 1) {
      first = number * control->heap.slot_count + at;
      found |= MAM_OUT_OF_SIGHT(mam_slot_flush)(limit, control, first + mam_lowest_u32(seen));
    }
  }
  if ((found & MAM_FLUSH_BUSY) != 0) {
    (void)mam_or_acq_rel_u64(&control->held[number], 1ull << group);
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(control->superblocks[0]));
    number++; /* goes on with the next kind, so that this call does not wait for the refill */
  }
  return number << MAM_FLUSH_NUMBER | found;
}

/* Frees the chunks without a ticket of groups of slots, until `more` groups were flushed, counted from the first that
 * had any.  Returns MAM_FLUSH_*. */
MAM_INLINE mam_u32 mam_slots_flush(mam_u32 more, struct mam_heap_control *control) {
  mam_u32 found = 0, at = 0;
  (void)mam_add_relaxed_u32(&control->opening[MAM_HEAP_KINDS], 1);
  MAM_LOOP
  while (at >> MAM_FLUSH_NUMBER < MAM_HEAP_KINDS && more != 0) {
    at = MAM_OUT_OF_SIGHT(mam_held_flush)(at >> MAM_FLUSH_NUMBER, control);
    found |= at & (MAM_FLUSH_FREED | MAM_FLUSH_BUSY);
    more -= (found & MAM_FLUSH_FREED) != 0;
  }
  (void)mam_add_acq_rel_u32(&control->opening[MAM_HEAP_KINDS], ~0u); /* release: as in mam_opening_end */
  return found;
}

#endif /* MAM_DETAIL_HEAP_SLOTS_H */
