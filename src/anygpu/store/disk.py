"""The lowest tier: one file per content, in a folder that is deleted with the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.program.primitives import Spec
from anygpu.store.contents import HostBytes


class Folder:
    """A private folder inside the given one, or a temporary one, created when it is first needed."""

    def __init__(self, where: str | os.PathLike[str] | bool) -> None:
        if not isinstance(where, bool | str | os.PathLike):
            raise InvalidOption(f"disk= is a folder, or True for a temporary one; got {where!r}.")
        self._parent = None if isinstance(where, bool) else Path(where)
        self._path: Path | None = None
        self._end: weakref.finalize[[Path, int], Folder] | None = None

    @property
    def path(self) -> Path:
        if self._path is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._path = Path(tempfile.mkdtemp(prefix="anygpu-store-", dir=self._parent))
            self._end = weakref.finalize(self, _remove, self._path, os.getpid())
        return self._path

    def write(self, number: int, values: HostArray, spec: Spec) -> HostBytes:
        """The values in a file, mapped into memory, so that reading them costs memory only while that is there."""
        path = self.path / f"{number}.bin"
        np.ascontiguousarray(values).tofile(path)
        if not values.nbytes:
            return HostBytes(np.zeros(spec.shape, values.dtype), "disk", lambda: _unlink(path))
        mapped = np.memmap(path, values.dtype, "r", shape=spec.shape or (1,)).reshape(spec.shape)
        return HostBytes(np.asarray(mapped), "disk", lambda: _unlink(path))

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._path = self._end = None


def _unlink(path: Path) -> None:
    # Where a mapped file cannot be deleted, it goes with the folder.
    with contextlib.suppress(OSError):
        path.unlink()


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a process that was forked leaves it to the one that made it
        shutil.rmtree(path, ignore_errors=True)
