#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# The examples.  Each code block of README.md is, word for word, the marked part of a file in this folder; README.md
# names each file; each one compiles without a warning, by the commands that README.md has; those in C and C++ run on
# plain host memory and print what their "prints:" lines say.  Those in CUDA C++ and Python are not run.
# usage: check_examples.sh    in a build folder, after make
# srcdir, CC, CFLAGS, CXX, NVCC, PKG_CONFIG and SANITIZE_FLAGS come from the environment.
set -u

top=$(cd "${srcdir:-.}" && pwd) || exit 99
here=$top/tests/examples
readme=$top/README.md
libraries=$PWD/lib/.libs
work=$(mktemp -d "${TMPDIR:-/tmp}/check_examples.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
missing=

fail() {
  echo "FAILED: $*"
  failed=1
}

# marked FILE: what stands between its marks.
marked() { sed -n '/README: begin/,/README: end/p' "$1" | sed '1d;$d'; }

# ---- README.md and the files -----------------------------------------------------------------------------------------

# Writes the n-th code block to $work/block.n, and for each a line "n LINE MARK" to $work/blocks: MARK is the comment on
# the line before the block.
split_readme() {
  awk -v work="$work" '
    /^ *```/ {
      if (inside) { inside = 0; close(block); next }
      inside = 1
      block = work "/block." ++number
      printf "" >block
      mark = before ~ /^<!-- .* -->$/ ? substr(before, 6, length(before) - 9) : ""
      print number, NR, mark >(work "/blocks")
      next
    }
    inside { print >block; next }
    { before = $0 }' "$readme"
}

# Each block is in a file, or its mark says why it is not.
check_blocks() {
  [ -s "$work/blocks" ] || fail "README.md has no code blocks"
  while read -r number line mark; do
    case $mark in
      "not run: "?*) ;;
      tests/examples/*)
        if [ ! -f "$top/$mark" ]; then
          fail "README.md:$line: there is no $mark"
        elif ! marked "$top/$mark" | diff - "$work/block.$number" >"$work/difference"; then
          fail "README.md:$line: the code block is not the marked part of $mark:"
          cat "$work/difference"
        fi
        ;;
      *) fail "README.md:$line: the line before the code block names no file of tests/examples" ;;
    esac
  done <"$work/blocks"
}

check_names() {
  for file in "$here"/*; do
    case $file in
      *~ | */check_examples.sh) ;;
      *) grep -Fq "tests/examples/${file##*/}" "$readme" || fail "README.md does not name tests/examples/${file##*/}" ;;
    esac
  done
  grep -Eo '\]\([^)#: ]+[#)]' "$readme" | sed 's/^](//; s/.$//' | sort -u >"$work/links"
  while read -r link; do
    [ -e "$top/$link" ] || fail "README.md: the link $link leads nowhere"
  done <"$work/links"
}

# ---- Compiling and running -------------------------------------------------------------------------------------------

# tool NAME COMMAND: what the commands of README.md find by that name.
tool() {
  printf '#!/bin/sh\nPATH="%s"\nexec %s "$@"\n' "$PATH" "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"
}

# The installed library is that of the build folder.
make_tools() {
  mkdir "$work/bin"
  static=
  [ -f "$libraries/libmam.so" ] || static=--static
  tool pkg-config "env -u PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_PATH='$PWD' $PKG_CONFIG $static \
    --define-variable=libdir='$libraries' --define-variable=includedir='$top/include'"
  tool cc "${CC:-cc} ${CFLAGS-} -Wall -Wextra -Werror"
  [ -z "${CXX-}" ] || tool c++ "$CXX -Wall -Wextra -Werror"
  [ -z "${NVCC-}" ] || tool nvcc "$NVCC -Werror all-warnings -Xcompiler -Wall,-Wextra -c"
}

# commands FILE SED: the marked commands of that file, for another example.  What they print goes to $work/output.
commands() {
  marked "$here/$1" | sed "$2" >"$work/commands"
  (cd "$work" && PATH=$work/bin:$PATH LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    sh -e commands) >"$work/output" 2>"$work/errors"
}

# succeeds FILE: the commands for it did, and complained of nothing.
succeeds() {
  [ "$2" -eq 0 ] && [ ! -s "$work/errors" ] && return
  fail "tests/examples/$1: status $2:"
  cat "$work/commands" "$work/output" "$work/errors"
  return 1
}

# prints FILE: each line of the output is as the file says, by a pattern of grep.
prints() {
  sed -n 's/^ \* prints: //p' "$here/$1" >"$work/expected"
  wrong=0 number=0
  [ -s "$work/expected" ] && [ "$(wc -l <"$work/expected")" -eq "$(wc -l <"$work/output")" ] || wrong=1
  while IFS= read -r pattern; do
    number=$((number + 1))
    sed -n "${number}p" "$work/output" | grep -qx -- "$pattern" || wrong=1
  done <"$work/expected"
  [ $wrong -eq 0 ] && { echo "ok: $1 compiles and runs"; return; }
  fail "tests/examples/$1 is to print:"
  cat "$work/expected"
  echo "and prints:"
  cat "$work/output"
}

check_c() {
  for file in "$here"/*.c; do
    name=$(basename "$file" .c)
    cp "$file" "$work" && commands calls.sh "s/calls/$name/g"
    succeeds "$name.c" $? && prints "$name.c"
  done
}

# A sanitizer's runtime is the C compiler's, which the C++ compiler may not have.
check_cxx() {
  [ -n "${CXX-}" ] || { missing="$missing a C++ compiler;"; return; }
  [ -z "${SANITIZE_FLAGS-}" ] || { missing="$missing a C++ compiler that is known to have the C compiler's sanitizers;"; return; }
  for file in "$here"/*.cc; do
    name=$(basename "$file" .cc)
    cp "$file" "$work" && commands calls.sh "s/^cc /c++ -std=c++17 /; s/calls\\.c/$name.cc/; s/calls/$name/g"
    succeeds "$name.cc" $? && prints "$name.cc"
  done
}

check_cuda() {
  [ -n "${NVCC-}" ] || { missing="$missing a CUDA compiler;"; return; }
  for file in "$here"/*.cu; do
    name=$(basename "$file" .cu)
    cp "$file" "$work" && commands heap.sh "s/heap/$name/g"
    succeeds "$name.cu" $? && echo "ok: $name.cu compiles"
  done
}

check_python() {
  command -v python3 >/dev/null || { missing="$missing python3;"; return; }
  for file in "$here"/*.py; do
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || fail "$file is no Python"
    # Python looks for modules beside the script first.
    module=$(basename "$file" .py)
    ! grep -Eq "^(import|from) .*\\b$module\\b" "$here"/*.py || fail "$file hides the module $module from the examples"
  done
}

split_readme
check_blocks
check_names
[ $failed -ne 0 ] || echo "ok: $(wc -l <"$work/blocks") code blocks of README.md are what is compiled here"
check_python
if [ ! -f "$libraries/libmam.so" ] && [ ! -f "$libraries/libmam.a" ]; then
  missing="$missing libmam in $libraries;"
elif [ -z "${PKG_CONFIG-}" ]; then
  missing="$missing pkg-config;"
else
  make_tools
  check_c
  check_cxx
  check_cuda
fi
[ $failed -eq 0 ] || exit 1
[ -z "$missing" ] || { echo "SKIP: not all examples were tried, for want of:${missing%;}; the rest is right"; exit 77; }
