"""Verifies the tensors of a file or a folder by their hashes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from anygpu.tensor_files.folders import open_folder
from anygpu.tensor_files.safetensors import open_file


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification in which all hashes matched."""

    checked: int
    nbytes: int
    #: Tensors without a hash, or with one of a kind that this version does not know.
    unchecked: tuple[str, ...]


def verify(path: str | os.PathLike[str], *, outside_links: bool = False) -> Verified:
    """Read everything and compare it with the hashes in the metadata; `InvalidTensorFile` names what is not right."""
    target = Path(path)
    with open_folder(target, outside_links=outside_links) if target.is_dir() else open_file(target) as opened:
        compared = {name: opened.check(name) for name in opened.names}
    sizes = [size for size in compared.values() if size is not None]
    without = tuple(name for name, size in compared.items() if size is None)
    return Verified(checked=len(sizes), nbytes=sum(sizes), unchecked=without)
