/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The CUDA driver: libcuda.so.1 opened with dlopen at the first use, its functions in one table (driver.def).
 *
 * Nothing is linked, so the library loads on a machine without a driver, and the table is the driver's own whatever
 * CUDA runtime lives in the process.  No CUDA header is needed either: the few types stand here.  The only file, with
 * driver.c, that knows how the driver is found.
 */
#ifndef MAM_LIB_DRIVER_H
#define MAM_LIB_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mam.h"

typedef int CUresult; /* equal in number to cudaError_t for everything that is passed on */
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef int CUstreamCaptureMode;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
  int type, id;
} CUmemLocation;

typedef struct {
  int type, requested_handle_types;
  CUmemLocation location;
  void *windows_metadata;
  struct {
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
} CUmemAllocationProp;

typedef struct {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, /* the first of those about captures */
  CUDA_ERROR_CAPTURED_EVENT = 907,             /* the last */
  CU_EVENT_DISABLE_TIMING = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_STREAM_NON_BLOCKING = 1,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_LEGACY = 1, /* handles of the default streams */
  CU_STREAM_PER_THREAD = 2,
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMHOSTALLOC_DEVICEMAP = 2,
  CU_MEMHOSTREGISTER_PORTABLE = 1,
  CU_MEMHOSTREGISTER_DEVICEMAP = 2,
};

struct driver {
#define DRIVER_FUNCTION(name, version, need, arguments) CUresult(*name) arguments;
#include "cuda/driver.def"
#undef DRIVER_FUNCTION
};

/* The driver's own cuGetProcAddress of CUDA 11.3 and of 12.0, NULL if it lacks it.  The former is found under the plain
 * name. */
struct driver_look_up {
  CUresult (*v1)(const char *name, void **function, int version, uint64_t flags);
  CUresult (*v2)(const char *name, void **function, int version, uint64_t flags, int *found);
};

/* libmam_preload has functions of its own under the driver's names, and a dlsym that finds them.  It defines this, so
 * that the table is the driver's own all the same; without it the address is NULL. */
struct driver_detour {
  /* Called before the table is made: the detour may have something to say to client.h first.  Opens the driver for
   * good. False if it cannot. */
  bool (*open)(struct driver_look_up *look_up);
  void *(*real)(void *function); /* the driver's function for one of its own; others as they are */
};
extern const struct driver_detour mam_driver_detour __attribute__((weak, visibility("default")));

/* Writes the driver's table, initialised (cuInit), to *driver.  The table lives as long as the process.  Without a
 * driver: cudaErrorNoDevice; otherwise what cuInit said.  A failure is not remembered: the next call tries again.
 * Any thread; no lock is held while the driver is loaded. */
cudaError_t driver_get(const struct driver **driver);

/* The same table if it was written before, else NULL: nothing is loaded for it. */
const struct driver *driver_known(void);

/* Sets what is called once, when the driver is initialised and before any thread gets its table; no lock is held.  If
 * that moment is past, it is not called. */
void driver_on_first(void (*call)(void));

/* Records the driver's answer to the call named what as this thread's error and returns it as cudaError_t. */
cudaError_t driver_error(const struct driver *driver, CUresult result, const char *what);

#endif
