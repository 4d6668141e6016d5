# SPDX-License-Identifier: BSD-2-Clause
"""The package by itself, on plain host memory and over the fake driver."""
import ctypes
import os
import re
import subprocess
import tempfile
import threading
import unittest

os.environ["MAM_SOURCE"] = "host"

import mam  # noqa: E402
from mam import _library  # noqa: E402
from support import BUILD, HERE, MIB, SOURCE, Case, free, main, malloc, process  # noqa: E402


class Pool(unittest.TestCase):
    """One process for all, with pools on host memory."""

    def setUp(self):
        mam.reinitialize(limit="100%")

    def test_without_a_pool_all_is_zero(self):
        _library.check(_library.library().MAM_Destroy())
        self.assertEqual(set(mam.statistics()), {0})
        self.assertIsNone(mam.report())
        self.assertIsNone(mam.explain(1))
        mam.trim()
        mam.reset_peaks()

    def test_statistics_count_blocks(self):
        blocks = [malloc(size) for size in (1 * MIB, 2 * MIB)]
        now = mam.statistics()
        self.assertEqual((now.used_count, now.used_bytes, now.requested_bytes), (2, 3 * MIB, 3 * MIB))
        self.assertEqual(now.used_bytes + now.waiting_bytes + now.free_bytes, now.reserved_bytes)
        for block in blocks:
            free(block)
        self.assertEqual(mam.statistics().used_count, 0)
        self.assertEqual(mam.statistics().peak_used_bytes, 3 * MIB)
        mam.reset_peaks()
        self.assertEqual(mam.statistics().peak_used_bytes, 0)

    def test_report_has_the_map(self):
        block = malloc(5 * MIB)
        report = mam.report()
        used = [segment for chunk in report["chunks"] for segment in chunk["segments"] if segment["state"] == "used"]
        self.assertEqual(report["source"], "host")
        self.assertEqual([(int(segment["base"], 16), segment["requested"]) for segment in used], [(block, 5 * MIB)])
        free(block)

    def test_explain_says_why_not(self):
        mam.reinitialize(limit="16M")
        free(malloc(1000))
        self.assertIn("limit 16777216", mam.explain(1 << 30))

    def test_trim_gives_back(self):
        free(malloc(64 * MIB))
        mam.trim()
        self.assertEqual(mam.statistics().reserved_bytes, 0)

    def test_pool_size_is_one_chunk(self):
        for size in (8 * MIB, "8M", "8192k"):
            mam.reinitialize(pool_size=size)
            self.assertEqual((mam.statistics().limit_bytes, mam.statistics().chunk_count), (8 * MIB, 1))

    def test_limit_bounds_and_stays(self):
        mam.reinitialize(limit=32 * MIB)
        self.assertEqual(mam.statistics().limit_bytes, 32 * MIB)
        mam.reinitialize()
        self.assertEqual(mam.statistics().limit_bytes, 32 * MIB)
        with self.assertRaises(mam.OutOfMemoryError) as caught:
            malloc(64 * MIB)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual(caught.exception.code, 2)
        self.assertIn(str(64 * MIB), str(caught.exception))

    def test_live_block_keeps_its_pool(self):
        block = malloc(1000)
        ctypes.memset(block, 7, 1000)
        before = mam.statistics()
        with self.assertRaisesRegex(mam.Error, "1 live block"):
            mam.reinitialize(pool_size="8M", limit="16M")
        self.assertEqual(mam.statistics().limit_bytes, before.limit_bytes)
        self.assertEqual(ctypes.string_at(block, 1000), b"\7" * 1000)
        free(block)

    def test_wrong_arguments_change_nothing(self):
        block = malloc(1000)
        before = mam.statistics()
        wrong_values = (
            {"pool_size": -1}, {"pool_size": 0}, {"pool_size": 1 << 64}, {"pool_size": "8 M"}, {"pool_size": "8T"},
            {"pool_size": "50%"}, {"pool_size": "\u0668M"}, {"limit": 0}, {"limit": "0"}, {"limit": "0%"},
            {"limit": "101%"}, {"limit": "-1"}, {"limit": ""}, {"limit": "99999999999999999999"}, {"limit": "999999999999G"},
            {"source": "gpu"}, {"source": ""}, {"source": "HOST"}, {"source": "host\0"},
        )
        for arguments in wrong_values:
            with self.subTest(arguments), self.assertRaises(ValueError):
                mam.reinitialize(**arguments)
        for arguments in ({"pool_size": 1.5}, {"pool_size": True}, {"pool_size": b"8M"}, {"limit": 0.5}, {"source": 3}):
            with self.subTest(arguments), self.assertRaises(TypeError):
                mam.reinitialize(**arguments)
        for function in (mam.trim, mam.explain):
            for value, error in ((-1, ValueError), (1 << 64, ValueError), ("1", TypeError), (None, TypeError)):
                with self.subTest(function=function, value=value), self.assertRaises(error):
                    function(value)
        self.assertEqual(mam.statistics(), before)
        free(block)

    def test_refused_pool_leaves_the_former_options(self):
        mam.reinitialize(limit="64M")
        with self.assertRaisesRegex(mam.OutOfMemoryError, "limit of MAM_CreateWith"):
            mam.reinitialize(pool_size="32M", limit="16M")
        free(malloc(1000))
        mam.reinitialize()
        self.assertEqual(mam.statistics().limit_bytes, 64 * MIB)

    def test_host_memory_stays_host_memory(self):
        with self.assertRaisesRegex(mam.Error, "plain host memory"):
            mam.reinitialize(source="device")
        self.assertEqual(mam.report()["source"], "host")

    def test_second_free_is_an_error_with_the_library_s_text(self):
        block = malloc(1000)
        free(block)
        with self.assertRaises(mam.Error) as caught:
            free(block)
        self.assertEqual(caught.exception.code, 1)
        self.assertNotIsInstance(caught.exception, MemoryError)
        self.assertNotEqual(str(caught.exception), "")

    def test_threads(self):
        errors = []

        def work(number):
            try:
                for round_ in range(200):
                    block = malloc(512 * (1 + (number + round_) % 50))
                    ctypes.memset(block, number, 512)
                    self.assertGreaterEqual(mam.statistics().used_count, 1)
                    self.assertEqual(ctypes.string_at(block, 512), bytes([number]) * 512)
                    free(block)
                    if round_ % 50 == 0:
                        mam.trim()
                        mam.report()
            except BaseException as error:  # noqa: B902 (told by the thread that waits)
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(mam.statistics().used_count, 0)

    def test_forked_child_has_a_pool(self):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                free(malloc(1000))
                status = 0 if mam.statistics().used_count == 0 else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_other_names_are_told(self):
        with self.assertRaisesRegex(AttributeError, "no attribute 'malloc'"):
            mam.malloc
        self.assertIn("statistics", dir(mam))
        for name in ("reinitialize", "statistics", "report", "explain", "trim", "reset_peaks", "rmm_resource"):
            self.assertTrue(getattr(mam, name).__doc__, name)


class Processes(Case):
    """What is settled once in a process."""

    def test_first_call_may_choose_host_memory(self):
        self.assertEqual(self.says("""
import mam
mam.reinitialize(source="host", limit="16M")
print(mam.statistics().limit_bytes, mam.report()["source"])
""", MAM_SOURCE=None), [f"{16 * MIB} host"])

    def test_later_call_may_not(self):
        done = process("""
import mam
mam.statistics()
mam.reinitialize(source="host")
""", MAM_SOURCE=None)
        self.assertEqual(done.returncode, 1)
        self.assertIn("set MAM_SOURCE=host in the environment", done.stderr)

    def test_wrong_variable_is_named(self):
        done = process("import mam; mam.reinitialize()", MAM_LIMIT="much")
        self.assertIn("MAM_LIMIT=much is not understood", done.stderr)

    def test_without_a_driver_it_is_said(self):
        done = process("import mam; print(mam.statistics().used_bytes); mam.reinitialize()", MAM_SOURCE=None,
                       LD_LIBRARY_PATH=None)
        if done.returncode == 0:
            self.skipTest("there is a driver")
        self.assertEqual(done.stdout, "0\n")
        self.assertIn("mam._library.Error: ", done.stderr)

    def test_missing_library_is_said(self):
        done = process("import mam; mam.statistics()", LIBMAM_DIR="/nowhere")
        self.assertIn("/nowhere/libmam.so.0 cannot be loaded", done.stderr)
        self.assertIn("pip install tools/python", done.stderr)

    def test_missing_bridge_is_said(self):
        empty = os.path.join(BUILD, "lib", ".libs")
        done = process("from mam import _library; _library.bridge()", LIBMAM_DIR=empty)
        self.assertIn("C++ compiler", done.stderr)

    def test_library_of_the_process_is_used(self):
        """One copy for all: that which an extension module brought."""
        self.assertEqual(self.says(f"""
import ctypes, os
first = ctypes.CDLL({os.path.join(BUILD, "tests", "python", "lib", "libmam.so.0")!r})
os.environ["LIBMAM_DIR"] = "/nowhere"
import mam
from mam import _library
print(_library.library()._handle == first._handle)
"""), ["True"])

    def test_mark_is_in_the_record(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "record")
            self.says("""
import mam
from support import free, malloc
for epoch in range(3):
    mam.mark(f"epoch {epoch}")
    free(malloc(1000 * (epoch + 1)))
for wrong in (3, None, b"x", "a\\0b"):
    try:
        mam.mark(wrong)
    except (TypeError, ValueError):
        continue
    raise AssertionError(wrong)
""", MAM_RECORD=file, PYTHONPATH=os.pathsep.join([HERE, os.environ["PYTHONPATH"]]))
            self.assertIn('after the mark "epoch 2"', self.replay(file))

    def replay(self, file):
        """What mam-bench says of a record."""
        done = subprocess.run([os.path.join(BUILD, "mam-bench"), "replay", file], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_a_record_has_what_is_live_and_what_comes(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = os.path.join(folder, "a record"), os.path.join(folder, "second")
            self.says(f"""
import pathlib, threading
import mam
from support import free, malloc
block = malloc(3 << 20)
with mam.record({first!r}) as record:
    assert record.path == {first!r}
    mam.mark("within")
    free(malloc(5 << 20))
    thread = threading.Thread(target=lambda: free(malloc(9 << 20)))
    thread.start()
    thread.join()
free(malloc(100))
record.stop()
record = mam.record(pathlib.Path({second!r}))
free(block)
record.stop()
try:
    with mam.record({second!r}):
        raise KeyError
except KeyError:
    pass
mam.record({second!r}).stop()
""", PYTHONPATH=os.pathsep.join([HERE, os.environ["PYTHONPATH"]]))
            said = self.replay(first)
            self.assertIn("3 allocations, 0 refused", said)
            self.assertIn("of the allocations, 1 are of blocks that were live when the record began", said)
            self.assertIn("peak of live bytes: 12 MiB in 2 blocks", said)
            self.assertIn('after the mark "within"', said)

    def test_a_record_is_named_to_nvtx(self):
        """Unless another tool is.  What is named can be loaded by that name, and is the library that records."""
        with tempfile.TemporaryDirectory() as folder:
            program = f"""
import ctypes, os
import mam
from mam import _library
mam.record({os.path.join(folder, "record")!r})
name = os.environ["NVTX_INJECTION64_PATH"]
print(name if name == "other" else
      _library.function_address(ctypes.CDLL(name).MAM_Mark) == _library.function_address(_library.library().MAM_Mark))
"""
            self.assertEqual(self.says(program, NVTX_INJECTION64_PATH=None), ["True"])
            self.assertEqual(self.says(program, NVTX_INJECTION64_PATH="other"), ["other"])

    def test_a_record_that_cannot_begin_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "record")
            program = f"""
import mam
from support import free, malloc
free(malloc(1000))
for path, expected in ((3, TypeError), (b"x", TypeError), ("", ValueError), ("a\\0b", ValueError),
                       ({folder!r}, mam.Error), ({folder!r} + "/no/where", mam.Error)):
    try:
        mam.record(path)
    except expected:
        continue
    raise AssertionError(path)
{{}}
try:
    mam.record({file!r} + ".other")
except mam.Error as error:
    print(error.code, error)
free(malloc(1000))
"""
            path = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
            for begin, variable in ((f"mam.record({file!r})", None), ("", file)):
                said = self.says(program.format(begin), MAM_RECORD=variable, PYTHONPATH=path)
                self.assertEqual(said, [f"210 a record is made already, to {file}"])
                self.assertIn("1 allocations" if variable is None else "2 allocations", self.replay(file))
                os.unlink(file)

    def test_import_needs_no_library_of_others(self):
        self.assertEqual(self.says("""
import sys
import mam, mam.torch, mam_torch
print([name for name in ("torch", "cupy", "numba", "rmm", "numpy") if name in sys.modules], mam.torch.enabled(),
      mam_torch.enable is mam.torch.enable)
"""), ["[] False True"])


@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "tests/support/.libs/libcuda.so.1")), "no fake driver")
class Driver(Case):
    """Pools of a GPU's memory, over the fake driver."""

    def says(self, code, **environment):
        return super().says(code, MAM_SOURCE=None, LD_LIBRARY_PATH=os.path.join(BUILD, "tests/support/.libs"),
                            **environment)

    def test_source_and_limit_are_chosen_again_and_again(self):
        self.assertEqual(self.says("""
import ctypes, mam
from mam import _library
def block():
    pointer = ctypes.c_void_p()
    _library.check(_library.library().MAM_CudaMalloc(ctypes.byref(pointer), 1 << 20))
    return pointer
for arguments in (dict(source="chunks", limit="128M"), dict(source="vmm", limit="256M"), dict(pool_size="8M", source="device"),
                  dict(source="pinned", pool_size="4M")):
    mam.reinitialize(**arguments)
    pointer = block()
    print(mam.report()["source"], mam.statistics().limit_bytes >> 20, mam.statistics().reserved_bytes >> 20)
    _library.check(_library.library().MAM_CudaFree(pointer))
"""), ["device 128 64", "vmm 256 2", "device 8 8", "pinned 4 4"])

    def test_forked_child_of_a_gpu_is_refused(self):
        self.assertEqual(self.says("""
import os, mam
mam.reinitialize(pool_size="8M", source="device")
child = os.fork()
if child == 0:
    try:
        mam.reinitialize(pool_size="8M")
    except mam.Error as error:
        os._exit(error.code)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")[0] in ("3", "210"), True)


class Declarations(unittest.TestCase):
    """What is written here a second time."""

    def test_statistics_are_the_header_s(self):
        with open(os.path.join(SOURCE, "include", "mam.h"), encoding="utf-8") as file:
            text = re.search(r"typedef struct MAM_PoolInfo \{(.*?)\} MAM_PoolInfo;", file.read(), re.DOTALL)[1]
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        types = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "double": ctypes.c_double}
        fields = [(name, types[kind]) for kind, name in re.findall(r"(\w+) (\w+);", text)]
        self.assertEqual(_library._PoolInfo._fields_, fields)

    def test_sources_are_the_library_s(self):
        with open(os.path.join(SOURCE, "lib", "base", "options.def"), encoding="utf-8") as file:
            values = re.search(r'OPTION\(MAM_SOURCE, choice, "auto", "([^"]*)"', file.read())[1]
        self.assertEqual(_library._SOURCES, tuple(values.split(", ")))


if __name__ == "__main__":
    main()
