#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# What tools/quickstart says before it builds: about a folder in which nothing can be built, and without a network.
set -u

srcdir=${srcdir:-.}
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
failed=0

# tree DIR: a folder with the script in it, and nothing to build.
tree() {
  mkdir -p "$1/tools" && cp "$srcdir/tools/quickstart" "$1/tools/"
}
# says NAME WORDS: the output in $said has them, and the status in $status is a failure's.
said=
says() {
  [ "$status" -ne 0 ] || { echo "FAILED: $1: it succeeded"; failed=1; }
  case $said in
    *"$2"*) ;;
    *) echo "FAILED: $1: nothing says \"$2\":"; echo "$said"; failed=1 ;;
  esac
}

tree "$folder/with a space"
said=$(sh "$folder/with a space/tools/quickstart" run 2>&1)
status=$?
says "a path with a space" "the path of this folder has a space"
[ ! -e "$folder/with a space/build" ] || { echo "FAILED: something was made in it"; failed=1; }

# A machine that lacks a package, and whose apt-get reaches nobody.
tree "$folder/plain"
mkdir "$folder/bin"
printf '#!/bin/sh\nexit 1\n' >"$folder/bin/pkg-config"
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1" = -v ] || exec "$@"\n' >"$folder/bin/sudo"
printf '#!/bin/sh\necho "Temporary failure resolving mirror.example" >&2\nexit 100\n' >"$folder/bin/apt-get"
chmod +x "$folder"/bin/*
said=$(PATH=$folder/bin:$PATH sh "$folder/plain/tools/quickstart" run 2>&1)
status=$?
says "without a network" "there is no network"
says "without a network" "FAILED: installing"

[ $failed -eq 0 ] && echo "ok: tools/quickstart refuses what it cannot do, and says why"
exit $failed
