#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Builds what CuPy and PyTorch call (tools/python/bridge) with its tests and runs those; reads the Python programs.
# usage: check_bridge.sh    CXX from the environment; neither library nor a GPU is needed
set -u

[ -n "${CXX-}" ] || { echo "SKIP: no C++ compiler"; exit 77; }
top=${srcdir:-.}
work=$(mktemp -d "${TMPDIR:-/tmp}/check_bridge.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

for name in cupy torch; do
  "$CXX" -std=c++17 -O1 -g -Wall -Wextra -Wshadow -Werror -I"$top/include" -o "$work/$name" \
    "$top/tests/tree/${name}_test.cc" "$top/tools/python/bridge/mam_$name.cc" -lpthread || exit 1
  "$work/$name" || exit 1
done

command -v python3 >/dev/null || exit 0
for program in "$top"/tools/*/*.py "$top"/tools/python/mam/*.py "$top"/tests/python/*.py; do
  # By the grammar of the oldest Python that is promised.
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1], feature_version=(3, 9))' "$program" ||
    exit 1
done
