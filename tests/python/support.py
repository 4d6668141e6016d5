# SPDX-License-Identifier: BSD-2-Clause
"""What the tests of tools/python share."""
import ctypes
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ["MAM_TEST_SOURCE"]
BUILD = os.environ["MAM_TEST_BUILD"]
HAS_BRIDGE = os.path.exists(os.path.join(os.environ["LIBMAM_DIR"], "libmam_bridge.so"))
MIB = 1 << 20


def process(code, **environment):
    """Runs a program in a process of its own, with plain host memory unless it says otherwise."""
    variables = {**os.environ, "MAM_SOURCE": "host", **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)


class Case(unittest.TestCase):
    def says(self, code, **environment):
        """The lines that a program prints; it must succeed and complain of nothing."""
        done = process(code, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout.splitlines()


def malloc(size):
    """A block of the default pool."""
    from mam import _library

    pointer = ctypes.c_void_p()
    _library.check(_library.library().MAM_CudaMalloc(ctypes.byref(pointer), size))
    return pointer.value


def free(pointer):
    from mam import _library

    _library.check(_library.library().MAM_CudaFree(pointer))


def main():
    """Runs the tests of the calling program."""
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        print("SKIP: " + "; ".join(sorted({reason for _, reason in result.skipped})))
        sys.exit(77)
