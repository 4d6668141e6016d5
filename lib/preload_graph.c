/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks of graphs.  What was allocated while a stream was captured is in the graph's nodes, and each launch of the
 * graph uses it again.  With the driver alone such blocks can hardly be: an allocation ends the capture.  A program
 * whose allocations succeed, as those of PyTorch without its cache do, frees them when its own references are gone, in
 * the middle of the capture or after it.  So a free of such a block is kept back until the graph and all that was made
 * of it are destroyed; the program sees it freed at once.
 *
 * A keeper stands for one capture: it keeps the blocks, and lives as long as the graph or an executable graph of it.
 * Where a graph is copied into another (clones, child graphs, updates) the keeper stays for good.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "preload.h"

struct preload_keeper {
  void *graph;    /* NULL: is still captured, or destroyed */
  unsigned users; /* the capture or the graph, and executable graphs */
  bool for_good;
  struct preload_keeper *next;
};

struct executable {
  void *handle;
  struct preload_keeper *keeper;
  struct executable *next;
};

struct kept {
  uintptr_t address;
  struct preload_keeper *keeper;
  bool freed; /* by the program */
  struct kept *next;
};

/* A leaf: nothing is called under it. */
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct preload_keeper *keepers;
static struct executable *executables;
enum { KEPT_BITS = 12 };
static struct kept *kept_blocks[1 << KEPT_BITS];
static _Atomic unsigned keeper_count, kept_count; /* relaxed: hints whether to look at all */

static struct kept **kept_chain(uintptr_t address) {
  return &kept_blocks[(uint64_t)address * 0x9e3779b97f4a7c15u >> (64 - KEPT_BITS)];
}

static struct kept *kept_find_locked(uintptr_t address) {
  struct kept *kept = *kept_chain(address);
  while (kept != NULL && kept->address != address)
    kept = kept->next;
  return kept;
}

/* ---- Keepers ---- */

struct preload_keeper *preload_keeper_new(void) {
  struct preload_keeper *keeper = calloc(1, sizeof *keeper);
  if (keeper == NULL)
    return NULL;
  keeper->users = 1;
  pthread_mutex_lock(&graphs_lock);
  keeper->next = keepers;
  keepers = keeper;
  atomic_fetch_add_explicit(&keeper_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&graphs_lock);
  return keeper;
}

/* Takes the blocks that a keeper kept out of the table, and returns those that the program freed. */
static struct kept *kept_take_locked(const struct preload_keeper *keeper) {
  struct kept *freed = NULL;
  for (unsigned i = 0; i < 1 << KEPT_BITS; i++)
    for (struct kept **link = &kept_blocks[i], *kept; (kept = *link) != NULL;) {
      if (kept->keeper != keeper) {
        link = &kept->next;
        continue;
      }
      *link = kept->next;
      atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
      if (!kept->freed) {
        free(kept); /* the program frees the block itself */
        continue;
      }
      kept->next = freed;
      freed = kept;
    }
  return freed;
}

/* One user less; with the last one goes the keeper, and what it kept and the program freed is returned. */
static struct kept *keeper_leave_locked(struct preload_keeper *keeper) {
  struct preload_keeper **link = &keepers;
  if (--keeper->users > 0 || keeper->for_good)
    return NULL;
  while (*link != keeper)
    link = &(*link)->next;
  *link = keeper->next;
  atomic_fetch_sub_explicit(&keeper_count, 1, memory_order_relaxed);
  struct kept *freed = kept_take_locked(keeper);
  free(keeper);
  return freed;
}

static void kept_free(struct kept *kept) {
  cudaError_t error;
  preload_depth++;
  while (kept != NULL) {
    struct kept *next = kept->next;
    (void)mam_client.free(kept->address, &error);
    free(kept);
    kept = next;
  }
  preload_depth--;
}

void preload_keeper_end(struct preload_keeper *keeper, void *graph) {
  struct kept *freed = NULL;
  if (keeper == NULL)
    return;
  pthread_mutex_lock(&graphs_lock);
  keeper->graph = graph;
  if (graph == NULL)
    freed = keeper_leave_locked(keeper);
  pthread_mutex_unlock(&graphs_lock);
  kept_free(freed);
}

/* ---- Blocks ---- */

void preload_keep(struct preload_keeper *keeper, uintptr_t address) {
  struct kept *kept = malloc(sizeof *kept);
  if (kept == NULL)
    return; /* no host memory: then as a program that keeps its blocks itself */
  *kept = (struct kept){.address = address, .keeper = keeper};
  pthread_mutex_lock(&graphs_lock);
  struct kept **chain = kept_chain(address);
  kept->next = *chain;
  *chain = kept;
  atomic_fetch_add_explicit(&kept_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&graphs_lock);
}

enum preload_kept preload_kept_free(uintptr_t address) {
  enum preload_kept answer = PRELOAD_KEPT_NOT;
  if (atomic_load_explicit(&kept_count, memory_order_relaxed) == 0)
    return answer;
  pthread_mutex_lock(&graphs_lock);
  struct kept *kept = kept_find_locked(address);
  if (kept != NULL) {
    answer = kept->freed ? PRELOAD_KEPT_FREED_BEFORE : PRELOAD_KEPT_FREED;
    kept->freed = true;
  }
  pthread_mutex_unlock(&graphs_lock);
  return answer;
}

bool preload_kept_freed(uintptr_t address) {
  if (atomic_load_explicit(&kept_count, memory_order_relaxed) == 0)
    return false;
  pthread_mutex_lock(&graphs_lock);
  const struct kept *kept = kept_find_locked(address);
  bool freed = kept != NULL && kept->freed;
  pthread_mutex_unlock(&graphs_lock);
  return freed;
}

/* Copies the addresses of a chain, the first so many. */
enum { COPIED_MOST = 64 };

static unsigned chain_copy(unsigned index, uintptr_t addresses[COPIED_MOST]) {
  unsigned count = 0;
  pthread_mutex_lock(&graphs_lock);
  for (const struct kept *kept = kept_blocks[index]; kept != NULL && count < COPIED_MOST; kept = kept->next)
    addresses[count++] = kept->address;
  pthread_mutex_unlock(&graphs_lock);
  return count;
}

static void kept_forget(uintptr_t address) {
  pthread_mutex_lock(&graphs_lock);
  struct kept **link = kept_chain(address), *kept;
  while ((kept = *link) != NULL && kept->address != address)
    link = &kept->next;
  if (kept != NULL) {
    *link = kept->next;
    atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&graphs_lock);
  free(kept);
}

void preload_kept_sweep(void) {
  struct client_block block;
  uintptr_t addresses[COPIED_MOST];
  for (unsigned i = 0; atomic_load_explicit(&kept_count, memory_order_relaxed) > 0 && i < 1 << KEPT_BITS; i++)
    for (unsigned count = chain_copy(i, addresses); count > 0; count--)
      if (mam_client.block_at(addresses[count - 1], &block) != CLIENT_LIVE)
        kept_forget(addresses[count - 1]);
}

/* ---- Graphs ---- */

/* A graph is not there any more. */
static void graph_gone(const void *graph) {
  struct kept *freed = NULL;
  pthread_mutex_lock(&graphs_lock);
  for (struct preload_keeper *keeper = keepers, *next; keeper != NULL; keeper = next) {
    next = keeper->next;
    if (keeper->graph != graph)
      continue;
    keeper->graph = NULL;
    struct kept *more = keeper_leave_locked(keeper), **end = &more;
    while (*end != NULL)
      end = &(*end)->next;
    *end = freed;
    freed = more;
  }
  pthread_mutex_unlock(&graphs_lock);
  kept_free(freed);
}

/* What the graph uses is in another one now, which nobody follows.  NULL: whatever graph it is. */
static void graph_copied(const void *graph) {
  if (atomic_load_explicit(&keeper_count, memory_order_relaxed) == 0)
    return;
  pthread_mutex_lock(&graphs_lock);
  for (struct preload_keeper *keeper = keepers; keeper != NULL; keeper = keeper->next)
    keeper->for_good |= graph == NULL || keeper->graph == graph;
  pthread_mutex_unlock(&graphs_lock);
}

/* An executable graph was made; without host memory for it, its keeper stays for good. */
static void graph_made(const void *graph, void *handle) {
  pthread_mutex_lock(&graphs_lock);
  for (struct preload_keeper *keeper = keepers; keeper != NULL; keeper = keeper->next) {
    if (keeper->graph != graph)
      continue;
    struct executable *executable = malloc(sizeof *executable);
    if (executable == NULL) {
      keeper->for_good = true;
      continue;
    }
    *executable = (struct executable){.handle = handle, .keeper = keeper, .next = executables};
    executables = executable;
    keeper->users++;
  }
  pthread_mutex_unlock(&graphs_lock);
}

static struct executable *executable_take(const void *handle) {
  struct executable **link = &executables, *executable;
  pthread_mutex_lock(&graphs_lock);
  while ((executable = *link) != NULL && executable->handle != handle)
    link = &executable->next;
  if (executable != NULL)
    *link = executable->next;
  pthread_mutex_unlock(&graphs_lock);
  return executable;
}

static void executable_gone(const void *handle) {
  struct executable *executable;
  while ((executable = executable_take(handle)) != NULL) {
    pthread_mutex_lock(&graphs_lock);
    struct kept *freed = keeper_leave_locked(executable->keeper);
    pthread_mutex_unlock(&graphs_lock);
    kept_free(freed);
    free(executable);
  }
}

/* Whether anything is to be followed. */
static bool follows(CUresult result) {
  return result == CUDA_SUCCESS && preload_depth == 0 && atomic_load_explicit(&keeper_count, memory_order_relaxed) > 0;
}

static CUresult made(CUresult result, void *const *executable, const void *graph) {
  if (follows(result))
    graph_made(graph, *executable);
  return result;
}

static CUresult copied(CUresult result, const void *graph) {
  if (follows(result))
    graph_copied(graph);
  return result;
}

CUresult cuGraphInstantiate(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return made(result, executable, graph);
}

CUresult cuGraphInstantiate_v2(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate_v2, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return made(result, executable, graph);
}

CUresult cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithFlags, executable, graph, flags);
  while (preload_again(result, &tries));
  return made(result, executable, graph);
}

CUresult cuGraphInstantiateWithParams(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams, executable, graph, parameters);
  while (preload_again(result, &tries));
  return made(result, executable, graph);
}

CUresult cuGraphInstantiateWithParams_ptsz(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams_ptsz, executable, graph, parameters);
  while (preload_again(result, &tries));
  return made(result, executable, graph);
}

CUresult cuGraphDestroy(void *graph) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphDestroy, graph);
  if (follows(result) && graph != NULL)
    graph_gone(graph);
  return result;
}

CUresult cuGraphExecDestroy(void *executable) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphExecDestroy, executable);
  if (follows(result))
    executable_gone(executable);
  return result;
}

CUresult cuGraphClone(void **clone, void *graph) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphClone, clone, graph), graph);
}

CUresult cuGraphAddChildGraphNode(void **node, void *graph, const void *nodes, size_t count, void *child) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphAddChildGraphNode, node, graph, nodes, count, child), child);
}

/* Of parameters, the first number is the node's type. */
enum { NODE_TYPE_GRAPH = 4 };

static CUresult node_added(CUresult result, const int *parameters) {
  return parameters != NULL && *parameters == NODE_TYPE_GRAPH ? copied(result, NULL) : result;
}

CUresult cuGraphAddNode(void **node, void *graph, const void *nodes, size_t count, int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_added(PRELOAD_CALL(real, cuGraphAddNode, node, graph, nodes, count, parameters), parameters);
}

CUresult cuGraphAddNode_v2(void **node, void *graph, const void *nodes, const void *edges, size_t count,
                           int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_added(PRELOAD_CALL(real, cuGraphAddNode_v2, node, graph, nodes, edges, count, parameters), parameters);
}

CUresult cuGraphExecUpdate(void *executable, void *graph, void **node, int *outcome) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphExecUpdate, executable, graph, node, outcome), graph);
}

CUresult cuGraphExecUpdate_v2(void *executable, void *graph, void *outcome) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphExecUpdate_v2, executable, graph, outcome), graph);
}

CUresult cuGraphExecChildGraphNodeSetParams(void *executable, void *node, void *child) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphExecChildGraphNodeSetParams, executable, node, child), child);
}

void preload_graph_forked(void) { (void)pthread_mutex_init(&graphs_lock, NULL); }
