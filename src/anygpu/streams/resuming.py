"""The record beside a file that a stream writes, from which another process can resume it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anygpu.base.units import readable_bytes
from anygpu.errors import InvalidOption
from anygpu.streams.sources import Identity
from anygpu.tensor_files.writing import sync_folder

_VERSION = 2


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a stream, and how far it has come."""

    version: int = _VERSION
    #: The key of the program of the whole array.
    program: str
    #: A hash of the arrays that the function uses besides its arguments.
    surroundings: str
    axis: int
    sources: tuple[Identity, ...]
    #: Names of the files.
    sinks: tuple[str, ...]
    #: Steps along the split axis of the results that are in the files, and on the disk.
    done: int = 0
    length: int
    #: The span of each piece, and a hash of its values in all files.
    pieces: tuple[tuple[int, int, str], ...] = ()


def digest_of(arrays: Sequence[Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for each in arrays:
        array = np.ascontiguousarray(each)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def record_path_of(path: Path) -> Path:
    """The path of the record of a stream into this file."""
    return path.with_name(f"{path.name}.partial.json")


def earlier_record(now: Record, partials: Sequence[Path], record_path: Path) -> Record:
    """The record of an earlier stream; `now` if there is none. Raises if it was a different stream."""
    try:
        data = record_path.read_bytes()
    except FileNotFoundError:
        return now
    if not all(each.exists() for each in partials):
        return now
    try:
        before = msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as error:
        raise InvalidOption(f"{record_path} cannot be read ({error}). {_anew(record_path, partials)}") from None
    different = list(_differences(before, now))
    if different:
        raise InvalidOption(
            f"the stream into {record_path.name.removesuffix('.partial.json')} cannot go on: {'; '.join(different)}. "
            f"{_anew(record_path, partials)}"
        )
    return before if _adds_up(before) else now


def _adds_up(record: Record) -> bool:
    """Whether its pieces cover everything from the beginning to `done`."""
    end = 0
    for start, stop, _ in record.pieces:
        if start != end or stop < start:
            return False
        end = stop
    return end == record.done <= record.length


def write_record(record: Record, record_path: Path) -> None:
    """Write the record atomically."""
    new = record_path.with_name(f"{record_path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    new.replace(record_path)
    sync_folder(record_path.parent)


def _differences(before: Record, now: Record) -> list[str]:
    if before.version != now.version:
        return ["it was begun by another version of anygpu"]
    found: list[str] = []
    if before.program != now.program:
        found.append("the function has changed")
    if before.surroundings != now.surroundings:
        found.append("arrays that the function uses besides its arguments have changed")
    if before.axis != now.axis:
        found.append(f"it went along axis {before.axis}, and now along axis {now.axis}")
    if before.sinks != now.sinks:
        found.append(f"it wrote to {', '.join(before.sinks)}, and now to {', '.join(now.sinks)}")
    if len(before.sources) != len(now.sources):
        found.append(f"it had {len(before.sources)} sources, and now has {len(now.sources)}")
        return found
    for old, new in zip(before.sources, now.sources, strict=True):
        found += _differences_of(old, new)
    return found


def _differences_of(old: Identity, new: Identity) -> list[str]:
    if (old.path, old.part) != (new.path, new.part):
        return [f"it read {old.path}, and now reads {new.path}"]
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        return [f"{new.path} was {old.dtype}{list(old.shape)}, and is {new.dtype}{list(new.shape)} now"]
    if old.size != new.size:
        return [f"{new.path} had {readable_bytes(old.size)}, and has {readable_bytes(new.size)} now"]
    same = (old.changed, old.ends) == (new.changed, new.ends)
    return [] if same else [f"{new.path} has been written to since"]


def _anew(record_path: Path, partials: Sequence[Path]) -> str:
    return (
        f"Delete {', '.join(str(each) for each in (record_path, *partials))} to begin anew, or leave out resume=True."
    )
