/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake CUDA driver: a libcuda.so.1 for tests, and the functions by which a test controls it.
 *
 *   the library under test, or a program    cu...      a machine of up to 4 devices
 *   the test                                fake_...   its sizes, its errors, its clock
 *
 * Memory is imaginary unless a test wants it: addresses are given out and counted, never dereferenced.  The GPU is a
 * clock that the test turns.  Work is unfinished until the test finishes it or a call waits for it; such a wait is
 * counted.  The answers were checked against driver 580.159 on an H200.  Calls that the fake does not know are refused.
 * It knows nothing of the library under test and shares no table with it.
 *
 * Any thread may call any function here.  Sizes are in bytes.  Each test starts in a fresh process (Check's fork mode),
 * so nothing here resets the machine.
 */
#ifndef MAM_TESTS_FAKE_DRIVER_H
#define MAM_TESTS_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The machine gives memory in multiples of this, at multiples of it. */
#define FAKE_GRANULARITY_BYTES ((size_t)2 << 20)

/* ---- The machine ------------------------------------------------------------------------------------------------- */

/* The number of devices, at most 4.  It begins with 1.  With 0, cuInit fails, as it does without a device. */
void fake_set_devices(int count);

/* The memory of each device.  It begins with 4 GiB. */
void fake_set_capacity(size_t bytes);

/* From now on the children that this process forks share the memory of each device, as processes share a GPU's: 16 of
 * them at most, which call the driver only after the fork.  What a child holds is free when it exits. */
void fake_share_memory(void);

/* The most that one allocation can get, as if free memory were in pieces.  cuMemGetInfo counts all of it, and mapped
 * memory has no such bound.  It begins with 0: no bound. */
void fake_set_largest(size_t bytes);

/* From now on the devices say that they cannot map memory piece by piece. */
void fake_set_maps_nothing(void);

/* From now on each device can reach the memory of every other one: blocks of cuMemAlloc after the program has enabled
 * peer access, mapped memory as cuMemSetAccess says.  At the beginning none can. */
void fake_set_peers(void);

/* From now on cuMemCreate refuses memory that is to be exported or reached by other adapters, though the devices say
 * that they can do both.  Some containers do that. */
void fake_set_shares_nothing(void);

/* Whether all memory of a mapped range can be exported as a file descriptor; can be reached by other adapters. */
bool fake_exportable(const void *address, size_t bytes);
bool fake_rdma_capable(const void *address, size_t bytes);

/* Host memory for cuMemHostAlloc, and as much again for cuMemAllocManaged.  It begins with 64 GiB. */
void fake_set_host_capacity(size_t bytes);

/* From now on cuMemAlloc gives real memory.  It can be copied to and from, and kernels of device heaps run on it when
 * they are launched. */
void fake_back_memory(void);

/* From now on look-ups do not find the function of that name. */
void fake_hide(const char *name);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* The nth call of the function from now on (1 is the next) answers error and does nothing. */
void fake_fail(const char *name, unsigned nth, int error);

/* The next call of the function waits at its end, when it has done everything, until fake_let_go.  This works for
 * functions that destroy streams and graphs, for ends of captures and for copies to the host.  cuMemFree waits before
 * it has done anything. */
void fake_hold(const char *name);
/* Whether a call waits like that.  Lets it go on. */
bool fake_is_held(void);
void fake_let_go(void);

/* Errors injected so far. */
unsigned fake_failures(void);

/* Work in the context ends in error: from now on each call that needs the context, and each wait for it, answers
 * error, as after an illegal access. */
void fake_poison(void *context, int error);

/* ---- What was done ----------------------------------------------------------------------------------------------- */

/* How often the function was called so far, failed calls included.  NULL: all functions, and look-ups of functions. */
unsigned fake_calls(const char *name);

/* Memory of all kinds and contexts that the driver has given out and not got back.  Mapped memory counts from
 * cuMemCreate until its handle is released and it is mapped nowhere. */
size_t fake_live_bytes(void);
unsigned fake_live_blocks(void);

/* Addresses reserved for mappings (cuMemAddressReserve) and not given back. */
size_t fake_reserved_bytes(void);

/* The size of the largest live block and its address, mappings left out.  0 and 0 if there is none. */
size_t fake_largest_live(uintptr_t *address);

/* Whether all of the range is in one live block, or mapped without a gap and accessible. */
bool fake_holds(const void *address, size_t bytes);

/* How often a call waited for unfinished work. */
unsigned fake_waits(void);

/* How often cuMemFree and cuMemFreeHost were called for an address that is not the start of a live block. */
unsigned fake_wrong_frees(void);

/* Calls that are undefined on the real driver, which a program must not make: making a destroyed context current,
 * popping one that is not primary, using the handle of an event or a stream that is gone.  Look-ups of cuGetExportTable
 * count too. */
unsigned fake_violations(void);

/* How many retains of a device's primary context were not released. */
unsigned fake_retains(int device);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* Creates a context beside the primary one and does not make it current.  The handle of a destroyed context may come
 * back. */
void *fake_context_create(int device);

/* Ends a context and frees its memory, as cuCtxDestroy does.  A current one is popped. */
void fake_context_destroy(void *context);

bool fake_context_alive(void *context);

/* As cuCtxEnablePeerAccess: from now on kernels of the context can use memory of cuMemAlloc of the device, and
 * cuPointerGetAttribute (CU_POINTER_ATTRIBUTE_DEVICE_POINTER) says so. */
void fake_peer_enable(void *context, int device);

/* As cuDevicePrimaryCtxReset: the context's memory and id are gone.  It keeps its handle and its retains, and stays
 * current. */
void fake_primary_reset(int device);

/* Retains the primary context as a program does, without making it current. */
void *fake_primary_retain(int device);

/* The calling thread's context stack.  fake_current: the current context without a check, NULL if there is none.
 * fake_stack_depth: how many contexts are on it. */
void *fake_current(void);
int fake_stack_depth(void);
void fake_make_current(void *context);

/* ---- Streams and kernels -----------------------------------------------------------------------------------------
 *
 * A stream is a handle of fake_stream_create, or the legacy stream (0 or 1) or the calling thread's own default stream
 * of the current context.  Work of one stream is done in order.  Work of the legacy stream is done after all earlier
 * work of the blocking streams of its context, and their work after its earlier work.
 */

#define FAKE_STREAM_LEGACY ((void *)1)
#define FAKE_STREAM_PER_THREAD ((void *)2)
#define FAKE_STREAM_NON_BLOCKING 1u

/* Creates a stream of the current context, blocking (flags 0) or not.  NULL without a context.  The handle of a
 * destroyed stream comes back, its id does not.  Work of a destroyed stream goes on. */
void *fake_stream_create(unsigned flags);
void fake_stream_destroy(void *stream);

/* As cuStreamWaitEvent with an event that is recorded on other now.  Returns whether both streams exist. */
bool fake_stream_wait(void *stream, void *other);

struct fake_range {
  const void *address;
  size_t bytes;
};

/* Submits a kernel that uses these ranges from now until it is finished.  On a stream that is being captured the kernel
 * becomes part of the graph and does not run.  Returns whether it was accepted. */
bool fake_launch(void *stream, const struct fake_range *ranges, size_t count);

/* Submits a kernel to the legacy stream of a context. */
void fake_submit(void *context);

/* Whether work of the context is unfinished.  How many kernels are unfinished in all contexts. */
bool fake_pending(void *context);
unsigned fake_in_flight(void);

/* How often the GPU would have met an error: a kernel was launched on memory that it must not access, or memory was
 * unmapped under a kernel. */
unsigned fake_faults(void);

/* The oracle of reuse: whether an unfinished kernel uses a part of the range.  Kernels that work submitted to the
 * stream would wait for do not count.  With FAKE_NO_STREAM every kernel counts.  A test asks it about a block that was
 * just handed out, before its owner launches anything: yes means that the block was handed out too early. */
#define FAKE_NO_STREAM ((const void *)UINTPTR_MAX)
bool fake_in_use(const void *address, size_t bytes, const void *stream);

/* ---- The clock --------------------------------------------------------------------------------------------------- */

/* fake_finish: finishes all work of a context.  fake_finish_stream: all work of a stream, and what that waits for.
 * fake_step: one kernel of those that may finish next; choice is any number.  False if there was none. */
void fake_finish(void *context);
void fake_finish_stream(void *stream);
bool fake_step(unsigned choice);

/* ---- Stream captures ---------------------------------------------------------------------------------------------
 *
 * Modes: 0 global, 1 thread-local, 2 relaxed.  A mode may forbid to allocate, to free and to ask about events, by the
 * rules of cuThreadExchangeStreamCaptureMode.  Every mode forbids to wait for the context and to record an event of the
 * whole context.  A call that is forbidden answers 900 and spoils the capture.
 */

/* The calling thread's mode, without a call of the driver. */
int fake_capture_mode(void);

/* As cuStreamBeginCapture: whether the capture began (on the legacy stream it does not).  As cuStreamEndCapture:
 * whether the capture was not spoilt. */
bool fake_stream_capture_begin(void *stream, int mode);
bool fake_stream_capture_end(void *stream);

/* A stream joins the capture that another is in, as by an event of that one for which it waits.  From then on both have
 * the capture's id. */
bool fake_stream_capture_join(void *stream, void *captured);

/* Another thread captures in global mode.  The capture concerns every context. */
void fake_capture_begin(void);
bool fake_capture_end(void);

/* How many captures were spoilt so far. */
unsigned fake_captures_invalidated(void);

#ifdef __cplusplus
}
#endif

#endif
