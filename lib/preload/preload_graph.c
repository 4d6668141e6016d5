/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks of graphs.  What was allocated while a stream was captured is in the graph's nodes, and each launch of the
 * graph uses it again.  With the driver alone such blocks can hardly be: an allocation ends the capture.  A program
 * whose allocations succeed, as those of PyTorch without its cache do, frees them when its own references are gone, in
 * the middle of the capture or after it.  So a free of such a block is kept back until the graph and all that was made
 * of it are destroyed; the program sees it freed at once.
 *
 * A keeper stands for one capture in which something was allocated, and keeps its blocks.  It lives as long as anything
 * uses it: the graph that came of the capture, what was made of that, and graphs and executables that it was copied
 * into. Without host memory to remember a use by, the keeper stays for good.
 *
 * A handle that is destroyed may come again before the driver's call returns, as another thread's.  So what a handle
 * uses leaves the table before the call, and comes back if the call fails.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

struct preload_keeper {
  unsigned users; /* the capture, and uses */
  bool for_good;
  struct kept *blocks;
};

/* A graph or an executable graph whose nodes may have a keeper's blocks. */
struct use {
  const void *holder;
  struct preload_keeper *keeper;
  struct use *next;
};

struct kept {
  uintptr_t address;
  struct preload_keeper *keeper;
  bool freed;           /* by the program */
  struct kept *next;    /* by address */
  struct kept *sibling; /* of the keeper */
};

/* A leaf: nothing is called under it. */
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
enum { KEPT_BITS = 12, USE_BITS = 8 };
static struct kept *kept_blocks[1 << KEPT_BITS];
static struct use *uses[1 << USE_BITS];
static _Atomic unsigned use_count, kept_count; /* relaxed: hints whether to look at all */

static uint64_t hash(uintptr_t key, unsigned bits) { return (uint64_t)key * 0x9e3779b97f4a7c15u >> (64 - bits); }

static struct kept **kept_chain(uintptr_t address) { return &kept_blocks[hash(address, KEPT_BITS)]; }
static struct use **use_chain(const void *holder) { return &uses[hash((uintptr_t)holder, USE_BITS)]; }

static struct kept *kept_find_locked(uintptr_t address) {
  struct kept *kept = *kept_chain(address);
  while (kept != NULL && kept->address != address)
    kept = kept->next;
  return kept;
}

/* ---- Keepers ---- */

struct preload_keeper *preload_keeper_new(void) {
  struct preload_keeper *keeper = calloc(1, sizeof *keeper);
  if (keeper != NULL)
    keeper->users = 1;
  return keeper;
}

/* Out of the table. */
static void kept_unlink_locked(struct kept *kept) {
  struct kept **link = kept_chain(kept->address);
  while (*link != kept)
    link = &(*link)->next;
  *link = kept->next;
  atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
}

/* Takes the blocks that a keeper kept out of the table, and puts those that the program freed before others, which are
 * returned.  What it has not freed, it frees itself. */
static struct kept *kept_take_locked(const struct preload_keeper *keeper, struct kept *freed) {
  for (struct kept *kept = keeper->blocks, *next; kept != NULL; kept = next) {
    next = kept->sibling;
    kept_unlink_locked(kept);
    if (!kept->freed) {
      free(kept);
      continue;
    }
    kept->next = freed;
    freed = kept;
  }
  return freed;
}

/* One user less; with the last one goes the keeper, and what it kept and the program freed comes before others. */
static struct kept *keeper_leave_locked(struct preload_keeper *keeper, struct kept *freed) {
  if (--keeper->users > 0 || keeper->for_good)
    return freed;
  freed = kept_take_locked(keeper, freed);
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

/* ---- Uses ---- */

static void use_link_locked(struct use *use) {
  struct use **chain = use_chain(use->holder);
  use->next = *chain;
  *chain = use;
  atomic_fetch_add_explicit(&use_count, 1, memory_order_relaxed);
}

static void use_add_locked(const void *holder, struct preload_keeper *keeper) {
  struct use *use = *use_chain(holder);
  while (use != NULL && (use->holder != holder || use->keeper != keeper))
    use = use->next;
  if (use != NULL)
    return;
  use = malloc(sizeof *use);
  if (use == NULL) {
    keeper->for_good = true;
    return;
  }
  *use = (struct use){.holder = holder, .keeper = keeper};
  use_link_locked(use);
  keeper->users++;
}

/* What the one uses, the other uses too. */
static void uses_copy_locked(const void *from, const void *to) {
  for (const struct use *use = *use_chain(from); use != NULL && from != to; use = use->next)
    if (use->holder == from)
      use_add_locked(to, use->keeper);
}

static struct use *uses_take_locked(const void *holder) {
  struct use **link = use_chain(holder), *taken = NULL, *use;
  while ((use = *link) != NULL) {
    if (use->holder != holder) {
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

/* Ends uses that were taken out of the table; returns what is to be freed. */
static struct kept *uses_end_locked(struct use *use) {
  struct kept *freed = NULL;
  while (use != NULL) {
    struct use *next = use->next;
    freed = keeper_leave_locked(use->keeper, freed);
    free(use);
    use = next;
  }
  return freed;
}

static bool some_used(void) { return preload_depth == 0 && atomic_load_explicit(&use_count, memory_order_relaxed) > 0; }

/* Before the holder is destroyed; NULL if it uses nothing. */
static struct use *holder_goes(const void *holder) {
  if (!some_used())
    return NULL;
  pthread_mutex_lock(&graphs_lock);
  struct use *taken = uses_take_locked(holder);
  pthread_mutex_unlock(&graphs_lock);
  return taken;
}

/* It was, or it stays with all that it uses. */
static CUresult holder_gone(struct use *taken, CUresult result) {
  struct kept *freed = NULL;
  if (taken == NULL)
    return result;
  pthread_mutex_lock(&graphs_lock);
  if (result == CUDA_SUCCESS)
    freed = uses_end_locked(taken);
  for (struct use *use = taken, *next; result != CUDA_SUCCESS && use != NULL; use = next) {
    next = use->next;
    use_link_locked(use);
  }
  pthread_mutex_unlock(&graphs_lock);
  kept_free(freed);
  return result;
}

/* After a call of the driver by which a holder came to use what another one does. */
static CUresult copied(CUresult result, const void *from, const void *to) {
  if (result != CUDA_SUCCESS || !some_used())
    return result;
  pthread_mutex_lock(&graphs_lock);
  uses_copy_locked(from, to);
  pthread_mutex_unlock(&graphs_lock);
  return result;
}

/* After one by which it uses that, and nothing else any more. */
static CUresult updated(CUresult result, const void *from, const void *to) {
  if (result != CUDA_SUCCESS || !some_used())
    return result;
  pthread_mutex_lock(&graphs_lock);
  struct use *before = uses_take_locked(to);
  uses_copy_locked(from, to);
  struct kept *freed = uses_end_locked(before);
  pthread_mutex_unlock(&graphs_lock);
  kept_free(freed);
  return result;
}

void preload_keeper_end(struct preload_keeper *keeper, void *graph) {
  if (keeper == NULL)
    return;
  pthread_mutex_lock(&graphs_lock);
  if (graph != NULL && keeper->blocks != NULL)
    use_add_locked(graph, keeper);
  struct kept *freed = keeper_leave_locked(keeper, NULL);
  pthread_mutex_unlock(&graphs_lock);
  kept_free(freed);
}

/* ---- Blocks ---- */

void preload_keep(struct preload_keeper *keeper, uintptr_t address) {
  struct kept *kept = malloc(sizeof *kept);
  if (kept == NULL)
    return; /* no host memory: then as a program that keeps its blocks itself */
  pthread_mutex_lock(&graphs_lock);
  struct kept **chain = kept_chain(address);
  *kept = (struct kept){.address = address, .keeper = keeper, .next = *chain, .sibling = keeper->blocks};
  *chain = keeper->blocks = kept;
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
  struct kept *kept = kept_find_locked(address);
  if (kept != NULL) {
    struct kept **link = &kept->keeper->blocks;
    while (*link != kept)
      link = &(*link)->sibling;
    *link = kept->sibling;
    kept_unlink_locked(kept);
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

CUresult cuGraphInstantiate(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiate_v2(void **executable, void *graph, void **node, char *log, size_t log_bytes) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiate_v2, executable, graph, node, log, log_bytes);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithFlags, executable, graph, flags);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithParams(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams, executable, graph, parameters);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphInstantiateWithParams_ptsz(void **executable, void *graph, void *parameters) {
  const struct preload_real *real = preload_real_get();
  unsigned tries = 0;
  CUresult result;
  do
    result = PRELOAD_CALL(real, cuGraphInstantiateWithParams_ptsz, executable, graph, parameters);
  while (preload_again(result, &tries));
  return copied(result, graph, result == CUDA_SUCCESS ? *executable : NULL);
}

CUresult cuGraphDestroy(void *graph) {
  const struct preload_real *real = preload_real_get();
  struct use *taken = holder_goes(graph);
  return holder_gone(taken, PRELOAD_CALL(real, cuGraphDestroy, graph));
}

CUresult cuGraphExecDestroy(void *executable) {
  const struct preload_real *real = preload_real_get();
  struct use *taken = holder_goes(executable);
  return holder_gone(taken, PRELOAD_CALL(real, cuGraphExecDestroy, executable));
}

CUresult cuGraphClone(void **clone, void *graph) {
  const struct preload_real *real = preload_real_get();
  CUresult result = PRELOAD_CALL(real, cuGraphClone, clone, graph);
  return copied(result, graph, result == CUDA_SUCCESS ? *clone : NULL);
}

CUresult cuGraphAddChildGraphNode(void **node, void *graph, const void *nodes, size_t count, void *child) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphAddChildGraphNode, node, graph, nodes, count, child), child, graph);
}

/* A node's parameters: the number of its type, and from here what is of that type, which is a child's handle. */
enum { NODE_TYPE_GRAPH = 4, NODE_OF_TYPE_INTS = 4 };

/* A node that may be a child came into a graph or an executable. */
static CUresult node_set(CUresult result, const int *parameters, const void *holder) {
  const void *child;
  if (result != CUDA_SUCCESS || parameters == NULL || *parameters != NODE_TYPE_GRAPH)
    return result;
  (void)memcpy(&child, parameters + NODE_OF_TYPE_INTS, sizeof child);
  return copied(result, child, holder);
}

CUresult cuGraphAddNode(void **node, void *graph, const void *nodes, size_t count, int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_set(PRELOAD_CALL(real, cuGraphAddNode, node, graph, nodes, count, parameters), parameters, graph);
}

CUresult cuGraphAddNode_v2(void **node, void *graph, const void *nodes, const void *edges, size_t count,
                           int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_set(PRELOAD_CALL(real, cuGraphAddNode_v2, node, graph, nodes, edges, count, parameters), parameters,
                  graph);
}

/* All nodes of the executable have the graph's parameters from now on; work in flight, a free waits for. */
CUresult cuGraphExecUpdate(void *executable, void *graph, void **node, int *outcome) {
  const struct preload_real *real = preload_real_get();
  return updated(PRELOAD_CALL(real, cuGraphExecUpdate, executable, graph, node, outcome), graph, executable);
}

CUresult cuGraphExecUpdate_v2(void *executable, void *graph, void *outcome) {
  const struct preload_real *real = preload_real_get();
  return updated(PRELOAD_CALL(real, cuGraphExecUpdate_v2, executable, graph, outcome), graph, executable);
}

CUresult cuGraphExecChildGraphNodeSetParams(void *executable, void *node, void *child) {
  const struct preload_real *real = preload_real_get();
  return copied(PRELOAD_CALL(real, cuGraphExecChildGraphNodeSetParams, executable, node, child), child, executable);
}

CUresult cuGraphExecNodeSetParams(void *executable, void *node, int *parameters) {
  const struct preload_real *real = preload_real_get();
  return node_set(PRELOAD_CALL(real, cuGraphExecNodeSetParams, executable, node, parameters), parameters, executable);
}

void preload_graph_forked(void) { (void)pthread_mutex_init(&graphs_lock, NULL); }
