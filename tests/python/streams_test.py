# SPDX-License-Identifier: BSD-2-Clause
"""CuPy's part and RMM's over the fake driver, with streams that come and go and kernels in flight: no memory is handed
out while a kernel uses it that the allocation's stream does not wait for, and no handle is used that is gone."""
import os
import sys
import unittest

from support import BUILD, HAS_BRIDGE, HERE, Case, main

PROGRAM = """
import ctypes, random, sys
import cupy.cuda, rmm
import cupy.cuda.stream as stream_module
import mam

driver = ctypes.CDLL("libcuda.so.1")

class Range(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]

driver.fake_stream_create.restype = ctypes.c_void_p
driver.fake_stream_create.argtypes = [ctypes.c_uint]
driver.fake_stream_destroy.argtypes = [ctypes.c_void_p]
driver.fake_launch.argtypes = [ctypes.c_void_p, ctypes.POINTER(Range), ctypes.c_size_t]
driver.fake_launch.restype = driver.fake_in_use.restype = driver.fake_step.restype = ctypes.c_bool
driver.fake_in_use.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
driver.fake_stream_capture_begin.argtypes = [ctypes.c_void_p, ctypes.c_int]
driver.fake_stream_capture_end.argtypes = [ctypes.c_void_p]
driver.fake_stream_capture_begin.restype = driver.fake_stream_capture_end.restype = ctypes.c_bool
driver.fake_current.restype = ctypes.c_void_p
driver.fake_finish.argtypes = [ctypes.c_void_p]

def launch(address, size, stream):
    assert driver.fake_launch(stream, Range(address, size), 1)

def set_current(stream):
    stream_module.current = stream

def end():
    print("violations", driver.fake_violations(), "faults", driver.fake_faults())
"""


@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "tests/support/.libs/libcuda.so.1")), "no fake driver")
class Streams(Case):
    def runs(self, code):
        paths = [os.path.join(HERE, "stand_ins"), *sys.path]
        return self.says(PROGRAM + code + "\nend()\n", MAM_SOURCE=None, PYTHONPATH=os.pathsep.join(filter(None, paths)),
                         LD_LIBRARY_PATH=os.path.join(BUILD, "tests/support/.libs"))

    GOOD = "violations 0 faults 0"

    @unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
    def test_cupy_hands_nothing_out_early(self):
        for seed in range(3):
            lines = self.runs(f"""
draw = random.Random({seed})
mam.reinitialize(pool_size="16M", source="device")
streams = [0, 2] + [driver.fake_stream_create(draw.randrange(2)) for _ in range(3)]
live, early, reused = [], 0, set()
for step in range(4000):
    choice = draw.random()
    if choice < 0.4 and len(live) < 40:
        stream, size = draw.choice(streams), draw.choice((512, 4096, 100000, 400000))
        set_current(stream)
        memory = mam.cupy_allocator(size)
        early += driver.fake_in_use(memory.ptr, size, stream)
        reused.add(memory.ptr)
        launch(memory.ptr, size, stream)
        live.append((memory, stream))
    elif choice < 0.5 and live:
        memory, stream = draw.choice(live)
        if stream in streams:
            launch(memory.ptr, memory.size, stream)
    elif choice < 0.85 and live:
        set_current(draw.choice(streams))  # whatever it is, the array is dropped
        live.pop(draw.randrange(len(live)))
        memory = None
    elif choice < 0.9:
        index = draw.randrange(2, len(streams))
        driver.fake_stream_destroy(streams[index])
        live = [(memory, stream if stream != streams[index] else None) for memory, stream in live]
        streams[index] = driver.fake_stream_create(draw.randrange(2))
    else:
        for _ in range(draw.randrange(6)):
            driver.fake_step(draw.randrange(1000))
print("early", early, "reused", len(reused) < 1000)
memory = None
live.clear()
print("live", mam.statistics().used_count)
""")
            self.assertEqual(lines, ["early 0 reused True", "live 0", self.GOOD])

    @unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
    def test_cupy_has_memory_of_the_default_stream_back_at_once(self):
        self.assertEqual(self.runs("""
mam.reinitialize(pool_size="2M", source="device")
for turn in range(10):  # more than the pool, with every kernel in flight
    memory = mam.cupy_allocator(1 << 20)
    launch(memory.ptr, 1 << 20, 0)
    memory = None
print(driver.fake_in_flight(), driver.fake_waits())
"""), ["10 0", self.GOOD])

    @unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
    def test_cupy_s_captures_are_not_spoilt(self):
        self.assertEqual(self.runs("""
mam.reinitialize(pool_size="64M", source="device")
stream = driver.fake_stream_create(1)
set_current(stream)
old = []
for turn in range(10):
    driver.fake_finish(driver.fake_current())
    old += [mam.cupy_allocator(1 << 20) for _ in range(40)]
    print(driver.fake_stream_capture_begin(stream, 0), end=" ")
    old.clear()  # so much that a fence is wanted
    memory = mam.cupy_allocator(1 << 20)
    launch(memory.ptr, 1 << 20, stream)
    memory = None
    more = mam.cupy_allocator(5000)
    print(driver.fake_stream_capture_end(stream), end=" ")
print()
"""), [" ".join(["True"] * 20) + " ", self.GOOD])

    def test_rmm_hands_nothing_out_early(self):
        self.assertEqual(self.runs("""
draw = random.Random(1)
mam.reinitialize(pool_size="16M", source="device")
resource = mam.rmm_resource()
streams = [0] + [driver.fake_stream_create(1) for _ in range(3)]
live, early = [], 0
for step in range(4000):
    choice = draw.random()
    if choice < 0.45 and len(live) < 40:
        stream, size = draw.choice(streams), draw.choice((512, 4096, 100000, 400000))
        pointer = resource.allocate(size, rmm.mr.Stream(stream))
        early += driver.fake_in_use(pointer, size, stream)
        launch(pointer, size, stream)
        live.append((pointer, size, stream))
    elif choice < 0.9 and live:
        pointer, size, stream = live.pop(draw.randrange(len(live)))
        resource.deallocate(pointer, size, rmm.mr.Stream(stream))
    else:
        driver.fake_step(draw.randrange(1000))
print("early", early)
"""), ["early 0", self.GOOD])

    def test_reset_of_the_device_ends_the_pool(self):
        self.assertEqual(self.runs("""
from mam import _library
library = _library.library()
def block():
    pointer = ctypes.c_void_p()
    _library.check(library.MAM_CudaMalloc(ctypes.byref(pointer), 1 << 20))
    return pointer
mam.reinitialize(source="device", pool_size="8M")
block()
driver.fake_primary_reset(0)
print(mam.statistics().used_count, mam.report())
new = block()
print(mam.statistics().used_count)
_library.check(library.MAM_CudaFree(new))
mam.reinitialize(pool_size="4M")
print(mam.statistics().limit_bytes >> 20)
"""), ["0 None", "1", "4", self.GOOD])


if __name__ == "__main__":
    main()
