/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records of whole programs, on plain host memory.  The tests run this program with an argument and with MAM_RECORD
 * set, and read the record.  The argument says what the program does.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_record.h"
#include "mam.h"
#include "support/record_writer.h"
#include "support/run_suite.h"

/* ---- The programs ---- */

enum {
  THREADS = 4,
  EXCHANGES = 30000,
  MAILBOXES = 64,
  SHORT_THREADS = 300,
  PAIRS = 200000,
  VARIED = 100000,
  MANY = 1000000
};

static void *block_of(size_t bytes) {
  void *block = NULL;
  if (MAM_CudaMalloc(&block, bytes) != cudaSuccess)
    _exit(2);
  return block;
}

static void free_it(void *block) {
  if (MAM_CudaFree(block) != cudaSuccess)
    _exit(3);
}

static int steps(void) {
  static const char tag;
  void *small = block_of(1000), *tagged = NULL, *streamed = NULL, *none = NULL;
  int stream = 0;
  MAM_Mark("the middle");
  if (MAM_CudaMallocTagged(&tagged, 3 << 20, &tag) != cudaSuccess ||
      MAM_CudaMallocAsync(&streamed, 5000, (cudaStream_t)&stream) != cudaSuccess)
    return 2;
  free_it(small);
  if (MAM_CudaMalloc(&none, (size_t)1 << 60) != cudaErrorMemoryAllocation)
    return 4;
  if (MAM_CudaFreeAsync(streamed, (cudaStream_t)&stream) != cudaSuccess || MAM_CudaFree(&stream) == cudaSuccess)
    return 3;
  return 0; /* and one block is live */
}

/* Each thread frees the block that it finds in a mailbox, and leaves a block of its own there. */
static _Atomic(void *) mailboxes[MAILBOXES];

static void *exchange(void *seed_at) {
  unsigned seed = (unsigned)(uintptr_t)seed_at;
  for (int i = 0; i < EXCHANGES; i++) {
    if (i % 16 == 0)
      (void)sched_yield();
    size_t bytes = rand_r(&seed) % 8 == 0 ? (size_t)rand_r(&seed) % (1 << 20) + 1 : (size_t)rand_r(&seed) % 5000 + 1;
    /* acquire and release: what a block is, for the thread that frees it */
    free_it(atomic_exchange_explicit(&mailboxes[rand_r(&seed) % MAILBOXES], block_of(bytes), memory_order_acq_rel));
  }
  return NULL;
}

static int threads(void) {
  pthread_t all[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    if (pthread_create(&all[i], NULL, exchange, (void *)(i + 1)) != 0)
      return 2;
  for (int i = 0; i < THREADS; i++)
    pthread_join(all[i], NULL);
  for (int i = 0; i < MAILBOXES; i++)
    free_it(mailboxes[i]);
  return 0;
}

static void *allocate_once(void *unused) {
  (void)unused;
  void *block = block_of(2000);
  free_it(block_of(100));
  return block;
}

static int short_threads(void) {
  for (int i = 0; i < SHORT_THREADS; i++) {
    pthread_t thread;
    void *block;
    if (pthread_create(&thread, NULL, allocate_once, NULL) != 0 || pthread_join(thread, &block) != 0)
      return 2;
    free_it(block);
  }
  return 0;
}

static int forks(void) {
  int status = -1;
  void *before = block_of(1000);
  (void)block_of(2000);
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 3; i++)
      (void)block_of(10000);
    free_it(before); /* the child's record does not have this block */
    exit(0);
  }
  if (waitpid(child, &status, 0) != child || status != 0)
    return 2;
  free_it(before);
  return 0;
}

/* A parent makes a record and ends; only then its child makes one. */
static int outlives(bool execs) {
  int ended[2], done[2], status = -1;
  char byte;
  if (pipe(ended) != 0 || pipe(done) != 0)
    return 2;
  pid_t parent = fork();
  if (parent == 0) {
    (void)close(ended[1]);
    (void)block_of(1000);
    if (fork() != 0)
      exit(0);
    if (read(ended[0], &byte, 1) != 0)
      exit(2);
    if (execs)
      exit(execl("/proc/self/exe", "record_test", "steps", (char *)NULL));
    exit(steps());
  }
  (void)close(done[1]);
  bool good = waitpid(parent, &status, 0) == parent && status == 0;
  (void)close(ended[1]);
  return good && read(done[0], &byte, 1) == 0 ? 0 : 2;
}

static int child_outlives(void) { return outlives(false); }
static int child_outlives_and_execs(void) { return outlives(true); }

static int pairs(void) {
  (void)block_of(1000);
  for (int i = 0; i < PAIRS; i++)
    free_it(block_of(3000));
  return 0;
}

static int killed(void) {
  (void)pairs();
  (void)usleep(300000);
  free_it(block_of(1 << 20)); /* the record may lack a call of the last moments */
  return raise(SIGKILL);
}

static int aborts(void) {
  (void)pairs();
  abort();
}

static int replaces_itself(void) {
  (void)block_of(1000);
  (void)usleep(300000);
  return execl("/proc/self/exe", "record_test", "steps", (char *)NULL);
}

static void *last;
static void free_last(void) { free_it(last); }

static int exits_quickly(void) {
  last = block_of(1000);
  if (at_quick_exit(free_last) != 0)
    return 2;
  free_it(block_of(2000));
  quick_exit(0);
}

static void *late;
__attribute__((destructor(101))) static void last_of_all(void) { /* runs after the library's own end */
  if (late != NULL)
    free_it(late);
}

static int frees_late(void) {
  late = block_of(1000);
  return 0;
}

static int many(void) {
  void **blocks = malloc(MANY * sizeof *blocks);
  for (int i = 0; i < MANY; i++)
    blocks[i] = block_of(500);
  for (int i = 0; i < MANY; i++)
    free_it(blocks[i]);
  free(blocks);
  return 0;
}

/* A pool ends with its blocks, and the next pool has the same addresses. */
static int pools(void) {
  for (int i = 0; i < 10; i++) {
    if (MAM_Create(8 << 20) != cudaSuccess)
      return 2;
    (void)block_of(1000);
    (void)block_of(3 << 20);
    if (MAM_Destroy() != cudaSuccess)
      return 3;
  }
  return 0;
}

/* The pool that is created holds most; the default pool is another one. */
static int created_pool(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool;
  void *block;
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = 64 << 20;
  if (MAM_PoolCreate(&pool, &options) != cudaSuccess || MAM_PoolMalloc(pool, &block, 40 << 20) != cudaSuccess)
    return 2;
  free_it(block_of(10 << 20));
  free_it(block);
  return MAM_PoolDestroy(pool) == cudaSuccess ? 0 : 3;
}

static int small_disk(void) {
  if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){200000, 200000}) != 0)
    return 2;
  for (int i = 0; i < 60; i++) {
    unsigned seed = (unsigned)i;
    for (int j = 0; j < 10000; j++)
      free_it(block_of((size_t)rand_r(&seed) % 100000 + 1));
  }
  return 0;
}

/* The thread that makes the first call writes the beginning of the file, and one that begins a record as well.  A
 * signal of the program's own stays pending. */
static int no_disk(void) {
  sigset_t signal, pending;
  if (freopen("/dev/null", "w", stderr) == NULL || setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}) != 0)
    return 2;
  free_it(block_of(1000));
  (void)sigemptyset(&signal);
  (void)sigaddset(&signal, SIGXFSZ);
  for (int own = 0; own < 2; own++) {
    if (MAM_RecordBegin("record.limited") != cudaErrorUnknown || strstr(MAM_LastError(), "File too large") == NULL)
      return 3;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) != own)
      return 4;
    (void)sigprocmask(SIG_BLOCK, &signal, NULL);
    (void)raise(SIGXFSZ);
  }
  return 0;
}

static void all_close(void) {
  for (int fd = 3; fd < 1024; fd++)
    (void)close(fd);
}

/* Closes all descriptors, as daemons do, and with them the record.  A file of the program gets the number. */
static int closes_all(void) {
  char name[128];
  (void)snprintf(name, sizeof name, "%s.own", getenv("MAM_RECORD"));
  all_close();
  void *block = block_of(1000);
  all_close();
  FILE *file = fopen(name, "w");
  if (file == NULL || fileno(file) != 3 || fputs("hello\n", file) < 0 || fflush(file) != 0)
    return 2;
  free_it(block);
  for (int i = 0; i < PAIRS; i++) /* more than a ring holds, so that the writer writes now */
    free_it(block_of(3000));
  return fputs("world\n", file) >= 0 && fclose(file) == 0 ? 0 : 3;
}

/* Blocks of 1 to 31 MiB, of which some 32 are live: what the pool holds varies by how it is cut up. */
static int varies(void) {
  static void *blocks[64];
  unsigned seed = 5;
  for (int i = 0; i < VARIED; i++) {
    void **block = &blocks[(unsigned)rand_r(&seed) % 64];
    if (*block != NULL)
      free_it(*block);
    *block = *block == NULL ? block_of((1 << 20) + (size_t)rand_r(&seed) % (30 << 20)) : NULL;
  }
  return 0;
}

/* What a header of NVTX has, filled in by the library. */
typedef void (*nvtx_function)(void);
enum { NVTX_FUNCTIONS = 16, NVTX_CORE = 1, NVTX_CORE2 = 5 };
static nvtx_function core[NVTX_FUNCTIONS], core2[NVTX_FUNCTIONS];
extern int InitializeInjectionNvtx2(const void *(*table_get)(uint32_t table));

static int nvtx_module(int module, nvtx_function ***table, unsigned *count) {
  static nvtx_function *of_core[NVTX_FUNCTIONS], *of_core2[NVTX_FUNCTIONS];
  for (unsigned i = 1; i < NVTX_FUNCTIONS; i++)
    of_core[i] = &core[i], of_core2[i] = &core2[i];
  *table = module == NVTX_CORE ? of_core : of_core2;
  *count = NVTX_FUNCTIONS;
  return module == NVTX_CORE || module == NVTX_CORE2;
}

static const void *nvtx_table(uint32_t table) {
  static const struct {
    size_t struct_size;
    int (*module)(int module, nvtx_function ***table, unsigned *count);
  } callbacks = {sizeof callbacks, nvtx_module};
  return table == 1 ? &callbacks : NULL;
}

struct nvtx_attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
};

static int ranges(void) {
  char one, two;
  if (InitializeInjectionNvtx2(nvtx_table) != 1)
    return 2;
  void (*mark_wide)(const wchar_t *) = (void (*)(const wchar_t *))core[3];
  int (*push)(const char *) = (int (*)(const char *))core[9];
  int (*push_wide)(const wchar_t *) = (int (*)(const wchar_t *))core[10];
  int (*pop)(void) = (int (*)(void))core[11];
  int (*push_with)(void *, const struct nvtx_attributes *) = (int (*)(void *, const struct nvtx_attributes *))core2[4];
  int (*pop_of)(void *) = (int (*)(void *))core2[5];
  void *(*add_wide)(void *, const wchar_t *) = (void *(*)(void *, const wchar_t *))core2[11];
  if (mark_wide == NULL || push_wide == NULL || add_wide == NULL)
    return 3;
  free_it(block_of(100));
  mark_wide(L"\u00e9");
  (void)pop_of(&one); /* of no range */
  (void)push("a");
  (void)push_wide(L"b\u20ac\U0001f600\xd800");
  (void)pop();
  (void)push_with(&one, &(struct nvtx_attributes){.message_type = 2, .message = L"c"});
  static void *registered; /* for good */
  registered = add_wide(&two, L"d");
  (void)push_with(&two, &(struct nvtx_attributes){.message_type = 3, .message = registered});
  (void)pop_of(&one); /* not that of two, which is inside */
  (void)pop();
  (void)push_with(NULL, &(struct nvtx_attributes){.message_type = 9, .message = &one}); /* of no type that is known */
  (void)pop_of(&one);
  (void)pop_of(NULL);
  (void)pop_of(&two);
  return 0;
}

static int nothing(void) { return 0; }

static const struct program {
  const char *name;
  int (*run)(void);
} programs[] = {{"steps", steps},
                {"threads", threads},
                {"short threads", short_threads},
                {"forks", forks},
                {"pairs", pairs},
                {"killed", killed},
                {"aborts", aborts},
                {"exec", replaces_itself},
                {"late", frees_late},
                {"many", many},
                {"pools", pools},
                {"created pool", created_pool},
                {"small disk", small_disk},
                {"no disk", no_disk},
                {"varies", varies},
                {"ranges", ranges},
                {"nothing", nothing},
                {"closes all", closes_all},
                {"exits quickly", exits_quickly},
                {"outlives", child_outlives},
                {"outlives and execs", child_outlives_and_execs}};

/* ---- The tests ---- */

static char folder[64], path[128], said[4096];
static struct record record;

static void folder_make(void) {
  (void)snprintf(folder, sizeof folder, "record_test.%ld", (long)getpid());
  (void)snprintf(path, sizeof path, "%s/record", folder);
  ck_assert_int_eq(mkdir(folder, 0777), 0);
}

static size_t files_like(const char *pattern, char *first, size_t first_bytes) {
  char text[256];
  glob_t found;
  (void)snprintf(text, sizeof text, "%s/%s", folder, pattern);
  size_t count = glob(text, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
  if (count > 0 && first != NULL)
    (void)snprintf(first, first_bytes, "%s", found.gl_pathv[0]);
  globfree(&found);
  return count;
}

static void folder_remove(void) {
  char file[256];
  while (files_like("*", file, sizeof file) > 0 && unlink(file) == 0)
    continue;
  (void)rmdir(folder);
  record_free(&record);
}

/* Runs a program and returns its wait status; said becomes what it wrote to stderr. */
static int run(const char *program, const char *record_path) {
  char errors[128];
  int status = -1;
  (void)snprintf(errors, sizeof errors, "%s/said", folder);
  pid_t child = fork();
  if (child == 0) {
    int fd = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    (void)dup2(fd, STDERR_FILENO);
    (void)setenv("MAM_SOURCE", "host", 1);
    (void)setenv("MAM_RECORD", record_path, 1);
    (void)execl("/proc/self/exe", "record_test", program, (char *)NULL);
    _exit(99);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  FILE *file = fopen(errors, "r");
  said[file != NULL ? fread(said, 1, sizeof said - 1, file) : 0] = '\0';
  if (file != NULL)
    fclose(file);
  (void)unlink(errors);
  return status;
}

static void read_record(const char *from) {
  record_free(&record);
  ck_assert_msg(record_read(&record, from, RECORD_EVENTS_MOST), "%s cannot be read", from);
}

static size_t count_of(uint32_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < record.event_count; i++)
    count += record.events[i].kind == kind;
  return count;
}

static const struct record_event *event_of(uint32_t kind, size_t index) {
  for (size_t i = 0; i < record.event_count; i++)
    if (record.events[i].kind == kind && index-- == 0)
      return &record.events[i];
  ck_abort_msg("there is no such event");
  return NULL;
}

/* The marks and ranges of the record, such as "!mark (begin )". */
static void phases_are(const char *wanted) {
  char phases[256] = "";
  for (size_t i = 0; i < record.event_count; i++) {
    const struct record_event *event = &record.events[i];
    if (event->kind < RECORD_MARK || event->kind > RECORD_POP)
      continue;
    size_t bytes = strlen(phases);
    (void)snprintf(phases + bytes, sizeof phases - bytes, "%s%c%s", bytes > 0 ? " " : "",
                   "!()"[event->kind - RECORD_MARK], event -> kind == RECORD_POP ? "" : record.texts[event->text]);
  }
  ck_assert_str_eq(phases, wanted);
}

/* Each free is of an allocation in the record, and no address is live twice. */
static void all_frees_known(void) {
  for (size_t i = 0; i < record.event_count; i++)
    ck_assert(record.events[i].kind != RECORD_FREE || record.events[i].serial != RECORD_NO_SERIAL);
}

START_TEST(what_is_asked_for_is_recorded) {
  ck_assert_int_eq(run("steps", path), 0);
  ck_assert_str_eq(said, "");
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_ptr_nonnull(strstr(record.command, "steps"));
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
  ck_assert_uint_eq(count_of(RECORD_REFUSED), 1);
  ck_assert_uint_eq(count_of(RECORD_FREE), 2); /* the refused free of a local variable is not recorded */
  const struct record_event *small = event_of(RECORD_ALLOCATE, 0), *tagged = event_of(RECORD_ALLOCATE, 1),
                            *streamed = event_of(RECORD_ALLOCATE, 2);
  ck_assert_uint_eq(small->size, 1000);
  ck_assert_uint_eq(small->tag, 0);
  ck_assert_uint_eq(small->stream, 0);
  ck_assert_uint_eq(tagged->size, 3 << 20);
  ck_assert_uint_ne(tagged->tag, 0);
  ck_assert_uint_eq(streamed->size, 5000);
  ck_assert_uint_eq(streamed->tag, 0);
  ck_assert_uint_ne(streamed->stream, 0);
  ck_assert_uint_eq(event_of(RECORD_FREE, 0)->serial, small->serial);
  ck_assert_uint_eq(event_of(RECORD_FREE, 0)->stream, 0);
  ck_assert_uint_eq(event_of(RECORD_FREE, 1)->serial, streamed->serial);
  ck_assert_uint_eq(event_of(RECORD_FREE, 1)->stream, streamed->stream);
  ck_assert_uint_eq(event_of(RECORD_REFUSED, 0)->size, (uint64_t)1 << 60);
  const struct record_event *mark = event_of(RECORD_MARK, 0);
  ck_assert_str_eq(record.texts[mark->text], "the middle");
  ck_assert(mark > small && mark < tagged);
  ck_assert_uint_ge(event_of(RECORD_TAKEN, 0)->size, 1000);
  for (size_t i = 0; i < 3; i++) { /* the sites are in this program; the names of static functions are not known */
    const struct record_site *site = &record.sites[event_of(RECORD_ALLOCATE, i)->site];
    ck_assert_ptr_nonnull(strstr(site->module, "record_test"));
    ck_assert_ptr_nonnull(strstr(site->name, "+0x"));
  }
  ck_assert_uint_ne(small->site, tagged->site);
}
END_TEST

/* Also where a text is of wchar_t, and where the ranges of one domain end inside those of another. */
START_TEST(ranges_of_nvtx_are_recorded) {
  ck_assert_int_eq(run("ranges", path), 0);
  read_record(path);
  phases_are("!\u00e9 (a (b\u20ac\U0001f600\ufffd ) (c (d ) ) (d ) ) (d ( ) )");
}
END_TEST

/* The exchanges end with an empty pool, and each block once. */
START_TEST(blocks_go_from_thread_to_thread) {
  ck_assert_int_eq(run("threads", path), 0);
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_uint_eq(record.lost_count, 0);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), THREADS * EXCHANGES);
  ck_assert_uint_eq(count_of(RECORD_FREE), THREADS * EXCHANGES);
  all_frees_known();
  size_t by_others = 0;
  uint32_t *thread_of = calloc(record.allocation_count, sizeof *thread_of);
  for (size_t i = 0; i < record.event_count; i++)
    if (record.events[i].kind == RECORD_ALLOCATE)
      thread_of[record.events[i].serial] = record.events[i].thread;
    else if (record.events[i].kind == RECORD_FREE)
      by_others += thread_of[record.events[i].serial] != record.events[i].thread;
  free(thread_of);
  ck_assert_uint_ge(by_others, MAILBOXES); /* each mailbox has a block in the end, in whatever order the threads ran */
}
END_TEST

START_TEST(threads_that_end_lose_nothing) {
  ck_assert_int_eq(run("short threads", path), 0);
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 2 * SHORT_THREADS);
  ck_assert_uint_eq(count_of(RECORD_FREE), 2 * SHORT_THREADS);
  ck_assert_uint_ge(record.thread_count, SHORT_THREADS);
  all_frees_known();
}
END_TEST

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
START_TEST(a_forked_child_has_a_file_of_its_own) {
  char child[256];
  ck_assert_int_eq(run("forks", path), 0);
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 2);
  ck_assert_uint_eq(count_of(RECORD_FREE), 1);
  uint64_t parent = record.process;
  ck_assert_uint_eq(files_like("record.*", child, sizeof child), 1);
  read_record(child);
  ck_assert(!record.cut);
  ck_assert_uint_ne(record.process, parent);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
  ck_assert_uint_eq(event_of(RECORD_FREE, 0)->serial, RECORD_NO_SERIAL);
}
END_TEST

START_TEST(a_child_does_not_write_over_its_parent_s) {
  char child[256];
  ck_assert_int_eq(run(_i == 0 ? "outlives" : "outlives and execs", path), 0);
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 1);
  ck_assert_uint_eq(files_like("record.*", child, sizeof child), 1);
  read_record(child);
  ck_assert(!record.cut);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
  ck_assert_int_eq(run("steps", path), 0); /* another run */
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
  ck_assert_uint_eq(files_like("record*", NULL, 0), 2);
}
END_TEST
#endif

START_TEST(a_killed_program_leaves_its_record) {
  int status = run("killed", path);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  read_record(path);
  ck_assert(record.cut);
  ck_assert_uint_ge(count_of(RECORD_ALLOCATE), 1 + PAIRS);
  ck_assert_uint_ge(count_of(RECORD_FREE), PAIRS);
  all_frees_known();
}
END_TEST

START_TEST(so_does_one_that_aborts) {
  ck_assert(WIFSIGNALED(run("aborts", path)));
  read_record(path);
  ck_assert(record.cut);
  ck_assert_uint_gt(count_of(RECORD_ALLOCATE), PAIRS / 10);
  all_frees_known();
}
END_TEST

START_TEST(after_an_exec_there_is_another_file) {
  char second[256];
  ck_assert_int_eq(run("exec", path), 0);
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 1);
  ck_assert_uint_eq(files_like("record.*", second, sizeof second), 1);
  read_record(second);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
}
END_TEST

START_TEST(a_free_after_the_end_is_recorded) {
  ck_assert_int_eq(run("late", path), 0);
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_uint_eq(event_of(RECORD_FREE, 0)->serial, 0);
}
END_TEST

START_TEST(a_quick_exit_loses_nothing) {
  ck_assert_int_eq(run("exits quickly", path), 0);
  read_record(path);
  ck_assert(!record.cut);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 2);
  ck_assert_uint_eq(count_of(RECORD_FREE), 2);
  all_frees_known();
}
END_TEST

START_TEST(a_million_blocks_may_be_live) {
  struct stat status;
  ck_assert_int_eq(run("many", path), 0);
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), MANY);
  ck_assert_uint_eq(count_of(RECORD_FREE), MANY);
  all_frees_known();
  ck_assert_int_eq(stat(path, &status), 0);
  ck_assert_int_lt(status.st_size, 12 * 2 * MANY); /* holds without zstd, too */
}
END_TEST

START_TEST(the_end_of_a_pool_ends_its_blocks) {
  ck_assert_int_eq(run("pools", path), 0);
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 20);
  ck_assert_uint_eq(count_of(RECORD_FREE), 20);
  size_t live = 0;
  uint64_t held = 0;
  for (size_t i = 0; i < record.event_count; i++) {
    live += record.events[i].kind == RECORD_ALLOCATE;
    live -= record.events[i].kind == RECORD_FREE;
    ck_assert_uint_le(live, 2);
    if (record.events[i].kind == RECORD_TAKEN)
      held = record.events[i].size;
  }
  ck_assert_uint_eq(live, 0);
  ck_assert_uint_eq(held, 0);
}
END_TEST

/* ---- Files ---- */

START_TEST(a_file_that_cannot_be_written_is_said_once) {
  static const char *const paths[] = {"/dev/full", "/nowhere/at/all", "/"};
  ck_assert_int_eq(run("pairs", paths[_i]), 0);
  ck_assert_msg(strncmp(said, "mam: ", 5) == 0 && strstr(said, "no more is recorded\n") != NULL &&
                    strchr(said, '\n') == said + strlen(said) - 1,
                "it says: %s", said);
}
END_TEST

/* mam-run sets it; what is no number is as if it were not set. */
START_TEST(a_number_of_mam_run_that_is_none_is_ignored_and_said_once) {
  static const char *const wrong[] = {"12x", "-3", "99999999999999999999"};
  char line[128];
  ck_assert_int_eq(setenv("MAM_RECORD_PROCESS", wrong[_i], 1), 0);
  ck_assert_int_eq(run("pairs", path), 0);
  (void)snprintf(line, sizeof line,
                 "mam: MAM_RECORD_PROCESS=%s is not understood: expected a process's number; it is ignored\n",
                 wrong[_i]);
  ck_assert_str_eq(said, line);
  read_record(path);
  ck_assert_uint_gt(count_of(RECORD_ALLOCATE), 0);
}
END_TEST

START_TEST(a_pipe_is_not_written_to) {
  ck_assert_int_eq(mkfifo(path, 0666), 0);
  ck_assert_int_eq(run("pairs", path), 0);
  ck_assert_msg(strstr(said, "no record, so it is not written over") != NULL &&
                    strchr(said, '\n') == said + strlen(said) - 1,
                "it says: %s", said);
}
END_TEST

START_TEST(a_disk_that_fills_up_cuts_the_record) {
  ck_assert_int_eq(run("small disk", path), 0);
  ck_assert_ptr_nonnull(strstr(said, "File too large; no more is recorded"));
  ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
  read_record(path);
  ck_assert(record.cut);
  ck_assert_uint_gt(count_of(RECORD_ALLOCATE), 100);
}
END_TEST

START_TEST(a_limit_of_file_sizes_ends_no_program) {
  ck_assert_int_eq(run("no disk", path), 0);
  ck_assert_int_eq(unlink("record.limited"), 0);
}
END_TEST

#ifndef __SANITIZE_THREAD__
START_TEST(a_file_of_the_program_s_is_not_written_to) {
  char name[256], text[64] = "";
  ck_assert_int_eq(run("closes all", path), 0);
  ck_assert_ptr_nonnull(strstr(said, "the program has closed the record"));
  ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
  ck_assert_uint_eq(files_like("record.own", name, sizeof name), 1);
  FILE *file = fopen(name, "r");
  ck_assert_ptr_nonnull(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  ck_assert_str_eq(text, "hello\nworld\n");
  read_record(path);
  ck_assert(record.cut);
}
END_TEST
#endif

START_TEST(a_record_of_before_is_written_over_and_nothing_else) {
  ck_assert_int_eq(run("pairs", path), 0);
  ck_assert_int_eq(run("steps", path), 0);
  read_record(path);
  ck_assert_uint_eq(count_of(RECORD_ALLOCATE), 3);
  ck_assert_uint_eq(files_like("*", NULL, 0), 1);
  FILE *file = fopen(path, "w");
  ck_assert_int_ge(fputs("import torch\n", file), 0);
  fclose(file);
  ck_assert_int_eq(run("steps", path), 0);
  ck_assert_ptr_nonnull(strstr(said, "no record, so it is not written over"));
  struct stat status;
  ck_assert_int_eq(stat(path, &status), 0);
  ck_assert_int_eq(status.st_size, 13);
}
END_TEST

START_TEST(a_percent_p_is_the_process) {
  char name[256], first[256];
  (void)snprintf(name, sizeof name, "%s/a.%%p.rec", folder);
  ck_assert_int_eq(run("steps", name), 0);
  ck_assert_uint_eq(files_like("a.*.rec", first, sizeof first), 1);
  read_record(first);
  (void)snprintf(name, sizeof name, "%s/a.%llu.rec", folder, (unsigned long long)record.process);
  ck_assert_str_eq(name, first);
}
END_TEST

START_TEST(a_program_without_calls_leaves_no_file) {
  ck_assert_int_eq(run("nothing", path), 0);
  ck_assert_str_eq(said, "");
  ck_assert_uint_eq(files_like("*", NULL, 0), 0);
}
END_TEST

/* ---- mam-bench replay ---- */

/* A record of four blocks, in MiB, whose numbers can be worked out by hand:
 *
 *   A 10, B 20, C 30 are allocated; B is freed; D 8 and E 16 are allocated.  The peak is 64, at the end.
 *
 * In a chunk without an end, best fit puts D into B's hole and E behind C, up to 76.  In a chunk of 68 MiB the hole
 * behind C has 8 MiB, less than B's 20, so D goes there, and E into B's hole.  In a chunk of 66 MiB D goes into B's
 * hole, and E finds no place.
 */
static void write_by_hand(void) {
  struct record_file file;
  const uint64_t mib = 1 << 20, base = 0x7f0000000000;
  ck_assert(writer_open(&file, path, NULL));
  uint32_t one = record_file_thread(&file, "one"), two = record_file_thread(&file, "two");
  uint32_t layer = record_file_site(&file, "prog", 1, "layer+0x1"),
           loss = record_file_site(&file, "prog", 2, "loss+0x2");
  uint32_t epoch = record_file_text(&file, "epoch 1"), pass = record_file_text(&file, "forward");
  (void)record_file_context(&file, 1, 0);
  record_file_event(&file, one, &(struct record_item){.kind = RECORD_MARK, .ticks = 500, .text = epoch});
  writer_allocate(&file, one, 1000, base, 10 * mib, layer);
  writer_allocate(&file, one, 2000, base + 10 * mib, 20 * mib, layer);
  writer_allocate(&file, one, 3000, base + 30 * mib, 30 * mib, loss);
  writer_free(&file, two, 4000, base + 10 * mib);
  record_file_event(&file, two, &(struct record_item){.kind = RECORD_PUSH, .ticks = 4500, .text = pass});
  writer_allocate(&file, two, 5000, base + 10 * mib, 8 * mib, loss);
  writer_allocate(&file, two, 6000, base + 60 * mib, 16 * mib, layer);
  record_file_event(&file, two, &(struct record_item){.kind = RECORD_POP, .ticks = 6500});
  writer_free(&file, one, 7000, base);
  writer_close(&file, 1000000);
}

static char output[65536];

static int shell(const char *format, const char *argument) {
  char command[512];
  (void)snprintf(command, sizeof command, format, argument);
  FILE *pipe = popen(command, "r");
  ck_assert_ptr_nonnull(pipe);
  output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
  int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int bench(const char *arguments) { return shell("./mam-bench replay %s 2>&1", arguments); }

static void says(const char *text) {
  ck_assert_msg(strstr(output, text) != NULL, "\"%s\" is not in: %s", text, output);
}

/* The numbers of a rule's row in the CSV. */
static void row_of(const char *rule, double *numbers, size_t count) {
  char csv[256], line[512];
  (void)snprintf(csv, sizeof csv, "%s/replay.csv", folder);
  FILE *file = fopen(csv, "r");
  ck_assert_ptr_nonnull(file);
  while (fgets(line, sizeof line, file) != NULL && strncmp(line, rule, strlen(rule)) != 0)
    continue;
  fclose(file);
  char *at = line + strlen(rule);
  for (size_t i = 0; i < count; i++) {
    ck_assert_int_eq(*at, ',');
    numbers[i] = strtod(at + 1, &at);
  }
}

START_TEST(a_replay_has_the_numbers_that_a_hand_finds) {
  enum { CALLS, PEAK, SMALLEST, GROWN, NUMBERS };
  char arguments[256];
  double numbers[NUMBERS];
  const double mib = 1 << 20;
  write_by_hand();
  (void)snprintf(arguments, sizeof arguments, "--csv %s %s", folder, path);
  ck_assert_int_eq(bench(arguments), 0);
  says("record of process 4711: prog --option");
  says("5 allocations, 0 refused, 2 threads, 2 call sites");
  says("peak of live bytes: 64 MiB in 4 blocks, 0.000006 s after the beginning, after the mark \"epoch 1\", in the "
       "range \"forward\"");
  says("38 MiB   59.4 %        2 blocks  loss+0x2");
  says("26 MiB   40.6 %        2 blocks  layer+0x1");
  says("\nRecommended: ");
  says("MAM_LIMIT=");
  row_of("best fit", numbers, NUMBERS);
  ck_assert_double_eq(numbers[CALLS], 10); /* with the frees of what is live in the end */
  ck_assert_double_eq(numbers[PEAK], 64 * mib);
  ck_assert_double_eq(numbers[SMALLEST], 68 * mib);
  ck_assert_double_eq(numbers[GROWN], 76 * mib);
  static const char *const rules[] = {"fenced", "stream", "immediate", "tagged"};
  for (size_t i = 0; i < 4; i++) {
    row_of(rules[i], numbers, NUMBERS);
    ck_assert_double_eq(numbers[PEAK], 64 * mib);
    ck_assert_double_ge(numbers[SMALLEST], 66 * mib);
    ck_assert_double_le(numbers[SMALLEST], 76 * mib);
    ck_assert_double_ge(numbers[GROWN], 64 * mib);
    ck_assert_double_le(numbers[GROWN], 96 * mib);
  }
}
END_TEST

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* these need terabytes of addresses */
/* A record with more than twice the memory of this machine.  A replay touches nothing, so it needs only addresses. */
static size_t write_large(void) {
  enum { BLOCKS = 64 };
  struct record_file file;
  const uint64_t base = 0x7f0000000000;
  size_t machine_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  size_t block_bytes = machine_bytes / BLOCKS * 5 / 2 / 512 * 512;
  ck_assert(writer_open(&file, path, NULL));
  uint32_t thread = record_file_thread(&file, "one"), site = record_file_site(&file, "prog", 1, "layer+0x1");
  (void)record_file_context(&file, 1, 0);
  for (uint64_t i = 0; i < BLOCKS; i++)
    writer_allocate(&file, thread, 1000 + i, base + i * block_bytes, block_bytes, site);
  writer_close(&file, 1000000);
  return BLOCKS * block_bytes;
}

START_TEST(a_record_larger_than_the_machine_can_be_replayed) {
  enum { CALLS, PEAK, SMALLEST, GROWN, NUMBERS };
  char arguments[256];
  double numbers[NUMBERS], peak = (double)write_large();
  struct rusage usage;
  (void)snprintf(arguments, sizeof arguments, "--csv %s %s", folder, path);
  ck_assert_msg(bench(arguments) == 0, "%s", output);
  row_of("fenced", numbers, NUMBERS);
  ck_assert_double_eq(numbers[PEAK], peak);
  ck_assert_double_ge(numbers[GROWN], peak);
  ck_assert_double_lt(numbers[GROWN], 1.01 * peak);
  ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
  ck_assert_int_lt(usage.ru_maxrss, 1 << 20); /* KiB */
}
END_TEST

/* The system does not give so many addresses, and a line says so. */
START_TEST(a_replay_without_addresses_says_so) {
  write_large();
  ck_assert_int_eq(shell("ulimit -v 4194304; exec ./mam-bench replay %s 2>&1", path), 1);
  says("mam-bench: replay: this machine has no addresses for the record's memory: ");
}
END_TEST
#endif

START_TEST(a_replay_refuses_what_is_no_record) {
  char arguments[256];
  ck_assert_int_eq(bench(""), 2);
  says("a record is missing");
  ck_assert_int_eq(bench("one two"), 2);
  ck_assert_int_eq(bench("--context x one"), 2);
  ck_assert_int_eq(bench("/nowhere/at/all"), 1);
  says("/nowhere/at/all: No such file or directory");
  ck_assert_int_eq(bench("/dev/null"), 1);
  says("it is empty");
  ck_assert_int_eq(bench("Makefile"), 1);
  says("it is no record");
  write_by_hand();
  (void)snprintf(arguments, sizeof arguments, "--context 1 %s", path);
  ck_assert_int_eq(bench(arguments), 1);
  says("has no context or pool 1");
}
END_TEST

/* A record of a real program can be replayed by all rules. */
START_TEST(a_program_s_record_can_be_replayed) {
  ck_assert_int_eq(run("threads", path), 0);
  ck_assert_int_eq(bench(path), 0);
  says("120000 allocations, 0 refused, 5 threads");
  says("\nRecommended: ");
}
END_TEST

/* What a mark says can neither control a terminal nor fill it. */
START_TEST(a_replay_prints_texts_as_texts) {
  struct record_file file;
  char text[4097];
  memset(text, 'x', sizeof text - 1);
  memcpy(text,
         "\x1b]0;t\a\n\xc2\x9b"
         "31m \xff\xc3\xa9",
         16);
  text[sizeof text - 1] = '\0';
  ck_assert(writer_open(&file, path, NULL));
  uint32_t thread = record_file_thread(&file, "one"), mark = record_file_text(&file, text);
  uint32_t site = record_file_site(&file, "prog", 1, "\x1b[2J");
  (void)record_file_context(&file, 1, 0);
  record_file_event(&file, thread, &(struct record_item){.kind = RECORD_MARK, .ticks = 1, .text = mark});
  record_file_event(&file, thread, &(struct record_item){.kind = RECORD_PUSH, .ticks = 2, .text = mark});
  writer_allocate(&file, thread, 1000, 1 << 20, 1 << 20, site);
  writer_close(&file, 1000000);
  ck_assert_int_eq(bench(path), 0);
  says("after the mark \"\\x1b]0;t\\x07\\x0a\\xc2\\x9b31m \\xff\xc3\xa9xxx");
  says("xxx...\", in the range \"\\x1b]0;t");
  says("1 blocks  \\x1b[2J\n");
  for (const char *at = output; *at != '\0'; at++)
    ck_assert(*at == '\n' || (unsigned char)*at >= ' ');
  ck_assert_uint_lt(strlen(output), 4096);
}
END_TEST

START_TEST(a_created_pool_is_not_the_default_pool) {
  char arguments[256];
  ck_assert_int_eq(run("created pool", path), 0);
  read_record(path);
  ck_assert_uint_eq(record.context_count, 2);
  const struct record_event *created = event_of(RECORD_ALLOCATE, 0), *own = event_of(RECORD_ALLOCATE, 1);
  ck_assert(record.contexts[created->context].created);
  ck_assert(!record.contexts[own->context].created);
  ck_assert_int_eq(bench(path), 0);
  says("peak of live bytes: 40 MiB");
  says("a pool that the program created");
  says("MAM_PoolOptions.limit_bytes = (size_t)");
  ck_assert_ptr_null(strstr(output, "MAM_LIMIT"));
  ck_assert_ptr_null(strstr(output, "mam-run"));
  (void)snprintf(arguments, sizeof arguments, "--context %u %s", own->context, path);
  ck_assert_int_eq(bench(arguments), 0);
  says("peak of live bytes: 10 MiB");
  says("the default pool of a context");
  says("MAM_LIMIT=");
}
END_TEST

/* The pool of a program that varies would do with less than it holds without a limit, or needs more: by chance.  So a
 * chunk may be recommended in its place; then it runs again. */
START_TEST(the_program_runs_within_the_limit_that_is_recommended) {
  static const char name[] = "MAM_LIMIT=";
  enum { ATTEMPTS = 20 };
  char limit[32];
  for (int i = 0; i < ATTEMPTS && (i == 0 || strstr(output, name) == NULL); i++) {
    ck_assert_int_eq(run("varies", path), 0);
    ck_assert_int_eq(bench(path), 0);
  }
  says(name);
  const char *at = strstr(output, name) + strlen(name);
  (void)snprintf(limit, sizeof limit, "%.*s", (int)strcspn(at, "\n"), at);
  (void)setenv("MAM_LIMIT", limit, 1);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(run("varies", path), 0);
  (void)unsetenv("MAM_LIMIT");
}
END_TEST

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
    if (argc > 1 && strcmp(argv[1], programs[i].name) == 0)
      return programs[i].run();
  Suite *suite = suite_create("record");
  TCase *cases = tcase_create("programs"), *files = tcase_create("files");
  tcase_set_timeout(cases, 30); /* a million blocks, with all checks */
  tcase_add_checked_fixture(cases, folder_make, folder_remove);
  tcase_add_test(cases, what_is_asked_for_is_recorded);
  tcase_add_test(cases, ranges_of_nvtx_are_recorded);
  tcase_add_test(cases, blocks_go_from_thread_to_thread);
  tcase_add_test(cases, threads_that_end_lose_nothing);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* a child would start a thread */
  tcase_add_test(cases, a_forked_child_has_a_file_of_its_own);
  tcase_add_loop_test(cases, a_child_does_not_write_over_its_parent_s, 0, 2);
#endif
  tcase_add_test(cases, a_killed_program_leaves_its_record);
  tcase_add_test(cases, so_does_one_that_aborts);
  tcase_add_test(cases, after_an_exec_there_is_another_file);
  tcase_add_test(cases, a_free_after_the_end_is_recorded);
  tcase_add_test(cases, a_quick_exit_loses_nothing);
  tcase_add_test(cases, a_million_blocks_may_be_live);
  tcase_add_test(cases, the_end_of_a_pool_ends_its_blocks);
  suite_add_tcase(suite, cases);
  tcase_set_timeout(files, 30); /* calls that fill a disk, under a sanitizer */
  tcase_add_checked_fixture(files, folder_make, folder_remove);
  tcase_add_loop_test(files, a_file_that_cannot_be_written_is_said_once, 0, 3);
  tcase_add_loop_test(files, a_number_of_mam_run_that_is_none_is_ignored_and_said_once, 0, 3);
  tcase_add_test(files, a_pipe_is_not_written_to);
  tcase_add_test(files, a_disk_that_fills_up_cuts_the_record);
  tcase_add_test(files, a_limit_of_file_sizes_ends_no_program);
#ifndef __SANITIZE_THREAD__ /* it reports that the program closes a file of the library */
  tcase_add_test(files, a_file_of_the_program_s_is_not_written_to);
#endif
  tcase_add_test(files, a_record_of_before_is_written_over_and_nothing_else);
  tcase_add_test(files, a_percent_p_is_the_process);
  tcase_add_test(files, a_program_without_calls_leaves_no_file);
  suite_add_tcase(suite, files);
  TCase *replays = tcase_create("replays");
  tcase_set_timeout(replays, 30); /* each test runs several pools */
  tcase_add_checked_fixture(replays, folder_make, folder_remove);
  if (access("mam-bench", X_OK) == 0) { /* this is a build folder */
    tcase_add_test(replays, a_replay_has_the_numbers_that_a_hand_finds);
    tcase_add_test(replays, a_replay_refuses_what_is_no_record);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    tcase_add_test(replays, a_record_larger_than_the_machine_can_be_replayed);
    tcase_add_test(replays, a_replay_without_addresses_says_so);
#endif
    tcase_add_test(replays, a_program_s_record_can_be_replayed);
    tcase_add_test(replays, a_replay_prints_texts_as_texts);
    tcase_add_test(replays, a_created_pool_is_not_the_default_pool);
    tcase_add_test(replays, the_program_runs_within_the_limit_that_is_recommended);
  }
  suite_add_tcase(suite, replays);
  return run_suite(suite);
}
