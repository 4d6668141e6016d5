#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Makes a static library of one object, in which only what libmam.so exports has a global name.  The names of the other
# functions belong to the programs that are linked with it: error_set, pool_open and the like.
# usage: hide_internals.sh ARCHIVE    LD, OBJCOPY and AR from the environment
set -eu

archive=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/hide_internals.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The tools may bring flags: split on purpose.
# shellcheck disable=SC2086
if ${LD:-ld} -r -o "$work/libmam.o" --whole-archive "$archive" 2>"$work/said" &&
  ${OBJCOPY:-objcopy} --localize-hidden "$work/libmam.o" 2>"$work/said"; then
  ${AR:-ar} crs "$work/libmam.a" "$work/libmam.o"
  cat "$work/libmam.a" >"$archive"
else
  echo "warning: programs that are linked with $archive must not have functions that are named as internal ones:" \
    "$(head -n 1 "$work/said")" >&2
fi
