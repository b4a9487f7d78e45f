"""Threads of the system that run native code, and the code of this engine's own that they run (`*.ll`)."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from typing import Any

from anygpu.engines.cpu.target import HostProcessor

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
