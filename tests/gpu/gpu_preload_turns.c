/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Several processes fill and empty a device in turns, by cudaMalloc, cudaMallocAsync and cuMemCreate.  One of them, the
 * referee, uses no CUDA: it tells the others, the players, when to fill and to empty, and what all of them hold never
 * exceeds a share of what the device has free.  So with the driver alone no allocation fails.  Players end now and then
 * while they hold memory, by themselves or by a signal.  The same SEED gives the same turns.
 *
 * usage: gpu_preload_turns [-p PLAYERS] [-s SECONDS | -t TURNS] [-f SHARE] [-r] [-d] [-S SEED]
 *   -p  players (3)                            -f  share of what is free, in percent (85)
 *   -s  for so many seconds (10)               -r  blocks of a fill differ in size; otherwise they are equal
 *   -t  so many turns instead                  -d  no player ends before the last turn
 * Ends with 1 if an allocation failed or a byte was wrong, with 77 without a GPU.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

extern char **environ;

enum { PLAYERS_MOST = 16, BLOCKS_MOST = 8192, SAMPLE = 4096, ORDERS = 3, SKIP = 77 };
enum kind { KIND_MALLOC, KIND_ASYNC, KIND_CREATE, KINDS, KIND_MIXED = KINDS };
static const char *const kind_names[] = {"cudaMalloc", "cudaMallocAsync", "cuMemCreate", "mixed"};
static const size_t MIB = (size_t)1 << 20;

enum order_kind { ORDER_ASK, ORDER_FILL, ORDER_EMPTY, ORDER_END };

struct order {
  enum order_kind order;
  enum kind kind;
  bool random;
  uint32_t unit_mib; /* of a block; with random, the largest */
  uint64_t seed, mib;
};

struct answer {
  int error;       /* the first one */
  enum kind kind;  /* of the block that failed */
  uint64_t mib;    /* of that block; to ORDER_ASK, what is free */
  unsigned blocks; /* that the player had by then */
  unsigned wrong;  /* samples */
  double ms;
};

static uint64_t random_next(uint64_t *state) { /* xorshift64* */
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(2685821657736338717);
}

static uint64_t random_below(uint64_t *state, uint64_t limit) { return (random_next(state) >> 16) % limit; }

static double now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* ---- A player ---------------------------------------------------------------------------------------------------- */

struct block {
  enum kind kind;
  CUmemGenericAllocationHandle handle; /* of KIND_CREATE */
  char *address;
  size_t bytes;
};
static struct block blocks[BLOCKS_MOST];
static unsigned blocks_count;
static uint64_t blocks_seed;

/* The driver's functions, found as the runtime finds them. */
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
static CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
static CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
static CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
static CUresult (*unmap)(CUdeviceptr, size_t);
static CUresult (*address_free)(CUdeviceptr, size_t);
static CUresult (*release)(CUmemGenericAllocationHandle);

static int find(void *function, const char *name) {
  enum cudaDriverEntryPointQueryResult found;
  enum { ENTRY_VERSION = 12000 };
  int error = (int)cudaGetDriverEntryPointByVersion(name, (void **)function, ENTRY_VERSION, cudaEnableDefault, &found);
  return error != 0 ? error : found == cudaDriverEntryPointSuccess ? 0 : (int)cudaErrorNotSupported;
}

static int player_begin(void) {
  int error = (int)cudaFree(NULL); /* makes the context */
  error = error != 0 ? error : find(&create, "cuMemCreate");
  error = error != 0 ? error : find(&reserve, "cuMemAddressReserve");
  error = error != 0 ? error : find(&map, "cuMemMap");
  error = error != 0 ? error : find(&set_access, "cuMemSetAccess");
  error = error != 0 ? error : find(&unmap, "cuMemUnmap");
  error = error != 0 ? error : find(&address_free, "cuMemAddressFree");
  return error != 0 ? error : find(&release, "cuMemRelease");
}

static int mapped_new(struct block *block) {
  const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
  const CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  CUresult error = create(&block->handle, block->bytes, &properties, 0);
  if (error != CUDA_SUCCESS)
    return (int)error;
  error = reserve(&address, block->bytes, 0, 0, 0);
  if (error == CUDA_SUCCESS) {
    error = map(address, block->bytes, 0, block->handle, 0);
    if (error == CUDA_SUCCESS && (error = set_access(address, block->bytes, &access, 1)) != CUDA_SUCCESS)
      (void)unmap(address, block->bytes);
    if (error != CUDA_SUCCESS)
      (void)address_free(address, block->bytes);
  }
  if (error != CUDA_SUCCESS)
    (void)release(block->handle);
  block->address = (char *)(uintptr_t)address;
  return (int)error;
}

static int block_new(struct block *block) {
  switch (block->kind) {
  case KIND_MALLOC:
    return (int)cudaMalloc((void **)&block->address, block->bytes);
  case KIND_ASYNC:
    return (int)cudaMallocAsync((void **)&block->address, block->bytes, 0);
  default:
    return mapped_new(block);
  }
}

static int block_end(const struct block *block) {
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)block->address;
  if (block->kind == KIND_MALLOC)
    return (int)cudaFree(block->address);
  if (block->kind == KIND_ASYNC)
    return (int)cudaFreeAsync(block->address, 0);
  int error = (int)unmap(address, block->bytes);
  error = error != 0 ? error : (int)release(block->handle);
  return error != 0 ? error : (int)address_free(address, block->bytes);
}

/* What all bytes of a block are. */
static unsigned char block_byte(unsigned i) { return (unsigned char)((blocks_seed + i) * 2654435761U >> 13); }

/* Samples at the beginning, in the middle and at the end of each block that are not what was written. */
static unsigned blocks_wrong(int *error) {
  static unsigned char sample[SAMPLE];
  unsigned wrong = 0;
  for (unsigned i = 0; i < blocks_count; i++)
    for (unsigned part = 0; part < 3; part++) {
      size_t at = (blocks[i].bytes - SAMPLE) / 2 * part;
      int result = (int)cudaMemcpy(sample, blocks[i].address + at, SAMPLE, cudaMemcpyDeviceToHost);
      *error = *error != 0 ? *error : result;
      bool good = result == 0;
      for (unsigned k = 0; k < SAMPLE && good; k++)
        good = sample[k] == block_byte(i);
      wrong += !good;
    }
  return wrong;
}

static struct answer player_fill(const struct order *order) {
  struct answer answer = {0};
  uint64_t random = blocks_seed = order->seed, left = order->mib, least = order->kind == KIND_MALLOC ? 2 : 64;
  while (left >= least && blocks_count < BLOCKS_MOST && answer.error == 0) {
    struct block *block = &blocks[blocks_count];
    uint64_t mib = order->random ? least + random_below(&random, order->unit_mib) / least * least : order->unit_mib;
    mib = mib < left ? mib : left / least * least;
    block->kind = order->kind == KIND_MIXED ? (enum kind)random_below(&random, KINDS) : order->kind;
    block->bytes = mib * MIB;
    left -= mib;
    answer.error = block_new(block);
    answer.kind = block->kind;
    answer.mib = mib;
    blocks_count += answer.error == 0;
  }
  int error = 0;
  for (unsigned i = 0; i < blocks_count && error == 0; i++)
    error = (int)cudaMemsetAsync(blocks[i].address, block_byte(i), blocks[i].bytes, 0);
  answer.blocks = blocks_count;
  answer.wrong = blocks_wrong(&error);
  answer.error = answer.error != 0 ? answer.error : error;
  (void)cudaGetLastError();
  return answer;
}

/* The stream-ordered pool gives all back, so that with the driver alone the memory is there for the others. */
static struct answer player_empty(void) {
  struct answer answer = {.blocks = blocks_count};
  cudaMemPool_t pool = NULL;
  answer.wrong = blocks_wrong(&answer.error);
  while (blocks_count > 0) {
    int error = block_end(&blocks[--blocks_count]);
    answer.error = answer.error != 0 ? answer.error : error;
  }
  int error = (int)cudaDeviceSynchronize();
  error = error != 0 ? error : (int)cudaDeviceGetDefaultMemPool(&pool, 0);
  error = error != 0 ? error : (int)cudaMemPoolTrimTo(pool, 0);
  answer.error = answer.error != 0 ? answer.error : error;
  return answer;
}

static int player(void) {
  struct order order;
  struct answer answer = {.error = player_begin()};
  while (write(ORDERS, &answer, sizeof answer) == (ssize_t)sizeof answer &&
         read(ORDERS, &order, sizeof order) == (ssize_t)sizeof order && order.order != ORDER_END) {
    double start = now_ms();
    size_t free_bytes = 0, total_bytes = 0;
    if (order.order == ORDER_FILL)
      answer = player_fill(&order);
    else if (order.order == ORDER_EMPTY)
      answer = player_empty();
    else
      answer = (struct answer){.error = (int)cudaMemGetInfo(&free_bytes, &total_bytes)};
    answer.mib = order.order == ORDER_ASK ? free_bytes / MIB : answer.mib;
    answer.ms = now_ms() - start;
  }
  return 0;
}

/* ---- The referee ------------------------------------------------------------------------------------------------- */

struct seat {
  pid_t process;
  int orders;
  uint64_t held_mib; /* as ordered */
  bool asked;        /* an answer is to come */
  struct order order;
};

static struct {
  unsigned players, share, seconds, turns;
  bool random, no_deaths;
  uint64_t seed;
} options = {.players = 3, .share = 85, .seconds = 10, .seed = 22};

static struct seat seats[PLAYERS_MOST];
static struct {
  unsigned fills[KIND_MIXED + 1], deaths, failed, wrong, lost;
  uint64_t blocks, mib;
  double slowest_ms[ORDER_END];
} sums;

static void failure(const char *what, const struct seat *seat, const struct answer *answer) {
  if (sums.failed++ < 10)
    printf("player %d: %s: %d; %s of %llu MiB after %u blocks, fill of %llu MiB in %u\n", (int)(seat - seats), what,
           answer->error, kind_names[answer->kind], (unsigned long long)answer->mib, answer->blocks,
           (unsigned long long)seat->order.mib, seat->order.unit_mib);
}

/* Waits for a player's answer.  False if the player is gone. */
static bool seat_hear(struct seat *seat, struct answer *answer) {
  seat->asked = false;
  if (read(seat->orders, answer, sizeof *answer) != (ssize_t)sizeof *answer)
    return sums.lost++, printf("player %d is gone\n", (int)(seat - seats)), false;
  return true;
}

static bool seat_start(struct seat *seat, char *program) {
  int pair[2];
  posix_spawn_file_actions_t actions;
  char *arguments[] = {program, (char *)"player", NULL};
  struct answer answer;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 || posix_spawn_file_actions_init(&actions) != 0)
    return false;
  int error = posix_spawn_file_actions_adddup2(&actions, pair[1], ORDERS);
  error = error != 0 ? error : posix_spawn(&seat->process, "/proc/self/exe", &actions, NULL, arguments, environ);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(pair[1]);
  *seat = (struct seat){.process = seat->process, .orders = pair[0]};
  if (error != 0 || !seat_hear(seat, &answer))
    return false;
  if (answer.error != 0)
    failure("has no context", seat, &answer);
  return answer.error == 0;
}

static void seat_end(struct seat *seat, bool by_signal) {
  const struct order end = {.order = ORDER_END};
  if (by_signal)
    (void)kill(seat->process, SIGKILL);
  else
    (void)!write(seat->orders, &end, sizeof end);
  int status = 0;
  if (waitpid(seat->process, &status, 0) == seat->process && !by_signal && status != 0)
    sums.lost++, printf("player %d ended with status %d\n", (int)(seat - seats), status);
  (void)close(seat->orders);
  *seat = (struct seat){.orders = -1};
}

static void seat_order(struct seat *seat, const struct order *order) {
  seat->order = *order;
  seat->asked = write(seat->orders, order, sizeof *order) == (ssize_t)sizeof *order;
  seat->held_mib = order->order == ORDER_FILL ? order->mib : order->order == ORDER_EMPTY ? 0 : seat->held_mib;
}

/* Notes what a player did. */
static bool seat_finish(struct seat *seat) {
  struct answer answer;
  if (!seat_hear(seat, &answer))
    return false;
  if (answer.error != 0)
    failure(seat->order.order == ORDER_FILL ? "cannot fill" : "cannot empty", seat, &answer);
  sums.wrong += answer.wrong;
  if (answer.ms > sums.slowest_ms[seat->order.order])
    sums.slowest_ms[seat->order.order] = answer.ms;
  if (seat->order.order == ORDER_FILL) {
    sums.fills[seat->order.kind]++;
    sums.blocks += answer.blocks;
    sums.mib += seat->order.mib;
  }
  return true;
}

static struct order fill_choose(uint64_t *random, uint64_t mib) {
  static const uint32_t units[] = {16, 64, 256, 1024, 8192};
  unsigned kind = (unsigned)random_below(random, 6);
  struct order order = {.order = ORDER_FILL, .random = options.random, .mib = mib, .seed = random_next(random) | 1};
  order.kind = kind < 3 ? KIND_MALLOC : (enum kind)(kind - 2);
  unsigned unit = (unsigned)random_below(random, sizeof units / sizeof units[0] + 1);
  order.unit_mib = unit < sizeof units / sizeof units[0] ? units[unit] : (uint32_t)mib; /* all in one block */
  if (order.kind != KIND_MALLOC && order.unit_mib < 64)
    order.unit_mib = 64;
  while (mib / order.unit_mib * 2 >= BLOCKS_MOST)
    order.unit_mib *= 2;
  return order;
}

/* One turn: a player fills or empties, or ends; now and then two fill at a time. */
static bool turn(uint64_t *random, uint64_t limit_mib, char *program) {
  enum { LEAST = 64 };
  uint64_t held = 0, what = random_below(random, 100);
  unsigned first = (unsigned)random_below(random, options.players), asked = 0;
  bool sound = true;
  for (unsigned i = 0; i < options.players; i++)
    held += seats[i].held_mib;
  if (what < 3 && !options.no_deaths) {
    sums.deaths++;
    seat_end(&seats[first], what == 0);
    return seat_start(&seats[first], program);
  }
  struct seat *seat = &seats[first];
  if (seat->held_mib > 0) {
    seat_order(seat, &(struct order){.order = ORDER_EMPTY});
    return seat_finish(seat);
  }
  unsigned fills = what < 30 ? 2 : 1;
  for (unsigned i = 0; i < options.players && asked < fills && limit_mib - held >= LEAST; i++) {
    seat = &seats[(first + i) % options.players];
    if (seat->held_mib > 0)
      continue;
    uint64_t room = (limit_mib - held) / (fills - asked), mib = room;
    if (random_below(random, 2) != 0)
      mib = LEAST + random_below(random, room);
    mib = (mib < room ? mib : room) / LEAST * LEAST;
    if (mib == 0)
      break;
    struct order order = fill_choose(random, mib);
    seat_order(seat, &order);
    held += mib;
    asked++;
  }
  for (unsigned i = 0; i < options.players; i++)
    if (seats[i].asked)
      sound = seat_finish(&seats[i]) && sound;
  return sound;
}

static int referee(char *program) {
  const struct order ask = {.order = ORDER_ASK};
  uint64_t random = options.seed | 1;
  struct answer answer;
  for (unsigned i = 0; i < options.players; i++)
    if (!seat_start(&seats[i], program))
      return sums.lost > 0 ? 1 : SKIP;
  seat_order(&seats[0], &ask);
  if (!seat_hear(&seats[0], &answer) || answer.error != 0)
    return 1;
  uint64_t limit_mib = answer.mib * options.share / 100;
  printf("%u players, %llu of %llu MiB\n", options.players, (unsigned long long)limit_mib,
         (unsigned long long)answer.mib);
  (void)fflush(stdout);
  double start = now_ms();
  unsigned turns = 0;
  bool sound = true;
  while (sound && (options.turns > 0 ? turns < options.turns : now_ms() - start < options.seconds * 1e3)) {
    sound = turn(&random, limit_mib, program);
    turns++;
  }
  for (unsigned i = 0; i < options.players; i++)
    if (seats[i].process > 0)
      seat_end(&seats[i], false);
  printf("%u turns in %.1f s; fills: %u by cudaMalloc, %u by cudaMallocAsync, %u by cuMemCreate, %u mixed; "
         "%llu blocks, %llu MiB; %u players ended; slowest fill %.0f ms, empty %.0f ms\n",
         turns, (now_ms() - start) / 1e3, sums.fills[0], sums.fills[1], sums.fills[2], sums.fills[3],
         (unsigned long long)sums.blocks, (unsigned long long)sums.mib, sums.deaths, sums.slowest_ms[ORDER_FILL],
         sums.slowest_ms[ORDER_EMPTY]);
  printf("%u failed, %u samples wrong, %u players lost\n", sums.failed, sums.wrong, sums.lost);
  return !sound || sums.failed > 0 || sums.wrong > 0 || sums.lost > 0;
}

int main(int count, char **arguments) {
  if (count == 2 && strcmp(arguments[1], "player") == 0)
    return player();
  for (int option; (option = getopt(count, arguments, "p:s:t:f:rdS:")) != -1;)
    switch (option) {
    case 'p':
      options.players = (unsigned)strtoul(optarg, NULL, 10);
      break;
    case 's':
      options.seconds = (unsigned)strtoul(optarg, NULL, 10);
      break;
    case 't':
      options.turns = (unsigned)strtoul(optarg, NULL, 10);
      break;
    case 'f':
      options.share = (unsigned)strtoul(optarg, NULL, 10);
      break;
    case 'r':
      options.random = true;
      break;
    case 'd':
      options.no_deaths = true;
      break;
    case 'S':
      options.seed = strtoull(optarg, NULL, 10);
      break;
    default:
      return 2;
    }
  if (options.players == 0 || options.players > PLAYERS_MOST || options.share == 0 || options.share > 100 ||
      optind != count)
    return fprintf(stderr, "%s: a number of players from 1 to %d, and a share from 1 to 100\n", arguments[0],
                   PLAYERS_MOST),
           2;
  return referee(arguments[0]);
}
