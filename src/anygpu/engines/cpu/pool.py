"""Threads and memory that native code of a process shares: a pool to run nests on, and memory that is used again.

`NestPool` runs parts of a nest on threads that wait for work outside of Python's lock. `RecycledMemory` gives NumPy's
arrays and temporaries memory that was used before, which needs no page faults, and returns what is idle to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from anygpu.base.forks import lock
from anygpu.base.this_process import usable_processors
from anygpu.engines.cpu.loader import HostProcessor, load
from anygpu.errors import InvalidOption

# -- threads of the system, and this engine's own code that they run (`*.ll`)


#: Of each architecture the number of the system call `futex`, and the instruction for a thread that waits actively.
_ARCHITECTURES = {
    "x86_64": ("202", "void @llvm.x86.sse2.pause()"),
    "aarch64": ("98", "void @llvm.aarch64.isb(i32 15)"),
}
#: Nests have arrays of their own on the stack.
_STACK_BYTES = 16 << 20

#: Whether threads can wait for each other here. Elsewhere every nest runs on the caller's thread alone.
HAS_NATIVE_THREADS = sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def native_text(name: str, processor: HostProcessor) -> str:
    """One of the modules beside this file, for this machine."""
    futex, pause = _ARCHITECTURES[platform.machine()]
    text = file_text(name).replace("FUTEX", futex).replace("PAUSE", f"call {pause}")
    declaration = pause.replace("i32 15", "i32")
    return f"{module_head(processor)}declare {declaration}\n{text}"


def file_text(name: str) -> str:
    """The text of a file beside this one."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def module_head(processor: HostProcessor) -> str:
    """How every module begins."""
    return f'target triple = "{processor.triple}"\ntarget datalayout = "{processor.data_layout}"\n'


def start_thread(function: int, argument: int = 0) -> None:
    """Start a thread that lives until the process ends; the interpreter knows nothing of it."""
    library = ctypes.CDLL(None)
    # Larger than any system's `pthread_attr_t`.
    attributes, thread = ctypes.create_string_buffer(256), ctypes.c_void_p()
    library.pthread_attr_init(attributes)
    library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK_BYTES))
    # A signal is for Python's threads: a thread inherits what is blocked when it starts.
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        failed = library.pthread_create(
            ctypes.byref(thread), attributes, ctypes.c_void_p(function), ctypes.c_void_p(argument)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    library.pthread_attr_destroy(attributes)
    if failed:
        raise OSError(failed, os.strerror(failed))
    library.pthread_detach(thread)


def keep_forever(thing: Any) -> None:
    """Never free it, also while the interpreter takes itself apart: threads use it until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


# -- the pool of threads (`pool.ll`)
# As many as the process may use: its affinity mask and the quota of its control group count, then `ANYGPU_THREADS`,
# then `OMP_NUM_THREADS`. Where NumPy's BLAS says how many threads it may use, a lower number holds for the nests too,
# at the moment of each: so threadpoolctl, which knows BLAS, limits both.
#
# Threads are started when the first program is loaded, and again in a process that was forked. They belong to the
# system alone: the interpreter knows nothing of them, and they hold up neither the interpreter nor its exit.


#: OpenBLAS as NumPy brings it has no more threads than that, on any machine.
_MOST_BLAS_THREADS = 64
_BLAS_FUNCTIONS = (
    "scipy_openblas_get_num_threads64_",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
)


class _PoolState(ctypes.Structure):
    """`%pool` of `pool.ll`."""

    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("_1", ctypes.c_byte * 56),
        ("done", ctypes.c_int64),
        ("waiting", ctypes.c_int32),
        ("_2", ctypes.c_byte * 52),
        ("sleepers", ctypes.c_int32),
        ("busy", ctypes.c_int32),
        ("_3", ctypes.c_byte * 56),
        ("run", ctypes.c_int64 * 5),
        ("workers", ctypes.c_int32),
        ("usual_blas_threads", ctypes.c_int32),
        ("blas_threads", ctypes.c_void_p),
        ("limit", ctypes.c_int32),
        ("ready", ctypes.c_int32),
    )


def wanted_threads(processors: int, environment: Mapping[str, str]) -> int:
    """How many threads a nest may use, of so many processors."""
    for name in ("ANYGPU_THREADS", "OMP_NUM_THREADS"):
        # OpenMP allows a list, one number for each level of nesting.
        given = environment.get(name, "").split(",")[0].strip()
        if given.isdecimal() and int(given) > 0:
            return int(given) if name == "ANYGPU_THREADS" else min(int(given), processors)
        if given and name == "ANYGPU_THREADS":
            raise InvalidOption(f"ANYGPU_THREADS is {given!r}. Set it to the number of threads.")
    return processors


#: Where threads cannot wait for each other, each nest runs on the caller's.
_ALONE = """
@pool = external global i8
define ptr @pool_worker(ptr %argument) nounwind {
  ret ptr null
}
define void @pool_run(ptr %fn, ptr %buffers, i64 %count, i64 %grain) nounwind {
entry:
  br label %next
next:
  %begin = phi i64 [ 0, %entry ], [ %after, %each ]
  %part = phi i64 [ 0, %entry ], [ %following, %each ]
  %more = icmp slt i64 %begin, %count
  br i1 %more, label %each, label %out
each:
  %after = add i64 %begin, %grain
  %whole = icmp slt i64 %after, %count
  %end = select i1 %whole, i64 %after, i64 %count
  call void %fn(ptr %buffers, i64 %begin, i64 %end, i64 %part)
  %following = add i64 %part, 1
  br label %next
out:
  ret void
}
"""


class NestPool:
    """The threads."""

    def __init__(self, processor: HostProcessor) -> None:
        """Load the pool's code. Its state is never freed, because threads look at it for as long as the process lives.

        Where NumPy's BLAS can be asked, the pool uses as many threads as it does, so that both together do not use
        more.
        """
        # Memory that is never given back: threads read it until the process ends.
        memory = ctypes.create_string_buffer(ctypes.sizeof(_PoolState) + 64)
        keep_forever(memory)
        self._state = _PoolState.from_address(-(-ctypes.addressof(memory) // 64) * 64)
        self._lock = lock()
        self._started = 0
        text = native_text("pool.ll", processor) if HAS_NATIVE_THREADS else _ALONE
        code = load(text, processor, {"pool": ctypes.addressof(self._state)}, ["pool_run", "pool_worker"])
        keep_forever(code)
        self._worker = code["pool_worker"]
        ready = ctypes.addressof(self._state) + _PoolState.ready.offset
        #: What compiled programs refer to.
        self.symbols = {"pool_run": code["pool_run"], "pool_ready": ready}
        blas = self._blas_threads = _blas_threads()
        if blas is not None:
            self._state.blas_threads = ctypes.cast(blas, ctypes.c_void_p)
            processors = usable_processors()
            explicit = "ANYGPU_THREADS" in os.environ
            self._state.usual_blas_threads = blas() if explicit else min(processors, _MOST_BLAS_THREADS)

    @property
    def is_ready(self) -> bool:
        """Whether its threads were started in this process."""
        return bool(self._state.ready)

    @property
    def threads(self) -> int:
        """The threads of a nest, with the caller's."""
        return int(self._state.workers) + 1

    @property
    def threads_now(self) -> int:
        """The threads that a run may use now, as `@threads` of `pool.ll` has it."""
        now = self._blas_threads() if self._blas_threads is not None else self.threads
        return max(1, min(now, self.threads)) if now < self._state.usual_blas_threads else self.threads

    def start(self, threads: int | None = None) -> None:
        """Have so many threads, with the caller's; by default as many as the process may use."""
        if threads is None:
            threads = wanted_threads(usable_processors(), os.environ)
        if not HAS_NATIVE_THREADS:
            threads = 1
        with self._lock:
            while self._started < threads - 1:
                start_thread(self._worker, self._started + 1)
                self._started += 1
            self._state.workers = threads - 1
            self._state.ready = 1

    def forget_threads(self) -> None:
        """Forget the threads in a forked child, which has none of them."""
        self._started = 0
        state = self._state
        # Parts of a run that are not taken yet belong to a thread that the child does not have.
        state.ticket = state.ready = state.workers = state.busy = state.sleepers = state.waiting = 0


def _blas_threads() -> Any | None:
    """The function of NumPy's BLAS that says how many threads it may use now."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
        for name in _BLAS_FUNCTIONS:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
    return None


# -- memory for large results and temporaries that is used again (`memory.ll`)
# A third of the time of a large elementwise program is the system's, which gives each new page to the process one by
# one. Results come from NumPy's allocator with a handler of ours (NEP 49): the arrays own their memory as any other do,
# and when the last reference to one goes, its memory waits here for the next result, for some seconds.


#: Results and temporaries from so many bytes on. Below that, new pages cost less than what is done around them.
LARGE_BYTES = 1 << 20
#: Bytes that may wait to be used again: so many, and not more than this part of what the machine has.
_MOST_BYTES, _MOST_PART = 256 << 20, 16

_FUNCTIONS = ("memory_malloc", "memory_calloc", "memory_realloc", "memory_free")


class _MemoryState(ctypes.Structure):
    """`%memory` of `memory.ll`."""

    _fields_ = (
        ("busy", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
        ("most_bytes", ctypes.c_int64),
        ("uses", ctypes.c_int64),
        ("hand", ctypes.c_int64),
        ("list", ctypes.c_int64 * 32),
    )


class _Handler(ctypes.Structure):
    """NumPy's `PyDataMem_Handler`."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 4),
    )


class RecycledMemory:
    """The memory, the handler that NumPy takes results from, and the thread that gives it back to the system."""

    def __init__(self, processor: HostProcessor) -> None:
        """Load the allocator's code, and make a handler of it for NumPy's arrays.

        What is kept is limited to a part of the machine's memory. State and code are never freed, for arrays may
        outlive everything else.
        """
        memory = ctypes.create_string_buffer(ctypes.sizeof(_MemoryState) + 64)
        keep_forever(memory)
        self._state = _MemoryState.from_address(-(-ctypes.addressof(memory) // 64) * 64)
        self._state.most_bytes = min(_MOST_BYTES, _memory_total() // _MOST_PART)
        code = load(
            native_text("memory.ll", processor).replace("LARGE", str(LARGE_BYTES)),
            processor,
            {"memory": ctypes.addressof(self._state)},
            ["memory_take", "memory_give", "memory_trim", "memory_keeper", *_FUNCTIONS],
        )
        keep_forever(code)
        self._keeper = code["memory_keeper"]
        self._trim = ctypes.CFUNCTYPE(ctypes.c_int64)(code["memory_trim"])
        handler = _Handler(b"anygpu", 1, None, (ctypes.c_void_p * 4)(*[code[name] for name in _FUNCTIONS]))
        keep_forever(handler)
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p] * 3
        # The name is not copied.
        self._name = ctypes.create_string_buffer(b"mem_handler")
        keep_forever(self._name)
        self.handler = new_capsule(ctypes.addressof(handler), ctypes.addressof(self._name), None)
        keep_forever(self.handler)
        self.symbols = {name: code[name] for name in ("memory_take", "memory_give")}

    @property
    def idle_bytes(self) -> int:
        """What waits to be used again."""
        return int(self._state.bytes)

    def start(self) -> None:
        start_thread(self._keeper)

    def trim(self) -> int:
        """Give what is idle back to the system at once; returns its bytes."""
        return int(self._trim())

    def forget_threads(self) -> None:
        """Start with an empty list in a forked child, if a thread was changing it."""
        state = self._state
        if state.busy:
            ctypes.memset(ctypes.addressof(state.list), 0, ctypes.sizeof(state.list))
            state.blocks = state.bytes = 0
        state.busy = 0


def _memory_total() -> int:
    """Bytes of the machine's memory; a gigabyte where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 30
