/* SPDX-License-Identifier: BSD-2-Clause */
/* The entry of libFuzzer.  Bit 6 of the first byte chooses: a pool beside the naive model of pool_model.h, or two pools
 * with their fronts beside that of front_model.h.  Built by ./configure CC=clang --enable-fuzzing. */
#include "support/front_model.h"
#include "support/pool_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 0 && (data[0] & 64) != 0)
    front_model_run(data, size);
  else
    pool_model_run(data, size);
  return 0;
}
