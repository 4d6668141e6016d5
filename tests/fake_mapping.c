/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake driver's memory that is mapped piece by piece: addresses are reserved, physical memory is created, and one
 * is mapped to the other.  It belongs to a device and survives the reset of a context.  See fake_machine.h.
 */
#include "fake_machine.h"

#include <stdlib.h>

/* Lives while it has its handle or is mapped. */
struct physical {
  struct physical *next;
  unsigned long long handle; /* never used twice; 0 once released */
  size_t bytes;
  int device;
  unsigned mapped; /* how often */
};

struct mapping {
  struct mapping *next; /* by address */
  uintptr_t address;
  size_t bytes;
  struct physical *physical;
  bool accessible;
};

struct reservation {
  struct reservation *next; /* by address */
  uintptr_t address;
  size_t bytes;
};

/* 64 TiB can be reserved in all, and lie above the windows of cuMemAlloc. */
#define WINDOW_BEGIN ((uintptr_t)1 << 46)
#define WINDOW_END ((uintptr_t)1 << 47)

enum { pinned_memory = 1, device_location = 1, read_write = 3, handle_types_known = 1 };

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static bool whole_steps(unsigned long long bytes) { return bytes > 0 && bytes % FAKE_GRANULARITY_BYTES == 0; }

/* The range stands in one reservation. */
static bool range_reserved(uintptr_t address, size_t bytes) {
  for (const struct reservation *one = fake.reservations; one != NULL; one = one->next)
    if (address >= one->address && address - one->address <= one->bytes &&
        bytes <= one->bytes - (address - one->address))
      return true;
  return false;
}

static bool range_mapped(uintptr_t address, size_t bytes) {
  for (const struct mapping *one = fake.mappings; one != NULL; one = one->next)
    if (address < one->address + one->bytes && one->address < address + bytes)
      return true;
  return false;
}

/* Whether the range is that of whole mappings, without a gap. */
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

bool mapping_holds(uintptr_t address, size_t bytes) {
  uintptr_t next = address, end = address + bytes;
  for (const struct mapping *one = fake.mappings; one != NULL && next < end; one = one->next)
    if (one->accessible && one->address <= next && next < one->address + one->bytes)
      next = one->address + one->bytes;
  return bytes > 0 && next >= end;
}

/* ---- The driver's functions: addresses --------------------------------------------------------------------------- */

/* The lowest gap at a multiple of alignment. */
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

/* The real one takes a fixed address as a wish; here there is none. */
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
  size_t used = memory_used(KIND_DEVICE, properties->location.id);
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
    *new = (struct physical){
        .next = fake.physicals, .handle = ++fake.last_handle, .bytes = bytes, .device = properties->location.id};
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
  if (error == SUCCESS) {
    physical->handle = 0;
    physical_drop_if_unused(physical);
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

/* Mapping a part of a handle's memory is not known to work, so it is refused. */
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
  fake.faults += work_uses(address, bytes); /* does not wait: a kernel loses memory */
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

static int access_check(const struct access *access, size_t count) {
  if (access == NULL || count != 1)
    return INVALID_VALUE;
  bool known = access->location.type == device_location && access->flags == read_write;
  return known ? device_check(access->location.id) : INVALID_VALUE;
}

/* Access by another device than the memory's own is not modelled. */
int cuMemSetAccess(unsigned long long address, size_t bytes, const struct access *access, size_t count) {
  int error = call_begin(CALL_cuMemSetAccess);
  uintptr_t first = (uintptr_t)address;
  if (error == SUCCESS)
    error = range_is_whole(first, bytes) ? access_check(access, count) : INVALID_VALUE;
  for (struct mapping *one = fake.mappings; one != NULL && error == SUCCESS; one = one->next)
    if (one->address >= first && one->address < first + bytes && one->physical->device == access->location.id)
      one->accessible = true;
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
