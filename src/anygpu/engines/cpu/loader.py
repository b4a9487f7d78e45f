"""Native code in this process: for which processor it is compiled, its images on disk, and how they are loaded.

An image is copied to memory, its missing addresses are filled in, and it may run. Code is there for as long as its
`Code` object is. Whoever calls it holds that object, so what is dropped has no thread in it, and its memory goes back
to the system at once.

On Linux an image is all that is loaded. Elsewhere objects have other formats, and LLVM's own loader (ORC) takes them:
that keeps some kilobytes of everything that it has ever loaded, and LLVM with all its memory comes to this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from anygpu.base.cache_location import cache_location
from anygpu.base.own_files import blake2b
from anygpu.base.version import __version__
from anygpu.engines.cpu import compile_child
from anygpu.engines.cpu.compiler import compiled, described_host
from anygpu.engines.cpu.numpy_loops import mark_of_numpy
from anygpu.engines.disk_cache import DiskCache, mark_of_llvmlite
from anygpu.errors import CannotCompile, InvalidOption
from anygpu.program.graph import Program

# -- the processor: of this machine, or a lesser one that a test or a user asks for


_SSE2 = ("cx8", "fxsr", "mmx", "sse", "sse2")
_SSE42 = (*_SSE2, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_AVX2 = (*_SSE42, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
#: What `ANYGPU_CPU_FEATURES` may say beside "native": the levels of x86-64, and plain ARM.
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": _SSE2,
    "x86-64-v2": _SSE42,
    "x86-64-v3": _AVX2,
    "x86-64-v4": _AVX512,
    "armv8-a": ("fp-armv8", "neon"),
}


class HostProcessor(msgspec.Struct, frozen=True):
    """A processor as LLVM has it."""

    cpu: str
    #: Each with a plus or a minus, separated by commas.
    features: str
    triple: str
    data_layout: str
    #: The version of LLVM.
    llvm: str

    @property
    def present(self) -> frozenset[str]:
        """The features that it has."""
        return frozenset(each[1:] for each in self.features.split(",") if each.startswith("+"))

    @property
    def vector_bytes(self) -> int:
        return 64 if "avx512f" in self.present else 32 if "avx" in self.present else 16

    def as_request(self) -> dict[str, str]:
        """As the compiler is told."""
        return {**msgspec.structs.asdict(self), "vector_bytes": str(self.vector_bytes)}


def host_processor() -> HostProcessor:
    """The processor to compile for."""
    return _restricted(os.environ.get("ANYGPU_CPU_FEATURES", "native"))


@cache
def _restricted(wanted: str) -> HostProcessor:
    """The processor that code is made for: this one, or less of it as ANYGPU_CPU_FEATURES asks for.

    Raises `InvalidOption` for an unknown level.
    """
    host = _host()
    if wanted in ("native", ""):
        return host
    if wanted not in LEVELS:
        raise InvalidOption(f"ANYGPU_CPU_FEATURES is {wanted!r}. Use native or one of {', '.join(LEVELS)}.")
    # Never more than there is: the code runs on this machine.
    features = ",".join(f"+{name}" for name in LEVELS[wanted] if name in host.present)
    cpu = "x86-64" if wanted.startswith("x86") else "generic"
    return msgspec.structs.replace(host, cpu=cpu, features=features)


@cache
def _host() -> HostProcessor:
    """Kept on disk: asking LLVM takes as long as loading it."""
    known = DiskCache(os.path.join(cache_location(), "native"), "")
    key = msgspec.json.encode((processor_facts(), mark_of_llvmlite(), sys.platform, platform.machine()))
    found = known.record("processor", key, HostProcessor)
    if found is None:
        found = HostProcessor(**described_host())
        known.put_record("processor", key, found)
    return found


def processor_facts() -> str:
    """All that this machine says of its first processor, by which another one is recognised."""
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return platform.processor()
    changing = ("cpu mhz", "bogomips", "processor", "apicid", "core id", "initial apicid")
    return "\n".join(line for line in first.splitlines() if not line.lower().startswith(changing))


# -- images on disk: a program is compiled once for a machine and not once for a process
# An image is code that this process will run. It counts only when nobody but this user can have written its file, and
# when a digest of the content and of what it is for is right (see `anygpu.engines.disk_cache`): a file that is damaged,
# truncated, swapped with another or made for another processor is as good as none.


Record = TypeVar("Record")


def image_of(text: str, processor: HostProcessor, *, level: int = 2, link: bool = True) -> bytes:
    """The native code of a module: from the disk if it was ever compiled, else from LLVM."""
    kept = _kept(cache_location())
    key = msgspec.msgpack.encode((text, processor, level, link))
    image = kept.get("image", key)
    if image is None:
        image = compiled(text, processor.as_request(), level=level, link=link)
        kept.put("image", key, image)
    return image


def kept_program(
    program: Program, processor: HostProcessor, of: type[Record], compile_program: Callable[[], Record]
) -> Record:
    """What was made of a program: from the disk if it ever was, else by the function. So neither nests nor IR are made
    again, which take longer than loading code does.
    """
    kept = _kept(cache_location())
    key = msgspec.msgpack.encode((program.key, processor, _sources()))
    found = kept.record("program", key, of)
    if found is None:
        found = compile_program()
        kept.put_record("program", key, found)
    return found


def keep_fact(kind: str, program: Program, about: tuple[Any, ...], fact: Any) -> None:
    """Keep what was found out about the code of a program, for as long as the code stays the same."""
    _kept(cache_location()).put_record(kind, _fact_key(program, about), fact)


def kept_fact(kind: str, program: Program, about: tuple[Any, ...], of: type[Record]) -> Record | None:
    """What `keep_fact` has kept."""
    return _kept(cache_location()).record(kind, _fact_key(program, about), of)


def _fact_key(program: Program, about: tuple[Any, ...]) -> bytes:
    return msgspec.msgpack.encode((program.key, host_processor(), _sources(), about))


@cache
def _sources() -> str:
    """By which a change of the code that compiles is noticed, as Python notices that its own files are out of date."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    digest = blake2b(digest_size=16)
    for part in ("codegen", "engines/cpu", "program"):
        for folder, below, names in os.walk(os.path.join(package, part)):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(names):
                facts = os.stat(f"{folder}/{name}")
                digest.update(f"{folder}/{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@cache
def _kept(folder: str) -> DiskCache:
    """Return the images on disk for this version, compiler, and NumPy: the layout of its objects, and its loops."""
    numpy_abi = np._core._multiarray_umath._get_ndarray_c_version()  # type: ignore[attr-defined]
    compiler = (mark_of_llvmlite(), compile_child.PASSES, compile_child.FORMAT)
    stamp = msgspec.json.encode((__version__, compiler, numpy_abi, mark_of_numpy(), object.__basicsize__))
    return DiskCache(os.path.join(folder, "native"), stamp.decode())


# -- loading


#: Whether images are loaded here; else objects are.
LOADS_IMAGES = sys.platform == "linux"


class Code(Protocol):
    """Loaded code: the addresses of what it exports."""

    def __getitem__(self, name: str) -> int: ...


class _Header(msgspec.Struct):
    """The first line of an image: offsets of its exports, and of the addresses that are to be filled in."""

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
        """Copy an image to memory of its own, fill in its addresses, and make it executable.

        The memory goes back to the system with this object. Raises `CannotCompile` where a system forbids that.
        """
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
        """Link an object with LLVM's own loader, in this process; for systems whose objects are not ELF."""
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
    """LLVM's loader for a processor, made once."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(processor.triple)
    machine = target.create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=2, reloc="pic", codemodel="jitdefault"
    )
    return llvm.create_lljit_compiler(machine)


def _map_memory(size: int) -> int:
    """The address of new pages that can be written. Raises `MemoryError`."""
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
    """The address of an import: one of ours, or of the C library. Raises `CannotCompile` for unknown names."""
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
