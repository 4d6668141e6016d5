/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions of the driver that programs call and the library does not: questions about addresses, memory of other
 * processes, ends of contexts, captures, graphs.  They answer as the real driver does.  Only the bytes of a handle for
 * another process are the fake's own.  See fake_machine.h.
 */
#include "fake_machine.h"

#include <string.h>
#include <unistd.h>

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { pitch_unit = 512 };

int cuMemAllocPitch(unsigned long long *address, size_t *pitch, size_t width, size_t height, unsigned element_bytes) {
  int error = call_begin(CALL_cuMemAllocPitch);
  if (error == SUCCESS && (address == NULL || pitch == NULL || width == 0 || height == 0 ||
                           (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)))
    error = INVALID_VALUE;
  (void)call_end(error);
  size_t row = (width + pitch_unit - 1) / pitch_unit * pitch_unit;
  if (error == SUCCESS)
    error = cuMemAlloc(address, row * height);
  if (error == SUCCESS)
    *pitch = row;
  return error;
}

/* The block in which an address lies, within the bytes that were asked for.  NULL if there is none. */
static struct block *requested_block_at(uintptr_t address) {
  struct block *block = memory_block_at(address);
  return block != NULL && address - block->address < block->requested_bytes ? block : NULL;
}

int cuMemGetAddressRange(unsigned long long *base, size_t *bytes, unsigned long long address) {
  int error = call_begin(CALL_cuMemGetAddressRange);
  const struct block *block = error == SUCCESS ? requested_block_at((uintptr_t)address) : NULL;
  if (error == SUCCESS && block == NULL)
    error = NOT_FOUND;
  if (error == SUCCESS && base != NULL)
    *base = block->address;
  if (error == SUCCESS && bytes != NULL)
    *bytes = block->requested_bytes;
  return call_end(error);
}

enum {
  attribute_context = 1,
  attribute_memory_type = 2,
  attribute_device_pointer = 3,
  attribute_buffer_id = 7,
  attribute_range_start = 11,
  attribute_range_bytes = 12,
  memory_type_device = 2
};

static int attribute_get(const struct block *block, int attribute, void *value) {
  static const int device_memory = memory_type_device;
  const unsigned long long address = block->address;
  const void *from = attribute == attribute_context          ? (const void *)&block->owner
                     : attribute == attribute_memory_type    ? (const void *)&device_memory
                     : attribute == attribute_buffer_id      ? (const void *)&block->id
                     : attribute == attribute_range_start    ? (const void *)&address
                     : attribute == attribute_device_pointer ? (const void *)&address
                     : attribute == attribute_range_bytes    ? (const void *)&block->requested_bytes
                                                             : NULL;
  if (from == NULL)
    return INVALID_VALUE;
  (void)memcpy(value, from, attribute == attribute_memory_type ? sizeof device_memory : sizeof address);
  return SUCCESS;
}

/* Whether kernels of the current context can use the block. */
static bool block_is_in_reach(const struct block *block) {
  struct context *context = NULL;
  return memory_reached(block, context_current(&context) == SUCCESS ? context : NULL);
}

int cuPointerGetAttribute(void *value, int attribute, unsigned long long address) {
  int error = call_begin(CALL_cuPointerGetAttribute);
  const struct block *block = error == SUCCESS ? requested_block_at((uintptr_t)address) : NULL;
  if (error == SUCCESS && block != NULL && attribute == attribute_device_pointer && !block_is_in_reach(block))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    error = block != NULL && value != NULL ? attribute_get(block, attribute, value) : INVALID_VALUE;
  return call_end(error);
}

/* For an address that is no memory of the driver, every attribute is 0. */
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, unsigned long long address) {
  int error = call_begin(CALL_cuPointerGetAttributes);
  const struct block *block = error == SUCCESS ? requested_block_at((uintptr_t)address) : NULL;
  for (unsigned i = 0; error == SUCCESS && i < count; i++)
    if (block != NULL)
      error = attribute_get(block, attributes[i], values[i]);
    else
      (void)memset(values[i], 0, attributes[i] == attribute_memory_type ? sizeof(int) : sizeof address);
  return call_end(error);
}

/* ---- Memory of other processes ----------------------------------------------------------------------------------- */

/* A handle has some numbers and zeros, as the real driver's.  The memory opens at another address, at this distance. */
static const uintptr_t opened_away = (uintptr_t)1 << 45;
enum { handle_place = 8, handle_process = 20, handle_mark_place = 40, handle_mark = 0x1f };

int cuIpcGetMemHandle(struct ipc_handle *handle, unsigned long long address) {
  int error = call_begin(CALL_cuIpcGetMemHandle);
  const struct block *block = error == SUCCESS ? memory_block_at((uintptr_t)address) : NULL;
  pid_t process = getpid();
  if (error == SUCCESS && (block == NULL || block->kind != KIND_DEVICE))
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    (void)memset(handle, 0, sizeof *handle);
    (void)memcpy(handle->bytes + handle_place, &block->address, sizeof block->address);
    (void)memcpy(handle->bytes + handle_process, &process, sizeof process);
    handle->bytes[handle_mark_place] = handle_mark;
  }
  return call_end(error);
}

/* Memory that is open.  It closes when its context ends. */
enum { opened_limit = 1024 };
static struct opened {
  uintptr_t place;
  unsigned count; /* 0: free */
  const struct context *context;
  unsigned long long context_id;
} all_opened[opened_limit];

static struct opened *opened_find(uintptr_t place) {
  struct opened *unused = NULL;
  for (struct opened *opened = all_opened; opened < all_opened + opened_limit; opened++) {
    if (opened->count > 0 && !(opened->context->alive && opened->context->id == opened->context_id))
      opened->count = 0;
    if (opened->count > 0 && opened->place == place)
      return opened;
    unused = opened->count == 0 ? opened : unused;
  }
  return unused;
}

int cuIpcOpenMemHandle(unsigned long long *address, struct ipc_handle handle, unsigned flags) {
  int error = call_begin(CALL_cuIpcOpenMemHandle);
  struct context *context = NULL;
  uintptr_t place;
  (void)memcpy(&place, handle.bytes + handle_place, sizeof place);
  const struct block *block = memory_block_at(place);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS && (flags > 1 || handle.bytes[handle_mark_place] != handle_mark || handle.bytes[0] != 0 ||
                           block == NULL || block->address != place))
    error = INVALID_VALUE;
  struct opened *opened = error == SUCCESS ? opened_find(place) : NULL;
  if (error == SUCCESS && opened == NULL)
    error = OUT_OF_MEMORY;
  if (error == SUCCESS) {
    *opened =
        (struct opened){.place = place, .count = opened->count + 1, .context = context, .context_id = context->id};
    *address = place + opened_away;
  }
  return call_end(error);
}

int cuIpcCloseMemHandle(unsigned long long address) {
  int error = call_begin(CALL_cuIpcCloseMemHandle);
  uintptr_t place = (uintptr_t)address - opened_away;
  struct opened *opened = error == SUCCESS ? opened_find(place) : NULL;
  if (error == SUCCESS && (opened == NULL || opened->count == 0 || opened->place != place))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    opened->count--;
  return call_end(error);
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

int cuCtxDestroy(struct context *context) {
  int error = call_begin(CALL_cuCtxDestroy);
  if (error == SUCCESS && (!context_known(context) || !context->alive))
    error = INVALID_CONTEXT;
  (void)call_end(error);
  if (error == SUCCESS)
    fake_context_destroy(context);
  return error;
}

int cuDevicePrimaryCtxReset(int device) {
  int error = call_begin(CALL_cuDevicePrimaryCtxReset);
  if (error == SUCCESS)
    error = device_check(device);
  (void)call_end(error);
  if (error == SUCCESS)
    fake_primary_reset(device);
  return error;
}

/* cuCtxSynchronize from CUDA 13 on: for any context, NULL is the current one. */
static int synchronize_context(struct context *context) {
  int error = call_begin(CALL_cuCtxSynchronize);
  if (error == SUCCESS && context == NULL)
    error = context_current(&context);
  if (error == SUCCESS)
    error = capture_check_context(context);
  if (error == SUCCESS)
    context_finish(context, true);
  return call_end(error);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

int cuStreamGetCtx(void *handle, struct context **context) {
  struct stream *stream = NULL;
  int error = call_begin(CALL_cuStreamGetCtx);
  if (error == SUCCESS)
    error = stream_of(handle, &stream);
  if (error == SUCCESS)
    *context = stream->context;
  return call_end(error);
}

int cuStreamDestroy(void *handle) {
  int error = call_end(call_begin(CALL_cuStreamDestroy));
  if (error == SUCCESS)
    fake_stream_destroy(handle);
  fake_lock();
  call_hold(CALL_cuStreamDestroy);
  return call_end(error);
}

int cuStreamBeginCapture(void *handle, int mode) {
  int error = call_end(call_begin(CALL_cuStreamBeginCapture));
  if (error == SUCCESS && !fake_stream_capture_begin(handle, mode))
    error = CAPTURE_UNSUPPORTED;
  return error;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Graphs and executable graphs.  A handle is the address of one of these.  A new graph gets the lowest handle that is
 * not taken.  Guarded by the machine's mutex. */
enum { graph_limit = 4096 };
static struct graph {
  bool alive, executable;
  const struct graph *owner; /* that this one is a part of, and goes with; NULL: none */
  void *body;                /* of the last conditional node */
} graphs[graph_limit];

/* The capture that adds to a graph of the program's. */
static struct {
  const void *stream;
  void *graph;
} into;

static struct graph *graph_new(bool executable) {
  for (struct graph *graph = graphs; graph < graphs + graph_limit; graph++)
    if (!graph->alive) {
      *graph = (struct graph){.alive = true, .executable = executable};
      return graph;
    }
  return NULL;
}

static bool graph_is(const void *handle, bool executable) {
  uintptr_t number = (uintptr_t)handle, table = (uintptr_t)graphs;
  if (number < table || number >= table + sizeof graphs || (number - table) % sizeof graphs[0] != 0)
    return false;
  const struct graph *graph = &graphs[(number - table) / sizeof graphs[0]];
  return graph->alive && graph->executable == executable;
}

/* A graph goes, and its parts with it. */
static void graph_dies(struct graph *graph) {
  graph->alive = false;
  for (struct graph *part = graphs; part < graphs + graph_limit; part++)
    if (part->alive && part->owner == graph)
      graph_dies(part);
}

/* Makes the handle that a call asks for, unless error says that the call failed, or may is false. */
static int graph_make(int error, bool may, bool executable, void **handle) {
  if (error == SUCCESS && !may)
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    struct graph *made = graph_new(executable);
    error = made == NULL ? OUT_OF_MEMORY : SUCCESS;
    if (made != NULL)
      *handle = made;
  }
  return error;
}

static int graph_end(enum call call, int error, void *handle, bool executable) {
  if (error == SUCCESS && !graph_is(handle, executable))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    graph_dies(handle);
  call_hold(call);
  return call_end(error);
}

enum { NODE_OFFSET = 1 }; /* a node's handle is that of the graph in it, and so much more */

/* Makes a part of a graph, and its node, unless error says that the call failed, or may is false. */
static int part_make(int error, bool may, const struct graph *graph, void **node) {
  void *part = NULL;
  error = graph_make(error, may, false, &part);
  if (error == SUCCESS) {
    ((struct graph *)part)->owner = graph;
    *node = (char *)part + NODE_OFFSET;
  }
  return error;
}

int cuStreamEndCapture(void *handle, void **graph) {
  void *made = NULL;
  int error = call_end(call_begin(CALL_cuStreamEndCapture));
  if (error == SUCCESS && !fake_stream_capture_end(handle))
    error = CAPTURE_INVALIDATED;
  fake_lock();
  if (error == SUCCESS && into.stream == handle) {
    made = into.graph;
    into.stream = NULL;
  } else
    error = graph_make(error, true, false, &made);
  if (graph != NULL)
    *graph = made;
  call_hold(CALL_cuStreamEndCapture);
  return call_end(error);
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  int error = call_begin(CALL_cuGraphInstantiateWithFlags);
  return call_end(graph_make(error, graph_is(graph, false) && flags <= 15, true, executable));
}

int cuGraphDestroy(void *graph) {
  return graph_end(CALL_cuGraphDestroy, call_begin(CALL_cuGraphDestroy), graph, false);
}

int cuGraphExecDestroy(void *executable) {
  return graph_end(CALL_cuGraphExecDestroy, call_begin(CALL_cuGraphExecDestroy), executable, true);
}

int cuGraphClone(void **clone, void *graph) {
  return call_end(graph_make(call_begin(CALL_cuGraphClone), graph_is(graph, false), false, clone));
}

int cuGraphAddChildGraphNode(void **node, void *graph, const void *nodes, size_t count, void *child) {
  int error = call_begin(CALL_cuGraphAddChildGraphNode);
  bool may = nodes == NULL && count == 0 && graph_is(graph, false) && graph_is(child, false);
  return call_end(part_make(error, may, graph, node));
}

int cuGraphChildGraphNodeGetGraph(void *node, void **graph) {
  int error = call_begin(CALL_cuGraphChildGraphNodeGetGraph);
  if (error == SUCCESS)
    *graph = (char *)node - NODE_OFFSET;
  return call_end(error);
}

int cuGraphDestroyNode(void *node) {
  int error = call_begin(CALL_cuGraphDestroyNode);
  if (error == SUCCESS)
    graph_dies((struct graph *)((char *)node - NODE_OFFSET));
  return call_end(error);
}

/* What is in a node of a clone comes to be when the program finds the node. */
int cuGraphNodeFindInClone(void **node, void *original, void *clone) {
  (void)original;
  int error = call_begin(CALL_cuGraphNodeFindInClone);
  return call_end(part_make(error, graph_is(clone, false), clone, node));
}

int cuGraphNodeSetParams(void *node, int *parameters) {
  (void)node;
  int error = call_begin(CALL_cuGraphNodeSetParams);
  return call_end(error == SUCCESS && *parameters != 4 ? INVALID_VALUE : error);
}

int cuGraphCreate(void **graph, unsigned flags) {
  return call_end(graph_make(call_begin(CALL_cuGraphCreate), flags == 0, false, graph));
}

/* Nodes that contain a copy of a graph (type 4), or take it over, and conditional nodes with one body (type 13). */
int cuGraphAddNode(void **node, void *graph, const void *nodes, size_t count, int *parameters) {
  int error = call_begin(CALL_cuGraphAddNode);
  bool conditional = *parameters == 13, moves = !conditional && parameters[6] == 1;
  struct graph *child = NULL;
  if (!conditional)
    memcpy(&child, parameters + 4, sizeof child);
  bool may = nodes == NULL && count == 0 && graph_is(graph, false) && (conditional || graph_is(child, false));
  if (error == SUCCESS && may && moves) {
    child->owner = graph;
    *node = (char *)child + NODE_OFFSET;
    return call_end(error);
  }
  error = part_make(error, may, graph, node);
  if (error == SUCCESS && conditional) {
    void **bodies = &((struct graph *)graph)->body;
    *bodies = (char *)*node - NODE_OFFSET;
    memcpy(parameters + 8, &bodies, sizeof bodies);
  }
  return call_end(error);
}

int cuGraphExecChildGraphNodeSetParams(void *executable, void *node, void *child) {
  (void)node;
  int error = call_begin(CALL_cuGraphExecChildGraphNodeSetParams);
  return call_end(error == SUCCESS && !(graph_is(executable, true) && graph_is(child, false)) ? INVALID_VALUE : error);
}

int cuGraphLaunch(void *executable, void *stream) {
  (void)stream;
  int error = call_begin(CALL_cuGraphLaunch);
  return call_end(error == SUCCESS && !graph_is(executable, true) ? INVALID_VALUE : error);
}

int cuStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges, size_t count,
                                int mode) {
  int error = call_end(call_begin(CALL_cuStreamBeginCaptureToGraph));
  if (error != SUCCESS || nodes != NULL || edges != NULL || count != 0)
    return error != SUCCESS ? error : INVALID_VALUE;
  error = cuStreamBeginCapture(stream, mode);
  if (error == SUCCESS) {
    into.stream = stream;
    into.graph = graph;
  }
  return error;
}

int cuGraphExecUpdate(void *executable, void *graph, void *outcome) {
  (void)outcome;
  int error = call_begin(CALL_cuGraphExecUpdate);
  return call_end(error == SUCCESS && !(graph_is(executable, true) && graph_is(graph, false)) ? INVALID_VALUE : error);
}

static void *per_thread(void *handle) { return handle == NULL ? FAKE_STREAM_PER_THREAD : handle; }

static int begin_capture_ptsz(void *handle, int mode) { return cuStreamBeginCapture(per_thread(handle), mode); }
static int end_capture_ptsz(void *handle, void **graph) { return cuStreamEndCapture(per_thread(handle), graph); }
static int free_async_ptsz(unsigned long long address, void *handle) {
  return cuMemFreeAsync(address, per_thread(handle));
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

EXPORT_AS(cuMemAllocPitch, cuMemAllocPitch_v2, (unsigned long long *, size_t *, size_t, size_t, unsigned))
EXPORT_AS(cuMemGetAddressRange, cuMemGetAddressRange_v2, (unsigned long long *, size_t *, unsigned long long))
EXPORT_AS(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (unsigned long long *, struct ipc_handle, unsigned))
EXPORT_AS(cuCtxDestroy, cuCtxDestroy_v2, (struct context *))
EXPORT_AS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (int))
EXPORT_AS(synchronize_context, cuCtxSynchronize_v2, (struct context *))
EXPORT_AS(cuStreamDestroy, cuStreamDestroy_v2, (void *))
EXPORT_AS(cuStreamBeginCapture, cuStreamBeginCapture_v2, (void *, int))
EXPORT_AS(cuGraphExecUpdate, cuGraphExecUpdate_v2, (void *, void *, void *))
EXPORT_AS(begin_capture_ptsz, cuStreamBeginCapture_v2_ptsz, (void *, int))
EXPORT_AS(end_capture_ptsz, cuStreamEndCapture_ptsz, (void *, void **))
EXPORT_AS(free_async_ptsz, cuMemFreeAsync_ptsz, (unsigned long long, void *))

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

const struct later_row later_rows[] = {
    {"cuGetProcAddress", 12000, false, (void (*)(void))cuGetProcAddress_v2},
    {"cuGetProcAddress", 11030, false, (void (*)(void))cuGetProcAddress},
    {"cuCtxSynchronize", 13000, false, (void (*)(void))synchronize_context},
    {"cuStreamBeginCapture", 10010, true, (void (*)(void))begin_capture_ptsz},
    {"cuStreamEndCapture", 10000, true, (void (*)(void))end_capture_ptsz},
    {"cuMemFreeAsync", 11020, true, (void (*)(void))free_async_ptsz},
};
const size_t later_row_count = sizeof later_rows / sizeof later_rows[0];
