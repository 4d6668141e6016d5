/* SPDX-License-Identifier: BSD-2-Clause */
/* The entry of libFuzzer: runs the pool beside the naive model of pool_model.h.  Built by ./configure CC=clang
 * --enable-fuzzing. */
#include "support/pool_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pool_model_run(data, size);
  return 0;
}
