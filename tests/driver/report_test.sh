#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# What a linked program prints by itself: at exit, as MAM_REPORT says; about options that nobody knows.
set -u

program=tests/driver/report_program
[ -x $program ] || { echo "SKIP: $program was not built"; exit 77; }
failed=0
MAM_SOURCE=host
export MAM_SOURCE

# says NAME WORDS...: the output in $said has a line with each of the words, patterns of grep.
said=
says() {
  name=$1
  shift
  for words in "$@"; do
    printf '%s\n' "$said" | grep -q "$words" || { echo "FAILED: $name: nothing says \"$words\" in:"; printf '%s\n' "$said"; failed=1; }
  done
}
# lines NAME NUMBER: it has so many lines.
lines() {
  number=$(printf '%s' "$said" | grep -c '')
  [ "$number" -eq "$2" ] || { echo "FAILED: $1: $number lines, not $2:"; printf '%s\n' "$said"; failed=1; }
}

said=$($program leak 2>&1)
lines "without MAM_REPORT" 0

said=$(MAM_REPORT=stats $program clean 2>&1)
says "stats" 'mam: at exit: default pool of host memory: 5 allocations, 5 frees, 0 bytes in 0 blocks left'
lines "stats" 1

said=$(MAM_REPORT=leaks $program clean 2>&1)
says "leaks of a clean program" 'mam: at exit: every block was freed'
lines "leaks of a clean program" 1

said=$(MAM_REPORT=leaks $program leak 2>&1)
says "leaks" 'mam: at exit: 1051648 bytes in 4 blocks of a pool of host memory were not freed' \
  '1051648 bytes in 4 blocks, allocated at .*report_program'
lines "leaks" 2

said=$(MAM_REPORT=leaks $program destroy 2>&1)
says "leaks in a pool that was destroyed" 'mam: at exit: 4 blocks of 1051576 bytes were live when their pools were destroyed'
lines "leaks in a pool that was destroyed" 1

# In a forked child LeakSanitizer looks for threads of the parent, and may print that it did not find one.
said=$(ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" MAM_REPORT=stats $program fork 2>&1)
lines "a forked child" 1

said=$(MAM_REPORT=leaks $program silent 2>&1)
says "a program that allocates nothing" 'every block was freed'

said=$(MAM_REPORT=stats $program silent 2>&1)
says "stats of such a program" 'mam: at exit: there is no pool, and none has ended'
lines "stats of such a program" 1

said=$(MAM_REPORT=stats $program pool 2>&1)
says "stats of a pool that was destroyed" 'mam: at exit: other pools that had ended: 1 allocations, at most 1048576 bytes used'
lines "stats of a pool that was destroyed" 1

said=$(MAM_REPORT=stats $program refused 2>&1)
says "stats of a default pool that served nothing" 'mam: at exit: default pools that had ended: 0 allocations'
lines "stats of a default pool that served nothing" 1

said=$(MAM_REPORT=all $program clean 2>&1)
says "a value that is none" 'MAM_REPORT=all is not understood: expected none, stats, leaks'

said=$($program explain 2>&1)
says "explain" '2097152 bytes in 2 blocks, allocated at' \
  '3072 bytes in 3 small blocks; MAM_REPORT=leaks tells where they are allocated'

said=$(MAM_REPORT=leaks $program explain 2>&1)
says "explain with sites" '2100224 bytes in 5 blocks, allocated at'

said=$(MAM_SORCE=host MAM_LINGER=7 MAM_TEST_SMALL=1 $program clean 2>&1)
says "unknown options" 'mam: MAM_SORCE is no option of this library' 'mam: MAM_LINGER is no option of this library'
lines "unknown options" 2
said=$(MAM_SORCE='' MAM_LINGER='' $program clean 2>&1)
lines "unknown options that are empty" 0

said=$(MAM_LOG=verbose $program clean 2>&1)
says "MAM_LOG" 'MAM_LOG=verbose is not understood: expected none, error'

[ $failed -eq 0 ] && echo "ok: what a program prints by itself"
exit $failed
