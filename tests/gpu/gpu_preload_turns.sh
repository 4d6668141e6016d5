#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Several processes fill and empty a device in turns under mam-run: what one has freed the next one has, as with the
# driver alone, which takes the first of the same turns before.
# usage: gpu_preload_turns.sh [DIRECTORY]    where gpu_preload_turns is (default: tests/gpu)
# MAM_RUN: as in gpu_preload_test.sh.  MAM_TEST_TURNS_S: for so many seconds (10).  Exits with 77 without a GPU.
set -u

program=${1:-tests/gpu}/gpu_preload_turns
MAM_RUN=${MAM_RUN-./mam-run}

"$program" -t 20
status=$?
[ $status -ne 77 ] || { echo "SKIP: no GPU"; exit 77; }
[ $status -eq 0 ] || { echo "FAIL: the driver alone has too little memory"; exit 1; }
# Options are words.
# shellcheck disable=SC2086
if $MAM_RUN "$program" -s "${MAM_TEST_TURNS_S:-10}"; then
  echo "ok: no process found memory taken"
else
  echo "FAIL: memory was taken"
  exit 1
fi
