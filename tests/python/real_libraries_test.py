# SPDX-License-Identifier: BSD-2-Clause
"""The parts for CuPy, Numba, PyTorch and RMM with the libraries themselves, as far as they run without a driver: their
own code allocates and frees plain host memory through libmam.  A library that is not installed is skipped."""
import importlib.util
import os
import subprocess
import tempfile
import unittest

from support import BUILD, HAS_BRIDGE, HERE, MIB, Case, main


def installed(name):
    return importlib.util.find_spec(name) is not None


def wants(name):
    return unittest.skipUnless(installed(name), f"{name} is not installed")


@wants("cupy")
@unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
class CuPy(Case):
    def test_functions_are_called_by_cupy(self):
        """CuPy's own allocator asks the driver for the device first, so its memory class is made by hand."""
        self.assertEqual(self.says("""
import cupy.cuda.memory, mam
from mam import _cupy, _library
print(type(mam.cupy_allocator.__self__).__name__, _cupy._stream_function() != 0)
bridge = _library.bridge()
functions = [_library.function_address(function) for function in (bridge.mam_cupy_malloc, bridge.mam_cupy_free)]
def memory(size):
    return cupy.cuda.memory.CFunctionAllocatorMemory(size, 0, *functions, 0)
kept = memory(5000)
print(kept.ptr % 512, mam.statistics().used_count)
del kept
print(mam.statistics().used_count, memory(0).ptr)
try:
    memory(1 << 40)
except MemoryError as error:
    print(type(error).__name__, str(1 << 40) in str(error), "asked: " in str(error))
""", MAM_LIMIT="64M"), ["CFunctionAllocator True", "0 1", "0 0", "MemoryError True True"])


@wants("numba")
class Numba(Case):
    def test_manager_works(self):
        self.assertEqual(self.says("""
import mam
from numba import cuda
from numba.cuda.cudadrv import driver
import mam.numba
mam.numba.enable()
class Context: pass
context = Context()
manager = mam.numba.MamNumbaManager(context=context)
manager.initialize()
kept = manager.memalloc(5000)
print(kept.device_pointer_value % 512, kept.size, mam.statistics().used_count)
del kept
kept = manager.memalloc(5000)
manager.reset()
print(mam.statistics().used_count)
again = manager.memalloc(5000)
del kept
print(mam.statistics().used_count)
view = again.view(100, 200)
print(view.device_pointer_value - again.device_pointer_value)
try:
    manager.memalloc(1 << 40)
except driver.CudaAPIError as error:
    print(int(error.code), str(1 << 40) in error.msg)
with manager.defer_cleanup():
    pass
""", MAM_LIMIT="64M"), ["0 5000 1", "0", "1", "100", "2 True"])

    def test_variable_names_the_plugin(self):
        self.assertEqual(self.says("""
from numba import cuda
from numba.cuda.cudadrv import driver
driver._ensure_memory_manager()
print(driver._memory_manager.__name__)
""", NUMBA_CUDA_MEMORY_MANAGER="mam.numba"), ["MamNumbaManager"])


@wants("rmm")
class RMM(Case):
    def test_resource_works(self):
        self.assertEqual(self.says("""
import rmm, mam
resource = mam.rmm_resource()
pointer = resource.allocate(5000)
print(pointer % 512, mam.statistics().used_count)
resource.deallocate(pointer, 5000)
print(mam.statistics().used_count)
try:
    resource.allocate(1 << 40)
except MemoryError as error:
    print(str(1 << 40) in str(error))
""", MAM_LIMIT="64M"), ["0 1", "0", "True"])


@wants("torch")
@unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
class PyTorch(Case):
    def on_libmam_says(self, code, **variables):
        """What code prints with libmam as torch's allocator, over a CUDA runtime that answers nothing but what an
        allocation needs."""
        with tempfile.TemporaryDirectory() as folder:
            runtime = os.path.join(folder, "fake_cudart.so")
            subprocess.check_call([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-o", runtime,
                                   os.path.join(HERE, "fake_cudart.c")])
            lines = self.says(f"""
import torch
if torch.version.cuda is None:
    print("no CUDA")
    raise SystemExit
import mam
mam.torch.enable()
{code}""", LD_PRELOAD=runtime, **variables)
        if lines == ["no CUDA"]:
            self.skipTest("torch has no CUDA")
        return lines

    def test_allocator_works(self):
        lines = self.on_libmam_says(f"""
mam.torch.enable()
print(mam.torch.enabled(), torch.cuda.get_allocator_backend())
pointer = torch._C._cuda_cudaCachingAllocator_raw_alloc({MIB}, 0)
print(mam.torch.memory_stats()["allocated_bytes.all.current"])
torch._C._cuda_cudaCachingAllocator_raw_delete(pointer)
print(mam.torch.memory_stats()["allocated_bytes.all.current"], mam.torch.graph_pools())
for attempt in range(2):
    try:
        torch._C._cuda_cudaCachingAllocator_raw_alloc(1 << 40, 0)
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0][:31], str(1 << 40) in str(error), "asked: " in str(error))
""", MAM_LIMIT="64M")
        self.assertEqual(lines, ["True pluggable", str(MIB), "0 0"] + ["CUDA out of memory on device 0: True True"] * 2)

    def test_a_record_has_its_operators(self):
        """NVTX of PyTorch, around allocations that are made by hand.  emit_nvtx itself wants a GPU."""
        with tempfile.TemporaryDirectory() as folder:
            record = os.path.join(folder, "record")
            self.on_libmam_says(f"""
with mam.record({record!r}), torch.cuda.nvtx.range("forward"):
    with torch.cuda.nvtx.range("aten::mm, seq = 1, op_id = 2"):
        pointer = torch._C._cuda_cudaCachingAllocator_raw_alloc({MIB}, 0)
torch._C._cuda_cudaCachingAllocator_raw_delete(pointer)
""")
            page = subprocess.check_output([os.path.join(BUILD, "mam-bench"), "picture", "-o", "-", record], text=True)
            self.assertIn('"texts":["","forward","aten::mm, seq = 1, op_id = 2"]', page)
            self.assertIn('"paths":[[0,0],[0,1],[1,2]]', page)


if __name__ == "__main__":
    main()
