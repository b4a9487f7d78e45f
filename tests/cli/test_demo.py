"""`anygpu demo` says what happened, whatever that was."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from anygpu.cli.commands import app
from anygpu.cli.demo import DemoProgram, DemoTimes, compare, facts, programs, show, show_end, verdict
from anygpu.receipts.receipt import Phases, Receipt
from anygpu.testing import FakeProcessors, ManualClock

UNKNOWN = dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), "nobody looked")
X = np.ones(3)
FASTER = DemoTimes(
    numpy=0.012,
    anygpu=0.001,
    calls=30,
    first=0.02,
    since=4,
    device="cpu",
    reason="it is faster.",
    difference=0.0,
    agrees=True,
    lost=0.0,
    disturbed=False,
)


class Machine:
    """A clock, and functions that take their time by it: NumPy's 10 ms, and the decorated one's 1 ms on `cpu`."""

    def __init__(self, devices: Iterator[str], busy: float = 0.0) -> None:
        self.clock = ManualClock()
        self.processors = FakeProcessors(self.clock, busy)
        self._devices = devices
        self._receipt: Receipt | None = None

    def numpy(self, x: Any) -> Any:
        self.clock.advance(0.010)
        return x * 2

    def offloaded(self, x: Any) -> Any:
        device = next(self._devices)
        reason = f"{device} was chosen."
        self._receipt = Receipt(task="f", device=device, kind="cpu", reason=reason, phases=Phases(), unknown=UNKNOWN)
        self.clock.advance(0.010 if device == "numpy" else 0.001)
        return x * 2

    def compare(self, offloaded: Callable[..., Any] | None = None, seconds: float = 1.0) -> DemoTimes:
        return compare(
            DemoProgram(self.numpy, "doubles", (X,)),
            offloaded or self.offloaded,
            seconds=seconds,
            clock=self.clock,
            last_receipt=lambda: self._receipt,
            read=self.processors,
        )


def test_calls_that_move_are_measured_where_they_end() -> None:
    found = Machine(chain(["numpy"] * 3, repeat("cpu"))).compare()
    assert (found.device, found.since, found.reason) == ("cpu", 4, "cpu was chosen.")
    assert (found.numpy, found.anygpu, found.first) == pytest.approx((0.010, 0.001, 0.010))
    assert verdict(found) == "10.0 times as fast"
    assert (found.difference, found.agrees, found.disturbed) == (0.0, True, False)


def test_calls_that_stay_are_given_up_after_a_time_and_have_no_ratio() -> None:
    machine = Machine(repeat("numpy"))
    found = machine.compare(seconds=0.2)
    assert (found.device, found.since) == ("numpy", 1)
    assert machine.clock() < 1.0
    assert verdict(found) == "stayed on NumPy"
    assert dict(facts(found))["ran on"] == "NumPy: numpy was chosen."


def test_a_busy_machine_gives_no_ratio() -> None:
    found = Machine(repeat("cpu"), busy=0.6).compare()
    assert found.disturbed
    assert verdict(found) == "no ratio: the machine is too busy"
    assert "The machine is busy: 60% of the time was waiting" in dict(facts(found))["measured"]
    assert "busy" not in dict(facts(Machine(repeat("cpu"), busy=0.05).compare()))["measured"]


def test_what_is_slower_is_said_to_be() -> None:
    assert verdict(replace(FASTER, anygpu=0.024)) == "slower: 2.0 times NumPy's time"


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2 * (1 + 1e-15), "agree; the largest relative difference is 1e-15"),
        (3, "DIFFER: the largest relative difference is 5e-01"),
    ],
)
def test_results_are_compared(factor: float, said: str) -> None:
    machine = Machine(repeat("cpu"))

    def computes(x: Any) -> Any:
        machine.offloaded(x)
        return x * factor

    found = machine.compare(computes)
    assert dict(facts(found))["results"] == said
    assert found.agrees == said.startswith("agree")


def test_another_shape_or_dtype_is_another_result() -> None:
    machine = Machine(repeat("cpu"))

    def narrows(x: Any) -> Any:
        return machine.offloaded(x).astype(np.float32)

    assert not machine.compare(narrows).agrees


def test_the_screen_has_the_code_and_both_times() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80)
    show(console, programs(1e-4)[0], FASTER)
    shown = text.getvalue()
    assert "@ag.offload\n    def sharpen(image):" in "\n".join(line.rstrip() for line in shown.splitlines())
    assert "type:" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    for part in ("NumPy       12 ms", "anygpu       1 ms", "12.0 times as fast", "call 4 was the first on cpu"):
        assert part in shown


def test_the_end_explains_a_machine_where_nothing_gained() -> None:
    def end(*found: DemoTimes) -> str:
        show_end(Console(file=(text := io.StringIO()), width=80), found)
        return text.getvalue()

    stayed = replace(FASTER, device="numpy")
    assert "why-no-speed-up" in end(stayed, stayed)
    assert "why-no-speed-up" not in end(stayed, FASTER)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    shown = CliRunner().invoke(app, ["demo", "--on", "numpy", "--seconds", "0", "--scale", "0.0001"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("stayed on NumPy") == 2
    assert shown.output.count("equal to the last bit") == 2


def test_help_begins_with_what_a_newcomer_needs() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    headings = ["Start here", "Look closer", "Devices", "Advanced"]
    places = [shown.index(f"─ {heading} ") for heading in headings]
    assert places == sorted(places)
    first = shown[places[0] : places[1]]
    assert [first.index(f" {name} ") for name in ("demo", "doctor", "explain", "advise")] == sorted(
        first.index(f" {name} ") for name in ("demo", "doctor", "explain", "advise")
    )
    assert " fleet " in shown[places[3] :]
