"""Programs as functions: a runtime places functions, and tracing one of these gives its program again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anygpu.array.core.array import Array
from anygpu.array.core.recording import apply
from anygpu.engines.numpy.lowering import run
from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.program.graph import Program
from anygpu.program.ops.source import Input
from anygpu.program.wire import MAX_BYTES, from_bytes


def read_program(path: str | Path) -> Program:
    """The program in a file that `to_bytes` was written to; checked in full."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"the program {str(path)!r} cannot be read: {error.strerror}.") from None
    try:
        return from_bytes(data)
    except InvalidProgram as error:
        raise InvalidProgram(f"{path} is not a saved program: {error}") from None


def function_of(program: Program, name: str) -> Callable[..., Any]:
    """The program as a function of its inputs, in order; it returns an array, or a tuple of several."""

    def replay(*inputs: Any) -> Any:
        traced = any(isinstance(each, Array) for each in inputs)
        results = _recorded(program, inputs) if traced else run(program, inputs)
        return results[0] if len(results) == 1 else tuple(results)

    replay.__name__ = replay.__qualname__ = name
    return replay


def _recorded(program: Program, inputs: Sequence[Array]) -> list[Array]:
    values = [each._value for each in inputs]
    for node in program.nodes:
        if not isinstance(node.op, Input):
            values.append(apply(node.op, *[values[position] for position in node.inputs]))
    return [Array(values[output]) for output in program.outputs]
