#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the test suites of CuPy, Numba and PyTorch, unchanged, without libmam and with it, and compares.

    suites.py [--cupy DIR] [--numba] [--pytorch DIR] [--mam-run COMMAND] [--out DIR] [-- ARGUMENT OF PYTEST...]

  --cupy     a checkout of CuPy in the version that is installed; its tests/cupy_tests/cuda_tests and core_tests are
             run, with mam.cupy_allocator
  --numba    the tests that are installed with numba-cuda, numba.cuda.tests.cudadrv, with
             NUMBA_CUDA_MEMORY_MANAGER=mam.numba
  --pytorch  a checkout of PyTorch in the version that is installed; of its test/test_cuda.py those tests that have to
             do with memory, streams or graphs, with mam.torch.enable()
  --mam-run  the program mam-run, with options: with libmam the suites run under it, and their libraries are as they are

It needs a GPU, pytest, the package mam or mam-run, and the modules that a suite's tests import (numba-cuda's:
filecheck, cffi).  Each suite runs in a process of its own, twice: first as it is.  A test that passes then and does not
pass with libmam is named.  What a suite cannot do with an allocator that is not the library's own (its statistics, its
pools) is among these.  The results of pytest are in OUT (default: results), as JUnit's XML.
Exits with 0 if there is no such test, 1 if there is one or a suite did not run, 2 on a wrong argument.
"""
import argparse
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = {
    # name: (folders or files in the checkout, other arguments of pytest, variables with libmam)
    "cupy": (("tests/cupy_tests/cuda_tests", "tests/cupy_tests/core_tests"), (), {}),
    # importlib: else pytest takes numba.cuda.tests for tests of the package cuda, which is NVIDIA's
    "numba": ((), ("--import-mode=importlib", "--pyargs", "numba.cuda.tests.cudadrv"),
              {"NUMBA_CUDA_MEMORY_MANAGER": "mam.numba"}),
    "pytorch": (("test/test_cuda.py",), ("-k", "memory or graph or alloc or oom or stream"), {}),
}
VARIABLE = "MAM_TEST_SUITE"  # the library that is to use libmam


# ---- In pytest's process, as its plugin ------------------------------------------------------------------------------


def pytest_configure(config):
    """Before any test is imported."""
    del config
    suite = os.environ.get(VARIABLE)
    if suite == "cupy":
        import cupy
        import mam

        cupy.cuda.set_allocator(mam.cupy_allocator)
    elif suite == "pytorch":
        import mam

        mam.torch.enable()


if "pytest" in sys.modules:
    import pytest

    @pytest.fixture(scope="class")
    def initialize_from_pytest_config(request):
        """numba-cuda's test classes ask for it, but no conftest.py that has it is installed with them."""
        request.cls._dump_failed_filechecks = False


def pytest_report_header(config):
    """What the suite runs on."""
    del config
    return f"memory: {'libmam' if os.environ.get(VARIABLE) else 'as it is'}"


# ---- The runner ------------------------------------------------------------------------------------------------------


def results(file):
    """Each test's result, by its name: passed, failed or skipped.  Of several with a name, the worst."""
    found = {}
    for case in xml.etree.ElementTree.parse(file).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = max(found.get(name, "passed"), result, key=("passed", "skipped", "failed").index)
    return found


def missing(file):
    """The modules for want of which tests could not be imported."""
    errors = (case.find("error") for case in xml.etree.ElementTree.parse(file).iter("testcase"))
    return sorted({name for error in errors if error is not None and error.get("message") == "collection failure"
                   for name in re.findall(r"No module named '([\w.]+)'", error.text or "")})


def lost(plain, mam):
    """The tests that pass as they are and not with libmam, each with its result there."""
    return {name: mam.get(name, "missing") for name, result in sorted(plain.items())
            if result == "passed" and mam.get(name) != "passed"}


def run_once(name, folder, mam, mam_run, out, more):
    """Runs a suite; its results, or None if pytest came to no end.  mam_run: words of a command, or none."""
    paths, arguments, variables = SUITES[name]
    command = [*mam_run, sys.executable] if mam else [sys.executable]
    setting = dict(variables, **{VARIABLE: name}) if mam and not mam_run else {}
    file = os.path.join(out, f"{name}-{'mam' if mam else 'plain'}.xml")
    environment = {variable: value for variable, value in os.environ.items() if variable not in (VARIABLE, *variables)}
    python_path = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment.update(PYTHONPATH=os.pathsep.join(python_path), **setting)
    if os.path.exists(file):
        os.remove(file)
    with open(file[:-4] + ".log", "w", encoding="utf-8") as log:
        status = subprocess.call([*command, "-m", "pytest", "-q", "-p", "suites", f"--junitxml={file}",
                                  "--continue-on-collection-errors", *arguments, *more,
                                  *(os.path.join(folder, path) for path in paths)],
                                 env=environment, cwd=out, stdout=log, stderr=subprocess.STDOUT)
    if status not in (0, 1) or not os.path.exists(file):
        print(f"{name}: pytest ended with {status}; see {log.name}")
        return None
    for module in missing(file):
        print(f"{name}: tests were left out, because there is no module {module}")
    return results(file)


def run(name, folder, mam_run, out, more):
    """Runs a suite both ways; whether nothing was lost."""
    plain = run_once(name, folder, False, mam_run, out, more)
    mam = run_once(name, folder, True, mam_run, out, more)
    if plain is None or mam is None:
        return False
    for title, found in (("as it is", plain), ("with libmam", mam)):
        counts = {kind: sum(result == kind for result in found.values()) for kind in ("passed", "failed", "skipped")}
        print(f"{name} {title}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    without = lost(plain, mam)
    for test, result in without.items():
        print(f"{name}: {result} with libmam: {test}")
    return not without and "passed" in mam.values()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cupy", metavar="DIR", help="run CuPy's suite that is there")
    parser.add_argument("--numba", action="store_const", const=".", help="run numba-cuda's suite")
    parser.add_argument("--pytorch", metavar="DIR", help="run PyTorch's suite that is there")
    parser.add_argument("--mam-run", metavar="COMMAND", default="", help="run the suites under this mam-run")
    parser.add_argument("--out", metavar="DIR", default="results", help="where pytest's results go (default: results)")
    parser.add_argument("more", nargs="*", metavar="ARGUMENT", help="more arguments of pytest, after --")
    arguments = parser.parse_args()
    chosen = {name: os.path.abspath(folder) for name, folder in ((name, getattr(arguments, name)) for name in SUITES)
              if folder}
    if not chosen:
        parser.error("name a suite")
    for name, folder in chosen.items():
        for path in SUITES[name][0]:
            if not os.path.exists(os.path.join(folder, path)):
                parser.error(f"--{name} {folder}: there is no {path} in it")
    mam_run = shlex.split(arguments.mam_run)
    if mam_run and shutil.which(mam_run[0]) is None:
        parser.error(f"--mam-run: there is no program {mam_run[0]}")
    mam_run[:1] = [os.path.abspath(shutil.which(word)) for word in mam_run[:1]]
    for module in ("pytest",) if mam_run else ("pytest", "mam"):
        if importlib.util.find_spec(module) is None:
            parser.error(f"there is no module {module}")
    out = os.path.abspath(arguments.out)
    os.makedirs(out, exist_ok=True)
    good = [run(name, folder, mam_run, out, arguments.more) for name, folder in chosen.items()]
    print("PASS" if all(good) else "FAIL")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
