/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When freed memory may be handed out again: epochs, and the fences that tell when an epoch has passed.
 *
 *   free A    free B     fence         free C
 *   ---- epoch 7 ------->|------------ epoch 8 -->     the event of the fence is done: epoch 7 has passed,
 *                         event                        A and B may be used again
 *
 * A free reads the present epoch.  A fence closes the epoch: it raises the number first, then it records an event
 * (cuCtxRecordEvent), which is done when all work is done that was submitted to the context before.  When the event is
 * done, the epoch and all earlier ones have passed: the GPU has ceased to use what was freed in them.  No thread waits
 * for a fence; a thread that needs memory asks whether it is done.
 *
 * Why that is safe.  A thread submits work that uses a block.  Then that thread, or one after it in the order of
 * happens-before, frees the block and reads epoch e.  A fence of e, or of a later epoch, records its event after it has
 * raised the epoch beyond e.  Suppose that the event does not cover the work.  Then the record, and the raise before
 * it, happen before the submission, and the free reads a later epoch than e, which it did not.  For this argument the
 * raise is a release and the read an acquire.
 *
 * A companion is a context whose work uses memory of this one, or could by peer access.  A fence then needs the work of
 * companions as well.  After it has closed the epoch, it reads the present epoch of each companion, and it is done when
 * its own event is done and each companion's work is done up to the epoch that was read.  The read is an addition of 0,
 * so that it has a place in the order of that companion's raises.  Suppose that work of a companion is not covered.
 * Then the companion's raise comes after the read here and before the free, each reads what the one before wrote, and
 * so the raise here comes before the free, which then reads a later epoch.  Only a companion's own work counts (done),
 * not what it waits for (passed): so two contexts can be each other's companions.
 *
 * Pools of one context share a struct reuse, so that one fence serves all of them.  Stands on the driver and on
 * context.h; knows nothing of pools and segments.  Nothing is locked under its lock.
 */
#ifndef MAM_LIB_REUSE_H
#define MAM_LIB_REUSE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/peer.h"
#include "cuda/source.h"

/* So many fences may be recorded and not known to be done.  While there are as many, no further fence is recorded. */
enum { REUSE_FENCES = 8 };

/* While a fence is pending, the next one is recorded after this time at the earliest.  The driver serialises fences: 16
 * threads that record without pause take 8 us each, and kernel launches are slowed down. */
enum { REUSE_FENCE_PAUSE_NS = 20000 };

struct reuse_fence {
  CUevent event;
  uint64_t epoch; /* that it closed */
};

struct reuse;

struct reuse_companion {
  struct reuse_companion *next; /* constant once published, as the other's reuse, which is held */
  struct reuse *reuse;
  uint64_t needs[REUSE_FENCES]; /* by the place of a fence: the other's epoch that it needs done; under this lock */
};

struct reuse {
  /* Read by every free and every refill, written by fences: on a line of their own. */
  _Alignas(64) _Atomic uint64_t epoch;          /* of frees made now; starts at 1 */
  _Atomic uint64_t passed;                      /* this epoch and all earlier ones have; always less than epoch */
  _Atomic uint64_t done;                        /* the same of the work of this context alone; never less than passed */
  _Atomic(struct reuse_companion *) companions; /* prepended to under the lock; freed with the last user */

  _Alignas(64) pthread_mutex_t lock;       /* protects everything below */
  pthread_cond_t quiet;                    /* signalled when synchronizing becomes 0 */
  struct reuse *next;                      /* constant once published */
  unsigned users;                          /* pools and captures */
  unsigned holders;                        /* companions of others; without either, it is free for another context */
  struct source source;                    /* whose GPU it is; the context is borrowed from the users */
  struct reuse_fence fences[REUSE_FENCES]; /* events are kept for the next fence */
  unsigned first, pending;                 /* a ring: pending of them from first are recorded, */
  unsigned done_count;                     /* and the events of so many from first are known to be done */
  int64_t recorded_ns;                     /* when the last one was */
  unsigned captures;                       /* brackets open: then no fences */
  unsigned keeping;                        /* so many of these keep what their graphs use: else no waits either */
  uintptr_t spare;                         /* a small block for waits in such brackets; 0: none */
  bool used;                               /* has users: else its fences are for companions alone */
  struct peer_probe probe;
  CUcontext peer;             /* that was found while a fence was set, and is to be a companion */
  CUstream noticed;           /* a stream that was seen being captured, NULL if none is */
  unsigned synchronizing;     /* threads that wait for the GPU */
  uint64_t fence_count;       /* recorded ever */
  unsigned haste, haste_next; /* so many fences are given no time; and as many after the next slow one */
};

/* The one of the source's context, or one of its own for a source without a context.  NULL: no host memory. */
struct reuse *reuse_open(const struct source *source);
/* Gives it up.  The last user's call destroys the events, if the context still lives. */
void reuse_close(struct reuse *reuse);

/* Makes a context a companion, if it is neither the reuse's own nor one already: from the next fence on, none is done
 * before its work is.  cudaErrorMemoryAllocation if the host has no memory, or the reuse no user any more; or what the
 * driver says. */
cudaError_t reuse_accompany(struct reuse *reuse, CUcontext handle);

/* What a block that is freed now takes. */
static inline uint64_t reuse_epoch(const struct reuse *reuse) {
  /* acquire: see above; pairs with the release in epoch_close */
  return atomic_load_explicit(&reuse->epoch, memory_order_acquire);
}

/* The latest epoch that has passed, as far as is known. */
static inline uint64_t reuse_passed(const struct reuse *reuse) {
  /* acquire: what was done before the epoch passed; pairs with the release in epoch_pass_locked */
  return atomic_load_explicit(&reuse->passed, memory_order_acquire);
}

/* Whether an epoch is closed that has not passed, as far as is known: the GPU has older work to do. */
static inline bool reuse_lags(const struct reuse *reuse) { return reuse_passed(reuse) + 1 < reuse_epoch(reuse); }

/* Whether an epoch has passed; asks the driver, and sets a fence if none is under way that covers it.  Never waits for
 * the GPU.  Calls the driver: no lock of a pool may be held. */
bool reuse_reach(struct reuse *reuse, uint64_t epoch);

/* The same, and waits some microseconds for a fence that was just recorded: an idle GPU takes that long.  For a caller
 * whose alternative takes longer. */
bool reuse_reach_soon(struct reuse *reuse, uint64_t epoch);

/* Waits for the GPU; afterwards all epochs before the present one have passed.  Refused during a capture whose graph
 * may use what was freed: cudaErrorStreamCaptureUnsupported (900).  No lock may be held.
 *
 * cuCtxSynchronize would end a capture.  Where brackets are open that all keep what their graphs use, the wait is
 * that of a cuMemFree of a small block, which leaves a capture alone in the relaxed mode. */
cudaError_t reuse_synchronize(struct reuse *reuse);

/* The program itself waits for all work of the context: what begin returns is for end, to be called if it did.  No lock
 * is held in between, and what was freed before begin has passed after end. */
uint64_t reuse_wait_begin(struct reuse *reuse);
void reuse_wait_end(struct reuse *reuse, uint64_t epoch);

/* Brackets of captures; from the return of begin to the call of end the context is not fenced.  keeps: the caller takes
 * care that what the graph uses is not freed, so a wait for the GPU makes free what was freed.  Else there is no wait
 * either. */
void reuse_capture_begin(struct reuse *reuse, bool keeps);
bool reuse_capture_end(struct reuse *reuse, bool keeps); /* false: none had begun */

/* Whether brackets are open in the context of that id. */
bool reuse_bracketed(uint64_t context_id);

/* Whether a capture forbids a wait, in the context or in a companion. */
bool reuse_capturing(struct reuse *reuse);

/* A stream is being captured, outside brackets of its context, so its program said nothing of it: no fences and no
 * waits as long as it is, which the driver is asked.  So the stream must not go before the driver was asked, which the
 * next call need not do, but a trim does.  Inside brackets of the reuse's own context it is not remembered. */
void reuse_notice_capture(struct reuse *reuse, CUstream stream);

/* The fences there were. */
void reuse_counts(struct reuse *reuse, uint64_t *fences);

/* Whether the driver can fence; else only waits free what was freed.  The other: that, or no GPU uses the memory. */
bool reuse_can_fence(const struct reuse *reuse);
bool reuse_passes_by_itself(const struct reuse *reuse);

/* Fork: no thread is in the middle of a change between before and after. */
void reuse_before_fork(void);
void reuse_after_fork(bool in_child);

#endif
