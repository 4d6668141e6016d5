/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the functions that other libraries call have in common: what they say when there is no memory, and when a block
 * was not freed.  Python finds them all in one library, libmam_bridge.so.
 *
 * C++, unlike the rest of the project: the only way to tell those libraries that there is no memory is an exception.
 * Nothing of theirs or of CUDA is included, so one build serves any of their versions that was built with libstdc++.
 */
#ifndef MAM_PYTHON_BRIDGE_H
#define MAM_PYTHON_BRIDGE_H

#include <cstdio>
#include <cstdlib>
#include <string>

#define MAM_NO_CUDA_HEADERS 1
#include "mam.h"

namespace mam_bridge {

constexpr int kErrorUnloading = 4; /* the process ends: the driver has gone before the last block */

/* What was wrong, and for an allocation of size bytes what the pool holds; NULL is the current context's default pool.
 * It comes first after the failure: MAM_LastError is that of the last call. */
inline std::string failure_text(const char *what, int device, MAM_Pool pool, size_t size) {
  std::string text = std::string(what) + " on device " + std::to_string(device) + ": libmam: " + MAM_LastError();
  char *explanation = nullptr;
  if (size != 0 && MAM_PoolExplain(pool, size, &explanation) == cudaSuccess)
    text += std::string("\n") + explanation;
  std::free(explanation);
  return text;
}

/* Frees come from destructors, so a failure is no exception but a line on stderr. */
inline void free_tell(cudaError_t error, const char *what) {
  if (error != cudaSuccess && error != cudaErrorContextIsDestroyed && static_cast<int>(error) != kErrorUnloading)
    (void)std::fprintf(stderr, "libmam: %s was not freed: %s\n", what, MAM_LastError());
}

} // namespace mam_bridge

#endif
