/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_service.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/forking.h"
#include "base/helper.h"
#include "base/locked.h"

/* The thread looks at the word after so long; */
enum { NAP_US = 50 };

/* when the word has not changed for so long, each nap is twice the one before, */
enum { AWAKE_US = 20000 };

/* up to this. */
enum { NAP_MOST_US = 5000 };

/* At exit the process waits for a service for so long at most: an exit must not hang. */
enum { EXIT_WAIT_US = 1000000 };

struct heap_service {
  struct heap_service *next; /* protected by services_lock */

  /* Constant. */
  const uint64_t *word;
  struct heap_service_work work;
  void *closure;
  pid_t process;
  pthread_t thread;
  uint64_t first; /* what the word was at the beginning */

  pthread_mutex_t lock; /* protects what follows */
  pthread_cond_t changed;
  bool stopping, ended;
  bool joined; /* at exit */
};

/* Last in the lock order but for a service's own lock.  While it is held, nothing is called but what stops a service at
 * exit. */
static pthread_mutex_t services_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heap_service *services; /* protected by services_lock */

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static uint64_t now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static struct timespec moment(uint64_t us) {
  return (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
}

static int condition_init(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  int error = pthread_condattr_init(&attributes);
  if (error != 0)
    return error;
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  error = pthread_cond_init(condition, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  return error;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* Rests until then; whether the service goes on. */
static bool rest(struct heap_service *service, uint64_t until_us) {
  struct timespec until = moment(until_us);
  pthread_mutex_lock(&service->lock);
  int waited = 0;
  while (!service->stopping && waited == 0)
    waited = pthread_cond_timedwait(&service->changed, &service->lock, &until);
  bool goes_on = !service->stopping;
  pthread_mutex_unlock(&service->lock);
  return goes_on;
}

static void listen_to(struct heap_service *service) {
  uint64_t last = service->first, awake_until_us = now_us() + AWAKE_US, retry_us = 0, nap_us = NAP_US;
  enum heap_answer answer = HEAP_ANSWER_DONE;
  while (answer != HEAP_ANSWER_END) {
    /* relaxed: the word is all that is said.  Pairs with mam__growth_ring. */
    uint64_t word = __atomic_load_n(service->word, __ATOMIC_RELAXED), now = now_us();
    bool rung = word != last;
    if (rung || (retry_us != 0 && now >= retry_us)) {
      last = word;
      answer = rung ? service->work.answer(service->closure, word) : service->work.retry(service->closure);
      now = now_us();
      retry_us = answer == HEAP_ANSWER_LATER ? now + (uint64_t)HEAP_SERVICE_RETRY_MS * 1000 : 0;
      awake_until_us = rung ? now + AWAKE_US : awake_until_us;
    } else if (!service->work.lives(service->closure))
      return;
    nap_us = now < awake_until_us ? NAP_US : 2 * nap_us < NAP_MOST_US ? 2 * nap_us : NAP_MOST_US;
    if (!rest(service, now + nap_us))
      return;
  }
}

static void *run(void *argument) {
  struct heap_service *service = argument;
  listen_to(service);
  pthread_mutex_lock(&service->lock);
  service->ended = true;
  pthread_cond_broadcast(&service->changed);
  pthread_mutex_unlock(&service->lock);
  helper_end();
  return NULL;
}

/* ---- The process ------------------------------------------------------------------------------------------------- */

/* The driver is torn down after this and must not be called then.  A service waits for nothing for long; if one does
 * all the same, the exit goes on without it. */
static void end_of_process(void) {
  struct timespec until = moment(now_us() + EXIT_WAIT_US);
  pthread_mutex_lock(&services_lock);
  for (struct heap_service *service = services; service != NULL; service = service->next) {
    if (service->process != getpid()) /* a child without fork handlers: the lock may be the parent's thread's */
      continue;
    pthread_mutex_lock(&service->lock);
    service->stopping = true;
    pthread_cond_broadcast(&service->changed);
    int waited = 0;
    while (!service->ended && waited == 0)
      waited = pthread_cond_timedwait(&service->changed, &service->lock, &until);
    service->joined = service->ended;
    pthread_mutex_unlock(&service->lock);
    if (service->joined)
      (void)pthread_join(service->thread, NULL);
  }
  pthread_mutex_unlock(&services_lock);
}

static void hold(void) { pthread_mutex_lock(&services_lock); }

/* In the child no service runs, and its lock may be some thread's that is not there: it is forgotten. */
static void let_go(bool in_child) {
  lock_held(&services_lock);
  if (in_child)
    services = NULL;
  pthread_mutex_unlock(&services_lock);
}

static void set_up(void) {
  static const struct fork_functions functions = {hold, let_go};
  (void)atexit(end_of_process);
  fork_join(FORK_HEAP_SERVICES, &functions);
}

/* ---- Starting and stopping --------------------------------------------------------------------------------------- */

struct heap_service *heap_service_start(const uint64_t *word, const struct heap_service_work *work, void *closure) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct heap_service *service = calloc(1, sizeof *service);
  (void)pthread_once(&once, set_up);
  if (service == NULL)
    return NULL;
  service->word = word;
  service->first = __atomic_load_n(word, __ATOMIC_RELAXED); /* relaxed: as in listen_to */
  service->work = *work;
  service->closure = closure;
  service->process = getpid();
  if (condition_init(&service->changed) != 0)
    goto release;
  (void)pthread_mutex_init(&service->lock, NULL);
  pthread_mutex_lock(&services_lock); /* no fork between the thread's beginning and its being known */
  if (helper_start(&service->thread, run, service) != 0) {
    pthread_mutex_unlock(&services_lock);
    (void)pthread_mutex_destroy(&service->lock);
    (void)pthread_cond_destroy(&service->changed);
    goto release;
  }
  service->next = services;
  services = service;
  pthread_mutex_unlock(&services_lock);
  return service;

release:
  free(service);
  return NULL;
}

void heap_service_stop(struct heap_service *service) {
  if (service->process != getpid())
    return;
  pthread_mutex_lock(&services_lock);
  struct heap_service **link = &services;
  while (*link != NULL && *link != service)
    link = &(*link)->next;
  if (*link != NULL)
    *link = service->next;
  pthread_mutex_unlock(&services_lock);
  pthread_mutex_lock(&service->lock);
  service->stopping = true;
  pthread_cond_broadcast(&service->changed);
  pthread_mutex_unlock(&service->lock);
  if (!service->joined)
    (void)pthread_join(service->thread, NULL);
  (void)pthread_mutex_destroy(&service->lock);
  (void)pthread_cond_destroy(&service->changed);
  free(service);
}
