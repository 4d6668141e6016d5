# SPDX-License-Identifier: BSD-2-Clause
"""mam-run and mam-bench of this package, as commands."""
import os
import sys
from typing import NoReturn

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib")


def _become(name: str) -> NoReturn:
    program = os.path.join(_FOLDER, name)
    if not os.path.exists(program):
        sys.exit(f"{name}: this package was built without it: there is no {program}")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program}: {error.strerror}")


def run() -> NoReturn:
    """mam-run(1)."""
    _become("mam-run")


def bench() -> NoReturn:
    """mam-bench(1), which is linked with the libmam.so beside it."""
    others = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = _FOLDER + (f":{others}" if others else "")
    _become("mam-bench")
