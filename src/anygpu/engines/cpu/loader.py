"""Native code in this process: an image is copied to memory, its missing addresses are filled in, and it may run.

Code is there for as long as its `Code` object is. Whoever calls it holds that object, so what is dropped has no thread
in it, and its memory goes back to the system at once.

On Linux an image is all that is loaded. Elsewhere objects have other formats, and LLVM's own loader (ORC) takes them:
that keeps some kilobytes of everything that it has ever loaded, and LLVM with all its memory comes to this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from anygpu.engines.cpu.object_cache import image_of
from anygpu.engines.cpu.target import HostProcessor
from anygpu.errors import CannotCompile

#: Whether images are loaded here; else objects are.
LOADS_IMAGES = sys.platform == "linux"


class Code(Protocol):
    """Loaded code: the addresses of what it exports."""

    def __getitem__(self, name: str) -> int: ...


class _Header(msgspec.Struct):
    exports: dict[str, int]
    imports: list[tuple[int, str]]
    relative: list[tuple[int, int]]


def load(text: str, processor: HostProcessor, symbols: Mapping[str, int], exports: Sequence[str]) -> Code:
    """Compile a module of a few hundred instructions, or find it on disk, and load it.

    `symbols` are addresses that it may refer to; functions of the C library need not be among them. `exports` are the
    functions whose addresses the result has. LLVM makes level 0 in a fifth of the time, and such code runs as fast.
    """
    return loaded(image_of(text, processor, level=0, link=LOADS_IMAGES), processor, symbols, exports)


def loaded(image: bytes, processor: HostProcessor, symbols: Mapping[str, int], exports: Sequence[str]) -> Code:
    """Load what was compiled: an image, or elsewhere than on Linux an object."""
    if LOADS_IMAGES:
        return Image(image, symbols)
    return _OrcLibrary(image, processor, symbols, exports)


class Image:
    """An image in memory (see `anygpu.engines.cpu.compile_child.linked`)."""

    def __init__(self, image: bytes, symbols: Mapping[str, int]) -> None:
        line, _, body = image.partition(b"\n")
        header = msgspec.json.decode(line, type=_Header)
        # A program of host steps alone has no code.
        size = max(1, -(-len(body) // mmap.PAGESIZE)) * mmap.PAGESIZE
        address = _map_memory(size)
        weakref.finalize(self, c_library().munmap, address, size).atexit = False
        filled = bytearray(body)
        for place, name in header.imports:
            struct.pack_into("<Q", filled, place, _address_of(name, symbols))
        for place, offset in header.relative:
            struct.pack_into("<Q", filled, place, address + offset)
        ctypes.memmove(address, bytes(filled), len(filled))
        # Never writable and executable at once. Processors whose caches have to be told of new code are told by the
        # kernel when memory becomes executable.
        if c_library().mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise CannotCompile("cpu", f"this system lets no process make code ({_errno()})")
        self._addresses = {name: address + offset for name, offset in header.exports.items()}

    def __getitem__(self, name: str) -> int:
        return self._addresses[name]


class _OrcLibrary:
    """An object that LLVM has loaded."""

    _numbers = itertools.count()

    def __init__(
        self, emitted: bytes, processor: HostProcessor, symbols: Mapping[str, int], exports: Sequence[str]
    ) -> None:
        import llvmlite.binding as llvm

        library = llvm.JITLibraryBuilder().add_object_img(emitted).add_current_process()
        for name, address in symbols.items():
            library.import_symbol(name, address)
        for name in exports:
            library.export_symbol(name)
        self._tracker = library.link(_orc_session(processor), f"anygpu{next(self._numbers)}")

    def __getitem__(self, name: str) -> int:
        address: int = self._tracker[name]
        return address


@cache
def _orc_session(processor: HostProcessor) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(processor.triple)
    machine = target.create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=2, reloc="pic", codemodel="jitdefault"
    )
    return llvm.create_lljit_compiler(machine)


def _map_memory(size: int) -> int:
    mapped = c_library().mmap(
        None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    if mapped in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"no memory for native code ({_errno()})")
    address: int = mapped
    return address


def _errno() -> str:
    return os.strerror(ctypes.get_errno())


def _address_of(name: str, symbols: Mapping[str, int]) -> int:
    if name in symbols:
        return symbols[name]
    with contextlib.suppress(AttributeError):
        found = ctypes.cast(getattr(c_library(), name), ctypes.c_void_p).value
        if found:
            return found
    raise CannotCompile("cpu", f"the code refers to {name}, which is not there")


@cache
def c_library() -> ctypes.CDLL:
    """The C library, or whatever of it the process has."""
    if sys.platform == "win32":
        return ctypes.cdll.msvcrt
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
