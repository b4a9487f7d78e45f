"""The record of one verification: a document without personal data, which can be attached to a report."""

from __future__ import annotations

import getpass
import math
import re
import socket
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

# -- takes out of a text what tells whose machine it comes from: messages of drivers and compilers name files


#: Shorter names are parts of too many words.
_SHORTEST = 3
#: Absolute paths of at least two parts, of Unix and of Windows, and what stands for a folder already.
_PATHS = re.compile(r"(?<![\w/\\:.])…?(?:/[^\s/'\":;,()<>]+){2,}/?|(?:\b[A-Za-z]:|…)\\[^\s'\":;,()<>]+")
_IDENTITIES = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\bGPU-[0-9a-fA-F-]{8,}\b")


class Owner(NamedTuple):
    """Who must not be recognised."""

    #: Folders that tell who it is, the longest first.
    folders: tuple[str, ...]
    #: Names of the user and of the machine.
    names: tuple[str, ...]


def this_owner() -> Owner:
    folders = {path for path in (tempfile.gettempdir(), _home()) if path.strip("/")}
    host = socket.gethostname()
    names = [_user(), host, host.partition(".")[0]]
    return Owner(
        tuple(sorted(folders, key=len, reverse=True)),
        tuple(dict.fromkeys(name for name in names if len(name) >= _SHORTEST)),
    )


def without_personal_data(text: str, owner: Owner) -> str:
    """The text without folders, identities of cards, and names of the user and the machine; files keep their names."""
    for folder in owner.folders:
        text = text.replace(folder, "…")
    text = _IDENTITIES.sub("<identity>", text)
    text = _PATHS.sub(lambda found: "…/" + re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
    for name in owner.names:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text, flags=re.IGNORECASE)
    return text


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:  # the system does not know one
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run as a user without a name
        return ""


SCHEMA = "anygpu.verify/1"

#: differs: a value is not NumPy's within the tolerances. raises: an error that should not be, or none that should.
#: crashes: the process that has the device died. hangs: there was no answer in time.
FindingKind = Literal["differs", "raises", "crashes", "hangs"]

#: complete: every case was tried. time: the time was over. interrupted: by the user. given up: it died too often.
CheckEnd = Literal["complete", "time", "interrupted", "given up"]


class WrongCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case in which the device was wrong."""

    check: str
    case: str
    #: The number of the case; of random programs the seed.
    seed: int
    kind: FindingKind
    sentence: str
    driver: str
    #: What is computed in the smallest program that is still wrong.
    operations: tuple[str, ...] = ()
    #: The text of that program; `None` where the case is not a program.
    program: str | None = None
    #: How many nodes it has, and had before it was reduced.
    nodes: int | None = None
    nodes_before: int | None = None
    #: The command that repeats the case.
    command: str


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one check."""

    name: str
    proves: str
    #: How many cases there are, and how many were tried.
    cases: int
    tried: int
    #: Cases in which the device was wrong.
    wrong: int
    #: Cases of which a part ran on the host, because the device lacks an operation or a type.
    hosted: int
    #: Cases that say nothing: there was too little memory, or the right answers are too far apart.
    skipped: int
    #: For each reason why cases were skipped: how many were.
    reasons: dict[str, int] = {}
    seconds: float
    ended: CheckEnd


class CallTiming(msgspec.Struct, frozen=True, kw_only=True):
    """What one call took, on the device and on NumPy: the median of several, transfers included."""

    workload: str
    elements: int
    seconds: float
    numpy_seconds: float

    @property
    def speedup(self) -> float:
        return self.numpy_seconds / self.seconds if self.seconds > 0 else math.inf


class VerifiedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the device that tell what it is, and none that tell whose."""

    id: str
    engine: str
    kind: str
    form: str
    name: str
    vendor: str | None
    api: str
    #: As the driver says; "unknown" with the reason where it does not.
    driver: str
    memory: int | None
    #: PCI vendor and device number, where they are known.
    model: str | None
    features: tuple[str, ...]
    limits: dict[str, int]

    @property
    def software(self) -> bool:
        """Whether it computes on the CPU."""
        return self.kind == "cpu"


class VerifiedMachine(msgspec.Struct, frozen=True, kw_only=True):
    system: str
    processor: str
    cores: int | None
    memory: int
    python: str
    #: Versions of the libraries that matter: NumPy's, and the engine's.
    libraries: dict[str, str]


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `anygpu verify` writes."""

    schema: str = SCHEMA
    anygpu: str
    #: The day, such as 2026-11-17.
    date: str
    device: VerifiedDevice
    machine: VerifiedMachine
    #: What it took, and what it might have taken.
    seconds: float
    budget: float
    #: Whether something else had the processors, so that times say little.
    disturbed: bool
    checks: tuple[CheckRecord, ...]
    findings: tuple[WrongCase, ...]
    timings: tuple[CallTiming, ...]

    @property
    def is_clean(self) -> bool:
        return not any(check.wrong for check in self.checks)

    @property
    def speedup(self) -> float | None:
        """The geometric mean over the timings; `None` where there are none."""
        if not self.timings:
            return None
        return math.exp(sum(math.log(max(each.speedup, 1e-9)) for each in self.timings) / len(self.timings))

    def check(self, name: str) -> CheckRecord | None:
        return next((check for check in self.checks if check.name == name), None)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def from_json(data: bytes) -> VerifyRecord:
    """Raises `msgspec.ValidationError` for what is no such document."""
    record = msgspec.json.decode(data, type=VerifyRecord)
    if record.schema != SCHEMA:
        raise msgspec.ValidationError(f"the schema is {record.schema!r}, not {SCHEMA!r}")
    return record
