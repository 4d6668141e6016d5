# SPDX-License-Identifier: BSD-2-Clause
"""The parts for CuPy, Numba, PyTorch and RMM over stand-ins of these libraries' interfaces, in one process and one pool.

What the bridge tells them when there is no memory is tested in C++ (tests/tree/check_bridge.sh)."""
import ctypes
import gc
import os
import sys
import threading
import unittest
import unittest.mock

os.environ["MAM_SOURCE"] = "host"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "stand_ins"))

import cupy.cuda  # noqa: E402
import numba.cuda.cudadrv.driver as numba_driver  # noqa: E402
import rmm  # noqa: E402
import torch  # noqa: E402

import mam  # noqa: E402
from support import HAS_BRIDGE, MIB, main  # noqa: E402

if not all(module.__file__.startswith(os.path.join(HERE, "stand_ins")) for module in (cupy.cuda, numba_driver, rmm, torch)):
    sys.exit("the stand-ins are not what was imported")


def live():
    return mam.statistics().used_count


class Fixture(unittest.TestCase):
    def setUp(self):
        self.assertEqual(live(), 0)
        mam.reinitialize(limit="64M")
        self.addCleanup(lambda: self.assertEqual(live(), 0))


@unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
class CuPy(Fixture):
    def test_memory_is_of_the_pool_and_goes_back(self):
        cupy.cuda.set_allocator(mam.cupy_allocator)
        calls = cupy.cuda.stream.calls
        memory = cupy.cuda.alloc(1000)
        self.assertEqual((live(), memory.ptr % 512, cupy.cuda.stream.calls - calls), (1, 0, 1))
        ctypes.memset(memory.ptr, 1, 1000)
        del memory
        self.assertEqual(cupy.cuda.alloc(0).ptr, 0)

    def test_allocator_is_one(self):
        self.assertEqual(mam.cupy_allocator, mam.cupy_allocator)

    def test_arrays_may_be_dropped_by_other_threads(self):
        kept = [mam.cupy_allocator(5000) for _ in range(100)]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()


class Numba(Fixture):
    def manager(self):
        mam.numba.enable()
        manager = numba_driver.manager(context=object())
        manager.initialize()
        return manager

    def test_numba_finds_the_plugin_by_its_name(self):
        self.assertIs(mam.numba._numba_memory_manager, mam.numba.MamNumbaManager)

    def test_memory_is_of_the_pool_and_goes_back(self):
        manager = self.manager()
        pointer = manager.memalloc(1000)
        self.assertEqual((live(), pointer.size, pointer.device_pointer_value % 512), (1, 1000, 0))
        del pointer
        self.assertEqual(live(), 0)

    def test_no_bytes_are_no_block(self):
        self.assertEqual(self.manager().memalloc(0).device_pointer_value, 0)

    def test_reset_frees_once(self):
        manager = self.manager()
        kept = [manager.memalloc(1000) for _ in range(3)]
        manager.reset()
        self.assertEqual((live(), manager.deallocations.cleared), (0, 1))
        again = manager.memalloc(1000)  # at an address of one of them
        kept.clear()
        self.assertEqual(live(), 1)
        del again

    def test_pointers_are_dropped_by_the_collector_wherever_it_runs(self):
        manager = self.manager()
        thresholds = gc.get_threshold()
        gc.set_threshold(1)  # a collection at every step
        try:
            for _ in range(200):
                cycle = [manager.memalloc(1000)]
                cycle.append(cycle)
            manager.reset()
        finally:
            gc.set_threshold(*thresholds)
        del cycle
        gc.collect()

    def test_pointer_outlives_its_manager(self):
        pointer = self.manager().memalloc(1000)
        del pointer

    def test_out_of_memory_is_numba_s_error_with_the_text(self):
        manager = self.manager()
        with self.assertRaises(numba_driver.CudaAPIError) as caught:
            manager.memalloc(1 << 40)
        self.assertEqual((caught.exception.code, manager.deallocations.cleared), (2, 1))
        self.assertIn(str(1 << 40), str(caught.exception))

    def test_memory_info_counts_the_pool_s_free_bytes(self):
        mam.reinitialize(pool_size="16M")
        held = mam.statistics().free_bytes
        self.assertEqual(held, 16 * MIB)
        self.assertEqual(self.manager().get_memory_info(), ((1 << 29) + held, 1 << 30))

    def test_missing_ipc_handle_says_what_to_do(self):
        manager = self.manager()
        pointer = manager.memalloc(1000)
        with self.assertRaisesRegex(numba_driver.CudaAPIError, "no handle of 1000 bytes.*MAM_SOURCE=chunks"):
            manager.get_ipc_handle(pointer)

    def test_defer_cleanup_is_numba_s(self):
        manager = self.manager()
        with manager.defer_cleanup():
            self.assertEqual(manager.deallocations.deferred, 1)
        self.assertEqual(manager.deallocations.deferred, 0)


class RMM(Fixture):
    def test_memory_is_of_the_pool_and_goes_back(self):
        resource = mam.rmm_resource()
        for stream in (rmm.mr.Stream(0), rmm.mr.Stream(2), None):
            pointer = resource.allocate(1000, stream)
            self.assertEqual(live(), 1)
            resource.deallocate(pointer, 1000, stream)
            self.assertEqual(live(), 0)

    def test_out_of_memory_is_a_memory_error(self):
        with self.assertRaisesRegex(MemoryError, str(1 << 40)):
            mam.rmm_resource().allocate(1 << 40)

    def test_wrong_free_is_told(self):
        with self.assertRaises(mam.Error):
            mam.rmm_resource().deallocate(12345, 1000)


@unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
class PyTorch(Fixture):
    @unittest.mock.patch.object(mam.torch, "_enabled", None)
    def test_allocator_in_use_stays(self):
        torch.cuda.memory.in_use = True
        try:
            with self.assertRaisesRegex(mam.Error, "before the first CUDA tensor"):
                mam.torch.enable()
            self.assertFalse(mam.torch.enabled())
        finally:
            torch.cuda.memory.in_use = False

    def test_enable_registers_once(self):
        mam.torch.enable()
        mam.torch.enable()
        self.assertEqual(len(torch.cuda.memory.changed), 1)
        wrapper = torch.cuda.memory.changed[0]
        self.assertEqual(sorted(wrapper.allocator().hooks), [
            "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_record_stream_fn", "set_release_pool",
            "set_reset_fn"])
        pointer = wrapper.malloc(MIB, 0, None)
        now = mam.torch.memory_stats()
        self.assertEqual((now["allocated_bytes.all.current"], now["allocation.all.current"]), (MIB, 1))
        self.assertEqual(mam.torch.memory_stats(1), mam.torch.memory_stats())
        self.assertEqual(torch.cuda.entered, [1])
        wrapper.free(pointer, MIB, 0, None)
        self.assertEqual(mam.torch.memory_stats()["allocated_bytes.all.current"], 0)
        self.assertEqual(mam.torch.memory_stats()["allocated_bytes.all.peak"], MIB)
        self.assertEqual(mam.torch.graph_pools(), 0)

    @unittest.mock.patch.object(mam.torch, "_enabled", None)
    def test_pytorch_without_cuda_is_told(self):
        del torch._C._cuda_customAllocator
        try:
            with self.assertRaisesRegex(mam.Error, "without CUDA"):
                mam.torch.enable()
        finally:
            torch._C._cuda_customAllocator = None


class Together(Fixture):
    @unittest.skipUnless(HAS_BRIDGE, "there was no C++ compiler")
    def test_what_one_frees_serves_the_others(self):
        memory = mam.cupy_allocator(MIB)
        address = memory.ptr
        del memory
        mam.torch.enable()
        pointer = torch.cuda.memory.changed[0].malloc(MIB, 0, None)  # on the same stream
        self.assertEqual(pointer, address)
        torch.cuda.memory.changed[0].free(pointer, MIB, 0, None)
        resource = mam.rmm_resource()
        self.assertEqual(resource.allocate(MIB), address)
        resource.deallocate(address, MIB)


if __name__ == "__main__":
    main()
