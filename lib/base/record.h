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
 * record_lock protects the file and the list of rings.  No other lock is taken under it but those of the C library, so
 * a caller may hold any.  Knows neither pools nor CUDA: contexts are numbers.
 */
#ifndef MAM_LIB_RECORD_H
#define MAM_LIB_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What an allocation is about, as the program asked for it. */
struct record_call {
  uint64_t size, context; /* context: its id */
  const void *site, *tag; /* tag NULL: none */
  bool on_stream;
  uintptr_t stream;
};

enum record_state { RECORD_UNDECIDED, RECORD_OFF, RECORD_ON };
extern _Atomic(unsigned char) record_state __attribute__((visibility("hidden")));

/* Reads MAM_RECORD.  It runs the dynamic linker: the caller holds no lock.  When the library is loaded, and before the
 * first call in any case. */
void record_set_up(void);

/* Whether calls are recorded.  It never becomes true later than at the first question, and false when the file cannot
 * be written. */
static inline bool record_on(void) {
  /* relaxed: what a record needs is made under record_lock, or before the first call */
  unsigned char state = atomic_load_explicit(&record_state, memory_order_relaxed);
  if (__builtin_expect(state == RECORD_UNDECIDED, false)) {
    record_set_up();
    state = atomic_load_explicit(&record_state, memory_order_relaxed);
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
void record_push(const char *text);
void record_pop(void);

/* The pools of a context hold so much more of the driver; negative: less. */
void record_taken(uint64_t context, int device, int64_t bytes);
/* Memory ends, and whatever was live in it. */
void record_gone(uintptr_t base, uint64_t bytes);

/* The end of the process: what follows goes to the file at once. */
void record_end(void);

/* Around a fork, after all other locks are taken and before they are given back.  A child begins a file of its own with
 * its first call. */
void record_before_fork(void);
void record_after_fork(bool in_child);

#endif
