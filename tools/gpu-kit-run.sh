#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Runs the GPU tests and benchmarks of this folder, and prints TAP.  A test that skips for want of a GPU counts as
# failed, because the machine should have one.
set -u

tests="@TESTS@"

usage() {
  cat <<END
usage: run.sh [--only NAMES] [--sanitizer] [--pytorch] [--preload] [--bench] [--quick] [--csv DIR] [--timeout SECONDS]

  --only NAMES  of the tests only these, separated by spaces; '' for none
  --sanitizer   after the tests, the same tests with less traffic under compute-sanitizer's memcheck, and those of
                device heaps under its racecheck
  --pytorch     after them, training steps and graphs of PyTorch on the library (needs a python3 that has it)
  --preload     after them, what is run with and without mam-run: questions to the driver, memory of two processes,
                real programs (those that are there: python3's PyTorch, CuPy, Numba and JAX among them)
  --bench       after them, the benchmarks
  --quick       shorter benchmarks
  --csv DIR     where the benchmarks' CSV and every program's output go (default: results in this folder)
  --timeout S   for each test, ten times that under compute-sanitizer and for the benchmarks (default: 300)

Exits with 0 if all is well, 1 if anything failed or was skipped, 2 on a wrong argument.
END
}

sanitizer=no pytorch=no preload=no bench=no quick='' csv='' limit_s=300
while [ $# -gt 0 ]; do
  case $1 in
    --sanitizer) sanitizer=yes ;;
    --pytorch) pytorch=yes ;;
    --preload) preload=yes ;;
    --bench) bench=yes ;;
    --quick) quick=--quick ;;
    --csv | --timeout | --only)
      [ $# -ge 2 ] || { usage >&2; exit 2; }
      case $1 in
        --csv) csv=$2 ;;
        --timeout) limit_s=$2 ;;
        --only) tests=$2 ;;
      esac
      shift
      ;;
    --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

here=$(cd "$(dirname "$0")" && pwd) || exit 1
[ -n "$csv" ] || csv=$here/results
mkdir -p "$csv" && csv=$(cd "$csv" && pwd) && cd "$here" || exit 1

# Without this Check forks for each test, and CUDA does not work in a forked child.
export CK_FORK=no
# Options that the caller has set for other programs must not reach the tests.
unset MAM_SOURCE MAM_REUSE MAM_HEADROOM MAM_LIMIT MAM_LINGER_MS MAM_REPORT MAM_LOG

number=0 failures=0
# run NAME SECONDS COMMAND...: runs a command and prints a TAP line.  Its output goes to the results' folder; the end of
# it is shown on failure.
run() {
  name=$1 seconds=$2
  shift 2
  number=$((number + 1))
  log=$csv/$(echo "$name" | tr ' ' '-').log
  timeout "$seconds" "$@" >"$log" 2>&1 </dev/null
  status=$?
  case $status in
    0)
      # A program that has tests of one device and of two says which it left out.
      note=''
      if grep -q '^There is one device' "$log"; then note=' # one device: without the tests of two'; fi
      echo "ok $number - $name$note"
      return
      ;;
    77)
      # On a machine with one GPU, a test that needs two skips.  That is no failure, and the line says so.
      if grep -q '^SKIP: one device alone' "$log"; then
        echo "ok $number - $name # SKIP this machine has one GPU"
        return
      fi
      reason="it found no GPU and skipped, which counts as a failure here"
      ;;
    124) reason="not done after $seconds s" ;;
    *) reason="exit status $status" ;;
  esac
  failures=$((failures + 1))
  echo "not ok $number - $name"
  echo "# $reason; the end of $log:"
  tail -n 40 "$log" | sed 's/^/#   /'
}

memcheck=''
if [ $sanitizer = yes ]; then
  memcheck=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer) ||
    memcheck=compute-sanitizer
fi

heaps=0
for test in $tests; do
  case $test in gpu_heap_*) heaps=$((heaps + 1)) ;; esac
done
# shellcheck disable=SC2086
set -- $tests
planned=$#
[ $sanitizer = no ] || planned=$((planned * 2 + heaps))
[ $pytorch = no ] || planned=$((planned + 1))
[ $preload = no ] || planned=$((planned + 4))
[ $bench = no ] || planned=$((planned + 1))
echo "1..$planned"
for test in $tests; do
  run "$test" "$limit_s" "./$test"
done
if [ $sanitizer = yes ]; then
  for test in $tests; do
    # --report-api-errors no: the tests make wrong calls on purpose and check the answers.
    run "memcheck $test" $((limit_s * 10)) env MAM_TEST_SMALL=1 \
      "$memcheck" --tool memcheck --report-api-errors no --error-exitcode 1 "./$test"
    case $test in
      gpu_heap_*) run "racecheck $test" $((limit_s * 10)) env MAM_TEST_SMALL=1 \
        "$memcheck" --tool racecheck --report-api-errors no --error-exitcode 1 "./$test" ;;
    esac
  done
fi
if [ $pytorch = yes ]; then
  run "pytorch" $((limit_s * 10)) python3 -B pytorch/torch_step.py
  sed 's/^/# /' "$csv/pytorch.log"
fi
if [ $preload = yes ]; then
  export MAM_RUN="$here/preload/mam-run"
  run "preload answers" "$limit_s" env KEEP="$csv/preload-answers" sh preload/tests/gpu_preload_test.sh preload/tests
  run "preload ipc" "$limit_s" env KEEP="$csv/preload-ipc" sh preload/tests/gpu_preload_ipc.sh preload/tests
  run "preload turns" "$limit_s" sh preload/tests/gpu_preload_turns.sh preload/tests
  run "preload programs" $((limit_s * 10)) python3 -B preload/real_programs.py --mam-run "$MAM_RUN" --bin preload/bin \
    --out "$csv"
  sed 's/^/# /' "$csv/preload-programs.log"
fi
if [ $bench = yes ]; then
  # shellcheck disable=SC2086
  run "mam-bench host" $((limit_s * 10)) ./mam-bench host $quick --csv "$csv"
fi
echo "# $((number - failures)) passed, $failures failed; output and CSV are in $csv"
[ $failures -eq 0 ]
