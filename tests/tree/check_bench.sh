#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# mam-bench beside its measurements: its version, its progress on a terminal and its silence elsewhere, its figures.
# usage: check_bench.sh    in a build folder, after make
set -u

top=$(cd "${srcdir:-.}" && pwd) || exit 99
bench=$PWD/mam-bench
work=$(mktemp -d "${TMPDIR:-/tmp}/check_bench.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
missing=
export MAM_SOURCE=host LC_ALL=C

fail() {
  echo "FAILED: $*"
  failed=1
}

version=$(sed -n 's/^Version: //p' mam.pc)
[ "$("$bench" --version)" = "mam-bench $version" ] || fail "mam-bench --version is not: mam-bench $version"

# ---- The command line ------------------------------------------------------------------------------------------------

for command in quickstart host heap compact warp replay plot picture; do
  "$bench" $command --bogus >"$work/out" 2>"$work/err"
  status=$?
  title="mam-bench: $command: "
  case $command in quickstart | host) title="mam-bench: " ;; esac
  if [ $status -ne 2 ] || ! grep -q "${title}unrecognized option '--bogus'\$" "$work/err" ||
    ! grep -q "^Try 'mam-bench .*--help'" "$work/err"; then
    fail "mam-bench $command --bogus: status $status, and it says:"
    cat "$work/out" "$work/err"
  fi
  [ -c /dev/full ] || continue
  "$bench" $command --help >/dev/full 2>"$work/err"
  status=$?
  if [ $status -ne 1 ] || ! grep -Eqx "mam-bench: cannot write to standard output(: No space left on device)?" "$work/err"; then
    fail "mam-bench $command --help to a full disk: status $status, and it says:"
    cat "$work/err"
  fi
done

# A size that no pool of this size can hold is no failure, but it is said.
for test in "quickstart" "host --quick --test pair" "host --quick --test iterate"; do
  case $test in *iterate) first='2^16' ;; *pair) first='4 MiB' ;; *) first='16 MiB' ;; esac
  # shellcheck disable=SC2086 # a command and its options
  "$bench" $test --chunk 1 >"$work/out" 2>&1 || fail "mam-bench $test --chunk 1: status $?"
  grep -qxF "Not measured: $first and more, for which a pool of 2 MiB is too small." "$work/out" ||
    { fail "mam-bench $test --chunk 1 does not say what it left out:"; cat "$work/out"; }
done

# ---- Progress --------------------------------------------------------------------------------------------------------

"$bench" quickstart --chunk 64M >"$work/out" 2>"$work/err" || fail "mam-bench quickstart: status $?"
[ ! -s "$work/err" ] || { fail "mam-bench writes to a stderr that is no terminal:"; cat "$work/err"; }

# on_terminal TERM: what a terminal gets, a line for each time that the cursor goes back.
on_terminal() {
  TERM=$1 script -qec "'$bench' quickstart --chunk 64M" /dev/null </dev/null 2>&1 | tr '\r' '\n' | grep ' left  quickstart'
}

if command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
  on_terminal xterm >"$work/progress"
  sed 's/ *\([0-9]*\) %, .*/\1/' "$work/progress" >"$work/percents"
  if [ "$(wc -l <"$work/percents")" -lt 3 ] || ! sort -nc "$work/percents" || [ "$(tail -n 1 "$work/percents")" -gt 100 ]; then
    fail "percentages on a terminal that do not rise from 0 to at most 100:"
    cat "$work/progress"
  fi
  grep -Evq '^ *[0-9]+ %, (-:--|[0-9:]+) left  quickstart(: [A-Za-z]+)?' "$work/progress" &&
    { fail "a line of progress is not as it should be:"; cat "$work/progress"; }
  on_terminal dumb >"$work/dumb"
  [ ! -s "$work/dumb" ] || fail "progress on a terminal that cannot go back to the line's beginning"
else
  missing="$missing script(1), which makes a terminal;"
fi

# ---- Figures ---------------------------------------------------------------------------------------------------------

# refuses TEXT ARGUMENT...: status 1, and the reason.
refuses() {
  text=$1
  shift
  "$bench" plot "$@" >"$work/out" 2>"$work/err"
  status=$?
  if [ $status -ne 1 ] || ! grep -Fq "$text" "$work/err"; then
    fail "mam-bench plot $*: status $status, which does not say: $text"
    cat "$work/out" "$work/err"
  fi
}

mkdir "$work/empty" "$work/bin"
quoted="$work/it's a \"folder\"" # no script may see its name
"$bench" host --chunk 64M --quick --test pair --csv "$quoted" >/dev/null || fail "mam-bench host --test pair: status $?"
"$bench" host --quick --source host --test trace --csv "$work/host" >/dev/null || fail "the same of trace: status $?"
"$bench" host --chunk 64M --quick --test random --csv "$work/no_figure" >/dev/null || fail "the same of random: status $?"
refuses "No such file or directory" "$work/nowhere"
# Pools of fixed size hold what they can.  2 MiB for each slab, as it was once, left less than half live in 16 MiB.
"$bench" host --chunk 256M --quick --test full --csv "$work/full" >/dev/null || fail "mam-bench host --test full: status $?"
awk -F, 'NR > 1 { rows++; if ($1 == "MAM" && ($5 < 0.65 || $6 < 0.7) || $1 == "best fit" && $5 < 0.9) bad = $0 }
  END { if (rows != 18 || bad != "") { print "of " rows " rows this is bad: " bad; exit 1 } }' \
  "$work/full/host-full.csv" || fail "a pool of fixed size is full too soon, or the test full does not tell"
# What a loop over few sizes makes a pool do is for tests/driver/api_pool_test.c: times of a build with checks say little.
"$bench" host --quick --source host --test loop --csv "$work/loop" >/dev/null || fail "mam-bench host --test loop: status $?"
awk -F, '$1 == "MAM" && $6 > 0 && $6 < 1e6 { rows++ } END { if (rows < 6) { print "rows: " rows; exit 1 } }' \
  "$work/loop/host-loop.csv" || fail "the test loop does not tell"
# By each kind of calls; which one it was stands in the machine's file.
for calls in plain tagged legacy stream streams; do
  "$bench" host --chunk 64M --quick --calls $calls --test threads --threads 2 --csv "$work/$calls" >/dev/null ||
    fail "mam-bench host --calls $calls: status $?"
  grep -q ",$calls\$" "$work/$calls/host-machine.csv" || fail "host-machine.csv does not name the calls $calls"
done
"$bench" host --calls none >/dev/null 2>&1
[ $? -eq 2 ] || fail "mam-bench host --calls none is not bad usage"

refuses "no file of mam-bench's --csv is in this folder" "$work/empty"
# A libtool wrapper needs the tools of PATH, so gnuplot alone is hidden: by one that is not there.
printf '#!/bin/sh\nexit 127\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
(PATH=$work/bin:$PATH; refuses "gnuplot is not installed" "$work/no_figure"; exit $failed) || failed=1
"$bench" plot >"$work/out" 2>&1
[ $? -eq 2 ] || fail "mam-bench plot without a folder is not bad usage"

# draws FOLDER WANTED: the figures of a file with their names, and tells them.
draws() {
  "$bench" plot "$1" >"$work/told" 2>"$work/err" || { fail "mam-bench plot: status $?"; cat "$work/err"; }
  (cd "$1" && ls -- *.svg) >"$work/drawn"
  sed 's|.*/||' "$work/told" | sort | diff - "$work/drawn" >"$work/difference" ||
    { fail "mam-bench plot names other figures than it draws:"; cat "$work/difference"; }
  diff "$2" "$work/drawn" >"$work/difference" ||
    { fail "mam-bench plot does not draw the figures that are wanted:"; cat "$work/difference"; }
}

if command -v gnuplot >/dev/null; then
  refuses "no figure is made of the files in this folder" "$work/no_figure"
  echo host-pair.svg >"$work/wanted"
  draws "$quoted" "$work/wanted"
  echo host-trace.svg >"$work/wanted"
  draws "$work/host" "$work/wanted" # no driver sees what is taken there
  if [ -d "$top/tools/bench/results" ]; then # a distribution has none
    mkdir "$work/results"
    cp "$top"/tools/bench/results/*.csv "$work/results"
    (cd "$top/tools/bench/results" && ls -- *.svg) >"$work/wanted"
    draws "$work/results" "$work/wanted"
  fi
else
  missing="$missing gnuplot;"
fi

[ $failed -eq 0 ] || exit 1
[ -z "$missing" ] || { echo "SKIP: not all was tried, for want of:${missing%;}; the rest is right"; exit 77; }
echo "ok: version, progress and figures of mam-bench"
