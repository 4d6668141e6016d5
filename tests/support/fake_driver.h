/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake CUDA driver: a libcuda.so.1 for tests, and the calls by which a test turns it.
 *
 * Memory is imaginary, unless a test wants it: addresses are given out and counted, never dereferenced.  The GPU is a
 * clock that the test turns: work is pending until it is finished by the test or by a call that waits, which is
 * counted.  What it answers was checked against driver 580.159 on an H200; what it does not know, it refuses.  It knows
 * nothing of the library under test, and shares no table with it.
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

/* The largest piece that one allocation can get, as if memory were in pieces, while cuMemGetInfo counts them all;
 * mapped memory does not mind.  0, as to begin with: no such bound. */
void fake_set_largest(size_t bytes);

/* From now on the devices say that they cannot map memory piece by piece. */
void fake_set_maps_nothing(void);

/* From now on each device can reach the memory of every other: blocks of cuMemAlloc once the program has enabled it,
 * mapped memory as far as cuMemSetAccess says so.  To begin with none can. */
void fake_set_peers(void);

/* From now on cuMemCreate refuses memory that is to be exported, or reached by other adapters, though the devices say
 * that they can do both: as in some containers. */
void fake_set_shares_nothing(void);

/* Whether a mapped range is all of memory that can be exported as a file descriptor; that other adapters can reach. */
bool fake_exportable(const void *address, size_t bytes);
bool fake_rdma_capable(const void *address, size_t bytes);

/* Host memory for cuMemHostAlloc, and as much for cuMemAllocManaged.  64 GiB to begin with. */
void fake_set_host_capacity(size_t bytes);

/* From now on the memory of cuMemAlloc is really there, so that it can be copied to and from, and the kernels of device
 * heaps run on it when they are launched. */
void fake_back_memory(void);

/* Makes the driver one that has no function of that name: for look-ups from now on. */
void fake_hide(const char *name);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* The nth call from now (1 is the next) of the function answers error and does nothing. */
void fake_fail(const char *name, unsigned nth, int error);

/* The next call of the function waits at its end, when all that it does is done, until it is let go.  Of destructions
 * of streams and graphs and ends of captures. */
void fake_hold(const char *name);
/* Whether a call waits so; and lets it go. */
bool fake_is_held(void);
void fake_let_go(void);

/* Errors injected so far. */
unsigned fake_failures(void);

/* Work in the context ends in error: from now on each call that needs the context, and each wait for it, answers
 * error, as after an illegal access. */
void fake_poison(void *context, int error);

/* ---- What was done ----------------------------------------------------------------------------------------------- */

/* Calls of the function so far, the failed ones too; for NULL, of all functions and look-ups of functions. */
unsigned fake_calls(const char *name);

/* Memory that the driver has given out and not got back, over all kinds and contexts; mapped memory too, from
 * cuMemCreate until it is neither held by its handle nor mapped. */
size_t fake_live_bytes(void);
unsigned fake_live_blocks(void);

/* Addresses reserved for mappings (cuMemAddressReserve) and not given back. */
size_t fake_reserved_bytes(void);

/* The largest live block and its address, those of mappings left out; zeros if there is none. */
size_t fake_largest_live(uintptr_t *address);

/* Whether all of it is in one live block, or mapped without a gap and accessible. */
bool fake_holds(const void *address, size_t bytes);

/* Times a call waited for pending work. */
unsigned fake_waits(void);

/* cuMemFree and cuMemFreeHost calls for an address that is not the start of a live block. */
unsigned fake_wrong_frees(void);

/* Calls that would be undefined on the real driver: making a destroyed context current, or popping one that is not
 * primary; those with the handle of an event or a stream that is gone; and look-ups of cuGetExportTable. */
unsigned fake_violations(void);

/* Retains of a device's primary context that were not released. */
unsigned fake_retains(int device);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* A context beside the primary one, not made current.  The handle of a destroyed one may come back. */
void *fake_context_create(int device);

/* Ends a context and frees its memory, as cuCtxDestroy; popped if it is current. */
void fake_context_destroy(void *context);

bool fake_context_alive(void *context);

/* cuCtxEnablePeerAccess: kernels of the context can use memory of cuMemAlloc of the device from now on, and
 * cuPointerGetAttribute (CU_POINTER_ATTRIBUTE_DEVICE_POINTER) says so. */
void fake_peer_enable(void *context, int device);

/* cuDevicePrimaryCtxReset: memory and id are gone, handle, currency and retains stay. */
void fake_primary_reset(int device);

/* The program's own use of the primary context: retained, without making it current. */
void *fake_primary_retain(int device);

/* The calling thread's context stack: the current context, NULL if none, without a check; and how many are on it. */
void *fake_current(void);
int fake_stack_depth(void);
void fake_make_current(void *context);

/* ---- Streams and kernels -----------------------------------------------------------------------------------------
 *
 * A stream is a handle of fake_stream_create, the legacy stream (0 or 1) or the calling thread's own default stream,
 * both of the current context.  Work of one stream is done in its order; the legacy stream's after all earlier work of
 * the blocking streams of its context, and theirs after its.
 */

#define FAKE_STREAM_LEGACY ((void *)1)
#define FAKE_STREAM_PER_THREAD ((void *)2)
#define FAKE_STREAM_NON_BLOCKING 1u

/* A stream of the current context, blocking (flags 0) or not.  NULL without a context.  The handle of a destroyed one
 * comes back; its id does not.  Work of a destroyed stream goes on. */
void *fake_stream_create(unsigned flags);
void fake_stream_destroy(void *stream);

/* cuStreamWaitEvent with an event that is recorded on other now.  Whether both streams are there. */
bool fake_stream_wait(void *stream, void *other);

struct fake_range {
  const void *address;
  size_t bytes;
};

/* Submits a kernel that uses these ranges from now until it is finished.  On a stream that is being captured it becomes
 * part of the graph and does not run.  Whether it was accepted. */
bool fake_launch(void *stream, const struct fake_range *ranges, size_t count);

/* Submits a kernel to the legacy stream of a context. */
void fake_submit(void *context);

/* Whether submitted work of the context is unfinished; how many kernels are, over all contexts. */
bool fake_pending(void *context);
unsigned fake_in_flight(void);

/* Times that the GPU would have met an error: a kernel launched on memory that it may not access, or memory unmapped
 * under a kernel. */
unsigned fake_faults(void);

/* The oracle of reuse: whether a kernel in flight uses a piece of the range, other than those that work submitted now
 * to the stream would wait for.  FAKE_NO_STREAM: any kernel.  Asked about a block that was just handed out, before its
 * owner launched anything, yes means that it was handed out too early. */
#define FAKE_NO_STREAM ((const void *)UINTPTR_MAX)
bool fake_in_use(const void *address, size_t bytes, const void *stream);

/* ---- The clock --------------------------------------------------------------------------------------------------- */

/* Finishes all work of a context; all work of a stream, with what it is ordered after; one kernel of those that may
 * finish next, chosen by any number (false if there was none). */
void fake_finish(void *context);
void fake_finish_stream(void *stream);
bool fake_step(unsigned choice);

/* ---- Stream captures ---------------------------------------------------------------------------------------------
 *
 * Modes: 0 global, 1 thread-local, 2 relaxed.  Allocating, freeing and asking about events is refused (900) and spoils
 * the capture where a mode forbids it, as cuThreadExchangeStreamCaptureMode has it; waiting for the context, or
 * recording an event of all of it, in every mode.
 */

/* The calling thread's mode, without a call of the driver. */
int fake_capture_mode(void);

/* cuStreamBeginCapture: whether it began (not on the legacy stream).  cuStreamEndCapture: whether it was not spoilt. */
bool fake_stream_capture_begin(void *stream, int mode);
bool fake_stream_capture_end(void *stream);

/* Another thread captures in global mode, in whatever context is looked at. */
void fake_capture_begin(void);
bool fake_capture_end(void);

/* Captures spoilt so far. */
unsigned fake_captures_invalidated(void);

#ifdef __cplusplus
}
#endif

#endif
