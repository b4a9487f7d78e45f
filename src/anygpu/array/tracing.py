"""From a function to a program: the function is called once with arrays that have a shape and a type, and no values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from anygpu.array.array import Array
from anygpu.array.expression import Value, linearise, users_line
from anygpu.array.place import Buffer
from anygpu.array.recording import PAPER, dtype_name
from anygpu.errors import InvalidOption, ValueNeeded
from anygpu.program.graph import Program
from anygpu.program.precision import in_single_precision
from anygpu.program.primitives import Spec

Precision = Literal["float32"]


class Paper:
    """Where arrays without values are. Whoever asks for one of their values is told that there are none."""

    device = PAPER

    def _refuse(self) -> NoReturn:
        line = users_line()
        raise ValueNeeded(f"{line[0]}:{line[1]}" if line is not None else None)

    def upload(self, values: Any) -> Buffer:
        return np.array(values)

    def download(self, buffer: Buffer) -> NoReturn:
        self._refuse()

    def run(self, program: Program, buffers: Sequence[Buffer]) -> NoReturn:
        self._refuse()

    def native(self, buffer: Buffer) -> NoReturn:
        self._refuse()

    def adopt(self, array: Any) -> Buffer:
        return np.from_dlpack(array)


def record(
    function: Callable[..., Any], *arguments: Any, precision: Precision | None = None, **options: Any
) -> Program:
    """The program that `function(*arguments, **options)` performs on its arrays.

    Arrays among the positional arguments (ours, NumPy's, or a `Spec` of shape and type) become the program's inputs;
    everything else is passed on as it is. What the function returns, nested as it may be, becomes the outputs in
    order. With `precision="float32"` 64-bit numbers are narrowed to 32 bits, inputs included; never otherwise.
    """
    if precision not in (None, "float32"):
        raise InvalidOption(f'precision is "float32" or None; got {precision!r}.')
    paper = Paper()
    inputs: list[Value] = []

    def sketched(argument: Any) -> Any:
        spec = _spec_of(argument)
        if spec is None:
            return argument
        inputs.append(Value.on(paper, None, spec))
        return Array(inputs[-1])

    results = list(_arrays_of(function(*map(sketched, arguments), **options)))
    if not results:
        raise InvalidOption(f"{_name(function)} returns no array, so there is nothing to record.")
    program, captured = linearise_from(inputs, [each._value for each in results])
    if captured:
        raise InvalidOption(
            f"{_name(function)} uses {len(captured)} array(s) from outside, such as {captured[0].spec}. "
            "Pass it as an argument."
        )
    return in_single_precision(program) if precision == "float32" else program


def linearise_from(inputs: Sequence[Value], wanted: Sequence[Value]) -> tuple[Program, list[Value]]:
    """The program from these inputs, all of them and in this order, and the leaves that are none of them."""
    program, leaves, _ = linearise(wanted, inputs=inputs, keep_held=False)
    known = {id(each) for each in inputs}
    return program, [leaf for leaf in leaves if id(leaf) not in known]


def _spec_of(argument: Any) -> Spec | None:
    if isinstance(argument, Spec):
        return argument
    if isinstance(argument, Array):
        return argument._value.spec
    if isinstance(argument, np.ndarray) and argument.dtype.kind in "biufc":
        return Spec(argument.shape, dtype_name(argument.dtype))
    return None


def _arrays_of(result: Any) -> Iterator[Array]:
    if isinstance(result, Array):
        yield result
    elif isinstance(result, dict):
        for each in result.values():
            yield from _arrays_of(each)
    elif isinstance(result, tuple | list):
        for each in result:
            yield from _arrays_of(each)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
