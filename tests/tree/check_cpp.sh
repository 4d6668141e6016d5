#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# mam.hpp in each standard of C++ by each compiler that is here, without a warning, and its test on plain host memory;
# mam/resource.hpp the same if there is CCCL, which comes with the CUDA toolkit.
# usage: check_cpp.sh    in a build folder, after make; CXX, CUDA_CPPFLAGS and SANITIZE_FLAGS from the environment
set -u

top=${srcdir:-.}
libraries=$PWD/lib/.libs
work=$(mktemp -d "${TMPDIR:-/tmp}/check_cpp.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
strict="-Wall -Wextra -Wconversion -Wold-style-cast -Wzero-as-null-pointer-constant -Wshadow -pedantic -Werror"

unset CPATH CPLUS_INCLUDE_PATH # where a compiler might find CUDA's headers by itself
compilers=
for compiler in "${CXX-}" g++ clang++; do
  command -v "${compiler%% *}" >/dev/null || continue
  case " $compilers " in *" $compiler "*) ;; *) compilers="$compilers $compiler" ;; esac
done
[ -n "$compilers" ] || { echo "SKIP: no C++ compiler"; exit 77; }

# shellcheck source=tests/tree/quietly.sh
. "$(dirname "$0")/quietly.sh"

# run WHAT PROGRAM
run() { quietly "$1" env MAM_SOURCE=host LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$2"; }

# A sanitizer's runtime is the C compiler's, which the C++ compiler may not have.
link=yes
[ -z "${SANITIZE_FLAGS-}" ] && [ -f "$libraries/libmam.so" ] || link=

# knows COMPILER STANDARD
knows() { echo 'int main() {}' | $1 -std="$2" -x c++ -fsyntax-only - >/dev/null 2>&1; }

# Compilers, flags: split on purpose.
# shellcheck disable=SC2086
for compiler in $compilers; do
  for standard in c++14 c++17 c++20 c++2b; do
    knows "$compiler" $standard || { echo "not tried: $compiler does not know $standard"; continue; }
    flags="-std=$standard $strict -I$top/include"
    if [ -n "$link" ]; then
      quietly "$compiler $standard" $compiler $flags -o "$work/cpp_test" "$top/tests/tree/cpp_test.cc" \
        -L"$libraries" -lmam && run "$compiler $standard, run" "$work/cpp_test"
    else
      quietly "$compiler $standard" $compiler $flags -fsyntax-only "$top/tests/tree/cpp_test.cc"
    fi
    quietly "$compiler $standard, per-thread default streams" \
      $compiler $flags -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1 -fsyntax-only "$top/tests/tree/cpp_test.cc"
    [ -n "${CUDA_CPPFLAGS-}" ] || continue
    quietly "$compiler $standard, CUDA's headers" $compiler $flags $CUDA_CPPFLAGS -fsyntax-only "$top/tests/tree/cpp_test.cc"
    [ $standard != c++14 ] || continue # CCCL itself needs more
    echo '#include <cuda/memory_resource>' | $compiler -std=$standard $CUDA_CPPFLAGS -x c++ -fsyntax-only - 2>/dev/null ||
      { echo "not tried: $compiler $standard, cuda::mr: the toolkit has no CCCL"; continue; }
    if [ -n "$link" ]; then
      quietly "$compiler $standard, cuda::mr" $compiler $flags $CUDA_CPPFLAGS -o "$work/cpp_resource" \
        "$top/tests/tree/cpp_resource.cc" -L"$libraries" -lmam ${CUDA_LIBS-} && run "$compiler $standard, cuda::mr, run" "$work/cpp_resource"
    else
      quietly "$compiler $standard, cuda::mr" $compiler $flags $CUDA_CPPFLAGS -fsyntax-only "$top/tests/tree/cpp_resource.cc"
    fi
  done
done
[ -n "${CUDA_CPPFLAGS-}" ] || echo "not tried: cuda::mr, there is no CUDA toolkit"
exit $failed
