"""Placement that moves between all engines on purpose, and what calls do under it beside what they do on NumPy.

This file is the only one that reaches into the runtime. The call's own way is kept: signatures, recording, guards,
programs, workers, results, and what NumPy's own calls teach about warnings and the order of memory. Only these answers
are other ones: a function may always be recorded, and its times predicted; the next call goes to the next of the
devices which can run the program, the host among them; every device is believed without a comparison, so that a wrong
result is seen here; nothing is tried in the background.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import msgspec
import numpy as np

import anygpu as ag
from anygpu.agreement.trust import Trust, learn_flags
from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry
from anygpu.placement import explore, place_call
from anygpu.placement.call import Call
from anygpu.placement.candidates import Candidates
from anygpu.placement.device_call import sample_now
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.plan.choosing import DeviceChooser
from anygpu.placement.planner import default
from anygpu.receipts.receipt import Receipt
from anygpu.workers.device_arrays import registry
from tests.semantics.cases import CALLS, Case, World
from tests.semantics.outcomes import Outcome, difference, outcome_of

#: The devices that calls move between, by the names of their engines.
ENGINES = ("numpy", "cpu", "torch", "jax", "webgpu", "opencl")
#: Each so many calls one is made as users make it, so that whatever is quicker for them is taken as well.
_PLAIN_CALLS = 7


def engine_of(device: str) -> str:
    return device.split(":", 1)[0]


class Placement:
    """Where the next call goes."""

    def __init__(self, engines: tuple[str, ...] = ENGINES) -> None:
        self.engines = engines
        self.turn = 0

    def choose(self, chooser: DeviceChooser, waiting: Mapping[str, float] | None = None) -> DeviceChoice:
        if chooser.pinned is not None:
            return DeviceChoice("numpy", "pinned", chooser.pinned)
        able = [name for name in chooser.tracks if name == chooser.baseline or name in chooser.expected]
        able = [name for name in able if engine_of(name) in self.engines] or ["numpy"]
        able.sort(key=lambda name: ENGINES.index(engine_of(name)))
        return DeviceChoice(able[self.turn % len(able)], "known", "calls move on purpose.")


@contextlib.contextmanager
def moving(engines: tuple[str, ...] = ENGINES) -> Iterator[Placement]:
    """Within the block calls of offloaded functions go to one engine after another."""
    placement = Placement(engines)
    planner = default()
    with mock.patch.object(registry, "LOOK_SECONDS", 180.0):  # however busy the machine is
        planner._look()
    for device in planner.machine().devices:
        if engine_of(device.id) in engines and device.id != "numpy":
            planner.worker(device.id).supports(_PROBE)
    missing = [name for name in engines if name not in {engine_of(each.id) for each in planner.machine().devices}]
    if missing:
        why = "; ".join(str(each.reason) for each in planner.machine().unavailable)
        raise RuntimeError(f"{', '.join(missing)} cannot be used here, and the corpus runs everywhere: {why}")
    with (
        mock.patch.object(catalogue, "BUILT_IN", tuple(map(_automatic, catalogue.BUILT_IN))),
        mock.patch.object(DeviceChooser, "choose", lambda chooser, waiting=None: placement.choose(chooser, waiting)),
        mock.patch.object(DeviceChooser, "to_try", return_value=None),
        # What a last bit decides would stay on NumPy, and the rest of what such a function does would not be tried.
        mock.patch.object(Candidates, "_only_on_numpy", return_value=None),
        mock.patch.object(DeviceChooser, "affords", return_value=True),
        mock.patch.object(Trust, "agreed", return_value=True),
        mock.patch.object(place_call, "explore", _learn),
        mock.patch.object(place_call, "_seconds_for_recording", return_value=None),
    ):
        yield placement


def _automatic(entry: EngineEntry) -> EngineEntry:
    """The engine as if calls might go there that do not name it."""
    traits = msgspec.structs.replace(entry.traits, automatic=True)
    return msgspec.structs.replace(entry, traits=traits)


def _learn(call: Call, value: Any = None, *, checks: str | None = None) -> None:
    """After a call on NumPy: what a trial would learn beside whether the device is right."""
    explore.explore(call, value, checks=checks)
    if value is not None and call.site.programs.current is not None and not call.site.has_anygpu_arrays:
        sample = sample_now(call, value)
        if sample is not None:  # else another thread has given tracing up
            learn_flags(call.site.trust, sample)


_PROBE = ag.record(lambda x: x + 1, np.zeros(1, np.float32))


def offloaded(function: Callable[..., Any]) -> Any:
    """As users do it."""
    return ag.offload(function)


@dataclass
class Run:
    """What came of one case."""

    case: str
    #: Calls on each engine.
    calls: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    #: Attempts on devices that failed, so that the call went on elsewhere.
    failed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def outcomes_on_numpy(case: Case, calls: int = CALLS) -> list[Outcome]:
    """What every call does as it is."""
    world = case.make()
    try:
        begin_with_randomness()
        return [called(world, call, world.function) for call in range(calls)]
    finally:
        world.undo()


def begin_with_randomness() -> None:
    random.seed(7)
    np.random.seed(7)


def called(world: World, call: int, function: Callable[..., Any], *, again: bool = False) -> Outcome:
    """What a call does; `again` if it is not the first with its number, so that nothing changes before it."""
    if not again:
        world.change(call)
    arguments, keywords = world.given(call)
    return outcome_of(lambda: function(*arguments, **keywords), (arguments, keywords), world.seen)


def run(case: Case, placement: Placement, calls: int = CALLS) -> Run:
    """Every call under moving placement, compared with what it does on NumPy."""
    begin = time.perf_counter()
    found = Run(case.name)
    expected = outcomes_on_numpy(case, calls)
    world = case.make()
    function = offloaded(world.function)
    try:
        begin_with_randomness()
        for call in range(calls):
            placement.turn = call
            receipts: list[Receipt] = []
            by_run = call % _PLAIN_CALLS != _PLAIN_CALLS - 1

            def one(*arguments: Any, **keywords: Any) -> Any:
                with ag.collect_receipts() as collected:
                    try:
                        if by_run:  # noqa: B023 - called at once
                            return function.run(*arguments, **keywords).value
                        return function(*arguments, **keywords)
                    finally:
                        receipts.extend(collected)  # noqa: B023

            got = called(world, call, one)
            where = receipts[-1].device if receipts else "raised"
            found.calls[engine_of(where)] += 1
            if receipts:
                found.reasons[receipts[-1].reason] += 1
                found.failed += [f"{each.device}: {each.message}" for each in receipts[-1].attempts if each.error]
            differs = difference(expected[call], got, case.within)
            if differs:
                found.differences.append(f"call {call} on {where}: {differs}")
    finally:
        world.undo()
    found.seconds = time.perf_counter() - begin
    return found


def complaint(case: Case, found: Run) -> str | None:
    """What is wrong with a case, in a few lines; `None` when nothing is."""
    lines = []
    if found.differences:
        lines.append(f"{len(found.differences)} of {sum(found.calls.values())} calls differ:")
        lines += found.differences[:4]
    if found.failed:
        lines.append(f"{len(found.failed)} attempts failed, such as on {found.failed[0]}")
    on_devices = sum(count for engine, count in found.calls.items() if engine not in ("numpy", "raised"))
    reasons = "; ".join(reason for reason, _ in found.reasons.most_common(3))
    if case.stays_on_numpy is not None:
        if on_devices:
            lines.append(f"it should stay on NumPy, and {on_devices} calls ran on devices")
        elif case.stays_on_numpy not in reasons:
            lines.append(f"it stays on NumPy because of {reasons!r}, not because of {case.stays_on_numpy!r}")
    elif not on_devices and not case.raises and not case.either:
        lines.append(f"it never left NumPy: {reasons}")
    return "\n  ".join(lines) or None
