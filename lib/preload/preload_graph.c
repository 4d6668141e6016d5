/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks of graphs.  A block that was allocated while a stream was captured is in the graph's nodes, and each launch
 * uses it again.  With the driver alone an allocation ends the capture, unless the program has asked for the relaxed
 * mode.  Under this library the allocation succeeds, and the program may free the block during the capture or after it
 * (PyTorch without its cache does).  The program sees the block freed at once.  The pool gets it when the graph, and
 * all that was made of the graph, are destroyed.
 *
 * In the relaxed mode the driver alone serves the program.  Such a program frees a block when no launch will use it any
 * more, so its blocks are as all others.
 *
 *   the graph of the capture --use--+
 *   an executable of it      --use--+--> a keeper --> kept blocks
 *   a graph that contains it --use--+
 *
 * A keeper has such blocks of one capture, and those that the program allocated before and freed during it.  The
 * capture and each graph or executable graph that may launch these blocks are its users.  When the last user goes, the
 * keeper goes, and frees the blocks that the program has freed.  If the host has no memory to note a use, the keeper
 * stays for good.
 *
 * The driver may give the handle of a destroyed graph to another thread before the call that destroyed it returns.  So
 * the uses of a handle leave the table before that call, and come back if it fails.
 *
 * This file does not know captures: preload_work.c says when one begins and ends.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

struct preload_keeper {
  unsigned users; /* the capture, and the uses */
  bool for_good;  /* a use could not be noted: never ends */
  struct kept *blocks;
};

/* The nodes of a graph or an executable graph may have a keeper's blocks. */
struct use {
  const void *holder; /* the handle of the graph or executable */
  struct preload_keeper *keeper;
  struct use *next; /* in the chain of the table */
};

/* A block of a keeper. */
struct kept {
  uintptr_t address;
  struct preload_keeper *keeper;
  bool freed;           /* by the program */
  struct kept *next;    /* in the chain of the table; or in a list of blocks to free */
  struct kept *sibling; /* the keeper's next block */
};

/* Protects everything below.  A leaf: no other lock is taken, and neither libmam nor the driver is called under it. */
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

enum {
  /* The table of blocks has 2 to this power chains: a capture may allocate thousands of blocks. */
  KEPT_BITS = 12,
  /* The table of uses has 2 to this power chains: a program has far fewer graphs than blocks. */
  USE_BITS = 8
};

static struct kept *kept_blocks[1 << KEPT_BITS];
static struct use *uses[1 << USE_BITS];
static _Atomic unsigned use_count, kept_count; /* relaxed: hints whether to look into the tables */

/* Fibonacci hashing: the product's high bits depend on all bits of the key. */
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

/* Takes a block out of the table. */
static void kept_unlink_locked(struct kept *kept) {
  struct kept **link = kept_chain(kept->address);
  while (*link != kept)
    link = &(*link)->next;
  *link = kept->next;
  atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
}

/* Takes a keeper's blocks out of the table.  Those that the program has freed go to the front of the list freed, which
 * is returned.  The others are the program's to free. */
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

/* Takes one user away.  Without users the keeper ends, and its blocks to free go to the front of the list freed, which
 * is returned. */
static struct kept *keeper_leave_locked(struct preload_keeper *keeper, struct kept *freed) {
  if (--keeper->users > 0 || keeper->for_good)
    return freed;
  freed = kept_take_locked(keeper, freed);
  free(keeper);
  return freed;
}

/* Frees a list of blocks.  The caller holds no lock. */
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

/* Notes that holder uses keeper, once. */
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

/* Notes that to uses all keepers that from uses. */
static void uses_copy_locked(const void *from, const void *to) {
  for (const struct use *use = *use_chain(from); use != NULL && from != to; use = use->next)
    if (use->holder == from)
      use_add_locked(to, use->keeper);
}

/* Takes the uses of holder out of the table, as a list. */
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

/* Ends a list of uses.  Returns the blocks to free. */
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

/* Whether a call of a hook has uses to look for. */
static bool some_used(void) { return preload_depth == 0 && atomic_load_explicit(&use_count, memory_order_relaxed) > 0; }

/* To be called before holder is destroyed.  Returns its uses for holder_gone, NULL if there are none. */
static struct use *holder_goes(const void *holder) {
  if (!some_used())
    return NULL;
  pthread_mutex_lock(&graphs_lock);
  struct use *taken = uses_take_locked(holder);
  pthread_mutex_unlock(&graphs_lock);
  return taken;
}

/* To be called after it: result says whether holder was destroyed.  If not, its uses come back. */
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

/* To be called after a call of the driver that copied from into to. */
static CUresult copied(CUresult result, const void *from, const void *to) {
  if (result != CUDA_SUCCESS || !some_used())
    return result;
  pthread_mutex_lock(&graphs_lock);
  uses_copy_locked(from, to);
  pthread_mutex_unlock(&graphs_lock);
  return result;
}

/* To be called after a call of the driver that made to a copy of from: the uses that to had before end. */
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

bool preload_keep(struct preload_keeper *keeper, uintptr_t address) {
  struct kept *kept = malloc(sizeof *kept);
  if (kept == NULL)
    return false;
  pthread_mutex_lock(&graphs_lock);
  if (kept_find_locked(address) != NULL) {
    pthread_mutex_unlock(&graphs_lock);
    free(kept);
    return true;
  }
  struct kept **chain = kept_chain(address);
  *kept = (struct kept){.address = address, .keeper = keeper, .next = *chain, .sibling = keeper->blocks};
  *chain = keeper->blocks = kept;
  atomic_fetch_add_explicit(&kept_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&graphs_lock);
  return true;
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

/* So many addresses of a chain are copied at a time: chains are short, and the copy is on the stack. */
enum { COPIED_MOST = 64 };

/* Copies addresses of a chain, so that they can be looked at without the lock.  Returns their number. */
static unsigned chain_copy(unsigned index, uintptr_t addresses[COPIED_MOST]) {
  unsigned count = 0;
  pthread_mutex_lock(&graphs_lock);
  for (const struct kept *kept = kept_blocks[index]; kept != NULL && count < COPIED_MOST; kept = kept->next)
    addresses[count++] = kept->address;
  pthread_mutex_unlock(&graphs_lock);
  return count;
}

/* Drops a block from the table and from its keeper.  It is not freed, as its memory has gone with the context. */
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

enum {
  /* CU_GRAPH_NODE_TYPE_GRAPH, the type of a node that contains a graph. */
  NODE_TYPE_GRAPH = 4,
  /* CUgraphNodeParams begins with the type.  What depends on the type begins after so many ints: here the handle of the
   * graph that the node contains. */
  NODE_OF_TYPE_INTS = 4
};

/* To be called after a call of the driver that set a node of holder: the node may contain a graph. */
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

/* All nodes of the executable get the graph's parameters.  Work in flight may still use the blocks that it had before;
 * a free of them waits for that work, as every free does. */
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
