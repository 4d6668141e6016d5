/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The record of a process (MAM_RECORD, mam-record(5)): each thread writes its events into a ring of its own, without a
 * lock, and a thread of the library brings them from all rings to the file.
 *
 *   thread: a call ---> ring ---.
 *                                > the writer, every 20 ms: items (record_file.h) ---> the file
 *   thread: a call ---> ring ---'
 *
 * A thread whose ring is full brings it to the file itself.  So nothing is lost while the process lives, and what is
 * lost when it is killed is what came in the last 20 ms or so.
 *
 * Order.  The time of a free is taken before the call, that of an allocation after it.  So where memory goes from one
 * thread to another, the free is the earlier one, and sorting by time brings each free behind its allocation and before
 * the next one of the address.  Two things make that cheaper, as reading the clock is most of what a record costs:
 *
 *   - What a thread has at hand (record_allocated_quick) it freed itself, or an earlier, slow call of the thread
 *     brought it, and took the time after that.  So such an allocation may have any later time, also that of the
 *     thread's event before.  It has it if that came less than FAST_NS after the one before; but never twice in a row,
 *     and not after the writer has come by.
 *   - A processor may read the clock for a free some 100 ns early, before it knows the address.  Then the free of a
 *     block that another thread allocated just now may seem to be the earlier one; the reader puts that right.
 *
 * A record by a call (MAM_RecordBegin) begins in the middle.  Its caller holds all pools still, as before a fork, and
 * in that moment, the cut, the record is switched on and the live blocks are listed.  Of the calls of other threads:
 *
 *   - What a quick path does, it does inside its front, before the cut or after it.  After the cut it sees the record
 *     (front_inside.h, front_at_hand), so no block of its is lost or counted twice.
 *   - A call on a slow way asks at its end whether calls are recorded.  If it allocated before the cut and asks after
 *     it, the block is in the list and has an event, too: the reader takes an allocation of a block of the list that
 *     was not freed for that block.  If it freed before the cut, the free is of no allocation, which a reader expects.
 *     Only if the address was also handed out again, by another thread, before the cut is that free taken for the
 *     end of the later block.
 *
 * What threads leave in their rings between two records is dropped at the next cut.  A thread that was held up from one
 * record into the next may put an event with a time before the cut: it gets that of the cut.  The end of a record needs
 * no cut: what a thread puts later is not in the file.  Rings stay until their threads end.
 *
 * record_lock protects the file and the list of rings.  No other lock is taken under it but those of the C library, so
 * a caller may hold any.  Knows neither pools nor CUDA: contexts are numbers.
 */
#ifndef MAM_LIB_RECORD_H
#define MAM_LIB_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mam.h"

/* What an allocation is about, as the program asked for it. */
struct record_call {
  uint64_t size, context; /* context: its id, or that of a pool that the program created (RECORD_CREATED) */
  const void *site, *tag; /* tag NULL: none */
  bool on_stream;
  uintptr_t stream;
};

enum record_state { RECORD_UNDECIDED, RECORD_OFF, RECORD_ON };
extern _Atomic(unsigned char) record_state __attribute__((visibility("hidden")));

/* Reads MAM_RECORD.  It runs the dynamic linker: the caller holds no lock.  When the library is loaded, and before the
 * first call in any case. */
void record_set_up(void);

/* Whether calls are recorded.  It becomes true at the first question or by record_begin_cut, and false by
 * record_end_file or when the file cannot be written. */
static inline bool record_on(void) {
  /* acquire, both: what a record needs; pair with the releases in set_up and record_begin_cut */
  unsigned char state = atomic_load_explicit(&record_state, memory_order_acquire);
  if (__builtin_expect(state == RECORD_UNDECIDED, false)) {
    record_set_up();
    state = atomic_load_explicit(&record_state, memory_order_acquire);
  }
  return state == RECORD_ON;
}

/* The moment before a free. */
uint64_t record_before(void);

/* Each is called where record_on() says so, after the call that it records. */
void record_allocated(uintptr_t address, const struct record_call *call);
void record_refused(const struct record_call *call);
/* An allocation without a tag, of what the thread had at hand. */
void record_allocated_quick(uintptr_t address, uint64_t size, const void *site, uint64_t context, bool on_stream,
                            uintptr_t stream);
void record_freed(uint64_t before, uintptr_t address, bool on_stream, uintptr_t stream);
void record_mark(const char *text);
/* A range begins or ends on this thread.  Those of a domain, which is a handle of NVTX and NULL for the default one,
 * are in each other; those of two domains may end in any order. */
void record_push(const char *text, const void *domain);
void record_pop(const void *domain);

/* The default pools of a context, or a pool that the program created, hold so much more of the driver; negative: less.
 */
void record_taken(uint64_t context, int device, int64_t bytes);
/* Memory ends, and whatever was live in it. */
void record_gone(uintptr_t base, uint64_t bytes);

/* The end of the process: what follows goes to the file at once. */
void record_end(void);

/* A block that is live at the beginning; address 0: what the pools of the context hold is size. */
struct record_live {
  uintptr_t address;
  uint64_t size, context;
  const void *site, *tag; /* NULL: not known, none */
  uint32_t device;
};

/* What every record needs, once.  It runs the dynamic linker: the caller holds no lock. */
void record_prepare(void);

/* A record by a call, in three steps; one thread at a time.  The first makes the file: its errors are those of
 * MAM_RecordBegin, and nothing has changed.  The second begins, with all pools held still; it leaves record_lock taken.
 * The third writes what is live, with the pools let go, and leaves the lock.  lost: blocks that there was no memory
 * for.
 */
cudaError_t record_begin_file(const char *path);
void record_begin_cut(void);
void record_begin_live(const struct record_live *all, size_t count, uint64_t lost);

/* Ends it.  Errors: those of MAM_RecordEnd. */
cudaError_t record_end_file(void);

/* Around a fork, after all other locks are taken and before they are given back.  A child begins a file of its own with
 * its first call; if a call began the record, it makes none. */
void record_before_fork(void);
void record_after_fork(bool in_child);

#endif
