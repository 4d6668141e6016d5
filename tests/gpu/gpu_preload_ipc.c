/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of one process read and written by another, through legacy IPC handles.
 * usage: gpu_preload_ipc export|import 3<FROM_THE_OTHER 4>TO_THE_OTHER
 *
 * Two processes talk over descriptors 3 and 4; gpu_preload_ipc.sh starts them with and without mam-run on either side.
 * Both do what programs of this kind do: the exporter sends the handle of a pointer inside a block and the pointer's
 * distance from its base, as cuMemGetAddressRange says it; the importer opens the handle and adds the distance.  Each
 * prints what it was answered and whether the bytes were right.
 * Exits with 0 if all was asked, 1 if the other one failed, 77 without a GPU.
 */
#include <signal.h>

#include "gpu_preload.h"

enum { WATCHDOG_S = 60, ROUNDS = 2, READ_FD = 3, WRITE_FD = 4, DMA_BUF_FD = 1 };

static const size_t block_bytes[] = {1000, 32768, 100000, 2 * MIB, 3 * MIB + 100, 24 * MIB};

struct export {
  size_t bytes, distance;
  int byte; /* what the importer should find there */
  unsigned char handle[DOOR_HANDLE_BYTES];
};

/* What goes through the pipe: a block in which the importer writes, and another one that the importer keeps open
 * meanwhile. Bytes of 0 end the conversation. */
struct message {
  struct export block, other;
  int new_byte; /* what the importer writes */
};

struct reply {
  int open, other_open, right, other_right, write, close;
};

__attribute__((format(printf, 2, 3))) void tell(const char *what, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("%s = ", what);
  (void)vprintf(format, arguments);
  (void)putchar('\n');
  va_end(arguments);
  (void)fflush(stdout);
}

static int block_range_of(const void *pointer, const unsigned char **base) {
  int (*range)(unsigned long long *, size_t *, unsigned long long);
  unsigned long long start = 0;
  size_t bytes = 0;
  *(void **)&range = door_function("cuMemGetAddressRange_v2", 3020);
  int error = range == NULL ? -1 : range(&start, &bytes, (unsigned long long)(uintptr_t)pointer);
  *base = (const unsigned char *)(uintptr_t)start;
  return error;
}

static bool holds(const unsigned char *block, int byte, size_t bytes) {
  unsigned char *copy = malloc(bytes);
  bool right = copy != NULL && door_read(copy, block, bytes) == 0;
  for (size_t i = 0; right && i < bytes; i++)
    right = copy[i] == (unsigned char)byte;
  free(copy);
  return right;
}

static void message_send(const void *message, size_t bytes) {
  if (write(WRITE_FD, message, bytes) != (ssize_t)bytes) {
    printf("FAIL: the other process does not listen\n");
    exit(1);
  }
}

static void message_receive(void *message, size_t bytes) {
  size_t got = 0;
  ssize_t now = 1;
  while (got < bytes && now > 0) {
    now = read(READ_FD, (char *)message + got, bytes - got);
    got += now > 0 ? (size_t)now : 0;
  }
  if (got < bytes) {
    printf("FAIL: the other process ended early\n");
    exit(1);
  }
}

/* ---- The exporter ------------------------------------------------------------------------------------------------ */

/* Asks for a descriptor of the whole pages that the block lies in. */
static void dma_buf_ask(const char *what, const unsigned char *block, size_t bytes) {
  unsigned long long page = (unsigned long long)sysconf(_SC_PAGESIZE);
  unsigned long long begin = (uintptr_t)block / page * page, end = ((uintptr_t)block + bytes + page - 1) / page * page;
  int (*get)(void *, unsigned long long, size_t, int, unsigned long long);
  int descriptor = -1;
  *(void **)&get = door_function("cuMemGetHandleForAddressRange", 11070);
  int error = get == NULL ? -1 : get(&descriptor, begin, (size_t)(end - begin), DMA_BUF_FD, 0);
  tell(what, "dma-buf %d", error);
  if (error == 0)
    (void)close(descriptor);
}

/* Fills in what another process needs to find the bytes from block + inside on. */
static bool export_describe(const char *what, unsigned char *block, size_t bytes, size_t inside, int byte,
                            struct export *export) {
  const unsigned char *base = NULL;
  *export = (struct export){.bytes = bytes - inside, .byte = byte};
  int handle = door_handle_get(export->handle, block + inside), range = block_range_of(block + inside, &base);
  tell(what, "handle %d, range %d", handle, range);
  if (handle == 0 && range == 0)
    export->distance = (size_t)(block + inside - base);
  return handle == 0 && range == 0;
}

/* A refused handle is an answer, too: no bytes are wrong. */
static void block_export(const char *what, unsigned char *block, const struct export *other, size_t bytes,
                         size_t inside, int byte) {
  struct message message = {.other = *other, .new_byte = byte + 100};
  struct reply reply;
  if (!export_describe(what, block, bytes, inside, byte, &message.block))
    return;
  NEED(door_fill(block, byte, bytes));
  NEED(door_wait_all());
  message_send(&message, sizeof message);
  message_receive(&reply, sizeof reply);
  if (reply.open != 0 || reply.other_open != 0)
    return tell(what, "refused");
  tell(what, "there: right: %s, another's: %s, write %d, close %d", yes(reply.right), yes(reply.other_right),
       reply.write, reply.close);
  NEED(door_wait_all());
  tell(what, "what the other wrote: %s", yes(holds(block + inside, byte + 100, bytes - inside)));
  if (inside > 0)
    tell(what, "what it did not: %s", yes(holds(block, byte, inside)));
}

/* Exports the middle one of three blocks, so that wrong bytes would show as a neighbour's. */
static void three_export(size_t bytes, int byte) {
  unsigned char *blocks[3];
  struct export other;
  char what[64];
  for (int i = 0; i < 3; i++) {
    void *block = NULL;
    NEED(door_malloc(&block, bytes));
    NEED(door_fill(block, 0xF0 + i, bytes));
    blocks[i] = (unsigned char *)block;
  }
  (void)snprintf(what, sizeof what, "%zu bytes", bytes);
  bool described = export_describe(what, blocks[2], bytes, 1, 0xF2, &other);
  for (int i = 0; i < 2 && described; i++) {
    size_t inside = i == 0 ? 0 : bytes / 2 + 1;
    (void)snprintf(what, sizeof what, "%zu bytes from %zu", bytes, inside);
    block_export(what, blocks[1], &other, bytes, inside, byte + i);
  }
  tell(what, "its neighbours: %s", yes(holds(blocks[0], 0xF0, bytes) && holds(blocks[2], 0xF2, bytes)));
  if (bytes >= 2 * MIB)
    dma_buf_ask(what, blocks[1], bytes);
  for (int i = 0; i < 3; i++)
    tell(what, "free %d", door_free(blocks[i]));
}

static void run_export(void) {
  const struct message last = {.block = {.bytes = 0}};
  for (int round = 0; round < ROUNDS; round++)
    for (size_t i = 0; i < sizeof block_bytes / sizeof block_bytes[0]; i++)
      three_export(block_bytes[i], 1 + 20 * round + 2 * (int)i);
  message_send(&last, sizeof last);
}

/* ---- The importer ------------------------------------------------------------------------------------------------ */

static struct reply block_import(const struct message *message) {
  struct reply reply = {-1, -1, 0, 0, -1, -1};
  void *mapped = NULL, *other = NULL;
  reply.other_open = door_handle_open(&other, message->other.handle);
  reply.open = door_handle_open(&mapped, message->block.handle);
  if (reply.open == 0 && reply.other_open == 0) {
    unsigned char *there = (unsigned char *)mapped + message->block.distance;
    reply.right = holds(there, message->block.byte, message->block.bytes);
    reply.write = door_fill(there, message->new_byte, message->block.bytes);
    reply.other_right =
        holds((unsigned char *)other + message->other.distance, message->other.byte, message->other.bytes);
    NEED(door_wait_all());
  }
  if (reply.open == 0)
    reply.close = door_handle_close(mapped);
  if (reply.other_open == 0)
    NEED(door_handle_close(other));
  return reply;
}

/* The importer's own blocks come and go, so that an address of the exporter may be one of its own. */
static void run_import(void) {
  struct message message;
  for (message_receive(&message, sizeof message); message.block.bytes > 0; message_receive(&message, sizeof message)) {
    size_t bytes = message.block.bytes;
    void *mine = NULL;
    NEED(door_malloc(&mine, bytes));
    NEED(door_fill(mine, 0xCC, bytes));
    struct reply reply = block_import(&message);
    if (reply.open != 0 || reply.other_open != 0)
      tell("import", "refused %d %d", reply.open, reply.other_open);
    else
      tell("import", "right: %s %s", yes(reply.right), yes(reply.other_right));
    tell("own block", "holds: %s", yes(holds(mine, 0xCC, bytes)));
    NEED(door_free(mine));
    message_send(&reply, sizeof reply);
  }
}

int main(int argc, char *argv[]) {
  bool exports = argc == 2 && strcmp(argv[1], "export") == 0;
  if (!exports && (argc != 2 || strcmp(argv[1], "import") != 0))
    return (fprintf(stderr, "usage: gpu_preload_ipc export|import 3<FROM 4>TO\n"), 2);
  (void)signal(SIGPIPE, SIG_IGN);
  (void)alarm(WATCHDOG_S);
  int opened = door_open();
  if (opened == DOOR_SKIP)
    return (printf("SKIP: no CUDA device (%s)\n", door_name), DOOR_SKIP);
  NEED(opened);
  if (exports)
    run_export();
  else
    run_import();
  return 0;
}
