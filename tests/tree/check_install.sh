#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Builds a program against the installed library with what pkg-config says, and runs it on plain host memory.
# usage: check_install.sh DESTDIR PKGCONFIGDIR LIBDIR    CC, CFLAGS and PKG_CONFIG from the environment
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
