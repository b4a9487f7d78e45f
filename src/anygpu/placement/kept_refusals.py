"""Why calls were not proved to leave nothing behind, kept for the next process, which need not evaluate them again.

That a call *was* proved is not kept: a proof is about the objects of one process, which it compares before each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from anygpu._version import __version__
from anygpu.base.cache_location import cache_location
from anygpu.engines.disk_cache import DiskCache
from anygpu.history.hints import mark_of_code
from anygpu.placement.native_site import NativeSite

_KIND = "refusal"


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Why a call was not proved, and the sizes and times of all files of source that were read for it."""

    why: str
    files: dict[str, tuple[int, int]]


def keep_refusal(site: NativeSite, why: str, files: Iterable[str]) -> None:
    """Keep it for such calls of the function, for as long as these files stay the same."""
    key = _key(site)
    if key is not None:
        with contextlib.suppress(OSError):
            _kept(cache_location()).put_record(_KIND, key, Refusal(why, {each: _facts(each) for each in files}))


def kept_refusal(site: NativeSite) -> str | None:
    """What was kept, if all files are the same."""
    key = _key(site)
    found = None if key is None else _kept(cache_location()).record(_KIND, key, Refusal)
    try:
        return None if found is None or any(_facts(each) != was for each, was in found.files.items()) else found.why
    except OSError:
        return None


def _key(site: NativeSite) -> bytes | None:
    code = site.known.code
    return None if code is None else msgspec.msgpack.encode(mark_of_code(code, site.key))


def _facts(file: str) -> tuple[int, int]:
    found = Path(file).stat()
    return found.st_size, found.st_mtime_ns


@cache
def _kept(folder: str) -> DiskCache:
    return DiskCache(Path(folder) / "proofs", f"{__version__} {np.__version__}")
