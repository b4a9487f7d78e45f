"""What the operations of programs took: what their programs took, in proportion to the work that each does.

No engine measures operations: they are fused into kernels. The seconds of a program are measured, and their division is
an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from anygpu.observe.profile_records import OperationProfile
from anygpu.receipts import Receipt

if TYPE_CHECKING:
    from anygpu.program.graph import Program

#: Arithmetic that takes about as long as moving a byte does.
_FLOPS_OF_A_BYTE = 10
#: Programs that are remembered.
_MOST = 2000


class _Part(NamedTuple):
    operation: str
    line: str | None
    #: Of 1.
    part: float


class Operations:
    """Adds up what programs took."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        #: Seconds and runs by program and device.
        self._runs: dict[tuple[str, str], list[float]] = {}

    def recorded(self, program: Program) -> None:
        if len(self._programs) < _MOST:
            self._programs[program.key] = program

    def ran(self, receipt: Receipt) -> None:
        if receipt.program is None:
            return
        seconds = receipt.device_seconds if receipt.device_seconds is not None else receipt.phases.run
        known = self._runs.setdefault((receipt.program, receipt.device), [0.0, 0])
        known[0] += seconds
        known[1] += 1

    def profile(self) -> tuple[OperationProfile, ...]:
        """The longest first."""
        found: dict[tuple[str, str | None, str], list[float]] = {}
        for (key, device), (seconds, runs) in self._runs.items():
            program = self._programs.get(key)
            parts = [_Part("a program", None, 1.0)] if program is None else parts_of(program)
            for part in parts:
                known = found.setdefault((part.operation, part.line, device), [0.0, 0])
                known[0] += seconds * part.part
                known[1] += runs
        operations = [
            OperationProfile(operation=operation, device=device, line=line, seconds=seconds, runs=int(runs))
            for (operation, line, device), (seconds, runs) in found.items()
        ]
        return tuple(sorted(operations, key=lambda each: -each.seconds))


def parts_of(program: Program) -> list[_Part]:
    """The operations of a program that do something, with the part of its work that each is."""
    from anygpu.program.costs import node_costs

    weights: dict[tuple[str, str | None], float] = {}
    for node, cost, line in zip(program.nodes, node_costs(program), program.lines, strict=True):
        if cost.kind in ("input", "creation"):
            continue
        work = cost.bytes_read + cost.bytes_written + cost.flops / _FLOPS_OF_A_BYTE
        if work:
            key = (node.op.label, None if line is None else f"{line[0]}:{line[1]}")
            weights[key] = weights.get(key, 0.0) + work
    whole = sum(weights.values())
    if not whole:
        return [_Part("moving data", None, 1.0)]
    return [_Part(operation, line, weight / whole) for (operation, line), weight in weights.items()]
