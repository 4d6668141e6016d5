#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Installs into a temporary prefix, and builds and runs programs of CMake against it by find_package(mam).
# usage: check_cmake.sh    in a build folder, after make; CC, CXX, CFLAGS and SANITIZE_FLAGS from the environment
set -u

command -v cmake >/dev/null || { echo "SKIP: cmake is not installed"; exit 77; }
build=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/check_cmake.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAILED: $*"
  failed=1
}

# The make that runs this test has its own jobs and variables, which are none of this one's.
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
(cd "$build" && make install DESTDIR="$work/staged") >"$work/install.log" 2>&1 || {
  cat "$work/install.log"
  echo "FAILED: make install DESTDIR=$work/staged"
  exit 1
}
# Moved to where no configure has heard of it.
mv "$work/staged" "$work/another"
config=$(find "$work/another" -name mamConfig.cmake)
[ -n "$config" ] || { echo "FAILED: make install installed no mamConfig.cmake"; exit 1; }
libdir=$(cd "$(dirname "$config")/../.." && pwd)
prefix=$work/another$(sed -n 's/^prefix = //p' Makefile)

# A sanitizer's runtime is the C compiler's, which the C++ compiler may not have.
languages=C
if [ -n "${CXX-}" ] && [ -z "${SANITIZE_FLAGS-}" ]; then languages='C CXX'; fi

mkdir "$work/source"
cp "${srcdir:-.}/tests/tree/installed_user.c" "$work/source/user.c"
sed 's/NULL;/nullptr;/' "$work/source/user.c" >"$work/source/user.cpp"
cat >"$work/source/CMakeLists.txt" <<CODE
cmake_minimum_required(VERSION 3.10)
project(user $languages)
find_package(mam \${WANTED} REQUIRED)
find_package(mam \${WANTED} REQUIRED) # a second library of the same program may ask as well
foreach(language $languages)
  string(REPLACE CXX cpp suffix \${language})
  string(TOLOWER \${suffix} suffix)
  add_executable(user_\${suffix} user.\${suffix})
  target_link_libraries(user_\${suffix} mam::mam)
endforeach()
CODE

# Looking for the library needs no compiler.
mkdir "$work/look"
cat >"$work/look/CMakeLists.txt" <<'CODE'
cmake_minimum_required(VERSION 3.10)
project(look NONE)
find_package(mam ${WANTED} REQUIRED)
CODE

# configure FOLDER NAME [FLAG...]: cmake itself.
configure() {
  folder=$1 name=$2
  shift 2
  cmake -S "$work/$folder" -B "$work/$name" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="${CFLAGS-}" "$@" \
    >"$work/log" 2>&1
}

# serves NAME [FLAG...]: the programs build, run, and are of the installed library.
serves() {
  if configure source "$@" && cmake --build "$work/$1" >>"$work/log" 2>&1 &&
    MAM_SOURCE=host "$work/$1/user_c" >>"$work/log" 2>&1 &&
    { [ "$languages" = C ] || MAM_SOURCE=host "$work/$1/user_cpp" >>"$work/log" 2>&1; }; then
    echo "ok: $1"
  else
    cat "$work/log"
    fail "$1"
  fi
}

# accepts NAME [FLAG...]: find_package finds it.
accepts() {
  if configure look "$@"; then
    echo "ok: $1"
  else
    cat "$work/log"
    fail "$1"
  fi
}

# refuses NAME TEXT [FLAG...]: cmake fails, and says why.
refuses() {
  name=$1 text=$2
  shift 2
  if configure look "$name" "$@"; then
    fail "$name: cmake found what it was not to find"
  elif ! tr -s ' \n' ' ' <"$work/log" | grep -Fq "$text"; then
    cat "$work/log"
    fail "$name: cmake does not say: $text"
  else
    echo "ok: $name"
  fi
}

version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$libdir/cmake/mam/mamConfigVersion.cmake")
series=$(echo "$version" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
next=${series%.*}.$((${series#*.} + 1))
serves any_version
accepts this_version -DWANTED="$version"
accepts earlier_patch -DWANTED="$series"
accepts exact_version -DWANTED="$version;EXACT"
accepts version_range -DWANTED="$series...$next"
refuses later_minor_version "$version" -DWANTED="$next"
refuses later_major_version "$version" -DWANTED=99
accepts optional_component -DWANTED="OPTIONAL_COMPONENTS;other"
refuses component "no components, and so no other" -DWANTED="COMPONENTS;other"
refuses range_before_it "$version" -DWANTED="0.0.1...<$version"

# The library that is linked is the one beside the files of CMake.
if [ -e "$libdir/libmam.so" ]; then
  LC_ALL=C ldd "$work/any_version/user_c" | grep -Fq "$libdir/libmam.so" ||
    fail "the program does not load $libdir/libmam.so"
  rm "$libdir"/libmam.so*
  [ ! -e "$libdir/libmam.a" ] || serves static_library
fi
rm -f "$libdir"/libmam.a
refuses missing_library "there is neither libmam.so nor libmam.a in $libdir"
exit $failed
