/* SPDX-License-Identifier: BSD-2-Clause */
/* The list of all struct reuse: their users and their companions, and forks. */
#include <stdlib.h>

#include "base/error.h"
#include "base/locked.h"
#include "cuda/reuse_inside.h"

static _Atomic(struct reuse *) all;                          /* appended to under all_lock, never shortened */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, users, holders; before a reuse's lock */

/* acquire: the content of the first; pairs with the release in reuse_new */
static struct reuse *reuse_first(void) { return atomic_load_explicit(&all, memory_order_acquire); }

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

/* The reuse of the source's context: the one it has, or an idle or new one, which becomes that context's. */
static struct reuse *reuse_get_locked(const struct source *source) {
  lock_held(&all_lock);
  struct reuse *reuse = reuse_pick_locked(source);
  if (reuse == NULL || !reuse_is_idle(reuse))
    return reuse;
  pthread_mutex_lock(&reuse->lock);
  events_destroy_locked(reuse); /* a thread that asked about a companion may have set a fence after the last use */
  reuse->source = *source;
  reuse->source.context.retained = false; /* the users' references keep it */
  reuse->captures = reuse->keeping = 0;
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

/* The last user goes; what peers were asked about, and the spare block, are for the caller to give back. */
static struct peer_probe probe_take_locked(struct reuse *reuse, uintptr_t *spare) {
  lock_held(&all_lock);
  pthread_mutex_lock(&reuse->lock);
  struct peer_probe probe = reuse->probe;
  *spare = reuse->spare;
  reuse->probe = (struct peer_probe){0};
  reuse->spare = 0;
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
static void probe_give(const struct context *context, struct peer_probe probe, uintptr_t spare) {
  struct context_visit visit;
  if ((probe.address == 0 && spare == 0) || !context_lives(context) || context_enter(context, &visit) != cudaSuccess)
    return;
  peer_probe_end(context->driver, &probe);
  if (spare != 0)
    (void)context->driver->cuMemFree(spare);
  context_leave(context, &visit);
}

void reuse_close(struct reuse *reuse) {
  struct peer_probe probe = {0};
  uintptr_t spare = 0;
  pthread_mutex_lock(&all_lock);
  const struct context context = reuse->source.context;
  if (--reuse->users == 0) {
    probe = probe_take_locked(reuse, &spare);
    companions_leave_locked(reuse);
    reuse_end_if_idle_locked(reuse);
  }
  pthread_mutex_unlock(&all_lock);
  probe_give(&context, probe, spare);
}

/* ---- Companions ---- */

bool reuse_has_companion(const void *caller, uint64_t id) {
  const struct reuse_companion *companion = reuse_companions_first(caller);
  while (companion != NULL && companion->reuse->source.context.id != id)
    companion = companion->next;
  return companion != NULL;
}

static void companion_add_locked(struct reuse *reuse, struct reuse_companion *companion, struct reuse *other) {
  lock_held(&all_lock);
  pthread_mutex_lock(&reuse->lock);
  *companion = (struct reuse_companion){.next = reuse_companions_first(reuse), .reuse = other};
  /* release: publishes it; pairs with the acquire in reuse_companions_first */
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
  bool known = source.context.id == reuse->source.context.id || reuse_has_companion(reuse, source.context.id);
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

bool reuse_bracketed(uint64_t context_id) {
  bool open = false;
  pthread_mutex_lock(&all_lock);
  for (struct reuse *reuse = reuse_first(); reuse != NULL && context_id != 0; reuse = reuse->next)
    if (!reuse_is_idle(reuse) && reuse->source.context.id == context_id) {
      pthread_mutex_lock(&reuse->lock);
      open = open || reuse->captures > 0;
      pthread_mutex_unlock(&reuse->lock);
    }
  pthread_mutex_unlock(&all_lock);
  return open;
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
