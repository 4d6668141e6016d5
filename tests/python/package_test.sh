#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Builds the Python package (tools/python) on the libraries of this build, installs the wheel into a folder, and uses it
# from there.  Nothing comes from the network.
# usage: package_test.sh    in a build folder, after make; PYTHON, CXX and SANITIZE_FLAGS from the environment
set -u

[ -z "${SANITIZE_FLAGS-}" ] || { echo "SKIP: a sanitizer's runtime is not in Python"; exit 77; }
[ -f lib/.libs/libmam.so.0 ] || { echo "SKIP: libmam is not built as a shared library"; exit 77; }
source=$(cd "${srcdir:-.}" && pwd) build=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/package_test.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

# The first Python that can make a wheel by itself.
python=''
for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
  [ -n "$python" ] || ! "$candidate" - <<'CODE' 2>/dev/null || python=$candidate
import sys
import setuptools
import pip
if sys.version_info < (3, 9) or int(setuptools.__version__.split(".")[0]) < 63:
    sys.exit(1)
try:
    import setuptools.command.bdist_wheel
except ImportError:
    import wheel.bdist_wheel
CODE
done
[ -n "$python" ] || { echo "SKIP: no Python 3.9 with pip, setuptools 63 and wheel"; exit 77; }
unset LD_PRELOAD PYTHONPATH LIBMAM_DIR LIBMAM_BUILD MAKEFLAGS MFLAGS MAKELEVEL
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

fail() {
  echo "FAILED: $*"
  failed=1
}

# says NAME STATUS TEXT: the last command ended so (0, or not), and its output has the text.
says() {
  if [ "$2" -eq 0 ] && [ "$status" -ne 0 ] || [ "$2" -ne 0 ] && [ "$status" -eq 0 ]; then
    fail "$1: status $status"
    cat "$work/log"
  elif ! grep -Fq -- "$3" "$work/log"; then
    fail "$1: nothing says: $3"
    cat "$work/log"
  else
    echo "ok: $1"
  fi
}

# tree NAME: what the package is built from.
tree() {
  mkdir -p "$work/$1/tools"
  cp -R "$source/tools/python" "$work/$1/tools/"
  chmod -R u+w "$work/$1"
  rm -rf "$work/$1/tools/python/build" "$work/$1/tools/python/libmam.egg-info"
  cp "$source/configure.ac" "$work/$1/"
  cp -R "$source/include" "$work/$1/"
}
# wheel NAME [VARIABLE=VALUE...]: builds one.
wheel() {
  folder=$1
  shift
  env "$@" "$python" -m pip wheel --no-index --no-deps --no-build-isolation --wheel-dir "$work/wheels" \
    "$work/$folder/tools/python" >"$work/log" 2>&1
  status=$?
}

tree whole
wheel whole LIBMAM_BUILD="$build"
says "a wheel is built" 0 "Successfully built libmam"
file=$(find "$work/wheels" -name '*.whl' 2>/dev/null)
version=$(sed -n 's/^AC_INIT(\[libmam\], \[\([^]]*\)\].*/\1/p' "$source/configure.ac")
case $(basename "$file") in
libmam-$version-py3-none-linux_*.whl) echo "ok: it is for any Python on this platform" ;;
*) fail "the wheel is $file" ;;
esac

"$python" -m pip install --no-index --no-deps --target "$work/site" "$file" >"$work/log" 2>&1
status=$?
says "it is installed" 0 "Successfully installed libmam-$version"

# use CODE: a program of the installed package.
use() {
  (cd "$work" && env PYTHONPATH="$work/site" MAM_SOURCE=host "$python" -c "$1") >"$work/log" 2>&1
  status=$?
}
use 'import mam; mam.reinitialize(limit="16M"); print(mam.statistics().limit_bytes, mam.__file__)'
says "it has the library" 0 "16777216 $work/site/mam/__init__.py"
use 'import mam_torch; print(mam_torch.enable.__module__)'
says "the former name is there" 0 "mam.torch"
if [ -n "${CXX-}" ]; then
  use 'import mam.torch; print(mam.torch.graph_pools(), "graph pools")'
  says "it has the bridge" 0 "0 graph pools"
fi
[ -f "$work/site/mam/py.typed" ] || fail "it has no py.typed"
for program in mam-bench $([ ! -f mam-run ] || echo mam-run); do
  PYTHONPATH=$work/site "$work/site/bin/$program" --version >"$work/log" 2>&1
  status=$?
  says "it has $program" 0 "$program $version"
done
if [ -f mam-run ]; then
  # shellcheck disable=SC2016 # for the inner shell
  PYTHONPATH=$work/site "$work/site/bin/mam-run" sh -c 'echo "$LD_PRELOAD"' >"$work/log" 2>&1
  status=$?
  says "its mam-run preloads its library" 0 "$work/site/mam/_lib/libmam_preload.so"
fi

# The library's own build, by stand-ins for configure and make's work.
tree built
cat >"$work/built/configure" <<END
#!/bin/sh
echo "\$@" >"$work/configured"
mkdir -p lib/.libs && cp "$build/lib/.libs/libmam.so.0" lib/.libs/
printf 'all:\\n\\tcp "$build/mam-run" .; touch made\\n' >Makefile
END
chmod +x "$work/built/configure"
rm -rf "$work/wheels"
wheel built
says "the package builds the library" 0 "Successfully built libmam"
grep -q -- --with-cuda=no "$work/configured" || fail "it was not configured without CUDA"
printf '#!/bin/sh\nexit 1\n' >"$work/built/configure"
rm -rf "$work/built/tools/python/build"
wheel built
says "a failing configure ends the build" 1 "configuring failed"

rm -rf "$work/whole/configure.ac" "$work/wheels"
wheel whole LIBMAM_BUILD="$build"
says "without the sources it says where they are" 1 "build from a clone of the repository"
tree other
wheel other LIBMAM_BUILD="$work/nowhere"
says "without a library it says which is missing" 1 "there is no $work/nowhere/lib/.libs/libmam.so.0"
exit $failed
