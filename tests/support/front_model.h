/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A naive model of two pools with their fronts: a list of live blocks.  A string of bytes says what is done by the
 * public functions: random bytes in pool_model_test.c, a fuzzer's in fuzz_pool.c.
 *
 *   bytes    | pools | operation, 32 bits | operation, 32 bits | ...
 *
 * The model does not know where a block may lie.  After each operation no two live blocks may overlap, each must have
 * the bytes that were written to it, and a wrong free must be refused.  Every few operations the fronts' checker looks
 * whether each block of a slab and each freed large block is in exactly one place.
 *
 * If the first byte says so, a second thread does some of the operations while the first one waits for it.  So each
 * thread frees blocks of the other, and both have fronts with blocks.
 */
#ifndef MAM_TESTS_FRONT_MODEL_H
#define MAM_TESTS_FRONT_MODEL_H

#include <pthread.h>
#include <semaphore.h>

#include "front/front_check.h"
#include "model_require.h"

enum { FRONT_POOLS = 2, FRONT_BLOCKS = 256, FRONT_STREAMS = 24, FRONT_CHECK_EVERY = 64 };

struct front_block {
  unsigned char *base;
  size_t bytes;
};

struct front_model {
  MAM_Pool pools[FRONT_POOLS];
  struct front_block blocks[FRONT_BLOCKS]; /* live */
  size_t block_count;
  unsigned char *freed; /* the last block that was freed */
  bool has_other;       /* the second thread is there */
  pthread_t other;
  sem_t asked, done;        /* its next operation is there; it has done it */
  const uint8_t *operation; /* NULL: it ends */
};

/* Without a driver, a handle is its stream's name. */
static cudaStream_t front_stream(unsigned number) {
  return number % FRONT_STREAMS == 0 ? NULL : (cudaStream_t)(uintptr_t)(4096 * (number % FRONT_STREAMS));
}

static MAM_Pool front_pool(const struct front_model *model, const uint8_t *operation) {
  return model->pools[operation[0] >> 4 & 1];
}

static size_t front_size(const uint8_t *operation) {
  size_t number = (size_t)operation[1] << 8 | operation[2];
  switch (operation[3] >> 6) {
  case 0:
    return 1 + number % 1024;
  case 1:
    return 1 + number % 32768;
  case 2:
    return (1 + number % 256) << 14;
  default:
    return number % 8 == 0 ? 2 << 20 : 1 + (number << 6);
  }
}

static void front_live(struct front_model *model, void *address, size_t bytes) {
  struct front_block block = {address, bytes};
  for (size_t i = 0; i < model->block_count; i++)
    MODEL_REQUIRE(block.base + bytes <= model->blocks[i].base ||
                  model->blocks[i].base + model->blocks[i].bytes <= block.base);
  block.base[0] = block.base[bytes - 1] = (unsigned char)(bytes * 37);
  model->blocks[model->block_count++] = block;
}

static void front_malloc_step(struct front_model *model, const uint8_t *operation, unsigned kind) {
  static const char tags[4];
  void *address = NULL;
  size_t bytes = front_size(operation);
  MAM_Pool pool = front_pool(model, operation);
  if (model->block_count == FRONT_BLOCKS)
    return;
  cudaError_t error = kind < 3   ? MAM_PoolMalloc(pool, &address, bytes)
                      : kind < 6 ? MAM_PoolMallocAsync(pool, &address, bytes, front_stream(operation[3]))
                                 : MAM_PoolMallocTagged(pool, &address, bytes, &tags[operation[3] % 4]);
  MODEL_REQUIRE(error == cudaSuccess || error == cudaErrorMemoryAllocation);
  MODEL_REQUIRE((error == cudaSuccess) == (address != NULL));
  if (address != NULL)
    front_live(model, address, bytes);
}

static void front_free_step(struct front_model *model, const uint8_t *operation, unsigned kind) {
  if (model->block_count == 0)
    return;
  size_t number = (operation[1] << 8 | operation[2]) % model->block_count;
  struct front_block block = model->blocks[number];
  unsigned char mark = (unsigned char)(block.bytes * 37);
  MODEL_REQUIRE(block.base[0] == mark && block.base[block.bytes - 1] == mark);
  MODEL_REQUIRE(MAM_CudaFree(block.base + 1) != cudaSuccess);
  cudaError_t error = kind < 10   ? MAM_CudaFree(block.base)
                      : kind < 13 ? MAM_CudaFreeAsync(block.base, front_stream(operation[3]))
                                  : MAM_CudaFreeReuse(block.base, MAM_REUSE_IMMEDIATE);
  MODEL_REQUIRE(error == cudaSuccess);
  model->blocks[number] = model->blocks[--model->block_count];
  model->freed = block.base;
}

/* Frees a block a second time, if it was not handed out again. */
static void front_double_free(struct front_model *model) {
  for (size_t i = 0; i < model->block_count; i++)
    if (model->blocks[i].base == model->freed)
      return;
  if (model->freed != NULL)
    MODEL_REQUIRE(MAM_CudaFree(model->freed) != cudaSuccess);
}

static void front_step(struct front_model *model, const uint8_t *operation) {
  unsigned kind = operation[0] % 16;
  if (kind < 7)
    front_malloc_step(model, operation, kind);
  else if (kind < 14)
    front_free_step(model, operation, kind);
  else if (kind == 14)
    front_double_free(model);
  else if (operation[1] % 16 == 0)
    MODEL_REQUIRE(MAM_PoolTrim(front_pool(model, operation), (size_t)operation[2] << 18) == cudaSuccess);
}

static void *front_other_run(void *data) {
  struct front_model *model = data;
  for (;;) {
    while (sem_wait(&model->asked) != 0) /* a fuzzer's timer interrupts it */
      ;
    if (model->operation == NULL)
      return NULL;
    front_step(model, model->operation);
    (void)sem_post(&model->done);
  }
}

/* The thread that an operation names does it. */
static void front_step_by(struct front_model *model, const uint8_t *operation) {
  if (!model->has_other || operation[0] >> 6 != 3) {
    front_step(model, operation);
    return;
  }
  model->operation = operation;
  (void)sem_post(&model->asked);
  while (sem_wait(&model->done) != 0)
    ;
}

static void front_other_begin(struct front_model *model) {
  MODEL_REQUIRE(sem_init(&model->asked, 0, 0) == 0 && sem_init(&model->done, 0, 0) == 0);
  MODEL_REQUIRE(pthread_create(&model->other, NULL, front_other_run, model) == 0);
  model->has_other = true;
}

/* The second thread ends, and its fronts give their blocks to their pools. */
static void front_other_end(struct front_model *model) {
  if (!model->has_other)
    return;
  model->operation = NULL;
  (void)sem_post(&model->asked);
  MODEL_REQUIRE(pthread_join(model->other, NULL) == 0);
  (void)sem_destroy(&model->asked), (void)sem_destroy(&model->done);
}

static void front_require_sound(const struct front_model *model) {
  for (unsigned i = 0; i < FRONT_POOLS; i++) {
    const char *fault = front_check(model->pools[i], true);
    if (fault != NULL)
      (void)fprintf(stderr, "front_check: %s\n", fault);
    MODEL_REQUIRE(fault == NULL);
  }
}

/* Pools of one size; the first frees at once or behind fences, the second the other way. */
static void front_pools_create(struct front_model *model, uint8_t bits) {
  static const size_t limits_mib[] = {8, 32, 128, 1024}; /* in the last all small blocks come from slabs */
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST;
  options.limit_bytes = limits_mib[bits >> 4 & 3] << 20;
  options.chunk_bytes = bits & 2 ? (size_t)4 << 20 : options.limit_bytes;
  for (unsigned i = 0; i < FRONT_POOLS; i++) {
    options.reuse = ((bits ^ i) & 1) == 0 ? MAM_REUSE_FENCED : MAM_REUSE_IMMEDIATE;
    MODEL_REQUIRE(MAM_PoolCreate(&model->pools[i], &options) == cudaSuccess);
  }
}

/* Runs fronts and the model.  The first byte chooses the pools and whether there is a second thread, the others are
 * operations. */
static void front_model_run(const uint8_t *data, size_t size) {
  static struct front_model model;
  model = (struct front_model){0};
  front_pools_create(&model, data[0]);
  if ((data[0] & 8) != 0)
    front_other_begin(&model);
  for (size_t at = 1, steps = 1; at + 4 <= size; at += 4, steps++) {
    front_step_by(&model, data + at);
    if (steps % FRONT_CHECK_EVERY == 0)
      front_require_sound(&model);
  }
  front_require_sound(&model);
  front_other_end(&model);
  front_require_sound(&model);
  while (model.block_count > 0)
    MODEL_REQUIRE(MAM_CudaFree(model.blocks[--model.block_count].base) == cudaSuccess);
  front_require_sound(&model);
  for (unsigned i = 0; i < FRONT_POOLS; i++)
    MODEL_REQUIRE(MAM_PoolDestroy(model.pools[i]) == cudaSuccess);
}

#endif
