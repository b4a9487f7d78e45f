"""Temporaries that share memory: never two that are alive at once, and never more memory than needed by far."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.engines.codegen.kernel import Binding, Kernel, Schedule, Slot, shared_temporaries
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.driver import why_not
from anygpu.program.graph import Program
from tests.codegen.planning import TARGETS, plan, slots_of, spec
from tests.support.program_strategies import programs


def stretches(planned: Schedule) -> dict[int, tuple[int, int]]:
    """First and last step of each temporary."""
    found: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(planned.steps):
        for slot in slots_of(step):
            if planned.slots[slot].role == "temporary":
                found[slot] = (found.get(slot, (number, 0))[0], number)
    return found


def check(planned: Schedule) -> None:
    places, sizes = shared_temporaries(planned)
    alive = stretches(planned)
    assert set(places) == set(alive)
    for slot, piece in places.items():
        assert sizes[piece] >= planned.slots[slot].nbytes
        for other, place in places.items():
            if other != slot and place == piece:
                (first, last), (begin, end) = alive[slot], alive[other]
                assert last < begin or end < first, f"slots {slot} and {other} are in piece {piece} at once"
    together = [
        sum(planned.slots[slot].nbytes for slot, (first, last) in alive.items() if first <= number <= last)
        for number in range(len(planned.steps))
    ]
    assert sum(sizes) >= max(together, default=0)
    assert sum(sizes) <= sum(planned.slots[slot].nbytes for slot in alive)


@settings(max_examples=60)
@given(programs(), st.sampled_from(sorted(TARGETS)))
def test_no_two_that_are_alive_at_once_share_memory(program: Program, name: str) -> None:
    if not why_not(program, TARGETS[name], "device"):
        check(schedule(program, TARGETS[name]))


def random_schedule(chance: random.Random) -> Schedule:
    slots = tuple(
        Slot(4 * chance.randrange(1, 50), chance.choice(["temporary", "temporary", "output"])) for _ in range(12)
    )

    def kernel() -> Kernel:
        used = chance.sample(range(12), chance.randrange(1, 5))
        return Kernel(
            name="k", source="", bindings=tuple(Binding(each, "read_write") for each in used), groups=1, group_size=1
        )

    steps = tuple(kernel() for _ in range(chance.randrange(1, 15)))
    return Schedule(slots=slots, steps=steps, outputs=())


def test_schedules_of_all_kinds() -> None:
    for seed in range(500):
        check(random_schedule(random.Random(seed)))


def alternating(x: Any, turns: int) -> Any:
    for turn in range(turns):
        x = np.cumsum(np.sort(x, axis=turn % 2), axis=1 - turn % 2) / 100
    return x


def test_a_long_row_of_operations_needs_two_pieces() -> None:
    planned = plan(lambda x: alternating(x, 20), spec(65, 63))
    places, sizes = shared_temporaries(planned)
    assert len(places) >= 39
    assert len(sizes) <= 3
    assert sum(sizes) <= 3 * 4 * 65 * 63


def test_what_stays_inside_of_its_kernel_has_no_memory() -> None:
    planned = plan(lambda x: x / x.sum(axis=1, keepdims=True), spec(65, 63))
    assert shared_temporaries(planned) == ({}, [])
