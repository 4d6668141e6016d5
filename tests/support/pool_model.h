/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A naive model of the pool, and a run of both side by side.  A string of bytes says what is done: random bytes in
 * pool_model_test.c, a fuzzer's in fuzz_pool.c.
 *
 *   bytes    | pool | operation, 24 bits | operation, 24 bits | ...
 *                      pool_malloc, pool_free  and  model_malloc, model_free: the same address?
 *
 * The model has no tree and no list.  It has a cell for each 512 bytes of every chunk and finds holes by looking at all
 * cells.  After each operation the pool must have given the address that the model expects and waited for the GPU as
 * often, its checker must find nothing, and its sums must agree.
 */
#ifndef MAM_TESTS_POOL_MODEL_H
#define MAM_TESTS_POOL_MODEL_H

#include "elastic_model.h"

enum {
  MODEL_CELL_BYTES = 512,
  MODEL_CHUNK_BYTES = 2 << 20,
  MODEL_CHUNK_CELLS = MODEL_CHUNK_BYTES / MODEL_CELL_BYTES,
  MODEL_CHUNKS = 4, /* a larger request gets a chunk as large as several */
  MODEL_BLOCKS = 256
};

enum model_cell { MODEL_FREE, MODEL_USED, MODEL_WAITING };

struct model_block {
  uintptr_t base;
  size_t cells, requested_bytes;
};

struct model {
  uintptr_t chunk_bases[MODEL_CHUNKS]; /* in ascending order, as the imaginary source gives them */
  size_t chunk_cells[MODEL_CHUNKS];
  size_t chunk_count;
  uintptr_t next_base;
  size_t held_cells, limit_cells; /* of all chunks */
  unsigned char cells[MODEL_CHUNKS][MODEL_CHUNKS * MODEL_CHUNK_CELLS];
  struct model_block blocks[MODEL_BLOCKS]; /* live */
  size_t block_count;
  size_t waiting_cells, waiting_limit_bytes;
  unsigned synchronizes;
  bool fenced;
};

/* ---- The model ---- */

static bool model_best_fit(const struct model *model, size_t cells, size_t *best_chunk, size_t *best_cell) {
  size_t best = SIZE_MAX;
  for (size_t chunk = 0; chunk < model->chunk_count; chunk++)
    for (size_t cell = 0, end; cell < model->chunk_cells[chunk]; cell = end + 1) {
      for (end = cell; end < model->chunk_cells[chunk] && model->cells[chunk][end] == MODEL_FREE;)
        end++;
      if (end - cell >= cells && end - cell < best)
        best = end - cell, *best_chunk = chunk, *best_cell = cell;
    }
  return best != SIZE_MAX;
}

static void model_synchronize(struct model *model) {
  for (size_t chunk = 0; chunk < model->chunk_count; chunk++)
    for (size_t cell = 0; cell < model->chunk_cells[chunk]; cell++)
      if (model->cells[chunk][cell] == MODEL_WAITING)
        model->cells[chunk][cell] = MODEL_FREE;
  model->waiting_cells = 0;
  model->synchronizes++;
}

static bool model_grow(struct model *model, size_t cells) {
  if (cells > model->limit_cells - model->held_cells)
    return false;
  size_t new = model->chunk_count++;
  model->chunk_bases[new] = model->next_base;
  model->chunk_cells[new] = (cells + MODEL_CHUNK_CELLS - 1) / MODEL_CHUNK_CELLS * MODEL_CHUNK_CELLS;
  memset(model->cells[new], MODEL_FREE, sizeof model->cells[new]);
  model->held_cells += model->chunk_cells[new];
  model->next_base += model->chunk_cells[new] * MODEL_CELL_BYTES + imaginary.gap_bytes;
  return true;
}

static bool model_chunk_is_free(const struct model *model, size_t chunk) {
  for (size_t cell = 0; cell < model->chunk_cells[chunk]; cell++)
    if (model->cells[chunk][cell] != MODEL_FREE)
      return false;
  return true;
}

static void model_give(struct model *model, size_t chunk) {
  model->held_cells -= model->chunk_cells[chunk];
  model->chunk_count--;
  for (; chunk < model->chunk_count; chunk++) {
    model->chunk_bases[chunk] = model->chunk_bases[chunk + 1];
    model->chunk_cells[chunk] = model->chunk_cells[chunk + 1];
    memcpy(model->cells[chunk], model->cells[chunk + 1], sizeof model->cells[chunk]);
  }
}

/* Gives free chunks back, the last one first, until there is room for a larger one, if all but one make that much. */
static bool model_exchange(struct model *model, size_t cells) {
  size_t left = model->held_cells, count = model->chunk_count;
  for (size_t chunk = model->chunk_count; chunk-- > 0;)
    if (count > 1 && model_chunk_is_free(model, chunk))
      left -= model->chunk_cells[chunk], count--;
  if (cells > model->limit_cells - left)
    return false;
  for (size_t chunk = model->chunk_count; chunk-- > 0 && cells > model->limit_cells - model->held_cells;)
    if (model_chunk_is_free(model, chunk))
      model_give(model, chunk);
  return model_grow(model, cells);
}

static bool model_make_room(struct model *model, size_t cells) {
  if (model_grow(model, cells) || model_exchange(model, cells))
    return true;
  size_t used = 0;
  for (size_t i = 0; i < model->block_count; i++)
    used += model->blocks[i].cells;
  if (model->waiting_cells == 0 || cells > model->limit_cells - used) /* all that is not used may become free */
    return false;
  model_synchronize(model);
  return true;
}

/* The address that the pool is to give.  0: none. */
static uintptr_t model_malloc(struct model *model, size_t cells) {
  size_t chunk, cell;
  while (!model_best_fit(model, cells, &chunk, &cell))
    if (!model_make_room(model, cells))
      return 0;
  memset(&model->cells[chunk][cell], MODEL_USED, cells);
  return model->chunk_bases[chunk] + cell * MODEL_CELL_BYTES;
}

static void model_free(struct model *model, const struct model_block *block) {
  size_t chunk = 0;
  while (block->base - model->chunk_bases[chunk] >= model->chunk_cells[chunk] * MODEL_CELL_BYTES)
    chunk++;
  size_t cell = (block->base - model->chunk_bases[chunk]) / MODEL_CELL_BYTES;
  memset(&model->cells[chunk][cell], model->fenced ? MODEL_WAITING : MODEL_FREE, block->cells);
  if (!model->fenced)
    return;
  model->waiting_cells += block->cells;
  size_t limit = model->waiting_limit_bytes > 0 ? model->waiting_limit_bytes : model->held_cells * MODEL_CELL_BYTES / 2;
  if (model->waiting_cells * MODEL_CELL_BYTES > limit)
    model_synchronize(model);
}

/* ---- Both, step by step ---- */

static void model_compare(const struct model *model, struct mam_pool *pool) {
  MAM_PoolInfo info;
  size_t used = 0, requested = 0;
  for (size_t i = 0; i < model->block_count; i++) {
    used += model->blocks[i].cells;
    requested += model->blocks[i].requested_bytes;
  }
  pthread_mutex_lock(&pool->lock);
  const char *fault = pool_check_locked(pool);
  pthread_mutex_unlock(&pool->lock);
  if (fault != NULL)
    (void)fprintf(stderr, "%s\n", fault);
  MODEL_REQUIRE(fault == NULL);
  MODEL_REQUIRE(pool_info(pool, POOL_ANY_ID, &info) == cudaSuccess);
  MODEL_REQUIRE(info.used_bytes == used * MODEL_CELL_BYTES);
  MODEL_REQUIRE(info.requested_bytes == requested);
  MODEL_REQUIRE(info.waiting_bytes == model->waiting_cells * MODEL_CELL_BYTES);
  MODEL_REQUIRE(info.reserved_bytes == model->held_cells * MODEL_CELL_BYTES);
  MODEL_REQUIRE(info.synchronize_count == model->synchronizes);
}

static void model_step_malloc(struct model *model, struct mam_pool *pool, size_t size) {
  void *address = NULL;
  size_t cells = (size + MODEL_CELL_BYTES - 1) / MODEL_CELL_BYTES;
  if (size == 0 || model->block_count == MODEL_BLOCKS)
    return;
  uintptr_t expected = model_malloc(model, cells);
  cudaError_t error = pool_malloc(pool, POOL_ANY_ID, size, NULL, &address);
  MODEL_REQUIRE(error == (expected != 0 ? cudaSuccess : cudaErrorMemoryAllocation));
  MODEL_REQUIRE((uintptr_t)address == expected);
  if (expected != 0)
    model->blocks[model->block_count++] = (struct model_block){expected, cells, size};
}

static void model_step_free(struct model *model, size_t choice) {
  struct pool_emptied emptied;
  if (model->block_count == 0)
    return;
  struct model_block *block = &model->blocks[choice % model->block_count];
  model_free(model, block);
  MODEL_REQUIRE(pool_free((void *)block->base, &emptied) == cudaSuccess);
  MODEL_REQUIRE(emptied.pool == NULL);
  *block = model->blocks[--model->block_count];
}

/* Frees an address that is not the start of a live block.  The pool must refuse it. */
static void model_step_wrong_free(const struct model *model, size_t chunk, size_t offset) {
  struct pool_emptied emptied;
  uintptr_t address = model->chunk_bases[chunk % model->chunk_count] + offset % (MODEL_CHUNK_BYTES + 4096);
  for (size_t i = 0; i < model->block_count; i++)
    if (model->blocks[i].base == address)
      return;
  MODEL_REQUIRE(pool_free((void *)address, &emptied) == cudaErrorInvalidValue);
}

/* Does an operation of four bytes: what to do, then 24 bits that are a size or a choice. */
static void model_step(struct model *model, struct mam_pool *pool, const uint8_t operation[4]) {
  size_t value = operation[1] | (size_t)operation[2] << 8 | (size_t)operation[3] << 16;
  switch (operation[0] % 8) {
  case 0: /* small */
  case 1:
    model_step_malloc(model, pool, value % 5000);
    break;
  case 2: /* up to a quarter of a chunk */
    model_step_malloc(model, pool, value % (MODEL_CHUNK_BYTES / 4));
    break;
  case 3: /* any size, also above a chunk */
    model_step_malloc(model, pool, value % (2 * MODEL_CHUNK_BYTES));
    break;
  case 7:
    model_step_wrong_free(model, operation[1], value & ~(size_t)(operation[0] & 8 ? 0 : 511));
    break;
  default:
    model_step_free(model, value);
  }
}

/* Runs the pool and the model.  The first byte chooses the pool, the others are operations. */
static void pool_model_run(const uint8_t *data, size_t size) {
  static struct model model;
  struct mam_pool *pool;
  if (size < 1)
    return;
  if (data[0] & 4) {
    elastic_model_run(data, size);
    return;
  }
  imaginary_reset();
  imaginary.gap_bytes = data[0] & 2 ? MODEL_CHUNK_BYTES : 0;
  model = (struct model){.chunk_bases = {imaginary.next_base}, .chunk_cells = {MODEL_CHUNK_CELLS}, .chunk_count = 1};
  model.fenced = (data[0] & 1) == 0;
  model.next_base = imaginary.next_base + MODEL_CHUNK_BYTES + imaginary.gap_bytes;
  model.held_cells = MODEL_CHUNK_CELLS;
  model.limit_cells = (1 + (size_t)(data[0] >> 4) % MODEL_CHUNKS) * MODEL_CHUNK_CELLS;
  model.waiting_limit_bytes = data[0] & 8 ? 100000 : 0;
  struct pool_config config = {.reuse = model.fenced ? MAM_REUSE_FENCED : MAM_REUSE_IMMEDIATE,
                               .alignment = MODEL_CELL_BYTES,
                               .chunk_bytes = MODEL_CHUNK_BYTES,
                               .limit_bytes = model.limit_cells * MODEL_CELL_BYTES,
                               .waiting_limit_bytes = model.waiting_limit_bytes};
  MODEL_REQUIRE(pool_open(&config, &imaginary_source, &pool) == cudaSuccess);
  for (size_t at = 1; at + 4 <= size; at += 4) {
    model_step(&model, pool, data + at);
    model_compare(&model, pool);
  }
  MODEL_REQUIRE(pool_close(pool, 0) == cudaSuccess);
  MODEL_REQUIRE(imaginary.taken_bytes == 0);
}

#endif
