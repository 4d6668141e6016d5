#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Builds what PyTorch calls (tools/pytorch/mam_torch.cc) with its test and runs that; reads the Python programs.
# usage: check_pytorch.sh    CXX from the environment; neither PyTorch nor a GPU is needed
set -u

[ -n "${CXX-}" ] || { echo "SKIP: no C++ compiler"; exit 77; }
top=${srcdir:-.}
work=$(mktemp -d "${TMPDIR:-/tmp}/check_pytorch.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

"$CXX" -std=c++17 -O1 -g -Wall -Wextra -Wshadow -Werror -I"$top/include" -o "$work/pytorch_test" \
  "$top/tests/tree/pytorch_test.cc" "$top/tools/pytorch/mam_torch.cc" -lpthread || exit 1
"$work/pytorch_test" || exit 1

command -v python3 >/dev/null || exit 0
for program in "$top"/tools/pytorch/*.py "$top"/tools/preload/*.py; do
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$program" || exit 1
done
