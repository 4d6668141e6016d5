/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake driver's memory that is mapped piece by piece.  See fake_machine.h.
 *
 *   cuMemAddressReserve    reservation   |             addresses               |
 *   cuMemMap               mapping          | piece | piece |     | piece |
 *   cuMemCreate            physical         memory of a device, outlives a reset of its context
 */
#include "fake_machine.h"

#include <stdlib.h>

/* Memory that lives until its handle is released and it is mapped nowhere. */
struct physical {
  struct physical *next;
  unsigned long long handle; /* never used twice; 0 after its last release */
  unsigned held;             /* how often the handle is to be released */
  size_t bytes;
  int device;
  int handle_types;
  bool rdma;
  unsigned mapped; /* how often it is mapped */
};

struct mapping {
  struct mapping *next; /* by address */
  uintptr_t address;
  size_t bytes;
  struct physical *physical;
  unsigned devices; /* a bit for each device that may use it */
};

struct reservation {
  struct reservation *next; /* by address */
  uintptr_t address;
  size_t bytes;
};

/* Reservations lie here, 64 TiB in all, above the windows of cuMemAlloc. */
#define WINDOW_BEGIN ((uintptr_t)1 << 46)
#define WINDOW_END ((uintptr_t)1 << 47)

enum { pinned_memory = 1, device_location = 1, read_write = 3, handle_types_known = 1 };

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static bool whole_steps(unsigned long long bytes) { return bytes > 0 && bytes % FAKE_GRANULARITY_BYTES == 0; }

/* Whether the range lies in one reservation. */
static bool range_reserved(uintptr_t address, size_t bytes) {
  for (const struct reservation *one = fake.reservations; one != NULL; one = one->next)
    if (address >= one->address && address - one->address <= one->bytes &&
        bytes <= one->bytes - (address - one->address))
      return true;
  return false;
}

/* Whether a part of the range is mapped. */
static bool range_mapped(uintptr_t address, size_t bytes) {
  for (const struct mapping *one = fake.mappings; one != NULL; one = one->next)
    if (address < one->address + one->bytes && one->address < address + bytes)
      return true;
  return false;
}

/* Whether the range consists of whole mappings, without a gap. */
static bool range_is_whole(uintptr_t address, size_t bytes) {
  uintptr_t next = address, end = address + bytes;
  for (const struct mapping *one = fake.mappings; one != NULL && next < end; one = one->next)
    if (one->address == next)
      next += one->bytes;
  return bytes > 0 && next == end;
}

static void physical_drop_if_unused(struct physical *physical) {
  if (physical->handle != 0 || physical->mapped > 0)
    return;
  struct physical **link = &fake.physicals;
  while (*link != physical)
    link = &(*link)->next;
  *link = physical->next;
  free(physical);
}

static struct physical *physical_find(unsigned long long handle) {
  struct physical *physical = fake.physicals;
  while (physical != NULL && (handle == 0 || physical->handle != handle))
    physical = physical->next;
  return physical;
}

size_t mapping_used(int device) {
  size_t used = 0;
  for (const struct physical *physical = fake.physicals; physical != NULL; physical = physical->next)
    used += physical->device == device ? physical->bytes : 0;
  return used;
}

unsigned mapping_count(void) {
  unsigned count = 0;
  for (const struct physical *physical = fake.physicals; physical != NULL; physical = physical->next)
    count++;
  return count;
}

/* Whether work of a context may use a mapping.  cuMemSetAccess decides that for each mapping; enabled peer access does
 * not matter. */
static bool mapping_reached(const struct mapping *one, const struct context *user) {
  return (one->devices >> (user == NULL ? one->physical->device : user->device) & 1) != 0;
}

bool mapping_holds(uintptr_t address, size_t bytes, const struct context *user) {
  uintptr_t next = address, end = address + bytes;
  for (const struct mapping *one = fake.mappings; one != NULL && next < end; one = one->next)
    if (mapping_reached(one, user) && one->address <= next && next < one->address + one->bytes)
      next = one->address + one->bytes;
  return bytes > 0 && next >= end;
}

/* ---- The driver's functions: addresses --------------------------------------------------------------------------- */

/* Places a reservation in the lowest gap, at a multiple of alignment. */
static int reservation_place(struct reservation *new, size_t alignment) {
  struct reservation **link = &fake.reservations;
  uintptr_t address = WINDOW_BEGIN;
  while (*link != NULL && ((*link)->address < address || (*link)->address - address < new->bytes)) {
    address = ((*link)->address + (*link)->bytes + alignment - 1) / alignment * alignment;
    link = &(*link)->next;
  }
  if (address >= WINDOW_END || new->bytes > WINDOW_END - address)
    return OUT_OF_MEMORY;
  new->address = address;
  new->next = *link;
  *link = new;
  return SUCCESS;
}

/* The real driver takes a fixed address as a wish.  The fake ignores it. */
static int reserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long flags) {
  if (alignment < FAKE_GRANULARITY_BYTES)
    alignment = FAKE_GRANULARITY_BYTES;
  if (address == NULL || !whole_steps(bytes) || (alignment & (alignment - 1)) != 0 || flags != 0)
    return INVALID_VALUE;
  struct reservation *new = malloc(sizeof *new);
  if (new == NULL)
    return OUT_OF_MEMORY;
  new->bytes = bytes;
  int error = reservation_place(new, alignment);
  if (error == SUCCESS)
    *address = new->address;
  else
    free(new);
  return error;
}

int cuMemAddressReserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long fixed,
                        unsigned long long flags) {
  (void)fixed;
  int error = call_begin(CALL_cuMemAddressReserve);
  return call_end(error == SUCCESS ? reserve(address, bytes, alignment, flags) : error);
}

int cuMemAddressFree(unsigned long long address, size_t bytes) {
  int error = call_begin(CALL_cuMemAddressFree);
  struct reservation **link = &fake.reservations;
  while (*link != NULL && ((*link)->address != address || (*link)->bytes != bytes))
    link = &(*link)->next;
  if (error == SUCCESS && (*link == NULL || range_mapped((uintptr_t)address, bytes)))
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    struct reservation *gone = *link;
    *link = gone->next;
    free(gone);
  }
  return call_end(error);
}

/* ---- The driver's functions: physical memory --------------------------------------------------------------------- */

static int physical_check(const unsigned long long *handle, size_t bytes, const struct properties *properties,
                          unsigned long long flags) {
  if (handle == NULL || properties == NULL || !whole_steps(bytes) || flags != 0)
    return INVALID_VALUE;
  if (properties->type != pinned_memory || properties->location.type != device_location ||
      properties->requested_handle_types < 0 || properties->requested_handle_types > handle_types_known)
    return INVALID_VALUE;
  if (device_check(properties->location.id) != SUCCESS)
    return INVALID_DEVICE;
  if (fake.shares_nothing && (properties->requested_handle_types != 0 || properties->rdma != 0))
    return NOT_SUPPORTED;
  int device = properties->location.id;
  size_t used = memory_used(KIND_DEVICE, device) + memory_used_elsewhere(device);
  return used <= fake.capacity_bytes && bytes <= fake.capacity_bytes - used ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const struct properties *properties,
                unsigned long long flags) {
  int error = call_begin(CALL_cuMemCreate);
  if (error == SUCCESS)
    error = physical_check(handle, bytes, properties, flags);
  struct physical *new = error == SUCCESS ? malloc(sizeof *new) : NULL;
  if (error == SUCCESS && new == NULL)
    error = OUT_OF_MEMORY;
  if (error == SUCCESS) {
    *new = (struct physical){.next = fake.physicals,
                             .handle = ++fake.last_handle,
                             .held = 1,
                             .bytes = bytes,
                             .device = properties->location.id,
                             .handle_types = properties->requested_handle_types,
                             .rdma = properties->rdma != 0};
    fake.physicals = new;
    *handle = new->handle;
  }
  return call_end(error);
}

int cuMemRelease(unsigned long long handle) {
  int error = call_begin(CALL_cuMemRelease);
  struct physical *physical = physical_find(handle);
  if (error == SUCCESS && physical == NULL) {
    fake.wrong_frees++;
    error = INVALID_VALUE;
  }
  if (error == SUCCESS && --physical->held == 0) {
    physical->handle = 0;
    physical_drop_if_unused(physical);
  }
  return call_end(error);
}

int cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
  int error = call_begin(CALL_cuMemRetainAllocationHandle);
  const struct mapping *one = fake.mappings;
  while (one != NULL && ((uintptr_t)address < one->address || (uintptr_t)address >= one->address + one->bytes))
    one = one->next;
  if (error == SUCCESS && (handle == NULL || one == NULL))
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    if (one->physical->held++ == 0)
      one->physical->handle = ++fake.last_handle;
    *handle = one->physical->handle;
  }
  return call_end(error);
}

/* ---- The driver's functions: mappings ---------------------------------------------------------------------------- */

static int map(uintptr_t address, size_t bytes, struct physical *physical) {
  struct mapping **link = &fake.mappings, *new = malloc(sizeof *new);
  if (new == NULL)
    return OUT_OF_MEMORY;
  while (*link != NULL && (*link)->address < address)
    link = &(*link)->next;
  *new = (struct mapping){.next = *link, .address = address, .bytes = bytes, .physical = physical};
  *link = new;
  physical->mapped++;
  return SUCCESS;
}

/* A part of a handle's memory cannot be mapped: whether the real driver can do that is not known. */
int cuMemMap(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags) {
  int error = call_begin(CALL_cuMemMap);
  struct physical *physical = physical_find(handle);
  uintptr_t first = (uintptr_t)address;
  if (error == SUCCESS &&
      (physical == NULL || bytes != physical->bytes || offset != 0 || flags != 0 ||
       first % FAKE_GRANULARITY_BYTES != 0 || !range_reserved(first, bytes) || range_mapped(first, bytes)))
    error = INVALID_VALUE;
  return call_end(error == SUCCESS ? map(first, bytes, physical) : error);
}

static void unmap(uintptr_t address, size_t bytes) {
  struct mapping **link = &fake.mappings;
  fake.faults += work_uses(address, bytes); /* the driver does not wait, and a kernel loses its memory */
  while (*link != NULL) {
    struct mapping *one = *link;
    if (one->address < address || one->address >= address + bytes) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    one->physical->mapped--;
    physical_drop_if_unused(one->physical);
    free(one);
  }
}

int cuMemUnmap(unsigned long long address, size_t bytes) {
  int error = call_begin(CALL_cuMemUnmap);
  if (error == SUCCESS && !range_is_whole((uintptr_t)address, bytes))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    unmap((uintptr_t)address, bytes);
  return call_end(error);
}

/* Checks one device that is to have access.  It is the memory's own, or one that can reach it. */
static int access_check(const struct access *access, const struct physical *physical) {
  if (access->location.type != device_location || access->flags != read_write)
    return INVALID_VALUE;
  int device = access->location.id, error = device_check(device);
  bool reaches = error == SUCCESS && (device == physical->device || fake.peers[device][physical->device]);
  return error == SUCCESS && !reaches ? INVALID_DEVICE : error;
}

int cuMemSetAccess(unsigned long long address, size_t bytes, const struct access *access, size_t count) {
  int error = call_begin(CALL_cuMemSetAccess);
  uintptr_t first = (uintptr_t)address;
  unsigned devices = 0;
  if (error == SUCCESS && (access == NULL || count == 0 || !range_is_whole(first, bytes)))
    error = INVALID_VALUE;
  for (const struct mapping *one = fake.mappings; one != NULL && error == SUCCESS; one = one->next)
    for (size_t i = 0; i < count && error == SUCCESS && one->address >= first && one->address < first + bytes; i++)
      error = access_check(&access[i], one->physical);
  for (size_t i = 0; i < count && error == SUCCESS; i++)
    devices |= 1u << access[i].location.id;
  for (struct mapping *one = fake.mappings; one != NULL && error == SUCCESS; one = one->next)
    if (one->address >= first && one->address < first + bytes)
      one->devices |= devices;
  return call_end(error);
}

/* ---- The test's side --------------------------------------------------------------------------------------------- */

EXPORT size_t fake_reserved_bytes(void) {
  size_t bytes = 0;
  fake_lock();
  for (const struct reservation *one = fake.reservations; one != NULL; one = one->next)
    bytes += one->bytes;
  fake_unlock();
  return bytes;
}

/* Whether all of a range is mapped, to memory for which has is true. */
static bool range_has(uintptr_t address, size_t bytes, bool (*has)(const struct physical *physical)) {
  uintptr_t next = address, end = address + bytes;
  fake_lock();
  for (const struct mapping *one = fake.mappings; one != NULL && next < end; one = one->next)
    if (one->address <= next && next < one->address + one->bytes && has(one->physical))
      next = one->address + one->bytes;
  fake_unlock();
  return bytes > 0 && next >= end;
}

static bool physical_exports(const struct physical *physical) { return physical->handle_types != 0; }
static bool physical_rdma(const struct physical *physical) { return physical->rdma; }

EXPORT bool fake_exportable(const void *address, size_t bytes) {
  return range_has((uintptr_t)address, bytes, physical_exports);
}

EXPORT bool fake_rdma_capable(const void *address, size_t bytes) {
  return range_has((uintptr_t)address, bytes, physical_rdma);
}
