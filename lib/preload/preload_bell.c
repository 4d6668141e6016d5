/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that a pool of another process keeps.  With the driver alone, memory that one process frees is there for the
 * next at once.  So a process that finds no memory rings a bell, and the other served processes of its user give back
 * what lies free.
 *
 *   the process that rings         the bell (/dev/shm/mam-preload-UID)       each process that listens
 *   raises rings             ---->  rings    answers   gifts    ---->        wakes, gives back memory
 *   waits for a gift, or all <----  places, each with a lock    <----        raises gifts if it gave, and answers
 *
 * The bell is a file, and a struct in its memory that the processes share.  Each served process has a place in it, and
 * a thread that sleeps until the bell is rung.  It holds a place by a lock of one byte of the file, which belongs to
 * the open file: that lives as long as it is mapped, so no descriptor is kept, which a program might close, or find.  A
 * process that ends in whatever way, or becomes another program, loses its place.
 *
 * A program can write anything into the bell.  That makes processes of its own user give back memory that lies free, or
 * wait for RING_MS and WAIT_MS; it can do no other harm.
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

#include "base/cancel.h"
#include "base/clock.h"
#include "preload/preload.h"

/* How many processes can listen at a time.  Others are not asked, and cannot ask. */
enum { PLACES = 256 };

struct place {
  _Atomic uint32_t answered;   /* the last ring that its listener has answered */
  _Atomic bool left;           /* its process exits, and answers no more */
  _Atomic int64_t busy_end_ns; /* when its listener gives up to give memory back (now_ns, of the machine) */
};

struct bell {
  _Atomic uint32_t rings;   /* how often it was rung */
  _Atomic uint32_t answers; /* of all listeners to all rings */
  _Atomic uint32_t gifts;   /* the answers of listeners that gave back memory */
  struct place places[PLACES];
};

enum {
  /* A process that rings waits for an answer no longer than this, because a listener may be stopped. */
  RING_MS = 100,
  /* But so much longer for a listener that is giving memory back: cuMemFree of 70 GiB takes 50 ms.  A listener whose
   * freed memory still waits for its GPU tries for so long to give it.  The driver's own free would have waited for the
   * GPU, however long. */
  WAIT_MS = 1000,
  /* It sleeps so long between two tries. */
  TRY_US = 1000,
  /* A listener looks for memory once in this time, so that rings cannot keep it busy.  A ring waits for the next look.
   */
  REST_MS = 10
};

static ino_t file;           /* the bell's, constant once a thread listens */
static struct bell *bell;    /* constant once a thread listens */
static struct place *own;    /* this process's, constant once a thread listens */
static _Atomic bool listens; /* this process has a place and a thread */
/* Threads of this process that ring.  Relaxed: a hint. */
static _Atomic unsigned ringing;

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

/* Gives back what lies free.  If there is nothing yet, but some waits for the GPU, tries again.  A call of the driver
 * waits for the GPU only beside a capture, where no fence can tell.  Returns whether there was some.  A process that
 * rings has waited for its GPU itself. */
static bool gives(void) {
  int64_t end_ns = now_ns() + (int64_t)WAIT_MS * 1000000;
  bool given = false, waits = true;
  preload_depth++;
  /* relaxed: a hint, how long to wait for the answer */
  atomic_store_explicit(&own->busy_end_ns, end_ns, memory_order_relaxed);
  /* relaxed: a program that ends is not to wait, which it may as well see later */
  while (!given && waits && now_ns() < end_ns && atomic_load_explicit(&listens, memory_order_relaxed)) {
    waits = memory_waits(); /* before the try: what passes meanwhile is given by it */
    given = mam_client.give_back(preload_capturing());
    while (!given && preload_soft_end()) { /* it waits for the GPU, too */
      waits = true;
      given = mam_client.give_back(preload_capturing());
    }
    if (given || !waits || atomic_load_explicit(&ringing, memory_order_relaxed) > 0)
      break;
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

static void answer(uint32_t ring, bool given) {
  /* release, all: the memory has gone back to the driver, and the answer is there before it is counted; pairs with the
   * acquires of the thread that rings */
  atomic_fetch_add_explicit(&bell->gifts, given, memory_order_release);
  atomic_store_explicit(&own->answered, ring, memory_order_release);
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

static void *listen(void *unused) {
  (void)unused;
  int64_t rested_ns = 0;
  /* relaxed: this process's own place */
  for (uint32_t heard = atomic_load_explicit(&own->answered, memory_order_relaxed);;) {
    /* acquire: keeps this look before the next one; no other data is read by it */
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
    answer(heard, gives());
    rested_ns = now_ns() + (int64_t)REST_MS * 1000000;
  }
}

/* ---- Setting up ---- */

/* Opens the bell of this user, which the first process creates.  -1 if that is not possible, or if the file belongs to
 * another user. */
static int bell_open(struct stat *status) {
  char path[64];
  (void)snprintf(path, sizeof path, "/dev/shm/mam-preload-%u", (unsigned)geteuid());
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (fd >= 0 && fstat(fd, status) == 0 && S_ISREG(status->st_mode) && status->st_uid == geteuid())
    return fd;
  if (fd >= 0)
    (void)close(fd);
  return -1;
}

/* fallocate: without memory for the page the file system says so here, and not by a signal when it is used */
static bool bell_map(int fd) {
  void *page = MAP_FAILED;
  if (fallocate(fd, 0, 0, sizeof(struct bell)) == 0)
    page = mmap(NULL, sizeof(struct bell), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bell = page;
  return page != MAP_FAILED;
}

/* A lock of a byte of the file, which belongs to the open file. */
static struct flock place_lock(short type, int place) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
}

/* False if all places are taken.  Rings until now are no business of this process. */
static bool place_take(int fd) {
  for (int i = 0; i < PLACES; i++) {
    struct flock lock = place_lock(F_WRLCK, i);
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0)
      continue;
    own = &bell->places[i];
    /* relaxed, all: no other data goes by them */
    atomic_store_explicit(&own->busy_end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&own->left, false, memory_order_relaxed);
    atomic_store_explicit(&own->answered, atomic_load_explicit(&bell->rings, memory_order_relaxed),
                          memory_order_relaxed);
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
  struct stat status;
  int fd = bell_open(&status);
  if (fd < 0)
    return;
  if (bell_map(fd)) {
    file = status.st_ino;
    bool placed = place_take(fd);
    /* release: publishes the bell; pairs with the acquires in preload_bell_ring and listen */
    atomic_store_explicit(&listens, placed, memory_order_release);
    if (!placed || !listener_start()) {
      atomic_store_explicit(&listens, false, memory_order_relaxed); /* relaxed: no thread was told of it */
      (void)munmap(bell, sizeof *bell);
    }
  }
  (void)close(fd);
}

void preload_bell_start(void) {
  NOT_CANCELLED; /* opens a file */
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const struct options_preload *options = preload_options_get();
  if (options != NULL && options->neighbours)
    (void)pthread_once(&once, start);
}

/* The place is the parent's, and goes with it. */
void preload_bell_forked(void) {
  if (atomic_exchange_explicit(&listens, false, memory_order_relaxed)) /* relaxed: the child has one thread */
    (void)munmap(bell, sizeof *bell);
}

/* The listener's thread may still read the bell. */
__attribute__((destructor)) static void stop_listening(void) {
  /* release: pairs with the acquire in listen, after which the driver may be gone */
  if (!atomic_exchange_explicit(&listens, false, memory_order_acq_rel))
    return;
  atomic_store_explicit(&own->left, true, memory_order_release); /* before it is counted; pairs with await_end_ns */
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

/* ---- Ringing ---- */

/* Whether a process has the place, and answers. */
static bool is_taken(int fd, int place) {
  struct flock lock = place_lock(F_WRLCK, place);
  /* acquire: pairs with the release in stop_listening */
  return !atomic_load_explicit(&bell->places[place].left, memory_order_acquire) && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
         lock.l_type != F_UNLCK;
}

/* When the wait for an answer to a ring ends that began at start_ns.  A place that has answered, or has become free, is
 * no longer awaited. */
static int64_t await_end_ns(int fd, bool awaited[PLACES], uint32_t ring, int64_t start_ns) {
  int64_t end_ns = 0, least_ns = start_ns + (int64_t)RING_MS * 1000000, most_ns = least_ns + (int64_t)WAIT_MS * 1000000;
  for (int i = 0; i < PLACES; i++) {
    if (!awaited[i])
      continue;
    /* acquire: pairs with the release in answer.  A place may be ahead of the ring. */
    uint32_t answered = atomic_load_explicit(&bell->places[i].answered, memory_order_acquire);
    awaited[i] = (int32_t)(answered - ring) < 0 && is_taken(fd, i);
    if (!awaited[i])
      continue;
    /* relaxed: as in gives */
    int64_t busy_ns = atomic_load_explicit(&bell->places[i].busy_end_ns, memory_order_relaxed);
    int64_t its_ns = busy_ns <= least_ns ? least_ns : busy_ns < most_ns ? busy_ns : most_ns;
    end_ns = its_ns > end_ns ? its_ns : end_ns;
  }
  return end_ns;
}

static bool some_given(uint32_t gifts) {
  /* acquire: pairs with the release in answer */
  return atomic_load_explicit(&bell->gifts, memory_order_acquire) != gifts;
}

/* Waits until one gave memory, which makes the gifts another number, or each awaited place has answered the ring: for
 * RING_MS, or as long as its listener is busy.  After a gift it does not wait for the others: the process that gave
 * could take its memory again meanwhile, each time. */
static void answers_await(int fd, bool awaited[PLACES], uint32_t ring, uint32_t gifts) {
  int64_t start_ns = now_ns(), left_ns;
  for (;;) {
    /* acquire: before the looks; pairs with the release in answer */
    uint32_t answers = atomic_load_explicit(&bell->answers, memory_order_acquire);
    if (some_given(gifts) || (left_ns = await_end_ns(fd, awaited, ring, start_ns) - now_ns()) <= 0)
      return;
    struct timespec timeout = {.tv_nsec = left_ns < RING_MS * 1000000 ? left_ns : RING_MS * 1000000};
    (void)futex_wait(&bell->answers, answers, &timeout);
  }
}

/* Rings, and waits.  False if no other process has a place. */
static bool ring(int fd, bool *given) {
  bool awaited[PLACES], some = false;
  for (int i = 0; i < PLACES; i++) {
    awaited[i] = is_taken(fd, i); /* this process, too: its thread may have memory on its way to the driver */
    some |= awaited[i] && &bell->places[i] != own;
  }
  if (!some)
    return false;
  /* acquire: as in answers_await */
  uint32_t gifts = atomic_load_explicit(&bell->gifts, memory_order_acquire);
  atomic_fetch_add_explicit(&ringing, 1, memory_order_relaxed);
  /* release: the number above is read before the ring */
  uint32_t number = atomic_fetch_add_explicit(&bell->rings, 1, memory_order_acq_rel) + 1;
  futex_wake(&bell->rings);
  answers_await(fd, awaited, number, gifts);
  atomic_fetch_sub_explicit(&ringing, 1, memory_order_relaxed);
  *given = some_given(gifts);
  return true;
}

bool preload_bell_ring(bool *given) {
  NOT_CANCELLED; /* opens a file */
  struct stat status;
  preload_bell_start();
  /* acquire: the bell; pairs with the release in start */
  if (!atomic_load_explicit(&listens, memory_order_acquire))
    return false;
  int fd = bell_open(&status);
  bool rung = fd >= 0 && status.st_ino == file && ring(fd, given);
  if (fd >= 0)
    (void)close(fd);
  return rung;
}
