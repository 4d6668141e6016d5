#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Several processes fill and empty a device in turns under mam-run: what one has freed the next one has, as with the
# driver alone.
# usage: gpu_preload_turns.sh [DIRECTORY]    where gpu_preload_turns is (default: tests/gpu)
# MAM_RUN: as in gpu_preload_test.sh.  MAM_TEST_TURNS_S: for so many seconds (10).  Exits with 77 without a GPU.
set -u

program=${1:-tests/gpu}/gpu_preload_turns
MAM_RUN=${MAM_RUN-./mam-run}
seconds=${MAM_TEST_TURNS_S:-10}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_preload_turns.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

free_mib=$("$program" 0)
status=$?
[ $status -eq 0 ] || { echo "SKIP: no GPU"; exit $status; }
# Three contexts need memory of their own, and a chunk its guard.
mib=$((free_mib * 85 / 100))

for i in 0 1 2; do
  mkfifo "$work/$i" || exit 99
done
# Each holds its ring's two places open for both directions, so that no process waits to open them.
processes=''
for i in 0 1 2; do
  # shellcheck disable=SC2086
  $MAM_RUN "$program" "$mib" "$seconds" 3<>"$work/$i" 4<>"$work/$(((i + 1) % 3))" >"$work/$i.out" 2>&1 </dev/null &
  processes="$processes $!"
done
exec 5<>"$work/0"
printf t >&5
failed=0
for process in $processes; do
  wait "$process" || failed=1
done
sed "s/^/  /" "$work"/*.out
if [ $failed -eq 0 ]; then echo "ok: no process found memory taken"; else echo "FAIL: memory was taken"; fi
exit $failed
