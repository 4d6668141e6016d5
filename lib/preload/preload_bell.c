/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that another process keeps.  With the driver alone, what a process has freed another one has at once.  So a
 * process that finds no memory rings a bell, and the others of its user that are served give back what lies free.
 *
 * The bell is a page of memory that they share, /dev/shm/mam-preload-UID.  Who is served has a place in it, by its
 * number, and a thread that sleeps until the bell is rung; it calls nothing else.  A process that has died leaves its
 * place to be cleared by the next one that rings.  Nothing is believed of what stands in the page but that: who writes
 * nonsense into it makes their own processes give back memory, or wait for RING_MS.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "preload/preload.h"

enum { PLACES = 256 };
struct bell {
  _Atomic uint32_t rings;   /* how often it was rung */
  _Atomic uint32_t answers; /* of all listeners to all rings, */
  _Atomic uint32_t gifts;   /* and those that gave something */
  _Atomic int32_t places[PLACES];
};

/* How long an answer is waited for; how often and how long after each other a listener tries while what it freed waits
 * for its GPU; and how long it rests, whoever rings. */
enum { RING_MS = 100, TRIES = 5, TRY_US = 1000, REST_MS = 10 };

static struct bell *bell; /* constant once a thread listens */
static _Atomic bool listens;

static long futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, FUTEX_WAIT, value, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) { (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* ---- Listening ---- */

static bool gives(void) {
  bool given = false;
  preload_depth++;
  for (int i = 0; i < TRIES && !given; i++) {
    if (i > 0)
      (void)usleep(TRY_US);
    given = mam_client.give_back(false);
  }
  preload_depth--;
  return given;
}

static void answer(bool given) {
  /* release: the memory is the driver's again; pairs with the acquires of the thread that rings */
  atomic_fetch_add_explicit(&bell->gifts, given, memory_order_release);
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

static void *listen(void *unused) {
  (void)unused;
  int64_t rested_ns = 0;
  /* acquire: nothing but the number is read; so that the next look is later */
  for (uint32_t heard = atomic_load_explicit(&bell->rings, memory_order_acquire);;) {
    uint32_t rings = atomic_load_explicit(&bell->rings, memory_order_acquire);
    if (rings == heard) {
      (void)futex_wait(&bell->rings, heard, NULL);
      continue;
    }
    heard = rings;
    /* acquire: pairs with the release in stop_listening: from then on the driver may be gone */
    if (!atomic_load_explicit(&listens, memory_order_acquire))
      return NULL;
    answer(now_ns() >= rested_ns && gives());
    rested_ns = now_ns() + (int64_t)REST_MS * 1000000;
  }
}

/* ---- Setting up ---- */

/* The page of this user, NULL if there can be none. */
static struct bell *bell_map(void) {
  char path[64];
  struct stat file;
  (void)snprintf(path, sizeof path, "/dev/shm/mam-preload-%u", (unsigned)geteuid());
  int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  void *page = MAP_FAILED;
  if (descriptor < 0)
    return NULL;
  if (fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
      (file.st_size >= (off_t)sizeof(struct bell) || ftruncate(descriptor, sizeof(struct bell)) == 0))
    page = mmap(NULL, sizeof(struct bell), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  (void)close(descriptor);
  return page != MAP_FAILED ? page : NULL;
}

/* Takes this process out of the page.  relaxed, here and below: a number that says who may answer. */
static void place_leave(void) {
  for (int i = 0; i < PLACES; i++) {
    int32_t own = getpid();
    (void)atomic_compare_exchange_strong_explicit(&bell->places[i], &own, 0, memory_order_relaxed,
                                                  memory_order_relaxed);
  }
}

static bool place_take(void) {
  place_leave(); /* from before an exec */
  for (int i = 0; i < PLACES; i++) {
    int32_t nobody = 0;
    if (atomic_compare_exchange_strong_explicit(&bell->places[i], &nobody, getpid(), memory_order_relaxed,
                                                memory_order_relaxed))
      return true;
  }
  return false;
}

static bool listener_start(void) {
  pthread_t thread;
  pthread_attr_t attributes;
  sigset_t all, before;
  if (pthread_attr_init(&attributes) != 0)
    return false;
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&thread, &attributes, listen, NULL) == 0;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  (void)pthread_attr_destroy(&attributes);
  return started;
}

static void start(void) {
  bell = bell_map();
  if (bell == NULL || !place_take())
    return;
  /* release: publishes the page; pairs with the acquires in preload_bell_ring and listen */
  atomic_store_explicit(&listens, true, memory_order_release);
  if (!listener_start()) {
    atomic_store_explicit(&listens, false, memory_order_release);
    place_leave();
  }
}

void preload_bell_start(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const struct options_preload *options = preload_options_get();
  if (options != NULL && options->neighbours)
    (void)pthread_once(&once, start);
}

/* At the end of the process, and in a forked child, where no thread listens. */
void preload_bell_stop(bool in_child) {
  /* exchange: one of those that stop; release: pairs with the acquire in listen */
  if (atomic_exchange_explicit(&listens, false, memory_order_acq_rel) && !in_child)
    place_leave();
}

__attribute__((destructor)) static void stop_listening(void) { preload_bell_stop(preload_is_child()); }

/* ---- Ringing ---- */

/* How many others listen.  A place of a process that is gone is cleared. */
static uint32_t others_count(void) {
  uint32_t count = 0;
  for (int i = 0; i < PLACES; i++) {
    int32_t process = atomic_load_explicit(&bell->places[i], memory_order_relaxed);
    if (process <= 0 || process == getpid())
      continue;
    if (kill(process, 0) == 0 || errno == EPERM)
      count++;
    else
      (void)atomic_compare_exchange_strong_explicit(&bell->places[i], &process, 0, memory_order_relaxed,
                                                    memory_order_relaxed);
  }
  return count;
}

/* Waits for as many answers, or for a while. */
static void answers_await(uint32_t before, uint32_t count) {
  int64_t end_ns = now_ns() + (int64_t)RING_MS * 1000000, left_ns;
  uint32_t answers;
  /* acquire: pairs with the release in answer */
  while ((answers = atomic_load_explicit(&bell->answers, memory_order_acquire)) - before < count &&
         (left_ns = end_ns - now_ns()) > 0) {
    struct timespec timeout = {.tv_nsec = left_ns};
    (void)futex_wait(&bell->answers, answers, &timeout);
  }
}

bool preload_bell_ring(void) {
  /* acquire: the page; pairs with the release in start */
  if (!atomic_load_explicit(&listens, memory_order_acquire))
    return false;
  uint32_t others = others_count();
  if (others == 0)
    return false;
  /* acquire, both: as in answers_await */
  uint32_t answers = atomic_load_explicit(&bell->answers, memory_order_acquire);
  uint32_t gifts = atomic_load_explicit(&bell->gifts, memory_order_acquire);
  /* release: the numbers above were read before */
  atomic_fetch_add_explicit(&bell->rings, 1, memory_order_acq_rel);
  futex_wake(&bell->rings);
  answers_await(answers, others + 1); /* its own thread answers as well */
  return atomic_load_explicit(&bell->gifts, memory_order_acquire) != gifts;
}
