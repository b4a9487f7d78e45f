"""The pool of native threads that nests run on (`pool.ll`), and how many threads there are.

As many as the process may use: its affinity mask and the quota of its control group count, then `ANYGPU_THREADS`, then
`OMP_NUM_THREADS`. Where NumPy's BLAS says how many threads it may use, a lower number holds for the nests too, at the
moment of each: so threadpoolctl, which knows BLAS, limits both.

Threads are started when the first program is loaded, and again in a process that was forked. They belong to the system
alone: the interpreter knows nothing of them, and they hold up neither the interpreter nor its exit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from anygpu.base.processors import usable_processors
from anygpu.engines.cpu.loader import load
from anygpu.engines.cpu.native_threads import HAS_NATIVE_THREADS, keep_forever, native_text, start_thread
from anygpu.engines.cpu.target import HostProcessor
from anygpu.errors import InvalidOption

#: OpenBLAS as NumPy brings it has no more threads than that, on any machine.
_MOST_BLAS_THREADS = 64
_BLAS_FUNCTIONS = (
    "scipy_openblas_get_num_threads64_",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
)


class _State(ctypes.Structure):
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


class Pool:
    """The threads."""

    def __init__(self, processor: HostProcessor) -> None:
        # Memory that is never given back: threads read it until the process ends.
        memory = ctypes.create_string_buffer(ctypes.sizeof(_State) + 64)
        keep_forever(memory)
        self._state = _State.from_address(-(-ctypes.addressof(memory) // 64) * 64)
        self._lock = threading.Lock()
        self._started = 0
        text = native_text("pool.ll", processor) if HAS_NATIVE_THREADS else _ALONE
        code = load(text, processor, {"pool": ctypes.addressof(self._state)}, ["pool_run", "pool_worker"])
        keep_forever(code)
        self._worker = code["pool_worker"]
        ready = ctypes.addressof(self._state) + _State.ready.offset
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
        """In a process that was forked: there are none."""
        self._lock = threading.Lock()
        self._started = 0
        state = self._state
        state.ready = state.workers = state.busy = state.sleepers = state.waiting = 0


def _blas_threads() -> Any | None:
    """The function of NumPy's BLAS that says how many threads it may use now."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
        for name in _BLAS_FUNCTIONS:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
    return None
