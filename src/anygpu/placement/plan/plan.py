"""A plan: where a call could run, in order, with what is predicted for each and one sentence why.

A `Plan` is what `explain` returns and what a receipt quotes: `Candidate`s that could run the call, and those that were
`Refused`, each with a sentence.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.base.events import drawn
from anygpu.base.printable import encode_json
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.receipts.receipt import Phases

#: measured: from earlier calls of this very program there; predicted: from the device's calibration;
#: assumed: from its kind alone, before a calibration.
Basis = Literal["measured", "remembered", "predicted", "assumed"]


#: Lines of nests that a plan shows; programs of hundreds of operations have more.
_MOST_LINES = 40


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One place, or two together, that could run the call."""

    device: str
    #: The expected seconds of one call, without compiling.
    seconds: float
    basis: Basis
    #: By phase, where it was predicted.
    phases: Phases | None = None
    #: Building what was never built before, paid once.
    compile_seconds: float = 0.0
    #: The most device memory that is predicted to be needed at once.
    peak_bytes: int | None = None
    #: How the work is cut, if it is: "in 12 pieces along axis 0".
    how: str | None = None
    #: Predicted seconds on the way to another machine and back, which are among `seconds`; `None` on this one.
    network_seconds: float | None = None
    sentence: str


def shortened(nests: str) -> list[str]:
    """The lines of nests that a plan shows to people."""
    lines = nests.splitlines()
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more lines, which `plan.nests` has."]


class Refused(msgspec.Struct, frozen=True):
    """A device that cannot or may not run the call."""

    device: str
    sentence: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen, and why. Nothing has been run for it."""

    task: str
    #: The candidate that the next call goes to.
    chosen: str
    reason: str
    #: Best first.
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...] = ()
    #: The program's key; `None` when the function was not recorded, with the reason in `not_recorded`.
    program: str | None = None
    not_recorded: str | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    flops: int | None = None
    #: Where the chosen device is `cpu`: the loop nests that it computes, and what NumPy does between them.
    nests: str | None = None

    def candidate(self, device: str) -> Candidate | None:
        return next((each for each in self.candidates if each.device == device), None)

    def to_json(self) -> bytes:
        return encode_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Plan:
        return msgspec.json.decode(data, type=cls)

    def __str__(self) -> str:
        """The plan as a table: the choice, what the program does, each candidate with its time and its reason."""
        lines = [f"{self.task} would run on {self.chosen}: {self.reason}"]
        if self.program is not None and self.bytes_in is not None and self.bytes_out is not None:
            lines.append(
                f"  its program: {self.flops:,} operations, {readable_bytes(self.bytes_in)} in, "
                f"{readable_bytes(self.bytes_out)} out"
            )
        if self.not_recorded is not None:
            lines.append(f"  not traced: {self.not_recorded}")
        names = [each.device for each in self.candidates] + [each.device for each in self.refused]
        width = max(map(len, names), default=0)
        for each in self.candidates:
            mark = "→" if each.device == self.chosen else " "
            what = f"{readable_seconds(each.seconds):>10} {each.basis}"
            if each.phases is not None and each.basis != "measured":
                what += f" ({each.phases})"
            if each.network_seconds is not None:
                what += f", network {readable_seconds(each.network_seconds)}"
            if each.how is not None:
                what += f", {each.how}"
            lines.append(f"{mark} {each.device:<{width}}  {what}")
            lines.append(f"  {'':<{width}}  {each.sentence}")
        lines.extend(f"✗ {each.device:<{width}}  {each.sentence}" for each in self.refused)
        if self.nests is not None:
            lines += ["", *shortened(self.nests)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan: {self.task} would run on {self.chosen}: {self.reason}>"

    def _repr_html_(self) -> str | None:
        return drawn(self)
