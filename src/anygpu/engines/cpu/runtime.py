"""What all compiled programs of a process share: the pool of threads, recycled memory, and addresses to refer to."""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from anygpu.engines.cpu.calls import load_call
from anygpu.engines.cpu.host_steps import HostSteps
from anygpu.engines.cpu.loader import c_library
from anygpu.engines.cpu.memory import RecycledMemory
from anygpu.engines.cpu.native_threads import HAS_NATIVE_THREADS
from anygpu.engines.cpu.numpy_abi import array_symbols
from anygpu.engines.cpu.pool import Pool
from anygpu.engines.cpu.target import HostProcessor, host_processor

Result = TypeVar("Result")


class NativeRuntime:
    """Made once for a process, with the first program."""

    def __init__(self, processor: HostProcessor) -> None:
        self.pool = Pool(processor)
        self.memory = RecycledMemory(processor) if HAS_NATIVE_THREADS else None
        #: The addresses that programs may refer to.
        self.symbols = {**self.pool.symbols, **(array_symbols() or {})}
        if self.memory is not None:
            self.symbols |= {**self.memory.symbols, "np_handler": id(self.memory.handler)}
        else:
            for name, function in (("memory_take", "malloc"), ("memory_give", "free")):
                self.symbols[name] = ctypes.cast(getattr(c_library(), function), ctypes.c_void_p).value or 0
            self.symbols["np_handler"] = self.symbols.get("np_default_handler", 0)
        self._take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self.symbols["memory_take"])
        self._give = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.symbols["memory_give"])
        self._set_handler: Callable[[Any], Any] | None = None
        if "np_set_handler" in self.symbols:
            signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
            self._set_handler = signature(self.symbols["np_set_handler"])
        #: The function by which programs are called; `None` where arrays are not what it takes them for.
        self.call = load_call(processor, self.symbols) if array_symbols() is not None else None
        self.host_steps = HostSteps()
        self._lock = threading.Lock()
        self.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_threads)

    def start(self) -> None:
        """Start its threads, if that was not done in this process."""
        with self._lock:
            if not self.pool.is_ready:
                if self.memory is not None:
                    self.memory.start()
                self.pool.start()

    def take(self, nbytes: int) -> int:
        """The address of so many bytes for temporaries; 0 for none."""
        if not nbytes:
            return 0
        taken = self._take(nbytes)
        if not taken:
            raise MemoryError(f"no memory for {nbytes:,} bytes of temporaries")
        return int(taken)

    def give(self, address: int) -> None:
        """Give back what was taken."""
        if address:
            self._give(address)

    def run(self, function: Callable[..., Result], *given: Any) -> Result:
        """Call it with large arrays that NumPy makes in memory that was used before."""
        # A context ends with what was set in it, also when Ctrl-C comes in between.
        return contextvars.copy_context().run(self._run, function, *given)

    def _run(self, function: Callable[..., Result], *given: Any) -> Result:
        if self._set_handler is not None and self.memory is not None:
            before = self._set_handler(self.memory.handler)
            # A handler that the user has set stays in use.
            if id(before) != self.symbols["np_default_handler"]:
                self._set_handler(before)
        return function(*given)

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()
        self.pool.forget_threads()
        self.host_steps.forget_threads()
        if self.memory is not None:
            self.memory.forget_threads()


_lock = threading.Lock()
_made: NativeRuntime | None = None


def _new_lock() -> None:
    """In a process that was forked: whoever held it is not there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def native_runtime() -> NativeRuntime:
    """The one of this process."""
    global _made
    if _made is None:
        with _lock:
            if _made is None:
                _made = NativeRuntime(host_processor())
    return _made
