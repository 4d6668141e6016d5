# shellcheck shell=sh disable=SC2154,SC2034
# SPDX-License-Identifier: BSD-2-Clause
# For scripts that compile: to be sourced where $work is a folder and $failed is 0.

# quietly WHAT COMMAND...: the command has to succeed and to print nothing.
quietly() {
  what=$1
  shift
  if "$@" >"$work/output" 2>&1 && [ ! -s "$work/output" ]; then
    echo "ok: $what"
  else
    echo "FAILED: $what: $*"
    cat "$work/output"
    failed=1
  fi
}
