"""Mismatches: a device differed from NumPy. Told once, kept for a report, not used for that function again."""

from __future__ import annotations

import base64
import contextlib
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from anygpu.agreement.comparison import Difference
from anygpu.base.cache_folder import cache_folder, decoded, write_file
from anygpu.base.own_files import blake2b, read_file
from anygpu.base.printable import encode_json
from anygpu.base.version import __version__
from anygpu.engines.catalogue import library_version
from anygpu.errors import ResultMismatch
from anygpu.hardware.device import Device, parse_device
from anygpu.program.graph import Program
from anygpu.program.wire import to_bytes

FOLDER = "mismatches"
#: Files that are kept; the oldest go.
_MOST_FILES = 20
#: Elements of an array that are shown.
_SHOWN = 60


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A disagreement of a device with NumPy, as it is kept and reported. The user's data is not in it, only hashes."""

    id: str
    when: str
    task: str
    device: str
    #: The difference, as a sentence.
    sentence: str
    #: Which array of the return value, and where in it.
    leaf: int
    index: tuple[int, ...]
    expected: str
    got: str
    differing: int
    #: Whether it was found before any result was returned, or by a sample afterwards.
    before_use: bool
    device_facts: dict[str, str]
    versions: dict[str, str]
    #: For each input of the program: its type, its shape and a hash of its bytes.
    inputs: tuple[str, ...]
    #: The byte form of the program in base64.
    program: str

    @property
    def command(self) -> str:
        """The command that shows the report."""
        return f"anygpu verify --report {self.id}"

    def warning(self) -> ResultMismatch:
        """Return the warning for the user, which may also be raised."""
        return ResultMismatch(
            self.task,
            self.device,
            self.sentence,
            index=self.index,
            expected=self.expected,
            got=self.got,
            command=self.command,
            before_use=self.before_use,
        )

    @property
    def reason(self) -> str:
        """The reason in the receipts of later calls."""
        return f"{self.device} differed from NumPy ({self.sentence}), so it stays on numpy: {self.command}."


def mismatch(
    task: str,
    device: str,
    facts: Device | None,
    program: Program,
    inputs: Sequence[Any],
    found: Difference,
    *,
    before_use: bool,
) -> Mismatch:
    """Describe a difference with all that a report needs; of the inputs only types, shapes and hashes."""
    wire = to_bytes(program)
    digest = blake2b(wire + device.encode() + repr(found.index).encode(), digest_size=4).hexdigest()
    described = tuple(
        f"{each.dtype.name}{list(each.shape)} {blake2b(each.tobytes(), digest_size=8).hexdigest()}"
        for each in map(np.asarray, inputs)
    )
    return Mismatch(
        id=digest,
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        task=task,
        device=device,
        sentence=found.sentence,
        leaf=found.leaf,
        index=found.index,
        expected=repr(found.expected)[:_SHOWN],
        got=repr(found.got)[:_SHOWN],
        differing=found.count,
        before_use=before_use,
        device_facts=_facts(facts),
        versions=_versions(device),
        inputs=described,
        program=base64.b64encode(wire).decode(),
    )


def _facts(device: Device | None) -> dict[str, str]:
    """Return the facts about a device that a report states."""
    if device is None:
        return {}
    names = ("engine", "kind", "name", "driver", "api")
    return {name: str(value) for name in names if (value := getattr(device, name, None)) is not None}


def _versions(device: str) -> dict[str, str]:
    """Return the versions of all libraries that take part, for a report."""
    found = {"anygpu": __version__, "numpy": np.__version__, "python": platform.python_version()}
    found["system"] = platform.platform()
    engine = parse_device(device).engine
    if (version := library_version(engine)) is not None:
        found[engine] = version
    return found


def keep(found: Mismatch) -> None:
    """Write a mismatch to the cache folder, for `anygpu verify --report`, and delete the oldest files.

    If the folder cannot be written to, only the report is lost.
    """
    folder = cache_folder() / FOLDER
    if write_file(folder / f"{found.id}.json", encode_json(found)):
        with contextlib.suppress(OSError):
            files = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
            for old in files[:-_MOST_FILES]:
                old.unlink(missing_ok=True)


def kept() -> list[Mismatch]:
    """Return the mismatches that earlier processes have kept, the latest last; skip files that are not mismatches."""
    found: list[tuple[str, Mismatch]] = []
    with contextlib.suppress(OSError):
        for path in (cache_folder() / FOLDER).glob("*.json"):
            read = decoded(msgspec.json.decode, read_file(path), Mismatch)
            if read is not None:
                found.append((read.when, read))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def tell(found: Mismatch, function: Callable[..., Any]) -> ResultMismatch | None:
    """Warn of a mismatch, at the line on which the function begins; returned instead of raised if a filter makes it an
    error.
    """
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    warning = found.warning()
    try:
        file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("anygpu", 0)
        warnings.warn_explicit(warning, ResultMismatch, file, line, module=getattr(inner, "__module__", None))
    except ResultMismatch as error:
        return error
    return None
