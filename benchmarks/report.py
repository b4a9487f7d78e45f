"""What every benchmark prints: its figures beside their bounds, and the machine they were measured on."""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys

import msgspec

from anygpu.base.units import readable_bytes
from anygpu.hardware import host


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value; `bound` is the most it may be, `None` when it is only reported."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def share(self) -> float:
        """How much of the bound is used: more than 1 is a miss."""
        if self.bound is None or self.value == 0:
            return 0.0
        return self.value / self.bound if self.bound else math.inf

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"   (at most {self.bound:g} {self.unit})"
        miss = "   MISSED" if self.share > 1 else ""
        return f"{self.name:<44} {self.value:>9.4g} {self.unit}{bound}{miss}"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    processor: str
    cores: int | None
    memory: int
    system: str
    python: str


def this_machine() -> Machine:
    return Machine(
        processor=host.processor_name(),
        cores=os.cpu_count(),
        memory=host.memory_total(),
        system=platform.platform(),
        python=platform.python_version(),
    )


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """What every benchmark can be told; a benchmark adds its own options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    return parser


def arguments(description: str | None) -> argparse.Namespace:
    return options_parser(description).parse_args()


def say(line: str) -> None:
    """Beside the report, so that a long run shows how far it is."""
    sys.stderr.write(line + "\n")


def publish(figures: list[Figure], options: argparse.Namespace) -> None:
    """Print, and with --check judge: the worst figure comes last."""
    machine = this_machine()
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode({"machine": machine, "figures": figures})).decode())
        sys.stdout.write("\n")
    else:
        lines = [str(figure) for figure in figures]
        lines.append(
            f"on {machine.processor}, {machine.cores} cores, {readable_bytes(machine.memory)}, "
            f"{machine.system}, Python {machine.python}"
        )
        sys.stdout.write("\n".join(lines) + "\n")
    if options.check:
        worst = max(figures, key=lambda figure: figure.share)
        sys.stdout.write(f"worst: {worst}\n")
        sys.exit(1 if worst.share > 1 else 0)
