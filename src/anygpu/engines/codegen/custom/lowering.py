"""Nodes of a program that are a user's kernel, as launches: what they take, and what is too much.

`refusal` says why a target cannot run a node, and `launch_kernel` makes the kernel with the copies that it needs. A
launch whose results are several nodes of a program runs once. WGSL is checked against its node here; OpenCL C by the
engine, which asks its compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import msgspec
import numpy as np

from anygpu.engines.codegen.custom.reflected import Length, Reflected, Unreadable, with_updates
from anygpu.engines.codegen.custom.wgsl import SCALARS, Prepared, prepared_wgsl, reflected_wgsl
from anygpu.engines.codegen.kernel import Binding, Kernel, Own, Start
from anygpu.engines.codegen.target import Target
from anygpu.errors import InvalidKernel
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, Three
from anygpu.program.primitives import Cast, Input, Reshape, Spec, product

#: Bytes that stand in for an empty array: no vector is wider.
EMPTY_BYTES = 128
_MOST_GROUPS = (1 << 32) - 1
_MOST_ELEMENTS = (1 << 32) - 1


class KernelLaunch(msgspec.Struct):
    """Nodes that come from one run of a kernel."""

    op: Custom
    inputs: tuple[int, ...]
    #: For each result that the program uses the node that it is.
    nodes: dict[int, int]


def launches_in(program: Program) -> dict[int, KernelLaunch]:
    """For each node that is a kernel, its launch."""
    found: dict[int, KernelLaunch] = {}
    same: dict[tuple[Custom, tuple[int, ...]], list[KernelLaunch]] = {}
    for position, (op, inputs) in enumerate(program.nodes):
        if not isinstance(op, Custom):
            continue
        known = same.setdefault((msgspec.structs.replace(op, result=0), inputs), [])
        launch = next((each for each in known if op.result not in each.nodes), None)
        if launch is None:
            launch = KernelLaunch(op, inputs, {})
            known.append(launch)
        launch.nodes[op.result] = position
        found[position] = launch
    return found


def stored_under(program: Program, node: int) -> int:
    """The node whose memory a kernel's input is: a reshaped array shares its memory."""
    while isinstance(program.nodes[node].op, Reshape):
        node = program.nodes[node].inputs[0]
    return node


def with_copies(program: Program, offsets: tuple[bool, ...]) -> tuple[Program, list[int]]:
    """The program with a copy of each input that begins inside of what can be bound, for the kernels that take it.

    And for each of its nodes, which one of the given program it is.
    """
    moved: dict[int, int] = {}
    for op, inputs in program.nodes if any(offsets) else ():
        if isinstance(op, Custom):
            bases = [stored_under(program, source) for source in inputs]
            moved |= {base: -1 for base in bases if isinstance(program.nodes[base].op, Input) and offsets[base]}
    if not moved:
        return program, list(range(len(program.nodes)))
    nodes: list[Node] = []
    origins: list[int] = []
    place: list[int] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if position == program.input_count:
            for base in moved:
                moved[base] = len(nodes)
                nodes.append(Node(Cast(program.specs[base].dtype), (base,)))
                origins.append(base)
        sources = [place[source] for source in inputs]
        if isinstance(op, Custom):
            sources = [moved.get(stored_under(program, source), place[source]) for source in inputs]
        place.append(len(nodes))
        nodes.append(Node(op, tuple(sources)))
        origins.append(position)
    outputs = tuple(place[output] for output in program.outputs)
    specs = tuple(program.specs[origin] for origin in origins)
    lines = tuple(program.lines[origin] for origin in origins)
    return Program.trusted(tuple(nodes), outputs, specs, lines), origins


# -- what a device can run


@lru_cache(maxsize=256)
def reflected_of(op: Custom) -> Reflected:
    """Return the reflection of a WGSL text, after a check that the node agrees with it."""
    try:
        found = reflected_wgsl(op.source, op.entry, {})
    except Unreadable as problem:
        raise problem.for_kernel(op.title, op.source) from None
    updates = [each.name for each in op.parameters if each.role == "update"]
    found = with_updates(found, op.title, updates)
    if found.parameters != op.parameters:
        raise InvalidKernel(op.title, "its buffers differ from those its source declares. It was not run.")
    if [(each.name, each.dtype) for each in found.scalars] != [(each.name, each.dtype) for each in op.scalars]:
        raise InvalidKernel(op.title, "its numbers differ from those its source declares. It was not run.")
    if found.group != op.group:
        raise InvalidKernel(op.title, f"its groups are {found.group} by its source, not {op.group}. It was not run.")
    return found


def prepared_of(op: Custom, target: Target) -> Prepared:
    """Return a WGSL kernel ready for a driver. Raises `InvalidKernel` with the place in the source where it cannot be
    read.
    """
    try:
        return prepared_wgsl(op.source, op.entry, folded=is_folded(op, target))
    except Unreadable as problem:
        raise problem.for_kernel(op.title, op.source) from None


def is_folded(op: Custom, target: Target) -> bool:
    most = target.groups_per_dimension
    return most is not None and max(op.groups) > most


def refusal(op: Custom, inputs: tuple[Spec, ...], target: Target) -> str | None:
    """Why a device cannot run a kernel in its own language: which limit it passes, and by how much."""
    size = product(op.group)
    if size > target.group_limit or min(op.group) < 1:
        return f"its groups have {size:,} invocations, and {target.group_limit:,} is this device's limit"
    group_memory = reflected_of(op).group_memory if op.language == "wgsl" else op.group_memory
    if group_memory > target.group_memory:
        return (
            f"its groups share {group_memory:,} bytes, and {target.group_memory:,} is this device's limit for the "
            "memory of a group"
        )
    if len(op.parameters) > target.bindings:
        return f"it takes {len(op.parameters)} buffers, and {target.bindings} is this device's limit"
    for name, spec in _specs(op, inputs):
        if spec.nbytes > target.binding_bytes:
            return (
                f"{name} has {spec.nbytes:,} bytes, and a kernel sees {target.binding_bytes:,} at most on this device"
            )
        if spec.size > _MOST_ELEMENTS:
            return f"{name} has {spec.size:,} elements, and a kernel counts {_MOST_ELEMENTS:,} at most"
        if op.language == "wgsl" and spec.dtype == "float16" and not target.has("f16"):
            return "this device has no f16"
    if is_folded(op, target):
        rows = -(-product(op.groups) // (target.groups_per_dimension or 1))
        if product(op.groups) > _MOST_GROUPS or rows > (target.groups_per_dimension or 1):
            return f"its grid has {product(op.groups):,} groups, which is more than this device counts"
    return None


def _specs(op: Custom, inputs: tuple[Spec, ...]) -> Iterator[tuple[str, Spec]]:
    """The name and spec of each array that a kernel reads or makes."""
    yield from zip((each.name for each in op.read), inputs, strict=True)
    for parameter, shape in zip(op.written, op.shapes, strict=True):
        if parameter.role == "output":
            yield parameter.name, Spec(shape, parameter.dtype)


def _checked_lengths(op: Custom, inputs: tuple[Spec, ...]) -> dict[str, int]:
    """Return the lengths of a WGSL kernel's buffers, in elements as the text counts them."""
    rules = reflected_of(op).lengths
    lengths: dict[str, int] = {}
    for name, spec in _specs(op, inputs):
        rule = rules.get(name, Length())
        if rule.exactly is not None and spec.size != rule.exactly:
            raise InvalidKernel(op.title, f"{name} has exactly {rule.exactly:,} elements, not {spec.size:,}.")
        if spec.size % rule.multiple:
            raise InvalidKernel(
                op.title,
                f"{name} has vectors of {rule.multiple}, and {spec.size:,} elements are not a whole number of them.",
            )
        lengths[name] = spec.size // rule.multiple
    return lengths


# -- a launch


def launch_kernel(
    launch: KernelLaunch,
    program: Program,
    target: Target,
    *,
    slot_of: Mapping[int, int],
    new_slot: Callable[[int], int],
) -> Kernel:
    """The user's kernel as a `Kernel` of the schedule: bindings, numbers, grid, and how written buffers begin.
    Raises `InvalidKernel` where the target cannot run it.
    """
    op = launch.op
    specs = tuple(program.specs[source] for source in launch.inputs)
    why = refusal(op, specs, target)
    if why is not None:
        raise InvalidKernel(op.title, f"{why}.")
    given = {
        parameter.name: slot_of[stored_under(program, source)] if spec.size else new_slot(EMPTY_BYTES)
        for parameter, source, spec in zip(op.read, launch.inputs, specs, strict=True)
    }
    made: dict[str, int] = {}
    starts: list[Start] = []
    for result, (parameter, shape) in enumerate(zip(op.written, op.shapes, strict=True)):
        size = product(shape)
        node = launch.nodes.get(result)
        if size and node is not None and node in slot_of:
            slot = slot_of[node]
        else:
            slot = new_slot(size * ITEMSIZE[parameter.dtype] or EMPTY_BYTES)
        made[parameter.name] = slot
        if size:
            starts.append(Start(slot, given[parameter.name] if parameter.role == "update" else None))
    bindings = [
        Binding(made[each.name], "read_write") if each.role != "input" else Binding(given[each.name], "read")
        for each in op.parameters
    ]
    grid, row = _grid(op, target)
    source, values = (
        op.source,
        tuple(int.from_bytes(np.array(each.value, each.dtype).tobytes(), "little") for each in op.scalars),
    )
    if op.language == "wgsl":
        prepared = prepared_of(op, target)
        source, values = prepared.source, _words(op, prepared, _checked_lengths(op, specs), row)
    moved = sum(spec.nbytes for _, spec in _specs(op, specs))
    return Kernel(
        name=op.entry,
        source=source,
        bindings=tuple(bindings),
        groups=product(grid),
        group_size=product(op.group),
        numbers=tuple(f"number_{place}" for place in range(len(values))),
        bytes_moved=float(moved),
        grid=grid,
        group=op.group,
        values=values,
        starts=tuple(starts),
        own=Own(op.title, op.source, op.parameters, tuple((each.name, each.dtype) for each in op.scalars)),
    )


def _words(op: Custom, prepared: Prepared, lengths: Mapping[str, int], row: int) -> tuple[int, ...]:
    """Return the numbers of one launch of a WGSL kernel as 32-bit words."""
    values: dict[str, Mapping[str, float]] = {
        "scalar": {each.name: each.value for each in op.scalars},
        "length": lengths,
        "groups": dict(zip("xyz", op.groups, strict=True)),
        "row": {"": row},
    }
    data = bytearray(prepared.nbytes)
    for kind, name, type, place in prepared.numbers:
        packed = np.array(values[kind][name], SCALARS[type]).tobytes()
        data[place : place + len(packed)] = packed
    return struct.unpack(f"<{len(data) // 4}I", data)


def _grid(op: Custom, target: Target) -> tuple[Three, int]:
    """The grid that is dispatched, and the groups in one row of it when it is folded."""
    most = target.groups_per_dimension
    if most is None or not is_folded(op, target):
        return op.groups, 0
    return (most, -(-product(op.groups) // most), 1), most
