/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Words for the tests of libmam_preload, over the fake driver.  They are programs as any other: linked with a
 * libcuda.so.1, knowing nothing of libmam, and run with LD_PRELOAD, which they set for themselves.
 */
#ifndef MAM_TESTS_PRELOAD_UTIL_H
#define MAM_TESTS_PRELOAD_UTIL_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/fake_driver.h"
#include "support/run_suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* What a pool takes from the driver at a time, with the granule for the guard. */
#define CHUNK_BYTES (64 * MIB + FAKE_GRANULARITY_BYTES)

enum { NOT_FOUND = 500, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201 };
enum { BUFFER_ID = 7, MEMORY_TYPE = 2, RANGE_START = 11, RANGE_SIZE = 12 };

typedef unsigned long long address_t;
struct ipc_handle {
  unsigned char bytes[64];
};

/* As cuda.h declares them, under the names that it gives them in a program. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease(int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuCtxSynchronize_v2(void *context);
int cuCtxDestroy_v2(void *context);
int cuMemAlloc_v2(address_t *address, size_t bytes);
int cuMemAllocPitch_v2(address_t *address, size_t *pitch, size_t width, size_t height, unsigned element_bytes);
int cuMemFree_v2(address_t address);
int cuMemFreeAsync(address_t address, void *stream);
int cuMemFreeAsync_ptsz(address_t address, void *stream);
int cuMemAllocAsync(address_t *address, size_t bytes, void *stream);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemGetAddressRange_v2(address_t *base, size_t *bytes, address_t address);
int cuPointerGetAttribute(void *value, int attribute, address_t address);
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, address_t address);
int cuIpcGetMemHandle(struct ipc_handle *handle, address_t address);
int cuIpcOpenMemHandle_v2(address_t *address, struct ipc_handle handle, unsigned flags);
int cuIpcCloseMemHandle(address_t address);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamBeginCapture_v2_ptsz(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuStreamEndCapture_ptsz(void *stream, void **graph);
int cuStreamDestroy_v2(void *stream);
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
int cuGraphDestroy(void *graph);
int cuGraphExecDestroy(void *executable);
int cuGraphClone(void **clone, void *graph);
int cuGraphAddChildGraphNode(void **node, void *graph, const void *nodes, size_t count, void *child);
int cuGraphChildGraphNodeGetGraph(void *node, void **graph);
int cuGraphCreate(void **graph, unsigned flags);
int cuGraphDestroyNode(void *node);
int cuGraphNodeFindInClone(void **node, void *original, void *clone);
int cuGraphNodeSetParams(void *node, int *parameters);
int cuGraphAddNode(void **node, void *graph, const void *nodes, size_t count, int *parameters);
int cuGraphExecChildGraphNodeSetParams(void *executable, void *node, void *child);
int cuGraphLaunch(void *executable, void *stream);
int cuStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges, size_t count,
                                int mode);
int cuGraphExecUpdate_v2(void *executable, void *graph, void *outcome);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

#define OK(call) ck_assert_int_eq(call, 0)
#define FAILS(error, call) ck_assert_int_eq(call, error)

/* The library under test stands where the tests are run: in the top of the build. */
#define PRELOAD_LIBRARY "lib/.libs/libmam_preload.so"

/* Runs a suite under the library: starts the program again, unless it is.  Where there is none, the test is skipped. */
static inline int preload_run_suite(char **arguments, Suite *(*suite)(void)) {
  if (getenv("MAM_TEST_PRELOADED") != NULL)
    return run_suite(suite());
  if (access(PRELOAD_LIBRARY, R_OK) != 0) {
    (void)puts("SKIP: " PRELOAD_LIBRARY " was not built");
    exit(77);
  }
  (void)setenv("MAM_TEST_PRELOADED", "1", 1);
  (void)setenv("MAM_PRELOAD_NEIGHBOURS", "off", 1); /* other tests run beside */
  (void)setenv("LD_PRELOAD", PRELOAD_LIBRARY, 1);
  (void)execv("/proc/self/exe", arguments);
  exit(99);
}

/* A program's beginning: the first device's primary context is current. */
static inline void *begin(void) {
  void *context = NULL;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  return context;
}

static inline address_t allocate(size_t bytes) {
  address_t address = 0;
  OK(cuMemAlloc_v2(&address, bytes));
  ck_assert(fake_holds((const void *)(uintptr_t)address, bytes));
  return address;
}

#endif
