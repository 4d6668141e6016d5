# SPDX-License-Identifier: BSD-2-Clause
"""libmam.so by ctypes: where it is, the functions that this package calls, and its errors as exceptions."""
import ctypes
import json
import operator
import os
import re
import threading
from typing import Any, Dict, NamedTuple, Optional, Union

_SONAME = "libmam.so.0"
_BRIDGE = "libmam_bridge.so"
_PACKAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib")
_SIZE_MAX = 2 ** (8 * ctypes.sizeof(ctypes.c_size_t)) - 1
_SOURCES = ("auto", "vmm", "chunks", "device", "pinned", "managed", "host")

_SUCCESS = 0
_MEMORY_ALLOCATION = 2
_ALREADY_ACQUIRED = 210
_INVALID_RESOURCE_HANDLE = 400


class Error(RuntimeError):
    """A call of libmam that failed.  The text is the library's own sentence about it (MAM_LastError).

    code is the cudaError_t, or None where no call of the library was made."""

    def __init__(self, text: str, code: Optional[int] = None):
        super().__init__(text, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class OutOfMemoryError(Error, MemoryError):
    """There is no memory for an allocation or for a pool."""


class Statistics(NamedTuple):
    """What a pool holds at one moment, in bytes and counts; MAM_PoolGetInfo(3) explains each.

    used_bytes + waiting_bytes + free_bytes == reserved_bytes."""

    reserved_bytes: int
    used_bytes: int
    requested_bytes: int
    waiting_bytes: int
    free_bytes: int
    largest_free_bytes: int
    peak_used_bytes: int
    limit_bytes: int
    chunk_count: int
    segment_count: int
    used_count: int
    waiting_count: int
    free_count: int
    metadata_bytes: int
    malloc_count: int
    free_call_count: int
    failure_count: int
    synchronize_count: int
    external_fragmentation: float
    cached_bytes: int
    slab_count: int
    thread_count: int
    magazine_hit_count: int
    size_hit_count: int
    tag_hit_count: int
    stream_hit_count: int
    fence_count: int
    peak_reserved_bytes: int
    source_call_count: int


_COUNTERS_64 = {
    "malloc_count", "free_call_count", "failure_count", "synchronize_count", "magazine_hit_count", "size_hit_count",
    "tag_hit_count", "stream_hit_count", "fence_count", "source_call_count",
}


def _info_type(name: str) -> Any:
    if name == "external_fragmentation":
        return ctypes.c_double
    return ctypes.c_uint64 if name in _COUNTERS_64 else ctypes.c_size_t


class _PoolInfo(ctypes.Structure):
    """MAM_PoolInfo."""

    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, _info_type(name)) for name in Statistics._fields]


# Each function: its arguments.  All return cudaError_t.
_FUNCTIONS = {
    "MAM_CreateWith": (ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p),
    "MAM_Destroy": (),
    "MAM_Trim": (ctypes.c_size_t,),
    "MAM_CudaMalloc": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
    "MAM_CudaMallocAsync": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p),
    "MAM_CudaFree": (ctypes.c_void_p,),
    "MAM_CudaFreeAsync": (ctypes.c_void_p, ctypes.c_void_p),
    "MAM_PoolGetInfo": (ctypes.c_void_p, ctypes.POINTER(_PoolInfo)),
    "MAM_PoolResetPeaks": (ctypes.c_void_p,),
    "MAM_PoolReport": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    "MAM_Mark": (ctypes.c_char_p,),
    "MAM_RecordBegin": (ctypes.c_char_p,),
    "MAM_RecordEnd": (),
    "MAM_PoolExplain": (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)),
}


def _find(name: str) -> str:
    """The path of a library of ours; its plain name if only the system may have it."""
    folder = os.environ.get("LIBMAM_DIR")
    if folder:
        return os.path.join(folder, name)
    packaged = os.path.join(_PACKAGED, name)
    return packaged if os.path.exists(packaged) else name


def _open_library() -> ctypes.CDLL:
    try:  # one that the process has: a second copy would have pools of its own
        return ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        pass
    path = _find(_SONAME)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise Error(f"{path} cannot be loaded: {error}; LIBMAM_DIR names the folder of {_SONAME}, and "
                    "'pip install tools/python' in libmam's repository builds a package that has one") from None


def _declare(handle: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _FUNCTIONS.items():
        try:
            function = getattr(handle, name)
        except AttributeError:
            raise Error(f"the {_SONAME} that this process has loaded is older than this package: it has no {name}"
                        ) from None
        function.argtypes = arguments
        function.restype = ctypes.c_int
    handle.MAM_LastError.argtypes = ()
    handle.MAM_LastError.restype = ctypes.c_char_p
    return handle


_lock = threading.RLock()  # a finalizer may call library() wherever Python collects garbage, also below
_library: Optional[ctypes.CDLL] = None
_bridge: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """libmam.so, loaded at the first use: its functions have their types."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _declare(_open_library())
    return _library


def bridge_path() -> str:
    """The library of C++ functions that CuPy and PyTorch call."""
    library()  # which the bridge is linked with
    path = _find(_BRIDGE)
    if not os.path.exists(path):
        raise Error(f"there is no {_BRIDGE} at {path}: this package was built where there was no C++ compiler")
    return path


def bridge() -> ctypes.CDLL:
    """The same, loaded."""
    global _bridge
    if _bridge is None:
        path = bridge_path()
        try:
            _bridge = ctypes.CDLL(path)  # twice is the same library
        except OSError as error:
            raise Error(f"{path} cannot be loaded: {error}") from None
    return _bridge


def function_address(function: Any) -> int:
    """The address of a function of a library."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def error_of(code: int) -> Error:
    """The exception for a result of the calling thread's last call."""
    text = (library().MAM_LastError() or b"").decode(errors="replace") or f"libmam: error {code}"
    return (OutOfMemoryError if code == _MEMORY_ALLOCATION else Error)(text, code)


def check(code: int) -> None:
    """Raises if a call failed."""
    if code != _SUCCESS:
        raise error_of(code)


def _size_argument(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name}: a number of bytes is expected, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: a number of bytes is expected, not {value!r}") from None
    if not 0 <= number <= _SIZE_MAX:
        raise ValueError(f"{name}: {number} is no number of bytes")
    return number


def _bytes_argument(name: str, value: Any, otherwise: str = "") -> int:
    """A number, or a text like 40G.  otherwise: what else the argument may be."""
    if not isinstance(value, str):
        return _size_argument(name, value)
    match = re.fullmatch(r"([0-9]+)([KMG]?)", value, re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError(f"{name}: {value!r} is not understood: expected bytes, with K, M or G{otherwise}")
    return _size_argument(name, int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()])


def _limit_argument(value: Any) -> Optional[bytes]:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch("[0-9]+%", value, re.ASCII):
        if not 1 <= int(value[:-1]) <= 100:
            raise ValueError(f"limit: {value!r}: a percentage is from 1% to 100%")
        return value.encode()
    number = _bytes_argument("limit", value, ", or a percentage")
    if number == 0:
        raise ValueError("limit: 0 bytes leave no pool")
    return str(number).encode()


def _source_argument(value: Any) -> Optional[bytes]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"source: a text is expected, not {value!r}")
    if value not in _SOURCES:
        raise ValueError(f"source: {value!r} is not understood: expected {', '.join(_SOURCES)}")
    return value.encode()


def reinitialize(pool_size: Union[int, str, None] = None, limit: Union[int, str, None] = None,
                 source: Optional[str] = None) -> None:
    """Makes the current context's default pool anew.

    pool_size: one chunk of so many bytes is taken at once; with the source "vmm" it is a limit.  A number, or a text
        like "40G".  None: memory is taken as it is needed.
    limit: the pool holds no more: bytes, or a text like "40G" or "50%" (of the device's memory).
    source: where memory comes from: "auto", "vmm", "chunks", "device", "pinned", "managed" or "host"; mam(7) explains
        them.  Whether it is "host" is settled by the first use of the library in the process.

    limit and source hold for default pools that are made later as well, on other devices too.  None keeps what holds:
    MAM_LIMIT and MAM_SOURCE in the environment at first.

    The pool that there is must have no live block; otherwise Error is raised and nothing has changed.  No other thread
    may allocate meanwhile.  If the new pool cannot be made, Error or OutOfMemoryError says why, and the next
    allocation makes a pool as before the call."""
    size = 0 if pool_size is None else _bytes_argument("pool_size", pool_size)
    if pool_size is not None and size == 0:
        raise ValueError("pool_size: 0 bytes are no pool")
    arguments = (size, _source_argument(source), _limit_argument(limit))
    handle = library()
    code = handle.MAM_CreateWith(*arguments)
    if code == _ALREADY_ACQUIRED:
        live = statistics().used_count
        if live != 0:
            raise Error(f"the pool has {live} live block{'s' if live > 1 else ''}: it is made anew only when it has none",
                        code)
        check(handle.MAM_Destroy())
        code = handle.MAM_CreateWith(*arguments)
    check(code)


def statistics() -> Statistics:
    """What the current context's default pool holds; all 0 if there is no pool."""
    info = _PoolInfo(struct_size=ctypes.sizeof(_PoolInfo))
    code = library().MAM_PoolGetInfo(None, ctypes.byref(info))
    if code != _INVALID_RESOURCE_HANDLE:
        check(code)
    return Statistics(*(getattr(info, name) for name in Statistics._fields))


def reset_peaks() -> None:
    """Begins peak_used_bytes and peak_reserved_bytes anew.  Without a pool it does nothing."""
    code = library().MAM_PoolResetPeaks(None)
    if code != _INVALID_RESOURCE_HANDLE:
        check(code)


def _text(code: int, pointer: ctypes.c_void_p) -> Optional[str]:
    """A text that the library has allocated, which is freed; None if there is no pool."""
    if code == _INVALID_RESOURCE_HANDLE:
        return None
    check(code)
    try:
        return ctypes.string_at(pointer).decode(errors="replace")
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = (ctypes.c_void_p,)
        free.restype = None
        free(pointer)


def report() -> Optional[Dict[str, Any]]:
    """The map of the current context's default pool: every chunk and segment, as "REPORT FORMAT" in mam(7) says.

    None if there is no pool."""
    pointer = ctypes.c_void_p()
    text = _text(library().MAM_PoolReport(None, ctypes.byref(pointer)), pointer)
    return None if text is None else json.loads(text)


def explain(size: int) -> Optional[str]:
    """Whether the current context's default pool can serve size bytes now and, if not, why: in words.

    None if there is no pool."""
    number = _size_argument("size", size)
    pointer = ctypes.c_void_p()
    return _text(library().MAM_PoolExplain(None, number, ctypes.byref(pointer)), pointer)


def mark(text: str) -> None:
    """Writes a mark, such as "epoch 3", into the record of the process: that of record(), or the one that MAM_RECORD or
    mam-run --record asks for; mam-record(5).

    Without a record it does nothing."""
    if not isinstance(text, str):
        raise TypeError(f"text: a text is expected, not {text!r}")
    if "\0" in text:
        raise ValueError("text: a mark has no NUL")
    check(library().MAM_Mark(text.encode(errors="replace")))


class Record:
    """A record that is being made; record() begins it."""

    def __init__(self, path: str):
        self.path = path
        self._ends = threading.Lock()  # taken for good by the one thread that ends it

    def stop(self) -> None:
        """Ends the record.  Its file is complete when this returns.  A second call does nothing."""
        if self._ends.acquire(blocking=False):
            check(library().MAM_RecordEnd())

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def record(path: Union[str, "os.PathLike[str]"]) -> Record:
    """Begins a record of all allocations and frees of the process, to the file; mam-record(5).

        with mam.record("step.mam"):
            step()

    The record is the process's, not the thread's, and has the blocks that are live already.  Without `with`, stop() of
    what is returned ends it; else the end of the process does.  One record is made at a time, and while MAM_RECORD or
    mam-run --record asks for one there is no other: Error.  An earlier record in the file is written over.

    Ranges and marks of NVTX are recorded if the process has used none before, and no other tool is named for them."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path: a text or a path is expected, not {path!r}")
    if not text or "\0" in text:
        raise ValueError(f"path: no file has the name {text!r}")
    check(library().MAM_RecordBegin(os.fsencode(text)))
    os.environ.setdefault("NVTX_INJECTION64_PATH", _SONAME)  # NVTX asks at its first use, and finds what is loaded
    return Record(text)


def trim(keep_bytes: int = 0) -> None:
    """Gives free memory of the current context's default pool back to the driver, down to keep_bytes."""
    number = _size_argument("keep_bytes", keep_bytes)
    check(library().MAM_Trim(number))
