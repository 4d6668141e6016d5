/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_blocks.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

bool blocks_complain(const struct allocator *allocator, const char *what, size_t bytes, cudaError_t error) {
  (void)fprintf(stderr, "mam-bench: %s: %s of %zu bytes failed with error %d: %s\n", allocator->name, what, bytes,
                (int)error, allocator->last_error());
  return false;
}

bool blocks_pool_open(const struct allocator *allocator, size_t chunk_bytes) {
  cudaError_t error = allocator->open(chunk_bytes);
  return error == cudaSuccess || blocks_complain(allocator, "making a pool", chunk_bytes, error);
}

bool blocks_pool_close(const struct allocator *allocator) {
  cudaError_t error = allocator->close();
  return error == cudaSuccess || blocks_complain(allocator, "ending the pool", 0, error);
}

bool blocks_allocate(const struct allocator *allocator, struct block *block, size_t bytes) {
  void *address = NULL;
  cudaError_t error = allocator->allocate(&address, bytes);
  if (error != cudaSuccess)
    return blocks_complain(allocator, "an allocation", bytes, error);
  *block = (struct block){address, bytes};
  return true;
}

bool blocks_allocate_tagged(const struct allocator *allocator, struct block *block, size_t bytes, const void *tag) {
  if (allocator->allocate_tagged == NULL)
    return blocks_allocate(allocator, block, bytes);
  void *address = NULL;
  cudaError_t error = allocator->allocate_tagged(&address, bytes, tag);
  if (error != cudaSuccess)
    return blocks_complain(allocator, "an allocation with a tag", bytes, error);
  *block = (struct block){address, bytes};
  return true;
}

bool blocks_release(const struct allocator *allocator, struct block *blocks, size_t count) {
  bool released = true;
  for (size_t i = 0; i < count; i++) {
    if (blocks[i].address == NULL)
      continue;
    cudaError_t error = allocator->release(blocks[i].address, blocks[i].bytes);
    if (error != cudaSuccess)
      released = blocks_complain(allocator, "the free", blocks[i].bytes, error);
    blocks[i].address = NULL;
  }
  return released;
}

static int block_compare(const void *left, const void *right) {
  uintptr_t a = (uintptr_t)((const struct block *)left)->address;
  uintptr_t b = (uintptr_t)((const struct block *)right)->address;
  return (a > b) - (a < b);
}

bool blocks_check(const struct allocator *allocator, struct block *blocks, size_t count) {
  qsort(blocks, count, sizeof *blocks, block_compare);
  uintptr_t end = 0; /* of the previous block */
  for (size_t i = 0; i < count; i++) {
    uintptr_t start = (uintptr_t)blocks[i].address;
    if (start == 0)
      continue;
    if (start % allocator->alignment != 0 || start < end) {
      (void)fprintf(stderr, "mam-bench: %s: the block of %zu bytes at %#zx %s\n", allocator->name, blocks[i].bytes,
                    (size_t)start, start < end ? "overlaps the one before it" : "is not aligned");
      return false;
    }
    end = start + blocks[i].bytes;
  }
  return true;
}

bool blocks_settle(const struct allocator *allocator) {
  cudaError_t error = allocator->settle == NULL ? cudaSuccess : allocator->settle();
  return error == cudaSuccess || blocks_complain(allocator, "waiting for frees", 0, error);
}
