"""A program as a list of torch calls, and which of its nodes torch has no call for.

`compile_program` makes a `TorchExecutable`: calls over numbered slots, with each value let go of after its last use.
What torch lacks is found by trying an operation on next to nothing, once for each type and kind of device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from anygpu.engines.codegen.value_analysis import IndexFacts, uniform_numbers, whole_exponent
from anygpu.engines.protocol import Lack, why_not_here
from anygpu.engines.torch import patterns
from anygpu.engines.torch import structure as structure
from anygpu.engines.torch.elementwise import HELD, LOWER, STAND_IN, TORCH, Site, Step
from anygpu.engines.torch.patterns import fused
from anygpu.hardware.device import Device
from anygpu.program.dtypes import KIND, DType
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import LINEAR_PARTS, Binary, Constant, Gather, Input, Linear, Primitive, Scatter, Spec

# -- a program as a list of torch calls
#
# And which of its nodes torch has no call for.


# `elementwise` and `structure` have filled LOWER when they were imported.


class _Call(NamedTuple):
    """One torch call: which slot it fills, from which slots, and which slots nobody needs any more."""

    target: int
    step: Step
    sources: tuple[int, ...]
    released: tuple[int, ...] = ()


class TorchExecutable:
    """Calls in order over numbered slots. Inputs fill the first ones; constants are in their slots from the start."""

    def __init__(
        self, device: Device, slots: list[Any], calls: Sequence[_Call], outputs: Sequence[int], input_count: int
    ) -> None:
        """A list of calls over numbered slots; constants are in their slots already."""
        self.device = device
        self._slots = slots
        self._calls = tuple(calls)
        self._outputs = tuple(outputs)
        self._input_count = input_count

    def run(self, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, without gradients. Each value is let go of after its last use."""
        values = self._slots.copy()
        values[: self._input_count] = buffers
        with torch.no_grad():
            for target, step, sources, released in self._calls:
                values[target] = step(*[values[source] for source in sources])
                for slot in released:
                    values[slot] = None
        return [values[output] for output in self._outputs]


def compile_program(program: Program, place: torch.device, device: Device) -> TorchExecutable:
    """The program as calls of torch on a device."""
    program = with_references(program, None)
    slots: list[Any] = [None] * len(program.nodes)
    outputs: list[int] = []
    calls = list(_calls(program, place, slots, outputs))
    return TorchExecutable(device, slots, _with_releases(calls, outputs), outputs, program.input_count)


def _calls(program: Program, place: torch.device, slots: list[Any], outputs: list[int]) -> Iterator[_Call]:
    """The calls of a program in order. Patterns that torch has one function for take the place of their steps.

    Further slots, and the slots of the outputs, are appended to the lists.
    """
    facts = IndexFacts(program)
    numbers = uniform_numbers(program)
    decompositions: dict[tuple[Any, ...], int] = {}
    held: dict[int, int] = {}
    short_ways = patterns.found(program)
    skipped = patterns.needed(program, {}) - patterns.needed(program, short_ways)
    for position, node in enumerate(program.nodes):
        op, spec = node.op, program.specs[position]
        if position in short_ways:
            held[position] = position
            pattern = short_ways[position]
            yield _Call(position, fused(pattern), tuple(held[source] for source in patterns.sources(pattern)))
            continue
        if position in skipped and not isinstance(op, Input):
            continue
        sources = tuple(held[source] for source in node.inputs)
        held[position] = position
        if isinstance(op, Input):
            if spec.dtype in STAND_IN:
                held[position] = _new_slot(slots)
                yield _Call(held[position], _viewed(STAND_IN[spec.dtype]), (position,))
        elif isinstance(op, Constant):
            slots[position] = constant(op, place)
        elif isinstance(op, Linear) and op.fn in LINEAR_PARTS:
            key = (op.fn, op.full, sources)
            if key not in decompositions:
                decompositions[key] = _new_slot(slots)
                yield _Call(decompositions[key], LOWER[Linear](op, _site(program, node, place)), sources)
            yield _Call(position, _part(op.part), (decompositions[key],))
        else:
            site = _site(program, node, place, spec)._replace(
                scalars=tuple(numbers.get(source) for source in node.inputs)
            )
            if isinstance(op, Gather | Scatter):
                length = site.inputs[0].shape[op.axis]
                site = site._replace(
                    in_range=facts.surely_in_range(node.inputs[1], length),
                    distinct=facts.surely_distinct(node.inputs[1]),
                )
            yield _Call(position, LOWER[type(op)](op, site), sources)
    for output in program.outputs:
        dtype = program.specs[output].dtype
        if dtype in STAND_IN and held[output] == output:
            outputs.append(_new_slot(slots))
            yield _Call(outputs[-1], _viewed(TORCH[dtype]), (output,))
        elif KIND[dtype] == "complex":
            outputs.append(_new_slot(slots))
            yield _Call(outputs[-1], torch.Tensor.resolve_conj, (output,))
        else:
            outputs.append(output)


def _site(program: Program, node: Node, place: torch.device, result: Spec | None = None) -> Site:
    inputs = tuple(program.specs[source] for source in node.inputs)
    return Site(inputs, result or node.op.infer(*inputs), place)


def _new_slot(slots: list[Any]) -> int:
    slots.append(None)
    return len(slots) - 1


def _viewed(dtype: torch.dtype) -> Step:
    return lambda x: x.view(dtype)


def _part(part: int) -> Step:
    return lambda parts: parts[part]


def constant(op: Constant, place: torch.device) -> torch.Tensor:
    """A constant as a tensor, in the type that holds it."""
    if not op.data:
        return torch.empty(op.shape, dtype=HELD[op.dtype], device=place)
    return torch.frombuffer(bytearray(op.data), dtype=HELD[op.dtype]).reshape(op.shape).to(place)


def _with_releases(calls: Sequence[_Call], outputs: Sequence[int]) -> list[_Call]:
    """Each value goes right after the last call that needs it; what nobody needs goes at once."""
    needed = set(outputs)
    result: list[_Call] = []
    for call in reversed(calls):
        last = [slot for slot in dict.fromkeys((*call.sources, call.target)) if slot not in needed]
        needed.update(last)
        result.append(call._replace(released=tuple(last)))
    return result[::-1]


# What a device lacks is found by trying: torch itself knows best what its version can do there.

#: After one of these, every later call in the process fails with it. Older versions of torch have no type for them.
BROKEN_DEVICE: tuple[type[BaseException], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()

#: The result of each trial: a reason, or `None` when it went well.
_TRIALS: dict[tuple[Any, ...], str | None] = {}

#: Wider than what the device can hold.
_NOT_ON: dict[str, tuple[DType, ...]] = {"mps": ("float64", "complex128")}


def home(dtype: DType, place: torch.device) -> torch.device:
    """Where buffers of this type live. What the device cannot hold stays on the host, where its nodes run too."""
    return torch.device("cpu") if dtype in _NOT_ON.get(place.type, ()) else place


def lacks(program: Program, place: torch.device) -> list[Lack]:
    """The nodes that torch cannot compute as NumPy does, with the reasons."""
    found = []
    numbers = uniform_numbers(program)
    for position, node in enumerate(program.nodes):
        if isinstance(node.op, Input):
            continue
        if isinstance(node.op, Custom):
            missing = why_not_here(node.op, "torch", lambda reference: lacks(reference, place))
            found += [Lack(position, missing)] if missing is not None else []
            continue
        specs = tuple(program.specs[source] for source in node.inputs)
        strange = [
            spec.dtype for spec in (*specs, program.specs[position]) if spec.dtype in _NOT_ON.get(place.type, ())
        ]
        if strange:
            reason: str | None = f"{place.type} has no {strange[0]}"
        elif isinstance(node.op, Binary) and node.op.fn == "power" and KIND[specs[0].dtype] == "complex":
            whole = whole_exponent(numbers.get(node.inputs[1]))
            reason = None if whole is not None else "torch's complex powers are not NumPy's at zeros and infinities"
        else:
            reason = _tried(node.op, specs, place)
        if reason is not None:
            found.append(Lack(position, reason))
    return found


def _tried(op: Primitive, specs: tuple[Spec, ...], place: torch.device) -> str | None:
    """Why torch lacks an operation, or `None`: found by trying it on next to nothing, once for each kind of device."""
    small = op.miniature(specs)
    if small is None:
        return None
    key = (*small, place.type)
    if key not in _TRIALS:
        _TRIALS[key] = _try(*small, place)
    return _TRIALS[key]


def _try(op: Primitive, specs: tuple[Spec, ...], place: torch.device) -> str | None:
    """Try an operation on small tensors; the reason where torch refuses it. A broken device is raised."""
    try:
        with torch.no_grad():
            arrays = [_sample(spec, place) for spec in specs]
            LOWER[type(op)](op, Site(specs, op.infer(*specs), place))(*arrays)
    except (torch.OutOfMemoryError, *BROKEN_DEVICE):
        raise
    except (NotImplementedError, RuntimeError, TypeError):
        where = "the CPU" if place.type == "cpu" else place.type
        return f"torch has no {_called(op)} for {specs[0].dtype} on {where}"
    return None


def _called(op: Primitive) -> str:
    return op.name if isinstance(op, Linear) else op.label


def _sample(spec: Spec, place: torch.device) -> torch.Tensor:
    """Ones and zeros, as an identity where it is a matrix: invertible, and right as indices too."""
    values = torch.eye(2) if len(spec.shape) == 2 else torch.ones(spec.shape)
    return values.to(HELD[spec.dtype]).to(place)
