/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that a pool of another process keeps.  With the driver alone, memory that one process frees is there for the
 * next at once.  So a process that finds no memory rings a bell, and the other served processes of its user give back
 * what lies free.
 *
 *   the process that rings         the bell (/dev/shm/mam-preload-UID)       each process that listens
 *   raises rings             ---->  rings    answers   gifts    ---->        wakes, gives back memory
 *   waits for the answers    <----  places: process numbers     <----        raises gifts if it gave, and answers
 *
 * The bell is a struct in memory that the processes share.  Each served process has its number in a place, and a thread
 * that sleeps until the bell is rung.  If a process dies without leaving its place, the next one that rings clears the
 * place.
 *
 * A program can write anything into the bell.  That makes processes of its own user give back memory that lies free, or
 * wait for RING_MS; it can do no other harm.
 *
 * The bell of a device heap is something else (lib/heap).
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

/* How many processes can listen at a time.  Others are not asked, and cannot ask.  The struct fits into a page. */
enum { PLACES = 256 };

struct bell {
  _Atomic uint32_t rings;         /* how often it was rung */
  _Atomic uint32_t answers;       /* of all listeners to all rings */
  _Atomic uint32_t gifts;         /* the answers of listeners that gave back memory */
  _Atomic int32_t places[PLACES]; /* process numbers, 0: free */
};

enum {
  /* A process that rings waits for answers no longer than this, because a listener may be stopped. */
  RING_MS = 100,
  /* A listener tries to give so often, because its freed memory may still wait for its GPU. */
  TRIES = 5,
  /* It sleeps so long between two tries. */
  TRY_US = 1000,
  /* For so long after an answer a listener answers without giving, so that rings cannot keep it busy. */
  REST_MS = 10
};

static struct bell *bell;    /* constant once a thread listens */
static _Atomic bool listens; /* this process has a place and a thread */

static long futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, FUTEX_WAIT, value, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) { (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* ---- Listening ---- */

/* Gives back what lies free, without a wait for the GPU.  Returns whether there was some. */
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
  /* release, both: the memory has gone back to the driver; pairs with the acquires of the thread that rings */
  atomic_fetch_add_explicit(&bell->gifts, given, memory_order_release);
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

static void *listen(void *unused) {
  (void)unused;
  int64_t rested_ns = 0;
  /* acquire: keeps this look before the next one; no other data is read by it */
  for (uint32_t heard = atomic_load_explicit(&bell->rings, memory_order_acquire);;) {
    uint32_t rings = atomic_load_explicit(&bell->rings, memory_order_acquire);
    if (rings == heard) {
      (void)futex_wait(&bell->rings, heard, NULL);
      continue;
    }
    heard = rings;
    /* acquire: pairs with the release in preload_bell_stop, after which the driver may be gone */
    if (!atomic_load_explicit(&listens, memory_order_acquire))
      return NULL;
    answer(now_ns() >= rested_ns && gives());
    rested_ns = now_ns() + (int64_t)REST_MS * 1000000;
  }
}

/* ---- Setting up ---- */

/* Maps the bell of this user, which the first process creates.  NULL if that is not possible, or if the file belongs to
 * another user. */
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

/* Takes this process out of the places.  relaxed, here and below: a place publishes no other data. */
static void place_leave(void) {
  for (int i = 0; i < PLACES; i++) {
    int32_t own = getpid();
    (void)atomic_compare_exchange_strong_explicit(&bell->places[i], &own, 0, memory_order_relaxed,
                                                  memory_order_relaxed);
  }
}

/* False if all places are taken. */
static bool place_take(void) {
  place_leave(); /* the process may have had one before an exec */
  for (int i = 0; i < PLACES; i++) {
    int32_t nobody = 0;
    if (atomic_compare_exchange_strong_explicit(&bell->places[i], &nobody, getpid(), memory_order_relaxed,
                                                memory_order_relaxed))
      return true;
  }
  return false;
}

/* The thread blocks all signals: they are for the program's own threads. */
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
  /* release: publishes the bell; pairs with the acquires in preload_bell_ring and listen */
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

/* A forked child has neither the thread nor a place. */
void preload_bell_stop(bool in_child) {
  /* exchange: of several calls one leaves the place.  release: pairs with the acquire in listen */
  if (atomic_exchange_explicit(&listens, false, memory_order_acq_rel) && !in_child)
    place_leave();
}

__attribute__((destructor)) static void stop_listening(void) { preload_bell_stop(preload_is_child()); }

/* ---- Ringing ---- */

/* How many other processes listen.  Clears the places of processes that have ended. */
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

/* Waits until there are count answers more than before, or for RING_MS. */
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
  /* acquire: the bell; pairs with the release in start */
  if (!atomic_load_explicit(&listens, memory_order_acquire))
    return false;
  uint32_t others = others_count();
  if (others == 0)
    return false;
  /* acquire, both: as in answers_await */
  uint32_t answers = atomic_load_explicit(&bell->answers, memory_order_acquire);
  uint32_t gifts = atomic_load_explicit(&bell->gifts, memory_order_acquire);
  /* release: the numbers above are read before the ring */
  atomic_fetch_add_explicit(&bell->rings, 1, memory_order_acq_rel);
  futex_wake(&bell->rings);
  answers_await(answers, others + 1); /* the thread of this process answers, too */
  return atomic_load_explicit(&bell->gifts, memory_order_acquire) != gifts;
}
