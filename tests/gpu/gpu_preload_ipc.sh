#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Exports memory from one process to another with mam-run on neither, either and both sides: the bytes are the right
# ones each time, and each side's answers are those without mam-run.  Only where the exporter alone is under mam-run may
# the importer's driver refuse a handle.
# usage: gpu_preload_ipc.sh [DIRECTORY]    where gpu_preload_ipc is (default: tests/gpu)
# MAM_RUN and KEEP: see gpu_preload_test.sh.  Exits with 77 without a GPU.
set -u

program=${1:-tests/gpu}/gpu_preload_ipc
MAM_RUN=${MAM_RUN-./mam-run}
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_preload_ipc.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
[ -n "${KEEP-}" ] && mkdir -p "$KEEP" || KEEP=$work

# ready PROGRAM: without these there would be nothing to compare
ready() {
  for file in "$1" ${MAM_RUN%% *}; do
    [ -x "$file" ] || command -v "$file" >/dev/null || { echo "FAIL: there is no $file"; exit 1; }
  done
}

# pair NAME EXPORTER IMPORTER, each "" or the words of mam-run
pair() {
  rm -f "$work/there" "$work/back"
  mkfifo "$work/there" "$work/back" || exit 99
  # Opened for both directions, so that neither end waits for the other here.
  # shellcheck disable=SC2086
  {
    $3 "$program" import 3<>"$work/there" 4<>"$work/back" >"$KEEP/$1.import" 2>&1 </dev/null &
    importer=$!
    $2 "$program" export 3<>"$work/back" 4<>"$work/there" >"$KEEP/$1.export" 2>&1 </dev/null
    exported=$?
  }
  # What the exporter did not send, the importer would wait for.
  [ $exported -eq 0 ] || kill $importer 2>/dev/null
  wait $importer
  imported=$?
  echo "status = $exported" >>"$KEEP/$1.export"
  echo "status = $imported" >>"$KEEP/$1.import"
}

failures=0
# same NAME
same() {
  for side in export import; do
    if diff "$KEEP/neither.$side" "$KEEP/$1.$side" >"$KEEP/$1.$side.diff"; then
      echo "ok: mam-run on $1 side(s): the ${side}er's answers are the same"
    else
      echo "FAIL: mam-run on $1 side(s), ${side}er: < without mam-run, > with"
      head -n 30 "$KEEP/$1.$side.diff"
      failures=$((failures + 1))
    fi
  done
}

# right NAME: every handle opened at the right bytes, or was refused
right() {
  if grep -H ': no' "$KEEP/$1.export" "$KEEP/$1.import" || ! grep -qx 'status = 0' "$KEEP/$1.export" ||
    ! grep -qx 'status = 0' "$KEEP/$1.import"; then
    echo "FAIL: mam-run on $1 side: $(tail -n 1 "$KEEP/$1.export"), $(tail -n 1 "$KEEP/$1.import")"
    failures=$((failures + 1))
  else
    echo "ok: mam-run on $1 side: no wrong bytes, $(grep -c refused "$KEEP/$1.export") handles refused"
  fi
}

ready "$program"
pair neither "" ""
! grep '^SKIP' "$KEEP/neither.export" || exit 77
! grep -q ': no' "$KEEP/neither.export" || { echo "FAIL: wrong bytes without mam-run"; failures=1; }
[ -n "$MAM_RUN" ] || { echo "neither: $(grep -c . "$KEEP/neither.export") answers"; exit $failures; }
pair exporting "$MAM_RUN --" ""
pair importing "" "$MAM_RUN --"
pair both "$MAM_RUN --" "$MAM_RUN --"
right exporting
same importing
same both
[ $failures -eq 0 ]
