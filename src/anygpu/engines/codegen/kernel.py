"""The result of code generation: kernels as text and the buffers they use, with nothing that needs a device.

A `Schedule` is a program for one target: slots of memory, kernels in order with their bindings, results as parts of
slots, the rules that values can break, and the choices that tuning may still make. `shared_temporaries` lets values
that never live together share memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from anygpu.program.ops.custom import Parameter, Three
from anygpu.program.primitives import Spec

Access = Literal["read", "write", "read_write"]


class Binding(msgspec.Struct, frozen=True):
    """One buffer parameter of a kernel, in the order of the parameters."""

    #: The slot of the schedule.
    slot: int
    access: Access
    #: First byte and number of bytes, when the kernel sees only a window of a buffer that is larger than one binding.
    window: tuple[int, int] | None = None


class Start(msgspec.Struct, frozen=True):
    """The initial contents of a buffer: a copy of another slot, or zeros."""

    slot: int
    source: int | None = None


class Own(msgspec.Struct, frozen=True):
    """The text that a kernel was made of, when a user wrote it: compilers' messages are about this one."""

    title: str
    source: str
    #: The buffers, in the order of the bindings, and the numbers by name and type: what an OpenCL compiler says of its
    #: arguments has to agree.
    parameters: tuple[Parameter, ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, ready to be compiled. Buffers come first, then `numbers` as one block of unsigned 32-bit integers.

    In WGSL everything is in group 0: binding `i` is `bindings[i]`, and the numbers are a uniform struct of u32 at
    binding `len(bindings)`. In OpenCL C the arguments are the buffers, then one `uint` for each number.
    There is nothing at all where `numbers` is empty. A user's own kernel in OpenCL C has its arguments in its own order
    and of its own types: `values` are then the bits of each.

    The grid has one dimension: `groups` groups of `group_size` invocations. A kernel of more groups than fit into one
    dimension reads its group's number as x + y * groups_per_dimension, and returns when it is not less than `groups`.
    A user's own kernel has `grid` and `group`, which are dispatched exactly as they are and never in parts.
    """

    #: The function in the text: what a profiler shows, and what a person reads first.
    name: str
    source: str
    bindings: tuple[Binding, ...]
    groups: int
    group_size: int
    #: Names of the numbers: "first_group", to run a part of the grid, and "offset_<binding>", where an input begins
    #: inside of its binding, in elements.
    numbers: tuple[str, ...] = ()
    #: Estimates for the whole grid, by which a driver decides whether to cut it into several dispatches.
    flops: float = 0.0
    bytes_moved: float = 0.0
    #: For a user's own kernel: groups, and invocations of one, in three dimensions.
    grid: Three | None = None
    group: Three | None = None
    #: Values of the numbers, where they are known beforehand.
    values: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()
    own: Own | None = None

    @property
    def slots(self) -> set[int]:
        """Everything that must be in memory while it runs."""
        sources = {start.source for start in self.starts if start.source is not None}
        return {binding.slot for binding in self.bindings} | sources


class Slot(msgspec.Struct, frozen=True):
    """A buffer of a schedule. Inputs have the first slots."""

    nbytes: int
    role: Literal["input", "constant", "temporary", "output", "status"]
    #: The contents of a constant.
    data: bytes | None = None


class Output(msgspec.Struct, frozen=True):
    """A result: a slot, or a part of one. Results that are only views of an input share its memory."""

    slot: int
    spec: Spec
    #: The first byte.
    offset: int = 0


#: Stands for -1, whose value + 1 would mean success. No axis is long enough for this to be another index.
MINUS_ONE = 1 << 31


#: Bits that a run of native code notes: a NaN or an infinity in a result; one that no result shows; integer arithmetic
#: of scalars that overflows; a float out of range that is cast to an integer.
RESULT, HIDDEN, WRAPPED, BEYOND = 1, 2, 4, 16
#: In place of `RESULT`, for results that nests have not computed.
UNKNOWN = 8


class Check(msgspec.Struct, frozen=True):
    """A rule that only values can break. A kernel that sees it broken writes to the status slot.

    Word `number` of the status (32-bit unsigned) is 0 when all is well, and otherwise the offending value + 1 wrapped
    to 32 bits, or `MINUS_ONE`.
    """

    number: int
    error: Literal["index", "order", "negative_power"]
    #: For "index": the length of the axis.
    length: int = 0


class KernelChoice(msgspec.Struct, frozen=True):
    """Sizes of a kernel that measuring may choose from: records of numbers, the best guess first."""

    #: The name of the value that the kernel computes; `schedule` takes a choice by this name.
    name: str
    candidates: tuple[msgspec.Struct, ...]
    #: The steps of the schedule that it applies to.
    steps: tuple[int, ...]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A program for one target: steps in order over numbered slots."""

    slots: tuple[Slot, ...]
    steps: tuple[Kernel, ...]
    outputs: tuple[Output, ...]
    #: The slot that is cleared before the steps, and has the broken rules after them.
    status: int | None = None
    checks: tuple[Check, ...] = ()
    choices: tuple[KernelChoice, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.steps


# -- kernels that differ only in which nodes of a program they stand for get the same text
#
# And are compiled once.
#
# Names in kernels are made of the numbers of nodes, so that a person can find them in the program. In a model of six
# equal layers that makes six texts of one kernel, each compiled and tuned for itself. Here nodes are renumbered in
# each kernel, in the order in which they appear.


#: Inputs as `input_a` or `input_x30`, and `t17`, `sum_17`, `read_17_0`. No language has words of its own like these.
_NAME = re.compile(r"\b(?:((?:[a-z_]*_)?input_)([a-z]\d*)|((?:[a-z_]*_)?t|[a-z][a-z_]*_)(\d+))(?=_|\b)")


def renumbered(kernel: Kernel) -> Kernel:
    """The same kernel with numbers of its own. What a user wrote stays as it is."""
    if kernel.own is not None:
        return kernel
    ranks: dict[str, int] = {}
    inputs: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        input_prefix, name, prefix, number = match.groups()
        if name is not None:
            rank = inputs.setdefault(name, len(inputs))
            return f"{input_prefix}{chr(ord('a') + rank) if rank < 26 else f'x{rank}'}"
        return f"{prefix}{ranks.setdefault(number, len(ranks))}"

    source = _NAME.sub(renamed, kernel.source)
    return msgspec.structs.replace(kernel, source=source, name=_NAME.sub(renamed, kernel.name))


def identifier(name: str) -> str:
    """A name that every dialect takes."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


# -- temporaries that are never needed at the same time share memory


def lifetimes(used: Iterable[Iterable[int]]) -> dict[int, tuple[int, int]]:
    """The first and the last step that uses a slot, of the slots that each step uses."""
    found: dict[int, tuple[int, int]] = {}
    for number, slots in enumerate(used):
        for slot in slots:
            found[slot] = (found[slot][0] if slot in found else number, number)
    return found


def shared_temporaries(schedule: Schedule) -> tuple[dict[int, int], list[int]]:
    """For each temporary slot the number of the piece of memory that it is in, and how large each piece is."""
    slots = schedule.slots
    held = lifetimes([each for each in step.slots if slots[each].role == "temporary"] for step in schedule.steps)
    places: dict[int, int] = {}
    sizes: list[int] = []
    free_from: list[int] = []
    for slot, (first, last) in sorted(held.items(), key=lambda each: (each[1][0], each[0])):
        nbytes = slots[slot].nbytes
        # The smallest that is large enough; else the largest of the others grows.
        idle = [piece for piece, free in enumerate(free_from) if free < first]
        enough = [piece for piece in idle if sizes[piece] >= nbytes]
        if enough:
            piece = min(enough, key=lambda each: sizes[each])
        elif idle:
            piece = max(idle, key=lambda each: sizes[each])
            sizes[piece] = nbytes
        else:
            piece = len(sizes)
            sizes.append(nbytes)
            free_from.append(-1)
        places[slot] = piece
        free_from[piece] = last
    return places, sizes
