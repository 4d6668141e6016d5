#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Runs a test of tools/python with the package as it stands in the source tree, on the libraries of this build.
# usage: run.sh TEST.py    PYTHON, CXX and SANITIZE_FLAGS from the environment
set -u

python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIP: there is no $python"; exit 77; }
[ -z "${SANITIZE_FLAGS-}" ] || { echo "SKIP: a sanitizer's runtime is not in $python"; exit 77; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { echo "SKIP: $python is older than 3.9"; exit 77; }
[ -f tests/python/lib/libmam.so.0 ] || { echo "SKIP: libmam is not built as a shared library"; exit 77; }
[ -n "${CXX-}" ] || echo "without a C++ compiler what needs the bridge is left out"

source=$(cd "${srcdir:-.}" && pwd) || exit 99
PYTHONPATH=$source/tools/python${PYTHONPATH:+:$PYTHONPATH}
LIBMAM_DIR=$PWD/tests/python/lib MAM_TEST_SOURCE=$source MAM_TEST_BUILD=$PWD
export PYTHONPATH LIBMAM_DIR MAM_TEST_SOURCE MAM_TEST_BUILD PYTHONDONTWRITEBYTECODE=1
unset LD_PRELOAD CUPY_CUDA_PER_THREAD_DEFAULT_STREAM NUMBA_CUDA_MEMORY_MANAGER
exec "$python" "$@"
