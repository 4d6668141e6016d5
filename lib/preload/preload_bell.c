/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that a pool of another process keeps.  With the driver alone, memory that one process frees is there for the
 * next at once.  So a process that finds no memory rings a bell, and the other served processes of its user give back
 * what lies free.
 *
 *   the process that rings         the bell (/dev/shm/mam-preload-UID)       each process that listens
 *   raises rings             ---->  rings    answers   gifts    ---->        wakes, gives back memory
 *   waits for the answers    <----  places: locks of the file   <----        raises gifts if it gave, and answers
 *
 * The bell is a file, and a struct in its memory that the processes share.  Each served process has locked one byte of
 * the file, its place, and has a thread that sleeps until the bell is rung.  A process that ends in whatever way, or
 * becomes another program, loses its place: the lock is that of a descriptor.
 *
 * A program can write anything into the bell.  That makes processes of its own user give back memory that lies free, or
 * wait for RING_MS; it can do no other harm.
 *
 * The bell of a device heap is something else (lib/heap).
 */
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

/* How many processes can listen at a time.  Others are not asked, and cannot ask. */
enum { PLACES = 256 };

struct bell {
  _Atomic uint32_t rings;      /* how often it was rung */
  _Atomic uint32_t answers;    /* of all listeners to all rings */
  _Atomic uint32_t gifts;      /* the answers of listeners that gave back memory */
  _Atomic int64_t wait_end_ns; /* when the last listener that waits for its GPU gives up (now_ns, of the machine) */
};

enum {
  /* A process that rings waits for answers no longer than this, because a listener may be stopped. */
  RING_MS = 100,
  /* A listener whose freed memory still waits for its GPU tries for so long to give it.  The driver's own free would
   * have waited for the GPU, however long. */
  WAIT_MS = 1000,
  /* It sleeps so long between two tries. */
  TRY_US = 1000,
  /* A listener looks for memory once in this time, so that rings cannot keep it busy.  A ring waits for the next look.
   */
  REST_MS = 10
};

static int file;             /* the descriptor with the place, constant once a thread listens */
static struct bell *bell;    /* constant once a thread listens */
static _Atomic bool listens; /* this process has a place and a thread */

static long futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout) {
  return syscall(SYS_futex, word, FUTEX_WAIT, value, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) { (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* ---- Listening ---- */

static bool memory_waits(void) {
  struct client_totals totals;
  mam_client.totals(&totals);
  return totals.waiting_bytes > 0;
}

/* Gives back what lies free.  If there is nothing yet, but some waits for the GPU, tries again.  The GPU is not waited
 * for by a call of the driver.  Returns whether there was some. */
static bool gives(void) {
  int64_t end_ns = now_ns() + (int64_t)WAIT_MS * 1000000;
  bool given = false, waits = true;
  preload_depth++;
  /* relaxed: a program that ends is not to wait, which it may as well see later */
  while (!given && waits && now_ns() < end_ns && atomic_load_explicit(&listens, memory_order_relaxed)) {
    waits = memory_waits(); /* before the try: what passes meanwhile is given by it */
    given = mam_client.give_back(false);
    if (given || !waits)
      break;
    /* relaxed: a hint, how long to wait for the answer */
    atomic_store_explicit(&bell->wait_end_ns, end_ns, memory_order_relaxed);
    (void)usleep(TRY_US);
  }
  preload_depth--;
  return given;
}

static void rest(int64_t until_ns) {
  int64_t left_ns = until_ns - now_ns();
  struct timespec time = {.tv_nsec = left_ns};
  if (left_ns > 0)
    (void)nanosleep(&time, NULL);
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
    rest(rested_ns);
    heard = atomic_load_explicit(&bell->rings, memory_order_acquire); /* acquire: as above */
    /* acquire: pairs with the release in preload_bell_stop, after which the driver may be gone */
    if (!atomic_load_explicit(&listens, memory_order_acquire))
      return NULL;
    answer(gives());
    rested_ns = now_ns() + (int64_t)REST_MS * 1000000;
  }
}

/* ---- Setting up ---- */

/* The descriptor is no less than this, so that it takes none of the small numbers that programs expect. */
enum { FILE_LEAST = 100 };

/* Opens the bell of this user, which the first process creates.  False if that is not possible, or if the file belongs
 * to another user. */
static bool bell_open(void) {
  char path[64];
  struct stat status;
  (void)snprintf(path, sizeof path, "/dev/shm/mam-preload-%u", (unsigned)geteuid());
  int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  file = opened >= 0 ? fcntl(opened, F_DUPFD_CLOEXEC, FILE_LEAST) : -1;
  if (opened >= 0)
    (void)close(opened);
  if (file < 0)
    return false;
  void *page = MAP_FAILED;
  /* fallocate: without memory for the page the file system says so here, and not by a signal when it is used */
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
      fallocate(file, 0, 0, sizeof(struct bell)) == 0)
    page = mmap(NULL, sizeof(struct bell), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  bell = page;
  if (page == MAP_FAILED)
    (void)close(file);
  return page != MAP_FAILED;
}

/* A lock of a byte of the file, which belongs to the descriptor: an exec closes that, and so does the end of the
 * process. */
static struct flock place_lock(short type, int place) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
}

/* False if all places are taken. */
static bool place_take(void) {
  for (int i = 0; i < PLACES; i++) {
    struct flock lock = place_lock(F_WRLCK, i);
    if (fcntl(file, F_OFD_SETLK, &lock) == 0)
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
  if (!bell_open())
    return;
  /* release: publishes the bell; pairs with the acquires in preload_bell_ring and listen */
  atomic_store_explicit(&listens, true, memory_order_release);
  if (!place_take() || !listener_start())
    preload_bell_stop();
}

void preload_bell_start(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const struct options_preload *options = preload_options_get();
  if (options != NULL && options->neighbours)
    (void)pthread_once(&once, start);
}

/* In a forked child the place goes on to be the parent's, whose descriptor has the lock too. */
void preload_bell_stop(void) {
  /* exchange: of several calls one closes the file.  release: pairs with the acquire in listen */
  if (atomic_exchange_explicit(&listens, false, memory_order_acq_rel))
    (void)close(file);
}

__attribute__((destructor)) static void stop_listening(void) { preload_bell_stop(); }

/* ---- Ringing ---- */

/* How many other processes listen: have locked a byte. */
static uint32_t others_count(void) {
  uint32_t count = 0;
  for (int i = 0; i < PLACES; i++) {
    struct flock lock = place_lock(F_WRLCK, i);
    count += fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  }
  return count;
}

/* When a wait for answers ends that began at start_ns. */
static int64_t await_end_ns(int64_t start_ns) {
  int64_t end_ns = start_ns + (int64_t)RING_MS * 1000000, most_ns = end_ns + (int64_t)WAIT_MS * 1000000;
  /* relaxed: as in gives */
  int64_t wait_end_ns = atomic_load_explicit(&bell->wait_end_ns, memory_order_relaxed);
  return wait_end_ns <= end_ns ? end_ns : wait_end_ns < most_ns ? wait_end_ns : most_ns;
}

/* Waits until there are count answers more than before, for RING_MS, or as long as a listener waits for its GPU. */
static void answers_await(uint32_t before, uint32_t count) {
  int64_t start_ns = now_ns(), left_ns;
  uint32_t answers;
  /* acquire: pairs with the release in answer */
  while ((answers = atomic_load_explicit(&bell->answers, memory_order_acquire)) - before < count &&
         (left_ns = await_end_ns(start_ns) - now_ns()) > 0) {
    struct timespec timeout = {.tv_nsec = left_ns < RING_MS * 1000000 ? left_ns : RING_MS * 1000000};
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
