# SPDX-License-Identifier: BSD-2-Clause
"""tools/pytorch/suites.py: what it counts as lost, and, where pytest is, that a suite runs with libmam and without it."""
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from support import SOURCE, main

sys.path.insert(0, os.path.join(SOURCE, "tools", "pytorch"))
import suites  # noqa: E402

PLAIN = """<testsuites><testsuite>
<testcase classname="a.B" name="stays"/>
<testcase classname="a.B" name="breaks"/>
<testcase classname="a.B" name="goes"/>
<testcase classname="a.B" name="is_skipped"/>
<testcase classname="a.B" name="never_worked"><failure message="no"/></testcase>
<testcase classname="a.B" name="twice"/><testcase classname="a.B" name="twice"><error/></testcase>
</testsuite></testsuites>"""
MAM = """<testsuites><testsuite>
<testcase classname="a.B" name="stays"/>
<testcase classname="a.B" name="breaks"><failure message="no"/></testcase>
<testcase classname="a.B" name="is_skipped"><skipped/></testcase>
<testcase classname="a.B" name="never_worked"><failure message="no"/></testcase>
<testcase classname="a.B" name="twice"/>
</testsuite></testsuites>"""

SUITE = """
import os
def test_that_passes(): pass
def test_that_needs_its_own_memory(): assert "IT_MEMORY" not in os.environ
def test_that_fails(): assert False
"""


class Suites(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_what_libmam_loses_is_named(self):
        plain, mam = (suites.results(self.write(name, text)) for name, text in (("plain", PLAIN), ("mam", MAM)))
        self.assertEqual(plain["a.B::twice"], "failed")
        self.assertEqual(suites.lost(plain, mam),
                         {"a.B::breaks": "failed", "a.B::goes": "missing", "a.B::is_skipped": "skipped"})

    def test_wrong_arguments_are_refused(self):
        wrong = {(): "name a suite", ("--cupy", self.folder): "there is no tests/cupy_tests/cuda_tests",
                 ("--numba", "--mam-run", "no-such-program -x"): "there is no program no-such-program"}
        for arguments, text in wrong.items():
            done = subprocess.run([sys.executable, suites.__file__, *arguments], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stdout)

    def run_suite(self, *more, paths=("tests",), arguments=(), mam_run=()):
        """Whether a suite of a library that is not there lost nothing, and what was said."""
        self.write("tests/test_it.py", SUITE)
        out = os.path.join(self.folder, "out")
        os.makedirs(out, exist_ok=True)
        with unittest.mock.patch.dict(suites.SUITES, {"it": (paths, arguments, {"IT_MEMORY": "mam"})}):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                return suites.run("it", self.folder, mam_run, out, more), said.getvalue()

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_suite_runs_both_ways(self):
        good, said = self.run_suite()
        self.assertFalse(good)
        self.assertIn("it as it is: 2 passed, 1 failed, 0 skipped\nit with libmam: 1 passed, 2 failed, 0 skipped\n", said)
        self.assertEqual(said.count("with libmam: "), 2)
        self.assertRegex(said, "failed with libmam: .*test_that_needs_its_own_memory\n")
        self.assertTrue(self.run_suite("-k", "passes")[0])

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_suite_runs_under_another_program(self):
        """Which alone makes the difference: the libraries keep their own memory."""
        self.assertTrue(self.run_suite("-k", "passes or memory", mam_run=("env",))[0])
        said = self.run_suite("-k", "passes or memory", mam_run=("env", "IT_MEMORY=other"))[1]
        self.assertRegex(said, "failed with libmam: .*test_that_needs_its_own_memory\n")
        self.assertEqual(said.count("with libmam: "), 2)

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_module_that_is_missing_is_named(self):
        self.write("tests/test_more.py", "import nobody.has.this\n")
        self.assertIn("it: tests were left out, because there is no module nobody\n", self.run_suite()[1])

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_installed_suite_may_lie_in_a_package_of_another_name(self):
        """As numba.cuda.tests, beside NVIDIA's package cuda; numba is no package with a file __init__.py there."""
        for package in ("cuda", "like/cuda", "like/cuda/tests", "like/cuda/tests/cudadrv"):
            self.write(f"site/{package}/__init__.py", "import cuda\n")
        self.write("site/like/cuda/tests/cudadrv/test_it.py", SUITE)
        arguments = [argument.replace("numba.", "like.") for argument in suites.SUITES["numba"][1]]
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": os.path.join(self.folder, "site")}):
            good, said = self.run_suite("-k", "passes", paths=(), arguments=arguments)
        self.assertTrue(good, said)


if __name__ == "__main__":
    main()
