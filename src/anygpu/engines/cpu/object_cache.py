"""Images of native code on disk, so that a program is compiled once for a machine and not once for a process.

An image is code that this process will run. It counts only when nobody but this user can have written its file, and
when a digest of the content and of what it is for is right (see `anygpu.engines.disk_cache`): a file that is damaged,
truncated, swapped with another or made for another processor is as good as none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from anygpu._version import __version__
from anygpu.base.cache_location import cache_location
from anygpu.base.digest import blake2b
from anygpu.engines.cpu import compile_child
from anygpu.engines.cpu.compiler import compiled
from anygpu.engines.cpu.target import HostProcessor, host_processor
from anygpu.engines.disk_cache import DiskCache
from anygpu.engines.distributions import mark_of_llvmlite
from anygpu.program.graph import Program

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
    numpy_abi = np._core._multiarray_umath._get_ndarray_c_version()  # type: ignore[attr-defined]
    compiler = (mark_of_llvmlite(), compile_child.PASSES, compile_child.FORMAT)
    stamp = msgspec.json.encode((__version__, compiler, numpy_abi, object.__basicsize__))
    return DiskCache(os.path.join(folder, "native"), stamp.decode())
