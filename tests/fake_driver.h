/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake CUDA driver: a libcuda.so.1 for tests, and the calls by which a test turns it.
 *
 * Memory is imaginary: addresses are given out and counted, never dereferenced.  The GPU is a clock that the test
 * turns: work is pending until it is finished by the test or by a call that waits, which is counted.  What it answers
 * was checked against driver 580.159 on an H200; what it does not know, it refuses.  It knows nothing of the library
 * under test, and shares no table with it.
 *
 * Any thread may call anything here.  Sizes are in bytes.  A test starts in a fresh process (Check's fork mode), so
 * nothing here resets.
 */
#ifndef MAM_TESTS_FAKE_DRIVER_H
#define MAM_TESTS_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory is taken in steps of this, at multiples of it. */
#define FAKE_GRANULARITY_BYTES ((size_t)2 << 20)

/* ---- The machine ------------------------------------------------------------------------------------------------- */

/* Devices of the machine, at most 4.  1 to begin with; 0 makes cuInit fail, as it does without a device. */
void fake_set_devices(int count);

/* Memory of each device.  4 GiB to begin with. */
void fake_set_capacity(size_t bytes);

/* The largest piece that one allocation can get, as if memory were in pieces, while cuMemGetInfo counts them all.
 * 0, as to begin with: no such bound. */
void fake_set_largest(size_t bytes);

/* Host memory for cuMemHostAlloc, and as much for cuMemAllocManaged.  64 GiB to begin with. */
void fake_set_host_capacity(size_t bytes);

/* Makes the driver one that has no function of that name: for look-ups from now on. */
void fake_hide(const char *name);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* The nth call from now (1 is the next) of the function answers error and does nothing. */
void fake_fail(const char *name, unsigned nth, int error);

/* Errors injected so far. */
unsigned fake_failures(void);

/* Work in the context ends in error: from now on each call that needs the context, and each wait for it, answers
 * error, as after an illegal access. */
void fake_poison(void *context, int error);

/* ---- What was done ----------------------------------------------------------------------------------------------- */

/* Calls of the function so far, the failed ones too; for NULL, of all functions and look-ups of functions. */
unsigned fake_calls(const char *name);

/* Memory that the driver has given out and not got back, over all kinds and contexts. */
size_t fake_live_bytes(void);
unsigned fake_live_blocks(void);

/* The largest live block and its address, zeros if there is none. */
size_t fake_largest_live(uintptr_t *address);

/* Whether all of it is in one live block. */
bool fake_holds(const void *address, size_t bytes);

/* Times a call waited for pending work. */
unsigned fake_waits(void);

/* cuMemFree and cuMemFreeHost calls for an address that is not the start of a live block. */
unsigned fake_wrong_frees(void);

/* Calls that would be undefined on the real driver: making a destroyed context current, or popping one that is not
 * primary. */
unsigned fake_violations(void);

/* Retains of a device's primary context that were not released. */
unsigned fake_retains(int device);

/* ---- Contexts and work ------------------------------------------------------------------------------------------- */

/* A context beside the primary one, not made current.  The handle of a destroyed one may come back. */
void *fake_context_create(int device);

/* Ends a context and frees its memory, as cuCtxDestroy; popped if it is current. */
void fake_context_destroy(void *context);

bool fake_context_alive(void *context);

/* cuDevicePrimaryCtxReset: memory and id are gone, handle, currency and retains stay. */
void fake_primary_reset(int device);

/* The program's own use of the primary context: retained, without making it current. */
void *fake_primary_retain(int device);

/* The calling thread's context stack: the current context, NULL if none, without a check; and how many are on it. */
void *fake_current(void);
int fake_stack_depth(void);
void fake_make_current(void *context);

/* Submits a kernel to the context: pending until finished. */
void fake_submit(void *context);
void fake_finish(void *context);

/* Whether submitted work is unfinished. */
bool fake_pending(void *context);

/* The calling thread's stream capture mode, without a call of the driver: 0 global, 1 thread-local, 2 relaxed. */
int fake_capture_mode(void);

/* Another thread begins a capture in global mode: allocations and frees outside relaxed mode then answer 900 and
 * spoil the capture, and waiting for a context spoils it in any mode. */
void fake_capture_begin(void);

/* Ends it.  Whether it was not spoilt. */
bool fake_capture_end(void);

#ifdef __cplusplus
}
#endif

#endif
