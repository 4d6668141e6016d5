/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/reuse_inside.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/library_call.h"
#include "base/locked.h"
#include "base/mutex.h"

/* A fence on an idle GPU is done after so long (H200). */
enum { REUSE_QUICK_NS = 5000 };

/* reuse_reach_soon waits for so long at most: a growth of a pool, which it may save, takes ten times as long. */
enum { REUSE_SOON_NS = 10000 };

/* After a fence that was not quick, the GPU has work to do, and the next fences are not waited for: one after the first
 * such fence, then about twice as many each time, up to this number. */
enum { REUSE_HASTE_MOST = 63 };

/* ---- Epochs ---- */

/* Closes the present epoch: frees from now on take a later one. */
static uint64_t epoch_close(struct reuse *reuse) {
  /* release: pairs with the acquire in reuse_epoch; see the argument in reuse.h */
  return atomic_fetch_add_explicit(&reuse->epoch, 1, memory_order_acq_rel);
}

/* The work of this context alone. */
static void epoch_done_locked(struct reuse *reuse, uint64_t epoch) {
  lock_held(&reuse->lock);
  /* relaxed: written under the lock only */
  if (atomic_load_explicit(&reuse->done, memory_order_relaxed) < epoch)
    /* release: as in epoch_pass_locked; pairs with the acquire in reuse_done */
    atomic_store_explicit(&reuse->done, epoch, memory_order_release);
}

static uint64_t reuse_done(const struct reuse *reuse) {
  /* acquire: what was done before; pairs with the release in epoch_done_locked */
  return atomic_load_explicit(&reuse->done, memory_order_acquire);
}

static void epoch_pass_locked(struct reuse *reuse, uint64_t epoch) {
  lock_held(&reuse->lock);
  epoch_done_locked(reuse, epoch);
  /* relaxed: written under the lock only */
  if (atomic_load_explicit(&reuse->passed, memory_order_relaxed) < epoch)
    /* release: the fence was found done before; pairs with the acquire in reuse_passed */
    atomic_store_explicit(&reuse->passed, epoch, memory_order_release);
}

/* ---- Fences ---- */

bool reuse_can_fence(const struct reuse *reuse) {
  const struct driver *driver = reuse->source.context.driver;
  return driver != NULL && driver->cuCtxRecordEvent != NULL && driver->cuEventCreate != NULL &&
         driver->cuEventQuery != NULL && driver->cuEventDestroy != NULL;
}

/* Makes the context current for a fence.  Most threads are in it already: then it costs 13 ns instead of 100. */
struct entry {
  struct context_visit visit;
  bool pushed;
};

static bool fence_enter(const struct reuse *reuse, struct entry *entry) {
  const struct context *context = &reuse->source.context;
  CUcontext current = NULL;
  entry->pushed = false;
  if (!context_lives(context))
    return false;
  bool captures = reuse_brackets_open() || reuse->noticed != NULL;
  if (!captures && context->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle)
    return true;
  entry->pushed = context_enter(context, &entry->visit) == cudaSuccess;
  return entry->pushed;
}

static void fence_leave(const struct reuse *reuse, struct entry *entry) {
  if (entry->pushed)
    context_leave(&reuse->source.context, &entry->visit);
}

/* A companion whose work is not done as far as the oldest fence needs it, NULL if there is none. */
static struct reuse_companion *companion_behind_locked(const struct reuse *reuse) {
  lock_held(&reuse->lock);
  struct reuse_companion *companion = reuse_companions_first(reuse);
  while (companion != NULL && reuse_done(companion->reuse) >= companion->needs[reuse->first])
    companion = companion->next;
  return companion;
}

/* What the fence at a place needs of the companions, from now on. */
static void companions_need_locked(struct reuse *reuse, unsigned place) {
  lock_held(&reuse->lock);
  struct reuse_companion *companion = reuse_companions_first(reuse);
  for (; companion != NULL; companion = companion->next)
    /* acq_rel, and a change though of nothing: see reuse.h */
    companion->needs[place] = atomic_fetch_add_explicit(&companion->reuse->epoch, 0, memory_order_acq_rel);
}

/* Asks about the pending fences, oldest first.  A fence that fails (the GPU met an error) stays pending: nothing is
 * handed out on the strength of it, and the wait that follows in the end reports the error. */
static void fences_ask_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  const struct driver *driver = reuse->source.context.driver;
  while (reuse->done_count < reuse->pending) {
    const struct reuse_fence *fence = &reuse->fences[(reuse->first + reuse->done_count) % REUSE_FENCES];
    if (driver->cuEventQuery(fence->event) != CUDA_SUCCESS)
      break;
    epoch_done_locked(reuse, fence->epoch);
    reuse->done_count++;
  }
  while (reuse->done_count > 0 && companion_behind_locked(reuse) == NULL) {
    epoch_pass_locked(reuse, reuse->fences[reuse->first].epoch);
    reuse->first = (reuse->first + 1) % REUSE_FENCES;
    reuse->pending--;
    reuse->done_count--;
  }
}

/* Whether a fence may be recorded now. */
static bool fence_due_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse_captured_locked(reuse) || reuse->pending == REUSE_FENCES)
    return false;
  return reuse->pending == 0 || now_ns() - reuse->recorded_ns >= REUSE_FENCE_PAUSE_NS;
}

/* Whether all peers that can use memory of the context are companions.  Asked after the epoch was closed: a peer that
 * gets access later is used by nothing that was freed by then.  If not, reuse->peer is one that is to be made so, with
 * the lock left, or NULL if that is not known.  The context is current. */
static CUresult peers_known_locked(struct reuse *reuse, bool *known) {
  lock_held(&reuse->lock);
  const struct driver *driver = reuse->source.context.driver;
  CUresult result = CUDA_SUCCESS;
  reuse->peer = NULL;
  if (reuse->used && peer_possible(driver)) /* else nothing was freed that a peer could use */
    result = peer_find(driver, &reuse->probe, reuse_has_companion, reuse, &reuse->peer);
  *known = result == CUDA_SUCCESS && reuse->peer == NULL;
  return result;
}

static void fence_record_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  const struct context *context = &reuse->source.context;
  const struct driver *driver = context->driver;
  unsigned place = (reuse->first + reuse->pending) % REUSE_FENCES;
  struct reuse_fence *fence = &reuse->fences[place];
  CUresult result = CUDA_SUCCESS;
  bool known;
  if (fence->event == NULL)
    result = driver->cuEventCreate(&fence->event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) {
    (void)driver_error(driver, result, "cuEventCreate");
    return;
  }
  fence->epoch = epoch_close(reuse);
  (void)peers_known_locked(reuse, &known);
  if (!known) /* the epoch is closed without a fence, and the next look sets one */
    return;
  companions_need_locked(reuse, place);
  result = driver->cuCtxRecordEvent(context->handle, fence->event);
  if (reuse->pending > 0 || result != CUDA_SUCCESS)
    reuse->recorded_ns = now_ns();
  if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT)
    (void)error_set((cudaError_t)result,
                    "a stream is being captured without MAM_CaptureBegin: a fence ended the capture");
  else if (result != CUDA_SUCCESS)
    (void)driver_error(driver, result, "cuCtxRecordEvent");
  else {
    reuse->pending++;
    reuse->fence_count++;
  }
}

/* Asks about fences, and sets one if none is under way that covers the epoch.  alone: of the work of this context, as a
 * companion needs it. */
static void advance_locked(struct reuse *reuse, uint64_t epoch, bool alone) {
  lock_held(&reuse->lock);
  struct entry entry;
  if (!fence_enter(reuse, &entry))
    return;
  fences_ask_locked(reuse);
  bool covered = epoch < reuse_epoch(reuse); /* closed: a fence of it is pending, or failed to be recorded */
  bool none = alone ? reuse->pending == reuse->done_count : reuse->pending == 0;
  if ((alone ? reuse_done(reuse) : reuse_passed(reuse)) < epoch && (!covered || none) && fence_due_locked(reuse)) {
    fence_record_locked(reuse);
    fences_ask_locked(reuse); /* an idle GPU is done at once */
  }
  fence_leave(reuse, &entry);
}

/* No GPU work uses plain host memory: every epoch has passed as soon as it is closed. */
static void host_advance_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse->source.operations == &source_host)
    epoch_pass_locked(reuse, epoch_close(reuse));
}

static bool reach_alone(struct reuse *reuse, uint64_t epoch) {
  mutex_lock(&reuse->lock);
  if (reuse_passed(reuse) < epoch) {
    if (reuse_can_fence(reuse))
      advance_locked(reuse, epoch, false);
    else
      host_advance_locked(reuse);
  }
  bool reached = reuse_passed(reuse) >= epoch;
  pthread_mutex_unlock(&reuse->lock);
  return reached;
}

/* Asks about the work of a companion, as far as a fence needs it.  The work of a context that is gone is over. */
static void companion_ask(struct reuse *reuse, uint64_t epoch) {
  mutex_lock(&reuse->lock);
  if (!context_lives(&reuse->source.context))
    epoch_done_locked(reuse, epoch);
  else if (reuse_done(reuse) < epoch)
    advance_locked(reuse, epoch, true);
  pthread_mutex_unlock(&reuse->lock);
}

/* The reuse of the companion at a place in the list, and what the oldest fence needs of it; NULL after the last.
 * The caller may have ceased to be a user, so it must not hold on to a companion without the lock.  A struct reuse is
 * never freed. */
static struct reuse *companion_at(struct reuse *reuse, unsigned index, uint64_t *need) {
  struct reuse *other = NULL;
  mutex_lock(&reuse->lock);
  const struct reuse_companion *companion = reuse_companions_first(reuse);
  for (; companion != NULL && index > 0; index--)
    companion = companion->next;
  if (companion != NULL) {
    *need = reuse->pending > 0 ? companion->needs[reuse->first] : 0;
    other = companion->reuse;
  }
  pthread_mutex_unlock(&reuse->lock);
  return other;
}

/* Asks about what the oldest fence needs of companions, each with no other's lock held.  Whether it all is done. */
static bool companions_ask(struct reuse *reuse) {
  struct reuse *other;
  uint64_t need;
  bool done = true;
  for (unsigned i = 0; (other = companion_at(reuse, i, &need)) != NULL; i++) {
    if (reuse_done(other) < need)
      companion_ask(other, need);
    done = done && reuse_done(other) >= need;
  }
  return done;
}

/* Makes the peer a companion that was found while a fence was set.  Whether there was one. */
static bool peer_accompany(struct reuse *reuse) {
  mutex_lock(&reuse->lock);
  CUcontext peer = reuse->peer;
  reuse->peer = NULL;
  pthread_mutex_unlock(&reuse->lock);
  return peer != NULL && reuse_accompany(reuse, peer) == cudaSuccess;
}

bool reuse_reach(struct reuse *reuse, uint64_t epoch) {
  if (reuse_passed(reuse) >= epoch)
    return true;
  LIBRARY_CALL; /* quick ways come here, too */
  if (reach_alone(reuse, epoch))
    return true;
  if (peer_possible(reuse->source.context.driver))
    while (peer_accompany(reuse))
      if (reach_alone(reuse, epoch))
        return true;
  bool asks = reuse_companions_first(reuse) != NULL && reuse_can_fence(reuse);
  return asks && companions_ask(reuse) && reach_alone(reuse, epoch);
}

/* Whether the GPU may be given time, after so many fences that were not. */
static bool haste_over(struct reuse *reuse) {
  mutex_lock(&reuse->lock);
  bool over = reuse->haste == 0;
  reuse->haste -= !over;
  pthread_mutex_unlock(&reuse->lock);
  return over;
}

static void haste_set(struct reuse *reuse, bool quick) {
  mutex_lock(&reuse->lock);
  reuse->haste_next = quick ? 0 : reuse->haste_next < REUSE_HASTE_MOST ? 2 * reuse->haste_next + 1 : REUSE_HASTE_MOST;
  reuse->haste = reuse->haste_next;
  pthread_mutex_unlock(&reuse->lock);
}

bool reuse_reach_soon(struct reuse *reuse, uint64_t epoch) {
  bool reached = reuse_reach(reuse, epoch);
  if (reached || !reuse_can_fence(reuse) || !haste_over(reuse))
    return reached;
  int64_t start_ns = now_ns(), spent_ns = 0;
  while (!reached && spent_ns < REUSE_SOON_NS) {
    reached = reuse_reach(reuse, epoch);
    spent_ns = now_ns() - start_ns;
  }
  haste_set(reuse, reached && spent_ns < REUSE_QUICK_NS);
  return reached;
}

/* Waits by cuCtxSynchronize; no capture begins meanwhile.  Leaves the lock. */
static cudaError_t quiet_wait_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  reuse->synchronizing++;
  pthread_mutex_unlock(&reuse->lock);
  cudaError_t error = reuse->source.operations->synchronize(&reuse->source);
  pthread_mutex_lock(&reuse->lock);
  if (--reuse->synchronizing == 0)
    (void)pthread_cond_broadcast(&reuse->quiet);
  return error;
}

/* Waits for the work of one context; *epoch: up to which it is done then. */
static cudaError_t synchronize_alone(struct reuse *reuse, uint64_t *epoch) {
  pthread_mutex_lock(&reuse->lock);
  bool frees = reuse_may_free_to_wait_locked(reuse);
  if (!frees && reuse_captured_locked(reuse)) {
    pthread_mutex_unlock(&reuse->lock);
    return error_set(cudaErrorStreamCaptureUnsupported,
                     "a wait for the GPU is needed, and would invalidate the stream capture in progress");
  }
  *epoch = epoch_close(reuse);
  cudaError_t error = frees ? reuse_free_to_wait_locked(reuse) : quiet_wait_locked(reuse);
  if (error == cudaSuccess)
    epoch_done_locked(reuse, *epoch);
  pthread_mutex_unlock(&reuse->lock);
  return error;
}

/* Makes all peers companions, after the epoch was closed. */
static cudaError_t peers_meet(struct reuse *reuse) {
  const struct context *context = &reuse->source.context;
  struct context_visit visit;
  CUresult result;
  bool known;
  if (!peer_possible(context->driver))
    return cudaSuccess;
  do {
    pthread_mutex_lock(&reuse->lock);
    cudaError_t error = context_enter(context, &visit);
    if (error == cudaSuccess) {
      result = peers_known_locked(reuse, &known);
      context_leave(context, &visit);
    }
    pthread_mutex_unlock(&reuse->lock);
    if (error != cudaSuccess)
      return error;
    if (result != CUDA_SUCCESS)
      return driver_error(context->driver, result, "asking which devices use memory by peer access");
  } while (!known && peer_accompany(reuse));
  return known ? cudaSuccess : error_set(cudaErrorMemoryAllocation, "the host has no memory for a peer's work");
}

cudaError_t reuse_synchronize(struct reuse *reuse) {
  uint64_t epoch, other_epoch, need;
  cudaError_t error = synchronize_alone(reuse, &epoch);
  if (error == cudaSuccess)
    error = peers_meet(reuse);
  struct reuse *other;
  for (unsigned i = 0; error == cudaSuccess && (other = companion_at(reuse, i, &need)) != NULL; i++) {
    error = synchronize_alone(other, &other_epoch);
    if (error == cudaErrorContextIsDestroyed) /* its work is over */
      error = cudaSuccess;
  }
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&reuse->lock);
  epoch_pass_locked(reuse, epoch);
  pthread_mutex_unlock(&reuse->lock);
  return cudaSuccess;
}

uint64_t reuse_wait_begin(struct reuse *reuse) { return epoch_close(reuse); }

void reuse_wait_end(struct reuse *reuse, uint64_t epoch) {
  pthread_mutex_lock(&reuse->lock);
  bool alone = reuse_companions_first(reuse) == NULL && !(reuse->used && peer_possible(reuse->source.context.driver));
  if (alone)
    epoch_pass_locked(reuse, epoch);
  else /* work of companions may go on, and of peers that only a fence finds */
    epoch_done_locked(reuse, epoch);
  pthread_mutex_unlock(&reuse->lock);
}

void reuse_counts(struct reuse *reuse, uint64_t *fences) {
  pthread_mutex_lock(&reuse->lock);
  *fences = reuse->fence_count;
  pthread_mutex_unlock(&reuse->lock);
}

bool reuse_passes_by_itself(const struct reuse *reuse) {
  return reuse->source.operations == &source_host || reuse_can_fence(reuse);
}

/* ---- Captures ---- */

static bool capturing_alone(struct reuse *reuse) {
  pthread_mutex_lock(&reuse->lock);
  bool capturing = !reuse_may_free_to_wait_locked(reuse) && reuse_captured_locked(reuse);
  pthread_mutex_unlock(&reuse->lock);
  return capturing;
}

bool reuse_capturing(struct reuse *reuse) {
  struct reuse *other;
  uint64_t need;
  bool capturing = capturing_alone(reuse);
  for (unsigned i = 0; !capturing && (other = companion_at(reuse, i, &need)) != NULL; i++)
    capturing = capturing_alone(other);
  return capturing;
}
