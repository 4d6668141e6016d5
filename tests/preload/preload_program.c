/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A small program of the driver, for preload_run_test.sh: each argument is something that programs do.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fake_driver.h"

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream);
int cuMemFree_v2(unsigned long long address);

enum { ROUNDS = 40 };
static const size_t MIB = (size_t)1 << 20;

static unsigned long long kept[2];

static void *begin(void) {
  void *context = NULL;
  if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
    exit(2);
  return context;
}

/* Allocates blocks of bytes, 2 * bytes, ... or all of bytes, and frees them. */
static int allocate_rounds(size_t bytes, bool grows) {
  unsigned long long blocks[ROUNDS];
  for (int i = 0; i < ROUNDS; i++)
    if (cuMemAlloc_v2(&blocks[i], grows ? bytes * (unsigned)(i + 1) : bytes) != 0)
      return 1;
  uintptr_t address;
  printf("chunks %u, chunk bytes %zu\n", fake_live_blocks(), fake_largest_live(&address));
  for (int i = 0; i < ROUNDS; i++)
    if (cuMemFree_v2(blocks[i]) != 0)
      return 1;
  return 0;
}

static int churn(void) { return allocate_rounds(1000, true); }

/* Fills most of the device with blocks, frees all but every 32nd, and asks for half of the device at once. */
static int scatter(void) {
  static unsigned long long blocks[1500];
  unsigned long long half;
  for (int i = 0; i < 1500; i++)
    if (cuMemAlloc_v2(&blocks[i], 2 * MIB) != 0)
      return 1;
  for (int i = 0; i < 1500; i++)
    if (i % 32 != 0 && cuMemFree_v2(blocks[i]) != 0)
      return 1;
  printf("half of the device: %d\n", cuMemAlloc_v2(&half, 2048 * MIB));
  return 0;
}

/* Allocates by two functions and frees by one, which it has by symbols or asks for. */
static int allocate_twice(bool asks) {
  int (*alloc)(unsigned long long *, size_t) = cuMemAlloc_v2;
  int (*release)(unsigned long long) = cuMemFree_v2;
  unsigned long long block;
  int failed = 0;
  if (asks) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&release = dlsym(library, "cuMemFree_v2");
  }
  for (int i = 0; i < 10; i++) {
    failed |= alloc(&block, 1000) | release(block);
    failed |= cuMemAllocAsync(&block, MIB, NULL) | release(block);
  }
  return failed;
}

static void at_exit(void) { printf("freed in an exit handler: %d\n", cuMemFree_v2(kept[0])); }

__attribute__((destructor)) static void destroy(void) {
  if (kept[1] != 0)
    printf("freed in a destructor: %d\n", cuMemFree_v2(kept[1]));
}

static int free_late(void) {
  if (cuMemAlloc_v2(&kept[0], 1000) != 0 || cuMemAlloc_v2(&kept[1], MIB) != 0)
    return 1;
  return atexit(at_exit);
}

static void *allocate_for_ever(void *context) {
  unsigned long long address;
  (void)cuCtxSetCurrent(context);
  while (cuMemAlloc_v2(&address, MIB) == 0 && cuMemFree_v2(address) == 0)
    ;
  return NULL;
}

static int outlive_main(void *context) {
  pthread_t thread;
  for (int i = 0; i < 3; i++)
    if (pthread_create(&thread, NULL, allocate_for_ever, context) != 0)
      return 1;
  (void)usleep(20000);
  return churn() != 0;
}

/* The child leaves by exit if it is to run its exit handlers. */
static int fork_child(bool exits) {
  unsigned long long address = 0;
  int status = 0;
  if (churn() != 0)
    return 1;
  pid_t child = fork();
  if (child == 0 && exits)
    exit(cuMemAlloc_v2(&address, MIB));
  if (child == 0)
    _exit(cuMemAlloc_v2(&address, MIB));
  if (waitpid(child, &status, 0) != child)
    return 1;
  printf("child hears %d\n", WEXITSTATUS(status));
  return churn();
}

static void *allocate_many_sizes(void *context) {
  unsigned long long address;
  unsigned seed = (unsigned)(uintptr_t)&address;
  (void)cuCtxSetCurrent(context);
  for (;;)
    if (cuMemAlloc_v2(&address, 1000 + (unsigned)rand_r(&seed) % (80 * MIB)) == 0)
      (void)cuMemFree_v2(address);
  return NULL;
}

/* Forks while threads are inside of the library, an allocator and the driver. */
static int fork_busy(void *context) {
  enum { THREADS = 4, FORKS = 300 };
  pthread_t thread;
  int status = 0;
  if (churn() != 0) /* or the first fork may have begun before libmam hears of the driver */
    return 1;
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&thread, NULL, allocate_many_sizes, context) != 0)
      return 1;
  for (int i = 0; i < FORKS; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
      return 1;
  }
  puts("forked");
  return 0;
}

/* Becomes a program that is not served, which the other end of descriptor 50 notices. */
static int leave(void) {
  char *const arguments[] = {"sleep", "60", NULL}, *const environment[] = {NULL};
  unsigned long long address;
  if (cuMemAlloc_v2(&address, MIB) != 0 || fcntl(50, F_SETFD, FD_CLOEXEC) != 0)
    return 1;
  return execve("/bin/sleep", arguments, environment);
}

/* Forks before the first context: then the driver works in the children. */
static int fork_early(void) {
  unsigned long long address;
  int status = 0;
  if (cuMemAlloc_v2(&address, MIB) != 3) /* not initialised */
    return 1;
  for (int i = 0; i < 2; i++) {
    pid_t child = fork();
    if (child == 0) {
      (void)begin();
      exit(churn());
    }
    if (waitpid(child, &status, 0) != child || status != 0)
      return 1;
  }
  return 0;
}

/* As programs do that show a title: they use the place of their environment, of which they keep a copy. */
static void overwrite_environment(void) {
  char **strings = environ, *end = environ[0];
  size_t count = 0;
  while (strings[count] != NULL)
    count++;
  char **copy = calloc(count + 1, sizeof *copy);
  for (size_t i = 0; i < count && copy != NULL; i++) {
    copy[i] = strdup(strings[i]);
    end = strings[i] + strlen(strings[i]) > end ? strings[i] + strlen(strings[i]) : end;
  }
  environ = copy;
  memset(strings[0], 'x', (size_t)(end - strings[0]));
}

/* Then says whether an allocation of a thread of that name is a pool's. */
static int title(void) {
  unsigned long long address;
  if (churn() != 0)
    return 1;
  overwrite_environment();
  size_t before = fake_live_bytes();
  if (pthread_setname_np(pthread_self(), "loader") != 0 || cuMemAlloc_v2(&address, MIB) != 0)
    return 1;
  puts(fake_live_bytes() == before ? "loader is served" : "loader is left alone");
  return 0;
}

static int forget(void) {
  int failed = churn();
  return clearenv() | failed;
}

/* Its constructor makes the first allocation (preload_waiting.c). */
static int open_waiting(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const int *failed = library != NULL ? dlsym(library, "waiting_failed") : NULL;
  return failed == NULL || *failed != 0;
}

/* Closes all descriptors but the first two.  A file of the program's gets the next one, standard error's. */
static int reopen(const char *path) {
  for (int fd = STDERR_FILENO; fd < 1024; fd++)
    (void)close(fd);
  return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) != STDERR_FILENO || churn() != 0 ||
         write(STDERR_FILENO, "data\n", 5) != 5;
}

/* A child goes on as a daemon, which has closed its descriptors.  As long as it lives a file has its number. */
static int become_daemon(const char *path) {
  pid_t child = fork();
  if (child != 0)
    return child < 0;
  FILE *file = fopen(path, "w");
  if (setsid() < 0 || file == NULL || fprintf(file, "%ld\n", (long)getpid()) < 0 || fclose(file) != 0)
    return 1;
  for (int fd = 0; fd <= STDERR_FILENO; fd++)
    if (close(fd) != 0 || open("/dev/null", O_RDWR) != fd)
      return 1;
  (void)begin();
  int failed = churn();
  (void)sleep(20);
  return unlink(path) | failed;
}

/* Another process has freed most of the device.  The file by which processes find each other is removed, and is there
 * again after a while.  Then this process, which begins now, needs the memory. */
static int find_again(void) {
  char path[64], byte;
  unsigned long long address;
  int ends[2];
  fake_share_memory();
  (void)snprintf(path, sizeof path, "/dev/shm/mam-preload-%u", (unsigned)geteuid());
  pid_t other = pipe(ends) == 0 ? fork() : -1;
  if (other == 0) {
    (void)begin();
    if (cuMemAlloc_v2(&address, 3072 * MIB) == 0 && cuMemFree_v2(address) == 0 && write(ends[1], "", 1) == 1)
      (void)sleep(60);
    _exit(1);
  }
  if (other < 0 || read(ends[0], &byte, 1) != 1 || unlink(path) != 0)
    return 1;
  for (int i = 0; i < 100 && access(path, F_OK) != 0; i++)
    (void)usleep(100000);
  (void)usleep(100000); /* until it has its place there */
  (void)begin();
  int error = cuMemAlloc_v2(&address, 3072 * MIB);
  (void)kill(other, SIGKILL);
  return error;
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "fail") == 0)
    return 3;
  if (strcmp(what, "fork-early") == 0)
    return fork_early();
  if (strcmp(what, "find-again") == 0)
    return find_again();
  if (strcmp(what, "daemon") == 0)
    return become_daemon(arguments[2]);
  void *context = begin();
  if (strcmp(what, "churn") == 0)
    return churn();
  if (strcmp(what, "main-ends") == 0 && churn() == 0)
    pthread_exit(NULL);
  if (strcmp(what, "large") == 0)
    return allocate_rounds(MIB, false);
  if (strcmp(what, "leave") == 0)
    return leave();
  if (strcmp(what, "scatter") == 0)
    return scatter();
  if (strcmp(what, "title") == 0)
    return title();
  if (strcmp(what, "forget") == 0)
    return forget();
  if (strcmp(what, "twice") == 0 || strcmp(what, "twice-asked") == 0)
    return allocate_twice(strcmp(what, "twice") != 0);
  if (strcmp(what, "exit") == 0)
    return free_late();
  if (strcmp(what, "threads") == 0)
    return outlive_main(context);
  if (strcmp(what, "fork") == 0)
    return fork_child(false);
  if (strcmp(what, "open") == 0)
    return open_waiting(arguments[2]);
  if (strcmp(what, "reopen") == 0)
    return reopen(arguments[2]);
  if (strcmp(what, "fork-busy") == 0)
    return fork_busy(context);
  if (strcmp(what, "fork-exit") == 0)
    return fork_child(true);
  if (strcmp(what, "exec") == 0 && churn() == 0)
    return execl("/proc/self/exe", arguments[0], "churn", (char *)NULL);
  return 1;
}
