"""What `anygpu advise` found out about a script, as one record."""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.base.printable import encode_json
from anygpu.observe.findings import Advice

SCHEMA = "anygpu.advice/1"

#: gains: offload it. nested: another that contains it, or is part of it, gains more. The others stay, with the reason.
Verdict = Literal["gains", "nested", "no gain", "transfers", "too small", "not traceable", "no device", "unknown"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a function on one device."""

    device: str
    #: Without compiling; `None` when it cannot run there, with the reason.
    seconds: float | None
    #: "measured", "remembered", "predicted" or "assumed", as in a plan.
    basis: str
    compile_seconds: float | None = None
    #: Of its seconds, those that data takes to the device and back.
    moving_seconds: float | None = None
    reason: str | None = None


class FunctionAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the script that takes arrays."""

    name: str
    #: Where it begins, as `file:line`; with decorators that is the first of them.
    line: str
    calls: int
    #: Of all its calls, with whatever it calls.
    seconds: float
    verdict: Verdict
    #: One sentence: what it would gain, or why not.
    sentence: str
    #: One typical call, as the script ran it.
    numpy_seconds: float
    #: The best device, the seconds of this run that it would have saved, and how many times as fast it is.
    device: str | None = None
    saving: float = 0.0
    speedup: float | None = None
    #: The best first.
    estimates: tuple[Estimate, ...] = ()
    refused: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A script that ran, what its functions would gain, and what its calls of anygpu cost."""

    schema: str = SCHEMA
    script: str
    seconds: float
    #: Seconds of code that is in no function, imports left out.
    outside_functions: float
    uses_anygpu: bool
    functions: tuple[FunctionAdvice, ...] = ()
    findings: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    @classmethod
    def from_json(cls, data: bytes | str) -> Report:
        return msgspec.json.decode(data, type=cls)
