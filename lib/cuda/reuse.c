/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/reuse.h"

#include <stdlib.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/locked.h"
#include "base/mutex.h"

static _Atomic(struct reuse *) all;                          /* appended to under all_lock, never shortened */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, users, holders; before a reuse's lock */

/* acquire: the content of the first; pairs with the release in reuse_new */
static struct reuse *reuse_first(void) { return atomic_load_explicit(&all, memory_order_acquire); }

/* A fence on an idle GPU is done after so long (H200). */
enum { REUSE_QUICK_NS = 5000 };

/* reuse_reach_soon waits for so long at most: a growth of a pool, which it may save, takes ten times as long. */
enum { REUSE_SOON_NS = 10000 };

/* After a fence that was not quick, the GPU has work to do, and the next fences are not waited for: one after the first
 * such fence, then about twice as many each time, up to this number. */
enum { REUSE_HASTE_MOST = 63 };

/* ---- Open and close ---- */

static struct reuse *reuse_new(void) {
  struct reuse *reuse = aligned_alloc(_Alignof(struct reuse), sizeof *reuse);
  if (reuse == NULL)
    return NULL;
  *reuse = (struct reuse){.next = reuse_first()};
  atomic_init(&reuse->epoch, 1);
  (void)pthread_mutex_init(&reuse->lock, NULL);
  (void)pthread_cond_init(&reuse->quiet, NULL);
  /* release: publishes the new one; pairs with the acquire in reuse_first */
  atomic_store_explicit(&all, reuse, memory_order_release);
  return reuse;
}

static bool reuse_is_idle(const struct reuse *reuse) { return reuse->users == 0 && reuse->holders == 0; }

static bool reuse_serves(const struct reuse *reuse, const struct source *source) {
  bool known = source->context.id != 0 || source->operations == &source_host;
  return !reuse_is_idle(reuse) && known && reuse->source.context.id == source->context.id;
}

static struct reuse *reuse_pick_locked(const struct source *source) {
  lock_held(&all_lock);
  struct reuse *idle = NULL, *reuse;
  for (reuse = reuse_first(); reuse != NULL; reuse = reuse->next) {
    if (reuse_serves(reuse, source))
      return reuse;
    idle = reuse_is_idle(reuse) ? reuse : idle;
  }
  return idle != NULL ? idle : reuse_new();
}

/* The reuse of the source's context: the one it has, or an idle or new one, which becomes that context's. */
static struct reuse *reuse_get_locked(const struct source *source) {
  lock_held(&all_lock);
  struct reuse *reuse = reuse_pick_locked(source);
  if (reuse == NULL || !reuse_is_idle(reuse))
    return reuse;
  pthread_mutex_lock(&reuse->lock);
  reuse->source = *source;
  reuse->source.context.retained = false; /* the users' references keep it */
  reuse->pending = reuse->done_count = reuse->captures = 0;
  reuse->noticed = NULL;
  reuse->peer = NULL;
  reuse->fence_count = 0;
  pthread_mutex_unlock(&reuse->lock);
  return reuse;
}

/* A pool has none of its memory yet: what is freed of it is covered by fences that find its peers. */
static void use_begin_locked(struct reuse *reuse, const struct source *source) {
  lock_held(&all_lock);
  pthread_mutex_lock(&reuse->lock);
  reuse->used = true;
  reuse->probe.open |= source->peer_count > 0;
  pthread_mutex_unlock(&reuse->lock);
}

/* The last user goes; what peers were asked about is for the caller to give back. */
static struct peer_probe probe_take_locked(struct reuse *reuse) {
  lock_held(&all_lock);
  pthread_mutex_lock(&reuse->lock);
  struct peer_probe probe = reuse->probe;
  reuse->probe = (struct peer_probe){0};
  reuse->used = false;
  pthread_mutex_unlock(&reuse->lock);
  return probe;
}

struct reuse *reuse_open(const struct source *source) {
  pthread_mutex_lock(&all_lock);
  struct reuse *reuse = reuse_get_locked(source);
  if (reuse != NULL) {
    reuse->users++;
    use_begin_locked(reuse, source);
  }
  pthread_mutex_unlock(&all_lock);
  return reuse;
}

static void events_destroy_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  const struct context *context = &reuse->source.context;
  struct context_visit visit;
  bool entered = context->driver != NULL && context_lives(context) && context_enter(context, &visit) == cudaSuccess;
  for (unsigned i = 0; i < REUSE_FENCES; i++) {
    if (entered && reuse->fences[i].event != NULL)
      (void)context->driver->cuEventDestroy(reuse->fences[i].event);
    reuse->fences[i].event = NULL;
  }
  reuse->pending = reuse->done_count = 0;
  if (entered)
    context_leave(context, &visit);
}

static void reuse_end_if_idle_locked(struct reuse *reuse) {
  lock_held(&all_lock);
  if (!reuse_is_idle(reuse))
    return;
  pthread_mutex_lock(&reuse->lock);
  events_destroy_locked(reuse);
  pthread_mutex_unlock(&reuse->lock);
}

/* The reuse has lost its last user.  Its own fences are needed by no pool, so they need no companions. */
static void companions_leave_locked(struct reuse *reuse) {
  lock_held(&all_lock);
  struct reuse_companion *companion, *next;
  pthread_mutex_lock(&reuse->lock);
  companion = atomic_load_explicit(&reuse->companions, memory_order_relaxed); /* relaxed: written under the lock */
  atomic_store_explicit(&reuse->companions, NULL, memory_order_relaxed);      /* relaxed: no user is left to read it */
  pthread_mutex_unlock(&reuse->lock);
  for (; companion != NULL; companion = next) {
    next = companion->next;
    companion->reuse->holders--;
    reuse_end_if_idle_locked(companion->reuse);
    free(companion);
  }
}

/* The driver waits for the GPU before it takes memory back: no lock is held. */
static void probe_give(const struct context *context, struct peer_probe probe) {
  struct context_visit visit;
  if (probe.address == 0 || !context_lives(context) || context_enter(context, &visit) != cudaSuccess)
    return;
  peer_probe_end(context->driver, &probe);
  context_leave(context, &visit);
}

void reuse_close(struct reuse *reuse) {
  struct peer_probe probe = {0};
  pthread_mutex_lock(&all_lock);
  const struct context context = reuse->source.context;
  if (--reuse->users == 0) {
    probe = probe_take_locked(reuse);
    companions_leave_locked(reuse);
    reuse_end_if_idle_locked(reuse);
  }
  pthread_mutex_unlock(&all_lock);
  probe_give(&context, probe);
}

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

/* Brackets of captures that are open in any context: what a capture forbids its thread, it forbids in all. */
static _Atomic unsigned captures_open;

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
  /* relaxed: a thread that captures has opened its bracket itself, or been told of it */
  bool captures = atomic_load_explicit(&captures_open, memory_order_relaxed) > 0 || reuse->noticed != NULL;
  if (!captures && context->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle)
    return true;
  entry->pushed = context_enter(context, &entry->visit) == cudaSuccess;
  return entry->pushed;
}

static void fence_leave(const struct reuse *reuse, const struct entry *entry) {
  if (entry->pushed)
    context_leave(&reuse->source.context, &entry->visit);
}

static struct reuse_companion *companions_first(const struct reuse *reuse) {
  /* acquire: the companion; pairs with the release in companion_add_locked */
  return atomic_load_explicit(&reuse->companions, memory_order_acquire);
}

/* A companion whose work is not done as far as the oldest fence needs it, NULL if there is none. */
static struct reuse_companion *companion_behind_locked(const struct reuse *reuse) {
  lock_held(&reuse->lock);
  struct reuse_companion *companion = companions_first(reuse);
  while (companion != NULL && reuse_done(companion->reuse) >= companion->needs[reuse->first])
    companion = companion->next;
  return companion;
}

/* What the fence at a place needs of the companions, from now on. */
static void companions_need_locked(struct reuse *reuse, unsigned place) {
  lock_held(&reuse->lock);
  struct reuse_companion *companion = companions_first(reuse);
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

/* Whether a fence or a wait would invalidate a capture, as far as is known.  Inside brackets no stream is asked for:
 * its owner may be ending the capture or destroying the stream, and the driver does not bear that. */
static bool capturing_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse->captures > 0)
    return true;
  if (reuse->noticed != NULL && !context_stream_captures(reuse->source.context.driver, reuse->noticed))
    reuse->noticed = NULL;
  return reuse->noticed != NULL;
}

/* Whether a fence may be recorded now. */
static bool fence_due_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (capturing_locked(reuse) || reuse->pending == REUSE_FENCES)
    return false;
  return reuse->pending == 0 || now_ns() - reuse->recorded_ns >= REUSE_FENCE_PAUSE_NS;
}

static bool companion_known(const void *caller, uint64_t id) {
  const struct reuse_companion *companion = companions_first(caller);
  while (companion != NULL && companion->reuse->source.context.id != id)
    companion = companion->next;
  return companion != NULL;
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
    result = peer_find(driver, &reuse->probe, companion_known, reuse, &reuse->peer);
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
  const struct reuse_companion *companion = companions_first(reuse);
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
  NOT_CANCELLED; /* quick ways come here, too */
  if (reach_alone(reuse, epoch))
    return true;
  if (peer_possible(reuse->source.context.driver))
    while (peer_accompany(reuse))
      if (reach_alone(reuse, epoch))
        return true;
  bool asks = companions_first(reuse) != NULL && reuse_can_fence(reuse);
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

/* Waits for the work of one context; *epoch: up to which it is done then. */
static cudaError_t synchronize_alone(struct reuse *reuse, uint64_t *epoch) {
  pthread_mutex_lock(&reuse->lock);
  if (capturing_locked(reuse)) {
    pthread_mutex_unlock(&reuse->lock);
    return error_set(
        (cudaError_t)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "only memory that waits for the GPU is left, and a wait would invalidate the stream capture in progress");
  }
  *epoch = epoch_close(reuse);
  reuse->synchronizing++;
  pthread_mutex_unlock(&reuse->lock);
  cudaError_t error = reuse->source.operations->synchronize(&reuse->source);
  pthread_mutex_lock(&reuse->lock);
  if (error == cudaSuccess)
    epoch_done_locked(reuse, *epoch);
  if (--reuse->synchronizing == 0)
    (void)pthread_cond_broadcast(&reuse->quiet);
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
  if (companions_first(reuse) == NULL)
    epoch_pass_locked(reuse, epoch);
  else /* whose work may go on */
    epoch_done_locked(reuse, epoch);
  pthread_mutex_unlock(&reuse->lock);
}

/* ---- Companions ---- */

static void companion_add_locked(struct reuse *reuse, struct reuse_companion *companion, struct reuse *other) {
  lock_held(&all_lock);
  pthread_mutex_lock(&reuse->lock);
  *companion = (struct reuse_companion){.next = companions_first(reuse), .reuse = other};
  /* release: publishes it; pairs with the acquire in companions_first */
  atomic_store_explicit(&reuse->companions, companion, memory_order_release);
  pthread_mutex_unlock(&reuse->lock);
  other->holders++;
}

cudaError_t reuse_accompany(struct reuse *reuse, CUcontext handle) {
  const struct driver *driver = driver_known();
  struct source source = {.operations = &source_device, .context = {.driver = driver, .handle = handle}};
  if (driver == NULL || handle == NULL)
    return cudaSuccess;
  CUresult result = context_handle_id(driver, handle, &source.context.id);
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) /* and its work is over */
    return cudaSuccess;
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxGetId");
  pthread_mutex_lock(&all_lock);
  bool known = source.context.id == reuse->source.context.id || companion_known(reuse, source.context.id);
  struct reuse_companion *companion = known ? NULL : malloc(sizeof *companion);
  struct reuse *other = companion != NULL ? reuse_get_locked(&source) : NULL;
  bool adds = other != NULL && reuse->users > 0;
  if (adds)
    companion_add_locked(reuse, companion, other);
  else
    free(companion);
  pthread_mutex_unlock(&all_lock);
  return adds || known ? cudaSuccess
                       : error_set(cudaErrorMemoryAllocation, "the host has no memory for a context's work");
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

void reuse_capture_begin(struct reuse *reuse) {
  pthread_mutex_lock(&reuse->lock); /* no fence is in the middle of being recorded */
  reuse->captures++;
  atomic_fetch_add_explicit(&captures_open, 1, memory_order_relaxed); /* relaxed: see fence_enter */
  while (reuse->synchronizing > 0)
    (void)pthread_cond_wait(&reuse->quiet, &reuse->lock);
  pthread_mutex_unlock(&reuse->lock);
}

bool reuse_capture_end(struct reuse *reuse) {
  pthread_mutex_lock(&reuse->lock);
  bool begun = reuse->captures > 0;
  if (begun) {
    reuse->captures--;
    atomic_fetch_sub_explicit(&captures_open, 1, memory_order_relaxed); /* relaxed: see fence_enter */
  }
  pthread_mutex_unlock(&reuse->lock);
  return begun;
}

void reuse_notice_capture(struct reuse *reuse, CUstream stream) {
  pthread_mutex_lock(&reuse->lock);
  if (reuse->captures == 0) /* else the bracket says when it ends, and the stream may be gone by then */
    reuse->noticed = stream;
  pthread_mutex_unlock(&reuse->lock);
}

bool reuse_capturing(struct reuse *reuse) {
  pthread_mutex_lock(&reuse->lock);
  bool capturing = capturing_locked(reuse);
  pthread_mutex_unlock(&reuse->lock);
  return capturing;
}

/* ---- Fork ---- */

void reuse_before_fork(void) {
  pthread_mutex_lock(&all_lock);
  for (struct reuse *reuse = reuse_first(); reuse != NULL; reuse = reuse->next)
    pthread_mutex_lock(&reuse->lock);
}

void reuse_after_fork(bool in_child) {
  for (struct reuse *reuse = reuse_first(); reuse != NULL; reuse = reuse->next) {
    if (in_child) {
      reuse->synchronizing = 0;
      (void)pthread_cond_init(&reuse->quiet, NULL);
    }
    pthread_mutex_unlock(&reuse->lock);
  }
  pthread_mutex_unlock(&all_lock);
}
