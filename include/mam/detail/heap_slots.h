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
 * may have 0 (no span yet), MAM__SLOT_DRY (chunks of split spans come before pages) or MAM__SLOT_FLUSHED (the chunks
 * without a ticket are being freed).  Chunks without a ticket count as used, so the span stays while it is in a slot.
 * A flush frees them and gives back the pages in which there are no others (mam__slot_cut).
 *
 * control->held has a word for each kind, with a bit for each group of its slots, up to 64 groups: 1 if a slot of the
 * group may hold a chunk without a ticket, or is about to.  A refill sets it first.  A flush (mam__held_flush) clears
 * it before it looks, and sets it again if it saw a slot that is being refilled.
 *
 * No thread concludes from a 0 that slots are empty when they are not.  A thread that concludes has made the stamps odd
 * and passed mam__barrier_all (F) before the look.  A thread that refills has seen or set the bit, passes
 * mam__barrier_all (G), looks at the stamp, and then writes the slot.
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
MAM__INLINE mam__u32 mam__slot_limit(const mam_device_heap *heap, mam__u32 size_class) {
  return 1u << mam__span_chunks_log2(heap->tuning, mam__class_shift(size_class));
}

/* A group has 1 << mam__held_shift slots (or parks), so that there are at most 64 groups. */
MAM__INLINE mam__u32 mam__held_shift(mam__u32 slot_count) {
  mam__u32 bits = 32 - mam__leading_zeros_u32(slot_count - 1);
  return bits > 6 ? bits - 6 : 0;
}
/* The bit of a slot in control->held, by the slot's number in its kind. */
MAM__INLINE mam__u64 mam__held_bit(mam__u32 slot_count, mam__u32 slot) {
  return 1ull << (slot >> mam__held_shift(slot_count));
}

/* ---- Tickets ---- */

/* What a request for tickets got. */
struct mam__tickets {
  mam__u64 address;
  mam__u32 mask; /* 0: none */
  int refill;    /* the caller has to refill the slot */
};

/* What a request for count tickets got, given the slot's word before it. */
MAM__INLINE struct mam__tickets mam__tickets_of(mam__u64 old, mam__u32 chunk_bytes, mam__u32 limit, mam__u32 count) {
  mam__u32 ticket = (mam__u32)(old & MAM__SLOT_TICKETS);
  struct mam__tickets tickets = {0, 0, ticket <= limit && ticket + count > limit};
  if (ticket < limit) {
    tickets.address = mam__slot_address(old) + (mam__u64)ticket * chunk_bytes;
    tickets.mask = 0xffffffffu >> (32 - (limit - ticket < count ? limit - ticket : count));
  }
  return tickets;
}

/* Asks for count tickets.  acquire: pairs with the refill that published the span, and through it with the frees of
 * what was there before. */
MAM__INLINE mam__u64 mam__slot_take(mam__u64 *slot, mam__u32 count) { return mam__add_acquire_u64(slot, count); }

/* What a request word says of a slot whose word was old before the request asked in vain, for some chunks at least.  A
 * request with MAM__REST_REFILL and MAM__REST_DRY fills the slot in mam__slot_fill_alone and nowhere else: a check
 * relies on that (heap_blocks.h). */
MAM__INLINE mam__u32 mam__slot_rest(mam__u64 old, mam__u32 limit) {
  mam__u32 ticket = (mam__u32)(old & MAM__SLOT_TICKETS);
  return (ticket <= limit ? MAM__REST_REFILL : 0) |
         (mam__slot_is_dry(old) && ticket <= MAM__SLOT_TICKETS / 2 ? MAM__REST_DRY : 0);
}
/* MAM__REST_DRY if a slot, by its word now, is dry and has given its task to a request; else 0. */
MAM__INLINE mam__u32 mam__slot_dry_taken(mam__u64 now, mam__u32 limit) {
  mam__u32 rest = mam__slot_rest(now, limit);
  return (rest & MAM__REST_REFILL) == 0 ? rest & MAM__REST_DRY : 0;
}

/* For count lanes that remain of a group that takes whole spans: the slot with the chunks of the next span.  If they
 * are too few for a whole span, they go to the slot from now on. */
MAM__INLINE mam__u32 mam__whole_rest(mam__u32 *wanted, mam__u32 slot, mam__u64 tuning, mam__u32 count) {
  mam__u32 shift = mam__class_shift(*wanted & MAM__REST_KIND), log2 = mam__span_chunks_log2(tuning, shift);
  if (count >> log2 != 0)
    log2 = mam__whole_chunks_log2(count, shift, log2);
  else
    *wanted &= ~(mam__u32)MAM__REST_WHOLE;
  return (slot & MAM__REST_SLOT) | log2 << MAM__REST_CHUNKS;
}

/* Keeps tickets that were asked for in vain from reaching the address.  now: the slot's word, perhaps an older one.
 * Each thread that asked in vain, and saw the tickets above half of what they can count, calls this before it asks
 * again, and it does not return while they are.  (A request with MAM__REST_DRY has seen fewer.)  So above half each
 * thread of a GPU asks at most once, for up to 32 tickets of its warp, and a GPU has fewer than 2^23 threads at a time.
 */
MAM__INLINE void mam__slot_keep(mam__u64 *slot, mam__u64 now, mam__u32 limit) {
  MAM__LOOP
  while ((now & MAM__SLOT_TICKETS) > MAM__SLOT_TICKETS / 2) {
    mam__u64 seen = mam__cas_relaxed_u64(slot, now, (now & ~MAM__SLOT_TICKETS) | (limit + 1));
    if (seen == now)
      return;
    now = seen;
  }
}

/* The chunks of a thread that asked for count tickets of a slot, whose word was old before.  If it got fewer than it
 * asked for, the slot is left to another thread to refill.  With mask 0 the address has bits of a request word:
 * MAM__REST_REFILL if the caller has to refill the slot, and MAM__REST_DRY if the slot is dry. */
MAM__INLINE struct mam__claim mam__claim_tickets(mam__u64 *slot, mam__u64 old, mam__u32 size_class, mam__u32 limit,
                                                 mam__u32 count) {
  struct mam__tickets tickets = mam__tickets_of(old, mam__class_bytes(size_class), limit, count);
  mam__u32 rest = (tickets.refill ? MAM__REST_REFILL : 0) | (mam__slot_is_dry(old) ? MAM__REST_DRY : 0);
  struct mam__claim claim = {tickets.mask != 0 ? tickets.address : rest, tickets.mask, mam__class_bytes(size_class)};
  if (tickets.mask != 0 && tickets.refill)
    (void)mam__exchange_release_u64(slot, (old & ~MAM__SLOT_TICKETS) | limit);
  return claim;
}

/* Waits for the thread that refills the slot, then asks for tickets again.  Returns the slot's word before that; or
 * MAM__SLOT_TICKETS, which gives neither tickets nor the task: after a bounded time, and with MAM__SLOT_DRY if the slot
 * is dry. */
MAM__OUTLINE mam__u64 mam__slot_wait(mam__u64 *slot, mam__u32 limit, mam__u32 count) {
  MAM__LOOP
  for (int i = 0; i < MAM__WAIT_ROUNDS; i++) {
    mam__u64 now = mam__load_relaxed_u64(slot);
    if ((now & MAM__SLOT_TICKETS) <= limit) {
      now = mam__slot_take(slot, count);
      if ((now & MAM__SLOT_TICKETS) <= limit)
        return now;
    }
    mam__slot_keep(slot, now, limit);
    if (mam__slot_is_dry(now))
      return MAM__SLOT_DRY | MAM__SLOT_TICKETS;
    mam__pause();
  }
  return MAM__SLOT_TICKETS;
}

/* Waits for tickets of a slot that another thread refills.  Returns as mam__claim_tickets. */
MAM__OUTLINE struct mam__claim mam__claim_waited(MAM__TAG(1) struct mam__heap_control *control, mam__u32 wanted,
                                                 mam__u32 slot, mam__u32 count) {
  mam__u64 *place = mam__slot_at(control, slot & MAM__REST_SLOT);
  mam__u32 limit = 1u << (slot >> MAM__REST_CHUNKS);
  return mam__claim_tickets(place, MAM__OUT_OF_SIGHT(mam__slot_wait)(place, limit, count), wanted & MAM__REST_KIND,
                            limit, count);
}

/* Which of up to MAM__AHEAD slots hold chunks without a ticket: a bit for each.  Eight bits above: which are being
 * refilled. */
MAM__OUTLINE mam__u32 mam__slots_look(MAM__TAG(6) const mam__u64 *slots, mam__u32 limit, mam__u32 left) {
  mam__u64 seen[MAM__AHEAD];
  mam__u32 found = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_u64(&slots[i < left ? i * MAM__SLOT_WORDS : 0]);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++) {
    mam__u32 ticket = (mam__u32)(seen[i] & MAM__SLOT_TICKETS);
    found |= (mam__u32)(i < left && ticket < limit) << i | (mam__u32)(i < left && ticket > limit) << (i + MAM__AHEAD);
  }
  return found;
}

/* ---- Flushing ---- */

/* Takes pages from a slot's span, behind its last chunk with a ticket, as far as what remains is a span: a power of two
 * of chunks, one without a ticket among them, in whole pages and, if the span has several usage words, in whole words.
 * Returns the number of chunks that remain, and 16 bits above the number of pages taken.  A type's span is left as it
 * is: a compaction knows its size.
 *
 * The caller has the chunks without a ticket.  So the span does not end meanwhile, and nobody has a chunk in what is
 * taken.  The words that remain change by an addition to their upper halves, and a free changes the lower half alone,
 * so neither loses what the other does.  Until all of them have changed, they look like words of two spans, and a
 * thread that wants to end or to watch the span leaves it.  It will not end before the caller frees its chunks; and it
 * is watched here, but for the hint (mam__slot_flushed). */
MAM__INLINE mam__u32 mam__slot_cut(mam__u64 *usage, mam__u32 page, mam__u32 ticket, mam__u32 limit) {
  mam__u64 *words = &usage[page * MAM__PAGE_WORDS], word = mam__load_relaxed_u64(words);
  mam__u32 bytes = mam__class_bytes(mam__word_class(word)), chunks = limit > 32 ? 32 : 1;
  MAM__LOOP
  while (chunks <= ticket || chunks * bytes % MAM__PAGE_BYTES != 0)
    chunks *= 2;
  if (chunks >= limit || mam__kind_type(mam__word_class(word)) != 0)
    return limit;
  mam__u32 kept = chunks * bytes >> MAM__PAGE_SHIFT, pages = (limit - chunks) * bytes >> MAM__PAGE_SHIFT;
  word = (mam__u64)pages << 48 | (mam__u64)(limit > 32 ? (limit - chunks) >> 5 << 8 : limit - chunks) << 32;
  MAM__LOOP
  for (mam__u32 i = 0; 32 * i < chunks; i++) { /* relaxed: a thread that frees or claims a chunk needs its word alone */
    (void)mam__add_relaxed_u64(&words[i], 0 - word);
    (void)mam__or_relaxed_u64(&words[i], MAM__WORD_WATCHED);
  }
  MAM__LOOP
  for (mam__u32 i = (chunks + 31) >> 5; 32 * i < limit; i++)
    mam__store_relaxed_u64(&words[i], 0);
  MAM__LOOP
  for (mam__u32 i = 0; i < pages; i++)
    mam__store_relaxed_u16(mam__page_entry(usage, page + kept + i), 0);
  return chunks | pages << 16;
}

/* What mam__slot_seize returns: the slot's word, with this in the place of its tickets. */
enum {
  /* The ticket: fewer than 256. */
  MAM__SEIZED_TICKET = (1 << 9) - 1,
  /* From this bit on nine bits: how many chunks the span has after the cut. */
  MAM__SEIZED_CHUNKS = 9,
  /* From this bit on six bits: how many pages were cut. */
  MAM__SEIZED_PAGES = 18
};

/* Makes the chunks of a slot that have no ticket the caller's, and cuts the span.  Returns MAM__SEIZED_*; 0 if there
 * are no such chunks.  Calls nothing. */
MAM__OUTLINE mam__u64 mam__slot_seize(mam__u32 limit, struct mam__heap_control *control, mam__u32 number) {
  mam__u64 now, seen = mam__load_relaxed_u64(mam__slot_at(control, number));
  /* Again if another thread took tickets: what it left would be forgotten, since the group's bit is 0.
   * acq_rel: the tickets are the caller's, and it sees the span's words as they were when the slot was refilled. */
  MAM__LOOP
  do {
    now = seen;
    if ((now & MAM__SLOT_TICKETS) >= limit)
      return 0;
    seen = mam__cas_acq_rel_u64(mam__slot_at(control, number), now, MAM__SLOT_FLUSHED | (limit + 1));
  } while (seen != now);
  const struct mam__area *area = mam__area_find(control, mam__slot_address(now));
  mam__u32 left = mam__slot_cut(area->words, (mam__u32)((mam__slot_address(now) - area->base) >> MAM__PAGE_SHIFT),
                                (mam__u32)(now & MAM__SLOT_TICKETS), limit);
  return now | (left & 0xffff) << MAM__SEIZED_CHUNKS | left >> 16 << MAM__SEIZED_PAGES;
}

/* Frees the chunks of a slot that have no ticket.  Returns 0 if there were none, else the span's address and in the
 * bits below it 1, from bit 1 on the number of pages that mam__slot_cut took.  Meanwhile the slot's word says so:
 * threads that ask for tickets wait, and a check does not take a chunk that is being freed for a live one. */
MAM__OUTLINE mam__u64 mam__slot_flush(MAM__TAG(2) mam__u32 limit, struct mam__heap_control *control, mam__u32 number) {
  mam__u64 seized = MAM__OUT_OF_SIGHT(mam__slot_seize)(limit, control, number);
  if (seized == 0)
    return 0;
  MAM__LOOP
  for (mam__u32 ticket = (mam__u32)seized & MAM__SEIZED_TICKET;
       ticket < ((mam__u32)seized >> MAM__SEIZED_CHUNKS & MAM__SEIZED_TICKET); ticket = (ticket | 31) + 1) {
    MAM__FORGET_ADDRESS(control); /* what is computed from these is not kept over the call */
    MAM__FORGET_ADDRESS(seized);
    const struct mam__area *area = mam__area_find(control, mam__slot_address(seized));
    mam__u32 word = (mam__u32)((mam__slot_address(seized) - area->base) >> MAM__PAGE_SHIFT) * MAM__PAGE_WORDS;
    mam__u32 chunks = (mam__u32)seized >> MAM__SEIZED_CHUNKS & MAM__SEIZED_TICKET, bits = 0xffffffffu << (ticket & 31);
    if (chunks < 32)
      bits &= (1u << chunks) - 1;
    (void)mam__chunks_free(*area, word + (ticket >> 5), bits);
  }
  (void)mam__exchange_release_u64(mam__slot_at(control, number), (seized & ~MAM__SLOT_TICKETS) | limit);
  return mam__slot_address(seized) | ((mam__u32)seized & MAM__SLOT_TICKETS) >> MAM__SEIZED_PAGES << 1 | 1;
}

/* Gives back the pages that mam__slot_cut took.  flushed: what mam__slot_flush returned.  Before, the span's frees had
 * set no hint perhaps, since it was not watched; so the hint is set here.  The span may have ended meanwhile. */
MAM__OUTLINE void mam__slot_flushed(struct mam__heap_control *control, mam__u32 kind, mam__u64 flushed) {
  const struct mam__area *area = mam__area_find(control, flushed);
  mam__u32 page = (mam__u32)((flushed - area->base) >> MAM__PAGE_SHIFT), pages = (mam__u32)flushed >> 1 & 63;
  MAM__OUT_OF_SIGHT(mam__span_hint)(*area, page, kind);
  mam__pages_release(*area, page + mam__span_pages(control->heap.tuning, kind) - pages, pages);
}

/* Which of up to MAM__AHEAD kinds have slots that may hold chunks: a bit for each. */
MAM__OUTLINE mam__u32 mam__held_look(MAM__TAG(1) const mam__u64 *held, mam__u32 left) {
  mam__u32 found = 0;
  mam__u64 seen[MAM__AHEAD];
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_u64(&held[i < left ? i : 0]);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    found |= (mam__u32)(i < left && seen[i] != 0) << i;
  return found;
}

/* What a flush returns. */
enum {
  /* It freed chunks. */
  MAM__FLUSH_FREED = 1,
  /* It saw slots that were being refilled. */
  MAM__FLUSH_BUSY = 2,
  /* From this bit on mam__held_flush returns the number of a kind. */
  MAM__FLUSH_NUMBER = 2
};

/* The number of tickets of a slot, by the number of its kind. */
MAM__INLINE mam__u32 mam__numbered_limit(const struct mam__heap_control *control, mam__u32 number) {
  mam__u32 kind = mam__kind_numbered(control, number);
  return kind != MAM__NO_KIND ? mam__slot_limit(&control->heap, kind) : 0;
}
/* The end of a slot's group: the slot behind its last one. */
MAM__INLINE mam__u32 mam__group_end(const struct mam__heap_control *control, mam__u32 slot) {
  mam__u32 shift = mam__held_shift(control->heap.slot_count), end = ((slot >> shift) + 1) << shift;
  return end < control->heap.slot_count ? end : control->heap.slot_count;
}

/* Frees the chunks without a ticket of one group of slots that may hold any, of the first such kind from a number on.
 * Returns MAM__FLUSH_* and, from bit MAM__FLUSH_NUMBER on, the number to go on with.  Numbers go through all kinds
 * twice, so that a caller may begin with any kind; 2 * MAM__HEAP_KINDS is the end. */
MAM__OUTLINE mam__u32 mam__held_flush(MAM__TAG(1) mam__u32 number, struct mam__heap_control *control) {
  mam__u32 further = MAM__AHEAD, turn = number < MAM__HEAP_KINDS ? 0 : MAM__HEAP_KINDS;
  mam__u32 seen = 0, found = 0;
  number -= turn;
  MAM__LOOP
  while (further == MAM__AHEAD && number < MAM__HEAP_KINDS) {
    mam__u32 kinds = MAM__OUT_OF_SIGHT(mam__held_look)(&control->held[number], MAM__HEAP_KINDS - number);
    number += further = mam__lowest_u32(kinds | 1u << MAM__AHEAD);
  }
  mam__u64 groups = number < MAM__HEAP_KINDS ? mam__load_relaxed_u64(&control->held[number]) : 0;
  mam__barrier_all(); /* the looks at held come before the caller's look at the count; pairs with the change below */
  if (groups == 0)
    return (number < MAM__HEAP_KINDS ? turn + number + 1 : turn + MAM__HEAP_KINDS) << MAM__FLUSH_NUMBER;
  mam__u64 behind = groups & MAM__FULL_WORD << (mam__salt() & 63); /* threads that flush at once begin at others */
  mam__u32 at = mam__lowest_u64(behind != 0 ? behind : groups) << mam__held_shift(control->heap.slot_count);
  mam__u64 bit = mam__held_bit(control->heap.slot_count, at);
  (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1);
  /* acq_rel: a thread that finds the bit 0, and looks at the count after mam__barrier_all, sees it. */
  groups = mam__and_acq_rel_u64(&control->held[number], ~bit);
  mam__barrier_all(); /* pairs with mam__slot_publish */
  number += turn;
  if ((groups & bit) != 0) { /* otherwise another thread has the group */
    MAM__LOOP
    do {
      MAM__FORGET_ADDRESS(control); /* what is computed from these is not kept over the calls */
      MAM__FORGET_THREE(number, at, seen);
      mam__u32 kind = number % MAM__HEAP_KINDS;
      if (seen == 0) {
        seen = MAM__OUT_OF_SIGHT(mam__slots_look)(mam__slot_at(control, kind * control->heap.slot_count + at),
                                                  mam__numbered_limit(control, kind), mam__group_end(control, at) - at);
        found |= seen >> MAM__AHEAD != 0 ? MAM__FLUSH_BUSY : 0;
        seen &= (1u << MAM__AHEAD) - 1;
      }
      MAM__FORGET_ADDRESS(control);
      MAM__FORGET_THREE(number, at, seen);
      kind = number % MAM__HEAP_KINDS;
      if (seen != 0) {
        mam__u64 flushed = MAM__OUT_OF_SIGHT(mam__slot_flush)(
            mam__numbered_limit(control, kind), control, kind * control->heap.slot_count + at + mam__lowest_u32(seen));
        MAM__FORGET_ADDRESS(control);
        MAM__FORGET_THREE(number, at, seen);
        found |= (mam__u32)flushed & MAM__FLUSH_FREED;
        if (((mam__u32)flushed & (MAM__PAGE_BYTES - 1)) > MAM__FLUSH_FREED) /* a class is its number */
          MAM__OUT_OF_SIGHT(mam__slot_flushed)(control, number % MAM__HEAP_KINDS, flushed);
        seen &= seen - 1;
      }
      MAM__FORGET_ADDRESS(control);
      MAM__FORGET_THREE(number, at, seen);
      if (seen == 0)
        at = at + MAM__AHEAD < mam__group_end(control, at) ? at + MAM__AHEAD : mam__group_end(control, at);
    } while (seen != 0 || at < mam__group_end(control, at - 1));
  }
  MAM__FORGET_ADDRESS(control);
  MAM__FORGET_THREE(number, at, found);
  if ((found & MAM__FLUSH_BUSY) != 0) {
    (void)mam__or_acq_rel_u64(&control->held[number % MAM__HEAP_KINDS],
                              mam__held_bit(control->heap.slot_count, at - 1));
    mam__stamp_raise(mam__area_stamp(control->superblocks[0]));
    number++; /* goes on with the next kind, so that this call does not wait for the refill */
  }
  (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u); /* release: as in mam__opening_end */
  return number << MAM__FLUSH_NUMBER | found;
}

/* Where a flush of slots is: MAM__FLUSH_* of what it found so far, from bit MAM__FLUSH_NUMBER on the number for
 * mam__held_flush, and from bit MAM__FLUSH_MORE on how many groups it is to free yet.  They are counted from the first
 * that had any.  It begins with the kind of a number and goes through all. */
enum { MAM__FLUSH_MORE = 16 };
MAM__INLINE mam__u32 mam__flush_begin(mam__u32 number, mam__u32 more) {
  return (more < 1 << (32 - MAM__FLUSH_MORE) ? more : (1 << (32 - MAM__FLUSH_MORE)) - 1) << MAM__FLUSH_MORE |
         number << MAM__FLUSH_NUMBER;
}

/* A turn of a flush.  Returns whether there are more.  If it ends with MAM__FLUSH_* 0, what other threads have flushed
 * is freed, or control->opening tells that it is in their hands. */
MAM__INLINE int mam__flush_turn(struct mam__heap_control *control, mam__u32 *flush) {
  mam__u32 mask = (1 << MAM__FLUSH_MORE) - 1, more = *flush >> MAM__FLUSH_MORE;
  mam__u32 at = MAM__OUT_OF_SIGHT(mam__held_flush)((*flush & mask) >> MAM__FLUSH_NUMBER, control);
  at |= *flush & (MAM__FLUSH_FREED | MAM__FLUSH_BUSY);
  more -= at & MAM__FLUSH_FREED;
  *flush = more << MAM__FLUSH_MORE | at;
  return more != 0 && at >> MAM__FLUSH_NUMBER < 2 * MAM__HEAP_KINDS;
}

#endif /* MAM_DETAIL_HEAP_SLOTS_H */
