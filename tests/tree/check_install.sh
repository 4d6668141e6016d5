#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Builds a program against the installed library with what pkg-config says, and runs it on plain host memory.  Of the
# static library's names a program can have all that libmam.so does not export.
# usage: check_install.sh DESTDIR PKGCONFIGDIR LIBDIR    CC, CFLAGS, NM and PKG_CONFIG from the environment
set -eu

work=$(mktemp -d "${TMPDIR:-/tmp}/check_install.XXXXXX")
trap 'rm -rf "$work"' EXIT

export PKG_CONFIG_PATH="$1$2" PKG_CONFIG_SYSROOT_DIR="$1"
flags=$("${PKG_CONFIG:-pkg-config}" --cflags --libs mam)
# Flags are split on purpose.
# shellcheck disable=SC2086
${CC:-cc} ${CFLAGS-} -o "$work/user" "$(dirname "$0")/installed_user.c" $flags
LD_LIBRARY_PATH="$1$3${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" MAM_SOURCE=host "$work/user"
echo "ok: a program builds against the installed library with: $flags"

archive=$1$3/libmam.a
[ -e "$archive" ] || exit 0
case " ${CFLAGS-} " in
  *" -flto"*) exit 0 ;; # ld -r cannot join what is not machine code yet
esac
map=$(dirname "$0")/../../lib/api/mam.map
sed -n '/global:/,/local:/s/^ *\([A-Za-z_0-9]*\);.*/\1/p' "$map" | LC_ALL=C sort >"$work/map"
# NM may bring a flag: split on purpose.  Names with __ are the compiler's.
# shellcheck disable=SC2086
${NM:-nm} -g --defined-only "$archive" | awk 'NF == 3 && $3 !~ /^__/ { print $3 }' | LC_ALL=C sort >"$work/archive"
if ! diff "$work/map" "$work/archive" >"$work/diff"; then
  echo "FAILED: the global names of libmam.a are not those of lib/api/mam.map (<: only the map, >: only the library)"
  cat "$work/diff"
  exit 1
fi
echo "ok: the global names of libmam.a are those of lib/api/mam.map"
