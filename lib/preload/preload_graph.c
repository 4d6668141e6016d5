/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Graphs that use blocks.  A block that was allocated while a stream was captured is in the graph's nodes, and each
 * launch uses it again.  With the driver alone an allocation ends the capture, unless the program has asked for the
 * relaxed mode.  Under this library the allocation succeeds, and the program may free the block during the capture or
 * after it (PyTorch without its cache does).  The program sees the block freed at once.  The pool gets it when the
 * graph, and all that was made of the graph, are destroyed.
 *
 *   the graph of the capture --use--+
 *   an executable of it      --use--+--> a keeper --hold--> blocks (preload_keep.c)
 *   a graph that contains it --use--+
 *
 * A keeper holds such blocks of one capture, and those that the program allocated before and freed during it.  The
 * capture and each graph or executable graph that may launch these blocks are its users.  When the last user goes, the
 * keeper goes.  If the host has no memory to note a use, the keeper stays for good.
 *
 * The driver may give the handle of a destroyed graph to another thread before the call that destroyed it returns.  So
 * the uses of a handle leave the table before that call, and come back if it fails.
 *
 * Some graphs are inside of another one, which owns them: bodies of conditional nodes, and graphs in child nodes. Their
 * uses are those of the root (preload_part.c).  Where the root of a graph is not known, an executable of it gets all
 * uses that there are, and what is captured into it is kept for good.
 *
 * This file does not know captures: preload_work.c says when one begins and ends.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload_keep.h"
#include "preload/preload_part.h"

/* The nodes of a graph or an executable graph may have a keeper's blocks. */
struct use {
  const void *holder; /* the handle of the graph or executable; or the keeper of a capture that goes on */
  const void *node;   /* of the executable whose node was given another graph; NULL: any */
  struct preload_keeper *keeper;
  struct use *next; /* in the chain of the table */
};

/* The table has CHAINS chains: a program has far fewer graphs than blocks. */
enum { TABLE_BITS = 8, CHAINS = 1 << TABLE_BITS };

/* Under preload_keep_lock. */
static struct use *uses[CHAINS];
static _Atomic unsigned use_count; /* relaxed: a hint whether to look */

/* Fibonacci hashing: the product's high bits depend on all bits of the key. */
static struct use **use_chain(const void *holder) {
  return &uses[(uint64_t)(uintptr_t)holder * 0x9e3779b97f4a7c15u >> (64 - TABLE_BITS)];
}

/* ---- Uses ---- */

static void use_link_locked(struct use *use) {
  struct use **chain = use_chain(use->holder);
  use->next = *chain;
  *chain = use;
  atomic_fetch_add_explicit(&use_count, 1, memory_order_relaxed);
}

/* Notes that holder, or its node, uses keeper, once.  holder: NULL if it is not known. */
static void use_add_locked(const void *holder, const void *node, struct preload_keeper *keeper) {
  struct use *use = *use_chain(holder);
  if (holder == NULL) {
    preload_keeper_stay_locked(keeper);
    return;
  }
  while (use != NULL && (use->holder != holder || use->node != node || use->keeper != keeper))
    use = use->next;
  if (use != NULL)
    return;
  use = malloc(sizeof *use);
  if (use == NULL) {
    preload_keeper_stay_locked(keeper);
    return;
  }
  *use = (struct use){.holder = holder, .node = node, .keeper = keeper};
  use_link_locked(use);
  preload_keeper_join_locked(keeper);
}

/* Notes that to, or its node, uses all keepers that from uses; all that there are if from is NULL: one that lives, but
 * it is not known which. */
static void uses_copy_locked(const void *from, const void *to, const void *node) {
  struct use **first = from != NULL ? use_chain(from) : uses, **last = from != NULL ? first : uses + CHAINS - 1;
  for (struct use **chain = first; chain <= last; chain++)
    for (const struct use *use = *chain; use != NULL; use = use->next)
      if (use->holder != to && (from == NULL || use->holder == from))
        use_add_locked(to, node, use->keeper);
}

/* Takes the uses of holder out of the table, as a list; those of one node, or all if node is NULL. */
static struct use *uses_take_locked(const void *holder, const void *node) {
  struct use **link = use_chain(holder), *taken = NULL, *use;
  while ((use = *link) != NULL) {
    if (use->holder != holder || (node != NULL && use->node != node)) {
      link = &use->next;
      continue;
    }
    *link = use->next;
    use->next = taken;
    taken = use;
    atomic_fetch_sub_explicit(&use_count, 1, memory_order_relaxed);
  }
  return taken;
}

/* Ends a list of uses.  Returns the blocks to free. */
static struct kept *uses_end_locked(struct use *use) {
  struct kept *freed = NULL;
  while (use != NULL) {
    struct use *next = use->next;
    freed = preload_keeper_leave_locked(use->keeper, freed);
    free(use);
    use = next;
  }
  return freed;
}

/* Whether a call of a hook has uses to look for. */
static bool some_used(void) { return preload_depth == 0 && atomic_load_explicit(&use_count, memory_order_relaxed) > 0; }

/* To be called before holder is destroyed.  Returns its uses for holder_gone, NULL if there are none. */
static struct use *holder_goes(const void *holder) {
  if (!some_used())
    return NULL;
  preload_keep_lock();
  struct use *taken = uses_take_locked(holder, NULL);
  preload_keep_unlock();
  return taken;
}

/* To be called after it: result says whether holder was destroyed.  If not, its uses come back. */
static CUresult holder_gone(struct use *taken, CUresult result) {
  struct kept *freed = NULL;
  if (taken == NULL)
    return result;
  preload_keep_lock();
  if (result == CUDA_SUCCESS)
    freed = uses_end_locked(taken);
  for (struct use *use = taken, *next; result != CUDA_SUCCESS && use != NULL; use = next) {
    next = use->next;
    use_link_locked(use);
  }
  preload_keep_unlock();
  preload_kept_end(freed);
  return result;
}

/* To be called after a call of the driver that copied a graph into to. */
static CUresult copied(CUresult result, const void *graph, const void *to) {
  if (result != CUDA_SUCCESS || !some_used())
    return result;
  preload_keep_lock();
  uses_copy_locked(preload_part_root_locked(graph), to, NULL);
  preload_keep_unlock();
  return result;
}

/* To be called after a call of the driver that made to, or its node, a copy of a graph: the uses of before end. */
static void updated(const void *graph, const void *to, const void *node) {
  preload_keep_lock();
  struct use *before = uses_take_locked(to, node);
  uses_copy_locked(preload_part_root_locked(graph), to, node);
  struct kept *freed = uses_end_locked(before);
  preload_keep_unlock();
  preload_kept_end(freed);
}

/* The same for an executable graph. */
static CUresult exec_updated(CUresult result, const void *graph, const void *executable, const void *node) {
  if (result == CUDA_SUCCESS && some_used())
    updated(graph, executable, node);
  return result;
}

/* A graph gets what a capture has: its blocks, and those of graphs that were launched. */
static void keeper_hand_locked(struct preload_keeper *keeper, const void *graph) {
  if (!preload_keeper_is_empty_locked(keeper))
    use_add_locked(graph, NULL, keeper);
  uses_copy_locked(keeper, graph, NULL);
}

void preload_keeper_end(struct preload_keeper *keeper, void *graph, bool is_new) {
  if (keeper == NULL)
    return;
  preload_keep_lock();
  if (is_new && preload_part_root_locked(graph) != graph)
    preload_part_born_locked(graph);
  if (graph != NULL)
    keeper_hand_locked(keeper, preload_part_root_locked(graph));
  struct kept *freed = uses_end_locked(uses_take_locked(keeper, NULL));
  freed = preload_keeper_leave_locked(keeper, freed);
  preload_keep_unlock();
  preload_kept_end(freed);
}

void preload_keeper_launch(struct preload_keeper *keeper, const void *executable) {
  preload_keep_lock();
  uses_copy_locked(executable, keeper, NULL);
  preload_keep_unlock();
}

/* ---- Graphs ---- */

CUresult cuGraphInstantiate(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiate_v2(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate_v2, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithFlags, executable, graph, flags);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithParams(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams, executable, graph, parameters);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithParams_ptsz(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams_ptsz, executable, graph, parameters);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

/* To be called before a graph or a node is destroyed.  Returns what is noted of it for part_gone. */
static struct part *part_goes(const void *part) {
  if (preload_depth != 0 || !preload_parts())
    return NULL;
  preload_keep_lock();
  struct part *taken = preload_part_take_locked(part);
  preload_keep_unlock();
  return taken;
}

/* To be called after it, as holder_gone. */
static CUresult part_gone(struct part *taken, CUresult result) {
  if (taken == NULL)
    return result;
  preload_keep_lock();
  if (result == CUDA_SUCCESS)
    preload_part_end_locked(taken);
  else
    preload_part_back_locked(taken);
  preload_keep_unlock();
  return result;
}

CUresult cuGraphDestroy(void *graph) {
  const struct preload_real *real = preload_real_get();
  struct use *taken = holder_goes(graph);
  struct part *part = part_goes(graph);
  return part_gone(part, holder_gone(taken, PRELOAD_CALL(real, cuGraphDestroy, graph)));
}

/* The graph goes on to use what the node used. */
CUresult cuGraphDestroyNode(void *node) {
  const struct preload_real *real = preload_real_get();
  struct part *part = part_goes(node);
  return part_gone(part, PRELOAD_CALL(real, cuGraphDestroyNode, node));
}

CUresult cuGraphExecDestroy(void *executable) {
  const struct preload_real *real = preload_real_get();
  struct use *taken = holder_goes(executable);
  return holder_gone(taken, PRELOAD_CALL(real, cuGraphExecDestroy, executable));
}

/* To be called after a graph was made. */
static CUresult graph_made(CUresult result, void *const *graph) {
  if (result != CUDA_SUCCESS || preload_depth != 0 || !preload_parts())
    return result;
  preload_keep_lock();
  preload_part_born_locked(*graph);
  preload_keep_unlock();
  return result;
}

CUresult cuGraphCreate(void **graph, unsigned flags) {
  const struct preload_real *real = preload_real_get();
  return graph_made(PRELOAD_CALL(real, cuGraphCreate, graph, flags), graph);
}

CUresult cuGraphClone(void **clone, void *graph) {
  const struct preload_real *real = preload_real_get();
  CUresult result = graph_made(PRELOAD_CALL(real, cuGraphClone, clone, graph), clone);
  return copied(result, graph, result == CUDA_SUCCESS ? *clone : NULL);
}

/* A node was added to a graph. */
static void node_born_locked(const void *node, const void *graph) {
  preload_part_born_locked(node);
  preload_part_add_locked(node, graph);
}

/* To be called after a node with a copy of a graph in it was added. */
static CUresult child_added(CUresult result, void *const *node, const void *graph, const void *child) {
  if (result != CUDA_SUCCESS || preload_depth != 0)
    return result;
  preload_keep_lock();
  if (node != NULL)
    node_born_locked(*node, graph);
  uses_copy_locked(preload_part_root_locked(child), preload_part_root_locked(graph), NULL);
  preload_keep_unlock();
  return result;
}

CUresult cuGraphAddChildGraphNode(void **node, void *graph, const void *nodes, size_t count, void *child) {
  const struct preload_real *real = preload_real_get();
  return child_added(PRELOAD_CALL(real, cuGraphAddChildGraphNode, node, graph, nodes, count, child), node, graph,
                     child);
}

/* The root of a node, NULL if the library has not seen the node before. */
static const void *node_root_locked(const void *node) {
  const void *root = preload_part_root_locked(node);
  return root != node ? root : NULL;
}

CUresult cuGraphChildGraphNodeGetGraph(void *node, void **graph) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphChildGraphNodeGetGraph, node, graph);
  if (result != CUDA_SUCCESS || preload_depth != 0 || graph == NULL)
    return result;
  preload_keep_lock();
  preload_part_add_locked(*graph, node_root_locked(node) != NULL ? node : NULL);
  preload_keep_unlock();
  return result;
}

enum {
  /* Numbers of CUgraphNodeType: a node that contains a graph; a conditional node. */
  NODE_TYPE_GRAPH = 4,
  NODE_TYPE_CONDITIONAL = 13,
  /* CUgraphNodeParams begins with the type.  What depends on the type begins after so many ints. */
  NODE_OF_TYPE_INTS = 4,
  /* A node that contains a graph: its handle, then whether the node takes it over (1) or copies it (0). */
  CHILD_OWNERSHIP_INTS = NODE_OF_TYPE_INTS + 2,
  CHILD_MOVED = 1,
  /* A conditional node: a handle of 8 bytes, its type, the number of bodies, and where their graphs are. */
  BODY_COUNT_INTS = NODE_OF_TYPE_INTS + 3,
  BODIES_INTS = NODE_OF_TYPE_INTS + 4
};

static const void *pointer_at(const int *parameters, int ints) {
  const void *pointer;
  (void)memcpy(&pointer, parameters + ints, sizeof pointer);
  return pointer;
}

/* To be called after a conditional node was added to a graph: its bodies are inside of it. */
static void conditional_added(const int *parameters, const void *node, const void *graph) {
  const void *const *bodies = pointer_at(parameters, BODIES_INTS);
  preload_keep_lock();
  node_born_locked(node, graph);
  for (int i = 0; bodies != NULL && i < parameters[BODY_COUNT_INTS]; i++)
    node_born_locked(bodies[i], node);
  preload_keep_unlock();
}

/* To be called after a node was added that took a graph over: the program no longer destroys that. */
static void child_moved(const void *node, const void *child) {
  preload_keep_lock();
  preload_part_add_locked(child, node);
  preload_keep_unlock();
  (void)holder_gone(holder_goes(child), CUDA_SUCCESS);
}

/* To be called after a node was added to a graph. */
static CUresult node_added(CUresult result, const int *parameters, void *const *node, const void *graph) {
  if (result != CUDA_SUCCESS || preload_depth != 0 || parameters == NULL || node == NULL)
    return result;
  if (*parameters == NODE_TYPE_CONDITIONAL)
    conditional_added(parameters, *node, graph);
  if (*parameters != NODE_TYPE_GRAPH)
    return result;
  const void *child = pointer_at(parameters, NODE_OF_TYPE_INTS);
  (void)child_added(result, node, graph, child);
  if (parameters[CHILD_OWNERSHIP_INTS] == CHILD_MOVED)
    child_moved(*node, child);
  return result;
}

CUresult cuGraphAddNode(void **node, void *graph, const void *nodes, size_t count, int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_added(PRELOAD_CALL(real, cuGraphAddNode, node, graph, nodes, count, parameters), parameters, node, graph);
}

CUresult cuGraphAddNode_v2(void **node, void *graph, const void *nodes, const void *edges, size_t count,
                           int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_added(PRELOAD_CALL(real, cuGraphAddNode_v2, node, graph, nodes, edges, count, parameters), parameters,
                    node, graph);
}

/* All nodes of the executable get the graph's parameters.  Work in flight may still use the blocks that it had before;
 * a free of them waits for that work, as every free does. */
CUresult cuGraphExecUpdate(void *executable, void *graph, void **node, int *outcome) {
  const struct preload_real *real = preload_real_get();
  return exec_updated(PRELOAD_CALL(real, cuGraphExecUpdate, executable, graph, node, outcome), graph, executable, NULL);
}

CUresult cuGraphExecUpdate_v2(void *executable, void *graph, void *outcome) {
  const struct preload_real *real = preload_real_get();
  return exec_updated(PRELOAD_CALL(real, cuGraphExecUpdate_v2, executable, graph, outcome), graph, executable, NULL);
}

/* Of a node, its graph of the beginning and its last one count. */
CUresult cuGraphExecChildGraphNodeSetParams(void *executable, void *node, void *child) {
  const struct preload_real *real = preload_real_get();
  return exec_updated(PRELOAD_CALL(real, cuGraphExecChildGraphNodeSetParams, executable, node, child), child,
                      executable, node);
}

CUresult cuGraphExecNodeSetParams(void *executable, void *node, int *parameters) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphExecNodeSetParams, executable, node, parameters);
  if (parameters == NULL || *parameters != NODE_TYPE_GRAPH)
    return result;
  return exec_updated(result, pointer_at(parameters, NODE_OF_TYPE_INTS), executable, node);
}

/* A node with a graph gets another one.  As above, its first and its last one count. */
CUresult cuGraphNodeSetParams(void *node, int *parameters) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphNodeSetParams, node, parameters);
  if (result != CUDA_SUCCESS || parameters == NULL || *parameters != NODE_TYPE_GRAPH || !some_used())
    return result;
  preload_keep_lock();
  const void *root = node_root_locked(node);
  preload_keep_unlock();
  updated(pointer_at(parameters, NODE_OF_TYPE_INTS), root, node);
  return result;
}

/* On a stream that is captured, the graph gets a node with the executable's graph. */
CUresult cuGraphLaunch(void *executable, CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphLaunch, executable, stream);
  while (preload_again(result, &tries));
  if (result == CUDA_SUCCESS && some_used())
    preload_capture_launch(real, executable, stream);
  return result;
}

CUresult cuGraphLaunch_ptsz(void *executable, CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct preload_tries tries = {0};
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphLaunch_ptsz, executable, stream);
  while (preload_again(result, &tries));
  if (result == CUDA_SUCCESS && some_used())
    preload_capture_launch(real, executable, preload_stream_ptsz(stream));
  return result;
}
