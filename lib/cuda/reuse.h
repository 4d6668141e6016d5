/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When freed memory may be handed out again: epochs, and the fences that tell when one has passed.
 *
 * A free takes the present epoch.  A fence closes it: the epoch is raised first, then an event is recorded that is done
 * when all work is that was submitted to the context before (cuCtxRecordEvent).  When the event is done, the epoch has
 * passed, and with it every earlier one: what was freed in them is no longer used by the GPU.  Nobody waits for a
 * fence; it is asked for when somebody needs memory.
 *
 * Why that is safe.  Let a thread submit work that uses a block, and then, itself or another after it in the order of
 * happens-before, free the block and read epoch e.  A fence of e or a later epoch is recorded after the epoch was
 * raised beyond e.  Were the submission not before the record, in the driver's own order, the record would happen
 * before the submission, so would the raise, and the free would have read a later epoch than e.  So the event covers
 * the work. The atomics are release at the raise and acquire at the read for the sake of that sentence.
 *
 * Companions are contexts whose work is known to use memory of this one, or could by peer access.  A fence then needs
 * theirs, too: once it has closed the epoch, it looks at the present epoch of each companion, and it is done when its
 * own event is and the work of each companion is done up to that epoch.  The look is an addition of 0, so it has its
 * place among the raises of that epoch.  Were work of the companion not covered, the companion's raise would come
 * before the free, and after the look; each of these reads what the one before wrote, so the raise here would come
 * before the free as well, which would have read a later epoch.  Of a companion only its own work counts (done), not
 * what it waits for itself (passed): so two contexts can be each other's.
 *
 * Pools of one context share one of these, so that one fence serves all.  Stands on the driver and on context.h; knows
 * nothing of pools and segments.  Its lock is the last in the order: nothing is locked under it.
 */
#ifndef MAM_LIB_REUSE_H
#define MAM_LIB_REUSE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/peer.h"
#include "cuda/source.h"

/* Fences that were recorded and not yet found done.  A GPU that is behind by more makes the next fence wait its turn.
 */
enum { REUSE_FENCES = 8 };

/* While a fence is pending, another is not recorded sooner: the driver serialises fences (FACTS: 16 threads that record
 * without pause take 8 us each), and kernel launches notice them. */
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
  unsigned captures;                       /* brackets open: then neither fences nor waits */
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

/* The same, and a fence that was just recorded is given some microseconds, which it takes on an idle GPU: for who would
 * otherwise do something that takes longer. */
bool reuse_reach_soon(struct reuse *reuse, uint64_t epoch);

/* Waits for the GPU; afterwards all epochs before the present one have passed.  Refused during a capture, which it
 * would invalidate: cudaErrorStreamCaptureUnsupported (900).  No lock may be held. */
cudaError_t reuse_synchronize(struct reuse *reuse);

/* The program itself waits for all work of the context: what begin returns is for end, to be called if it did.  No lock
 * is held in between, and what was freed before begin has passed after end. */
uint64_t reuse_wait_begin(struct reuse *reuse);
void reuse_wait_end(struct reuse *reuse, uint64_t epoch);

/* Brackets of captures; from the return of begin to the call of end the context is neither fenced nor waited for. */
void reuse_capture_begin(struct reuse *reuse);
bool reuse_capture_end(struct reuse *reuse); /* false: none had begun */
bool reuse_capturing(struct reuse *reuse);

/* A stream is being captured.  If its program said nothing of it: no fences and no waits as long as it is, which the
 * driver is asked, so the stream must not go before the next call; inside brackets it is not remembered. */
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
