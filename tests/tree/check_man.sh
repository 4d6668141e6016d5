#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Manual pages: one for each public function and each function of a page is public, one for each tool, every
# environment variable with its default in mam(7), and nothing that mandoc warns about.
# TOOLS, the installed programs, comes from the environment.
set -u

srcdir=${srcdir:-.}
failed=0
fail() {
  echo "FAILED: $*"
  failed=1
}

functions=$(sed -n '/global:/,/local:/s/^ *\([A-Za-z_0-9]*\);.*/\1/p' "$srcdir/lib/api/mam.map" |
  grep -vx -e mam_client -e InitializeInjectionNvtx2) # between the project's own libraries; what NVTX looks for
[ -n "$functions" ] || { echo "FAILED: no function found in lib/api/mam.map"; exit 1; }
for function in $functions; do
  page=$srcdir/man/$function.3
  if [ ! -f "$page" ]; then
    fail "$function has no page man/$function.3"
  elif ! grep -Eq "^\.(Nm|Fn|Fo) $function( |\$)" "$page"; then
    fail "man/$function.3 does not document $function"
  fi
done
# What kernels call stands in device.cuh and warp.cuh, and what their host calls in replace.cuh; a function may share
# another one's page, which its own names then (.so).
device_functions=$(sed -n 's/^\(template <[^>]*> \)\{0,1\}static __device__ .*[ *]\(mam_[a-z_]*\)(.*[;,]$/\2/p' \
  "$srcdir/include/mam/device.cuh" "$srcdir/include/mam/warp.cuh" | sort -u)
[ -n "$device_functions" ] || fail "no function found in device.cuh and warp.cuh"
replace_functions=$(sed -n 's/^static inline .*[ *]\(mam_replace_[a-z_]*\)(.*;$/\1/p' "$srcdir/include/mam/replace.cuh")
[ -n "$replace_functions" ] || fail "no function found in replace.cuh"
device_functions="$device_functions
$replace_functions"
for function in $device_functions; do
  page=$srcdir/man/$function.3
  [ ! -f "$page" ] || page=$srcdir/man/$(sed 's|^\.so man3/||;t;s|.*|'"$function"'.3|;q' "$page")
  if [ ! -f "$page" ]; then
    fail "$function has no page man/$function.3"
  elif ! grep -Eq "^\.(Fn|Fo) $function( |\$)" "$page" || ! grep -Eq "^\.Nm $function( |\$)" "$page"; then
    fail "man/$function.3 does not document $function"
  fi
done
for page in "$srcdir"/man/*.3; do
  name=$(basename "$page" .3)
  printf '%s\n' "$functions" "$device_functions" | grep -qx "$name" || fail "man/$name.3 documents no public function"
done
for tool in ${TOOLS-}; do
  [ -f "$srcdir/man/$tool.1" ] || fail "$tool has no page man/$tool.1"
done

# A row of the table is: OPTION(name, kind, "default", "values", "help"); in mam(7), the name and the default on a line,
# the values on the next.
options=$(tr '\n' ' ' <"$srcdir/lib/base/options.def" |
  grep -Eo 'OPTION\(MAM_[A-Z_]+, *[a-z]+, *"[^"]*", *"[^"]*"' |
  sed 's/OPTION(\([A-Z_]*\), *[a-z]*, *"\([^"]*\)", *"\([^"]*\)"/\1 , No default \2: \3/')
[ -n "$options" ] || fail "no option found in lib/base/options.def"
told=$(sed -n '/^\.It Ev MAM_[A-Z_]* , No default /{s/^\.It Ev //;N;s/\n/: /;s/:$//;p;}' "$srcdir/man/mam.7")
while read -r row; do
  printf '%s\n' "$told" | grep -Fqx "$row" ||
    fail "mam(7) does not have the name, default and values of lib/base/options.def: $row"
done <<END
$options
END
# The header's constants stand there as well.
unknown=$(grep -Eo 'MAM_[A-Z]+(_[A-Z]+)*' "$srcdir/man/mam.7" | sort -u | while read -r name; do
  echo "$options" | grep -q "^$name " || grep -q "$name" "$srcdir/include/mam.h" || echo "$name"
done)
[ -z "$unknown" ] || fail "mam(7) speaks of what is no option and not in mam.h: $unknown"

if command -v mandoc >/dev/null 2>&1; then
  (cd "$srcdir/man" && grep -L '^\.so ' -- *.[1-9] | xargs mandoc -T lint -W warning) || fail "mandoc -T lint has warnings"
elif [ $failed -eq 0 ]; then
  echo "SKIP: mandoc is not installed, so the pages' language was not checked; the rest is right"
  exit 77
fi
[ $failed -eq 0 ] && echo "ok: $(echo "$functions" | wc -l) functions, the tools and the options have their pages"
exit $failed
