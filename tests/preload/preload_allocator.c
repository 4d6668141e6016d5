/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An allocator that is preloaded, as jemalloc is: one lock, and fork handlers that hold it, which the first allocation
 * registers.  The memory is the C library's.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *block, size_t bytes);
void free(void *block);

/* The C library's own, by the names that it exports for allocators. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* the registration may allocate */
static bool registered;                                               /* under lock */

static void lock_own(void) { (void)pthread_mutex_lock(&lock); }
static void unlock_own(void) { (void)pthread_mutex_unlock(&lock); }

/* The thread of the child has the lock, but by another number. */
static void open_in_child(void) { lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

static void enter(void) {
  lock_own();
  if (!registered) {
    registered = true;
    (void)pthread_atfork(lock_own, unlock_own, open_in_child);
  }
}

static void *leave(void *block) {
  unlock_own();
  return block;
}

void *malloc(size_t bytes) {
  enter();
  return leave(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes) {
  enter();
  return leave(__libc_calloc(count, bytes));
}

void *realloc(void *block, size_t bytes) {
  enter();
  return leave(__libc_realloc(block, bytes));
}

void free(void *block) {
  enter();
  __libc_free(block);
  (void)leave(NULL);
}
