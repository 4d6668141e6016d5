# SPDX-License-Identifier: BSD-2-Clause
"""Builds libmam by the repository's own build and puts it into the package.

The environment: LIBMAM_BUILD, a folder in which libmam is built already; CXX, the C++ compiler of the bridge."""
import os
import re
import shutil
import subprocess
import sys

from setuptools import Command, Distribution, setup
from setuptools.command.build import build

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # of setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BRIDGE = ("mam_cupy.cc", "mam_torch.cc")


def stop(text):
    raise SystemExit(f"libmam: {text}")


def version():
    try:
        with open(os.path.join(TOP, "configure.ac"), encoding="utf-8") as file:
            return re.search(r"^AC_INIT\(\[libmam\], \[([^]]*)\]", file.read(), re.MULTILINE)[1]
    except OSError:
        stop(f"the library's sources are not in {TOP}: build from a clone of the repository, by "
             "'pip install tools/python' there")


def run(what, command, folder):
    print(f"libmam: {what}: {' '.join(command)}", flush=True)
    try:
        status = subprocess.call(command, cwd=folder)
    except FileNotFoundError:
        stop(f"{what}: there is no {command[0]}; 'tools/quickstart run' in the repository installs what is missing")
    if status != 0:
        stop(f"{what} failed; 'tools/quickstart run' in the repository installs what is missing, and says what it cannot")


def processors():
    return len(os.sched_getaffinity(0))


class build_libmam(Command):
    """The libraries and programs that the package carries, in mam/_lib."""

    description = "build libmam and put it into the package"
    user_options = []

    def initialize_options(self):
        self.build_lib = self.build_temp = None

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))
        self.target = os.path.join(os.path.abspath(self.build_lib), "mam", "_lib")

    def run(self):
        folder = self.make()
        os.makedirs(self.target, exist_ok=True)
        self.take(folder, "lib/.libs/libmam.so.0", needed=True)
        self.take(folder, "lib/.libs/libmam_preload.so")
        self.take(folder, "mam-run", executable=True)
        self.take(folder, ".libs/mam-bench", executable=True) or self.take(folder, "mam-bench", executable=True)
        self.bridge()

    def make(self):
        """The folder in which libmam is built."""
        folder = os.environ.get("LIBMAM_BUILD")
        if folder:
            return os.path.abspath(folder)
        if not os.path.exists(os.path.join(TOP, "configure")):
            run("making configure", ["autoreconf", "-fi"], TOP)
        if os.path.exists(os.path.join(TOP, "config.status")):
            folder = TOP  # built in the tree itself, which rules out any other folder
        else:
            folder = os.path.join(os.path.abspath(self.build_temp), "libmam")
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(os.path.join(folder, "Makefile")):
            run("configuring", [os.path.join(TOP, "configure"), "--quiet", "--with-cuda=no", "--disable-static",
                                "--disable-dependency-tracking"], folder)
        run("building", ["make", f"-j{processors()}"], folder)
        return folder

    def take(self, folder, name, needed=False, executable=False):
        """Copies a file of the build; what its name links to."""
        source = os.path.join(folder, name)
        if not os.path.exists(source):
            if needed:
                stop(f"there is no {source}" + (" (--disable-shared?)" if name.endswith(".so.0") else ""))
            return False
        target = os.path.join(self.target, os.path.basename(name))
        shutil.copyfile(source, target)
        os.chmod(target, 0o755 if executable or ".so" in name else 0o644)
        if shutil.which("strip"):
            subprocess.call(["strip", "-g", target])
        return True

    def bridge(self):
        """What CuPy and PyTorch call.  Without a C++ compiler the package is without it, and says so where it is needed."""
        compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
        if compiler is None:
            print("libmam: there is no C++ compiler: CuPy and PyTorch will not find libmam_bridge.so", file=sys.stderr)
            return
        # Without -static-libgcc: CuPy and PyTorch catch exceptions of this library, so all need the same libgcc.
        run("building the bridge", [
            *compiler.split(), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-I{os.path.join(TOP, 'include')}", "-o", os.path.join(self.target, "libmam_bridge.so"),
            *(os.path.join(HERE, "bridge", name) for name in BRIDGE), os.path.join(self.target, "libmam.so.0"),
            "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs",
        ], HERE)

    def get_outputs(self):
        return [os.path.join(self.target, name) for name in os.listdir(self.target)] if os.path.isdir(self.target) else []

    def get_source_files(self):
        return [os.path.join("bridge", name) for name in (*BRIDGE, "bridge.h")]


class build_with_libmam(build):
    sub_commands = [*build.sub_commands, ("build_libmam", None)]


class PlatformDistribution(Distribution):
    """Of this platform, though no file is a module of C."""

    def has_ext_modules(self):
        return True


commands = {"build": build_with_libmam, "build_libmam": build_libmam}
if bdist_wheel is not None:

    class wheel_for_any_python(bdist_wheel):
        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    commands["bdist_wheel"] = wheel_for_any_python

setup(version=version(), distclass=PlatformDistribution, cmdclass=commands)
