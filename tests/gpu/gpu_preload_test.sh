#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Asks the same of the driver with and without mam-run, through each door to it, and compares the answers.
# usage: gpu_preload_test.sh [DIRECTORY]    where the gpu_preload_* programs are (default: tests/gpu)
# MAM_RUN from the environment: the program, with its options (default: ./mam-run); if empty, nothing is compared.
# KEEP: a folder where the answers are left.  Exits with 77 without a GPU.
set -u

programs=${1:-tests/gpu}
MAM_RUN=${MAM_RUN-./mam-run}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_preload_test.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
[ -n "${KEEP-}" ] && mkdir -p "$KEEP" || KEEP=$work

failures=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

# ready PROGRAM: without these there would be nothing to compare
ready() {
  for file in "$1" ${MAM_RUN%% *}; do
    [ -x "$file" ] || command -v "$file" >/dev/null || { echo "FAIL: there is no $file"; exit 1; }
  done
}

# Cases that end with the process are run alone, each in its own.
# answers FILE COMMAND...
answers() {
  file=$1
  shift
  "$@" >"$file" 2>"$file.err" </dev/null
  status=$?
  [ $status -ne 77 ] || return 77
  echo "status = $status" >>"$file"
  for end in exit $ends; do
    # shellcheck disable=SC2086 # one word, or none
    "$@" $end >"$file.end" 2>>"$file.err" </dev/null
    echo "status of $end = $?" >>"$file.end"
    cat "$file.end" >>"$file"
    rm -f "$file.end"
  done
  [ ! -s "$file.err" ] || sed 's/^/stderr: /' "$file.err" | head -n 5
}

# In a capture, memory is to be had in every mode as it is in the relaxed one without mam-run.
wanted() {
  sed '/^captures\.\(global\|thread-local\|relaxed\),/d' "$1"
  for mode in global thread-local relaxed; do
    sed -n "s/^captures\.relaxed,/captures.$mode,/p" "$1"
  done
}

# The same order for what was answered: the captures last.
ordered() {
  sed '/^captures\.\(global\|thread-local\|relaxed\),/d' "$1"
  sed -n '/^captures\.\(global\|thread-local\|relaxed\),/p' "$1"
}

# compare NAME COMMAND...
compare() {
  name=$1
  shift
  ready "$1"
  answers "$KEEP/$name.without" "$@"
  if [ $? -eq 77 ]; then
    cat "$KEEP/$name.without"
    [ "$name" = linked ] || exit 77
    return
  fi
  grep -q '^status = 0$' "$KEEP/$name.without" || fail "$name: $(tail -n 1 "$KEEP/$name.without") without mam-run"
  [ -n "$MAM_RUN" ] || { echo "$name: $(wc -l <"$KEEP/$name.without") answers"; return; }
  # Options are words.
  # shellcheck disable=SC2086
  answers "$KEEP/$name.with" $MAM_RUN -- "$@"
  wanted "$KEEP/$name.without" >"$KEEP/$name.wanted"
  ordered "$KEEP/$name.with" >"$KEEP/$name.got"
  if diff "$KEEP/$name.wanted" "$KEEP/$name.got" >"$KEEP/$name.diff"; then
    echo "ok: $name: $(wc -l <"$KEEP/$name.got") answers are the same"
  else
    fail "$name: < is the driver's answer, > that under mam-run"
    head -n 60 "$KEEP/$name.diff"
  fi
}

export GPU_DOOR=dlsym
ends=
compare static "$programs/gpu_preload_static"
compare shared "$programs/gpu_preload_shared"
ends=late-thread
compare dlsym "$programs/gpu_preload_driver"
GPU_DOOR=procaddress
compare procaddress "$programs/gpu_preload_driver"
# Without a driver it does not even load.
[ ! -x "$programs/gpu_preload_linked" ] || compare linked "$programs/gpu_preload_linked"
[ $failures -eq 0 ]
