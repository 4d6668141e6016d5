/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Graphs of all kinds under libmam_preload, at random from a seed, beside a naive model: each graph and each executable
 * graph has a set of blocks.  What any of them has is not free; and when all have ended, all is free.
 */
#include "preload_util.h"

enum { GRAPHS = 10, EXECUTABLES = 10, NODES = 24, BLOCKS = 256, OPERATIONS = 1500, SEEDS = 8 };
enum { BLOCK_BYTES = 4 << 20 };
enum { NODE_GRAPH = 4, NODE_CONDITIONAL = 13, CHILD_INTS = 4, MOVES_INTS = 6, BODY_COUNT_INTS = 7, BODIES_INTS = 8 };

typedef struct {
  bool has[BLOCKS];
} set_t;

/* A slot without a handle is not taken. */
static struct graph {
  void *handle;
  set_t blocks;
  bool is_clone;
} graphs[GRAPHS], executables[EXECUTABLES];

/* A node with a graph inside. */
static struct node {
  void *handle, *inside;
  struct graph *root;
  const struct node *outer; /* in whose graph it is; NULL: in the root */
  bool is_found;            /* by the program in a clone: the library does not know where it is */
} nodes[NODES];

static void *stream;
static unsigned random_state;

static unsigned random_below(unsigned limit) {
  random_state = random_state * 1664525 + 1013904223;
  return (random_state >> 10) % limit;
}

/* ---- Slots ---- */

/* One that is not taken, NULL if all are. */
static struct graph *graph_free(struct graph *slots, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    if (slots[i].handle == NULL)
      return &slots[i];
  return NULL;
}

static struct node *node_free(void) {
  for (unsigned i = 0; i < NODES; i++)
    if (nodes[i].handle == NULL)
      return &nodes[i];
  return NULL;
}

/* A random one that is taken, NULL if a random one is not. */
static struct graph *graph_any(struct graph *slots, unsigned count) {
  struct graph *graph = &slots[random_below(count)];
  return graph->handle != NULL ? graph : NULL;
}

static struct node *node_any(void) {
  struct node *node = &nodes[random_below(NODES)];
  return node->handle != NULL ? node : NULL;
}

/* ---- The model ---- */

static bool is_used(unsigned block) {
  for (unsigned i = 0; i < GRAPHS; i++)
    if (graphs[i].handle != NULL && graphs[i].blocks.has[block])
      return true;
  for (unsigned i = 0; i < EXECUTABLES; i++)
    if (executables[i].handle != NULL && executables[i].blocks.has[block])
      return true;
  return false;
}

static void add_all(set_t *to, const set_t *from) {
  for (unsigned i = 0; i < BLOCKS; i++)
    to->has[i] |= from->has[i];
}

static void node_gone(struct node *node) {
  node->handle = NULL;
  for (unsigned i = 0; i < NODES; i++)
    if (nodes[i].handle != NULL && nodes[i].outer == node)
      node_gone(&nodes[i]);
}

static void graph_gone(struct graph *graph) {
  graph->handle = NULL;
  for (unsigned i = 0; i < NODES; i++)
    if (nodes[i].root == graph)
      nodes[i].handle = NULL;
}

/* ---- What a program does ---- */

/* A capture that allocates and frees a block, and launches an executable graph. */
static void capture(void *into, void **made, set_t *blocks, const struct graph *launched) {
  unsigned block = 0;
  while (block < BLOCKS && is_used(block))
    block++;
  ck_assert_uint_lt(block, BLOCKS);
  OK(into != NULL ? cuStreamBeginCaptureToGraph(stream, into, NULL, NULL, 0, 0) : cuStreamBeginCapture_v2(stream, 0));
  address_t address = allocate(BLOCK_BYTES);
  OK(random_below(2) == 0 ? cuMemFree_v2(address) : cuMemFreeAsync(address, stream));
  blocks->has[block] = true;
  if (launched != NULL) {
    OK(cuGraphLaunch(launched->handle, stream));
    add_all(blocks, &launched->blocks);
  }
  OK(cuStreamEndCapture(stream, made));
}

static void graph_makes(struct graph *new, const struct graph *from) {
  if (new == NULL)
    return;
  *new = (struct graph){.is_clone = from != NULL};
  if (from != NULL) {
    OK(cuGraphClone(&new->handle, from->handle));
    new->blocks = from->blocks;
  } else if (random_below(2) == 0)
    OK(cuGraphCreate(&new->handle, 0));
  else
    capture(NULL, &new->handle, &new->blocks, random_below(3) == 0 ? graph_any(executables, EXECUTABLES) : NULL);
}

static void child_adds(struct node *new, struct graph *graph, struct graph *child) {
  int parameters[64] = {NODE_GRAPH, [MOVES_INTS] = (int)random_below(2)};
  if (new == NULL || graph == NULL || child == NULL || graph == child)
    return;
  memcpy(parameters + CHILD_INTS, &child->handle, sizeof child->handle);
  OK(cuGraphAddNode(&new->handle, graph->handle, NULL, 0, parameters));
  add_all(&graph->blocks, &child->blocks);
  *new = (struct node){.handle = new->handle, .inside = child->handle, .root = graph};
  if (parameters[MOVES_INTS] == 0) {
    OK(cuGraphChildGraphNodeGetGraph(new->handle, &new->inside));
    return;
  }
  for (unsigned i = 0; i < NODES; i++)
    if (nodes[i].handle != NULL && nodes[i].root == child) {
      nodes[i].root = graph;
      nodes[i].outer = nodes[i].outer != NULL ? nodes[i].outer : new;
    }
  child->handle = NULL;
}

/* To a graph, or to the one in a node. */
static void conditional_adds(struct node *new, struct graph *graph, const struct node *outer) {
  int parameters[64] = {NODE_CONDITIONAL, [BODY_COUNT_INTS] = 1};
  void **bodies;
  if (new == NULL || (outer != NULL ? outer->is_found : graph == NULL))
    return;
  *new = (struct node){.root = outer != NULL ? outer->root : graph, .outer = outer};
  OK(cuGraphAddNode(&new->handle, outer != NULL ? outer->inside : graph->handle, NULL, 0, parameters));
  memcpy(&bodies, parameters + BODIES_INTS, sizeof bodies);
  new->inside = bodies[0];
}

static void node_finds(struct node *new, struct graph *clone) {
  if (new == NULL || clone == NULL || !clone->is_clone)
    return;
  *new = (struct node){.root = clone, .is_found = true};
  OK(cuGraphNodeFindInClone(&new->handle, NULL, clone->handle));
  OK(cuGraphChildGraphNodeGetGraph(new->handle, &new->inside));
}

static void executable_makes(struct graph *new, const struct graph *graph, const struct node *node) {
  if (new == NULL || (node == NULL && graph == NULL))
    return;
  OK(cuGraphInstantiateWithFlags(&new->handle, node != NULL ? node->inside : graph->handle, 0));
  new->blocks = node != NULL ? node->root->blocks : graph->blocks;
}

static void executable_updates(struct graph *executable, const struct graph *graph) {
  if (executable == NULL || graph == NULL)
    return;
  OK(cuGraphExecUpdate_v2(executable->handle, graph->handle, NULL));
  executable->blocks = graph->blocks;
}

static void graph_ends(struct graph *graph) {
  if (graph == NULL)
    return;
  OK(cuGraphDestroy(graph->handle));
  graph_gone(graph);
}

static void executable_ends(struct graph *executable) {
  if (executable == NULL)
    return;
  OK(cuGraphExecDestroy(executable->handle));
  executable->handle = NULL;
}

static void node_ends(struct node *node) {
  if (node == NULL)
    return;
  OK(cuGraphDestroyNode(node->handle));
  node_gone(node);
}

static void step(void) {
  struct graph *graph = graph_any(graphs, GRAPHS), *other = graph_any(graphs, GRAPHS);
  struct node *node = node_any();
  switch (random_below(12)) {
  case 0:
    graph_makes(graph_free(graphs, GRAPHS), NULL);
    break;
  case 1:
    graph_makes(graph_free(graphs, GRAPHS), graph);
    break;
  case 2:
    child_adds(node_free(), graph, other);
    break;
  case 3:
    conditional_adds(node_free(), graph, NULL);
    break;
  case 4:
    conditional_adds(node_free(), graph, node);
    break;
  case 5:
    if (node != NULL && !node->is_found)
      capture(node->inside, NULL, &node->root->blocks, NULL);
    break;
  case 6:
    node_finds(node_free(), graph);
    break;
  case 7:
    executable_makes(graph_free(executables, EXECUTABLES), graph, random_below(2) == 0 ? node : NULL);
    break;
  case 8:
    executable_updates(graph_any(executables, EXECUTABLES), graph);
    break;
  case 9:
    graph_ends(graph);
    break;
  case 10:
    executable_ends(graph_any(executables, EXECUTABLES));
    break;
  default:
    node_ends(random_below(2) == 0 ? node : NULL);
    break;
  }
}

/* ---- The test ---- */

static size_t free_now(void) {
  size_t free_bytes, total_bytes;
  OK(cuCtxSynchronize());
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  return free_bytes;
}

/* What is free once the pool has what a capture takes for good, and chunks for all blocks. */
static size_t free_at_first(void) {
  address_t blocks[BLOCKS];
  void *graph;
  set_t unused;
  capture(NULL, &graph, &unused, NULL);
  OK(cuGraphDestroy(graph));
  for (unsigned i = 0; i < BLOCKS; i++)
    blocks[i] = allocate(BLOCK_BYTES);
  for (unsigned i = 0; i < BLOCKS; i++)
    OK(cuMemFree_v2(blocks[i]));
  return free_now();
}

static unsigned blocks_held(size_t free_before) {
  return (unsigned)((free_before + BLOCK_BYTES / 2 - free_now()) / BLOCK_BYTES);
}

START_TEST(what_a_graph_has_is_not_free_and_all_is_in_the_end) {
  begin();
  random_state = (unsigned)_i;
  stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  size_t free_before = free_at_first();
  for (unsigned i = 0; i < OPERATIONS; i++) {
    unsigned used = 0;
    step();
    for (unsigned block = 0; block < BLOCKS; block++)
      used += is_used(block);
    ck_assert_msg(blocks_held(free_before) >= used, "operation %u: %u held, %u in use", i, blocks_held(free_before),
                  used);
  }
  for (unsigned i = 0; i < GRAPHS; i++)
    graph_ends(graphs[i].handle != NULL ? &graphs[i] : NULL);
  for (unsigned i = 0; i < EXECUTABLES; i++)
    executable_ends(executables[i].handle != NULL ? &executables[i] : NULL);
  ck_assert_uint_eq(blocks_held(free_before), 0);
}
END_TEST

static Suite *suite(void) {
  Suite *suite = suite_create("preload, graphs");
  TCase *tests = tcase_create("graphs");
  tcase_add_loop_test(tests, what_a_graph_has_is_not_free_and_all_is_in_the_end, 0, SEEDS);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  return preload_run_suite(arguments, suite);
}
