/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of other processes (cuIpc*).
 *
 * The driver exports whole allocations, which are chunks here.  A process that opens a chunk's handle gets the chunk's
 * first byte, where no block is.  So the hook gives the program a parcel in place of the handle: the driver's handle,
 * the block's place in the chunk and its size, in the same 64 bytes.
 *
 *    0       4     8        16       22      28                          64
 *    | magic | sum | filled | offset | bytes | rest: bytes of the handle |
 *
 * The driver's handle fits into the rest because most of its bytes are 0; a bit for each byte says which.  If it does
 * not fit, the program gets cudaErrorNotSupported.
 *
 * A served process opens the parcel at the block.  In a process that is not served the driver refuses it, rather than
 * open other memory.
 *
 * The driver knows an opened parcel by the chunk's first byte only.  So a list has the block, and what the driver gave,
 * of each parcel that this process has opened.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

enum {
  /* The size of CUipcMemHandle. */
  HANDLE_BYTES = 64,
  /* cudaErrorNotSupported, which is also CUDA_ERROR_NOT_SUPPORTED. */
  NOT_SUPPORTED = 801
};

/* A parcel.  Its numbers are little-endian, as are the processors that the library is for. */
struct parcel {
  unsigned char magic[4];
  unsigned char sum[4];                  /* a hash of all that follows */
  unsigned char filled[8];               /* a bit for each byte of the driver's handle that is not 0 */
  unsigned char offset[6], bytes[6];     /* the block's place in the chunk, and its size */
  unsigned char rest[HANDLE_BYTES - 28]; /* the bytes that are not 0 */
};
_Static_assert(sizeof(struct parcel) == sizeof(struct preload_ipc_handle), "a parcel goes where a handle goes");

/* Tells parcels from the driver's handles, together with the sum. */
static const unsigned char PARCEL_MAGIC[4] = {0xd3, 'M', 'A', 'M'};

/* The hash FNV-1a, whose two constants these are. */
static uint32_t parcel_sum(const struct parcel *parcel) {
  const unsigned char *byte = parcel->filled, *end = (const unsigned char *)(parcel + 1);
  uint32_t sum = 2166136261u;
  for (; byte < end; byte++)
    sum = (sum ^ *byte) * 16777619u;
  return sum;
}

/* Packs a handle of the driver.  False if it does not fit. */
static bool parcel_pack(const struct preload_ipc_handle *handle, uint64_t offset, uint64_t bytes,
                        struct parcel *parcel) {
  size_t count = 0;
  uint64_t filled = 0;
  if (offset >> 48 != 0 || bytes >> 48 != 0)
    return false;
  *parcel = (struct parcel){0};
  for (unsigned i = 0; i < HANDLE_BYTES; i++) {
    if (handle->bytes[i] == 0)
      continue;
    if (count == sizeof parcel->rest)
      return false;
    parcel->rest[count++] = handle->bytes[i];
    filled |= (uint64_t)1 << i;
  }
  memcpy(parcel->filled, &filled, sizeof parcel->filled);
  memcpy(parcel->offset, &offset, sizeof parcel->offset);
  memcpy(parcel->bytes, &bytes, sizeof parcel->bytes);
  memcpy(parcel->magic, PARCEL_MAGIC, sizeof parcel->magic);
  uint32_t sum = parcel_sum(parcel);
  memcpy(parcel->sum, &sum, sizeof parcel->sum);
  return true;
}

/* Unpacks a parcel.  False if packed is none. */
static bool parcel_unpack(const struct preload_ipc_handle *packed, struct preload_ipc_handle *handle, uint64_t *offset,
                          uint64_t *bytes) {
  struct parcel parcel;
  uint32_t sum;
  uint64_t filled;
  size_t count = 0;
  memcpy(&parcel, packed, sizeof parcel);
  memcpy(&sum, parcel.sum, sizeof sum);
  if (memcmp(parcel.magic, PARCEL_MAGIC, sizeof parcel.magic) != 0 || sum != parcel_sum(&parcel))
    return false;
  *offset = *bytes = 0;
  memcpy(&filled, parcel.filled, sizeof filled);
  memcpy(offset, parcel.offset, sizeof parcel.offset);
  memcpy(bytes, parcel.bytes, sizeof parcel.bytes);
  for (unsigned i = 0; i < HANDLE_BYTES; i++)
    handle->bytes[i] = (filled >> i & 1) != 0 && count < sizeof parcel.rest ? parcel.rest[count++] : 0;
  return true;
}

/* ---- Exporting ---- */

CUresult cuIpcGetMemHandle(struct preload_ipc_handle *handle, CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  struct preload_ipc_handle whole;
  struct client_block block;
  struct parcel parcel;
  uintptr_t chunk;
  enum client_found found = handle == NULL || preload_depth != 0 || !preload_active()
                                ? CLIENT_FOREIGN
                                : mam_client.block_at((uintptr_t)address, &block);
  bool is_dead = found == CLIENT_DEAD || (found == CLIENT_LIVE && preload_kept_freed(&block));
  if (found == CLIENT_FOREIGN || (is_dead && preload_is_child()))
    return PRELOAD_CALL(real, cuIpcGetMemHandle, handle, address);
  if (is_dead)
    return cudaErrorInvalidValue;
  /* A block that lies in no chunk of cuMemAlloc is mapped memory, which has no such handle.  The driver says so. */
  bool chunked = mam_client.chunk_at(block.base, &chunk);
  CUresult result = PRELOAD_CALL(real, cuIpcGetMemHandle, &whole, chunked ? chunk : address);
  if (result != CUDA_SUCCESS)
    return result;
  if (!chunked)
    return NOT_SUPPORTED; /* the handle would open at other memory */
  if (!parcel_pack(&whole, block.base - chunk, block.bytes, &parcel))
    return NOT_SUPPORTED;
  memcpy(handle, &parcel, sizeof parcel);
  return CUDA_SUCCESS;
}

/* ---- Opening ---- */

/* cuIpcOpenMemHandle, of which the driver has two versions. */
typedef CUresult handle_opener(CUdeviceptr *address, struct preload_ipc_handle handle, unsigned flags);

/* A parcel that this process has opened. */
struct opened {
  uintptr_t address;     /* of the block */
  size_t bytes;          /* of the block */
  uintptr_t base;        /* of the chunk: what the driver gave */
  CUcontext context;     /* in which it was opened */
  unsigned long long id; /* of the context; 0 where the driver has no ids */
  unsigned opened;       /* how often it was opened and not closed */
  struct opened *next;
};

/* Protects the list.  A leaf: no other lock is taken, and neither libmam nor the driver is called under it. */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *all_opened;
static _Atomic unsigned opened_count; /* relaxed: a hint whether to look into the list */

static struct opened **opened_link_locked(uintptr_t address) {
  struct opened **link = &all_opened;
  while (*link != NULL && (*link)->address != address)
    link = &(*link)->next;
  return link;
}

static void opened_drop_locked(struct opened **link) {
  struct opened *opened = *link;
  *link = opened->next;
  atomic_fetch_sub_explicit(&opened_count, 1, memory_order_relaxed);
  free(opened);
}

/* Puts a parcel into the list, which then owns *opened.  If the list has one of the same address, the new one replaces
 * it: the other process may have freed that block and exported another one there. */
static void opened_add(struct opened *opened) {
  pthread_mutex_lock(&opened_lock);
  struct opened *known = *opened_link_locked(opened->address);
  if (known != NULL) {
    opened->opened += known->opened;
    opened->next = known->next;
    *known = *opened;
  } else {
    opened->next = all_opened;
    all_opened = opened;
    atomic_fetch_add_explicit(&opened_count, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&opened_lock);
  if (known != NULL)
    free(opened);
}

/* The address by which the driver knows an opened block.  Other addresses come back as they are. */
static uintptr_t opened_base(uintptr_t address) {
  pthread_mutex_lock(&opened_lock);
  const struct opened *opened = *opened_link_locked(address);
  uintptr_t base = opened != NULL ? opened->base : address;
  pthread_mutex_unlock(&opened_lock);
  return base;
}

/* To be called after the driver has closed it. */
static void opened_closed(uintptr_t address) {
  pthread_mutex_lock(&opened_lock);
  struct opened **link = opened_link_locked(address);
  if (*link != NULL && --(*link)->opened == 0)
    opened_drop_locked(link);
  pthread_mutex_unlock(&opened_lock);
}

/* A context's id, 0 if the driver has none for it. */
static unsigned long long id_of(const struct preload_real *real, CUcontext context) {
  unsigned long long id = 0;
  return PRELOAD_CALL(real, cuCtxGetId, context, &id) == CUDA_SUCCESS ? id : 0;
}

/* The context of the list's entry of that number, which counts from 0.  False after the last. */
static bool opened_context(unsigned number, CUcontext *context, unsigned long long *id) {
  pthread_mutex_lock(&opened_lock);
  const struct opened *opened = all_opened;
  while (opened != NULL && number-- > 0)
    opened = opened->next;
  if (opened != NULL) {
    *context = opened->context;
    *id = opened->id;
  }
  pthread_mutex_unlock(&opened_lock);
  return opened != NULL;
}

/* Drops all entries of the context of that id. */
static void opened_forget(unsigned long long id) {
  pthread_mutex_lock(&opened_lock);
  for (struct opened **link = &all_opened; *link != NULL;)
    if ((*link)->id == id)
      opened_drop_locked(link);
    else
      link = &(*link)->next;
  pthread_mutex_unlock(&opened_lock);
}

/* The driver never gives an id twice.  So an entry that is dropped is not of a context that was made meanwhile. */
void preload_ipc_sweep(const struct preload_real *real) {
  CUcontext context;
  unsigned long long id;
  unsigned number = 0;
  while (opened_context(number, &context, &id))
    if (id != 0 && id_of(real, context) != id)
      opened_forget(id);
    else
      number++;
}

bool preload_ipc_block_at(uintptr_t address, uintptr_t *base, size_t *bytes) {
  if (atomic_load_explicit(&opened_count, memory_order_relaxed) == 0)
    return false;
  pthread_mutex_lock(&opened_lock);
  const struct opened *opened = all_opened;
  while (opened != NULL && address - opened->address >= opened->bytes)
    opened = opened->next;
  if (opened != NULL) {
    *base = opened->address;
    *bytes = opened->bytes;
  }
  pthread_mutex_unlock(&opened_lock);
  return opened != NULL;
}

/* Opens a handle of the driver, and again after pools have given memory back. */
static CUresult chunk_open(handle_opener *open, CUdeviceptr *address, struct preload_ipc_handle handle,
                           unsigned flags) {
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = open(address, handle, flags);
  while (preload_again(result, &tries));
  return result;
}

/* Opens a parcel's chunk by a function of the driver.  Takes *opened over, which malloc has given, also on failure. */
static CUresult parcel_open(const struct preload_real *real, handle_opener *open, struct preload_ipc_handle chunk,
                            uint64_t offset, unsigned flags, struct opened *opened, CUdeviceptr *address) {
  CUdeviceptr base = 0;
  CUresult result = chunk_open(open, &base, chunk, flags);
  if (result != CUDA_SUCCESS) {
    free(opened);
    return result;
  }
  opened->base = (uintptr_t)base;
  if (PRELOAD_CALL(real, cuCtxGetCurrent, &opened->context) == CUDA_SUCCESS)
    opened->id = id_of(real, opened->context);
  opened->address = (uintptr_t)(base + offset);
  *address = opened->address;
  opened_add(opened);
  return CUDA_SUCCESS;
}

/* Opens a handle by a function of the driver.  One that is no parcel is passed on. */
static CUresult handle_open(const struct preload_real *real, handle_opener *open, CUdeviceptr *address,
                            struct preload_ipc_handle handle, unsigned flags) {
  struct preload_ipc_handle chunk;
  uint64_t offset, bytes;
  if (open == NULL)
    return PRELOAD_NO_FUNCTION;
  if (preload_depth != 0 || !preload_active() || !parcel_unpack(&handle, &chunk, &offset, &bytes))
    return chunk_open(open, address, handle, flags);
  struct opened *opened = malloc(sizeof *opened);
  if (opened == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *opened = (struct opened){.bytes = bytes, .opened = 1};
  return parcel_open(real, open, chunk, offset, flags, opened, address);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, struct preload_ipc_handle handle, unsigned flags) {
  const struct preload_real *real = preload_real_get();
  return handle_open(real, real != NULL ? real->cuIpcOpenMemHandle : NULL, address, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct preload_ipc_handle handle, unsigned flags) {
  const struct preload_real *real = preload_real_get();
  return handle_open(real, real != NULL ? real->cuIpcOpenMemHandle_v2 : NULL, address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuIpcCloseMemHandle, opened_base((uintptr_t)address));
  if (result == CUDA_SUCCESS)
    opened_closed((uintptr_t)address);
  return result;
}

/* What the parent has opened is no memory of the child.  The list stays as it is: another thread may have been in the
 * middle of it. */
void preload_ipc_forked(void) {
  (void)pthread_mutex_init(&opened_lock, NULL);
  all_opened = NULL;
  atomic_store_explicit(&opened_count, 0, memory_order_relaxed);
}
