#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# The functions that libmam_preload exports are those of its table, of its map and of its manual page; it needs no CUDA;
# and mam-run's options, its help and its page agree.
set -u

srcdir=${srcdir:-.}
library=lib/.libs/libmam_preload.so
[ -e "$library" ] || { echo "SKIP: $library was not built"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/check_preload.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

compare() {
  if [ -s "$work/$1" ] && diff "$work/$1" "$work/$2" >"$work/diff"; then
    echo "ok: $3"
  else
    echo "FAILED: $3 (<: only the former, >: only the latter)"
    cat "$work/diff"
    failed=1
  fi
}

# What is not in front of a function of the driver.
others='^(dlsym|mam_driver_detour|_exit|_Exit|GLIBC_.*|MAM_PRELOAD)$'
tr '\n' ' ' <"$srcdir/lib/preload/preload_table.def" | sed 's/\*\///g' | grep -Eo '(HOOK|AGAIN)\(cu[A-Za-z0-9_]+' |
  sed 's/.*(//' | LC_ALL=C sort >"$work/table"
sed -n '/global:/,/local:/s/^ *\([A-Za-z_0-9]*\);.*/\1/p' "$srcdir/lib/preload/preload.map" | grep -Ev "$others" |
  LC_ALL=C sort >"$work/map"
# NM may bring a flag: split on purpose.
# shellcheck disable=SC2086
${NM:-nm} -D --defined-only "$library" | awk '{ sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u >"$work/exported"
grep -Ev "$others" "$work/exported" >"$work/library"
sed -n '/^\.Ss What is served/,/^Everything else/p' "$srcdir/man/mam-run.1" |
  grep -Eo '^\.(Po )?Fn cu[A-Z][A-Za-z0-9_]*' | sed 's/^.*Fn //' | LC_ALL=C sort -u >"$work/page"

compare library table "libmam_preload.so exports what lib/preload/preload_table.def names"
compare map table "lib/preload/preload.map names what the table names"
compare page table "mam-run(1) names what the table names"
for name in dlsym mam_driver_detour; do
  grep -qx "$name" "$work/exported" || { echo "FAILED: $name is not exported"; failed=1; }
done

if LC_ALL=C readelf -d "$library" | grep -i 'NEEDED.*\(cuda\|nvidia\)'; then
  echo "FAILED: libmam_preload.so needs these when it is loaded"
  failed=1
fi

# It looks for libmam beside itself alone, not in the folder that it was built in.
# shellcheck disable=SC2016
if LC_ALL=C readelf -d "$library" | grep -i 'R.*PATH' | grep -qv '\[\$ORIGIN\]'; then
  echo "FAILED: libmam_preload.so looks for libraries elsewhere than beside itself"
  failed=1
fi

# Options: in the program's table, in its help, in the page's synopsis and list.
grep -Eo '^ +\{"--[a-z-]+"' "$srcdir/tools/mam-run.c" | grep -Eo -- '--[a-z-]+' | LC_ALL=C sort -u >"$work/program"
./mam-run --help | grep -Eo -- '--[a-z-]+' | LC_ALL=C sort -u >"$work/help"
grep -E '^\.It Fl|^\.Fl' "$srcdir/man/mam-run.1" | grep -Eo ' -[a-z-]+' | sed 's/^ /-/' | LC_ALL=C sort -u >"$work/options"
compare program help "mam-run --help names the options that mam-run has"
compare options help "mam-run(1) names the same"
exit $failed
