"""How a program runs: its slots, and its steps without what they compute. This is kept on disk with the native code.

The nests themselves (`anygpu.engines.codegen.nests`) are needed only until LLVM has compiled them.

`RunPlan` has the slots, the nests with their parts, and host steps in order. `layout_of` packs temporaries into one
piece of memory by their lifetimes, `segments_of` finds the nests between host steps, and `can_call` says whether one
native call does it all.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from anygpu.engines.codegen.kernel import Check, Output, Slot, lifetimes
from anygpu.program.primitives import Spec

#: The alignment of temporaries.
ALIGNMENT = 64


class NestRun(msgspec.Struct, frozen=True, tag="nest"):
    """A nest: the function of that name, for `count` rounds in parts of `grain`, on these slots."""

    name: str
    slots: tuple[int, ...]
    count: int
    grain: int
    #: Those of its slots that each part has for itself.
    scratch: tuple[int, ...] = ()

    @property
    def parts(self) -> int:
        return -(-self.count // self.grain)


class HostRun(msgspec.Struct, frozen=True, tag="host"):
    """A node that NumPy computes, from slots into another."""

    node: int
    sources: tuple[int, ...]
    slot: int

    @property
    def slots(self) -> tuple[int, ...]:
        return (*self.sources, self.slot)


class RunPlan(msgspec.Struct, frozen=True):
    """What `anygpu.engines.codegen.nests.steps.NestProgram` says, as far as running it goes."""

    inputs: tuple[Spec, ...]
    slots: tuple[Slot, ...]
    steps: tuple[NestRun | HostRun, ...]
    outputs: tuple[Output, ...]
    status: int | None
    checks: tuple[Check, ...]
    #: What the nests take on one core, at most.
    seconds: float
    #: The loops of NumPy's that nests call.
    loops: tuple[str, ...] = ()

    @property
    def lacking(self) -> int:
        """The entry of the table that is not null after a run in which there was no memory for scratch."""
        return len(self.slots)

    @property
    def noted(self) -> int:
        """The entry whose bits say after a run what nests have noted: `RESULT`, `HIDDEN`, `WRAPPED`, `BEYOND`."""
        return len(self.slots) + 1

    @property
    def table_size(self) -> int:
        return len(self.slots) + 2

    @property
    def scratch_slots(self) -> set[int]:
        """The slots that each part of a nest has for itself."""
        return {slot for step in self.steps if isinstance(step, NestRun) for slot in step.scratch}

    @property
    def host_slots(self) -> set[int]:
        """The slots that NumPy makes."""
        return {step.slot for step in self.steps if isinstance(step, HostRun)}


class NativeProgram(msgspec.Struct, frozen=True):
    """All that running a program takes, as it is kept on disk."""

    plan: RunPlan
    image: bytes


class ArrayLayout(NamedTuple):
    """Where the temporaries of a call are: offsets in one piece of memory, by slot, and its size."""

    offsets: dict[int, int]
    nbytes: int


def layout_of(plan: RunPlan) -> ArrayLayout:
    """Temporaries that nests write share memory where they are not needed at the same time. The status is never shared.

    What a host step computes has memory of its own: NumPy makes it. So has scratch.
    """
    own = plan.host_slots | plan.scratch_slots
    held = lifetimes(
        [slot for slot in step.slots if plan.slots[slot].role == "temporary" and slot not in own] for step in plan.steps
    )
    if plan.status is not None:
        held[plan.status] = -1, len(plan.steps)
    offsets: dict[int, int] = {}
    total = 0
    for slot in sorted(held, key=lambda each: (-plan.slots[each].nbytes, each)):
        first, last = held[slot]
        size = aligned(plan.slots[slot].nbytes)
        # The first gap between those that are needed at the same time.
        taken = sorted(
            (offsets[other], offsets[other] + aligned(plan.slots[other].nbytes))
            for other in offsets
            if held[other][0] <= last and first <= held[other][1]
        )
        offset = 0
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[slot] = offset
        total = max(total, offset + size)
    return ArrayLayout(offsets, total)


def segments_of(plan: RunPlan) -> list[tuple[NestRun, ...] | HostRun]:
    """The steps, with nests that follow each other together."""
    found: list[tuple[NestRun, ...] | HostRun] = []
    for step in plan.steps:
        if isinstance(step, HostRun):
            found.append(step)
        elif found and isinstance(found[-1], tuple):
            found[-1] = (*found[-1], step)
        else:
            found.append((step,))
    return found


def exports_of(plan: RunPlan) -> list[str]:
    """The functions of a module that Python calls."""
    return [f"segment{number}" for number in range(sum(isinstance(each, tuple) for each in segments_of(plan)))]


def can_call(plan: RunPlan) -> bool:
    """Whether `@call` can do all of it: only nests, and each result an array of its own."""
    slots = [output.slot for output in plan.outputs]
    return (
        bool(plan.steps)
        and all(isinstance(step, NestRun) for step in plan.steps)
        and len(set(slots)) == len(slots)
        and all(
            plan.slots[output.slot].role == "output"
            and output.offset == 0
            and plan.slots[output.slot].nbytes == output.spec.nbytes
            for output in plan.outputs
        )
        and all(slot.role != "output" or number in slots for number, slot in enumerate(plan.slots))
    )


def aligned(nbytes: int) -> int:
    """Bytes up to the next temporary."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
