#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# The symbols that libmam.so exports are those of lib/api/mam.map, and those that the headers declare with MAM_API; and the
# library needs neither CUDA nor libbsd when it is loaded.  A program whose kernels have another layout of heaps does not
# start.
set -u

srcdir=${srcdir:-.}
library=lib/.libs/libmam.so
[ -e "$library" ] || { echo "SKIP: $library was not built (--disable-shared)"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/check_symbols.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

sed -n '/global:/,/local:/s/^ *\([A-Za-z_0-9]*\);.*/\1/p' "$srcdir/lib/api/mam.map" | LC_ALL=C sort >"$work/map"
cat "$srcdir/include/mam.h" "$srcdir"/include/mam/*.h | grep '^MAM_API ' | sed 's/ *(.*//; s/.*[ *]//' | LC_ALL=C sort >"$work/header"
# The version node itself (kind A) is no function.  NM may bring a flag: split on purpose.
# shellcheck disable=SC2086
${NM:-nm} -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort >"$work/library"

compare() {
  if diff "$work/$1" "$work/$2" >"$work/diff"; then
    echo "ok: $3"
  else
    echo "FAILED: $3 (<: only the former, >: only the latter)"
    cat "$work/diff"
    failed=1
  fi
}

[ -s "$work/map" ] || { echo "FAILED: no function found in lib/api/mam.map"; exit 1; }
compare library map "libmam.so exports what lib/api/mam.map names"
# One symbol is between the project's own libraries, another one is what NVTX looks for.
grep -vx -e mam_client -e InitializeInjectionNvtx2 "$work/map" >"$work/public"
compare header public "the headers declare what lib/api/mam.map names"

if ! LC_ALL=C readelf -d "$library" >"$work/dynamic"; then
  echo "FAILED: readelf cannot read $library"
  exit 1
fi
if grep -i 'NEEDED.*\(cuda\|nvidia\|libbsd\)' "$work/dynamic"; then
  echo "FAILED: libmam.so needs these when it is loaded"
  failed=1
else
  echo "ok: libmam.so needs neither CUDA nor libbsd"
fi
# shellcheck disable=SC2086
if ! ${NM:-nm} -D --defined-only "$library" | grep -q ' MAM_HeapHandle@@MAM_HEAP_LAYOUT_[1-9]'; then
  echo "FAILED: the version of MAM_HeapHandle is not the layout's number"
  failed=1
fi
# Such a program was linked with a library of that layout.
old=$work/old
mkdir "$old"
echo 'MAM_HEAP_LAYOUT_0 { global: MAM_HeapHandle; local: *; };' >"$old/map"
echo 'int MAM_HeapHandle(void); int MAM_HeapHandle(void) { return 0; }' >"$old/library.c"
echo 'int MAM_HeapHandle(void); int main(void) { return MAM_HeapHandle(); }' >"$old/program.c"
soname=$(LC_ALL=C readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
if ! ${CC:-cc} -shared -fPIC -Wl,-soname,"$soname" -Wl,--version-script="$old/map" -o "$old/$soname" "$old/library.c" ||
  ! ${CC:-cc} -o "$old/program" "$old/program.c" "$old/$soname" || ! LD_LIBRARY_PATH=$old "$old/program"; then
  echo "FAILED: a program of an older layout cannot be built"
  failed=1
elif LD_LIBRARY_PATH=$PWD/lib/.libs "$old/program" 2>"$work/refusal"; then
  echo "FAILED: a program of an older layout starts"
  failed=1
elif ! grep -q 'MAM_HEAP_LAYOUT_0' "$work/refusal"; then
  echo "FAILED: a program of an older layout fails for another reason:"
  cat "$work/refusal"
  failed=1
else
  echo "ok: a program of an older layout does not start: $(tail -n 1 "$work/refusal")"
fi
exit $failed
