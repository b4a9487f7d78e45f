"""Memory for large results and temporaries that is used again (`memory.ll`).

A third of the time of a large elementwise program is the system's, which gives each new page to the process one by one.
Results come from NumPy's allocator with a handler of ours (NEP 49): the arrays own their memory as any other do, and
when the last reference to one goes, its memory waits here for the next result, for some seconds.
"""

from __future__ import annotations

import ctypes
import os

from anygpu.engines.cpu.loader import load
from anygpu.engines.cpu.native_threads import keep_forever, native_text, start_thread
from anygpu.engines.cpu.target import HostProcessor

#: Results and temporaries from so many bytes on. Below that, new pages cost less than what is done around them.
LARGE_BYTES = 1 << 20
#: Bytes that may wait to be used again: so many, and not more than this part of what the machine has.
_MOST_BYTES, _MOST_PART = 256 << 20, 16

_FUNCTIONS = ("memory_malloc", "memory_calloc", "memory_realloc", "memory_free")


class _State(ctypes.Structure):
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
        memory = ctypes.create_string_buffer(ctypes.sizeof(_State) + 64)
        keep_forever(memory)
        self._state = _State.from_address(-(-ctypes.addressof(memory) // 64) * 64)
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
        """In a process that was forked: nobody is at the list."""
        self._state.busy = 0


def _memory_total() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 30
