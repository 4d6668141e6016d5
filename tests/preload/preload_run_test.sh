#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# mam-run from a shell, over the fake driver: options, summary, children, exit order, programs that use libmam too.
# Conditions are given to check as text, to be evaluated there.
# shellcheck disable=SC2016,SC2015,SC2317
set -u

program=tests/preload/preload_program
[ -x ./mam-run ] && [ -e lib/.libs/libmam_preload.so ] || { echo "SKIP: mam-run was not built"; exit 77; }
[ -x "$program" ] || { echo "SKIP: $program was not built"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/preload_run.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

# what command ...: output in $work/out and $work/err, status in $status
try() {
  what=$1
  shift
  "$@" >"$work/out" 2>"$work/err"
  status=$?
}
check() { # expression on what try left
  if eval "$1"; then
    echo "ok: $what"
  else
    echo "FAILED: $what: $1 (status $status)"
    sed 's/^/  /' "$work/out" "$work/err"
    failed=1
  fi
}

try "a program runs without a word" ./mam-run -- "$program" churn
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && grep -q "chunks 1" "$work/out"'
try "without mam-run the driver serves it" "$program" churn
check '[ $status -eq 0 ] && grep -q "chunks 40" "$work/out"'
try "its status is passed on" ./mam-run "$program" fail
check '[ $status -eq 3 ]'
try "a summary is printed on request" ./mam-run --summary -- "$program" churn
check 'grep -q "40 allocations and 40 frees served, 0 allocations left" "$work/err"'
try "measuring says what was saved" ./mam-run -m "$program" churn
check 'grep -q "saved: .* ms" "$work/err"'
try "the summary goes to a file" ./mam-run -s -o "$work/summary" "$program" churn
check '[ ! -s "$work/err" ] && grep -q "40 allocations" "$work/summary"'
try "a file that takes no summary is told of" ./mam-run -s -o /dev/full "$program" churn
check '[ $status -eq 0 ] && grep -q "the summary of process [0-9]* is lost: /dev/full: No space left" "$work/err"'
try "a file of the program at the number of stderr takes no summary" ./mam-run -s "$program" reopen "$work/own"
check '[ $status -eq 0 ] && [ "$(cat "$work/own")" = data ]'
try "nor if stderr was closed before the program began" sh -c 'exec "$@" 2>&-' - ./mam-run -s "$program" reopen "$work/own"
check '[ $status -eq 0 ] && [ "$(cat "$work/own")" = data ]'
try "a daemon keeps no stderr" sh -c '"$@" 2>&1 | cat' - ./mam-run -s "$program" daemon "$work/daemon"
check 'kill "$(cat "$work/daemon")"'
# unread COMMAND...: standard error is a pipe without a reader.
unread() {
  rm -f "$work/unread" && mkfifo "$work/unread" && sh -c 'exec 3<>"$1" 2>"$1" 3>&- && shift && exec "$@"' - "$work/unread" "$@"
}
try "a summary that is not read does not end the program" unread ./mam-run -s "$program" churn
check '[ $status -eq 0 ] && grep -q "chunks 1" "$work/out"'
try "nor a shell" unread ./mam-run -s sh -c 'exit 5'
check '[ $status -eq 5 ]'
try "nor does a file that may not grow, which is said" sh -c \
  "{ (ulimit -f 0; exec ./mam-run -s -o '$work/short' '$program' churn); echo status \$?; } 2>&1 | cat"
check 'grep -qx "status 0" "$work/out" && [ ! -s "$work/short" ] &&
  grep -q "the summary of process [0-9]* is lost: $work/short: File too large" "$work/out"'
mkfifo "$work/fifo"
cat "$work/fifo" >"$work/read" &
for _ in 0 1 2 3 4 5 6 7 8 9; do # until it waits for what is written
  grep -q '(cat) S' /proc/$!/stat && break || sleep 0.1
done
try "the summary goes to the reader of a FIFO" timeout 60 ./mam-run -s -o "$work/fifo" "$program" churn
wait
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && grep -q "40 allocations" "$work/read"'
try "a FIFO without a reader is not waited for, which is said" timeout 60 ./mam-run -s -o "$work/fifo" "$program" churn
check '[ $status -eq 0 ] && grep -q "the summary of process [0-9]* is lost: $work/fifo: No such device" "$work/err"'
try "nor by a shell" timeout 60 ./mam-run -s -o "$work/fifo" sh -c 'exit 7'
check '[ $status -eq 7 ]'
try "a pipe may be named" sh -c '{ ./mam-run -s -o /dev/fd/4 "$1" churn 4>&1 >/dev/null; } | cat' - "$program"
check '[ $status -eq 0 ] && grep -q "40 allocations" "$work/out"'
try "children are served too, each by itself" ./mam-run --summary --output="$work/children" -- \
  sh -c "$program churn && $program churn"
check '[ "$(grep -c "40 allocations" "$work/children")" -eq 2 ]'
try "a chunk has the size that is asked for" ./mam-run --chunk 8M "$program" churn
check 'grep -q "chunk bytes 10485760" "$work/out"'
try "nothing is served when it is off" ./mam-run --off --summary "$program" churn
check 'grep -q "chunks 40" "$work/out" && grep -q "nothing was served: MAM_PRELOAD is off" "$work/err"'
try "what the options leave to the driver is said" ./mam-run -s --min 1G "$program" churn
check 'grep -q "chunks 40" "$work/out" && grep -q "nothing was served; the first allocation: the options" "$work/err"'
try "so is what a pool is too small for" ./mam-run -s --chunk 1000G "$program" churn
check '[ $status -eq 0 ] && grep "nothing was served; the first allocation: " "$work/err" | grep -qv "options"'
try "a program that is not meant is left alone" ./mam-run --skip-programs=preload_program,lt-preload_program "$program" churn
check 'grep -q "chunks 40" "$work/out"'
try "exit handlers and destructors may free and allocate" ./mam-run -s "$program" exit
check '[ $status -eq 0 ] && grep -q "freed in an exit handler: 0" "$work/out" && grep -q "freed in a destructor: 0" "$work/out"'
try "threads may outlive main" ./mam-run "$program" threads
check '[ $status -eq 0 ] && [ ! -s "$work/err" ]'
try "no thread of the library keeps a process alive" timeout -s KILL 60 ./mam-run -s "$program" main-ends
check '[ $status -eq 0 ] && grep -q "40 allocations and 40 frees" "$work/err"'
# The bell of the user's processes is a file in /dev/shm, which other programs may have filled.
if unshare -Urm mount -t tmpfs -o size=4k none /dev/shm 2>/dev/null; then
  try "a full /dev/shm is no harm" unshare -Urm sh -c 'mount -t tmpfs -o size=4k none /dev/shm &&
    head -c 4096 /dev/zero >/dev/shm/full && exec "$@"' sh ./mam-run "$program" threads
  check '[ $status -eq 0 ] && [ ! -s "$work/err" ]'
  try "nor is a process whose files may not grow" unshare -Urm sh -c 'mount -t tmpfs none /dev/shm && ulimit -f 0 &&
    exec "$@" >&-' sh ./mam-run "$program" threads
  check '[ $status -eq 0 ]'
  try "processes find each other again when it was removed" unshare -Urm sh -c \
    'mount -t tmpfs none /dev/shm && MAM_LINGER_MS=1000000 exec "$@"' sh ./mam-run "$program" find-again
  check '[ $status -eq 0 ]'
fi
try "a program may replace itself" ./mam-run "$program" exec
check '[ $status -eq 0 ] && grep -q "chunks 1" "$work/out"'
try "a forked child without exec is left to the driver" ./mam-run "$program" fork
check '[ $status -eq 0 ] && grep -q "child hears 3" "$work/out"'
try "a forked child prints no summary of its own" ./mam-run --summary "$program" fork-exit
check '[ $status -eq 0 ] && [ "$(grep -c "allocations and" "$work/err")" -eq 1 ]'
allocator=$PWD/tests/preload/.libs/preload_allocator.so
for beside in '' "$allocator"; do
  try "fork waits for no thread that waits for fork (${beside##*/})" env ${beside:+LD_PRELOAD="$beside"} timeout 60 ./mam-run \
    "$program" fork-busy
  check '[ $status -eq 0 ] && grep -q forked "$work/out"'
done
forker=$PWD/tests/preload/.libs/preload_forker.so
try "fork handlers of other libraries may call the driver" env LD_PRELOAD="$forker" timeout 60 ./mam-run "$program" fork
check '[ $status -eq 0 ] && grep -q "child hears 3" "$work/out"'
try "also beside threads that allocate" env LD_PRELOAD="$forker" timeout 60 ./mam-run "$program" fork-busy
check '[ $status -eq 0 ] && grep -q forked "$work/out"'
try "nor in a program without a driver" env MAM_SOURCE=host LD_PRELOAD="$allocator" timeout 60 tests/preload/preload_member forks
check '[ $status -eq 0 ] && grep -q forked "$work/out"'
try "children that are forked before the first context are served" ./mam-run -s "$program" fork-early
check '[ $status -eq 0 ] && [ "$(grep -c "chunks 1" "$work/out")" -eq 2 ] && [ "$(grep -c "40 allocations and 40 frees" "$work/err")" -eq 2 ]'
try "a program may overwrite its environment" ./mam-run --skip-threads loader "$program" title
check '[ $status -eq 0 ] && grep -q "loader is left alone" "$work/out"'
try "a program may clear its environment" ./mam-run -s "$program" forget
check '[ $status -eq 0 ] && grep -q "40 allocations and 40 frees" "$work/err"'
try "a program that is linked with libmam has one pool" ./mam-run tests/preload/preload_member
check '[ $status -eq 0 ] && grep -q "one pool" "$work/out"'
try "a mistake in an option is said, and the program runs" env MAM_PRELOAD_CHUNK=much ./mam-run "$program" churn
check '[ $status -eq 0 ] && grep -q "MAM_PRELOAD_CHUNK=much is not understood" "$work/err" && grep -q "chunks 40" "$work/out"'
for mistake in MAM_LIMIT=0 MAM_SOURCE=cpu MAM_LINGER_MS=-1; do
  try "so is one that is of pools: $mistake" env $mistake ./mam-run "$program" churn
  check '[ $status -eq 0 ] && grep -q "$mistake is not understood" "$work/err" && grep -q "chunks 40" "$work/out"'
done
try "commands that make no call of CUDA do not repeat it" env MAM_LIMIT=0 ./mam-run -s sh -c 'true; sed p /dev/null; sed p /dev/null; true'
check '[ "$(grep -c "MAM_LIMIT=0 is not understood" "$work/err")" -le 1 ]'
for mistake in MAM_LIMIT=banana MAM_PRELOAD_CHUNK=much; do
  try "and the summary says that nothing was served: $mistake" env $mistake ./mam-run -s -o "$work/$mistake" "$program" churn
  check '[ $status -eq 0 ] && [ "$(grep -c "nothing was served: it could not be set up" "$work/$mistake")" -eq 1 ]'
done
try "a pool holds no more than the limit, and the driver serves the rest" ./mam-run -s --limit 8M "$program" large
check '[ $status -eq 0 ] && grep -q "chunk bytes 8388608" "$work/out" && grep -q "7 allocations and 7 frees served, 33 allocations left" "$work/err"'
try "nor than a share of the device" env MAM_LIMIT=8M ./mam-run -s --limit=1% "$program" large
check '[ $status -eq 0 ] && grep -q "chunk bytes 41943040" "$work/out" && grep -q "39 allocations and 39 frees served, 1 allocations left" "$work/err"'

# What lies free between live blocks of chunks is said; of mapped memory it goes back.
try "the summary says what lay free when memory was refused" ./mam-run -s "$program" scatter
check 'grep -q "half of the device: 2" "$work/out" &&
  grep -q "refused: 1 allocations found no memory; the last was of 2147483648 bytes, while 31540[0-9]* lay free" "$work/err"'
try "mapped memory is given back from between live blocks" ./mam-run -s --vmm "$program" scatter
check 'grep -q "half of the device: 0" "$work/out" && ! grep -q refused "$work/err"'

# ---- Records ----
# recorded FILE: how many allocations the record has.
recorded() { ./mam-bench replay "$1" 2>&1 | sed -n 's/^\([0-9]*\) allocations.*/\1/p'; }
# records PREFIX: how many files there are whose names begin so.
records() { find "$work" -name "${1##*/}*" | wc -l; }
export LC_ALL=C
try "calls are recorded" ./mam-run --record "$work/rec" -- "$program" churn
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && [ "$(recorded "$work/rec")" -eq 40 ]'
try "the site is where the program called" ./mam-bench replay "$work/rec"
check 'grep -q "blocks  [^ ]*preload_program+0x" "$work/out" && grep -q "mam-run --limit" "$work/out"'
# sited NAME: how many sites are in that function, each with 4 blocks.
sited() { grep -cE " 4 blocks  $1\+0x[0-9a-f]+$" "$work/out"; }
try "calls through a runtime are recorded" ./mam-run -r "$work/sites" tests/preload/preload_sites
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && [ "$(recorded "$work/sites")" -eq 32 ]'
try "the site is outside of the runtime, in a library, in the program, and behind a template" ./mam-bench replay "$work/sites"
check 'grep -q " 8 call sites" "$work/out" && [ "$(sited site_direct)" -eq 1 ] && [ "$(sited site_shared)" -eq 1 ] &&
  [ "$(sited site_shared_twice)" -eq 2 ] && [ "$(sited site_inside)" -eq 1 ] && [ "$(sited site_inside_twice)" -eq 2 ] &&
  [ "$(sited site_template)" -eq 1 ]'
try "a record of a run before is written over" ./mam-run -r "$work/rec" "$program" twice
check '[ "$(recorded "$work/rec")"  -eq 10 ] && [ "$(records rec)" -eq 1 ]'
try "each process has a record" ./mam-run --record="$work/many" -- sh -c "$program churn && $program churn & $program churn; wait"
check '[ $status -eq 0 ] && [ "$(records many)" -eq 3 ] &&
  for file in "$work"/many*; do [ "$(recorded "$file")" -eq 40 ] || break; done && [ "$(recorded "$file")" -eq 40 ]'
try "also by its number" ./mam-run "-r$work/by.%p.rec" sh -c "$program churn; $program churn"
check '[ "$(records by.)" -eq 2 ]'
try "and after it replaced itself" ./mam-run -r "$work/exec" "$program" exec
check '[ $status -eq 0 ] && [ "$(records exec)" -eq 2 ] && [ "$(recorded "$work"/exec.*)" -eq 40 ]'
try "what is refused is recorded" ./mam-run -r "$work/refused" --limit 8M "$program" large
check './mam-bench replay "$work/refused" | grep -q "^7 allocations, 33 refused"'
try "a program that allocates nothing" ./mam-run -r "$work/none" true
check '[ $status -eq 0 ] && ./mam-bench replay "$work/none" 2>&1 | grep -q "it is empty"'
try "a full disk is said, and the program runs" sh -c \
  "(trap '' XFSZ; ulimit -f 0; exec ./mam-run -r '$work/full' '$program' churn) 2>&1 | cat"
check '[ "$(grep -c "$work/full: File too large" "$work/out")" -eq 1 ] && grep -q "chunks 1" "$work/out"'
echo 'import torch' >"$work/train.py"
mkfifo "$work/pipe"
for wrong in "-r $work/none/file" "-r $work" "-r $work/nowhere/%p" "--record=" "-r $work/train.py" "-r $work/pipe" "-r /dev/full"; do
  # shellcheck disable=SC2086
  try "refused before the program starts: $wrong" ./mam-run $wrong sh -c 'echo started'
  check '[ $status -eq 125 ] && [ ! -s "$work/out" ] && [ -s "$work/err" ]'
done
check 'grep -qx "import torch" "$work/train.py"'
try "the variables of a record" ./mam-run -r "$work/rec" --print
check 'grep -qx "MAM_RECORD=$work/rec" "$work/out"'

# Another interposer of the user's sees all of the program's calls, or none; left alone, what it sees without mam-run.
interposer=$PWD/tests/preload/.libs/preload_interposer.so quota=$PWD/tests/preload/.libs/preload_quota.so
library=$PWD/lib/.libs/libmam_preload.so
for how in twice twice-asked; do
  try "another interposer sees all ($how)" env LD_PRELOAD="$interposer" ./mam-run -s "$program" $how
  case $how in
  twice) check 'grep -q "saw 10 and 10 allocations and 20 frees" "$work/err" && grep -q " 10 frees served" "$work/err"' ;;
  *) check 'grep -q "saw 0 and 10 allocations and 0 frees" "$work/err" && grep -q " 10 frees served" "$work/err"' ;;
  esac
  try "with --off too ($how)" env LD_PRELOAD="$interposer" ./mam-run --off "$program" $how
  cp "$work/err" "$work/off"
  try "as without ($how)" env LD_PRELOAD="$interposer" "$program" $how
  check 'cmp -s "$work/err" "$work/off"'
  try "behind the library, left alone, as without ($how)" env MAM_PRELOAD=off LD_PRELOAD="$library:$interposer" \
    "$program" $how
  check 'cmp -s "$work/err" "$work/off"'
  try "a quota sees all and is served ($how)" env LD_PRELOAD="$quota" ./mam-run -s "$program" $how
  check 'grep -q "saw 10 allocations and 20 frees" "$work/err" && grep -q " 10 frees served" "$work/err"'
  try "a quota sees all with --off ($how)" env LD_PRELOAD="$quota" ./mam-run --off "$program" $how
  check 'grep -q "saw 10 allocations and 20 frees" "$work/err"'
  try "behind the library, left alone, a quota sees all ($how)" env MAM_PRELOAD=off LD_PRELOAD="$library:$quota" \
    "$program" $how
  check 'grep -q "saw 10 allocations and 20 frees" "$work/err"'
  try "behind the library a quota sees none ($how)" env LD_PRELOAD="$library:$quota" "$program" $how
  check 'grep -q "saw 0 allocations and 0 frees" "$work/err"'
done

try "behind the library an interposer sees none" env LD_PRELOAD="$library:$interposer" "$program" twice
check 'grep -q "saw 0 and 0 allocations and 0 frees" "$work/err"'

for mode in on off; do
  try "without a driver nobody says that there is one ($mode)" env MAM_PRELOAD=$mode ./mam-run tests/preload/preload_driverless
  cp "$work/out" "$work/$mode"
done
try "as without" tests/preload/preload_driverless
check 'cmp -s "$work/out" "$work/on" && cmp -s "$work/out" "$work/off"'

try "a constructor may wait for a thread that makes the first allocation" timeout 60 ./mam-run -s "$program" open \
  "$PWD/tests/preload/.libs/preload_waiting.so"
check '[ $status -eq 0 ] && grep -q " 1 allocations and 1 frees served" "$work/err"'

# A library may have variables by the names of the driver's functions.
loader=$PWD/tests/preload/.libs/preload_loader.so
fake=$PWD/tests/support/.libs
try "a library that opens the driver by itself is served" env LD_LIBRARY_PATH="$fake" ./mam-run -s \
  tests/preload/preload_loading "$loader"
check '[ $status -eq 0 ] && grep -q "at the start: absent" "$work/out" && grep -q " 3 allocations and 3 frees served" "$work/err"'
try "with --off it gets the driver" env LD_LIBRARY_PATH="$fake" ./mam-run --off tests/preload/preload_loading "$loader"
check '[ $status -eq 0 ] && grep -q "at the start: absent" "$work/out"'

# An interposer that needs no driver is all that a process without one can find.
plain=$PWD/tests/preload/.libs/preload_plain.so
try "without a driver an interposer is found" env LD_PRELOAD="$plain" ./mam-run tests/preload/preload_driverless
cp "$work/out" "$work/on"
try "as without" env LD_PRELOAD="$plain" tests/preload/preload_driverless
check 'cmp -s "$work/out" "$work/on" && grep -q "by default: there" "$work/out"'
for mode in on off; do
  try "behind the library, too ($mode)" env MAM_PRELOAD=$mode LD_PRELOAD="$library:$plain" tests/preload/preload_driverless
  check 'cmp -s "$work/out" "$work/on"'
  try "without a driver a simulator's functions are called ($mode)" env MAM_PRELOAD=$mode ./mam-run tests/preload/preload_simulated
  check '[ $status -eq 0 ] && grep -qx "answer: 100" "$work/out"'
done

try "an unknown option is refused" ./mam-run --nothing "$program" churn
check '[ $status -eq 125 ] && grep -q "unknown option --nothing" "$work/err"'
try "a limit may be a percentage, as is said" ./mam-run --limit=50%% "$program" churn
check '[ $status -eq 125 ] && grep -q "expected bytes, with K, M or G, or a percentage" "$work/err"'
try "an option without its value is refused" ./mam-run --chunk
check '[ $status -eq 125 ]'
try "a shell says that no call of CUDA was seen, once" ./mam-run -s sh -c 'true; (exit 3); ls >/dev/null; exit 7'
check '[ $status -eq 7 ] && [ "$(grep -c "loaded, but no CUDA call was seen" "$work/err")" -eq 1 ]'
try "a shell's line goes to the file" ./mam-run -s "-o$work/line" sh -c 'exit 0'
check '[ $status -eq 0 ] && grep -q "no CUDA call was seen" "$work/line" && [ ! -s "$work/err" ]'
try "no program is a mistake" ./mam-run
check '[ $status -eq 125 ] && grep -q "^usage" "$work/err"'
for wrong in '--limit banana' '--limit 0' '--limit 2047K' '--limit 1' '--limit 2m%' '--limit 0%' '--limit 101%' '--limit 1000%' '--limit 5M%' '--limit %' '--limit=' '--limit 1T' \
  '--limit 99999999999G' '--min banana' '--min 1T' '--max=' '--chunk 0' '--chunk 0K' '--max 99999999999G' '--off=yes' '--skip-devices gpu0' \
  '--chunk 9999999999G' '--min 20G --max 1K' '--min 2M --max 2047K' '--skip-devices 0,99999999999999999999' \
  '--programs a,,b' "-o $work/none/file" "-s -o$work" '-sx'; do
  # shellcheck disable=SC2086
  try "refused before the program starts: $wrong" ./mam-run $wrong sh -c 'echo started'
  check '[ $status -eq 125 ] && [ ! -s "$work/out" ] && [ -s "$work/err" ]'
done
try "options go together" ./mam-run -ms -o"$work/glued" "$program" churn
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && grep -q "saved: .* ms" "$work/glued"'
try "units may be small letters" ./mam-run --min 1k --print
check 'grep -qx "MAM_PRELOAD_MIN=1K" "$work/out"'
for limit in 2M 100% 007% 40g 02097152; do
  try "a limit may be $limit" ./mam-run --limit $limit "$program" churn
  check '[ $status -eq 0 ] && [ ! -s "$work/err" ]'
done

# A line is printed in any case, of the program itself: commands that it runs print none.
try "no call of the driver is said" ./mam-run -s find "$work" -maxdepth 0 -exec ls {} ';'
check '[ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "find .*no CUDA call was seen" "$work/err"'
try "so is it after a shell became another program" ./mam-run -s sh -c 'exec true'
check '[ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "true .*no CUDA call was seen" "$work/err"'
echo 'int main(void) { return 3; }' >"$work/static.c"
# shellcheck disable=SC2086
if ${CC:-cc} -static -o "$work/static" "$work/static.c" 2>/dev/null && command -v ldd >/dev/null; then
  try "a program that takes no library is said" ./mam-run -s "$work/static"
  check '[ $status -eq 3 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "not loaded: it is linked statically" "$work/err"'
  printf '#! %s\nwhat follows is for it\n' "$work/static" >"$work/script" && chmod +x "$work/script"
  try "so is a script for it" ./mam-run -s "$work/script"
  check '[ $status -eq 3 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "script .*not loaded: its interpreter $work/static is linked" "$work/err"'
  try "it runs though that is not read" unread ./mam-run -s "$work/static"
  check '[ $status -eq 3 ]'
  try "in the file too" ./mam-run -s -o "$work/said" "$work/static"
  check '[ ! -s "$work/err" ] && grep -q "not loaded" "$work/said"'
fi

# The library beside mam-run comes first, wherever both were put; a place that the dynamic linker cannot name is refused.
for folder in beside 'be side' 'bin:lib'; do
  mkdir -p "$work/$folder/lib" "$work/$folder/bin"
  cp mam-run "$work/$folder/bin/"
  cp lib/.libs/libmam_preload.so lib/.libs/libmam.so.0 "$work/$folder/lib/"
done
ln -s "$work/beside/bin/mam-run" "$work/linked"
for name in beside/bin/mam-run linked; do
  try "the library beside it is taken ($name)" "$work/$name" --print
  check 'grep -qx "LD_PRELOAD=$work/beside/bin/../lib/libmam_preload.so" "$work/out"'
done
try "it runs from there" "$work/beside/bin/mam-run" -s "$program" churn
check 'grep -q "40 allocations" "$work/err"'
cp /bin/true "$work/beside/capable"
if env "PATH=$PATH:/usr/sbin:/sbin" setcap cap_net_raw=ep "$work/beside/capable" 2>/dev/null && command -v setpriv >/dev/null; then
  chmod 755 "$work"
  try "a program with capabilities takes no library, which is said" setpriv --reuid 65534 --clear-groups \
    "$work/beside/bin/mam-run" -s "$work/beside/capable"
  check '[ $status -eq 0 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "capable .*not loaded: .*setcap" "$work/err"'
fi
for folder in 'be side' 'bin:lib'; do
  try "a path with a space or a colon is refused" "$work/$folder/bin/mam-run" "$program" churn
  check '[ $status -eq 125 ] && grep -q "space or a colon" "$work/err"'
done

# ---- The program's environment, and what does without one ----
strange() {
  env -i "PATH=$PATH" summary=x value=x option=x library=x preloaded=x least=x most=x print_only=x largest_chunk=x \
    'a.b=1' 'BASH_FUNC_hi%%=() { echo hi; }' "$@"
}
strange env >"$work/plain"
try "the program has the user's environment, and the library" strange ./mam-run env
check 'grep -v "^LD_PRELOAD=" "$work/out" | cmp -s - "$work/plain" && grep -q "^LD_PRELOAD=[^ ]*libmam_preload.so$" "$work/out"'
try "no variable of the user's counts as an option" strange ./mam-run env
check '! grep -q "^MAM_" "$work/out" && [ ! -s "$work/err" ]'
try "mam-run needs no other program" env PATH=/nonexistent ./mam-run -s -o "$work/alone" -r "$work/alone.rec" /bin/echo hi
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && grep -qx hi "$work/out"'
try "nor many descriptors" sh -c 'ulimit -n 5; exec ./mam-run true'
check '[ $status -eq 0 ]'
try "a mistake has its status with few descriptors" sh -c 'ulimit -n 5; exec ./mam-run --nothing true'
check '[ $status -eq 125 ]'
for missing in '' no-such-program "$work/no/such/program"; do
  try "a program that is not there: '$missing'" ./mam-run -s "$missing"
  check '[ $status -eq 127 ] && [ "$(wc -l <"$work/err")" -eq 1 ]'
done
for unfit in "$work" "$work/plain"; do
  try "a program that cannot be run: ${unfit##*/}" ./mam-run -s "$unfit"
  check '[ $status -eq 126 ] && [ "$(wc -l <"$work/err")" -eq 1 ]'
done
line="$work/line
"
mkdir "$line"
try "a folder's name may end in a new line" sh -c 'cd "$1" && exec "$2/mam-run" -s -o summary -r record "$2/$3" churn' - \
  "$line" "$PWD" "$program"
check '[ $status -eq 0 ] && [ ! -s "$work/err" ] && grep -q "40 allocations" "$line/summary" && [ "$(recorded "$line/record")" -eq 40 ]'
cp "$line/record" "$work/kept"
try "a record is kept if a later option is wrong" ./mam-run -r "$work/kept" --nothing "$program" churn
check '[ $status -eq 125 ] && cmp -s "$work/kept" "$line/record"'
try "so is it if there is no such program" ./mam-run -r "$work/kept" "$work/nowhere/program"
check '[ $status -eq 127 ] && cmp -s "$work/kept" "$line/record"'
try "so is it where settings are printed" ./mam-run -r "$work/kept" -s -o "$work/unprinted" --print
check '[ $status -eq 0 ] && cmp -s "$work/kept" "$line/record" && [ ! -e "$work/unprinted" ] && ! grep -q PROCESS "$work/out"'
try "a message that is not taken is an error" sh -c './mam-run --help >/dev/full'
check '[ $status -eq 125 ] && [ -s "$work/err" ]'

try "help is printed" ./mam-run --help
check '[ $status -eq 0 ] && grep -q "^usage: mam-run" "$work/out"'
try "the variables are printed" ./mam-run --min 1K --vmm --print
check 'grep -qx "MAM_PRELOAD_MIN=1K" "$work/out" && grep -qx "MAM_SOURCE=vmm" "$work/out" && grep -q "^LD_PRELOAD=.*libmam_preload.so" "$work/out"'
try "another preloaded library stays in front" env LD_PRELOAD="$PWD/tests/preload/.libs/preload_interposer.so" ./mam-run --print
check 'grep -q "preload_interposer.so:.*libmam_preload.so" "$work/out"'
exit $failed
