"""Nodes of a program that are a user's kernel, as launches: what they take, what is checked, and what is too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from anygpu.engines.codegen.custom.opencl_guarding import prepared_opencl
from anygpu.engines.codegen.custom.opencl_reflection import reflected_opencl
from anygpu.engines.codegen.custom.reflected import (
    ConstantNumber,
    Length,
    Prepared,
    Reflected,
    ScalarParameter,
    number_words,
)
from anygpu.engines.codegen.custom.tokens import Unreadable, first_tokens
from anygpu.engines.codegen.custom.wgsl_kernels import prepared_wgsl, reflected_wgsl
from anygpu.engines.codegen.kernel import Binding, Check, Kernel, Own, Start
from anygpu.engines.codegen.target import Target
from anygpu.errors import InvalidKernel
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import MAX_PARAMETERS, MAX_SOURCE, Custom, Language, Three
from anygpu.program.primitives import Cast, Input, Reshape, Spec, product

__all__ = ["ConstantNumber", "Length", "Reflected", "ScalarParameter", "language_of", "reflect"]


#: Bytes that stand in for an empty array: no vector is wider.
EMPTY_BYTES = 128
#: Bytes of arrays of a group's invocations that are their own; OpenCL on processors keeps them on a thread's stack.
PRIVATE_BYTES = 1 << 20
_MOST_GROUPS = (1 << 32) - 1
_MOST_ELEMENTS = (1 << 32) - 1


class KernelLaunch(msgspec.Struct):
    """Nodes that come from one run of a kernel."""

    op: Custom
    inputs: tuple[int, ...]
    #: For each result that the program uses the node that it is.
    nodes: dict[int, int]
    #: The first of its words in the status.
    first_word: int = 0


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


# -- what the text says


def reflected_of(op: Custom) -> Reflected:
    """The reflection of the text, after a check that the node agrees with it."""
    updates = tuple(each.name for each in op.parameters if each.role == "update")
    found = _reflected(op.title, op.language, op.source, op.entry, updates)
    if found.parameters != op.parameters:
        raise InvalidKernel(op.title, "its buffers differ from those its source declares. It was not run.")
    if [(each.name, each.dtype) for each in found.scalars] != [(each.name, each.dtype) for each in op.scalars]:
        raise InvalidKernel(op.title, "its numbers differ from those its source declares. It was not run.")
    if found.group is not None and found.group != op.group:
        raise InvalidKernel(op.title, f"its groups are {found.group} by its source, not {op.group}. It was not run.")
    return found


@lru_cache(maxsize=256)
def _reflected(title: str, language: str, source: str, entry: str, updates: tuple[str, ...]) -> Reflected:
    return reflect(source, title=title, language=language, entry=entry, updates=updates)  # type: ignore[arg-type]


def prepared_of(op: Custom, target: Target) -> Prepared:
    """The user's kernel ready for a driver: parameters in our order, indices checked unless the user asked not to.

    Raises `InvalidKernel` with the place in the source where it cannot be read.
    """
    try:
        if op.language == "wgsl":
            return prepared_wgsl(op.source, op.entry, checked=op.checked, folded=is_folded(op, target))
        return prepared_opencl(op.source, op.entry, checked=op.checked)
    except Unreadable as problem:
        raise problem.for_kernel(op.title) from None


def is_folded(op: Custom, target: Target) -> bool:
    most = target.groups_per_dimension
    return most is not None and max(op.groups) > most


def refusal(op: Custom, inputs: tuple[Spec, ...], target: Target) -> str | None:
    """Why a device cannot run a kernel in its own language: which limit it passes, and by how much."""
    found = reflected_of(op)
    prepared = prepared_of(op, target)
    size = product(op.group)
    if size > target.group_limit or min(op.group) < 1:
        return f"its groups have {size:,} invocations, and {target.group_limit:,} is this device's limit"
    if found.group_memory > target.group_memory:
        return (
            f"its groups share {found.group_memory:,} bytes, and {target.group_memory:,} is this device's limit for "
            "the memory of a group"
        )
    if prepared.private * size > PRIVATE_BYTES:
        return (
            f"the arrays of one group's invocations take {prepared.private * size:,} bytes, and {PRIVATE_BYTES:,} is "
            "the most"
        )
    buffers = len(op.parameters) + bool(prepared.words)
    if buffers > target.bindings:
        return f"it takes {buffers} buffers, with one for errors, and {target.bindings} is this device's limit"
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


def checks_of(launch: KernelLaunch, program: Program, target: Target) -> list[Check]:
    """One for each array whose indices are looked at; `number` counts from 0."""
    prepared = prepared_of(launch.op, target)
    lengths = _lengths(launch.op, prepared, tuple(program.specs[source] for source in launch.inputs))
    return [
        Check(number, "kernel", lengths[name] if length is None else length, launch.op.title, name)
        for number, (name, length) in enumerate(prepared.words)
    ]


def _lengths(op: Custom, prepared: Prepared, inputs: tuple[Spec, ...]) -> dict[str, int]:
    """The lengths of its buffers, in elements as the text counts them."""
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
    for name, least in prepared.least:
        if 0 < lengths[name] < least:
            raise InvalidKernel(op.title, f"{name} has {lengths[name]} elements, and its vectors have {least}.")
    return lengths


# -- a launch


def launch_kernel(
    launch: KernelLaunch,
    program: Program,
    target: Target,
    *,
    slot_of: Mapping[int, int],
    new_slot: Callable[[int], int],
    status: int | None,
) -> Kernel:
    """The user's kernel as a `Kernel` of the schedule: bindings, numbers, grid, and how written buffers begin.
    Raises `InvalidKernel` where the target cannot run it.
    """
    op = launch.op
    specs = tuple(program.specs[source] for source in launch.inputs)
    why = refusal(op, specs, target)
    if why is not None:
        raise InvalidKernel(op.title, f"{why}.")
    found, prepared = reflected_of(op), prepared_of(op, target)
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
    if prepared.words and status is not None:
        bindings.append(Binding(status, "read_write"))
    grid, row = _grid(op, target)
    scalars = {each.name: each for each in op.scalars}
    values = number_words(prepared, _lengths(op, prepared, specs), scalars, launch.first_word, op.groups, row)
    moved = sum(spec.nbytes for _, spec in _specs(op, specs))
    return Kernel(
        name=op.entry,
        source=prepared.source,
        bindings=tuple(bindings),
        groups=product(grid),
        group_size=product(op.group),
        numbers=tuple(f"number_{place}" for place in range(len(values))),
        bytes_moved=float(moved),
        grid=grid,
        group=op.group,
        values=values,
        starts=tuple(starts),
        own=Own(op.title, op.source, found.group_memory),
    )


def _grid(op: Custom, target: Target) -> tuple[Three, int]:
    """The grid that is dispatched, and the groups in one row of it when it is folded."""
    most = target.groups_per_dimension
    if most is None or not is_folded(op, target):
        return op.groups, 0
    return (most, -(-product(op.groups) // most), 1), most


# -- reflects on a kernel's text
#
# The buffers and numbers that it takes, its constants and the size of its groups.
#
# Everything that is not understood is refused here, before any compiler sees it, with its place in the user's own
# text.


_LANGUAGES: tuple[Language, ...] = ("opencl", "wgsl")


def language_of(source: str) -> Language | None:
    """The language, by the first word that only one of them has; `None` when there is none."""
    for read_as in _LANGUAGES:
        before = ""
        for token in first_tokens(source, read_as):
            if before == "@" and token.text in ("compute", "group", "workgroup_size"):
                return "wgsl"
            if token.text in ("__kernel", "kernel", "__global"):
                return "opencl"
            before = token.text
    return None


def reflect(
    source: str,
    *,
    title: str = "",
    language: Language | None = None,
    entry: str | None = None,
    constants: Mapping[str, ConstantNumber] | None = None,
    updates: Sequence[str] = (),
) -> Reflected:
    """Read a kernel's text. Raises `InvalidKernel`, with a line and a column where there are any.

    `title` is what errors call it; `constants` are values for WGSL's `override`s and OpenCL C's `#define`s; `updates`
    are the buffers that the kernel changes, and that a call therefore gives (others that it writes begin as zeros).
    """
    name = title or entry or ""
    if len(source) > MAX_SOURCE:
        raise InvalidKernel(name, f"its source has {len(source):,} characters; {MAX_SOURCE:,} is the most.")
    if "\0" in source:
        raise InvalidKernel(name, "its source has a zero character in it. Remove it.")
    found = language or language_of(source)
    if found is None:
        raise InvalidKernel(
            name,
            "this is neither WGSL (a function with @compute) nor OpenCL C (a function with __kernel). If it is one of "
            'them, say which: language="wgsl" or language="opencl".',
        )
    try:
        read = reflected_wgsl if found == "wgsl" else reflected_opencl
        result = read(source, entry, constants or {}, tuple(updates))
    except Unreadable as problem:
        raise problem.for_kernel(name) from None
    except RecursionError:
        raise InvalidKernel(name, "it is nested too deeply. Split it into steps.") from None
    return _checked(result, name, updates)


def _checked(result: Reflected, name: str, updates: Sequence[str]) -> Reflected:
    """The reflected kernel; raises `InvalidKernel` for equal or too many names, no result, or wrong `updates`."""
    names = [each.name for each in result.parameters] + [each.name for each in result.scalars]
    if len(names) > MAX_PARAMETERS:
        raise InvalidKernel(name, f"it takes {len(names)} buffers and numbers; {MAX_PARAMETERS} is the most.")
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise InvalidKernel(name, f"two of its parameters are called {twice}. Rename one of them.")
    if not any(each.role != "input" for each in result.parameters):
        raise InvalidKernel(
            name,
            "it writes to no buffer, so it has no result. Declare one as var<storage, read_write> (WGSL) or as "
            "__global without const (OpenCL C).",
        )
    for update in updates:
        role = next((each.role for each in result.parameters if each.name == update), None)
        if role is None:
            raise InvalidKernel(name, f"updates= names {update!r}, and it has no buffer of that name.")
        if role == "input":
            raise InvalidKernel(name, f"updates= names {update}, and the kernel only reads it.")
    return result
