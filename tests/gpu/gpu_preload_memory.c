/* SPDX-License-Identifier: BSD-2-Clause */
/* Questions about allocation: sizes, wrong frees, pitch, free memory, attributes, lack of memory, other kinds of
 * memory. */
#include <cuda.h>

#include "gpu_preload.h"

enum { NEIGHBOURS = 64, NEIGHBOUR_BYTES = 1000, SMALL_BLOCKS = 2000, LARGE_BLOCKS_MAX = 1024 };

static char poison; /* its address is what a pointer holds before a call */

static const char *kind_of(const void *pointer) {
  return pointer == NULL ? "NULL" : pointer == &poison ? "nothing" : "an address";
}

static const char *shown(size_t bytes) {
  static char text[32];
  (void)snprintf(text, sizeof text, "%zu", bytes);
  return text;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static void size_ask(size_t bytes) {
  void *block = &poison;
  int error = door_malloc(&block, bytes);
  char what[64];
  (void)snprintf(what, sizeof what, "malloc(%s)", shown(bytes));
  tell(what, "%d, wrote %s", error, kind_of(block));
  if (error != 0 || block == NULL)
    return;
  const void *base = NULL;
  size_t size = 0;
  int range = block_range((char *)block + bytes - 1, &base, &size);
  tell(what, "range of its last byte: %d, base is it: %s, size %zu", range, yes(base == block), size);
  range = block_range((char *)block + bytes, &base, &size);
  tell(what, "range past its end: is it: %s", yes(range == 0 && base == block));
  tell(what, "aligned to 512: %s", yes((uintptr_t)block % 512 == 0));
  tell(what, "fill %d", door_fill(block, 0x5A, bytes));
  tell(what, "holds: %s", yes(bytes > GIB / 4 || block_holds(block, 0x5A, bytes)));
  tell(what, "free %d", door_free(block));
  tell(what, "free again %d", door_free(block));
}

static void sizes(void) {
  const size_t asked[] = {0,     1,       255, 511,     512,         513,     1000,           4096,     32768, 32769,
                          65536, MIB - 1, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB, 20 * MIB + 512, 64 * MIB, GIB};
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
    size_ask(asked[i]);
}

static void sizes_too_large(void) {
  size_t free_bytes = 0, total_bytes = 0;
  NEED(door_memory(&free_bytes, &total_bytes));
  const size_t asked[] = {total_bytes + MIB, (size_t)1 << 45, (size_t)1 << 50, SIZE_MAX - 511, SIZE_MAX};
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
    size_ask(asked[i]);
  size_t pitch = 7;
  void *block = &poison;
  int error = door_malloc_pitch(&block, &pitch, (size_t)1 << 33, (size_t)1 << 33);
  tell("pitch 2^33 x 2^33", "%d, wrote %s", error, kind_of(block));
}

/* ---- Neighbours and wrong frees ---------------------------------------------------------------------------------- */

static bool apart(unsigned char *const blocks[], int count, size_t bytes) {
  for (int i = 0; i < count; i++)
    for (int k = 0; k < i; k++)
      if (blocks[i] < blocks[k] + bytes && blocks[k] < blocks[i] + bytes)
        return false;
  return true;
}

static void neighbours(void) {
  unsigned char *blocks[NEIGHBOURS];
  bool right = true;
  for (int i = 0; i < NEIGHBOURS; i++)
    blocks[i] = block_new(NEIGHBOUR_BYTES);
  tell("apart", "%s", yes(apart(blocks, NEIGHBOURS, NEIGHBOUR_BYTES)));
  for (int i = 0; i < NEIGHBOURS; i++)
    NEED(door_fill(blocks[i], i + 1, NEIGHBOUR_BYTES));
  for (int i = 0; i < NEIGHBOURS; i++)
    right = right && block_holds(blocks[i], i + 1, NEIGHBOUR_BYTES);
  tell("hold what was written", "%s", yes(right));
  for (int i = 0; i < NEIGHBOURS; i += 2)
    NEED(door_free(blocks[i]));
  for (int i = 1; i < NEIGHBOURS; i += 2)
    right = right && block_holds(blocks[i], i + 1, NEIGHBOUR_BYTES);
  tell("after their neighbours' end", "%s", yes(right));
  for (int i = 1; i < NEIGHBOURS; i += 2)
    NEED(door_free(blocks[i]));
}

static void wrong_free_ask(const char *kind, size_t bytes) {
  unsigned char *block = block_new(bytes);
  NEED(door_fill(block, 0x33, bytes));
  char what[64];
  (void)snprintf(what, sizeof what, "%s block of %zu", kind, bytes);
  tell(what, "free of its second byte %d", door_free(block + 1));
  tell(what, "free of its middle %d", door_free(block + bytes / 2 / 512 * 512 + 256));
  tell(what, "holds: %s", yes(block_holds(block, 0x33, bytes)));
  tell(what, "free %d", door_free(block));
  tell(what, "second free %d", door_free(block));
  tell(what, "free of its middle, after its end %d", door_free(block + 512));
}

static void wrong_frees(void) {
  char here = 0;
  void *host = malloc(4096);
  tell("NULL", "%d", door_free(NULL));
  tell("the stack", "%d", door_free(&here));
  tell("the host's heap", "%d", door_free(host));
  tell("0x1000", "%d", door_free((void *)(uintptr_t)0x1000));
  free(host);
  wrong_free_ask("small", 1000);
  wrong_free_ask("middling", 100000);
  wrong_free_ask("large", 8 * MIB);
  tell("the device", "still works: %d", door_wait_all());
}

/* ---- Pitch ------------------------------------------------------------------------------------------------------- */

static void pitch_ask(size_t width, size_t height) {
  void *block = &poison;
  size_t pitch = 7, size = 0;
  const void *base = NULL;
  char what[64];
  (void)snprintf(what, sizeof what, "%zu x %zu", width, height);
  int error = door_malloc_pitch(&block, &pitch, width, height);
  tell(what, "%d, pitch %zu, wrote %s", error, pitch, kind_of(block));
  if (error != 0 || block == NULL)
    return;
  int range = block_range((char *)block + width - 1, &base, &size);
  tell(what, "range %d, base is it: %s, size %zu", range, yes(base == block), size);
  tell(what, "fill of all rows %d", door_fill(block, 1, pitch * height));
  tell(what, "free %d", door_free(block));
}

static void pitch(void) {
  const size_t widths[] = {0, 1, 511, 512, 513, 1000, 4097, 65536, 1000000}, heights[] = {0, 1, 10, 1000};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
    for (size_t k = 0; k < sizeof heights / sizeof heights[0]; k++)
      pitch_ask(widths[i], heights[k]);
}

/* ---- What is free ------------------------------------------------------------------------------------------------ */

static size_t free_now(void) {
  size_t free_bytes = 0, total_bytes = 0;
  NEED(door_memory(&free_bytes, &total_bytes));
  return free_bytes;
}

/* Whether free memory fell by bytes.  The driver itself takes 2 MiB at a time. */
static const char *fell(size_t before, size_t after, size_t bytes) {
  return yes(after + bytes <= before + 2 * MIB && before <= after + bytes + 4 * MIB);
}

static void memory_large(void) {
  size_t before = free_now();
  unsigned char *block = block_new(256 * MIB);
  size_t between = free_now();
  tell("256 MiB", "fell by that: %s", fell(before, between, 256 * MIB));
  NEED(door_free(block));
  tell("256 MiB", "came back: %s", fell(before, free_now(), 0));
}

static void memory_small(void) {
  static unsigned char *blocks[SMALL_BLOCKS];
  size_t before = free_now();
  for (int i = 0; i < SMALL_BLOCKS; i++)
    blocks[i] = block_new(32768);
  size_t between = free_now();
  tell("2000 of 32 KiB", "fell by that: %s", fell(before, between, SMALL_BLOCKS * (size_t)32768));
  for (int i = 0; i < SMALL_BLOCKS; i++)
    NEED(door_free(blocks[i]));
  tell("2000 of 32 KiB", "came back: %s", fell(before, free_now(), 0));
}

/* The memory that is said to be free can be allocated. */
static void memory(void) {
  size_t free_bytes = 0, total_bytes = 0;
  NEED(door_memory(&free_bytes, &total_bytes));
  tell("total", "%zu", total_bytes);
  tell("total", "at least what is free: %s", yes(free_bytes <= total_bytes));
  memory_large();
  memory_small();
  void *all = NULL;
  tell("all but 1 GiB of what is free", "%d", door_malloc(&all, free_now() - GIB));
  tell("then", "less than 1.1 GiB is free: %s", yes(free_now() < GIB + GIB / 10));
  tell("then", "free %d", door_free(all));
}

static void out_of_memory(void) {
  static void *blocks[LARGE_BLOCKS_MAX];
  size_t before = free_now();
  int count = 0, error = 0;
  while (count < LARGE_BLOCKS_MAX && (error = door_malloc(&blocks[count], GIB)) == 0)
    count++;
  tell("1 GiB blocks", "error %d", error);
  tell("1 GiB blocks", "all but 2 GiB were had: %s", yes((size_t)count * GIB + 2 * GIB > before));
  void *small = NULL;
  error = door_malloc(&small, 1000);
  tell("1000 bytes then", "%d or no memory: %s", 0, yes(error == 0 || error == 2));
  if (error == 0)
    NEED(door_free(small));
  for (int i = 0; i < count; i++)
    NEED(door_free(blocks[i]));
  unsigned char *again = block_new((size_t)count / 2 * GIB);
  tell("half of it in one", "fill %d", door_fill(again, 1, GIB));
  NEED(door_free(again));
  tell("at the end", "all came back: %s", fell(before, free_now(), 0));
}

/* ---- Attributes -------------------------------------------------------------------------------------------------- */

/* Attributes whose value has to be the same number with and without mam-run. */
static const struct {
  CUpointer_attribute attribute;
  const char *name;
} plain_attributes[] = {
    {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "memory type"},
    {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "sync memops"},
    {CU_POINTER_ATTRIBUTE_IS_MANAGED, "is managed"},
    {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "device ordinal"},
    {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "legacy IPC capable"},
    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "range size"},
    {CU_POINTER_ATTRIBUTE_MAPPED, "mapped"},
    {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "allowed handle types"},
    {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "GPU direct RDMA capable"},
    {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "access flags"},
    {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "memory pool"},
};

static int (*attribute_get)(void *, CUpointer_attribute, unsigned long long);

static unsigned long long attribute_of(const void *pointer, CUpointer_attribute attribute, int *error) {
  unsigned long long value = 0;
  *error = attribute_get(&value, attribute, (unsigned long long)(uintptr_t)pointer);
  return value;
}

static void attributes_of(const char *kind, unsigned char *block, size_t inside) {
  char what[96];
  int error = 0;
  struct door_attributes said;
  error = door_attributes(&said, block + inside);
  tell(kind, "attributes %d: type %d, device %d, device pointer is it: %s, host pointer NULL: %s", error, said.type,
       said.device, yes(said.device_pointer_is_it), yes(said.host_pointer_is_null));
  for (size_t i = 0; i < sizeof plain_attributes / sizeof plain_attributes[0]; i++) {
    unsigned long long value = attribute_of(block + inside, plain_attributes[i].attribute, &error);
    (void)snprintf(what, sizeof what, "%s, %s", kind, plain_attributes[i].name);
    tell(what, "%d: %llu", error, value);
  }
  unsigned long long base = attribute_of(block + inside, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &error);
  tell(kind, "range start %d, is its base: %s", error, yes(base == (uintptr_t)block));
  unsigned long long device = attribute_of(block + inside, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, &error);
  tell(kind, "device pointer %d, is it: %s", error, yes(device == (uintptr_t)(block + inside)));
  (void)attribute_of(block + inside, CU_POINTER_ATTRIBUTE_HOST_POINTER, &error);
  tell(kind, "host pointer %d", error);
  unsigned long long mapping = attribute_of(block + inside, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, &error);
  unsigned long long bytes = attribute_of(block + inside, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, &error);
  tell(kind, "mapping %d, holds it: %s", error, yes(mapping <= (uintptr_t)block && (uintptr_t)block < mapping + bytes));
}

/* Every block has a buffer id of its own, also where another block was before. */
static void buffer_ids(unsigned char *first, size_t inside, unsigned char *second) {
  int error = 0, other = 0;
  unsigned long long base = attribute_of(first, CU_POINTER_ATTRIBUTE_BUFFER_ID, &error);
  unsigned long long interior = attribute_of(first + inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, &other);
  tell("buffer id", "%d %d, the same inside: %s", error, other, yes(base == interior));
  unsigned long long neighbour = attribute_of(second, CU_POINTER_ATTRIBUTE_BUFFER_ID, &error);
  tell("buffer id", "%d, another block's is another: %s", error, yes(neighbour != base));
  bool fresh = true;
  for (int i = 0; i < 4; i++) {
    unsigned char *block = block_new(3 * MIB);
    unsigned long long id = attribute_of(block, CU_POINTER_ATTRIBUTE_BUFFER_ID, &error);
    fresh = fresh && id != base && id != neighbour;
    neighbour = id;
    NEED(door_free(block));
  }
  tell("buffer id", "new for each new block: %s", yes(fresh));
}

static void attributes_at_once(const void *pointer) {
  int (*get_all)(unsigned, CUpointer_attribute *, void **, unsigned long long);
  *(void **)&get_all = door_function("cuPointerGetAttributes", 7000);
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  unsigned type = 0;
  unsigned long long start = 0;
  size_t size = 0;
  void *host = &poison;
  void *values[] = {&type, &start, &size, &host};
  int error = get_all == NULL ? -1 : get_all(4, asked, values, (unsigned long long)(uintptr_t)pointer);
  const void *base = NULL;
  size_t bytes = 0;
  NEED(block_range(pointer, &base, &bytes));
  tell("several at once", "%d: type %u, start is the base: %s, size %zu, host pointer %s", error, type,
       yes(start == (uintptr_t)base), size, kind_of(host));
}

static void attribute_set_ask(const void *pointer) {
  int (*set)(const void *, CUpointer_attribute, unsigned long long);
  *(void **)&set = door_function("cuPointerSetAttribute", 6000);
  int on = 1, error = 0;
  tell("sync memops", "set: %d",
       set == NULL ? -1 : set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (unsigned long long)(uintptr_t)pointer));
  unsigned long long value = attribute_of(pointer, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, &error);
  tell("sync memops", "is set: %d: %llu", error, value);
}

static void attributes(void) {
  *(void **)&attribute_get = door_function("cuPointerGetAttribute", 4000);
  if (attribute_get == NULL)
    return tell("cuPointerGetAttribute", "none");
  unsigned char *small = block_new(1000), *large = block_new(3 * MIB + 100);
  attributes_of("1000 bytes", small, 0);
  attributes_of("inside 1000 bytes", small, 999);
  attributes_of("inside 3 MiB", large, MIB + 1);
  buffer_ids(large, MIB, small);
  attributes_at_once(large + 77);
  attribute_set_ask(large);
  NEED(door_free(small));
  NEED(door_free(large));
  const void *base = NULL;
  size_t bytes = 0;
  int error = 0, range = block_range(large, &base, &bytes);
  tell("a freed block of 3 MiB", "range %d", range);
  (void)attribute_of(large, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &error);
  tell("a freed block of 3 MiB", "memory type %d", error);
  struct door_attributes said;
  error = door_attributes(&said, large);
  tell("a freed block of 3 MiB", "attributes %d, type %d", error, said.type);
}

/* ---- Memory of other kinds --------------------------------------------------------------------------------------- */

static void managed(void) {
  void *block = NULL;
  int error = 0;
  tell("malloc", "%d", door_malloc_managed(&block, MIB));
  memset(block, 1, MIB);
  tell("fill", "%d", door_fill(block, 2, MIB / 2));
  tell("wait", "%d", door_wait_all());
  const unsigned char *bytes = (const unsigned char *)block;
  tell("seen by the host", "%d %d", bytes[0], bytes[MIB - 1]);
  *(void **)&attribute_get = door_function("cuPointerGetAttribute", 4000);
  tell("is managed", "%llu", attribute_of(block, CU_POINTER_ATTRIBUTE_IS_MANAGED, &error));
  tell("free", "%d", door_free(block));
  tell("free again", "%d", door_free(block));
}

static void host_memory(void) {
  void *block = NULL;
  tell("malloc", "%d", door_malloc_host(&block, MIB));
  memset(block, 7, MIB);
  unsigned char *on_device = block_new(MIB);
  tell("write", "%d", door_write(on_device, block, MIB));
  tell("holds", "%s", yes(block_holds(on_device, 7, MIB)));
  tell("free as device memory", "%d", door_free(block));
  tell("device memory freed as host memory", "%d", door_free_host(on_device));
  tell("free", "%d", door_free_host(block));
  NEED(door_free(on_device));
}

static void arrays(void) {
  tell("100 x 100", "%d", door_array(100, 100));
  tell("4096 x 4096", "%d", door_array(4096, 4096));
}

static void async(void) {
  door_stream stream = NULL;
  void *block = NULL;
  NEED(door_stream_new(&stream));
  tell("malloc", "%d", door_malloc_async(&block, MIB, stream));
  tell("fill", "%d", door_fill_async(block, 9, MIB, stream));
  tell("wait", "%d", door_wait(stream));
  tell("holds", "%s", yes(block_holds(block, 9, MIB)));
  tell("free", "%d", door_free_async(block, stream));
  tell("wait", "%d", door_wait(stream));
  NEED(door_malloc_async(&block, MIB, stream));
  NEED(door_wait(stream));
  tell("free by the plain call", "%d", door_free(block));
  unsigned char *plain = block_new(MIB), *small = block_new(1000);
  tell("plain block freed on a stream", "%d", door_free_async(plain, stream));
  tell("small block freed on a stream", "%d", door_free_async(small, stream));
  tell("plain blocks freed on a stream", "wait %d", door_wait(stream));
  tell("plain block freed on a stream", "then by the plain call %d", door_free(plain));
  tell("small block freed on a stream", "then by the plain call %d", door_free(small));
  tell("the host's memory freed on a stream", "%d", door_free_async(&poison, stream));
  NEED(door_stream_end(stream));
}

const struct preload_case memory_cases[] = {
    {"sizes", sizes},
    {"sizes-too-large", sizes_too_large},
    {"neighbours", neighbours},
    {"wrong-frees", wrong_frees},
    {"pitch", pitch},
    {"memory", memory},
    {"out-of-memory", out_of_memory},
    {"attributes", attributes},
    {"managed", managed},
    {"host-memory", host_memory},
    {"arrays", arrays},
    {"async", async},
    {NULL, NULL},
};
