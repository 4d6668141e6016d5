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
 * The file may be removed while processes have it (systemd-logind does that when a user logs out), and the next process
 * makes another one.  So the thread that sleeps looks for the file now and then, and moves to the one that is there.
 *
 * A program can write anything into the bell.  That makes processes of its own user give back memory that lies free, or
 * wait for RING_MS and WAIT_MS; it can do no other harm.  One that makes the file shorter ends those processes with
 * SIGBUS: no file that has a name can be kept from that.
 *
 * The bell of a device heap is something else (lib/heap).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
  REST_MS = 10,
  /* It looks so often whether its file is still there.  Until then the others do not find it. */
  LOOK_MS = 1000
};

/* A bell, and this process's place in it. */
struct seat {
  dev_t device;
  ino_t file;
  struct bell *bell;
  struct place *own;
};

/* Changed by the listener alone, which leaves the former one as it is: another thread may ring there. */
static _Atomic(struct seat *) seat;
static _Atomic bool listens; /* this process has a seat and a thread */
/* Threads of this process that ring.  Relaxed: a hint. */
static _Atomic unsigned ringing;

/* The calling thread has seen that the process listens, or is the listener. */
static struct seat *seat_now(void) {
  /* acquire: what it has; pairs with the releases in start and seat_renew */
  return atomic_load_explicit(&seat, memory_order_acquire);
}

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
static bool gives(struct place *own) {
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

static void answer(const struct seat *mine, uint32_t ring, bool given) {
  struct bell *bell = mine->bell;
  /* release, all: the memory has gone back to the driver, and the answer is there before it is counted; pairs with the
   * acquires of the thread that rings */
  atomic_fetch_add_explicit(&bell->gifts, given, memory_order_release);
  atomic_store_explicit(&mine->own->answered, ring, memory_order_release);
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

/* ---- Setting up ---- */

enum { PATH_BYTES = 64 };

static void path_write(char path[PATH_BYTES]) {
  (void)snprintf(path, PATH_BYTES, "/dev/shm/mam-preload-%u", (unsigned)geteuid());
}

/* Opens the bell of this user, which the first process creates.  -1 if that is not possible, or if the file belongs to
 * another user. */
static int bell_open(struct stat *status) {
  char path[PATH_BYTES];
  path_write(path);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (fd >= 0 && fstat(fd, status) == 0 && S_ISREG(status->st_mode) && status->st_uid == geteuid())
    return fd;
  if (fd >= 0)
    (void)close(fd);
  return -1;
}

/* NULL if there is no memory.  fallocate: without memory for the page the file system says so here, and not by a signal
 * when it is used. */
static struct bell *bell_map(int fd, const struct stat *status) {
  struct rlimit limit;
  void *page = MAP_FAILED;
  /* Growth beyond what the process's files may have would raise SIGXFSZ. */
  if ((size_t)status->st_size < sizeof(struct bell) &&
      (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < sizeof(struct bell)))
    return NULL;
  if (fallocate(fd, 0, 0, sizeof(struct bell)) == 0)
    page = mmap(NULL, sizeof(struct bell), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return page != MAP_FAILED ? page : NULL;
}

/* A lock of a byte of the file, which belongs to the open file. */
static struct flock place_lock(short type, int place) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
}

/* NULL if all places are taken.  Rings until now are no business of this process. */
static struct place *place_take(struct bell *bell, int fd) {
  for (int i = 0; i < PLACES; i++) {
    struct flock lock = place_lock(F_WRLCK, i);
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0)
      continue;
    struct place *own = &bell->places[i];
    /* relaxed, all: no other data goes by them */
    atomic_store_explicit(&own->busy_end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&own->left, false, memory_order_relaxed);
    atomic_store_explicit(&own->answered, atomic_load_explicit(&bell->rings, memory_order_relaxed),
                          memory_order_relaxed);
    return own;
  }
  return NULL;
}

static void seat_end(struct seat *ended) {
  if (ended->bell != NULL)
    (void)munmap(ended->bell, sizeof *ended->bell);
  free(ended);
}

/* Takes a seat.  NULL if there is none. */
static struct seat *seat_take(void) {
  struct stat status;
  int fd = bell_open(&status);
  struct seat *taken = fd >= 0 ? calloc(1, sizeof *taken) : NULL;
  if (taken != NULL) {
    taken->device = status.st_dev;
    taken->file = status.st_ino;
    taken->bell = bell_map(fd, &status);
    taken->own = taken->bell != NULL ? place_take(taken->bell, fd) : NULL;
  }
  if (fd >= 0)
    (void)close(fd);
  if (taken != NULL && taken->own == NULL) {
    seat_end(taken);
    taken = NULL;
  }
  return taken;
}

static bool seat_is_at(const struct seat *mine, const struct stat *status) {
  return mine->device == status->st_dev && mine->file == status->st_ino;
}

/* No ring waits for an answer of this process there. */
static void seat_leave(const struct seat *mine) {
  struct bell *bell = mine->bell;
  /* release, both: before it is counted; pairs with the acquires in is_taken and answers_await */
  atomic_store_explicit(&mine->own->left, true, memory_order_release);
  atomic_fetch_add_explicit(&bell->answers, 1, memory_order_release);
  futex_wake(&bell->answers);
}

/* The same seat, or one in the file that is there in place of its own. */
static struct seat *seat_renew(struct seat *mine) {
  char path[PATH_BYTES];
  struct stat status;
  path_write(path);
  if (stat(path, &status) == 0 && seat_is_at(mine, &status)) /* no descriptor: the program may count on its number */
    return mine;
  struct seat *taken = seat_take();
  if (taken == NULL)
    return mine;
  seat_leave(mine);
  atomic_store_explicit(&seat, taken, memory_order_release); /* release: publishes it; pairs with seat_now */
  return taken;
}

/* ---- The thread ---- */

static bool is_listening(void) {
  /* acquire: pairs with the release in stop_listening, after which the driver may be gone */
  return atomic_load_explicit(&listens, memory_order_acquire);
}

/* A ring comes through the file that is there.  So it is enough to look for the file when none has come for a while. */
static void *listen(void *unused) {
  const struct timespec look = {.tv_sec = LOOK_MS / 1000};
  struct seat *mine = seat_now();
  int64_t rested_ns = 0;
  (void)unused;
  while (is_listening()) {
    /* relaxed: this thread's own */
    uint32_t heard = atomic_load_explicit(&mine->own->answered, memory_order_relaxed);
    /* acquire: keeps this look before the next one; no other data is read by it */
    if (atomic_load_explicit(&mine->bell->rings, memory_order_acquire) == heard) {
      if (futex_wait(&mine->bell->rings, heard, &look) != 0 && errno == ETIMEDOUT)
        mine = seat_renew(mine);
      continue;
    }
    rest(rested_ns);
    heard = atomic_load_explicit(&mine->bell->rings, memory_order_acquire); /* acquire: as above */
    if (!is_listening())
      break;
    answer(mine, heard, gives(mine->own));
    rested_ns = now_ns() + (int64_t)REST_MS * 1000000;
  }
  seat_leave(mine); /* it may have come there after the end */
  mam_client.helper_end();
  return NULL;
}

static void start(void) {
  struct seat *taken = seat_take();
  if (taken == NULL)
    return;
  atomic_store_explicit(&seat, taken, memory_order_release); /* release: publishes it; pairs with seat_now */
  /* release: so does this, to a thread that has seen it; pairs with the acquire in preload_bell_ring */
  atomic_store_explicit(&listens, true, memory_order_release);
  if (mam_client.helper_start(NULL, listen, NULL) != 0) {
    atomic_store_explicit(&listens, false, memory_order_relaxed); /* relaxed: no thread was told of it */
    seat_end(taken);
  }
}

void preload_bell_start(void) {
  NOT_CANCELLED; /* opens a file */
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const struct options_preload *options = preload_options_get();
  if (options != NULL && options->neighbours)
    (void)pthread_once(&once, start);
}

/* The place is the parent's, and goes with it.  Nothing is freed: an allocator may have a handler that is yet to come.
 */
void preload_bell_forked(void) {
  if (atomic_exchange_explicit(&listens, false, memory_order_relaxed)) /* relaxed: the child has one thread */
    (void)munmap(seat_now()->bell, sizeof(struct bell));
}

/* The listener's thread may still read the bell. */
__attribute__((destructor)) static void stop_listening(void) {
  /* release: pairs with the acquire in is_listening, after which the driver may be gone */
  if (atomic_exchange_explicit(&listens, false, memory_order_acq_rel))
    seat_leave(seat_now());
}

/* ---- Ringing ---- */

/* Whether a process has the place, and answers. */
static bool is_taken(const struct bell *bell, int fd, int place) {
  struct flock lock = place_lock(F_WRLCK, place);
  /* acquire: pairs with the release in seat_leave */
  return !atomic_load_explicit(&bell->places[place].left, memory_order_acquire) && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
         lock.l_type != F_UNLCK;
}

/* When the wait for an answer to a ring ends that began at start_ns.  A place that has answered, or has become free, is
 * no longer awaited. */
static int64_t await_end_ns(const struct bell *bell, int fd, bool awaited[PLACES], uint32_t ring, int64_t start_ns) {
  int64_t end_ns = 0, least_ns = start_ns + (int64_t)RING_MS * 1000000, most_ns = least_ns + (int64_t)WAIT_MS * 1000000;
  for (int i = 0; i < PLACES; i++) {
    if (!awaited[i])
      continue;
    /* acquire: pairs with the release in answer.  A place may be ahead of the ring. */
    uint32_t answered = atomic_load_explicit(&bell->places[i].answered, memory_order_acquire);
    awaited[i] = (int32_t)(answered - ring) < 0 && is_taken(bell, fd, i);
    if (!awaited[i])
      continue;
    /* relaxed: as in gives */
    int64_t busy_ns = atomic_load_explicit(&bell->places[i].busy_end_ns, memory_order_relaxed);
    int64_t its_ns = busy_ns <= least_ns ? least_ns : busy_ns < most_ns ? busy_ns : most_ns;
    end_ns = its_ns > end_ns ? its_ns : end_ns;
  }
  return end_ns;
}

static bool some_given(const struct bell *bell, uint32_t gifts) {
  /* acquire: pairs with the release in answer */
  return atomic_load_explicit(&bell->gifts, memory_order_acquire) != gifts;
}

/* Waits until one gave memory, which makes the gifts another number, or each awaited place has answered the ring: for
 * RING_MS, or as long as its listener is busy.  After a gift it does not wait for the others: the process that gave
 * could take its memory again meanwhile, each time. */
static void answers_await(struct bell *bell, int fd, bool awaited[PLACES], uint32_t ring, uint32_t gifts) {
  int64_t start_ns = now_ns(), left_ns;
  for (;;) {
    /* acquire: before the looks; pairs with the release in answer */
    uint32_t answers = atomic_load_explicit(&bell->answers, memory_order_acquire);
    if (some_given(bell, gifts) || (left_ns = await_end_ns(bell, fd, awaited, ring, start_ns) - now_ns()) <= 0)
      return;
    struct timespec timeout = {.tv_nsec = left_ns < RING_MS * 1000000 ? left_ns : RING_MS * 1000000};
    (void)futex_wait(&bell->answers, answers, &timeout);
  }
}

/* Rings, and waits.  False if no other process has a place. */
static bool ring(const struct seat *mine, int fd, bool *given) {
  struct bell *bell = mine->bell;
  bool awaited[PLACES], some = false;
  for (int i = 0; i < PLACES; i++) {
    awaited[i] = is_taken(bell, fd, i); /* this process, too: its thread may have memory on its way to the driver */
    some |= awaited[i] && &bell->places[i] != mine->own;
  }
  if (!some)
    return false;
  /* acquire: as in answers_await */
  uint32_t gifts = atomic_load_explicit(&bell->gifts, memory_order_acquire);
  atomic_fetch_add_explicit(&ringing, 1, memory_order_relaxed);
  /* release: the number above is read before the ring */
  uint32_t number = atomic_fetch_add_explicit(&bell->rings, 1, memory_order_acq_rel) + 1;
  futex_wake(&bell->rings);
  answers_await(bell, fd, awaited, number, gifts);
  atomic_fetch_sub_explicit(&ringing, 1, memory_order_relaxed);
  *given = some_given(bell, gifts);
  return true;
}

bool preload_bell_ring(bool *given) {
  NOT_CANCELLED; /* opens a file */
  struct stat status;
  preload_bell_start();
  /* acquire: pairs with the release in start */
  if (!atomic_load_explicit(&listens, memory_order_acquire))
    return false;
  const struct seat *mine = seat_now();
  int fd = bell_open(&status);
  bool rung = fd >= 0 && seat_is_at(mine, &status) && ring(mine, fd, given);
  if (fd >= 0)
    (void)close(fd);
  return rung;
}
