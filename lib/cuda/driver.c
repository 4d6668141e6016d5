/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"

enum need { OPTIONAL, REQUIRED, HEAP, BENCHMARK };

struct function_row {
  const char *name;
  int version;
  enum need need;
  size_t offset; /* of its pointer in struct driver */
};

static const struct function_row rows[] = {
#define DRIVER_FUNCTION(name, version, need, arguments) {#name, version, need, offsetof(struct driver, name)},
#include "cuda/driver.def"
#undef DRIVER_FUNCTION
};

/* The driver itself may answer with a function that stands in front of its own. */
static void *real(void *function) {
  return &mam_driver_detour != NULL && function != NULL ? mam_driver_detour.real(function) : function;
}

/* A function by its name at a version.  Asking for a version gets the signature of that version, whatever suffix the
 * driver exports it under. */
static void *resolve(const struct driver_look_up *look_up, const struct function_row *row) {
  void *function = NULL;
  CUresult result = look_up->v2 != NULL ? look_up->v2(row->name, &function, row->version, 0, NULL)
                                        : look_up->v1(row->name, &function, row->version, 0);
  return result == CUDA_SUCCESS ? real(function) : NULL;
}

static cudaError_t fill(struct driver *driver, const struct driver_look_up *look_up) {
  if (look_up->v1 == NULL && look_up->v2 == NULL)
    return error_set(cudaErrorNotSupported, "the CUDA driver is older than 11.3: it has no cuGetProcAddress");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    void *function = resolve(look_up, &rows[i]);
    if (function == NULL && rows[i].need == REQUIRED)
      return error_set(cudaErrorNotSupported, "the CUDA driver has no %s", rows[i].name);
    *(void **)((char *)driver + rows[i].offset) = function;
  }
  CUresult result = driver->cuInit(0);
  return result == CUDA_SUCCESS ? cudaSuccess : driver_error(driver, result, "cuInit");
}

static _Atomic(struct driver *) published;

static void (*_Atomic on_first)(void);
static pthread_once_t on_first_once = PTHREAD_ONCE_INIT;

void driver_on_first(void (*call)(void)) {
  atomic_store_explicit(&on_first, call, memory_order_release); /* pairs with the acquire in first */
}

static void first(void) {
  /* acquire: what the caller of driver_on_first has set up; pairs with the release there */
  void (*call)(void) = atomic_load_explicit(&on_first, memory_order_acquire);
  if (call != NULL)
    call();
}

const struct driver *driver_known(void) {
  /* acquire: the table's content; pairs with the release in driver_get */
  return atomic_load_explicit(&published, memory_order_acquire);
}

/* Opens the driver.  *library is NULL if the detour has it open: then no dlopen and no dlsym is called, which would
 * wait for a constructor of another library that waits for the calling thread. */
static cudaError_t open_driver(void **library, struct driver_look_up *look_up) {
  *library = NULL;
  if (&mam_driver_detour != NULL && mam_driver_detour.open(look_up))
    return cudaSuccess;
  *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (*library == NULL)
    return error_set(cudaErrorNoDevice, "no CUDA driver: %s", dlerror());
  /* The form that POSIX gives for functions: ISO C has no conversion of dlsym's result. */
  *(void **)&look_up->v1 = dlsym(*library, "cuGetProcAddress");
  *(void **)&look_up->v2 = dlsym(*library, "cuGetProcAddress_v2");
  return cudaSuccess;
}

static void close_driver(void *library) {
  if (library != NULL)
    (void)dlclose(library);
}

cudaError_t driver_get(const struct driver **driver) {
  struct driver_look_up look_up;
  void *library;
  const struct driver *table = driver_known();
  if (table != NULL) {
    *driver = table;
    return cudaSuccess;
  }
  cudaError_t error = open_driver(&library, &look_up);
  if (error != cudaSuccess)
    return error;
  struct driver *mine = calloc(1, sizeof *mine);
  if (mine == NULL)
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for the driver's table");
  else
    error = fill(mine, &look_up);
  if (error != cudaSuccess)
    goto unload;
  (void)pthread_once(&on_first_once, first); /* no thread has the table yet */
  /* Several threads may get here; the first to publish wins, the others fill in the same addresses for nothing.
   * release: publishes the table; acquire on failure: reads the winner's.  Pairs with the load in
   * driver_known. */
  struct driver *winner = NULL;
  if (!atomic_compare_exchange_strong_explicit(&published, &winner, mine, memory_order_acq_rel, memory_order_acquire)) {
    free(mine);
    close_driver(library); /* the winner holds it too */
    mine = winner;
  }
  *driver = mine;
  return cudaSuccess;

unload:
  free(mine);
  close_driver(library);
  return error;
}

cudaError_t driver_error(const struct driver *driver, CUresult result, const char *what) {
  const char *name = NULL, *text = NULL;
  if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
    name = "an unknown error";
  if (driver->cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL)
    text = "no description";
  /* These two are the library's own answers, about its pools. */
  bool taken = result == cudaErrorInvalidResourceHandle || result == cudaErrorAlreadyAcquired;
  cudaError_t error = taken ? cudaErrorUnknown : (cudaError_t)result;
  return error_set(error, "%s: %s (%d): %s", what, name, result, text);
}
