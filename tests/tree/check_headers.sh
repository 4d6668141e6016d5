#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Compiles mam.h alone, as its users do: as C11 and C++17 (mam.hpp as C++14), with CUDA's headers and without, and by nvcc.
# usage: check_headers.sh [INCLUDEDIR]    by default the source's; CC, CXX, NVCC, CUDA_CPPFLAGS from the environment
set -u

include=${1:-${srcdir:-.}/include}
work=$(mktemp -d "${TMPDIR:-/tmp}/check_headers.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

# Where a compiler would find CUDA's headers by itself (CPATH), "without them" could not be tried.
unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH

cat >"$work/alone.c" <<'END'
#include <mam.h>
#include <mam.h>
typedef int answers_as_cuda_does[cudaErrorMemoryAllocation == 2 && cudaErrorInvalidResourceHandle == 400 ? 1 : -1];
int main(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  cudaError_t (*malloc_function)(void **, size_t) = MAM_CudaMalloc;
  answers_as_cuda_does unused;
  (void)malloc_function;
  return options.struct_size != sizeof(MAM_PoolOptions) || options.device != -1 || sizeof unused == 0;
}
END
cat >"$work/alone.cpp" <<'END'
#include <mam.h>
#include <mam.h>
struct particle { float x, y, z; };
cudaError_t take(MAM_Pool pool);
cudaError_t take(MAM_Pool pool) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  particle *typed = nullptr;
  const float *constant = nullptr;
  void *untyped = nullptr;
  cudaError_t error = MAM_CudaMalloc(&typed, 10 * sizeof *typed);
  if (error == cudaSuccess) error = MAM_CudaMalloc(&untyped, options.struct_size);
  if (error == cudaSuccess) error = MAM_PoolMalloc(pool, &typed, 1);
  if (error == cudaSuccess) error = MAM_PoolMalloc(pool, &untyped, 1);
  for (int tag = 0; tag < 2 && error == cudaSuccess; tag++) {
    error = MAM_CudaMallocTagged(&typed, 1, &tag);
    if (error == cudaSuccess) error = MAM_CudaMallocTagged(&untyped, 1, &tag);
    if (error == cudaSuccess) error = MAM_PoolMallocTagged(pool, &typed, 1, &tag);
    if (error == cudaSuccess) error = MAM_PoolMallocTagged(pool, &untyped, 1, &tag);
  }
  return error == cudaSuccess ? MAM_CudaFree(const_cast<float *>(constant)) : error;
}
END
cat >"$work/streams.cpp" <<'END'
#include <mam.h>
cudaError_t take(MAM_Pool pool, cudaStream_t stream);
cudaError_t take(MAM_Pool pool, cudaStream_t stream) {
  float *typed = nullptr;
  void *untyped = nullptr;
  cudaError_t error = MAM_CudaMallocAsync(&typed, 10 * sizeof *typed, stream);
  if (error == cudaSuccess) error = MAM_CudaMallocAsync(&untyped, 1, nullptr);
  if (error == cudaSuccess) error = MAM_PoolMallocAsync(pool, &typed, 1, nullptr);
  return error == cudaSuccess ? MAM_PoolMallocAsync(pool, &untyped, 1, stream) : error;
}
END
cat >"$work/owning.cpp" <<'END'
#include <mam.hpp>
#include <mam.hpp>
mam::unique_ptr<float[]> take(cudaStream_t stream);
mam::unique_ptr<float[]> take(cudaStream_t stream) { return mam::make_unique<float[]>(10, mam::on(stream)); }
END
cat >"$work/streams.c" <<'END'
#include <mam.h>
int main(void) {
  cudaError_t (*free_function)(void *, cudaStream_t) = MAM_CudaFreeAsync;
  void *block = 0;
  if (MAM_CudaMallocAsync(&block, 100, 0) != cudaSuccess) return 1;
  return MAM_CudaFreeReuse(0, MAM_REUSE_STREAM) == cudaSuccess && free_function(block, 0) == cudaSuccess ? 0 : 1;
}
END
# That the CUDA runtime's own header goes with it, in either order.
printf '#include <cuda_runtime_api.h>\n' | cat - "$work/alone.c" >"$work/after_cuda.c"
{ cat "$work/alone.c"; printf '#include <cuda_runtime_api.h>\n'; } >"$work/before_cuda.c"
printf '#include <cuda_runtime_api.h>\n' | cat - "$work/alone.cpp" >"$work/after_cuda.cpp"
{ cat "$work/alone.cpp"; printf '#include <cuda_runtime.h>\n__global__ void kernel() {}\n'; } >"$work/alone.cu"

cat >"$work/heap.c" <<'END'
#include <mam/heap.h>
#include <mam/detail/heap_core.h>
#include <mam/warp.h>
int main(void) {
  mam_warp_options warp_options = MAM_WARP_OPTIONS_INIT;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  MAM_HeapInfo info = MAM_HEAP_INFO_INIT;
  MAM_HeapCompactInfo compact_info = MAM_HEAP_COMPACT_INFO_INIT;
  MAM_HeapShare share = MAM_HEAP_SHARE_INIT;
  MAM_PoolInfo pool_info = MAM_POOL_INFO_INIT;
  cudaError_t (*create)(MAM_Heap *, MAM_Pool, const MAM_HeapOptions *) = MAM_HeapCreate;
  (void)create;
  (void)info, (void)compact_info, (void)share, (void)pool_info;
  return warp_options.block_bytes != 16 || options.struct_size != sizeof(MAM_HeapOptions) || mam__class_bytes(mam__class_of(100)) != 112;
}
END
cat >"$work/heap.cu" <<'END'
#include <mam/device.cuh>
#include <mam/heap.h>
__global__ void kernel(mam_heap heap, size_t bytes, void **block, mam_heap_status *status) {
  *block = mam_malloc_why(heap, bytes + mam_malloc_size(heap, *block), status);
  mam_free(heap, *block);
}
END
# shellcheck source=tests/tree/quietly.sh
. "$(dirname "$0")/quietly.sh"

# A compiler and its flags, in one word as make has them, split on purpose.
# shellcheck disable=SC2086
compile_all() {
  strict="-pedantic -Wall -Wextra -Wundef -Werror -fsyntax-only -I$include"
  quietly "C11" ${CC:-cc} -std=c11 $strict "$work/alone.c"
  quietly "C11, MAM_NO_CUDA_HEADERS" ${CC:-cc} -std=c11 $strict -DMAM_NO_CUDA_HEADERS "$work/alone.c"
  quietly "C11, per-thread default streams" \
    ${CC:-cc} -std=c11 $strict -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1 "$work/streams.c"
  quietly "C11, heaps" ${CC:-cc} -std=gnu11 -Wall -Wextra -Wundef -Werror -fsyntax-only -I"$include" "$work/heap.c"
  if [ -n "${CXX-}" ]; then
    quietly "C++17, heaps" $CXX -std=c++17 -Wall -Wextra -Wundef -Werror -fsyntax-only -I"$include" -x c++ "$work/heap.c"
    quietly "C++17, per-thread default streams" \
      $CXX -std=c++17 $strict -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1 -x c++ "$work/streams.c"
    quietly "C++17" $CXX -std=c++17 $strict "$work/alone.cpp"
    quietly "C++17, streams" $CXX -std=c++17 $strict "$work/streams.cpp"
    quietly "C++17, streams, per-thread default streams" \
      $CXX -std=c++17 $strict -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1 "$work/streams.cpp"
    quietly "C++14, mam.hpp" $CXX -std=c++14 $strict "$work/owning.cpp"
    quietly "C++17, MAM_NO_CUDA_HEADERS" $CXX -std=c++17 $strict -DMAM_NO_CUDA_HEADERS "$work/alone.cpp"
  else
    echo "not tried: C++17, there is no C++ compiler"
  fi
  if [ -z "${NVCC-}" ]; then
    echo "not tried: with CUDA's headers and nvcc, configure found no CUDA toolkit"
    return
  fi
  quietly "C11, CUDA's headers" ${CC:-cc} -std=c11 $strict ${CUDA_CPPFLAGS-} "$work/alone.c"
  quietly "C11, after CUDA's runtime" ${CC:-cc} -std=c11 $strict ${CUDA_CPPFLAGS-} "$work/after_cuda.c"
  quietly "C11, before CUDA's runtime" ${CC:-cc} -std=c11 $strict ${CUDA_CPPFLAGS-} "$work/before_cuda.c"
  quietly "C11, CUDA's headers, MAM_NO_CUDA_HEADERS" \
    ${CC:-cc} -std=c11 $strict ${CUDA_CPPFLAGS-} -DMAM_NO_CUDA_HEADERS "$work/alone.c"
  if [ -n "${CXX-}" ]; then
    quietly "C++17, CUDA's headers" $CXX -std=c++17 $strict ${CUDA_CPPFLAGS-} "$work/alone.cpp"
    quietly "C++17, after CUDA's runtime" $CXX -std=c++17 $strict ${CUDA_CPPFLAGS-} "$work/after_cuda.cpp"
  fi
  for arch in 75 90 "$("$NVCC" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n | tail -n 1)"; do
    quietly "kernels with heaps, sm_$arch" "$NVCC" -std=c++14 -Werror all-warnings -I"$include" -arch="sm_$arch" -cubin \
      -o "$work/heap.cubin" "$work/heap.cu"
    quietly "the same with -rdc" "$NVCC" -std=c++14 -Werror all-warnings -I"$include" -arch="sm_$arch" -rdc=true -cubin \
      -o "$work/heap.cubin" "$work/heap.cu"
  done
  quietly "nvcc, per-thread default streams" "$NVCC" -std=c++17 -Werror all-warnings -I"$include" \
    --default-stream per-thread -x cu -c -o "$work/streams.o" "$work/streams.c"
  quietly "nvcc" "$NVCC" -std=c++17 -Werror all-warnings -I"$include" -c -o "$work/alone.o" "$work/alone.cu"
}

[ -f "$include/mam.h" ] || { echo "FAILED: there is no $include/mam.h"; exit 1; }
compile_all
exit $failed
