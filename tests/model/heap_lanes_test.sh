#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Compiles heap_lanes.cc, which is C++ because mam/device.cuh is, and runs it: mam_malloc and mam_free by lanes that
# part and meet.  A fault's line names the run; heap_lanes RUNS SEED makes others.
# usage: heap_lanes_test.sh    CXX from the environment; MAM_TEST_STRIDE=n makes an n-th of the runs
set -u

top=${srcdir:-.}
[ -n "${CXX-}" ] || { echo "SKIP: no C++ compiler"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/heap_lanes.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

# The compiler and its flags: split on purpose.
# shellcheck disable=SC2086
$CXX -std=c++17 -O2 -Wall -Wextra -Werror -I"$top/include" -I"$top/tests" -o "$work/heap_lanes" \
  "$top/tests/model/heap_lanes.cc" || exit 1
"$work/heap_lanes" $((400 / ${MAM_TEST_STRIDE:-1}))
